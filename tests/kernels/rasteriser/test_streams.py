"""Weights in blocks as streams of texels: their layout, and the kernels that read it."""

import numpy as np
import pytest

import wgpu_backend
from tests.blocks import sampled
from tests.builders import Dims, tiny_model
from tests.ops.operands import tensor, weight, weight_bytes
from wgpu_backend.cpu.blocks import decoded
from wgpu_backend.cpu.rounding import q8_pair as numpy_pair
from wgpu_backend.device.buffers import LINE_NBYTES, MAX_LINES, TEXEL_NBYTES
from wgpu_backend.dtypes import MXFP4, Q4_0, Q4_K, Q5_0, Q5_1, Q6_K, Q8_0, U32
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels import select_layout
from wgpu_backend.kernels.rasteriser.images import read_by
from wgpu_backend.kernels.rasteriser.layouts.streams import (
    LANES,
    STREAMS,
    TILE_ROWS,
    layout,
    row_values,
    streamed,
    tile_nbytes,
)
from wgpu_backend.layouts.planes import planes
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.linear.attributes import Q8, Q8_PAIR, Epilogue, Prologue
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.op import fusions
from wgpu_backend.ops.rounding.q8 import (
    FORMATS,
    q8_activations,
)
from wgpu_backend.shader import load
from wgpu_backend.testing import nmse, values_of

LIMIT, LIMIT_OF_ONE = 1e-10, 1e-8


@pytest.fixture
def streams(telling):
    """A device whose products round activations, where it keeps blocks in streams."""
    telling.rules = fusions(("linear_q8",), exact=False)
    yield telling
    telling.rules = {}


def kept(executor, rng, rows, cols, dtype):
    return weight(executor, rows, cols, dtype, weight_bytes(rng, rows, cols, dtype, cols**-0.5))


def weights_nbytes(executor):
    uses = executor.device.memory_report().uses
    return sum(use.nbytes for use in uses if use.purpose == "weights")


