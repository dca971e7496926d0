"""Norms, rotation and cache write of one token, by the attention in ranges behind them."""

import dataclasses
from functools import partial

import numpy as np
import pytest

from tests.ops.fused import ran, same_but_for_fused_sums
from tests.ops.test_rope_attention import BLOCK, NORMS, RULES, SHAPES, operands, other_value
from tests.shares import rare
from wgpu_backend.dtypes import F16, F32
from wgpu_backend.errors import DeviceError
from wgpu_backend.kernels import runs
from wgpu_backend.kernels.gpu.attention import rope_attention_splits
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.attention.paged import attention_merge, paged_attention_splits

pytestmark = pytest.mark.gpu
SPLITS = 3


@pytest.fixture
def seed(rng):
    return int(rng.integers(1 << 30))


def in_ranges(given, heads, **how):
    """Result of the one op, joined."""
    return attention_merge(of_ranges(given, heads, **how))


def of_ranges(given, heads, *, eps=None, interleaved=False):
    """What the one op gives."""
    norms = {} if eps is None else {"eps": eps, **dict(zip(NORMS, given.norms, strict=True))}
    return rope_attention_splits(
        *(given.q, given.key, given.value, given.angles, given.slot, given.keys, given.values),
        *given.places,
        interleaved=interleaved,
        scores=heads.scores(),
        splits=SPLITS,
        sinks=given.sinks,
        **norms,
    )


@pytest.mark.parametrize(
    ("heads", "dtype", "how"),
    [
        pytest.param(SHAPES[0], F16, {}, marks=rare),
        (SHAPES[1], F32, {"interleaved": True}),
        pytest.param(SHAPES[2], F32, {"eps": 0.1}, marks=rare),
        pytest.param(SHAPES[3], F16, {"eps": 0.1, "interleaved": True}, marks=rare),
    ],
    ids=str,
)
@pytest.mark.parametrize("position", [0, 257])
def test_ranges_joined_are_what_ops_apart_give(eight_lanes, seed, heads, dtype, how, position):
    with Context(eight_lanes) as context:
        given = operands(context, seed, heads, dtype, position)
        y = in_ranges(given, heads, **how).numpy()
        got = [y, given.keys.numpy(), given.values.numpy()]
    with Context(NumpyExecutor()) as context:
        given = operands(context, seed, heads, dtype, position)
        kwargs = {"interleaved": False, **how}
        want = [t.numpy() for t in given.apart(heads, **kwargs)]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5 if dtype == F32 else 2**-10, atol=3e-5)


def of_sequences(context, seed, heads, dtype, **how):
    """Two tokens of one sequence, of which one sees the other; one of another; one of none."""
    given = operands(context, seed, heads, dtype, 330, tokens=4, **how)
    at, sequences = np.array([258, 40, 257, -1]), np.array([1, 0, 1, 2])
    blocks = len(given.keys.numpy()) // BLOCK
    order = np.random.default_rng(seed).permutation(blocks)
    table = np.stack([np.roll(order, 3 * i) for i in range(4)])
    slots = table[sequences, at // BLOCK] * BLOCK + at % BLOCK
    slots[3] = 1 << 30  # in no row of the cache
    positions = context.from_ints(at)
    given.angles = positions.rope_table(context.from_numpy(np.full(heads.pairs, 0.5, "f4")))
    given.slot = context.from_ints(slots)
    given.places = [positions, context.from_ints(sequences), context.from_ints(table, 4, blocks)]
    return given


@pytest.mark.parametrize(
    ("heads", "dtype", "how"),
    [
        pytest.param(SHAPES[0], F16, {}, marks=rare),
        (SHAPES[1], F32, {"interleaved": True}),
        pytest.param(SHAPES[2], F32, {"eps": 0.1}, marks=rare),
    ],
    ids=str,
)
def test_tokens_of_several_sequences(eight_lanes, seed, heads, dtype, how):
    with Context(eight_lanes) as context:
        given = of_sequences(context, seed, heads, dtype)
        y = in_ranges(given, heads, **how).numpy()
        got = [y, given.keys.numpy(), given.values.numpy()]
    with Context(NumpyExecutor()) as context:
        given = of_sequences(context, seed, heads, dtype)
        want = [t.numpy() for t in given.apart(heads, **{"interleaved": False, **how})]
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a[:3], b[:3], rtol=1e-5 if dtype == F32 else 2**-10, atol=3e-5)
        if a.ndim == 2:
            np.testing.assert_allclose(a, b, rtol=1e-5 if dtype == F32 else 2**-10, atol=3e-5)


