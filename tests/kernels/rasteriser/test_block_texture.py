"""Weights in blocks in textures: their layout, and the kernels that read it."""

from contextlib import closing

import numpy as np
import pytest

import wgpu_backend
from tests.blocks import sampled
from tests.builders import Dims, tiny_model
from tests.ops.operands import tensor, weight, weight_bytes
from wgpu_backend.device.wgsl.module import load
from wgpu_backend.dtypes import MXFP4, Q4_0, Q4_K, Q5_0, Q5_1, Q6_K, Q8_0, U32
from wgpu_backend.files.quantize import decode_blocks
from wgpu_backend.graph.capabilities import MAX_TEXEL_ROWS, TEXEL_NBYTES, TEXEL_ROW_NBYTES
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels import select_layout
from wgpu_backend.kernels.rasteriser.layouts.block_texture import (
    LANES,
    ORDERS,
    TILE_ROWS,
    in_order,
    layout,
    row_values,
    tile_nbytes,
)
from wgpu_backend.kernels.rasteriser.textures import read_by
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.layouts.planes import planes
from wgpu_backend.ops.linear.activation_rounding import q8_pair_reference as numpy_pair
from wgpu_backend.ops.linear.attributes import Q8, Q8_PAIR, Attributes, Epilogue, Prologue
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.q8 import FORMATS, q8_activations
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse, values_of

LIMIT, LIMIT_OF_ONE = 1e-10, 1e-8


@pytest.fixture
def rounding(shuffling):
    """A device whose products round activations, where it keeps blocks in textures."""
    shuffling.rules = fusions(("linear_q8",), exact=False)
    yield shuffling
    shuffling.rules = {}


def kept(executor, rng, rows, cols, dtype):
    return weight(executor, rows, cols, dtype, weight_bytes(rng, rows, cols, dtype, cols**-0.5))


def weights_nbytes(executor):
    uses = executor.device.memory_report().uses
    return sum(use.nbytes for use in uses if use.purpose == "weights")


def lies_in_texture(matrix):
    """Whether kernels have read a weight from its texture alone."""
    parts = matrix.storage.handle
    return all(part.packed.keys() == {"texture"} and not part.planes for part in parts)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_a_lane_finds_its_rows_in_the_order_it_reads_them(rng, dtype):
    order, cols = ORDERS[dtype.name], 3 * row_values(dtype)
    data = rng.integers(0, 256, (41, dtype.nbytes(cols)), np.uint8)
    split = planes(dtype, data.reshape(-1, dtype.block_nbytes))
    packed = in_order(dtype, data)
    assert packed.shape == (2, tile_nbytes(dtype, data.shape[1]))
    head, group = order.loads(dtype)
    loads = packed.reshape(2, 3, head + order.groups * group, LANES, TEXEL_NBYTES)
    for name in (*order.head, *order.group):
        nbytes = order.nbytes(dtype, name)
        values = split[name].reshape(41, 3, -1, nbytes)
        names = order.head if name in order.head else order.group
        first = sum(order.texels(dtype, n) for n in names[: names.index(name)])
        for row in (0, 6, 33, 40):
            for g in {0, values.shape[2] - 1}:
                at = first if name in order.head else head + g * group + first
                own = loads[row // TILE_ROWS, 2, at:, row % TILE_ROWS // 4].reshape(-1)
                start = row % 4 * nbytes
                assert (own[start : start + nbytes] == values[row, 2, g]).all()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_shaders_are_given_the_bytes_of_the_layout(dtype):
    found, order = layout(dtype, row_values(dtype)), ORDERS[dtype.name]
    text = load("kernels/rasteriser/matmul_q8", read_by(found, "weights", "reader")).text
    assert f"const HEAD_GROUPS: u32 = {order.groups}u;" in text
    for name in ("scales", "supers", "quants", "high"):
        nbytes = order.nbytes(dtype, name) if name in (*order.head, *order.group) else 0
        assert f"const {name.upper()}_NBYTES: u32 = {nbytes}u;" in text


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_steps_of_rows_are_whole_rows_of_texels(rounding, dtype):
    for cols in (row_values(dtype), 19 * row_values(dtype)):
        spec = Spec.dense((5000, cols), dtype)
        packed = select_layout(spec, rounding.capabilities, rounded=True)
        assert packed.step_rows % TILE_ROWS == 0
        assert packed.step_rows // TILE_ROWS * packed.tile_nbytes % TEXEL_ROW_NBYTES == 0
        most = packed.most_rows(rounding.capabilities)
        assert packed.nbytes(most) <= MAX_TEXEL_ROWS * TEXEL_ROW_NBYTES


def test_which_blocks_go_into_textures(rounding):
    caps = rounding.capabilities
    found = select_layout(Spec.dense((3, 128), Q8_0), caps, rounded=True)
    assert (found.name, found.home, found.binding) == ("block_texture", "texture", "texture")
    assert select_layout(Spec.dense((3, 128), Q8_0), caps, rounded=False) is None
    for shape in ((128,), (2, 3, 128), (3, 96), (0, 128), (40, 1 << 22)):
        assert select_layout(Spec.dense(shape, Q8_0), caps, rounded=True) is None


def product(rounding, check, rng, dtype, m, n, k):
    data, x = weight_bytes(rng, m, k, dtype, k**-0.5), rng.standard_normal((n, k), "f4")
    kept = []

    def multiplied(ctx):
        kept.append(weight(ctx._executor, m, k, dtype, data))
        return linear(kept[-1], q8_activations(tensor(ctx, x)), prologue=Q8)

    check(rounding, multiplied, limit=LIMIT if m * n > 1 else LIMIT_OF_ONE)
    assert any(lies_in_texture(w) for w in kept if isinstance(w.storage.handle, tuple))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (33, 3), (257, 1), (65, 33)])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_every_format(rounding, check, rng, dtype, m, n):
    product(rounding, check, rng, dtype, m, n, 512)


