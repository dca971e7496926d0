"""Layouts of weights: the choice at load, and the views that kernels get."""

import dataclasses

import numpy as np
import pytest

from wgpu_backend import op
from wgpu_backend.dtypes import F32
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels import select_layout, table
from wgpu_backend.kernels.kernel import Family
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import leaf
from wgpu_backend.ml.wgpu.weight_rows import Rows
from wgpu_backend.ops.layouts.layout import WeightLayout, find_layout

PAIRS = 2  # rows of a tile of the layout below


def interleaved(rows):
    """Values of two rows, one of each in turn; a last row has zeros beside it."""
    values = np.pad(rows, ((0, len(rows) % PAIRS), (0, 0))).view("f4")
    return np.ascontiguousarray(values.reshape(-1, PAIRS, values.shape[1]).swapaxes(1, 2))


def pairs_of_rows(spec, capabilities, *, rounded):
    if spec.dtype != F32 or len(spec.shape) != 2:
        return None
    nbytes = PAIRS * spec.dtype.nbytes(spec.shape[1])
    return WeightLayout(
        "pairs", "buffer", "pairs", spec.shape[1], PAIRS, nbytes,
        lambda rows: interleaved(rows).view(np.uint8),
        slice_rows=PAIRS,
        accepts=lambda rows: bool((rows.view("f4") >= 0).all()),
    )  # fmt: skip


@op(
    source="""
@group(0) @binding(0) var<storage, read> weights_pairs: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
struct Params { size: u32, cols: u32 }
@group(0) @binding(2) var<uniform> params: Params;
const WG: u32 = 64u;
// @import lib/index/grid
@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i < params.size {
        let row = i / params.cols;
        y[i] = weights_pairs[(row / 2u * params.cols + i % params.cols) * 2u + row % 2u];
    }
}
"""
)
def read_pairs(weights: Node) -> Launch:
    spec = Spec.dense(weights.spec.shape, F32)
    params = {"cols": spec.shape[1]}
    return Launch(spec, {"weights": weights}, threads=spec.size, params=params)


@pytest.fixture
def family(monkeypatch):
    made = Family("pairs", [], [pairs_of_rows])
    monkeypatch.setattr(table, "FAMILIES", (made, *table.FAMILIES))
    return made


def weight(executor, values):
    spec = Spec.dense(values.shape, F32)
    return leaf(spec, executor.weight(spec, memoryview(values.tobytes()), "weight", alone=True))


@pytest.mark.parametrize("rows", [1, 3, 33, 257])
@pytest.mark.usefixtures("family")
def test_a_family_packs_weights_for_its_kernels(full, rng, monkeypatch, rows):
    monkeypatch.setattr("wgpu_backend.ml.wgpu.storage.CHUNK_NBYTES", 256)
    values = rng.random((rows, 5), "f4")
    matrix = weight(full, values)
    with Context(full) as ctx:
        x = ctx.zeros(1)
        read = read_pairs.add_to(x.builder, matrix)
        assert (read.numpy() == values).all()
        (part,) = matrix.storage.handle
        assert (list(part.packed), list(part.planes)) == (["pairs"], [])
        # An op that does not know the layout is given planes, too.
        assert (matrix + x).numpy() == pytest.approx(values)
    assert list(part.planes) == [""]
    full.free(matrix.storage)


@pytest.mark.usefixtures("family")
def test_values_that_a_layout_does_not_take_lie_in_planes(full, rng):
    matrix = weight(full, rng.standard_normal((3, 5), "f4"))
    assert find_layout(matrix) is None
    assert [list(part.planes) for part in matrix.storage.handle] == [[""]]
    full.free(matrix.storage)


def test_families_are_asked_in_order(family, monkeypatch):
    spec, caps = Spec.dense((4, 5), F32), Capabilities()
    assert select_layout(spec, caps, rounded=False).name == "pairs"
    first = family._replace(layouts=[lambda *_, rounded: None])
    monkeypatch.setattr(table, "FAMILIES", (first, family))
    assert select_layout(spec, caps, rounded=False).name == "pairs"
    assert select_layout(Spec.dense((2, 2, 5), F32), caps, rounded=False) is None


def test_slices_begin_at_rows_where_tiles_begin(family):
    spec = Spec.dense((8, 5), F32)
    layout = pairs_of_rows(spec, Capabilities(), rounded=False)
    matrix = leaf(spec, None)
    assert layout.shows(matrix.spec)
    assert layout.shows(dataclasses.replace(spec, shape=(2, 5), offset=10))
    assert not layout.shows(dataclasses.replace(spec, shape=(2, 5), offset=5))
    assert not layout.shows(Spec.dense((4, 10), F32))


def test_chunks_are_whole_tiles_in_order():
    layout = pairs_of_rows(Spec.dense((7, 5), F32), Capabilities(), rounded=False)
    data = np.arange(35, dtype="f4")
    found = list(layout.chunks(Rows(memoryview(data.tobytes()), 20), 0, 7, 60))
    assert [(len(rows), offset, len(packed)) for rows, offset, packed in found] == [
        (2, 0, 40), (2, 40, 40), (2, 80, 40), (1, 120, 40),
    ]  # fmt: skip
    assert layout.nbytes(7) == 160
