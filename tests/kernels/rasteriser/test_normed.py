"""Norms that products make: the same as the norm and the product apart."""

import numpy as np
import pytest

from tests.ops.fused import ran
from tests.ops.operands import FLOATS, tensor, weight, weight_bytes
from wgpu_backend.dtypes import F16, F32, Q4_0, Q8_0
from wgpu_backend.errors import DeviceError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.linear.attributes import Epilogue, Prologue
from wgpu_backend.ops.linear.gates import GATES
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.normed import norm_weighted, square_count
from wgpu_backend.ops.linear.tiles import FEW
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse

EPS = 0.1
SUMS = 1e-12  # sums of f32 in another order
RULES = ("norm_weighted", "linear_add_weighted", "linear_gated")
SIZES = [(1, 32, 1), (33, 96, 3), (64, 896, 8), (257, 96, 9), (64, 32, 33)]


def for_a_norm(matrix, rows, addend, scale, total):
    """A sum of a product that makes a norm, as the next norm's product wants it."""
    prologue, epilogue = Prologue(eps=EPS), Epilogue(norm=True)
    return linear(matrix, rows, addend, scale, total, prologue=prologue, epilogue=epilogue)


def kept(ctx, values, dtype=F16):
    """A matrix as a model's weights are."""
    data = values.astype("f2" if dtype == F16 else "f4").tobytes()
    return ctx.weight(dtype, data, *values.shape)


