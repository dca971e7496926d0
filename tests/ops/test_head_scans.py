"""Scans of a matrix of states for each head."""

import numpy as np
import pytest

from tests.conftest import requested, with_numpy
from tests.ops.operands import LAYOUTS, VIEWS, tensor
from tests.ops.recurrent import BATCHES, SLOTS, Run, check_both, run_on, runs_of, size_of
from wgpu_backend.dtypes import F16, F32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.testing import nmse

# Sums in f32 on both sides, in another order; a scan carries its rounding on.
LIMIT = 1e-11


def values(rng, *shape):
    return rng.standard_normal(shape).astype("f4")


def unit(rng, *shape):
    """Vectors of length 1, as keys of delta rules are: others would make states grow."""
    given = values(rng, *shape)
    return given / np.linalg.norm(given, axis=-1, keepdims=True)


def gated_delta(rng, tokens, heads, groups, keys, cols, *, shared=False):
    return {
        "q": values(rng, tokens, groups, keys),
        "k": unit(rng, tokens, groups, keys),
        "v": values(rng, tokens, heads, cols),
        "decay": -rng.uniform(0, 1, (tokens, heads, 1 if shared else keys)).astype("f4"),
        "beta": rng.uniform(0, 1, (tokens, heads)).astype("f4"),
    }


def gated_linear(rng, tokens, heads, groups, keys, cols, *, shared=False, bonus=False):
    given = gated_delta(rng, tokens, heads, groups, keys, cols, shared=shared)
    del given["beta"]
    return given | ({"bonus": values(rng, heads, keys)} if bonus else {})


def bonus(rng, *sizes, **how):
    return gated_linear(rng, *sizes, **how, bonus=True)


def wkv7(rng, tokens, heads, groups, keys, cols, *, shared=False):
    kk = unit(rng, tokens, heads, keys)
    return {
        "r": values(rng, tokens, heads, keys),
        "k": values(rng, tokens, heads, keys),
        "v": values(rng, tokens, heads, cols),
        "decay": -rng.uniform(0, 1, (tokens, heads, 1 if shared else keys)).astype("f4"),
        "delta": np.stack([-kk, kk * rng.uniform(0, 1, kk.shape)]).astype("f4"),
    }


def selective_scan(rng, tokens, heads, groups, keys, cols, *, shared=False):
    return {
        "x": values(rng, tokens, heads, cols),
        "dt": values(rng, tokens, heads, 1 if shared else cols),
        "a": -rng.uniform(0.1, 2, (heads, 1, 1) if shared else (heads, cols, keys)).astype("f4"),
        "b": values(rng, tokens, groups, keys),
        "c": values(rng, tokens, groups, keys),
    }


MAKERS = {f.__name__: f for f in (gated_delta, gated_linear, bonus, wkv7, selective_scan)}
NAMES = {"bonus": "gated_linear"}


def built(name, given, of=tensor, dtype=F32):
    """Build of the op by its operands; `state` and `runs` come before a bonus."""

    def build(ctx, state, runs, **how):
        first, *rest = (of(ctx, g, dtype) for n, g in given.items() if n != "bonus")
        last = [of(ctx, given["bonus"], dtype)] if "bonus" in given else []
        return getattr(first, NAMES.get(name, name))(*rest, state, runs, *last, **how)

    return build


def state_of(rng, heads, keys, cols):
    return values(rng, SLOTS, heads, keys, cols)


@pytest.mark.slow
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("name", MAKERS)
def test_any_runs_of_tokens_agree_with_numpy(any_executor, check, rng, name, batch):
    runs = BATCHES[batch]
    given = MAKERS[name](rng, size_of(runs), 4, 2, 16, 9)
    state, index = state_of(rng, 4, 16, 9), runs_of(runs)
    check_both(any_executor, built(name, given), state, index, limit=LIMIT)


@pytest.fixture(params=with_numpy("baseline"))
def scanning(request):
    """NumPy, and the one kernel that all profiles take."""
    return requested(request)


SIZES = [(1, 1, 1, 1), (3, 3, 33, 17), (2, 1, 64, 64), (2, 2, 128, 128), (1, 1, 257, 5)]


