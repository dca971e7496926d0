"""Ops value by value in one kernel: which join, and that the result is that of each by itself."""

import numpy as np
import pytest

from tests.ops.fused import same_but_for_fused_sums
from wgpu_backend.dtypes import F16
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.elementwise.fusion import MAX_OPERANDS, MAX_STEPS
from wgpu_backend.ops.op import fusions

EXTENTS = [(1,), (3,), (33,), (257,), (5, 16), (3, 4, 8)]


@pytest.fixture
def fusing(gpu: WgpuExecutor, monkeypatch):
    """A device with this rule alone, and its number of dispatches for a graph."""
    monkeypatch.setattr(gpu, "rules", fusions(["chain"], exact=True))
    return gpu


def computed(executor, build):
    """Values, and the ops that ran for them."""
    with Context(executor) as context:
        outputs = build(context)
        recorded = context.record(*outputs)
        try:
            values = recorded.run({}).wait()
            return values, [n.call.op.name for n, _ in recorded.plan.steps]
        finally:
            recorded.close()


def unfused(executor, build, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(executor, "rules", {})
        return computed(executor, build)


def check(executor, build, monkeypatch, wanted, *, exact=False):
    """Ops that run, and values as of each by itself: bit for bit where no product is summed."""
    got, ops = computed(executor, build)
    want, _ = unfused(executor, build, monkeypatch)
    assert ops == wanted
    same_but_for_fused_sums(got, want)
    if exact:
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("shape", EXTENTS, ids=str)
def test_a_chain_is_one_dispatch_with_the_same_result(fusing, shape, rng, monkeypatch):
    x, y = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))

    def build(context):
        a, b = context.from_numpy(x), context.from_numpy(y)
        return [((a.silu() + b) * a.sigmoid()).tanh()]

    check(fusing, build, monkeypatch, ["chain"])


def test_a_row_repeats(fusing, rng, monkeypatch):
    x, row = rng.standard_normal((7, 12)), rng.standard_normal(12)

    def build(context):
        return [(context.from_numpy(x) * context.from_numpy(row)).gelu() - context.from_numpy(row)]

    check(fusing, build, monkeypatch, ["chain"])


def test_logarithms_powers_and_extremes_join(fusing, rng, monkeypatch):
    x, y = (rng.standard_normal((9, 8)).astype(np.float32) for _ in "xy")

    def build(context):
        a, b = context.from_numpy(x), context.from_numpy(y)
        return [(abs(a).log() * a.sign()).maximum(b) ** b.minimum(a)]

    check(fusing, build, monkeypatch, ["chain"])


def test_functions_that_are_told_a_number_join_with_theirs(fusing, rng, monkeypatch):
    x, y = (rng.standard_normal((9, 8)).astype(np.float32) for _ in "xy")

    def build(context):
        a, b = context.from_numpy(x), context.from_numpy(y)
        return [(a.elu(0.5) + b.elu(1.5)).softshrink(0.1).remainder(b).floor().nextafter(a)]

    check(fusing, build, monkeypatch, ["chain"])


def test_integers_and_truth_values_join_no_chain(fusing, rng, monkeypatch):
    x, ids = rng.standard_normal(33).astype(np.float32), rng.integers(1, 9, 33)

    def build(context):
        a, n = context.from_numpy(x), context.from_numpy(ids)
        return [a.tan().isnan().logical_not(), (n * n).power(n) % 7]

    ops = ["tan", "isnan", "logical_not", "mul", "power", "remainder"]
    check(fusing, build, monkeypatch, ops, exact=True)


def test_f16_operands_are_read_as_they_are(fusing, rng, monkeypatch):
    x, y = rng.standard_normal((9, 8)), rng.standard_normal((9, 8)).astype(np.float16)

    def build(context):
        return [context.from_numpy(x).relu() + context.from_numpy(y, F16)]

    check(fusing, build, monkeypatch, ["chain"], exact=True)


def test_a_result_somebody_else_needs_is_made(fusing, rng, monkeypatch):
    x = rng.standard_normal((9, 8))

    def build(context):
        a = context.from_numpy(x)
        inner = a.silu() + a
        return [inner, inner.tanh().exp()]

    check(fusing, build, monkeypatch, ["chain", "chain"])


def test_other_ops_end_a_chain_and_columns_join_it(fusing, rng, monkeypatch):
    x, column = rng.standard_normal((5, 8)), rng.standard_normal((5, 1))

    def build(context):
        a = context.from_numpy(x).silu().softmax()
        return [(a * context.from_numpy(column).exp().sigmoid()).tanh().sqr()]

    check(fusing, build, monkeypatch, ["silu", "softmax", "chain"])


@pytest.mark.parametrize("steps", [MAX_STEPS, MAX_STEPS + 1])
def test_a_chain_has_so_many_steps_at_most(fusing, steps, rng, monkeypatch):
    x = rng.standard_normal(12)

    def build(context):
        y = context.from_numpy(x.astype(np.float32))
        for _ in range(steps):
            y = y.sin()
        return [y]

    check(fusing, build, monkeypatch, ["chain"] if steps == MAX_STEPS else ["chain", "sin"])


