import numpy as np
import pytest

from tests.ops.operands import tensor
from wgpu_backend.dtypes import F16, I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context

# Sums in f32 on both sides, in another order; a scan carries its rounding on.
LIMIT = 1e-11


def values(rng, *shape):
    return rng.standard_normal(shape).astype("f4")


@pytest.mark.parametrize("taps", [1, 4, 5])
@pytest.mark.parametrize(("sequences", "channels", "tokens"), [(1, 1, 1), (2, 33, 7), (3, 64, 9)])
def test_a_short_convolution_agrees_with_numpy(
    any_executor, check, rng, sequences, channels, tokens, taps
):
    x, w = values(rng, sequences, channels, taps - 1 + tokens), values(rng, channels, taps)
    check(any_executor, lambda ctx: tensor(ctx, x).ssm_conv(tensor(ctx, w)), limit=LIMIT)


def test_a_short_convolution_sees_what_was_before(full, rng):
    x, w = values(rng, 2, 3, 8), values(rng, 3, 4)
    with Context(full) as ctx:
        got = tensor(ctx, x).ssm_conv(tensor(ctx, w)).numpy()
    want = np.array(
        [[np.convolve(c, k[::-1], "valid") for c, k in zip(s, w, strict=True)] for s in x]
    )
    np.testing.assert_allclose(got, want.swapaxes(1, 2), atol=1e-5)


def operands(
    rng, *, rows=3, sequences=2, tokens=5, heads=4, cols=6, states=16, parts=2, shared=False
):
    return (
        values(rng, rows, heads, cols, states),
        values(rng, sequences, tokens, heads, cols),
        values(rng, sequences, tokens, heads),
        -rng.uniform(0.1, 2, (heads, 1 if shared else states)).astype("f4"),
        values(rng, sequences, tokens, parts, states),
        values(rng, sequences, tokens, parts, states),
        rng.integers(0, rows, sequences).astype("i4"),
    )


def scanned(given, of=tensor, dtype=None):
    def build(ctx):
        floats = [of(ctx, g, dtype) if dtype else of(ctx, g) for g in given[:-1]]
        return floats[0].ssm_scan(*floats[1:], of(ctx, given[-1], I32))

    return build


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("states", [1, 16, 33, 128])
def test_a_scan_agrees_with_numpy(any_executor, check, rng, states, shared):
    check(any_executor, scanned(operands(rng, states=states, shared=shared)), limit=LIMIT)


@pytest.mark.parametrize(
    "how",
    [
        {"tokens": 1},
        {"tokens": 70, "sequences": 1},
        {"heads": 3, "cols": 1, "parts": 3},
        {"heads": 6, "parts": 1, "cols": 17},
        {"rows": 1, "sequences": 4},
    ],
    ids=str,
)
@pytest.mark.parametrize("shared", [False, True])
def test_any_number_of_tokens_heads_and_sequences(executor, check, rng, how, shared):
    check(executor, scanned(operands(rng, shared=shared, **how)), limit=LIMIT)


@pytest.mark.parametrize("dt", [-60, -20, -5, 0, 5, 20, 90])
def test_widths_of_steps_neither_overflow_nor_cancel(any_executor, check, rng, dt):
    given = list(operands(rng, tokens=1, states=4))
    given[0] = np.zeros_like(given[0])
    given[2] = np.full_like(given[2], dt)
    check(any_executor, scanned(given), limit=LIMIT)


def test_a_scan_in_two_halves_is_the_scan(executor, rng):
    given = operands(rng, tokens=8)
    size, shape = given[1].size // 2, (2, 4, 6, 16)
    with Context(executor) as ctx:
        whole = scanned(given)(ctx).numpy()
        early = [g[:, :4] if g.ndim > 2 else g for g in given[1:-1]]
        late = [g[:, 4:] if g.ndim > 2 else g for g in given[1:-1]]
        first = scanned((given[0], *early, given[-1]))(ctx).numpy()
        state = first[size:].reshape(shape)
        second = scanned((state, *late, np.arange(2, dtype="i4")))(ctx).numpy()
    np.testing.assert_allclose(second[size:], whole[2 * size :], rtol=1e-4, atol=1e-5)
    y = whole[: 2 * size].reshape(given[1].shape)
    np.testing.assert_allclose(second[:size].reshape(y[:, 4:].shape), y[:, 4:], atol=1e-4)


def test_what_does_not_fit_is_refused(full):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match="x has 5 channels, weight has 4"):
            ctx.zeros(1, 5, 9).ssm_conv(ctx.zeros(4, 4))
        with pytest.raises(ShapeError, match="weight has 4 taps, x has 2 values, needs at least 3"):
            ctx.zeros(1, 5, 2).ssm_conv(ctx.zeros(5, 4))
        good = {
            "state": (3, 4, 6, 16),
            "x": (2, 5, 4, 6),
            "dt": (2, 5, 4),
            "a": (4, 16),
            "b": (2, 5, 2, 16),
            "c": (2, 5, 2, 16),
        }
        ids = ctx.zeros(2, dtype=I32)
        for name, shape, message in [
            ("state", (3, 4, 7, 16), r"state is \(3, 4, 7, 16\), needs \(3, 4, 6, 16\)"),
            ("dt", (2, 4, 4), r"dt is \(2, 4, 4\), needs \(2, 5, 4\)"),
            ("a", (4, 15), r"a is \(4, 15\), needs \(4, 16\)"),
            ("c", (2, 5, 1, 16), r"c is \(2, 5, 1, 16\), needs \(2, 5, 2, 16\)"),
            ("x", (2, 5, 4), "x .* 3 axes, needs 4 to 4"),
        ]:
            state, *rest = (ctx.zeros(*s) for s in (good | {name: shape}).values())
            with pytest.raises(ShapeError, match=message):
                state.ssm_scan(*rest, ids)
        state, *rest = (ctx.zeros(*s) for s in good.values())
        with pytest.raises(DTypeError, match="ids is f16, needs i32"):
            state.ssm_scan(*rest, ctx.zeros(2, dtype=F16))
