"""Messages of the WGSL compiler, in terms of the shader's source.

The compiler names types and operators after its own data structures. Here they become WGSL's,
with a hint for common mistakes. Unknown messages stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from difflib import get_close_matches
from typing import NamedTuple

from wgpu_backend.graph.wgsl_source import definitions

_KINDS = {"Sint": "i", "Uint": "u", "Float": "f", "Bool": "bool"}
_SIZES = {"Bi": "vec2", "Tri": "vec3", "Quad": "vec4"}
_OPERATORS = {
    "Add": "+", "Subtract": "-", "Multiply": "*", "Divide": "/", "Modulo": "%", "Equal": "==",
    "NotEqual": "!=", "Less": "<", "LessEqual": "<=", "Greater": ">", "GreaterEqual": ">=",
    "And": "&", "ExclusiveOr": "^", "InclusiveOr": "|", "LogicalAnd": "&&", "LogicalOr": "||",
    "ShiftLeft": "<<", "ShiftRight": ">>",
}  # fmt: skip
_COMPARISONS = ("==", "!=", "<", "<=", ">", ">=")
# What HLSL, Metal, CUDA and C call these.
_FOREIGN = {
    "float": "f32", "half": "f16", "int": "i32", "uint": "u32", "float2": "vec2<f32>",
    "float3": "vec3<f32>", "float4": "vec4<f32>", "fabs": "abs", "sine": "sin", "cosine": "cos",
    "lerp": "mix", "rsqrt": "inverseSqrt", "frac": "fract", "fmax": "max", "fmin": "min",
    "powf": "pow", "expf": "exp", "sqrtf": "sqrt", "ln": "log", "saturated": "saturate",
}  # fmt: skip
_NAMES = (
    "abs acos all any array asin atan atan2 atomicAdd bitcast bool ceil clamp cos cosh "
    "countOneBits cross degrees distance dot exp exp2 f16 f32 faceForward floor fma fract i32 "
    "inverseSqrt ldexp length log log2 max min mix modf normalize pack2x16float pow "
    "quantizeToF16 radians round saturate select sign sin sinh smoothstep sqrt step "
    "storageBarrier tan tanh transpose trunc u32 unpack2x16float vec2 vec3 vec4 "
    "workgroupBarrier "
)
_BUILTINS = _NAMES.split()
# Numbers of functions and expressions are naga's own, and say nothing to a reader.
_INNER = re.compile(r"(Entry point \w+ at Compute|Function \[\d+\] '\w+') is invalid; ")
_EXPRESSION = re.compile(r"(Expression|Call to) \[\d+\] is invalid; ")
# naga prints types as structs of Rust.
_SCALAR = re.compile(r"Scalar ?\{ kind: (\w+), width: (\d) \}")
_ABSTRACT = {"{AbstractFloat}": "a number with a point", "{AbstractInt}": "a whole number"}


class Place(NamedTuple):
    """The line of a shader that an error is about, and the shader's whole text."""

    line: str
    text: str


def explain(what: str, place: Place) -> str:
    """Rewrite a compiler message in WGSL's terms, with the fix if it is known.

    Parameters
    ----------
    what : str
        The compiler's message, its notes joined by semicolons.
    """
    what = _EXPRESSION.sub("", _INNER.sub("", what))
    what = _plain_types(what)
    for pattern, say in _SAYINGS:
        if found := re.search(pattern, what):
            what = what[: found.start()] + say(found, place) + what[found.end() :]
            break
    return re.sub(r" \[\d+\]", "", what)


def _plain_types(what: str) -> str:
    """Write types as WGSL does."""

    def scalar(found: re.Match[str]) -> str:
        kind = _KINDS.get(found[1], found[1])
        return kind if kind == "bool" else f"{kind}{8 * int(found[2])}"

    what = _SCALAR.sub(scalar, what)
    what = re.sub(r"Scalar\((\w+)\)", r"\1", what)
    what = re.sub(
        r"Vector \{ size: (\w+), scalar: (\w+) \}",
        lambda m: f"{_SIZES.get(m[1], m[1])}<{m[2]}>",
        what,
    )
    return re.sub(r"\[\d+\] \(of type ([^()]+)\)", r"\1", what)


def _operand_message(found: re.Match[str], _: Place) -> str:
    sign, a, b = _OPERATORS.get(found[1], found[1]), found[2], found[3]
    if sign in ("&&", "||") or a == b:
        return f"`{sign}` does not take {a} and {b}"
    if sign in ("<<", ">>") and not a.endswith("32>") and a[0] == "f":
        return f"`{sign}` shifts whole numbers, the left one is {a}"
    if a.startswith("vec") != b.startswith("vec"):
        vector, lone = (a, b) if a.startswith("vec") else (b, a)
        if sign in _COMPARISONS or vector[5:-1] == lone:
            return (
                f"`{sign}` takes two of one type, here {a} and {b}; write {vector}(…) of the {lone}"
            )
        return f"`{sign}` of {a} and {b}; convert the {lone}: {vector[5:-1]}(…)"
    return f"`{sign}` takes two of one type, here {a} and {b}; convert one: {a}(…) or {b}(…)"


def _conversion_message(found: re.Match[str], _: Place) -> str:
    return f"{found[1]} stands where {found[2]} is needed; convert it: {found[2]}(…)"


