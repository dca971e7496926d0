"""Short convolutions and token shifts that remember the last values of each sequence."""

import numpy as np
import pytest

from tests.ops.operands import LAYOUTS, VIEWS, tensor
from tests.ops.recurrent import BATCHES, SLOTS, Run, check_both, run_on, runs_of, size_of
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ContextError, ShapeError
from wgpu_backend.ml.context import Context

LIMIT = 1e-11  # sums in f32 on both sides


def values(rng, *shape):
    return rng.standard_normal(shape).astype("f4")


def conv(x, weight, bias=None, of=tensor, dtype=F32, **how):
    def build(ctx, state, runs):
        last = None if bias is None else of(ctx, bias, dtype)
        return of(ctx, x, dtype).short_conv(of(ctx, weight, dtype), state, runs, last, **how)

    return build


def shift(x, of=tensor, dtype=F32):
    return lambda ctx, state, runs: of(ctx, x, dtype).token_shift(state, runs)


@pytest.mark.parametrize("taps", [2, 3, 4, 7])
@pytest.mark.parametrize("batch", BATCHES)
def test_any_runs_of_tokens_agree_with_numpy(any_executor, rng, batch, taps):
    runs = BATCHES[batch]
    tokens = size_of(runs)
    x, weight, bias = values(rng, tokens, 33), values(rng, 33, taps), values(rng, 33)
    state, index = values(rng, SLOTS, taps - 1, 33), runs_of(runs)
    check_both(any_executor, conv(x, weight), state, index, limit=LIMIT)
    check_both(any_executor, conv(x, weight, bias, silu=True), state, index, limit=LIMIT)


@pytest.mark.parametrize("channels", [1, 3, 33, 257])
@pytest.mark.parametrize("batch", BATCHES)
def test_a_shift_agrees_with_numpy(any_executor, rng, batch, channels):
    runs = BATCHES[batch]
    x, state = values(rng, size_of(runs), channels), values(rng, SLOTS, 1, channels)
    check_both(any_executor, shift(x), state, runs_of(runs), limit=0)


@pytest.mark.parametrize(("layout", "dtype"), VIEWS, ids=str)
def test_operands_may_be_views(executor, rng, layout, dtype):
    of = LAYOUTS[layout]
    x, weight, bias = values(rng, 6, 5), values(rng, 5, 4), values(rng, 5)
    runs = runs_of([Run(4, 2, 2), Run(2)])
    build = conv(x, weight, bias, of, dtype)
    check_both(executor, build, values(rng, SLOTS, 3, 5), runs, limit=LIMIT)
    check_both(executor, shift(x, of, dtype), values(rng, SLOTS, 1, 5), runs, limit=0)


def test_a_convolution_sees_what_was_before(executor, rng):
    x, weight, state = values(rng, 9, 3), values(rng, 3, 4), values(rng, SLOTS, 3, 3)
    y, after = run_on(executor, conv(x, weight), state, runs_of([Run(9, 5, 0)]))
    whole = np.concatenate([state[5], x])
    want = [np.convolve(c, k[::-1], "valid") for c, k in zip(whole.T, weight, strict=True)]
    np.testing.assert_allclose(y, np.transpose(want), atol=1e-5)
    np.testing.assert_array_equal(after[0], x[-3:])


def test_a_shift_gives_predecessors(executor, rng):
    x, state = values(rng, 5, 3), values(rng, SLOTS, 1, 3)
    runs = runs_of([Run(3, 2, 2), Run(2, -1, 0)])
    y, after = run_on(executor, shift(x), state, runs)
    np.testing.assert_array_equal(y, [state[2, 0], x[0], x[1], np.zeros(3), x[3]])
    np.testing.assert_array_equal(after[[2, 0], 0], x[[2, 4]])


def test_padding_gives_zeros_and_touches_no_state(any_executor, rng):
    x, weight, before = values(rng, 8, 5), values(rng, 5, 3), values(rng, SLOTS, 2, 5)
    x[5:] = np.nan
    runs = runs_of([Run(4, 2, 2), Run(1, 0)], 4)
    y, after = run_on(any_executor, conv(x, weight), before, runs)
    assert np.isfinite(y).all()
    assert y[:5].all()
    assert not y[5:].any()
    np.testing.assert_array_equal(np.delete(after, 2, axis=0), np.delete(before, 2, axis=0))


def test_silu_neither_overflows_nor_drops_nan(any_executor, rng):
    x = np.array([[-200, -80, 0, 80, 200, np.nan]], "f4")
    weight = np.tile(np.array([0, 1], "f4"), (6, 1))
    build = conv(x, weight, silu=True)
    y, _ = run_on(any_executor, build, values(rng, 1, 1, 6), runs_of([Run(1)]))
    np.testing.assert_allclose(y[0], [0, 0, 0, 80, 200, np.nan], atol=1e-6)


def test_what_does_not_fit_is_refused(full, rng):
    x, weight, runs = values(rng, 5, 3), values(rng, 3, 4), runs_of([Run(5)])

    def refused(message, build, state=(2, 3, 3), runs=runs):
        with pytest.raises(ShapeError, match=message):
            run_on(full, build, np.zeros(state, "f4"), runs)

    refused("x has 3 channels, weight has 4", conv(x, values(rng, 4, 4)))
    refused("weight has 1 taps, needs 2 to 32", conv(x, values(rng, 3, 1)))
    refused(r"state is \(2, 2, 3\), needs \(slots, 3, 3\)", conv(x, weight), (2, 2, 3))
    refused(r"bias is \(4,\), x has 3 channels", conv(x, weight, values(rng, 4)))
    refused(r"runs is \(6,\), needs \(sequences, 4\)", conv(x, weight), runs=np.zeros(6, "i4"))
    refused(r"token_shift: state is \(2, 3, 3\), needs \(slots, 1, 3\)", shift(x))
    with Context(full) as ctx, pytest.raises(ContextError, match="dst is an input, needs a state"):
        ctx.from_numpy(x).token_shift(ctx.from_numpy(values(rng, 2, 1, 3)), ctx.from_numpy(runs))