@pytest.mark.parametrize("shape", [(1, 32), (3, 96), (2, 5, 896), (33, 320), (0, 64)], ids=str)
def test_rows_are_weighted_and_their_squares_stand_behind(gpu, check, rng, shape):
    x, w = rng.standard_normal(shape, "f4"), rng.standard_normal(shape[-1], "f4")
    if x.size:
        check(gpu, lambda ctx: norm_weighted(tensor(ctx, x), tensor(ctx, w)), limit=SUMS)
    with Context(gpu) as ctx:
        rows = norm_weighted(tensor(ctx, x), tensor(ctx, w)).numpy()
    k = shape[-1]
    assert rows.shape == (*shape[:-1], k + square_count(k))
    np.testing.assert_array_equal(rows[..., :k], x * w)
    np.testing.assert_allclose(rows[..., k:].sum(axis=-1), (x * x).sum(axis=-1), rtol=1e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(("m", "k", "n"), SIZES)
def test_a_product_makes_the_norm(shuffling, check, rng, m, k, n, dtype):
    data = weight_bytes(rng, m, k, dtype)
    x, w = rng.standard_normal((n, k), "f4"), rng.standard_normal(k, "f4")

    def build(ctx):
        rows = norm_weighted(tensor(ctx, x), tensor(ctx, w))
        matrix = weight(ctx._executor, m, k, dtype, data)
        return linear(matrix, rows, prologue=Prologue(eps=EPS))

    def apart(ctx):
        matrix = weight(ctx._executor, m, k, dtype, data)
        return matrix.mulmat(tensor(ctx, x).rms_norm(tensor(ctx, w), eps=EPS))

    check(shuffling, build, limit=SUMS)
    with Context(shuffling) as ctx:
        assert nmse(build(ctx).numpy(), apart(ctx).numpy()) <= SUMS


@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("dtype", [F32, Q4_0], ids=str)
def test_a_product_of_weights_in_buffers_makes_the_norm(shuffling, check, rng, dtype, n):
    data, x = weight_bytes(rng, 33, 96, dtype), rng.standard_normal((n, 96), "f4")
    w = rng.standard_normal(96, "f4")

    def build(ctx):
        rows = norm_weighted(tensor(ctx, x), tensor(ctx, w))
        return linear(ctx.from_bytes(dtype, data, 33, 96), rows, prologue=Prologue(eps=EPS))

    check(shuffling, build, limit=SUMS)


@pytest.mark.parametrize("n", [1, 5])
def test_a_precise_product_and_a_sum_make_the_norm(shuffling, check, rng, n):
    data, x = rng.standard_normal((33, 96), "f4"), rng.standard_normal((n, 96), "f4")
    w, addend = rng.standard_normal(96, "f4"), rng.standard_normal((n, 33), "f4")

    def build(ctx, *rest, **how):
        rows = norm_weighted(tensor(ctx, x), tensor(ctx, w))
        terms = (tensor(ctx, r) for r in rest)
        return linear(kept(ctx, data), rows, *terms, prologue=Prologue(eps=EPS), **how)

    check(shuffling, lambda ctx: build(ctx, precision="full"), limit=SUMS)
    for term in (addend, addend[0]):
        check(shuffling, lambda ctx, t=term: build(ctx, t), limit=SUMS)


@pytest.mark.parametrize("activation", GATES)
@pytest.mark.parametrize("n", [1, 9])
def test_a_gated_product_makes_the_norm(shuffling, check, rng, activation, n):
    data, x = rng.standard_normal((130, 320), "f4"), rng.standard_normal((n, 320), "f4")
    w = rng.standard_normal(320, "f4")

    def build(ctx):
        rows = norm_weighted(tensor(ctx, x), tensor(ctx, w))
        return linear(
            kept(ctx, data), rows, prologue=Prologue(eps=EPS), epilogue=Epilogue(activation)
        )

    # Our tanh and erf are off by some last digits.
    check(shuffling, build, limit=1e-11)


def summed(executor, rng, dtype, m, k, n, *, residual, eps):
    """Weighted rows that a product leaves, and the sums."""
    data, x = weight_bytes(rng, m, k, dtype), rng.standard_normal((n, k), "f4")
    first, scale = rng.standard_normal(k, "f4"), rng.standard_normal(m, "f4")
    addend = rng.standard_normal((n, m) if residual else m, "f4")

    def build(executor, *, fused):
        with Context(executor) as ctx:
            matrix, rows = ctx.weight(dtype, data, m, k), tensor(ctx, x)
            rows = rows if eps is None else norm_weighted(rows, tensor(ctx, first))
            term, norm, total = tensor(ctx, addend), tensor(ctx, scale), ctx.zeros(n, m)
            if fused:
                y = linear(
                    matrix,
                    rows,
                    term,
                    norm,
                    total,
                    prologue=Prologue(eps=eps),
                    epilogue=Epilogue(norm=True),
                )
                return y.numpy(), total.numpy()
            total = linear(matrix, rows, term, prologue=Prologue(eps=eps))
            return norm_weighted(total, norm).numpy(), total.numpy()

    return build


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(32, 32, 1), (96, 96, 3), (896, 64, 8), (320, 96, 1), (64, 32, 33)]
)
def test_sums_leave_twice(shuffling, rng, dtype, m, k, n):
    build = summed(shuffling, rng, dtype, m, k, n, residual=n > 1, eps=None if n == 3 else EPS)
    got, total = build(shuffling, fused=True)
    want, sums = build(shuffling, fused=False)
    assert got.shape == (n, m + square_count(m))
    assert nmse(total, sums) <= SUMS
    assert nmse(got[:, :m], want[:, :m]) <= SUMS
    np.testing.assert_allclose(got[:, m:], want[:, m:], rtol=1e-4)


