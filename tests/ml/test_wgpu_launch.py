"""How many threads and work groups a device makes of a launch. No device."""

import pytest

from wgpu_backend import op
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ShaderError
from wgpu_backend.graph.capabilities import Capabilities, GroupSizes
from wgpu_backend.graph.node import Launch, Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.tensor import leaf
from wgpu_backend.ml.wgpu.dispatch import kernels
from wgpu_backend.ops.elementwise.arithmetic import sqr
from wgpu_backend.ops.op import REGISTRY
from wgpu_backend.ops.reduce.norm import softmax
from wgpu_backend.ops.shape.triangular import tri
from wgpu_backend.testing import forget

EVEN = Capabilities()
FEW = Capabilities(group_sizes=GroupSizes(few=8, many=1024, items_per_thread=32))


def kernel(op, capabilities, *shape, **options):
    x = leaf(Spec.dense(shape, F32), Storage(4, "input"))
    (made,) = kernels(op, op.record(x, **options), capabilities, lambda node: ())
    return made


def width(made):
    return int(next(line for line in made.shader.text.splitlines() if "const WG" in line)[16:-2])


@pytest.mark.parametrize("size", [1, 1023, 1024, 1025, 1 << 22])
def test_turns_of_all_threads_cover_a_tensor_once(size):
    x, y, _ = kernel(sqr, FEW, size).groups
    assert x * y == -(-size // (8 * 32 * 4))
    x, y, _ = kernel(sqr, EVEN, size).groups
    assert size <= x * y * 64 * 4 < size + 64 * 4 * y


@pytest.mark.parametrize(
    ("capabilities", "rows", "threads"),
    [(EVEN, 4, 64), (EVEN, 512, 64), (FEW, 4, 8), (FEW, 512, 64)],
)
def test_lone_threads_share_groups_where_there_are_many(capabilities, rows, threads):
    assert width(kernel(tri, capabilities, rows, rows, kind=0)) == threads


def test_threads_that_wait_for_each_other_are_few_where_that_pays():
    assert width(kernel(softmax, FEW, 4096, 64)) == 8
    assert width(kernel(softmax, EVEN, 4096, 64)) == 64


DOUBLED = """
// @import formats/load/f32 as x
// @import lib/index/grid
DECLARED
@group(0) @binding(0) var<storage, read_write> y: array<f32>;
struct Params { size: u32, x_offset: u32 }
@group(0) @binding(0) var<uniform> params: Params;
@compute @workgroup_size(SIZE)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.size { y[id.x] = 2.0 * x_load(params.x_offset + id.x); }
}
"""


@pytest.fixture
def doubled():
    """Launch an op with work groups of a size on a device."""

    def launched(capabilities, size, declared, **how):
        @op(source=DOUBLED.replace("SIZE", size).replace("DECLARED", declared))
        def doubled_here(x):
            return Launch(x.spec, {"x": x}, **how)

        try:
            return kernel(doubled_here, capabilities, 100)
        finally:
            forget(REGISTRY["doubled_here"])

    return launched


@pytest.mark.parametrize(
    ("size", "declared", "told"),
    [
        ("32", "", r":8: the launch counts threads, .* needs `const WG: u32 = 64u;`"),
        ("THREADS", "const THREADS: u32 = 32u;", r":8: the launch counts threads"),
        ("WG", " const WG: u32 = 32u;", r":4: the device cannot set WG here, needs `const WG"),
        ("WG", "const WG=32u;", r":4: the device cannot set WG here"),
    ],
)
def test_threads_of_work_groups_that_the_device_cannot_choose(doubled, size, declared, told):
    with pytest.raises(ShaderError, match=told):
        doubled(EVEN, size, declared, threads=100)
    assert doubled(EVEN, "WG", "const WG: u32 = 32u;", threads=100).groups == (2, 1, 1)


def test_groups_whose_threads_the_device_chooses(doubled):
    """On `FEW` two of them would reach 16 of 100 values."""
    declared = "const WG: u32 = 64u;"
    with pytest.raises(ShaderError, match=r"counts work groups, .*; needs threads= .*\"WG\": 64"):
        doubled(FEW, "WG", declared, groups=(2, 1, 1))
    assert width(doubled(FEW, "WG", declared, groups=(2, 1, 1), choices={"WG": 64})) == 64
    assert doubled(FEW, "64", "", groups=(2, 1, 1)).groups == (2, 1, 1)