@pytest.mark.parametrize("k", [128, 384, 896])
@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("dtype", [Q4_0, Q5_1, MXFP4], ids=str)
def test_rows_of_any_number_of_heads(rounding, check, rng, dtype, n, k):
    product(rounding, check, rng, dtype, 35, n, k)


@pytest.mark.parametrize("k", [256, 768])
def test_rows_of_any_number_of_super_blocks(rounding, check, rng, k):
    product(rounding, check, rng, Q4_K, 35, 3, k)


def test_weights_of_several_steps_of_rows(rounding, check, rng, monkeypatch):
    monkeypatch.setattr("wgpu_backend.ml.wgpu.storage.CHUNK_NBYTES", 1)
    product(rounding, check, rng, Q5_0, 9000, 1, 128)


@pytest.mark.parametrize("dtype", [Q4_0, Q6_K], ids=str)
def test_weights_in_parts(shuffling_split, check, rng, dtype):
    shuffling_split.rules = fusions(("linear_q8",), exact=False)
    try:
        product(shuffling_split, check, rng, dtype, 960, 3, 256)
    finally:
        shuffling_split.rules = {}


@pytest.mark.parametrize("first", [32, 7])
def test_slices_at_tiles_are_read_in_the_texture(rounding, rng, first):
    before, x = weights_nbytes(rounding), rng.standard_normal((2, 256), "f4")
    matrix = kept(rounding, rng, 120, 256, Q4_K)
    values = values_of(NumpyExecutor(), lambda ctx: q8_activations(tensor(ctx, x)))
    with Context(rounding) as ctx:
        rows = tensor(ctx, values, U32)
        whole = linear(matrix, rows, prologue=Q8).numpy()
        got = linear(matrix.slice(0, first, 115), rows, prologue=Q8).numpy()
    np.testing.assert_allclose(got, whole[:, first:115], rtol=1e-6, atol=1e-6)
    # Slices from another row on are read in planes, which go with the weight.
    assert lies_in_texture(matrix) == (first == 32)
    rounding.free(matrix.storage)
    assert weights_nbytes(rounding) == before


@pytest.mark.parametrize("n", [1, 33])
@pytest.mark.parametrize(("m", "whole"), [(64, True), (33, False)])
def test_gates_that_are_whole_tiles_are_joined_there(rounding, check, rng, m, n, whole):
    data, x = weight_bytes(rng, 2 * m, 256, Q6_K, 1 / 16), rng.standard_normal((n, 256), "f4")
    made = []

    def build(ctx):
        made.append(weight(ctx._executor, 2 * m, 256, Q6_K, data))
        return linear(
            made[-1],
            q8_activations(tensor(ctx, x)),
            prologue=Prologue("q8", 0.5),
            epilogue=Epilogue("silu"),
        )

    check(rounding, build, limit=LIMIT_OF_ONE)
    found = [w for w in made if isinstance(w.storage.handle, tuple)]
    assert all(lies_in_texture(w) == whole for w in found)


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("dtype", [Q4_0, Q5_0], ids=str)
def test_sums_and_pairs(rounding, check, rng, dtype, n):
    data, bias = weight_bytes(rng, 67, 256, dtype, 1 / 16), rng.standard_normal(67, "f4")
    x = rng.standard_normal((n, 256), "f4")
    parts = numpy_pair(x)

    def added(ctx):
        rows = q8_activations(tensor(ctx, x))
        return linear(
            weight(ctx._executor, 67, 256, dtype, data), rows, tensor(ctx, bias), prologue=Q8
        )

    def paired(ctx):
        matrix = weight(ctx._executor, 67, 256, dtype, data)
        return linear(matrix, tensor(ctx, parts, U32), prologue=Q8_PAIR)

    check(rounding, added, limit=LIMIT)
    check(rounding, paired, limit=LIMIT)