def _declaration_message(found: re.Match[str], _: Place) -> str:
    name, wanted, got = found[1], found[2], _ABSTRACT.get(found[3], found[3])
    return f"`{name}` is declared {wanted}, its value is {got}; convert it: {wanted}(…)"


def _unknown_message(found: re.Match[str], place: Place) -> str:
    name = found[1]
    if home := definitions().get(name):
        return f"`{name}` is in {home}; add the line // @import {home}"
    own = set(re.findall(r"\b[A-Za-z_]\w*\b", place.text)) - {name}
    near = _FOREIGN.get(name) or next(iter(get_close_matches(name, [*own, *_BUILTINS], 1, 0.7)), "")
    return found[0] + (f"; did you mean `{near}`?" if near else "")


def _field_message(found: re.Match[str], place: Place) -> str:
    name = found[1]
    struct = re.search(r"struct Params \{([^}]*)\}", place.text)
    fields = re.findall(r"(\w+)\s*:", struct[1]) if struct else []
    if f"params.{name}" in place.line:
        return f"Params has no field `{name}`, it has {', '.join(fields) or 'none'}"
    return f"there is no `.{name}` of this value: a scalar has no components, a vec2 has x and y"


def _expected_message(found: re.Match[str], place: Place) -> str:
    wanted, got, line = found[1], found[2], place.line
    if got == "if" and " else " in line:
        return f"{found[0]}; WGSL writes `a if c else b` as select(b, a, c)"
    if wanted == "`{`" and got == "=":
        return f"{found[0]}; `=` assigns, `==` compares"
    if wanted == "`;`" and line.lstrip().startswith(got):
        return f"{found[0]}; the line before lacks its `;`"
    if wanted.startswith("assignment") and got != ";":
        return f"{found[0]}; a name is declared by `let {got} = …;` or `var {got} = …;`"
    return found[0]


def _argument_message(found: re.Match[str], _: Place) -> str:
    allowed = re.findall(r"allowed type: ([^;]+)", found[0])
    usual = [t for t in allowed if re.search(r"\b[fiu]32\b", t)]
    return f"argument {found[1]} of `{found[2]}` is of a wrong type, needs {' or '.join(usual)}"


def _power_message(found: re.Match[str], place: Place) -> str:
    return "WGSL has no `**`, write pow(a, b)" if "**" in place.line else found[0]


def _make_message(text: str) -> Callable[[re.Match[str], Place], str]:
    return lambda found, _: text.format(*found.groups())


_SAYINGS: tuple[tuple[str, Callable[[re.Match[str], Place], str]], ...] = (
    (r"Operation (\w+) can't work with ([\w<>]+) and ([\w<>]+)", _operand_message),
    (
        r"automatic conversions cannot convert elements of `([^`]+)` to `([^`]+)`",
        _conversion_message,
    ),
    (r"the type of `(\w+)` is expected to be `([^`]+)`, but got `([^`]+)`", _declaration_message),
    (
        r"invalid left-hand side of assignment; note: consider declaring `(\w+)` with `var`.*",
        _make_message("`{0}` is declared with let, which keeps its value; declare it with var"),
    ),
    (r"no definition in scope for identifier: `(\w+)`", _unknown_message),
    (r"invalid field accessor `(\w+)`", _field_message),
    (r"expected (.+), found \"(.+)\"", _expected_message),
    (r"(?:wrong|inconsistent) type passed as argument #(\d) to `(\w+)`;.*", _argument_message),
    (
        r"wrong number of arguments: expected (\d+), found (\d+)",
        _make_message("it takes {0} arguments, not {1}"),
    ),
    (
        r"Composing expects (\d+) components but (\d+) were given",
        _make_message("it takes {0} values, not {1}"),
    ),
    (
        r"The `if` condition \[\d+\] is not a boolean scalar",
        _make_message("the condition of `if` is not a bool; compare it: `… != 0.0`"),
    ),
    (
        r"The pointer \[\d+\] doesn't relate to a valid destination for a store",
        _make_message("it can only be read, as it is declared; results go into y"),
    ),
    (
        r"Accessing with index \[\d+\] can't be done",
        _make_message("an index is u32 or i32; convert it: u32(…)"),
    ),
    (
        r"increment/decrement operation requires reference type.*",
        _make_message("only a var of u32 or i32 is counted up; declare it: `var k = 0u`"),
    ),
    (r"the operand of the `\*` operator must be a pointer", _power_message),
    (
        r"type mismatch for reject and accept values in `select` call",
        _make_message(
            "select takes (value if false, value if true, condition), the first two of one type"
        ),
    ),
    (
        r"Incompatible operands: Logical(And|Or).*",
        _make_message("`&&` and `||` take bools; compare first"),
    ),
    (
        r"The `return` expression .* does not match the declared return type .*",
        _make_message("what it returns is not what the function declares after `->`"),
    ),
    (
        r"Argument (\d+) value \[\d+\] doesn't match the type \[\d+\]",
        lambda m, _: f"argument {int(m[1]) + 1} is not of the type that the function declares",
    ),
    (
        r"cannot cast a array<([\w<>]+)> to an? (\w+)",
        _make_message("an array is no {1}; take a value of it: `[i]`"),
    ),
)
