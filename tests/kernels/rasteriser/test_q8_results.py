"""Products whose results leave in eight bits: the same as the product and the rounding apart."""

import numpy as np
import pytest

from tests.ops.fused import ran
from tests.ops.operands import tensor, weight, weight_bytes
from tests.rasterisers import as_rasteriser
from wgpu_backend.dtypes import MXFP4, Q4_0, Q4_K, Q5_1, Q6_K, Q8_0
from wgpu_backend.errors import DeviceError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.linear.attributes import Q8, Epilogue, Prologue
from wgpu_backend.ops.linear.gates import GATES
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.q8 import FORMATS, q8_activations, q8_weighted
from wgpu_backend.ops.linear.q8_rounding import q8_values as decoded
from wgpu_backend.testing import nmse, values_of

# A value between two quants may be rounded to either: a 127th of the largest of its group.
ROUNDING = 1e-5
EPS = 0.1
SUMMED = Epilogue(norm=True, form="q8")
# One column has a kernel of its own; several are by few formats of each kind.
ONE_AND_THREE = [
    *((dtype, 32, 1) for dtype in FORMATS),
    *((dtype, 96, 3) for dtype in (Q4_0, Q5_1, Q4_K, Q6_K, MXFP4)),
]


def assert_same(got, want):
    """Words but for squares, whose sum may have another order."""
    np.testing.assert_array_equal(got[..., :11], want[..., :11])
    squares = (np.ascontiguousarray(words[..., 11]).view("f4") for words in (got, want))
    np.testing.assert_allclose(*squares, rtol=1e-6)


