"""Loops that count their turns: every kernel compiles so, and one that does not end is named."""

from pathlib import Path

import numpy as np
import pytest

from tests.implementations import wgpu_native_only
from wgpu_backend.device.wgsl import loop_counters
from wgpu_backend.device.wgsl.loop_counters import MAX_ITERATIONS, counted_loops
from wgpu_backend.device.wgsl.module import load
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShaderError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.graph.wgsl_source import Inline
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.testing.red_zones import run_in_red_zones
from wgpu_backend.ops.op import op
from wgpu_backend.testing import check_op, forget

FOLDER = Path(__file__).parent.parent.parent / "shaders"
KERNELS = sorted(path.stem for path in FOLDER.glob("*.wgsl"))

HEAD = """\
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;
struct Params { size: u32 }
const WG: u32 = 64u;
@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x >= params.size { return; }
"""


@pytest.fixture
def summed(full):
    """Run an op whose kernel ends with some text between red zones, and forget it."""
    made = []

    def run(body: str) -> np.ndarray:
        def counting_op(x: Node) -> Launch:
            out = Spec.dense(x.spec.shape, F32)
            return Launch(out, {"x": x}, threads=out.size, params={"size": out.size})

        made.append(op(source=HEAD + body, dense=("x",))(counting_op))
        with Context(full) as context:
            x = context.from_numpy(np.arange(999, dtype="f4"))
            return run_in_red_zones(full, made[-1](x)).values

    yield run
    for one in made:
        forget(one)


ENDING = {
    "for": "for (var i = 0u; i < 10u; i++) { s += x[id.x]; }",
    "while": "while n < 10u { s += x[id.x]; n++; }",
    "loop": "loop { if n == 10u { break; } s += x[id.x]; n++; }",
    "continuing": "loop { s += x[id.x]; continuing { n++; break if n == 10u; } }",
    "nested": "for (var i = 0u; i < 5u; i++) { for (var k = 0u; k < 2u; k++) { s += x[id.x]; } }",
    "switched": "while n < 10u { n++; switch n { case 99u { break; } default { s += x[id.x]; } } }",
}


@pytest.mark.parametrize("how", ENDING)
def test_loops_that_end_do_what_they_did(summed, how):
    got = summed(f"    var s = 0.0; var n = 0u;\n    {ENDING[how]}\n    y[id.x] = s;\n}}\n")
    np.testing.assert_array_equal(got, 10 * np.arange(999))


ENDLESS = {
    "loop": ("loop { n++; }", 10, 5),
    "while": ("while true { n++; }", 10, 5),
    "for": ("for (;;) { n++; }", 10, 5),
    "a step too few": ("for (var i = 0u; i != 11u; i += 2u) { n += i; }", 10, 5),
    "the inner of two": ("while n < 9u { n++;\n while true { n++; } }", 11, 2),
    "the outer of two": (
        "while true {\n for (var i = 0u; i < 9u; i++) { n++; }\n loop { n++; break; } }",
        10,
        5,
    ),
    "one after another": ("while n < 1000u { n++; }\n loop { n++; }", 11, 2),
    "with a comment": ("/* loop { */ loop { // for (;;)\n n++; }", 10, 18),
    "of one thread": ("while id.x == 998u { n++; }", 10, 5),
}


@pytest.mark.parametrize("how", ENDLESS)
@wgpu_native_only
def test_a_loop_that_does_not_end_is_an_error_with_its_line(summed, how):
    body, line, column = ENDLESS[how]
    with pytest.raises(ShaderError, match=f"counting_op:{line}: loop ran more than") as found:
        summed(f"    var n = 0u;\n    {body}\n    y[id.x] = f32(n);\n}}\n")
    what, shown, caret = str(found.value).split("\n")
    assert what.endswith(f"loop ran more than {MAX_ITERATIONS} iterations")
    assert "checked_loops" not in shown
    assert caret.index("^") == len(f"{line} │ ") + column - 1


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_compiles_with_its_loops_counted(full, kernel):
    shader = load(kernel)
    counted = counted_loops(shader, 9)
    loops = any(word in shader.text for word in ("for (", "while ", "loop {"))
    assert (counted is not None) == loops
    if counted is not None:
        assert counted.shader.text.count("\n") + 1 == len(counted.shader.origins)
        assert full.device.pipeline(counted.shader)


def test_no_loop_is_counted_where_no_binding_is_left():
    bindings = "".join(
        f"@group(0) @binding({i}) var<storage, read> x{i}: array<f32>;\n" for i in range(8)
    )
    assert counted_loops(load(Inline("eight", bindings + "fn main() { loop { } }")), 8) is None


@pytest.mark.slow
@wgpu_native_only
def test_the_battery_names_a_loop_that_does_not_end_and_goes_on(full, monkeypatch):
    monkeypatch.setattr(loop_counters, "MAX_ITERATIONS", 1 << 12)  # 86 cases make so many

    @op(source=HEAD + "    loop { y[id.x] += x[id.x]; }\n}\n", dense=("x",))
    def endless_op(x: Node) -> Launch:
        out = Spec.dense(x.spec.shape, F32)
        return Launch(out, {"x": x}, threads=out.size, params={"size": out.size})

    try:
        with pytest.raises(
            AssertionError, match=r"endless_op:9: loop ran more than \d+ iterations"
        ):
            check_op(endless_op, "n", dtypes=(F32,), executors={"full": full})
    finally:
        forget(endless_op)