@pytest.mark.slow
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("heads", "groups", "keys", "cols"), SIZES, ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_any_sizes_of_heads(scanning, rng, name, heads, groups, keys, cols, shared):
    groups = heads if name == "wkv7" else groups
    given = MAKERS[name](rng, 5, heads, groups, keys, cols, shared=shared)
    runs = runs_of([Run(3, 1, 1), Run(2, -1, 0)])
    check_both(scanning, built(name, given), state_of(rng, heads, keys, cols), runs, limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(("layout", "dtype"), VIEWS, ids=str)
@pytest.mark.parametrize("name", MAKERS)
def test_operands_may_be_views(executor, rng, name, layout, dtype):
    given = MAKERS[name](rng, 6, 4, 4 if name == "wkv7" else 2, 6, 5)
    runs = runs_of([Run(4, 2, 2), Run(2)])
    build = built(name, given, LAYOUTS[layout], dtype)
    check_both(executor, build, state_of(rng, 4, 6, 5), runs, limit=LIMIT)


@pytest.mark.parametrize(("keys", "grouped"), [(16, False), (65, True)])
def test_the_delta_rule_of_any_keys_and_logits(any_executor, rng, keys, grouped):
    runs = BATCHES[min(BATCHES)]
    given = gated_delta(rng, size_of(runs), 4, 2, keys, 9, shared=grouped)
    given |= {"k": 3 * values(rng, *given["k"].shape), "beta": values(rng, size_of(runs), 4)}
    state, index, lengths = state_of(rng, 4, keys, 9), runs_of(runs), {"scale": 0.5, "unit": 0.1}

    def of_logits(ctx, state, runs):
        q, k, v, decay, beta = (tensor(ctx, g) for g in given.values())
        if grouped:  # columns of a wider tensor
            wide = beta.reshape(-1, 2, 2)
            beta = wide.concat(wide.neg(), axis=2).slice(2, 0, 2)
        return q.gated_delta(k, v, decay, beta, state, runs, logits=True, **lengths)

    check_both(any_executor, of_logits, state, index, limit=LIMIT)
    got = run_on(any_executor, of_logits, state, index)
    plain = given | {"beta": 1 / (1 + np.exp(-given["beta"]))}
    for name in "qk":
        plain[name] = given[name] / np.sqrt(np.sum(given[name] ** 2, -1, keepdims=True) + 0.1)
    want = run_on(
        NumpyExecutor(),
        lambda c, s, r: built("gated_delta", plain)(c, s, r, scale=0.5),
        state,
        index,
    )
    for a, b in zip(got, want, strict=True):
        assert nmse(a, b) <= LIMIT


@pytest.mark.parametrize("shared", [False, True])
def test_the_delta_rule_makes_decays_of_steps(any_executor, rng, shared):
    runs = BATCHES[max(BATCHES)]
    tokens, keys = size_of(runs), 20
    wide = unit(rng, tokens, 3, keys)
    steps = values(rng, tokens, 3, 1 if shared else keys)
    rate, bias = -rng.uniform(0.1, 2, (3, 1)).astype("f4"), values(rng, *steps.shape[1:])
    beta = rng.uniform(0, 1, (tokens, 3)).astype("f4")

    def of_steps(ctx, state, runs):
        x = tensor(ctx, wide)
        q, k, v = (x.slice(2, i, i + n) for i, n in ((0, 8), (8, 8), (16, 4)))
        given = (tensor(ctx, a) for a in (rate, bias))
        first = tensor(ctx, steps).slice(2, 0, 1 if shared else 8)
        bound = [a if shared or a.shape[1] == 1 else a.slice(1, 0, 8) for a in given]
        return q.gated_delta(k, v, first, tensor(ctx, beta), state, runs, *bound)

    state, index = state_of(rng, 3, 8, 4), runs_of(runs)
    check_both(any_executor, of_steps, state, index, limit=LIMIT)
    got = run_on(any_executor, of_steps, state, index)
    decay = (rate * np.logaddexp(steps + bias, 0)).astype("f4")[..., : 1 if shared else 8]
    parts = dict(zip("qkv", np.split(wide, [8, 16], axis=2), strict=True))
    plain = parts | {"decay": decay, "beta": beta}
    want = run_on(NumpyExecutor(), built("gated_delta", plain), state, index)
    for a, b in zip(got, want, strict=True):
        assert nmse(a, b) <= LIMIT


def test_decays_of_steps_need_one_tensor(executor, rng):
    given = gated_delta(rng, 5, 2, 2, 8, 4, shared=True)
    one = np.ones((2, 1), "f4")

    def build(ctx, state, runs):
        first, *rest = (tensor(ctx, g) for g in given.values())
        return first.gated_delta(*rest, state, runs, tensor(ctx, one), tensor(ctx, one))

    with pytest.raises(ShapeError, match="lie in several tensors"):
        run_on(executor, build, state_of(rng, 2, 8, 4), runs_of([Run(5)]))


@pytest.mark.parametrize("name", MAKERS)
def test_padding_gives_zeros_and_touches_no_state(any_executor, rng, name):
    given = MAKERS[name](rng, 8, 2, 2, 6, 5)
    given = {
        n: g
        if g.shape[0] != 8
        else np.where(np.arange(8).reshape(-1, *[1] * (g.ndim - 1)) < 5, g, np.nan)
        for n, g in given.items()
    }
    if "delta" in given:
        given["delta"][:, 5:] = np.nan
    runs = runs_of([Run(4, 2, 2), Run(1, 0)], 4)
    before = state_of(rng, 2, 6, 5)
    y, after = run_on(any_executor, built(name, given), before, runs)
    assert np.isfinite(y).all()
    assert not y[5:].any()
    assert y[:5].any()
    changed = (before != after).any(axis=(1, 2, 3))
    np.testing.assert_array_equal(changed, [s == 2 for s in range(SLOTS)])


def parts(given, *slices):
    """Operands of some tokens each."""

    def cut(name, value, part):
        if name in ("a", "bonus"):
            return value
        return value[:, part] if name == "delta" else value[part]

    return [{n: cut(n, v, part) for n, v in given.items()} for part in slices]


@pytest.mark.parametrize("name", MAKERS)
def test_a_scan_in_two_parts_leaves_a_checkpoint(executor, rng, name):
    given = MAKERS[name](rng, 20, 2, 2, 8, 8)
    state = state_of(rng, 2, 8, 8)
    whole, want = run_on(executor, built(name, given), state, runs_of([Run(20, 1, 3)]))
    early, late = parts(given, slice(0, 8), slice(8, 20))
    first, between = run_on(executor, built(name, early), state, runs_of([Run(8, 1, 4)]))
    for target in (0, 4):
        rest, last = run_on(executor, built(name, late), between, runs_of([Run(12, 4, target)]))
        assert nmse(np.concatenate([first, rest]), whole) <= LIMIT
        assert nmse(last[target], want[3]) <= LIMIT
    np.testing.assert_array_equal(between[1], state[1])


@pytest.mark.parametrize("name", MAKERS)
def test_token_by_token_is_the_scan_of_all(executor, rng, name):
    given = MAKERS[name](rng, 6, 2, 2, 8, 8)
    state = state_of(rng, 2, 8, 8)
    whole, after = run_on(executor, built(name, given), state, runs_of([Run(6, -1, 1)]))
    slot = -1
    for token, part in enumerate(parts(given, *(slice(t, t + 1) for t in range(6)))):
        row, state = run_on(executor, built(name, part), state, runs_of([Run(1, slot, 1)]))
        assert nmse(row[0], whole[token]) <= LIMIT
        slot = 1
    assert nmse(state[1], after[1]) <= LIMIT


def test_the_delta_rule_overwrites_what_a_key_had(rng):
    """With beta 1 and no decay, the value that a key last got is what its query finds."""
    k = unit(rng, 1, 1, 8).repeat(3, axis=0)
    v = values(rng, 3, 1, 4)
    given = {
        "q": k,
        "k": k,
        "v": v,
        "decay": np.zeros((3, 1, 1), "f4"),
        "beta": np.ones((3, 1), "f4"),
    }
    y, _ = run_on(
        NumpyExecutor(),
        built("gated_delta", given),
        state_of(rng, 1, 8, 4),
        runs_of([Run(3, 0)]),
    )
    np.testing.assert_allclose(y, v, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 3, 6])
