"""Arrays quantised as MLX does, beside what MLX made, and products with them."""

from pathlib import Path

import numpy as np
import pytest

from tests.ops.operands import LAYOUTS, VIEWS, tensor
from wgpu_backend.dtypes import BF16, F16, F32, I32, U8, U32, as_dtype
from wgpu_backend.errors import DTypeError, OptionError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.mlx_quant.modes import AFFINE_BITS, FIXED
from wgpu_backend.ops.mlx_quant.products import gather_mm, gather_qmm, quantised_matmul
from wgpu_backend.ops.mlx_quant.quantising import (
    affine_dequantise,
    affine_packed_reference,
    affine_quantise,
    affine_scales_reference,
    dequantised_array,
    float_quantise,
)
from wgpu_backend.testing import nmse

MLX = dict(np.load(Path(__file__).parent.parent / "data" / "mlx.npz"))
CASES = sorted({name.rpartition(" ")[0] for name in MLX if " " in name})
CODINGS = [("affine", 64, bits) for bits in AFFINE_BITS]
CODINGS += [(mode, *how) for mode, how in FIXED.items()]
# Sums in f32 on both sides, in another order.
LIMIT = 1e-11
PARTS = ("packed", "scales", "biases")


def planes(ctx, case):
    return [
        ctx.from_numpy(MLX[f"{case} {part}"], as_dtype(MLX[f"{case} {part}"].dtype))
        for part in PARTS
        if f"{case} {part}" in MLX
    ]


def quantised(ctx, w, mode, group, bits):
    if mode == "affine":
        return affine_quantise(w, group, bits)
    return (*float_quantise(w, mode), None)


@pytest.mark.parametrize("case", CASES)
def test_codes_are_those_of_mlx(executor, case):
    mode, group, bits = case.split()
    with Context(executor) as ctx:
        w = ctx.from_numpy(MLX["w"])
        parts = [p for p in quantised(ctx, w, mode, int(group), int(bits)) if p is not None]
        for part, got in zip(PARTS, parts, strict=False):
            np.testing.assert_array_equal(got.contiguous().numpy(), MLX[f"{case} {part}"], part)


@pytest.mark.parametrize("case", CASES)
def test_values_and_products_are_those_of_mlx(executor, case):
    mode, group, bits = case.split()
    how = (int(group), int(bits), mode)
    with Context(executor) as ctx:
        given = planes(ctx, case)
        given += [None] * (3 - len(given))
        values = dequantised_array(*given, *how).numpy()
        product = quantised_matmul(ctx.from_numpy(MLX["x"]), *given, True, *how).numpy()
    are_those_of_mlx(values, case)
    assert nmse(product, MLX[f"{case} product"]) <= LIMIT


