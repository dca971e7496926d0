from __future__ import annotations

import pytest

from tests.device.kernels import DOUBLE, body, shader
from wgpu_backend.device import Device
from wgpu_backend.device.wgsl_bounds import bare, check_bounds, nesting
from wgpu_backend.device.wgsl_sizes import array_nbytes, variable_nbytes
from wgpu_backend.device_info import Capabilities
from wgpu_backend.errors import ShaderError
from wgpu_backend.shader import Shader

N = 10_000

# Each of these ends the process when wgpu is given it.
FATAL = {
    "parentheses": body("a[0] = " + "(" * N + "1" + ")" * N + ";"),
    "calls": body("a[0] = " + "abs(" * N + "1" + ")" * N + ";"),
    "indices": body("a[0] = " + "a[" * N + "0" + "]" * N + ";"),
    "arrays": body("", "var<private> x: " + "array<" * N + "f32" + ",1>" * N + ";"),
    "pointers": body("var v = 1; a[0] = " + "*&" * N + "v;"),
    "and": body("if (a[0] == 1" + " && a[1] == 2" * N + ") {}"),
    "else if": body("if (a[0] == 1) {}" + " else if (a[0] == 2) {}" * N),
    "functions": body(
        f"a[0] = f{N - 1}();",
        "fn f0() -> i32 { return 1; }\n"
        + "".join(f"fn f{n}() -> i32 {{ return f{n - 1}(); }}\n" for n in range(1, N)),
    ),
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
    assert bare("a/* x /* y */ z */b").replace("  ", " ") == "a b"


def test_comparisons_are_not_brackets():
    assert nesting("if (a[0]<b && c>d) { }") == 2
    assert nesting("x: array<array<vec4<f32>, 2>, 3>;") == 3
    assert nesting("let x = a<b; " * 200) < 3


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


@pytest.mark.gpu
def test_the_largest_that_is_allowed_compiles(device: Device):
    device.pipeline(body("a[0] = " + "(" * 95 + "1" + ")" * 95 + ";"))
    device.pipeline(body("if (a[0] == 1" + " && a[1] == 2" * 240 + ") {}"))
    device.pipeline(body("if (a[0] == 1) {}" + " else if (a[0] == 2) {}" * 200))
    device.pipeline(body("var x: array<i32, 2048>; a[0] = x[a[1]];"))