@pytest.mark.parametrize("count", [MAX_OPERANDS, MAX_OPERANDS + 1])
def test_a_chain_has_so_many_operands_at_most(fusing, count, rng, monkeypatch):
    rows = [rng.standard_normal(12).astype(np.float32) for _ in range(count)]

    def build(context):
        y = context.from_numpy(rows[0])
        for row in rows[1:]:
            y = y + context.from_numpy(row)
        return [y]

    check(
        fusing,
        build,
        monkeypatch,
        ["chain"] if count == MAX_OPERANDS else ["chain", "add"],
        exact=True,
    )


def test_more_operands_than_bindings_are_two_chains(fusing, rng, monkeypatch):
    x = rng.standard_normal((8, 4, 8))

    def build(context):
        total = context.from_numpy(x[0])
        for values in x[1:]:
            total = total + context.from_numpy(values)
        return [total]

    check(fusing, build, monkeypatch, ["chain", "chain"], exact=True)


def test_an_empty_tensor_stays_empty(fusing, monkeypatch):
    def build(context):
        return [context.from_numpy(np.zeros((0, 4))).silu().tanh()]

    check(fusing, build, monkeypatch, ["chain"], exact=True)


def test_random_chains(fusing, rng, monkeypatch):
    leaves = rng.standard_normal((3, 6, 20)).astype(np.float32)

    for _ in range(10):
        picks = rng.integers(0, 6, 12), rng.integers(0, 3, 12)

        def build(context, picks=picks):
            known = [context.from_numpy(values) for values in leaves]
            total = known[0]
            for kind, other in zip(*picks, strict=True):
                apart = [total.silu, total.tanh, total.relu, total.sigmoid]
                total = (
                    apart[kind]()
                    if kind < 4
                    else (total + known[other], total * known[other])[kind - 4]
                )
            return [total]

        got, ops = computed(fusing, build)
        want, _ = unfused(fusing, build, monkeypatch)
        assert ops == ["chain"]
        np.testing.assert_allclose(got[0], want[0], rtol=1e-6, atol=1e-7)


def test_a_shape_that_no_operand_has_is_that_of_the_result(fusing, rng, monkeypatch):
    x, shares = rng.standard_normal((1, 1, 12)), rng.standard_normal((6, 12))

    def build(context):
        a, b = (context.from_numpy(values.astype(np.float32)) for values in (x, shares))
        return [a + a.silu() * b]

    check(fusing, build, monkeypatch, ["chain"])


def test_numbers_join(fusing, rng, monkeypatch):
    x = rng.standard_normal((3, 11)).astype(np.float32)

    def build(context):
        y = context.from_numpy(x).scale(factor=3.0, bias=0.5).clamp(-1.0, np.inf)
        return [y.tanh().scale(factor=0.25).clamp(-0.2, 0.2)]

    check(fusing, build, monkeypatch, ["chain"])


def test_what_several_chains_read_is_computed_in_each(fusing, rng, monkeypatch):
    x = rng.standard_normal((5, 9)).astype(np.float32)

    def build(context):
        a = context.from_numpy(x)
        positive = a.relu()
        negative = a - positive
        return [positive.sqr() + (negative.exp() - 1.0 - negative) * negative]

    check(fusing, build, monkeypatch, ["chain"])


def test_what_others_read_too_is_not_computed_again(fusing, rng, monkeypatch):
    x = rng.standard_normal((5, 9)).astype(np.float32)

    def build(context):
        a = context.from_numpy(x).silu()
        return [a.softmax() + a.sqr()]

    check(fusing, build, monkeypatch, ["silu", "softmax", "chain"])


VIEWS = {
    "heads": lambda a, c: (a.silu().reshape(3, 2, 6) * c.reshape(3, 2, 1)).tanh(),
    "a row seen in heads": lambda a, c: (a * c.reshape(6)).tanh().reshape(6, 1, 6) + c,
    "a column seen in heads": lambda a, c: (
        (a + c.reshape(6, 1)).tanh().reshape(6, 2, 3).sqr() * c.reshape(6, 1, 1)
    ),
    "columns of a wider tensor": lambda a, c: (
        a.slice(1, 1, 4).silu() * c.slice(1, 0, 3).tanh().sqr()
    ),
    "transposed": lambda a, c: (a.transpose() * c).tanh(),
    "a number of four axes": lambda a, c: c.reshape(1, 1, 6, 1).exp() * a.reshape(1, 6, 1, 6),
    "heads seen flat": lambda a, c: (
        (a.reshape(6, 2, 3) * c.reshape(6, 1, 1)).reshape(6, 6).silu() * a.slice(0, 0, 6) + c
    ),
    "part of a result": lambda a, c: a.exp().slice(0, 1, 3) * c.tanh().sqr(),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_and_broadcasting_give_the_same(fusing, rng, monkeypatch, name):
    x, column = (rng.standard_normal(shape).astype(np.float32) for shape in ((6, 6), (1, 6)))

    def build(context):
        a, c = context.from_numpy(x), context.from_numpy(column)
        return [VIEWS[name](a, c)]

    got, ops = computed(fusing, build)
    want, apart = unfused(fusing, build, monkeypatch)
    np.testing.assert_allclose(got[0], want[0], rtol=1e-6, atol=1e-7)
    assert len(ops) < len(apart)