def are_those_of_mlx(values, case, rows=slice(None)):
    """Values of rows, but for the rounding of a product, which a device may fuse with its sum.

    A product is what the sum is less the bias.
    """
    want = MLX[f"{case} values"][rows]
    bias = np.abs(MLX.get(f"{case} biases", np.zeros((len(MLX["w"]), 1), "f4"))[rows])
    sizes = np.abs(want) + np.repeat(bias, want.shape[-1] // bias.shape[-1], axis=-1)
    assert (np.abs(values - want) <= 2.0**-23 * sizes).all()


@pytest.mark.parametrize("coding", CODINGS, ids=str)
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("rows", [1, 3, 9])
def test_products_agree_with_numpy(any_executor, check, rng, coding, transpose, rows):
    mode, group, bits = coding
    w = rng.standard_normal((11, 192) if transpose else (33, 128), "f4")
    x = rng.standard_normal((2, rows, 192 if transpose else 33), "f4")

    def product(ctx):
        parts = quantised(ctx, tensor(ctx, w), mode, group, bits)
        given = tensor(ctx, x) if transpose else LAYOUTS["sliced"](ctx, x, BF16)
        return quantised_matmul(given, *parts, transpose, group, bits, mode)

    check(any_executor, product, limit=LIMIT)


@pytest.mark.parametrize(("layout", "dtype"), VIEWS, ids=str)
def test_arrays_may_be_views_of_every_type(executor, check, rng, layout, dtype):
    w = rng.standard_normal((2, 3, 64), "f4")

    def values(ctx):
        packed, scales, biases = affine_quantise(LAYOUTS[layout](ctx, w, dtype), 32, 5)
        assert scales.dtype == biases.dtype == dtype
        return affine_dequantise(packed, scales, biases, 32, 5, F16)

    check(executor, values, limit=1e-8)


@pytest.mark.parametrize("case", ["affine 64 3", "nvfp4 16 4"])
def test_planes_may_be_views(executor, case):
    mode, group, bits = case.split()
    with Context(executor) as ctx:
        packed, scales, *biases = planes(ctx, case)
        rows = [p.slice(0, 1, 3) for p in (packed, scales, *biases)]
        rows += [None] * (3 - len(rows))
        got = dequantised_array(*rows, int(group), int(bits), mode).numpy()
    are_those_of_mlx(got, case, slice(1, 3))


def test_quotients_do_not_hang_on_the_driver(gpu, rng):
    """Scales and codes to the last bit, of values that are often between two codes."""
    w = rng.integers(-300, 300, (4096, 32)).astype("f4") / 64
    with Context(gpu) as ctx:
        got = [part.contiguous().numpy() for part in affine_quantise(tensor(ctx, w), 32, 5)]
    both = affine_scales_reference(w, group_size=32, bits=5)
    want = affine_packed_reference(w, both, group_size=32, bits=5), both[..., 0], both[..., 1]
    steps = (w - np.repeat(want[2], 32, -1)) / np.repeat(want[1], 32, -1)
    assert (np.abs(steps - np.floor(steps) - 0.5) < 1e-5).sum() > 100
    for part, a, b in zip(PARTS, got, want, strict=True):
        np.testing.assert_array_equal(a, b, part)


def test_many_rows_take_the_product_of_floats(executor, check, rng):
    w, x = rng.standard_normal((33, 64), "f4"), rng.standard_normal((65, 64), "f4")

    def product(ctx):
        return quantised_matmul(tensor(ctx, x), *affine_quantise(tensor(ctx, w)))

    check(executor, product, limit=LIMIT)


@pytest.mark.parametrize("ids", [I32, U32], ids=str)
@pytest.mark.parametrize("coding", [("affine", 32, 3), ("mxfp4", 32, 4)], ids=str)
@pytest.mark.parametrize("transpose", [True, False])
def test_ids_choose_matrices(executor, check, rng, coding, transpose, ids):
    mode, group, bits = coding
    w = rng.standard_normal((2, 2, 9, 64) if transpose else (2, 2, 5, 64), "f4")
    x = rng.standard_normal((3, 1, 64 if transpose else 5), "f4")

    def product(ctx):
        parts = quantised(ctx, tensor(ctx, w), mode, group, bits)
        lhs = ctx.from_numpy(np.array([[0], [2], [1]]), ids)
        rhs = ctx.from_numpy(np.array([[3, 0], [1, 1], [2, 3]]), ids)
        return gather_qmm(tensor(ctx, x), *parts, lhs, rhs, transpose, group, bits, mode)

    check(executor, product, limit=LIMIT)


def test_batches_broadcast(executor, check, rng):
    w, x = rng.standard_normal((3, 5, 32), "f4"), rng.standard_normal((2, 1, 4, 32), "f4")

    def product(ctx):
        parts = affine_quantise(tensor(ctx, w), 32, 8)
        return quantised_matmul(tensor(ctx, x), *parts, True, 32, 8)

    check(executor, product, limit=LIMIT)


@pytest.mark.parametrize(("layout", "dtype"), VIEWS, ids=str)
def test_plain_matrices_are_chosen_too(executor, check, rng, layout, dtype):
    a, b = rng.standard_normal((4, 3, 7), "f4"), rng.standard_normal((5, 7, 9), "f4")
    of = LAYOUTS[layout]

    def product(ctx):
        rhs = ctx.from_numpy(np.array([[4, 0, 1, 9], [2, 2, 3, 3]]), I32)
        return gather_mm(of(ctx, a, dtype), of(ctx, b, dtype), None, rhs)

    check(executor, product, limit=LIMIT)


def test_gathered_products_are_those_of_numpy(full, rng):
    a, b = rng.standard_normal((4, 3, 7), "f4"), rng.standard_normal((2, 2, 7, 9), "f4")
    lhs, rhs = np.array([3, 0, 0]), np.array([1, 3, 2])
    with Context(full) as ctx:
        ids = (ctx.from_numpy(n, I32) for n in (lhs, rhs))
        got = gather_mm(tensor(ctx, a), tensor(ctx, b), *ids).numpy()
    assert nmse(got, a[lhs] @ b.reshape(4, 7, 9)[rhs]) <= LIMIT


def test_what_does_not_fit_is_refused(full):
    with Context(full) as ctx:
        w = ctx.zeros(4, 64)
        packed, scales, biases = affine_quantise(w)
        for call, message in [
            (lambda: affine_quantise(w, 48), "affine with groups of 48, 4 bits"),
            (lambda: affine_quantise(w, 64, 7), "affine with groups of 64, 7 bits"),
            (lambda: float_quantise(w, "fp5"), "mode is 'fp5', needs one of affine, mxfp4"),
            (lambda: dequantised_array(packed, scales, None, 32, 8, "mxfp4"), "needs groups of 32"),
        ]:
            with pytest.raises(OptionError, match=message):
                call()
        for call, message in [
            (lambda: affine_quantise(ctx.zeros(4, 96)), "have 96 values, not a multiple of 64"),
            (lambda: affine_quantise(ctx.zeros(64)), "needs 2 to 8"),
            (lambda: dequantised_array(packed, scales), "affine needs biases"),
            (
                lambda: affine_dequantise(packed, scales, biases, 32),
                r"scales is \(4, 1\), .* \(4, 2\)",
            ),
            (
                lambda: quantised_matmul(ctx.zeros(2, 32), packed, scales, biases),
                "32 values, w needs",
            ),
            (lambda: gather_mm(ctx.zeros(2, 3, 4), ctx.zeros(2, 3, 4)), "4 values, columns of b 3"),
        ]:
            with pytest.raises(ShapeError, match=message):
                call()
        for call, message in [
            (
                lambda: affine_dequantise(ctx.zeros(4, 8), scales, biases),
                "packed is f32, needs u32",
            ),
            (lambda: affine_dequantise(packed, ctx.zeros(4, 1, dtype=U8), biases), "scales is u8"),
            (lambda: gather_mm(w, w.T, ctx.zeros(1), None), "lhs is f32, needs i32"),
        ]:
            with pytest.raises(DTypeError, match=message):
                call()


def test_nothing_gives_nothing(executor, check):
    check(executor, lambda ctx: affine_quantise(ctx.zeros(0, 64, dtype=F32))[0], limit=0)
