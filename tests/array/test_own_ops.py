"""Ops of one's own, given arrays."""

import numpy as np
import pytest

import wgpu_backend as wb
import wgpu_backend.array as wx
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import DTypeError
from wgpu_backend.testing import forget

TWICE = """\
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
@group(0) @binding(2) var<uniform> params: Params;
struct Params { size: u32, x_offset: u32 }
const WG: u32 = 64u;
@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    if id.x < params.size { y[id.x] = 2.0 * x[params.x_offset + id.x]; }
}
"""


@pytest.fixture(params=[True, False], ids=["annotated", "bare"])
def twice(request):
    def twice_op(x):
        return wb.Launch(wb.Spec.dense(x.spec.shape, F32), {"x": x}, threads=x.spec.size)

    if request.param:
        twice_op.__annotations__["x"] = wb.Node
    made = wb.op(source=TWICE, dense=("x",))(twice_op)
    made.reference(lambda x: 2 * x)
    yield made
    forget(made)


def test_an_array_in_the_place_of_a_tensor_is_told_what_to_do(twice):
    x = wx.ones((3,))
    with pytest.raises(DTypeError, match=r"twice_op: .* is an array.*looking_at\(twice_op\(x.node"):
        twice(x)


def test_ops_take_the_nodes_of_arrays(twice):
    x = wx.array(np.arange(6, dtype=np.float32).reshape(2, 3)).T
    y = wx.Array.looking_at(twice(x.node)) + 1
    compiled = wx.compile(lambda a: wx.Array.looking_at(twice(a.node)) + 1)
    want = [[1, 7], [3, 9], [5, 11]]
    assert y.tolist() == compiled(x).tolist() == want
