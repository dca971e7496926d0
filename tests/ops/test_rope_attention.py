"""Rotation, cache write and attention of one token in one op, and the rules that make it."""

import dataclasses
from dataclasses import dataclass

import numpy as np
import pytest

import wgpu_backend as wb
from tests.ops.fused import ran, same_but_for_fused_sums, same_but_for_what_is_turned
from tests.shares import rare
from wgpu_backend.dtypes import F16, F32
from wgpu_backend.errors import DeviceError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops.attention.paged import Scores
from wgpu_backend.ops.attention.rope_attention import NORMS, lie_together, rope_attention

BLOCK = 32


@dataclass(frozen=True)
class Heads:
    """Shape of a layer's attention."""

    heads: int
    kv_heads: int
    cols: int
    v_cols: int
    pairs: int

    @property
    def sizes(self):
        """Values of all queries, keys and values of a token."""
        return self.heads * self.cols, self.kv_heads * self.cols, self.kv_heads * self.v_cols

    def scores(self, **changes):
        return Scores(block=BLOCK, scale=0.3, kv_heads=self.kv_heads, **changes)


SHAPES = [
    Heads(14, 2, 64, 64, 32),
    Heads(3, 3, 40, 8, 12),
    Heads(33, 3, 32, 96, 16),  # tiles of rows that share a head
    Heads(8, 1, 8, 40, 4),
]


# The kernel for hardware takes ten seconds to compile on a rasteriser.
@pytest.fixture(params=["full", pytest.param("wide", marks=rare)])
def lanes_or_tiles(request, executors):
    """Kernels of rasterisers and of hardware."""
    return _able(executors(request.param))


@pytest.fixture
def able(full):
    """The full device, where it has a kernel for it."""
    return _able(full)


def _able(executor):
    if not executor.capabilities.compiles_tiles:
        pytest.skip("its kernel takes such a device gigabytes to compile")
    return executor


@pytest.fixture
def seed(rng):
    """A number from which the same operands are made again."""
    return int(rng.integers(1 << 30))


@dataclass
class Operands:
    """Operands of one token at a position, with what the cache holds before it."""

    q: Tensor
    key: Tensor
    value: Tensor
    angles: Tensor
    slot: Tensor
    keys: Tensor
    values: Tensor
    places: list[Tensor]
    norms: list[Tensor]
    sinks: Tensor | None = None

    def fused(self, heads, interleaved, *, eps=None, **changes):
        first = (self.q, self.key, self.value, self.angles, self.slot, self.keys, self.values)
        norms = {} if eps is None else {"eps": eps, **dict(zip(NORMS, self.norms, strict=True))}
        scores = heads.scores(**changes)
        how = {"interleaved": interleaved, "scores": scores, "sinks": self.sinks, **norms}
        return rope_attention(*first, *self.places, **how)

    def apart(self, heads, interleaved, *, eps=None, **changes):
        """The same by the ops that models call."""
        tokens, q, key = len(self.slot.numpy()), self.q, self.key
        if eps is not None:
            q, key = (x.rms_norm(w, eps=eps) for x, w in zip((q, key), self.norms, strict=True))
        q, key = (x.rope(self.angles, interleaved=interleaved) for x in (q, key))
        value = self.value.contiguous().reshape(tokens, -1)
        keys = self.keys.set_rows(key.reshape(tokens, -1), self.slot)
        values = self.values.set_rows(value, self.slot)
        scores = heads.scores(**changes)
        y = q.paged_attention(keys, values, *self.places, scores=scores, sinks=self.sinks)
        return y, keys, values


