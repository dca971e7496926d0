"""Compiler messages about mistakes use WGSL's terms, and include the fix."""

from __future__ import annotations

import pytest

from wgpu_backend.device.wgsl.messages import Place, explain

UINT, SINT = ("Scalar(Scalar { kind: %s, width: 4 })" % k for k in ("Uint", "Sint"))  # noqa: UP031
FLOAT = "Scalar(Scalar { kind: Float, width: 4 })"
QUAD = "Vector { size: Quad, scalar: Scalar { kind: Float, width: 4 } }"
MAIN = "Entry point main at Compute is invalid; Expression [10] is invalid; "
TEXT = "struct Params { size: u32, alpha: f32 }\nlet value = 1.0;"


def operation(name: str, a: str, b: str) -> str:
    return f"{MAIN}Operation {name} can't work with [1] (of type {a}) and [6] (of type {b})"


def allowed(*types: str) -> str:
    return "".join(f"; note: allowed type: {t}" for t in types)


SLIPS = [
    (operation("Add", UINT, SINT), "", "`+` takes two of one type, here u32 and i32; convert one"),
    (operation("Less", SINT, UINT), "", "`<` takes two of one type, here i32 and u32"),
    (operation("Multiply", QUAD, UINT), "", "`*` of vec4<f32> and u32; convert the u32: f32(…)"),
    (
        operation("Greater", QUAD, FLOAT),
        "",
        "and f32; write vec4<f32>(…) of the f32",
    ),
    (operation("ShiftLeft", FLOAT, UINT), "", "`<<` shifts whole numbers, the left one is f32"),
    (
        "automatic conversions cannot convert elements of `u32` to `f32`",
        "y[i] = i;",
        "u32 stands where f32 is needed; convert it: f32(…)",
    ),
    (
        "the type of `v` is expected to be `u32`, but got `{AbstractFloat}`",
        "",
        "`v` is declared u32, its value is a number with a point; convert it: u32(…)",
    ),
    (
        "invalid left-hand side of assignment; note: consider declaring `v` with `var` instead of "
        "`let`",
        "",
        "`v` is declared with let, which keeps its value; declare it with var",
    ),
    ("no definition in scope for identifier: `valu`", "", "`valu`; did you mean `value`?"),
    ("no definition in scope for identifier: `lerp`", "", "did you mean `mix`?"),
    (
        "no definition in scope for identifier: `group_max`",
        "",
        "add the line // @import lib/reduce/reduce",
    ),
    (
        "no definition in scope for identifier: `qqq`",
        "",
        "no definition in scope for identifier: `",
    ),
    ("invalid field accessor `alhpa`", "params.alhpa", "no field `alhpa`, it has size, alpha"),
    ('expected `;`, found "if"', "y = a if b else c", "as select(b, a, c)"),
    ('expected `{`, found "="', "if i = 3u {", "`=` assigns, `==` compares"),
    ('expected `;`, found "}"', "}", "the line before lacks its `;`"),
    (
        'expected assignment or increment/decrement, found "v"',
        "float v = x;",
        "declared by `let v = …;`",
    ),
    (
        "wrong type passed as argument #2 to `pow`; note: `pow` accepts the following types"
        + allowed("{AbstractFloat}", "f32", "f16", "vec2<f32>", "f64"),
        "",
        "argument 2 of `pow` is of a wrong type, needs f32 or vec2<f32>",
    ),
    ("wrong number of arguments: expected 2, found 1", "", "it takes 2 arguments, not 1"),
    (f"{MAIN}Composing expects 4 components but 3 were given", "", "it takes 4 values, not 3"),
    (
        f"{MAIN}The `if` condition [8] is not a boolean scalar",
        "",
        "condition of `if` is not a bool",
    ),
    (
        f"{MAIN}The pointer [7] doesn't relate to a valid destination for a store",
        "",
        "it can only be read, as it is declared; results go into y",
    ),
    (
        f"{MAIN}Accessing with index [9] can't be done",
        "",
        "an index is u32 or i32; convert it",
    ),
    ("the operand of the `*` operator must be a pointer", "a ** 2.0", "write pow(a, b)"),
    ("Incompatible operands: LogicalAnd(f32, _)", "", "`&&` and `||` take bools; compare first"),
]


@pytest.mark.parametrize(("said", "line", "wanted"), SLIPS)
def test_a_slip_is_told_in_the_words_of_the_writer(said: str, line: str, wanted: str):
    got = explain(said, Place(line, TEXT))
    assert wanted in got
    for inner in ("kind:", "Expression", "Entry point", "[", "Abstract"):
        assert inner not in got


def test_what_is_not_recognised_stays():
    said = "numeric literal not representable by target type: `4294967296u`"
    assert explain(said, Place("", "")) == said