def layer(seed, *, value_apart=False, make=None):
    def build(context):
        make_operands = make or partial(operands, position=700)
        given = make_operands(context, seed, SHAPES[0], F16, filled=False)
        tokens = given.q.shape[0]
        if value_apart:
            given.value = other_value(context, SHAPES[0])
        q, key = (x.rope(given.angles, interleaved=False) for x in (given.q, given.key))
        keys = given.keys.set_rows(key.reshape(tokens, -1), given.slot)
        values = given.values.set_rows(given.value.contiguous().reshape(tokens, -1), given.slot)
        parts = paged_attention_splits(
            q, keys, values, *given.places, scores=SHAPES[0].scores(), splits=SPLITS
        )
        return [attention_merge(parts)]

    return build


RULE = [*RULES, "rope_attention_splits"]


@pytest.mark.parametrize(
    ("extras", "needed"),
    [((), 9), (("value",), 10), (("norms",), 11), (("sinks",), 10), (("value", "norms"), 12)],
    ids=str,
)
def test_devices_that_show_too_few_buffers_have_no_kernel(eight_lanes, seed, extras, needed):
    with Context(eight_lanes) as context:
        given = operands(context, seed, SHAPES[0], F16, 5)
        if "value" in extras:
            given.value = other_value(context, SHAPES[0])
        if "sinks" in extras:
            given.sinks = context.zeros(SHAPES[0].heads)
        node = of_ranges(given, SHAPES[0], eps=0.1 if "norms" in extras else None)
        for most in (needed - 1, needed):
            known = dataclasses.replace(eight_lanes.capabilities, max_storage_bindings=most)
            assert runs(node.call.op, node.launch, known) == (most == needed)


@pytest.mark.parametrize("value_apart", [False, pytest.param(True, marks=rare)])
def test_a_step_of_one_token_is_two_ops(eight_lanes, seed, monkeypatch, value_apart):
    build = layer(seed, value_apart=value_apart)
    fused, got = ran(eight_lanes, monkeypatch, RULE, build)
    _, want = ran(eight_lanes, monkeypatch, [], build)
    assert fused[-2:] == ["rope_attention_splits", "attention_merge"]
    assert not {"rope", "rope_put", "set_rows"} & set(fused)
    same_but_for_fused_sums(got, want)


@rare
def test_a_step_of_several_sequences_is_two_ops(eight_lanes, seed, monkeypatch):
    build = layer(seed, make=of_sequences)
    fused, got = ran(eight_lanes, monkeypatch, RULE, build)
    _, want = ran(eight_lanes, monkeypatch, [], build)
    assert fused[-2:] == ["rope_attention_splits", "attention_merge"]
    assert not {"rope", "rope_put", "set_rows"} & set(fused)
    same_but_for_fused_sums(got, want)


@pytest.mark.parametrize("lacks", [{"subgroups": False}, {"max_storage_bindings": 8}], ids=str)
def test_a_device_that_lacks_something_keeps_them_apart(eight_lanes, seed, monkeypatch, lacks):
    eight_lanes = eight_lanes.as_if(dataclasses.replace(eight_lanes.capabilities, **lacks))
    fused, _ = ran(eight_lanes, monkeypatch, RULE, layer(seed))
    assert "rope_attention_splits" not in fused
    with Context(eight_lanes) as context:
        given = operands(context, seed, SHAPES[0], F16, 5)
        with pytest.raises(DeviceError, match=r"rope_attention_splits: .* use rope_put and"):
            in_ranges(given, SHAPES[0]).numpy()