@pytest.mark.parametrize(("cols", "form"), [(256, "q8_pair"), (192, "values")])
def test_activations_are_split_where_weights_lie_for_it(shuffling, monkeypatch, rng, cols, form):
    monkeypatch.setattr(shuffling, "rules", fusions(exact=False, coarse=False))
    matrix = kept(shuffling, rng, 64, cols, Q4_0)
    with Context(shuffling) as ctx, closing(ctx.record(matrix.mulmat(ctx.zeros(3, cols)))) as made:
        found = [launch.attributes for _, launch in made.plan.steps]
    assert lies_in_texture(matrix) == (form == "q8_pair")
    assert [a.prologue.form for a in found if isinstance(a, Attributes)] == [form]


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("dtype", [Q4_0, Q4_K, Q8_0], ids=str)
def test_results_in_eight_bits(rounding, rng, dtype, n):
    both, down = (weight_bytes(rng, m, 256, dtype, 1 / 16) for m in (128, 64))
    x, scale = rng.standard_normal((n, 256), "f4"), rng.standard_normal(64, "f4")
    made = []

    def matrix_of(ctx, rows, data):
        made.append(weight(ctx._executor, rows, 256, dtype, data))
        return made[-1]

    def gated(ctx, fused):
        matrix, rows = matrix_of(ctx, 128, both), q8_activations(tensor(ctx, x))
        if fused:
            return linear(matrix, rows, prologue=Q8, epilogue=Epilogue("silu", form="q8"))
        return q8_activations(linear(matrix, rows, prologue=Q8, epilogue=Epilogue("silu")))

    def summed(ctx, fused):
        matrix, rows = matrix_of(ctx, 64, down), q8_activations(tensor(ctx, x))
        addend, weights = tensor(ctx, np.ones((n, 64), "f4")), tensor(ctx, scale)
        if fused:
            return linear(
                matrix,
                rows,
                addend,
                weights,
                ctx.zeros(n, 64),
                prologue=Q8,
                epilogue=Epilogue(norm=True, form="q8"),
            )
        return q8_activations(linear(matrix, rows, addend, prologue=Q8) * weights)

    for build in (gated, summed):
        got, want = (
            values_of(rounding, lambda ctx, f=f, b=build: b(ctx, f)) for f in (True, False)
        )
        np.testing.assert_array_equal(got[..., :8], want[..., :8])
    assert len(made) == 4
    assert all(lies_in_texture(matrix) for matrix in made)


@pytest.mark.parametrize("dtype", sampled(FORMATS), ids=str)
def test_rows_and_exact_products_need_no_second_copy(rounding, rng, dtype):
    x, ids = rng.standard_normal((2, 512), "f4"), np.array([76, 0, 31, 32], "i4")
    before = weights_nbytes(rounding)
    data = weight_bytes(rng, 77, 512, dtype, 1 / 16)
    matrix = weight(rounding, 77, 512, dtype, data)
    rounding.rules = {}
    with Context(rounding) as ctx:
        rows = matrix.rows(ctx.from_numpy(ids)).numpy()
        product = matrix.mulmat(ctx.from_numpy(x)).numpy()
    wide = decode_blocks(dtype, np.frombuffer(data, np.uint8).reshape(-1, dtype.block_nbytes))
    wide = wide.reshape(77, 512)
    np.testing.assert_allclose(rows, wide[ids], rtol=1e-6, atol=1e-7)
    assert nmse(product, x @ wide.T) < LIMIT
    assert lies_in_texture(matrix)
    rounding.free(matrix.storage)
    assert weights_nbytes(rounding) == before


@pytest.mark.parametrize("dtype", ["f16", "q4_k"])
def test_a_model_reads_its_weights_where_they_lie(rounding, tmp_path, dtype):
    path = tiny_model(tmp_path / "model.gguf", "qwen2", dtype, dims=Dims.for_type("q4_k"))
    with wgpu_backend.load(path, device=rounding.info.id) as model:
        prompts = ([1, 2, 3], list(range(3, 40)))
        assert all(len(list(model.tokens(prompt, num_predict=3))) for prompt in prompts)
        handles = [w.storage.handle for w in model.backend.weights.values()]
        parts = [part for handle in handles for part in handle]
    textured = [part for part in parts if part.packed]
    assert textured
    assert not any(part.planes for part in textured)
