from __future__ import annotations

import pytest

from tests.device.kernels import DOUBLE, body, floats, shader
from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding
from wgpu_backend.device.device import Device
from wgpu_backend.device.wgsl.limits import (
    array_nbytes,
    blank_comments,
    bracket_levels,
    check_bounds,
    variable_nbytes,
)
from wgpu_backend.device.wgsl.module import Shader
from wgpu_backend.device.wgsl.nesting import branch_depth, expression_depth
from wgpu_backend.errors import ShaderError
from wgpu_backend.graph.capabilities import Capabilities

N = 10_000

# Each of these ends the process when wgpu is given it.
FATAL = {
    "parentheses": body("a[0] = " + "(" * N + "1" + ")" * N + ";"),
    "calls": body("a[0] = " + "abs(" * N + "1" + ")" * N + ";"),
    "indices": body("a[0] = " + "a[" * N + "0" + "]" * N + ";"),
    "arrays": body("", "var<private> x: " + "array<" * N + "f32" + ",1>" * N + ";"),
    "pointers": body("var v = 1; a[0] = " + "*&" * N + "v;"),
    "sum": body("a[0] = a[1]" + " + a[1]" * 16_000 + ";"),
    "sum of constants": body("a[0] = c;", "const c = 1" + "+1" * 16_000 + ";"),
    "members": body("a[0] = vec4<i32>(1)" + ".xyzw" * N + ".x;"),
    "signs": body("a[0] = " + "- " * N + "a[1];"),
    "sums in arguments": body(
        "a[0] = " + "max(2, a[1] + " * 95 + "1" + "+ 1" * 400 + ")" * 95 + ";"
    ),
    "and": body("if (a[0] == 1" + " && a[1] == 2" * N + ") {}"),
    "else if": body("if (a[0] == 1) {}" + " else if (a[0] == 2) {}" * N),
    "constants": body(
        f"a[0] = c{N};",
        "".join(f"const c{n + 1} = c{n} + 1;\n" for n in reversed(range(N))) + "const c0 = 1;\n",
    ),
    "cases": body("switch a[0] {" + "".join(f"case {n}: {{}}" for n in range(N)) + "default {} }"),
    "labels": body("switch a[0] { case " + ", ".join(map(str, range(N))) + ": {} default {} }"),
    "functions": body(
        f"a[0] = f{N - 1}();",
        "fn f0() -> i32 { return 1; }\n"
        + "".join(f"fn f{n}() -> i32 {{ return f{n - 1}(); }}\n" for n in range(1, N)),
    ),
}
# These end the process in LLVM's rasteriser, which keeps 80 branches inside each other.
LLVM = {
    "returns": body("".join(f"if (a[{n}] == {n}) {{ a[1] = {n}; return; }}" for n in range(90))),
    "continues": body(
        "for (var k = 0; k < 4; k++) {"
        + "".join(f"if (a[{n}] == {n}) {{ a[1] = {n}; continue; }}" for n in range(90))
        + "}"
    ),
    "ifs": body("".join(f"if (a[{n}] > {n}) {{ a[1] = {n};" for n in range(90)) + "}" * 90),
}
# These hang a driver's compiler, or pass it and fail later.
HUGE = {
    "private": body("a[0] = i32(x[a[1]]);", "var<private> x: array<f32, 268435456>;"),
    "private by constant": body(
        "a[0] = i32(x[a[1]].y);",
        "const K: u32 = 1u << 14u; alias V = vec4<f32>;\nvar<private> x: array<V, K * 1024>;",
    ),
    "private struct": body(
        "a[0] = i32(x.v[a[1]]);", "struct S { v: array<f32, 1000000>, }\nvar<private> x: S;"
    ),
    "function": body("var x: array<array<f32, 16384>, 16384>; a[0] = i32(x[a[1]][0]);"),
    "function by value": body("var x = array<f32, 268435456>(); a[0] = i32(x[a[1]]);"),
    "let": body("let x = array<f32, 268435456>(); a[0] = i32(x[1]);"),
    "workgroup": body("a[0] = i32(x[a[1]]);", "var<workgroup> x: array<f32, 268435456>;"),
}


@pytest.mark.parametrize("made", [*FATAL.values(), *HUGE.values()], ids=[*FATAL, *HUGE])
def test_what_a_compiler_does_not_survive_is_refused(made: Shader):
    with pytest.raises(ShaderError, match=r"made: .*at most"):
        check_bounds(made, Capabilities())


@pytest.mark.parametrize("made", LLVM.values(), ids=LLVM)
def test_what_a_rasteriser_does_not_survive_is_refused_there(made: Shader):
    check_bounds(made, Capabilities())
    with pytest.raises(ShaderError, match=r"made: .* branches inside each other, at most 64"):
        check_bounds(made, Capabilities(software=True))


def test_an_ordinary_shader_passes():
    check_bounds(shader(), Capabilities())
    check_bounds(
        body("var x: array<vec4<f32>, 64>; a[0] = i32(x[a[1]].x);",
             "var<workgroup> tile: array<f32, 4096>;"),
        Capabilities(),
    )  # fmt: skip


def test_a_text_too_long_is_refused():
    with pytest.raises(ShaderError, match="characters of WGSL"):
        check_bounds(shader(DOUBLE + " " * (5 << 20)), Capabilities())