def operands(context, seed, heads, dtype, position, *, tokens=1, slot=None, filled=True):
    rng = np.random.default_rng(seed)
    blocks = -(-(position + tokens) // BLOCK) + 1
    table = rng.permutation(blocks)
    wide = context.from_numpy(rng.standard_normal((tokens, 4 + sum(heads.sizes)))).tanh()
    ends = 4 + np.cumsum([0, *heads.sizes])
    counts = heads.heads, heads.kv_heads, heads.kv_heads
    parts = [
        wide.slice(1, int(a), int(b)).reshape(tokens, n, -1)
        for a, b, n in zip(ends, ends[1:], counts, strict=False)
    ]
    at = np.arange(position, position + tokens)
    own = table[at // BLOCK] * BLOCK + at % BLOCK
    positions = context.from_ints(at)
    frequencies = context.from_numpy(np.float32(0.5) ** np.arange(heads.pairs))
    caches = [context.zeros(blocks * BLOCK, size, dtype=dtype) for size in heads.sizes[1:]]
    if filled:
        every = context.from_ints(np.arange(blocks * BLOCK))
        rows = [rng.standard_normal(cache.shape).astype(np.float32) for cache in caches]
        caches = [
            c.set_rows(context.from_numpy(r), every) for c, r in zip(caches, rows, strict=True)
        ]
    slots = context.from_ints(own if slot is None else [slot])
    places = [positions, context.from_ints([0] * tokens), context.from_ints(table, 1, blocks)]
    angles = positions.rope_table(frequencies)
    norms = [context.from_numpy(rng.uniform(0.2, 3, heads.cols).astype("f4")) for _ in NORMS]
    return Operands(*parts, angles, slots, *caches, places, norms)


def both(
    executor, seed, heads, dtype, position, *, interleaved=False, slot=None, sinks=False, **changes
):
    """Result, keys and values of the one op, and of the ops it stands for."""
    with Context(executor) as context:
        given = operands(context, seed, heads, dtype, position, slot=slot)
        given.sinks = context.from_numpy(np.linspace(-1, 1, heads.heads)) if sinks else None
        y = given.fused(heads, interleaved, **changes).numpy()
        got = [y, given.keys.numpy(), given.values.numpy()]
    with Context(executor) as context:
        given = operands(context, seed, heads, dtype, position, slot=slot)
        given.sinks = context.from_numpy(np.linspace(-1, 1, heads.heads)) if sinks else None
        want = [t.numpy() for t in given.apart(heads, interleaved, **changes)]
    return got, want


@pytest.mark.slow
@pytest.mark.parametrize("eps", [None, 0.1])
def test_the_kernel_for_hardware(executors, seed, eps):
    got, want = both(executors("wide"), seed, SHAPES[2], F16, 70, eps=eps)
    if eps is None:
        same_but_for_what_is_turned(got, want)
        return
    for a, b in zip(got, want, strict=True):
        # Another order of a norm's sum may take a half of the cache to its neighbour.
        np.testing.assert_allclose(a, b, rtol=2**-10)


@pytest.mark.parametrize(
    ("heads", "dtype"), list(zip(SHAPES, [F16, F32, F32, F32], strict=True)), ids=str
)
def test_norms_of_heads_come_first(lanes_or_tiles, seed, heads, dtype):
    got, want = both(lanes_or_tiles, seed, heads, dtype, 40, eps=0.1, interleaved=heads.cols > 32)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5 if dtype == F32 else 2**-10, atol=1e-6)


@pytest.mark.parametrize(
    ("heads", "dtype"),
    list(zip([SHAPES[0], *SHAPES], [F32, F16, F32, F16, F16], strict=True)),
    ids=str,
)
@pytest.mark.parametrize("position", [0, 3, 257])
def test_as_one_after_the_other(lanes_or_tiles, seed, heads, dtype, position):
    got, want = both(lanes_or_tiles, seed, heads, dtype, position)
    same_but_for_what_is_turned(got, want)


@pytest.mark.parametrize(
    "changes",
    [
        {"interleaved": True},
        {"window": 33},
        {"softcap": 2.0},
        {"sinks": True, "alibi": 8.0},
        {"slot": -1},
        {"slot": 1 << 20},
    ],
    ids=str,
)
def test_options(lanes_or_tiles, seed, changes):
    got, want = both(lanes_or_tiles, seed, SHAPES[0], F16, 70, **changes)
    same_but_for_what_is_turned(got, want)


@pytest.mark.parametrize("heads", SHAPES[:2], ids=str)
@pytest.mark.parametrize(("interleaved", "eps"), [(False, None), (True, None), (False, 0.1)])
def test_the_reference(lanes_or_tiles, seed, heads, interleaved, eps):
    made = []
    for executor in (lanes_or_tiles, NumpyExecutor()):
        with Context(executor) as context:
            given = operands(context, seed, heads, F32, 40)
            y = given.fused(heads, interleaved, eps=eps).numpy()
            made.append((y, given.keys.numpy(), given.values.numpy()))
    for a, b in zip(*made, strict=True):
        np.testing.assert_allclose(a, b, atol=2e-6, rtol=1e-5)


def test_refuses_what_is_not_one_token_of_one_tensor(lanes_or_tiles, seed):
    with Context(lanes_or_tiles) as context:
        given = operands(context, seed, SHAPES[0], F16, 5, tokens=2)
        with pytest.raises(ShapeError, match=r"rope_attention: .* needs one token, and parts of"):
            given.fused(SHAPES[0], False)
        given = operands(context, seed, SHAPES[0], F16, 5)
        slot, given.slot = given.slot, context.from_ints(range(5)).slice(0, 4, 5)
        with pytest.raises(ShapeError, match=r"angles and slot begin at 0 and 4 of .* need 0"):
            given.fused(SHAPES[0], False)
        given.slot = slot
        norms, given.norms = given.norms, [given.norms[0], context.zeros(32)]
        with pytest.raises(
            ShapeError,
            match=r"key_norm is \(32,\) f32, heads have 64 values; needs weights for both",
        ):
            given.fused(SHAPES[0], False, eps=0.1)
        given.norms = [norms[0], None]
        with pytest.raises(ShapeError, match=r"query_norm is .*; needs weights for both"):
            given.fused(SHAPES[0], False, eps=0.1)
        given.key = given.key.contiguous()
        with pytest.raises(ShapeError, match=r"rope_attention: .* needs one token, and parts of"):
            given.fused(SHAPES[0], False)


def test_heads_of_one_tensor_lie_together_if_their_tokens_have_one_stride():
    with wb.context(device="cpu") as ctx:
        rows = ctx.zeros(4, 6, 8)
        q, key = rows[:, :4], rows[:, 4:]
        assert lie_together(q, key)
        assert lie_together(q[:1], rows.reshape(2, 12, 8)[:1, 4:6])
        assert not lie_together(q[:2], rows.reshape(2, 12, 8)[:, 4:6])
        assert not lie_together(q, ctx.zeros(4, 2, 8))


def test_a_device_without_the_kernel_says_so(executors, seed):
    with Context(executors("baseline")) as context:
        given = operands(context, seed, SHAPES[0], F16, 5)
        with pytest.raises(DeviceError, match=r"rope_attention: .* use rope_put, and paged_att"):
            given.fused(SHAPES[0], False).numpy()


RULES = ["rope_put", "rope_attention"]


def other_value(context, heads):
    """Value of a token in a tensor of its own."""
    values = np.linspace(-2, 2, heads.kv_heads * heads.v_cols, dtype="f4")
    return context.from_numpy(values.reshape(1, heads.kv_heads, -1)).tanh()


def layer(seed, *, tokens=1, wanted=(), eps=None, norms=list, value_apart=False):
    def build(context):
        given = operands(context, seed, SHAPES[0], F16, 40, tokens=tokens, filled=False)
        given.norms = norms(given.norms)
        if value_apart:
            given.value = other_value(context, SHAPES[0])
        y, keys, _ = given.apart(SHAPES[0], False, eps=eps)
        others = {"queries": given.q.tanh(), "keys": keys.tanh()}
        return [y, *(others[name] for name in wanted)]

    return build


def test_a_step_of_one_token_is_one_op(lanes_or_tiles, seed, monkeypatch):
    fused, got = ran(lanes_or_tiles, monkeypatch, RULES, layer(seed))
    apart, want = ran(lanes_or_tiles, monkeypatch, [], layer(seed))
    assert fused.count("rope_attention") == 1
    assert not {"rope", "rope_put", "paged_attention"} & set(fused)
    assert {"rope", "set_rows", "paged_attention"} <= set(apart)
    same_but_for_fused_sums(got, want)


def test_a_value_may_be_of_another_tensor(lanes_or_tiles, seed, monkeypatch):
    fused, got = ran(lanes_or_tiles, monkeypatch, RULES, layer(seed, value_apart=True))
    _, want = ran(lanes_or_tiles, monkeypatch, [], layer(seed, value_apart=True))
    assert fused.count("rope_attention") == 1
    assert not {"rope_put", "paged_attention"} & set(fused)
    same_but_for_fused_sums(got, want)


def test_a_step_with_norms_of_heads_is_one_op(lanes_or_tiles, seed, monkeypatch):
    fused, got = ran(lanes_or_tiles, monkeypatch, RULES, layer(seed, eps=0.1))
    apart, want = ran(lanes_or_tiles, monkeypatch, [], layer(seed, eps=0.1))
    assert fused.count("rope_attention") == 1
    assert not {"rms_norm", "rope", "rope_put", "paged_attention"} & set(fused)
    assert apart.count("rms_norm") == 2
    np.testing.assert_allclose(got[0], want[0], rtol=2**-10, atol=1e-6)


@pytest.mark.parametrize(
    "norms",
    [
        lambda both: [both[0].cast(dtype=F16), both[1]],
        lambda both: [both[0], None],
        lambda both: [w.concat(w, axis=0).slice(0, 64, 128) for w in both],
    ],
)
def test_norms_that_the_kernel_does_not_make_stay_apart(able, seed, monkeypatch, norms):
    fused, got = ran(able, monkeypatch, RULES, layer(seed, eps=0.1, norms=norms))
    _, want = ran(able, monkeypatch, [], layer(seed, eps=0.1, norms=norms))
    assert fused.count("rms_norm") == 2
    assert "rope_put" in fused
    same_but_for_fused_sums(got, want)


def test_too_few_bindings_keep_norms_apart(able, seed, monkeypatch):
    ten, nine = (
        able.as_if(dataclasses.replace(able.capabilities, max_storage_bindings=most))
        for most in (10, 9)
    )
    fused, _ = ran(ten, monkeypatch, RULES, layer(seed, eps=0.1))
    assert "rope_attention" not in fused
    assert "rope_attention" in ran(nine, monkeypatch, RULES, layer(seed))[0]
    assert "rope_attention" not in ran(nine, monkeypatch, RULES, layer(seed, value_apart=True))[0]
    with Context(ten) as context:
        given = operands(context, seed, SHAPES[0], F16, 5)
        with pytest.raises(DeviceError, match=r"binds 10 buffers at once, needs 11, "):
            given.fused(SHAPES[0], False, eps=0.1).numpy()


@pytest.mark.parametrize("kwargs", [{"tokens": 2}, {"wanted": ["queries"]}])
def test_several_tokens_and_what_others_read_stay_apart(lanes_or_tiles, seed, monkeypatch, kwargs):
    fused, got = ran(lanes_or_tiles, monkeypatch, RULES, layer(seed, **kwargs))
    _, want = ran(lanes_or_tiles, monkeypatch, [], layer(seed, **kwargs))
    assert "rope_attention" not in fused
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


def test_keys_may_be_read_behind_it(lanes_or_tiles, seed, monkeypatch):
    fused, got = ran(lanes_or_tiles, monkeypatch, RULES, layer(seed, wanted=["keys"]))
    _, want = ran(lanes_or_tiles, monkeypatch, [], layer(seed, wanted=["keys"]))
    assert fused.index("rope_attention") < len(fused) - 1 - fused[::-1].index("tanh")
    same_but_for_what_is_turned(got, want)


def test_a_device_of_the_baseline_keeps_them_apart(executors, seed, monkeypatch):
    fused, _ = ran(executors("baseline"), monkeypatch, RULES, layer(seed))
    assert "rope_put" in fused
    assert "rope_attention" not in fused