def test_operands_that_do_not_fit_are_refused(full, rng):
    values = rng.standard_normal((96, 64), "f4")
    with Context(full) as ctx:
        matrix, row = kept(ctx, values), ctx.zeros(96)
        with pytest.raises(ShapeError, match=r"rows of x have 33 values, needs a multiple of 32"):
            norm_weighted(ctx.zeros(2, 33), ctx.zeros(33))
        with pytest.raises(ShapeError, match=r"weight is \(32,\), rows have 64 values"):
            norm_weighted(ctx.zeros(2, 64), ctx.zeros(32))
        with pytest.raises(ShapeError, match="rows of weight have 64 and 4 squares of a norm"):
            linear(matrix, ctx.zeros(2, 64), prologue=Prologue(eps=EPS))
        with pytest.raises(ShapeError, match=r"weight is \(2, 96, 64\) with 3 axes, needs 2 to 2"):
            linear(ctx.zeros(2, 96, 64), ctx.zeros(2, 3, 68), prologue=Prologue(eps=EPS))
        rows = norm_weighted(ctx.zeros(2, 64), ctx.zeros(64))
        with pytest.raises(ShapeError, match=r"scale is \(64,\), rows have 96 values"):
            for_a_norm(matrix, rows, row, ctx.zeros(64), ctx.zeros(2, 96))
        with pytest.raises(ShapeError, match=r"total is \(3, 96\).* needs a dense \(2, 96\)"):
            for_a_norm(matrix, rows, row, row, ctx.zeros(3, 96))


def test_weights_in_several_bindings_make_norms_but_do_not_share_squares(shuffling_split, rng):
    values, x = rng.standard_normal((1024, 64), "f4"), rng.standard_normal((2, 64), "f4")
    w, row = rng.standard_normal(64, "f4"), np.ones(1024, "f4")
    with Context(shuffling_split) as ctx:
        matrix = kept(ctx, values, F32)
        rows = norm_weighted(tensor(ctx, x), tensor(ctx, w))
        want = matrix.mulmat(tensor(ctx, x).rms_norm(tensor(ctx, w), eps=EPS)).numpy()
        assert nmse(linear(matrix, rows, prologue=Prologue(eps=EPS)).numpy(), want) <= SUMS
        ones = tensor(ctx, row)
        y = for_a_norm(matrix, rows, ones, ones, ctx.zeros(2, 1024))
        with pytest.raises(DeviceError, match=r"lies in \d+ bindings"):
            y.numpy()


class Block:
    """A transformer block without its attention: norms, Q, K and V, residuals, a gated product."""

    def __init__(self, rng, hidden=64, inner=96, dtype=F16):
        self.hidden, self.inner, self.dtype = hidden, inner, dtype
        sizes = {"q": (hidden, hidden), "k": (40, hidden), "out": (hidden, hidden)}
        sizes |= {"both": (2 * inner, hidden), "down": (hidden, inner), "head": (33, hidden)}
        self.weights = {
            name: rng.standard_normal(size, "f4") * size[1] ** -0.5 for name, size in sizes.items()
        }
        self.norms = rng.standard_normal((3, hidden), "f4")

    def __call__(self, ctx, x):
        """Results, the norm of the feed-forward last."""
        w = {name: kept(ctx, values, self.dtype) for name, values in self.weights.items()}
        first, second, last = (tensor(ctx, norm) for norm in self.norms)
        x = tensor(ctx, x)
        normed = x.rms_norm(first, eps=EPS)
        q, k = w["q"].mulmat(normed), w["k"].mulmat(normed)
        y = w["out"].linear(q.tanh(), x)
        normed = y.rms_norm(second, eps=EPS)
        gate, up = w["both"].slice(0, 0, self.inner), w["both"].slice(0, self.inner, 2 * self.inner)
        z = w["down"].linear(gate.mulmat(normed).swiglu(up.mulmat(normed)), y)
        return [w["head"].mulmat_full_prec(z.rms_norm(last, eps=EPS)), k, z, normed]