def test_comments_do_not_count():
    check_bounds(
        shader(DOUBLE + "// " + "(" * N + "\n/* /* " + "(" * N + " */ ( */"), Capabilities()
    )
    assert blank_comments("a/* x /* y */ z */b").split() == ["a", "b"]


def test_comparisons_are_not_brackets():
    assert bracket_levels("if (a[0]<b && c>d) { }") == 2
    assert bracket_levels("x: array<array<vec4<f32>, 2>, 3>;") == 3
    assert bracket_levels("let x = a<b; " * 200) < 3


def test_sizes_are_read_from_declarations():
    text = """
    alias T = vec4<f16>;
    const N = 4u * 8u;
    struct S { a: T, b: array<u32, 6>, }
    var<workgroup> w: array<T, N>;
    var<workgroup> v: atomic<u32>;
    var<private> s: array<S, 2>;
    @group(0) @binding(0) var<storage, read> big: array<u32, 1000000>;
    @group(0) @binding(1) var<storage, read> whole: array<u32>;
    fn f() { var m: mat4x4<f32>; var x = 1; }
    """
    spaces = variable_nbytes(text)
    assert spaces.workgroup == 32 * 8 + 4
    assert spaces.private == 64  # two S of 8 + 24 bytes, as much as the matrix
    assert array_nbytes(text) == 64


def test_names_that_begin_with_a_keyword_are_no_declarations():
    assert variable_nbytes("fn f() { variance = mat4x4<f32>(); }").private == 0
    assert variable_nbytes("fn f() { var iance = mat4x4<f32>(); }").private == 64
    assert variable_nbytes("myalias T = vec4<f32>; fn f() { var x: T; }").private == 0


def chained(count: int, mark: str) -> str:
    return "a[0] = a[1]" + f" {mark} a[1]" * count + ";"


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (body("a[1] = 2;\n" + chained(500, "+")), r"shaders/made\.wgsl:16: 502 levels in one expr"),
        (body("a[1] = 2;\n\n" + "if (a[0] == 1) {" * 90 + "}" * 90), r"wgsl:17: 90 branches in"),
        (body("a[1] = a[" + "(" * 120 + "1" + ")" * 120 + "];"), r"wgsl:15: 122 levels of brac"),
    ],
)
def test_a_refusal_names_line_and_count(made: Shader, said: str):
    with pytest.raises(ShaderError, match=said):
        check_bounds(made, Capabilities(software=True))


def test_what_stands_side_by_side_is_not_deep():
    table = ", ".join(f"-{n} + 1" for n in range(2000))
    assert expression_depth(f"let x = array<i32, 2000>({table});").levels == 3
    assert expression_depth("a[0] = 1 + 2;\n" * 5000).levels == 2
    assert expression_depth("if (a.x) { b = c.y.z; }").levels == 2
    check_bounds(body("a[0] = a[1] + 1;\n" * 5000), Capabilities())


@pytest.mark.parametrize(
    ("text", "plain", "llvm"),
    [
        ("if (x) { y = 1; } else { y = 2; } if (z) { }", 1, 1),
        ("if (x) { if (y) { } else if (z) { } else if (w) { } else { } }", 4, 4),
        ("if (x) { } else if (y) { } else if (z) { if (w) { } }", 4, 4),
        ("switch x { case 1: { } case 2, 3: { if (y) { } } default: { } }", 2, 3),
        ("for (var i = 0; i < 3; i++) { if (x) { } }", 1, 1),
        ("{ if (x) { return; } if (y) { } } fn g() { if (z) { } }", 1, 2),
        ("{ loop { if (x) { continue; } if (y) { break; } if (z) { } } if (w) { } }", 1, 2),
        ("{ switch x { case 1: { if (y) { break; } if (z) { } } default: { } } }", 2, 3),
    ],
)
def test_branches_are_counted_inside_each_other(text: str, plain: int, llvm: int):
    assert branch_depth(text, llvm=False).levels == plain
    assert branch_depth(text, llvm=True).levels == llvm


def test_block_comments_nest_and_lines_stay():
    text = "a /* b // c\n /* d */ e */ f // /* g\nh"
    assert blank_comments(text).split() == ["a", "f", "h"]
    assert [len(line) for line in blank_comments(text).split("\n")] == [
        len(s) for s in text.split("\n")
    ]


@pytest.mark.gpu
def test_the_largest_that_is_allowed_compiles(device: Device):
    device.pipeline(body("a[0] = " + "(" * 95 + "1" + ")" * 95 + ";"))
    device.pipeline(body("if (a[0] == 1" + " && a[1] == 2" * 190 + ") {}"))
    device.pipeline(body(chained(390, "+")))
    device.pipeline(body("var x: array<i32, 2048>; a[0] = x[a[1]];"))


def different_branches(count: int) -> str:
    """No two the same, or a driver takes them for one."""
    chain = (f" else if (a[{n + 1}] == {n}) {{ a[{n + 100}] = {n}; }}" for n in range(count))
    return "if (a[0] == 1) { a[1] = 1; }" + "".join(chain)


@pytest.mark.gpu
def test_the_deepest_branches_that_are_allowed_run(device: Device):
    a = floats(device, 256)
    pipeline = device.pipeline(body(different_branches(62)))
    program = device.program([Dispatch(pipeline, (Binding(a),), (1, 1, 1))], reads=[Binding(a)])
    program.replay().wait()
