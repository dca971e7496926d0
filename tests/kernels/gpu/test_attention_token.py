"""Attention of tokens that share no keys, by the kernel of hardware with subgroups."""

import dataclasses

import pytest

from tests.ops.test_attention import LIMIT, Case
from tests.shares import rare
from wgpu_backend.dtypes import F16, F32, Q4_0, Q8_0
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.kernels import select
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.attention.paged import (
    attention_merge,
    paged_attention,
    paged_attention_splits,
)
from wgpu_backend.ops.op import fusions

pytestmark = pytest.mark.gpu
HARDWARE = Capabilities(subgroups=True)


@pytest.fixture
def wide(executors):
    return executors("wide")


def one_each(rng, **how):
    """A token at the end of each sequence."""
    return Case.random(rng, tokens=1, **how)


@pytest.mark.parametrize(
    ("tokens", "capabilities", "shader"),
    [
        (1, HARDWARE, "kernels/gpu/attention_token"),
        (2, HARDWARE, "ops/attention/attention"),
        (1, Capabilities(), "ops/attention/attention"),
        (1, dataclasses.replace(HARDWARE, lanes=4), "ops/attention/attention"),
    ],
)
def test_tokens_of_their_own_take_it_and_others_do_not(wide, rng, tokens, capabilities, shader):
    case = Case.random(rng, tokens=tokens, lengths=(9, 40))
    with Context(wide) as ctx:
        node = paged_attention(*case.operands(ctx), scores=case.scores())
        taken = select(node.call.op, node.launch, capabilities).shader
        assert (taken or node.call.op.shader) == shader


@pytest.mark.parametrize(
    "group", [1, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 4, 7, 8))]
)
def test_heads_share_keys(wide, check, rng, group):
    case = one_each(rng, heads=2 * group, kv_heads=2, cols=64)
    check(wide, case.build(), limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("cols", [4, 64, 80, 96, 128, pytest.param(256, marks=rare)])
def test_heads_of_every_size(wide, check, rng, cols):
    check(wide, one_each(rng, cols=cols).build(F16, F16), limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(("cols", "v_cols"), [(96, 64), (64, 128)])
def test_values_of_another_size_than_keys(wide, check, rng, cols, v_cols):
    check(wide, one_each(rng, cols=cols, v_cols=v_cols).build(), limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"window": 7}, {"softcap": 2.0}], ids=str)
def test_options(wide, check, rng, options):
    check(wide, one_each(rng, lengths=(9, 140, 1)).build(F16, F16, **options), limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("block", [16, 32, 7])
def test_blocks_of_any_size(wide, check, rng, block):
    check(wide, one_each(rng, block=block, lengths=(100, 33)).build(), limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [F32, F16, Q8_0, Q4_0], ids=str)
def test_caches_of_every_type(wide, check, rng, dtype):
    case = one_each(rng, cols=64, lengths=(67, 5))

    def build(ctx):
        return paged_attention(*case.cached(ctx, dtype, dtype), scores=case.scores())

    # Reference and device round the cache alike but for ties.
    check(wide, build, limit=LIMIT if not dtype.quantised else 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("splits", [2, 5])
def test_splits_joined_are_the_whole(wide, check, rng, splits):
    case = one_each(rng, lengths=(1, 300, 64))

    def build(ctx):
        parts = paged_attention_splits(*case.operands(ctx), scores=case.scores(), splits=splits)
        return attention_merge(parts)

    check(wide, build, limit=LIMIT)


# Half of a unit in the last place of f16 is 2⁻¹² of a value, of a few products and weights.
F16_LIMIT = 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "dtype"),
    [
        ({"cols": 64, "lengths": (1, 300, 64)}, F16),
        ({"cols": 128, "heads": 12, "lengths": (77, 5)}, F16),
        pytest.param({"cols": 256, "lengths": (33, 130)}, F16, marks=rare),
        pytest.param({"cols": 80, "lengths": (9, 40)}, F16, marks=rare),
        ({"cols": 64, "lengths": (67, 5)}, Q8_0),
        ({"cols": 64, "lengths": (67, 5)}, Q4_0),
    ],
    ids=str,
)
def test_pairs_of_f16(wide, check, rng, how, dtype):
    if not wide.capabilities.f16:
        pytest.skip("needs a device with f16")
    case = one_each(rng, **how)

    def build(ctx):
        return paged_attention(*case.cached(ctx, dtype, dtype), scores=case.scores(f16=True))

    check(wide, build, limit=F16_LIMIT if dtype == F16 else 1e-5)


@pytest.mark.slow
def test_pairs_of_f16_of_large_keys(wide, check, rng):
    if not wide.capabilities.f16:
        pytest.skip("needs a device with f16")
    case = one_each(rng, cols=64, lengths=(40, 9))
    # As biases of keys are: f16 of one product alone would be infinite.
    case = dataclasses.replace(case, k=case.k + 3000, q=case.q + 30)

    def build(ctx):
        scores = dataclasses.replace(case.scores(f16=True), scale=1e-4)
        return paged_attention(*case.cached(ctx, F16, F16), scores=scores)

    # Scores of 500 are right to 2⁻⁴.
    check(wide, build, limit=1e-2)


def test_a_rule_takes_pairs_of_f16_where_rounding_is_allowed(eight_lanes, rng, monkeypatch):
    if not eight_lanes.capabilities.f16:
        pytest.skip("needs a device with f16")
    case = one_each(rng, cols=64)

    def shares(exact, dtype):
        monkeypatch.setattr(eight_lanes, "rules", fusions(["paged_attention"], exact=exact))
        with Context(eight_lanes) as ctx:
            y = paged_attention(*case.operands(ctx, dtype, dtype), scores=case.scores())
            recorded = ctx.record(y)
            found = recorded.plan.steps[-1][0].call.kwargs["scores"].f16
            recorded.close()
        return found

    assert shares(exact=False, dtype=F16)
    assert not shares(exact=True, dtype=F16)
    assert not shares(exact=False, dtype=F32)


def test_a_token_that_sees_nothing_gives_zeros(wide, check, rng):
    case = one_each(rng, heads=6, kv_heads=2, cols=64)  # compiled for heads that share keys
    case.positions[1] = -1
    check(wide, case.build(), limit=LIMIT)


def test_scores_may_be_large(wide, check, rng):
    case = one_each(rng)
    case = dataclasses.replace(case, q=case.q * 1e3)
    # A score near 1e3 is right to 2⁻¹⁴, so is a weight.
    check(wide, case.build(), limit=1e-7)
