"""How many threads and work groups a device makes of a launch. No device."""

import pytest

from wgpu_backend.dtypes import F32
from wgpu_backend.graph.capabilities import Capabilities, GroupSizes
from wgpu_backend.graph.node import Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.tensor import leaf
from wgpu_backend.ml.wgpu.dispatch import kernels
from wgpu_backend.ops.elementwise.arithmetic import sqr
from wgpu_backend.ops.reduce.norm import softmax
from wgpu_backend.ops.shape.triangular import tri

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
