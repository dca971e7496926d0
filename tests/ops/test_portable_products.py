"""Products where no family has a kernel: those that any WebGPU device runs."""

from dataclasses import replace

import numpy as np
import pytest

from tests.blocks import sampled
from tests.ops.fused import ran
from tests.ops.operands import WEIGHTS, tensor, weight, weight_bytes
from tests.ops.test_experts import experts_of
from wgpu_backend.dtypes import F16, F32, I32, IQ3_S, MXFP4, Q4_0, Q6_K, Q8_0, U32
from wgpu_backend.errors import DeviceError
from wgpu_backend.kernels import table
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.linear.activation_rounding import EVERY_PRODUCT, q8_pair
from wgpu_backend.ops.linear.attributes import Epilogue, Prologue
from wgpu_backend.ops.linear.f16_groups import NIBBLES, f16_activations_reference
from wgpu_backend.ops.linear.f16_groups import f16_values as in_f16
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.normed import norm_weighted
from wgpu_backend.ops.linear.q8 import q8_activations, q8_weighted
from wgpu_backend.ops.linear.q8_rounding import q8_values as in_bytes
from wgpu_backend.ops.moe.expert_tiles import expert_tiles
from wgpu_backend.ops.moe.experts import linear_by_expert
from wgpu_backend.testing import nmse

LIMIT, LIMIT_OF_ONE = 1e-10, 1e-8  # as in test_matmul
OF_A_STEP = 1e-5  # some values in a thousand may be rounded to the neighbouring quant
OF_BYTES = 4e-4  # eight bits cost 4e-5 each time, of two products and their norm
# How results are rounded.
LEFT = [
    Epilogue(form="q8"),
    Epilogue(form="q8", planar=True),
    Epilogue(form="f16"),
    Epilogue(form="f16_nibbles", planar=True),
]
LEFT_NAMES = ["q8", "q8 planar", "f16", "f16_nibbles planar"]


@pytest.fixture
def portable(executors, monkeypatch):
    """A device that no family knows; it has neither subgroups nor f16."""
    monkeypatch.setattr(table, "_BY_OP", {})
    return executors("baseline")


@pytest.mark.parametrize("n", [1, 3, 33])
@pytest.mark.parametrize("m", [1, 33, 257])
@pytest.mark.parametrize("dtype", sampled(WEIGHTS, "baseline"), ids=str)
def test_every_format_times_few_and_many_columns(portable, check, rng, dtype, m, n):
    data, x = weight_bytes(rng, m, 256, dtype, 1 / 16), rng.standard_normal((n, 256), "f4")

    def multiplied(ctx):
        return weight(ctx._executor, m, 256, dtype, data).mulmat(tensor(ctx, x))

    check(portable, multiplied, limit=LIMIT if m * n > 1 else LIMIT_OF_ONE)


@pytest.mark.parametrize("k", [32, 96, 2080, 4128])
@pytest.mark.parametrize("n", [1, 5])
def test_rows_of_any_number_of_groups(portable, check, rng, n, k):
    data, x = weight_bytes(rng, 7, k, Q4_0, k**-0.5), rng.standard_normal((n, k), "f4")

    def multiplied(ctx):
        return weight(ctx._executor, 7, k, Q4_0, data).mulmat(tensor(ctx, x))

    check(portable, multiplied, limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 7])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("residual", [None, False, True], ids=["none", "bias", "residual"])
@pytest.mark.parametrize("dtype", [F32, F16, Q8_0, IQ3_S], ids=str)
def test_every_epilogue_of_sums(portable, check, rng, dtype, residual, gated, n):
    data, x = weight_bytes(rng, 66, 256, dtype, 1 / 16), rng.standard_normal((n, 256), "f4")
    m = 33 if gated else 66
    addend = rng.standard_normal((n, m) if residual else m, "f4")

    def product(ctx):
        terms = [] if residual is None else [tensor(ctx, addend)]
        matrix = weight(ctx._executor, 66, 256, dtype, data)
        epilogue = Epilogue("gelu" if gated else None)
        return linear(matrix, tensor(ctx, x), *terms, epilogue=epilogue)

    check(portable, product, limit=LIMIT_OF_ONE)


