"""Every block format: upload, cast, rows, products; and the formats that a device writes."""

import numpy as np
import pytest
from gguf import GGMLQuantizationType, quants

from tests.blocks import FORMATS, random_blocks, recorded, sampled
from tests.ops.operands import LAYOUTS, tensor, weight
from tests.shares import rare
from wgpu_backend.dtypes import (
    BF16,
    F16,
    F32,
    IQ1_M,
    IQ1_S,
    MXFP4,
    Q1_0,
    Q2_0,
    Q4_0,
    Q6_K,
    Q8_0,
    Q8_1,
    Q8_K,
    QUANTISABLE,
)
from wgpu_backend.errors import DTypeError, ModelError, ShapeError
from wgpu_backend.files.quantize import decode_blocks, encode_blocks
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.layouts.planes import join_planes, plane_nbytes, planes
from wgpu_backend.testing import values_of

# Products of a dequantised weight, summed in f32 in another order than NumPy does.
LIMIT = 1e-10
ROWS, COLS = 33, 256
# libggml makes all but these two, which it only uses for activations.
RECORDED = tuple(d for d in FORMATS if d not in (Q8_1, Q8_K))


def matrix(rng, dtype, rows=ROWS, cols=COLS, std=1 / 16):
    return random_blocks(rng, dtype, rows * cols // dtype.block, std)


def same_bits(got, want):
    assert got.shape == want.shape
    assert got.dtype == want.dtype == np.float32
    differing = got.view(np.uint32) != np.ascontiguousarray(want).view(np.uint32)
    assert not differing.any(), f"{np.count_nonzero(differing)} of {got.size} values differ"


def cast_to(dtype, blocks, rows, cols=COLS, target=F32):
    return lambda ctx: ctx.from_bytes(dtype, blocks.tobytes(), rows, cols).cast(dtype=target)


# Dequantised values are a product of two numbers of at most 24 bits together, or that and a sum: no
# rounding that a device could do differently, so equal means equal.


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_a_cast_gives_the_bits_of_the_reference(any_gpu, rng, dtype):
    blocks = matrix(rng, dtype)
    got = values_of(any_gpu, cast_to(dtype, blocks, ROWS))
    same_bits(got, decode_blocks(dtype, blocks).reshape(ROWS, COLS))


@pytest.mark.parametrize("dtype", RECORDED, ids=str)
def test_a_cast_of_what_libggml_made(any_gpu, dtype):
    blocks = recorded()[dtype.name].reshape(-1, dtype.block_nbytes)
    got = values_of(any_gpu, cast_to(dtype, blocks, 4))
    same_bits(got, decode_blocks(dtype, blocks).reshape(4, COLS))
    # The four rows are normal numbers of deviation 0.05.
    assert 0.03 < got.std() < 0.06


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_the_numpy_device_gives_the_same_values(rng, dtype):
    blocks = matrix(rng, dtype)
    got = values_of(NumpyExecutor(), cast_to(dtype, blocks, ROWS))
    same_bits(got, decode_blocks(dtype, blocks).reshape(ROWS, COLS))


@pytest.mark.parametrize("n", [1, 2, 7, 64])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_products(full, check, rng, dtype, n):
    product(full, check, rng, dtype, n)


# What differs by more than the number of columns: a software rasteriser compiles seven columns of a
# kernel for hardware for ten seconds a format.
@pytest.mark.parametrize(
    ("kind", "n"),
    [
        ("baseline", 33), ("wide", 2),
        *(
            pytest.param(kind, n, marks=rare)
            for kind, n in [("baseline", 1), ("baseline", 64), ("wide", 7), ("wide", 64)]
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("dtype", sampled(FORMATS, "baseline"), ids=str)
def test_products_by_other_kernels(executors, check, rng, dtype, kind, n):
    product(executors(kind), check, rng, dtype, n)


def product(executor, check, rng, dtype, n):
    data, x = matrix(rng, dtype).tobytes(), rng.standard_normal((n, COLS), "f4")

    def multiplied(ctx):
        return ctx.from_bytes(dtype, data, ROWS, COLS).mulmat(tensor(ctx, x))

    check(executor, multiplied, limit=LIMIT)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_rows(any_gpu, rng, dtype):
    blocks, ids = matrix(rng, dtype), np.array([32, 0, 5, 5, 31])

    def looked_up(ctx):
        return ctx.from_bytes(dtype, blocks.tobytes(), ROWS, COLS).rows(ctx.from_numpy(ids))

    want = decode_blocks(dtype, blocks).reshape(ROWS, COLS)
    same_bits(values_of(any_gpu, looked_up), want[ids])


@pytest.mark.parametrize("dtype", sampled(FORMATS, "split wide"), ids=str)
def test_rows_and_products_of_a_weight_in_parts(split, check, rng, dtype):
    rows = (70 << 10) // dtype.nbytes(COLS)
    blocks, x = matrix(rng, dtype, rows), rng.standard_normal((2, COLS), "f4")
    ids = np.array([rows - 1, 0, rows // 2])

    def held(ctx):
        return weight(ctx._executor, rows, COLS, dtype, blocks.tobytes())

    want = decode_blocks(dtype, blocks).reshape(rows, COLS)[ids]
    assert len(held(Context(split)).storage.handle) > 1
    same_bits(values_of(split, lambda ctx: held(ctx).rows(ctx.from_numpy(ids))), want)
    check(split, lambda ctx: held(ctx).mulmat(tensor(ctx, x)), limit=LIMIT)


@pytest.mark.parametrize("target", [F16, BF16], ids=str)
@pytest.mark.parametrize("dtype", [Q4_0, Q6_K, IQ1_S], ids=str)
def test_a_cast_to_halves_rounds_once(gpu, check, rng, dtype, target):
    check(gpu, cast_to(dtype, matrix(rng, dtype), ROWS, target=target), limit=0)


def test_a_cast_of_some_rows_and_of_three_axes(gpu, rng):
    blocks = matrix(rng, Q6_K, 12)
    want = decode_blocks(Q6_K, blocks).reshape(3, 4, COLS)

    def some(ctx):
        return ctx.from_bytes(Q6_K, blocks.tobytes(), 3, 4, COLS)[1:].cast(dtype=F32)

    same_bits(values_of(gpu, some), want[1:])


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
def test_planes_take_no_more_bits_than_blocks(dtype):
    assert sum(plane_nbytes(dtype).values()) <= dtype.block_nbytes


@pytest.mark.parametrize("dtype", QUANTISABLE, ids=str)
def test_planes_of_what_devices_write_join_again(rng, dtype):
    blocks = matrix(rng, dtype)
    assert np.array_equal(join_planes(planes(dtype, blocks)), blocks)


def test_a_nan_scale_in_four_nibbles_is_found(full, rng):
    blocks = matrix(rng, IQ1_M)
    blocks[7, 49::2] |= 0xF0
    with Context(full) as ctx, pytest.raises(ModelError, match="1 of 33 blocks"):
        ctx.from_bytes(IQ1_M, blocks.tobytes(), ROWS, COLS)


# Q1_0, Q2_0, Q8_1 and Q8_K have no decoder in gguf-py.


def test_q1_0_is_a_sign_and_a_scale():
    block = np.zeros((1, 18), np.uint8)
    block[0, :2] = np.array([0.5], "<f2").view("u1")
    block[0, 2], block[0, 17] = 0b101, 0x80
    want = np.full(128, -0.5, "f4")
    want[[0, 2, 127]] = 0.5
    assert np.array_equal(decode_blocks(Q1_0, block)[0], want)


def test_q2_0_is_a_scale_and_two_bits():
    block = np.zeros((1, 18), np.uint8)
    block[0, :2] = np.array([0.5], "<f2").view("u1")
    block[0, 2], block[0, 17] = 0b11_10_01_00, 0b01_00_00_11
    want = np.full(64, -0.5, "f4")
    want[:4], want[60:] = [-0.5, 0, 0.5, 1], [1, -0.5, -0.5, 0]
    assert np.array_equal(decode_blocks(Q2_0, block)[0], want)


def test_q8_1_is_a_scale_a_sum_and_bytes():
    quants_of = np.arange(-16, 16, dtype=np.int8)
    head = np.array([0.25, -4.0], "<f2").view(np.uint8)
    block = np.concatenate([head, quants_of.view(np.uint8)])[None]
    assert np.array_equal(decode_blocks(Q8_1, block)[0], quants_of * np.float32(0.25))


def test_q8_k_is_a_scale_and_bytes_and_sums():
    quants_of = np.arange(-128, 128).astype(np.int8)
    scale, sums = np.array([0.1], "<f4"), np.ones(16, "<i2")
    block = np.concatenate([a.view(np.uint8) for a in (scale, quants_of, sums)])[None]
    assert np.array_equal(decode_blocks(Q8_K, block)[0], quants_of * np.float32(0.1))


# What devices write.


def awkward(rng, rows=40, cols=192):
    """Rows of many magnitudes, with constant blocks, zeros, ties and lone outliers."""
    x = rng.standard_normal((rows, cols)) * 10.0 ** rng.uniform(-7, 3, (rows, 1))
    x[0] = 0
    x[1] = 3.5
    x[2] = np.arange(cols) % 17 - 8
    x[3] = np.arange(cols) % 32 - 15.5
    x[4, ::32] = 1000
    x[5] = -np.abs(x[5])
    x[6] = np.round(x[6] / np.abs(x[6]).max() * 127)
    return x.astype("f4")


def written(executor, ctx, node):
    ctx.compute(node)
    return executor.blocks(node)


@pytest.mark.parametrize("dtype", QUANTISABLE, ids=str)
def test_rounding_into_blocks_gives_the_bits_of_gguf_py(any_gpu, rng, dtype):
    x = awkward(rng)
    with Context(any_gpu) as ctx:
        got = written(any_gpu, ctx, tensor(ctx, x).cast(dtype=dtype))
    with np.errstate(all="ignore"):
        want = quants.quantize(x, GGMLQuantizationType(dtype.ggml))
    assert np.array_equal(got, want.reshape(got.shape))


@pytest.mark.parametrize("dtype", QUANTISABLE, ids=str)
def test_many_random_blocks_round_alike(full, rng, dtype):
    x = rng.standard_normal((1000, 1024), "f4")
    with Context(full) as ctx:
        got = written(full, ctx, tensor(ctx, x).cast(dtype=dtype))
    assert np.array_equal(got, encode_blocks(dtype, x))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("source", [F32, F16, BF16], ids=str)
@pytest.mark.parametrize("dtype", [Q8_0, Q4_0], ids=str)
def test_an_odd_number_of_blocks_from_views(gpu, check, rng, dtype, source, layout):
    x = rng.standard_normal((3, 5, 32), "f4")
    check(gpu, lambda ctx: LAYOUTS[layout](ctx, x, source).cast(dtype=dtype), limit=0)


@pytest.mark.parametrize("dtype", QUANTISABLE, ids=str)
def test_what_was_written_is_read_in_the_same_graph(any_gpu, check, rng, dtype):
    w, x = rng.standard_normal((33, 96), "f4"), rng.standard_normal((2, 96), "f4")

    def multiplied(ctx):
        return tensor(ctx, w).cast(dtype=dtype).mulmat(tensor(ctx, x))

    check(any_gpu, multiplied, limit=LIMIT)


@pytest.mark.parametrize("dtype", QUANTISABLE, ids=str)
def test_set_rows_into_blocks(any_gpu, rng, dtype):
    x, ids = awkward(rng, 7), np.array([8, 0, -1, 3, 40, 6, 5])

    with Context(any_gpu) as ctx:
        cache = ctx.zeros(9, 192, dtype=dtype)
        ctx.compute(cache.set_rows(tensor(ctx, x), ctx.from_numpy(ids)))
        got = any_gpu.blocks(cache).reshape(9, -1)
    want = np.zeros_like(got)
    inside = (ids >= 0) & (ids < 9)
    want[ids[inside]] = encode_blocks(dtype, x[inside]).reshape(-1, got.shape[1])
    assert np.array_equal(got, want)


@pytest.mark.parametrize("dtype", QUANTISABLE, ids=str)
def test_set_rows_of_an_odd_number_of_blocks(any_gpu, rng, dtype):
    """Neighbouring rows then share a word of scales, and none may lose the other's."""
    x, ids = awkward(rng, 200)[:, :96], rng.permutation(220)[:200]
    ids[:3] = -1, 220, 1000
    with Context(any_gpu) as ctx:
        cache = ctx.zeros(221, 96, dtype=dtype)
        ctx.compute(cache[1:].set_rows(tensor(ctx, x), ctx.from_numpy(ids)))
        got = any_gpu.blocks(cache).reshape(221, -1)
        # Written a second time, among what is there already.
        ctx.compute(cache[1:].set_rows(tensor(ctx, x[50:60]), ctx.from_numpy(ids[60:70])))
        again = any_gpu.blocks(cache).reshape(221, -1)
    want = np.zeros_like(got)
    want[1 + ids[3:]] = encode_blocks(dtype, x).reshape(len(x), -1)[3:]
    assert np.array_equal(got, want)
    want[1 + ids[60:70]] = encode_blocks(dtype, x).reshape(len(x), -1)[50:60]
    assert np.array_equal(again, want)


@pytest.mark.parametrize("dtype", [Q8_0, Q4_0], ids=str)
def test_a_cache_in_blocks_serves_rows_and_products(gpu, check, rng, dtype):
    x, q = rng.standard_normal((5, 128), "f4"), rng.standard_normal((3, 128), "f4")

    def used(ctx):
        cache = ctx.zeros(9, 128, dtype=dtype)
        ctx.compute(cache.set_rows(tensor(ctx, x), ctx.from_numpy([8, 0, 3, 4, 6])))
        rows = cache[2:].rows(ctx.from_numpy([1, 2, 6]))
        return rows.concat(cache.mulmat(tensor(ctx, q)), axis=1)

    check(gpu, used, limit=LIMIT)


@pytest.mark.parametrize("kind", ["wgpu", "numpy"])
def test_a_state_in_blocks_is_read_as_floats(full, rng, kind):
    executor = full if kind == "wgpu" else NumpyExecutor()
    x = rng.standard_normal((4, 64), "f4")
    with Context(executor) as ctx:
        state = ctx.zeros(9, 64, dtype=Q8_0)
        ctx.compute(state.set_rows(tensor(ctx, x), ctx.from_numpy([5, 6, 7, 8])))
        got, part = state.numpy(), state[6:8].numpy()
    want = np.zeros((9, 64), "f4")
    want[5:] = decode_blocks(Q8_0, encode_blocks(Q8_0, x)).reshape(4, 64)
    same_bits(got, want)
    same_bits(np.ascontiguousarray(part), want[6:8])


@pytest.mark.parametrize("dtype", [Q8_0, IQ1_S], ids=str)
def test_from_bytes_gives_its_memory_back(full, rng, dtype):
    def held():
        return full.device.memory_report().nbytes

    blocks = random_blocks(rng, dtype, (8 << 20) // dtype.block_nbytes, 1.0)
    before = held()
    with Context(full) as ctx:
        ctx.from_bytes(dtype, blocks.tobytes(), len(blocks), dtype.block)
        assert held() >= before + (6 << 20)
    assert held() == before


def test_types_that_no_kernel_writes_are_refused(full, rng):
    with Context(full) as ctx:
        with pytest.raises(DTypeError, match="zeros: got q6_k, needs a plain type, q4_0"):
            ctx.zeros(2, 256, dtype=Q6_K)
        with pytest.raises(DTypeError, match="cast: f32 to mxfp4, block formats that kernels"):
            ctx.zeros(2, 32).cast(dtype=MXFP4)
        with pytest.raises(DTypeError, match="input w: got q8_0, needs a plain type"):
            ctx.input("w", (2, 32), Q8_0)
        q8 = ctx.from_bytes(Q8_0, matrix(rng, Q8_0).tobytes(), ROWS, COLS)
        with pytest.raises(DTypeError, match="cast: q8_0 to q4_0, needs f32, f16 or bf16"):
            q8.cast(dtype=Q4_0)


def test_rows_that_are_no_whole_blocks_are_refused(full, rng):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match="cast: rows of 48 values, q8_0 needs multiples of 32"):
            ctx.zeros(2, 48).cast(dtype=Q8_0)
        strided = ctx.zeros(2, 192, dtype=Q8_0).slice(1, 0, 96)
        with pytest.raises(ShapeError, match=r"q8_0 dst has 96 columns at offset 0, .* dense"):
            strided.set_rows(ctx.zeros(1, 96), ctx.from_ints([0]))
        q8 = ctx.from_bytes(Q8_0, matrix(rng, Q8_0).tobytes(), ROWS, COLS)
        with pytest.raises(ShapeError, match=r"cast: a q8_0 tensor .* needs whole rows"):
            q8.slice(1, 0, 32).cast(dtype=F32)
