"""Types of an op's bindings against those of its operands. No device."""

import pytest

from wgpu_backend.dtypes import BF16, COMPLEX64, F16, F32, I8, I32, Q8_0, U32
from wgpu_backend.errors import ShaderError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch, Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.tensor import leaf
from wgpu_backend.ml.wgpu.dispatch import kernels
from wgpu_backend.ops.op import op
from wgpu_backend.testing import forget

PICK = """\
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> index: array<i32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
const WG: u32 = 64u;
@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < arrayLength(&index) { y[id.x] = x[u32(index[id.x])]; }
}
"""
X, INDEX, Y = (f"{name}: array<" for name in ("x", "index", "y"))
LOADED = "// @import formats/load/f32 as x"
STORED = "// @import formats/store/f32 as y"


@pytest.fixture
def composed():
    """What becomes of an op's text, for an operand of this type, its result, and an i32 index."""
    made = []

    def run(text: str, x_type=F32, y_type=F32):
        def picked_op(x, index):
            return Launch(Spec.dense((8,), y_type), {"x": x, "index": index}, threads=8)

        made.append(op(source=text)(picked_op))
        operands = (leaf(Spec.dense((32,), t), Storage(128, "input")) for t in (x_type, I32))
        launch = picked_op(*operands)
        return list(kernels(made[-1], launch, Capabilities(), lambda node: ()))

    yield run
    for one in made:
        forget(one)


@pytest.mark.parametrize(
    ("old", "new", "types", "said"),
    [
        (
            INDEX + "i32",
            INDEX + "f32",
            (F32, F32),
            "2: binding index is array<f32>, operand index is i32; needs array<i32>",
        ),
        (INDEX + "i32", INDEX + "vec4f", (F32, F32), "2: binding index is array<vec4f>, operand"),
        (
            INDEX + "i32",
            INDEX + "vec2< f32 >",
            (F32, F32),
            "2: binding index is array<vec2< f32 >>",
        ),
        (
            "",
            "",
            (F32, F16),
            "3: binding y is array<f32>, the result is f16; `// @import formats/store/",
        ),
        (
            "",
            "",
            (F16, F32),
            "1: binding x is array<f32>, operand x is f16; `// @import formats/load/",
        ),
        ("", "", (BF16, BF16), "1: binding x is array<f32>, operand x is bf16"),
        ("", "", (I8, I8), "1: binding x is array<f32>, operand x is i8"),
        ("", "", (U32, I32), "1: binding x is array<f32>, operand x is u32; needs array<u32>"),
        (X + "f32", X + "f16", (F32, F32), "1: binding x is array<f16>, operand x is f32"),
    ],
)
def test_floats_where_something_else_lies_are_an_error(composed, old, new, types, said):
    with pytest.raises(ShaderError) as raised:
        composed(PICK.replace(old, new, 1), *types)
    message = str(raised.value)
    assert f": picked_op:{said}" in message
    declared, caret = message.splitlines()[-2:]
    assert declared[caret.index("^") :].startswith("array<")


@pytest.mark.parametrize(
    ("old", "new", "types"),
    [
        ("", "", (F32, F32)),
        ("", "", (COMPLEX64, F32)),
        ("", "", (I32, I32)),  # moved
        (X + "f32", X + "u32", (F16, F32)),  # words
        (X + "f32", X + "i32", (F32, F32)),  # bits
        ("x[u32(index[id.x])]", "f32(bitcast<i32>(x[id.x]))", (I32, F32)),
        (X + "f32", X + "vec4<u32>", (BF16, F32)),
        (X + "f32", X + "f32_pair", (I32, F32)),
    ],
)
def test_what_may_be_meant_is_no_error(composed, old, new, types):
    assert old in PICK
    pair = "struct f32_pair { a: i32, b: i32 }\n"
    assert composed(pair + PICK.replace(old, new, 1) + "\n\n", *types)


@pytest.mark.parametrize("dtype", [F32, F16, BF16, I32, I8], ids=str)
def test_snippets_fit_every_type(composed, dtype):
    lines = PICK.splitlines()
    text = "\n".join([LOADED, lines[1], STORED, *lines[3:]])
    text = text.replace("y[id.x] = x[u32(index[id.x])];", "y_store4(id.x * 4u, x_load4(id.x));")
    assert composed(text, dtype, dtype)


def test_planes_of_blocks_are_not_looked_at(composed):
    planes = "x_quants: array<u32>;\n@group(0) @binding(3) var<storage, read> x_scales: array<f32"
    text = PICK.replace("x: array<f32", planes).replace("x[u32(index[id.x])]", "x_scales[0]")
    assert composed(text, Q8_0)