@pytest.mark.slow
@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("tokens", [1, 33])
@pytest.mark.parametrize("bias", [False, True])
def test_products_by_the_chosen_expert(portable, check, rng, bias, tokens, m):
    data = weight_bytes(rng, 4 * m, 96, Q8_0)
    x, biases = rng.standard_normal((tokens, 1, 96), "f4"), rng.standard_normal((4, m), "f4")
    ids = rng.integers(0, 4, (tokens, 3))

    def product(ctx):
        weights = experts_of(ctx, 4, m, 96, Q8_0, data)
        terms = [tensor(ctx, biases)] if bias else []
        return linear_by_expert(weights, tensor(ctx, x), ctx.from_numpy(ids), *terms)

    check(portable, product, limit=LIMIT_OF_ONE)


@pytest.mark.parametrize("m", [1, 9])
@pytest.mark.parametrize("size", [None, 1, 4])
@pytest.mark.parametrize("rounded", [False, True])
def test_pairs_in_tiles_and_rows_in_eight_bits(portable, check, rng, rounded, size, m):
    data, x = weight_bytes(rng, 4 * m, 96, Q8_0), rng.standard_normal((33, 1, 96), "f4")
    ids = rng.integers(0, 4, (33, 3))

    def product(ctx):
        weights, given = experts_of(ctx, 4, m, 96, Q8_0, data), ctx.from_numpy(ids, I32)
        rows = q8_activations(tensor(ctx, x)) if rounded else tensor(ctx, x)
        prologue = Prologue("q8" if rounded else "values")
        tiles = {} if size is None else {"used": 3}
        given = given if size is None else expert_tiles(given, experts=4, size=size)
        return linear_by_expert(weights, rows, given, prologue=prologue, **tiles)

    check(portable, product, limit=LIMIT_OF_ONE)


def rows_in_f16(ctx, x, dtype):
    """As `f16_activations` makes them, which needs a device with arithmetic in f16."""
    planar, nibbles = dtype != F16, dtype in NIBBLES
    words = f16_activations_reference(x, planar=planar, nibbles=nibbles)
    return ctx.from_numpy(words, U32), "f16_nibbles" if nibbles else "f16"


def given_as(ctx, form, x, dtype):
    """Rows of x in a form, and the prologue of products that read them."""
    if form == "f16":
        rows, form = rows_in_f16(ctx, x, dtype)
        return rows, Prologue(form)
    if form == "values":
        return tensor(ctx, x), Prologue()
    name, _, planar = form.partition(" ")
    rounding = q8_pair if name == "q8_pair" else q8_activations
    return rounding(tensor(ctx, x), planar=bool(planar)), Prologue(name)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["q8", "q8 planar", "q8_pair", "q8_pair planar", "f16"])
@pytest.mark.parametrize(
    ("dtype", "m", "n"), [(Q4_0, 33, 5), (Q6_K, 1, 1), (Q8_0, 257, 3), (MXFP4, 3, 33)], ids=str
)
def test_every_form_of_rows(portable, check, rng, dtype, m, n, form):
    data, x = weight_bytes(rng, m, 256, dtype, 1 / 16), rng.standard_normal((n, 256), "f4")

    def multiplied(ctx):
        rows, prologue = given_as(ctx, form, x, dtype)
        return linear(weight(ctx._executor, m, 256, dtype, data), rows, prologue=prologue)

    check(portable, multiplied, limit=LIMIT if m * n > 1 else LIMIT_OF_ONE)