def assert_close(got, want):
    for value, exact in zip(got, want, strict=True):
        np.testing.assert_allclose(value, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


@pytest.mark.parametrize("dtype", [F16, F32], ids=str)
@pytest.mark.parametrize("n", [1, 5, 12])
@pytest.mark.parametrize("off", [None, *RULES])
def test_a_block_without_one_rule(shuffling, monkeypatch, rng, off, n, dtype):
    block, x = Block(rng, dtype=dtype), rng.standard_normal((n, 64), "f4")
    rules = [name for name in RULES if name != off]
    names, got = ran(shuffling, monkeypatch, rules, lambda ctx: block(ctx, x)[:3])
    _, want = ran(shuffling, monkeypatch, [], lambda ctx: block(ctx, x)[:3])
    assert off not in names
    assert ("rms_norm" in names) == (n > FEW or off == "norm_weighted")
    if off is None:
        first = "rms_norm" if n > FEW else "norm_weighted"
        sums = ["linear add", "rms_norm"] if n > FEW else ["linear add to_norm"]
        products = [first, "linear", "linear", "tanh", *sums, "linear gated", *sums]
        assert sorted(names) == sorted([*products, "linear full"])
    assert_close(got, want)


@pytest.mark.parametrize(("hidden", "inner"), [(32, 32), (96, 160), (320, 96)])
def test_blocks_of_any_size(shuffling, monkeypatch, rng, hidden, inner):
    block, x = Block(rng, hidden, inner), rng.standard_normal((3, hidden), "f4")
    names, got = ran(shuffling, monkeypatch, RULES, lambda ctx: block(ctx, x)[:3])
    assert names.count("linear add to_norm") == 2
    assert_close(got, ran(shuffling, monkeypatch, [], lambda ctx: block(ctx, x)[:3])[1])


@pytest.mark.parametrize("turned", [False, True], ids=["product first", "product last"])
def test_a_sum_goes_into_a_product_that_makes_a_norm(shuffling, monkeypatch, rng, turned):
    x, w, bias = (rng.standard_normal(s, "f4") for s in ((3, 64), (64,), (40,)))
    values = rng.standard_normal((40, 64), "f4")

    def build(ctx):
        y = kept(ctx, values).mulmat(tensor(ctx, x).rms_norm(tensor(ctx, w), eps=EPS))
        return [tensor(ctx, bias) + y if turned else y + tensor(ctx, bias)]

    names, got = ran(shuffling, monkeypatch, [*RULES, "linear_add"], build)
    assert names == ["norm_weighted", "linear add"]
    assert_close(got, ran(shuffling, monkeypatch, [], build)[1])


def test_operands_may_be_given_by_name(shuffling, monkeypatch, rng):
    values, x = rng.standard_normal((64, 64), "f4"), rng.standard_normal((3, 64), "f4")

    def build(ctx):
        both, w = kept(ctx, values), tensor(ctx, np.ones(64, "f4"))
        normed = tensor(ctx, x).rms_norm(weight=w, eps=EPS)
        return [both[:32].mulmat(x=normed).swiglu(both[32:].mulmat(x=normed))]

    names, got = ran(shuffling, monkeypatch, RULES, build)
    assert names == ["norm_weighted", "linear gated"]
    assert_close(got, ran(shuffling, monkeypatch, [], build)[1])


def test_a_norm_that_is_an_output_stays(shuffling, monkeypatch, rng):
    block, x = Block(rng), rng.standard_normal((2, 64), "f4")
    names, got = ran(shuffling, monkeypatch, RULES, lambda ctx: block(ctx, x))
    assert (names.count("rms_norm"), names.count("linear add to_norm")) == (1, 1)
    assert_close(got, ran(shuffling, monkeypatch, [], lambda ctx: block(ctx, x))[1])


def of_a_norm(ctx, rng, others, dtype=F16, cols=64):
    """A product of a norm, and what else is made of that."""
    matrix = kept(ctx, rng.standard_normal((64, cols), "f4"), dtype)
    normed = ctx.from_numpy(rng.standard_normal((2, cols), "f4"))
    normed = normed.rms_norm(ctx.from_numpy(rng.standard_normal(cols, "f4")), eps=EPS)
    return [matrix.mulmat(normed), *others(matrix, normed)]


OTHERS = {
    "another op": lambda matrix, normed: [normed.tanh()],
    "a residual": lambda matrix, normed: [matrix.linear(normed, normed)],
    "a slice": lambda matrix, normed: [matrix.mulmat(normed[:1])],
    "rows of another length": lambda matrix, normed: [matrix[:, :32].mulmat(normed.reshape(4, 32))],
    "the weight": lambda matrix, normed: [normed.mulmat(normed)],
}


@pytest.mark.parametrize("others", OTHERS)
def test_a_norm_with_other_readers_stays(shuffling, monkeypatch, rng, others):
    values = np.random.default_rng(1)
    names, got = ran(
        shuffling, monkeypatch, RULES, lambda ctx: of_a_norm(ctx, values, OTHERS[others])
    )
    values = np.random.default_rng(1)
    _, want = ran(shuffling, monkeypatch, [], lambda ctx: of_a_norm(ctx, values, OTHERS[others]))
    assert "rms_norm" in names
    assert "norm_weighted" not in names
    assert_close(got, want)


def test_products_of_floats_and_of_blocks_share_no_norm(shuffling, monkeypatch, rng):
    """The product in blocks reads the norm until its own rules have done away with that."""
    data = weight_bytes(rng, 64, 64, Q8_0)
    values, x = rng.standard_normal((64, 64), "f4"), rng.standard_normal((2, 64), "f4")
    monkeypatch.setattr(shuffling, "rules", fusions(exact=False))
    with Context(shuffling) as ctx:
        weights = kept(ctx, values), ctx.from_bytes(Q8_0, data, 64, 64), kept(ctx, values)
        normed = tensor(ctx, x).rms_norm(tensor(ctx, np.ones(64, "f4")), eps=EPS)
        recorded = ctx.record(*(matrix.mulmat(normed) for matrix in weights))
        first, _, last = recorded.run({}).wait()
        names = [node.call.op.name for node, _ in recorded.plan.steps]
        recorded.close()
    assert "rms_norm" not in names
    np.testing.assert_array_equal(first, last)
    assert np.isfinite(first).all()


def test_norms_of_other_weights_and_rows_stay(shuffling, monkeypatch, rng):
    def odd(ctx):
        return of_a_norm(ctx, rng, lambda *_: [], cols=48)

    def blocks(ctx):
        matrix = ctx.from_bytes(Q4_0, weight_bytes(rng, 40, 64, Q4_0), 40, 64)
        return [matrix.mulmat(ctx.zeros(2, 64).rms_norm(ctx.zeros(64), eps=EPS))]

    def unweighted(ctx):
        return [kept(ctx, np.ones((40, 64))).mulmat(ctx.zeros(2, 64).rms_norm(eps=EPS))]

    for build in (odd, blocks, unweighted):
        names, _ = ran(shuffling, monkeypatch, RULES, build)
        assert names == ["rms_norm", "matmul_strided" if build is odd else "linear"]


def test_sums_that_are_read_before_the_norm_stay_a_product_of_their_own(
    shuffling, monkeypatch, rng
):
    def build(ctx):
        matrix, x = kept(ctx, np.ones((64, 64))), ctx.from_numpy(np.ones((2, 64), "f4"))
        total = matrix.linear(x, x)
        early = total.tanh()
        return [early, matrix.mulmat(total.rms_norm(ctx.from_numpy(np.ones(64, "f4")), eps=EPS))]

    names, got = ran(shuffling, monkeypatch, RULES, build)
    assert names == ["linear add", "tanh", "norm_weighted", "linear"]
    assert_close(got, ran(shuffling, monkeypatch, [], build)[1])


@pytest.mark.slow
def test_a_device_whose_lanes_do_not_shuffle_keeps_the_ops_apart(executors, monkeypatch, rng):
    baseline = executors("baseline")
    block, x = Block(rng), rng.standard_normal((2, 64), "f4")
    names, got = ran(baseline, monkeypatch, RULES, lambda ctx: block(ctx, x)[:3])
    assert names.count("rms_norm") == 3
    assert_close(got, ran(baseline, monkeypatch, [], lambda ctx: block(ctx, x)[:3])[1])