def test_keys_may_be_dealt_to_heads_in_turn(executor, rng, groups):
    given = gated_delta(rng, 4, 6, groups, 8, 5)
    turns = [h % groups for h in range(6)]
    repeated = given | {n: given[n][:, turns] for n in ("q", "k")}
    state, runs = state_of(rng, 6, 8, 5), runs_of([Run(4, 1, 2)])
    build = built("gated_delta", given)
    tiled = run_on(executor, lambda *of: build(*of, tiled=True, scale=0.5), state, runs)
    want = run_on(executor, built("gated_delta", repeated), state, runs)
    assert nmse(2 * tiled[0], want[0]) <= LIMIT
    assert nmse(tiled[1], want[1]) <= LIMIT


def test_rwkv7_with_its_deltas_is_the_gated_delta_rule(executor, rng):
    """a = exp(decay) k and b = -beta k make the same of a decayed state."""
    given = gated_delta(rng, 7, 2, 2, 8, 6)
    beta, decayed = given["beta"][..., None], np.exp(given["decay"]) * given["k"]
    other = {
        "r": given["q"],
        "k": given["k"] * beta,
        "v": given["v"],
        "decay": given["decay"],
        "delta": np.stack([decayed, -beta * given["k"]]),
    }
    state, runs = state_of(rng, 2, 8, 6), runs_of([Run(7, 1, 1)])
    one = run_on(executor, built("gated_delta", given), state, runs)
    two = run_on(executor, built("wkv7", other), state, runs)
    assert nmse(one[0], two[0]) <= LIMIT
    assert nmse(one[1], two[1]) <= LIMIT