@pytest.mark.slow
def test_weights_in_f16_times_rows_in_f16(portable, check, rng):
    data, x = weight_bytes(rng, 7, 96, F16, 1 / 16), rng.standard_normal((3, 96), "f4")

    def multiplied(ctx):
        rows, prologue = given_as(ctx, "f16", x, F16)
        return linear(weight(ctx._executor, 7, 96, F16, data), rows, prologue=prologue)

    check(portable, multiplied, limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("k", [32, 288, 2080])
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("form", ["values", "q8"])
def test_rows_that_lack_the_factor_of_a_norm(portable, check, rng, form, n, k):
    data, x = weight_bytes(rng, 35, k, Q4_0, k**-0.5), rng.standard_normal((n, k), "f4")
    scale = rng.standard_normal(k, "f4")

    def product(ctx):
        weigh = norm_weighted if form == "values" else q8_weighted
        rows = weigh(tensor(ctx, x), tensor(ctx, scale))
        matrix = weight(ctx._executor, 35, k, Q4_0, data)
        return linear(matrix, rows, prologue=Prologue(form, eps=1e-5))

    check(portable, product, limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("k", [32, 288, 2080])
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("dtype", [F32, Q4_0], ids=str)
def test_rows_before_a_norm(portable, check, rng, dtype, n, k):
    data, x = weight_bytes(rng, 35, k, dtype, k**-0.5), rng.standard_normal((n, k), "f4")
    gains = rng.standard_normal(k + 32, "f4")

    def product(ctx):
        matrix, gain = weight(ctx._executor, 35, k, dtype, data), tensor(ctx, gains)[32:]
        prologue = Prologue(eps=0.1, norm=True)
        return linear(matrix, tensor(ctx, x), gain=gain, prologue=prologue)

    check(portable, product, limit=LIMIT)


@pytest.mark.parametrize("m", [32, 96, 288])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("form", ["values", "q8", "q8_pair"])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("left", LEFT, ids=LEFT_NAMES)
def test_rounded_results(portable, rng, left, gated, form, n, m):
    rows = 2 * m if gated else m
    data, x = weight_bytes(rng, rows, 64, Q4_0, 1 / 8), rng.standard_normal((n, 64), "f4")
    addend = rng.standard_normal((n, m), "f4")

    def rounded(executor):
        with Context(executor) as ctx:
            given, prologue = given_as(ctx, form, x, Q4_0)
            matrix = ctx.from_bytes(Q4_0, data, rows, 64)
            epilogue = replace(left, activation="silu" if gated else None)
            terms = given, tensor(ctx, addend)
            return linear(matrix, *terms, prologue=prologue, epilogue=epilogue).numpy()

    agree_in_groups(left, rounded(portable), rounded(NumpyExecutor()))


def agree_in_groups(epilogue, got, want):
    """A sum that falls between two quants may be rounded either way: one step of 254."""
    assert got.shape == want.shape
    got, want = (in_rows(words, epilogue.planar) for words in (got, want))
    values = [decoded(words, epilogue.form) for words in (got, want)]
    assert nmse(*values) <= OF_A_STEP
    tails = [np.ascontiguousarray(words[..., -4:]).view("f4") for words in (got, want)]
    for i in (0, 3):  # scale and squares
        assert nmse(tails[0][..., i], tails[1][..., i]) <= OF_A_STEP
    # Sums, which may cancel out, are as far off as values are.
    length = np.linalg.norm(values[1].reshape(*values[1].shape[:-1], -1, 32), axis=-1)
    off = np.abs(tails[0][..., 1:3] - tails[1][..., 1:3]).max(axis=-1)
    assert np.all(off <= length / (50 if epilogue.form == "q8" else 500))


def in_rows(words, planar):
    """Groups one behind the other, which may lie in planes."""
    if not planar:
        return words
    return np.ascontiguousarray(np.moveaxis(words, 0, -2)).reshape(*words.shape[1:-1], -1)


def decoded(words, form):
    return in_bytes(words) if form == "q8" else in_f16(words, form == "f16_nibbles")


@pytest.mark.parametrize("value", [np.inf, np.nan, 1e30, 1e-30, 0.0])
@pytest.mark.parametrize("left", LEFT, ids=LEFT_NAMES)
def test_rounded_results_of_any_magnitude(portable, rng, left, value):
    data, x = weight_bytes(rng, 64, 64, Q4_0, 1 / 8), np.zeros((2, 64), "f4")
    addend = rng.standard_normal((2, 64), "f4")
    addend[1, 5] = value
    addend[0] *= 1e-30

    def rounded(executor):
        with Context(executor) as ctx:
            matrix = ctx.from_bytes(Q4_0, data, 64, 64)
            return linear(matrix, tensor(ctx, x), tensor(ctx, addend), epilogue=left).numpy()

    with np.errstate(invalid="ignore", over="ignore"):
        words = [in_rows(run, left.planar) for run in (rounded(portable), rounded(NumpyExecutor()))]
        got, want = (decoded(run, left.form) for run in words)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    assert np.isnan(got).any() == (not np.isfinite(value))
    np.testing.assert_allclose(got, want, rtol=2e-3, atol=1e-6 * np.nanmax(np.abs(want)))


@pytest.mark.parametrize(
    ("m", "left"),
    [*zip((32, 288, 96, 64), LEFT, strict=True), (1, Epilogue()), (300, Epilogue())],
    ids=str,
)
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("form", ["values", "q8"])
def test_sums_that_leave_for_a_norm(portable, rng, form, n, m, left):
    data, x = weight_bytes(rng, m, 64, Q8_0, 1 / 8), rng.standard_normal((n, 64), "f4")
    addend, scale = rng.standard_normal((n, m), "f4"), rng.standard_normal(m, "f4")

    def made(executor):
        with Context(executor) as ctx:
            given, prologue = given_as(ctx, form, x, Q8_0)
            matrix, total = ctx.from_bytes(Q8_0, data, m, 64), ctx.zeros(n, m)
            terms = given, tensor(ctx, addend), tensor(ctx, scale), total
            y = linear(matrix, *terms, prologue=prologue, epilogue=replace(left, norm=True))
            return y.numpy(), total.numpy()

    (got, total), (want, wanted_total) = made(portable), made(NumpyExecutor())
    assert nmse(total, wanted_total) <= LIMIT_OF_ONE
    if left.is_rounded:
        agree_in_groups(left, got, want)
    else:
        assert nmse(got, want) <= LIMIT_OF_ONE
        assert np.all(got[:, m + -(-m // 64) :] == 0)


def test_a_norm_behind_a_format_of_many_planes_is_refused(portable, rng):
    with Context(portable) as ctx:
        matrix = ctx.from_bytes(Q6_K, weight_bytes(rng, 32, 256, Q6_K), 32, 256)
        terms = ctx.zeros(2, 256), None, ctx.zeros(32), ctx.zeros(2, 32)
        product = linear(matrix, *terms, epilogue=Epilogue(norm=True))
        with pytest.raises(DeviceError, match=r"linear: q6_k .* 9 storage buffers, .* binds 8"):
            product.numpy()


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 5])
def test_rules_make_products_of_rounded_rows(portable, monkeypatch, rng, n):
    """A norm, a gated product and a residual, on a device that is said to be faster for bytes."""
    data = weight_bytes(rng, 128, 64, Q4_0, 1 / 8), weight_bytes(rng, 64, 64, Q4_0, 1 / 8)
    x = rng.standard_normal((n, 64), "f4")

    def layer(ctx):
        both, down = (weight(ctx._executor, len(d) // 36, 64, Q4_0, d) for d in data)
        residual = tensor(ctx, x)
        normed = residual.rms_norm(tensor(ctx, np.ones(64, "f4")), eps=1e-5)
        joined = both[:64].mulmat(normed).swiglu(both[64:].mulmat(normed))
        return [down.mulmat(joined) + residual]

    device = portable.as_if(replace(portable.capabilities, rounded=EVERY_PRODUCT))
    names, got = ran(device, monkeypatch, True, layer, exact=False)
    assert names == ["q8_weighted", "linear q8 gated", "q8_activations", "linear q8 add"]
    _, want = ran(portable, monkeypatch, [], layer)
    assert LIMIT < nmse(got[0], want[0]) <= OF_BYTES