def gated(shuffling, rng, dtype, m, n, activation="silu", eps=None, spoilt=None):
    """A gated product rounded on its way out, and the same in two steps."""
    data = weight_bytes(rng, 2 * m, 256, dtype, 1 / 16)
    x = rng.standard_normal((n, 256), "f4")
    if spoilt is not None:
        x[n // 2, 40] = spoilt

    def build(ctx, fused):
        both = weight(ctx._executor, 2 * m, 256, dtype, data)
        rows = q8_activations(tensor(ctx, x))
        if fused:
            return linear(
                both,
                rows,
                prologue=Prologue("q8", eps),
                epilogue=Epilogue(activation, form="q8"),
            )
        return q8_activations(
            linear(both, rows, prologue=Prologue("q8", eps), epilogue=Epilogue(activation))
        )

    got, want = (values_of(shuffling, lambda ctx, f=f: build(ctx, f)) for f in (True, False))
    reference = values_of(NumpyExecutor(), lambda ctx: build(ctx, True))
    return got, want, reference


@pytest.mark.parametrize(("dtype", "m", "n"), ONE_AND_THREE, ids=str)
def test_a_gated_product_of_every_format_is_rounded(shuffling, rng, dtype, m, n):
    got, want, reference = gated(shuffling, rng, dtype, m, n)
    assert got.shape == (n, m // 32, 12)
    assert_same(got, want)
    assert nmse(decoded(got), decoded(reference)) <= ROUNDING


@pytest.mark.parametrize("n", [2, 33])
@pytest.mark.parametrize("activation", GATES)
def test_a_gated_product_of_a_norm_is_rounded(shuffling, rng, activation, n):
    got, want, reference = gated(shuffling, rng, Q8_0, 64, n, activation, EPS)
    assert_same(got, want)
    assert nmse(decoded(got), decoded(reference)) <= ROUNDING


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_a_row_that_is_not_finite_spoils_its_groups_alone(shuffling, rng, bad):
    got, _, _ = gated(shuffling, rng, Q4_0, 64, 5, spoilt=bad)
    values = np.ascontiguousarray(got[..., 8]).view("f4")
    assert np.isnan(values[2]).all()
    assert np.isfinite(np.delete(values, 2, axis=0)).all()


def test_gates_that_are_shut_give_groups_of_zeros(shuffling, rng):
    data, x = weight_bytes(rng, 64, 64, Q4_0), np.zeros((3, 64), "f4")
    with Context(shuffling) as ctx:
        rows = q8_activations(tensor(ctx, x))
        y = linear(
            weight(shuffling, 64, 64, Q4_0, data),
            rows,
            prologue=Q8,
            epilogue=Epilogue("relu", form="q8"),
        )
        assert not y.numpy().any()


def summed(shuffling, rng, dtype, m, n, *, residual=True, eps=None, value=1.0):
    """Sums and their groups from one op, and from two; the second pair is what there has to be."""
    data, x = weight_bytes(rng, m, 256, dtype, 1 / 16), rng.standard_normal((n, 256), "f4")
    addend = value * rng.standard_normal((n, m) if residual else m, "f4")
    scale = rng.standard_normal(m, "f4")

    def operands(ctx):
        rows, term = q8_activations(tensor(ctx, x)), tensor(ctx, addend)
        return weight(ctx._executor, m, 256, dtype, data), rows, term, tensor(ctx, scale)

    def fused(executor):
        with Context(executor) as ctx:
            total = ctx.zeros(n, m)
            y = linear(
                *operands(ctx),
                total,
                prologue=Prologue("q8", eps),
                epilogue=SUMMED,
            )
            return y.numpy(), total.numpy()

    with Context(shuffling) as ctx:
        *product, norm = operands(ctx)
        total = linear(*product, prologue=Prologue("q8", eps))
        want = q8_weighted(total, norm).numpy(), total.numpy()
    return fused(shuffling), want, fused(NumpyExecutor())


@pytest.mark.parametrize(("dtype", "m", "n"), ONE_AND_THREE, ids=str)
def test_sums_of_every_format_leave_twice(shuffling, rng, dtype, m, n):
    (got, total), (want, sums), (reference, exact) = summed(shuffling, rng, dtype, m, n)
    np.testing.assert_array_equal(total, sums)
    assert_same(got, want)
    assert nmse(total, exact) <= 1e-10
    assert nmse(decoded(got), decoded(reference)) <= ROUNDING


@pytest.mark.parametrize("n", [1, 33])
@pytest.mark.parametrize("residual", [False, True], ids=["bias", "residual"])
def test_sums_of_a_norm_leave_twice(shuffling, rng, residual, n):
    (got, total), (want, sums), _ = summed(shuffling, rng, Q6_K, 64, n, residual=residual, eps=EPS)
    np.testing.assert_array_equal(total, sums)
    assert_same(got, want)


@pytest.mark.parametrize("value", [np.inf, 1e30, 1e-30, 0.0])
def test_sums_of_any_magnitude_leave_as_they_would_apart(shuffling, rng, value):
    (got, total), (want, sums), _ = summed(shuffling, rng, Q4_0, 64, 3, value=value)
    np.testing.assert_array_equal(total, sums)
    assert_same(got, want)


def test_operands_that_do_not_fit_are_refused(shuffling, split, rng):
    with Context(shuffling) as ctx:
        w = ctx.from_bytes(Q4_0, weight_bytes(rng, 48, 64, Q4_0), 48, 64)
        rows, row = q8_activations(ctx.zeros(2, 64)), ctx.zeros(48)
        with pytest.raises(ShapeError, match="24 rows of results, needs a multiple of 32"):
            linear(w, rows, prologue=Q8, epilogue=Epilogue("silu", form="q8"))
        with pytest.raises(ShapeError, match="48 rows of results, needs a multiple of 32"):
            linear(w, rows, row, row, ctx.zeros(2, 48), prologue=Q8, epilogue=SUMMED)
        with pytest.raises(ShapeError, match=r"scale is \(64,\), rows have 48 values"):
            linear(w, rows, row, ctx.zeros(64), ctx.zeros(2, 48), prologue=Q8, epilogue=SUMMED)
        with pytest.raises(ShapeError, match=r"total is \(3, 48\).* needs a dense \(2, 48\)"):
            linear(w, rows, row, row, ctx.zeros(3, 48), prologue=Q8, epilogue=SUMMED)
    with Context(split) as ctx:
        w = weight(split, 960, 256, Q4_0, weight_bytes(rng, 960, 256, Q4_0))
        y = linear(
            w,
            q8_activations(ctx.zeros(1, 256)),
            ctx.zeros(960),
            ctx.zeros(960),
            ctx.zeros(1, 960),
            prologue=Q8,
            epilogue=SUMMED,
        )
        with pytest.raises(DeviceError, match=r"lies in \d+ bindings|has no kernel"):
            y.numpy()


RULES = (
    "linear_q8",
    "linear_gated",
    "q8_weighted",
    "linear_gated_q8",
    "linear_add_q8",
)


class Layer:
    """Two residual products, each before a norm, with a gated one between them: half a decoder."""

    def __init__(self, rng, hidden=64, inner=96, dtype=Q8_0):
        self.hidden, self.inner, self.dtype = hidden, inner, dtype
        sizes = (hidden, hidden), (2 * inner, hidden), (hidden, inner), (40, hidden)
        self.weights = [(s, weight_bytes(rng, *s, dtype, s[1] ** -0.5)) for s in sizes]
        self.norms = rng.standard_normal((2, hidden), "f4")

    def __call__(self, ctx, x, *, early=False):
        """Result, and with `early` something that reads the first residual before its norm."""
        out, both, down, last = (
            weight(ctx._executor, *shape, self.dtype, data) for shape, data in self.weights
        )
        x = tensor(ctx, x)
        first, second = (tensor(ctx, norm) for norm in self.norms)
        y = out.linear(x, x)
        others = [y.tanh()] if early else []
        normed = y.rms_norm(first, eps=EPS)
        gate, up = both.slice(0, 0, self.inner), both.slice(0, self.inner, 2 * self.inner)
        z = down.linear(gate.mulmat(normed).swiglu(up.mulmat(normed)), y)
        return [*others, last.mulmat(z.rms_norm(second, eps=EPS)), z]


@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("off", [None, *RULES])
def test_a_layer_without_one_rule(shuffling, monkeypatch, rng, off, n):
    layer, x = Layer(rng), rng.standard_normal((n, 64), "f4")
    rules = [name for name in RULES if name != off]
    names, got = ran(shuffling, monkeypatch, rules, lambda ctx: layer(ctx, x), exact=False)
    _, want = ran(shuffling, monkeypatch, [], lambda ctx: layer(ctx, x), exact=False)
    assert off not in names
    if off is None:
        sums = "linear q8 add to_norm to_q8"
        assert names == ["q8_activations", sums, "linear q8 gated to_q8", sums, "linear q8"]
    for value, exact in zip(got, want, strict=True):
        assert nmse(value, exact) < 1e-3


def test_sums_that_are_read_before_the_norm_stay_a_product_of_their_own(
    shuffling, monkeypatch, rng
):
    layer, x = Layer(rng), rng.standard_normal((2, 64), "f4")
    names, got = ran(
        shuffling, monkeypatch, RULES, lambda ctx: layer(ctx, x, early=True), exact=False
    )
    _, want = ran(shuffling, monkeypatch, [], lambda ctx: layer(ctx, x, early=True), exact=False)
    assert names.count("linear q8 add to_norm to_q8") == 1
    for value, exact in zip(got, want, strict=True):
        assert nmse(value, exact) < 1e-3


@pytest.mark.parametrize(("hidden", "inner"), [(96, 32), (256, 96)])
def test_layers_of_any_size(shuffling, monkeypatch, rng, hidden, inner):
    layer, x = Layer(rng, hidden, inner, Q4_0), rng.standard_normal((3, hidden), "f4")
    _, got = ran(shuffling, monkeypatch, RULES, lambda ctx: layer(ctx, x), exact=False)
    _, want = ran(shuffling, monkeypatch, [], lambda ctx: layer(ctx, x), exact=False)
    for value, exact in zip(got, want, strict=True):
        assert nmse(value, exact) < 1e-3


def test_a_gated_product_that_others_read_is_not_rounded(shuffling, monkeypatch, rng):
    both, down = weight_bytes(rng, 64, 64, Q8_0, 1 / 8), weight_bytes(rng, 40, 32, Q8_0, 1 / 8)
    x = rng.standard_normal((2, 64), "f4")

    def build(ctx):
        w, rows = weight(ctx._executor, 64, 64, Q8_0, both), tensor(ctx, x)
        joined = w.slice(0, 0, 32).mulmat(rows).swiglu(w.slice(0, 32, 64).mulmat(rows))
        return [weight(ctx._executor, 40, 32, Q8_0, down).mulmat(joined), joined]

    names, _ = ran(shuffling, monkeypatch, RULES, build, exact=False)
    assert names == ["q8_activations", "linear q8 gated", "q8_activations", "linear q8"]


def test_a_device_whose_lanes_do_not_shuffle_keeps_the_ops_apart(executors, monkeypatch, rng):
    layer, x = Layer(rng), rng.standard_normal((2, 64), "f4")
    baseline = as_rasteriser(executors("baseline"))
    names, got = ran(baseline, monkeypatch, RULES, lambda ctx: layer(ctx, x), exact=False)
    _, want = ran(baseline, monkeypatch, [], lambda ctx: layer(ctx, x), exact=False)
    assert not any("to_q8" in name for name in names)
    for value, exact in zip(got, want, strict=True):
        assert nmse(value, exact) < 1e-3