@pytest.mark.parametrize("shared", [False, True])
def test_a_selective_scan_is_that_of_the_other_interface(executor, rng, shared):
    given = selective_scan(rng, 5, 3, 1, 4, 6, shared=True)
    state, runs = state_of(rng, 3, 4, 6), runs_of([Run(5, 2, 2)])
    y, after = run_on(executor, built("selective_scan", given), state, runs)
    with Context(executor) as ctx:
        old = ctx.from_numpy(np.ascontiguousarray(state.swapaxes(2, 3)))
        dt, a = given["dt"][None, ..., 0], given["a"][..., 0]
        rest = [given["x"][None], dt, a if shared else a.repeat(4, axis=1)]
        rest += [given["b"][None], given["c"][None]]
        both = old.ssm_scan(*map(ctx.from_numpy, rest), ctx.from_numpy(np.array([2], "i4"))).numpy()
    assert nmse(y.reshape(-1), both[: y.size]) <= LIMIT
    assert nmse(after[2].swapaxes(1, 2).reshape(-1), both[y.size :]) <= LIMIT


def test_what_does_not_fit_is_refused(full, rng):
    given = gated_delta(rng, 5, 4, 2, 8, 6)
    runs = runs_of([Run(5)])

    def refused(message, error=ShapeError, *, state=(SLOTS, 4, 8, 6), runs=runs, **other):
        with pytest.raises(error, match=message):
            run_on(full, built("gated_delta", given | other), np.zeros(state, "f4"), runs)

    refused(r"gated_delta: k is \(5, 2, 7\), needs \(5, 2, 7\)|q is", k=values(rng, 5, 2, 7))
    refused("4 heads, not a multiple of 3 groups", q=values(rng, 5, 3, 8), k=values(rng, 5, 3, 8))
    refused(r"decay is \(5, 4, 3\), needs \(5, 4, 8\)", decay=values(rng, 5, 4, 3))
    refused(r"beta is \(5, 2\), needs \(5, 4\)", beta=values(rng, 5, 2))
    refused(r"state is \(6, 4, 6, 8\), needs \(slots, 4, 8, 6\)", state=(SLOTS, 4, 6, 8))
    refused(r"runs is \(7,\), needs \(sequences, 4\)", runs=np.zeros(7, "i4"))
    refused(
        "columns have 513 states, needs 1 to 512",
        q=values(rng, 5, 2, 513),
        k=values(rng, 5, 2, 513),
        decay=values(rng, 5, 4, 1),
        state=(1, 4, 513, 6),
    )
    with Context(full) as ctx:
        q, k, v, decay, beta = (ctx.from_numpy(g) for g in given.values())
        state, wrong = ctx.zeros(SLOTS, 4, 8, 6), ctx.zeros(8, dtype=F16)
        with pytest.raises(DTypeError, match="runs is f16, needs i32"):
            q.gated_delta(k, v, decay, beta, state, wrong)