def lies_in_stream(matrix):
    """Whether kernels have read a weight from its stream alone."""
    parts = matrix.storage.handle
    return all(part.packed.keys() == {"stream"} and not part.planes for part in parts)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_a_lane_finds_its_rows_in_the_order_it_reads_them(rng, dtype):
    stream, cols = STREAMS[dtype.name], 3 * row_values(dtype)
    data = rng.integers(0, 256, (41, dtype.nbytes(cols)), np.uint8)
    split = planes(dtype, data.reshape(-1, dtype.block_nbytes))
    packed = streamed(dtype, data)
    assert packed.shape == (2, tile_nbytes(dtype, data.shape[1]))
    head, group = stream.lines(dtype)
    lines = packed.reshape(2, 3, head + stream.groups * group, LANES, TEXEL_NBYTES)
    for name in (*stream.head, *stream.group):
        nbytes = stream.nbytes(dtype, name)
        values = split[name].reshape(41, 3, -1, nbytes)
        names = stream.head if name in stream.head else stream.group
        first = sum(stream.texels(dtype, n) for n in names[: names.index(name)])
        for row in (0, 6, 33, 40):
            for g in {0, values.shape[2] - 1}:
                line = first if name in stream.head else head + g * group + first
                own = lines[row // TILE_ROWS, 2, line:, row % TILE_ROWS // 4].reshape(-1)
                start = row % 4 * nbytes
                assert (own[start : start + nbytes] == values[row, 2, g]).all()


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_shaders_are_given_the_bytes_of_the_layout(dtype):
    found, stream = layout(dtype, row_values(dtype)), STREAMS[dtype.name]
    text = load("kernels/rasteriser/mulmat_q8", read_by(found, "weights", "reader")).text
    assert f"const HEAD_GROUPS: u32 = {stream.groups}u;" in text
    for name in ("scales", "supers", "quants", "high"):
        nbytes = stream.nbytes(dtype, name) if name in (*stream.head, *stream.group) else 0
        assert f"const {name.upper()}_NBYTES: u32 = {nbytes}u;" in text


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_steps_of_rows_are_whole_lines(streams, dtype):
    for cols in (row_values(dtype), 19 * row_values(dtype)):
        spec = Spec.dense((5000, cols), dtype)
        packed = select_layout(spec, streams.capabilities, rounded=True)
        assert packed.step_rows % TILE_ROWS == 0
        assert packed.step_rows // TILE_ROWS * packed.tile_nbytes % LINE_NBYTES == 0
        most = packed.most_rows(streams.capabilities)
        assert packed.nbytes(most) <= MAX_LINES * LINE_NBYTES


def test_which_weights_go_into_streams(streams):
    caps = streams.capabilities
    found = select_layout(Spec.dense((3, 128), Q8_0), caps, rounded=True)
    assert (found.name, found.home, found.binding) == ("stream", "texture", "stream")
    assert select_layout(Spec.dense((3, 128), Q8_0), caps, rounded=False) is None
    for shape in ((128,), (2, 3, 128), (3, 96), (0, 128), (40, 1 << 22)):
        assert select_layout(Spec.dense(shape, Q8_0), caps, rounded=True) is None


def product(streams, check, rng, dtype, m, n, k):
    data, x = weight_bytes(rng, m, k, dtype, k**-0.5), rng.standard_normal((n, k), "f4")
    kept = []

    def multiplied(ctx):
        kept.append(weight(ctx._executor, m, k, dtype, data))
        return linear(kept[-1], q8_activations(tensor(ctx, x)), prologue=Q8)

    check(streams, multiplied, limit=LIMIT if m * n > 1 else LIMIT_OF_ONE)
    assert any(lies_in_stream(w) for w in kept if isinstance(w.storage.handle, tuple))


@pytest.mark.parametrize(("m", "n"), [(1, 1), (33, 3), (257, 1), (65, 33)])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_every_format(streams, check, rng, dtype, m, n):
    product(streams, check, rng, dtype, m, n, 512)


@pytest.mark.parametrize("k", [128, 384, 896])
@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("dtype", [Q4_0, Q5_1, MXFP4], ids=str)
def test_rows_of_any_number_of_heads(streams, check, rng, dtype, n, k):
    product(streams, check, rng, dtype, 35, n, k)


@pytest.mark.parametrize("k", [256, 768])
def test_rows_of_any_number_of_super_blocks(streams, check, rng, k):
    product(streams, check, rng, Q4_K, 35, 3, k)


def test_weights_of_several_steps_of_rows(streams, check, rng, monkeypatch):
    monkeypatch.setattr("wgpu_backend.ml.wgpu_storage.CHUNK_NBYTES", 1)
    product(streams, check, rng, Q5_0, 9000, 1, 128)


@pytest.mark.parametrize("dtype", [Q4_0, Q6_K], ids=str)
def test_weights_in_parts(telling_split, check, rng, dtype):
    telling_split.rules = fusions(("linear_q8",), exact=False)
    try:
        product(telling_split, check, rng, dtype, 960, 3, 256)
    finally:
        telling_split.rules = {}


@pytest.mark.parametrize("first", [32, 7])
def test_slices_at_tiles_are_read_in_the_stream(streams, rng, first):
    before, x = weights_nbytes(streams), rng.standard_normal((2, 256), "f4")
    matrix = kept(streams, rng, 120, 256, Q4_K)
    values = values_of(NumpyExecutor(), lambda ctx: q8_activations(tensor(ctx, x)))
    with Context(streams) as ctx:
        rows = tensor(ctx, values, U32)
        whole = linear(matrix, rows, prologue=Q8).numpy()
        got = linear(matrix.slice(0, first, 115), rows, prologue=Q8).numpy()
    np.testing.assert_allclose(got, whole[:, first:115], rtol=1e-6, atol=1e-6)
    # Slices from another row on are read in planes, which go with the weight.
    assert lies_in_stream(matrix) == (first == 32)
    streams.free(matrix.storage)
    assert weights_nbytes(streams) == before


@pytest.mark.parametrize("n", [1, 33])
@pytest.mark.parametrize(("m", "whole"), [(64, True), (33, False)])
def test_halves_that_are_whole_tiles_are_joined_there(streams, check, rng, m, n, whole):
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

    check(streams, build, limit=LIMIT_OF_ONE)
    found = [w for w in made if isinstance(w.storage.handle, tuple)]
    assert all(lies_in_stream(w) == whole for w in found)


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("dtype", [Q4_0, Q5_0], ids=str)
def test_sums_and_pairs(streams, check, rng, dtype, n):
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

    check(streams, added, limit=LIMIT)
    check(streams, paired, limit=LIMIT)


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("dtype", [Q4_0, Q4_K, Q8_0], ids=str)
def test_results_in_eight_bits(streams, rng, dtype, n):
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
        got, want = (values_of(streams, lambda ctx, f=f, b=build: b(ctx, f)) for f in (True, False))
        np.testing.assert_array_equal(got[..., :8], want[..., :8])
    assert len(made) == 4
    assert all(lies_in_stream(matrix) for matrix in made)


@pytest.mark.parametrize("dtype", sampled(FORMATS), ids=str)
def test_rows_and_exact_products_need_no_second_copy(streams, rng, dtype):
    x, ids = rng.standard_normal((2, 512), "f4"), np.array([76, 0, 31, 32], "i4")
    before = weights_nbytes(streams)
    data = weight_bytes(rng, 77, 512, dtype, 1 / 16)
    matrix = weight(streams, 77, 512, dtype, data)
    streams.rules = {}
    with Context(streams) as ctx:
        rows = matrix.rows(ctx.from_numpy(ids)).numpy()
        product = matrix.mulmat(ctx.from_numpy(x)).numpy()
    wide = decoded(dtype, np.frombuffer(data, np.uint8).reshape(-1, dtype.block_nbytes))
    wide = wide.reshape(77, 512)
    np.testing.assert_allclose(rows, wide[ids], rtol=1e-6, atol=1e-7)
    assert nmse(product, x @ wide.T) < LIMIT
    assert lies_in_stream(matrix)
    streams.free(matrix.storage)
    assert weights_nbytes(streams) == before


@pytest.mark.parametrize("dtype", ["f16", "q4_k"])
def test_a_model_reads_its_weights_where_they_lie(streams, tmp_path, dtype):
    path = tiny_model(tmp_path / "model.gguf", "qwen2", dtype, dims=Dims.for_type("q4_k"))
    with wgpu_backend.load(path, device=streams.info.id) as model:
        prompts = ([1, 2, 3], list(range(3, 40)))
        assert all(len(list(model.tokens(prompt, num_predict=3))) for prompt in prompts)
        handles = [w.storage.handle for w in model.backend.weights.values()]
        parts = [part for handle in handles for part in handle]
    imaged = [part for part in parts if part.packed]
    assert imaged
    assert not any(part.planes for part in imaged)
