from dataclasses import dataclass

import numpy as np
import pytest

from tests.ops.operands import LAYOUTS, tensor
from tests.shares import rare, rare_on
from wgpu_backend.dtypes import BF16, F16, F32, I32, Q4_0, Q8_0
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.attention.paged import (
    Pages,
    Scores,
    attention,
    paged_attention,
    paged_attention_splits,
)
from wgpu_backend.ops.attention.paged import paged_attention_reference as numpy_attention
from wgpu_backend.ops.attention.splits import attention_merge
from wgpu_backend.ops.shape.copying import concat

# Softmax and two sums in f32, in another order: 1e-6 of a value, squared.
LIMIT = 1e-11
OPTIONS: list[dict[str, float]] = [{}, {"window": 100}, {"softcap": 20.0}]


@dataclass
class Case:
    """Operands of an attention: sequences scattered over a cache, a few tokens of each."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    positions: np.ndarray
    sequences: np.ndarray
    table: np.ndarray
    block: int
    kv_heads: int

    @classmethod
    def random(
        cls, rng, *, lengths=(9, 40, 1), heads=4, kv_heads=2, cols=32, v_cols=0, block=16, tokens=2
    ):
        """`tokens` tokens at the end of each sequence; no block lies where its number says."""
        widest = max(-(-n // block) for n in lengths)
        blocks = len(lengths) * widest + 3
        order = rng.permutation(blocks)[: len(lengths) * widest]
        slots, v_cols = blocks * block, v_cols or cols
        positions = [range(max(n - tokens, 0), n) for n in lengths]
        count = sum(map(len, positions))
        mixed = rng.permutation(count)
        owner = np.repeat(np.arange(len(lengths)), [len(p) for p in positions])
        return cls(
            q=rng.standard_normal((count, heads, cols), "f4"),
            k=rng.standard_normal((slots, kv_heads * cols), "f4"),
            v=rng.standard_normal((slots, kv_heads * v_cols), "f4"),
            positions=np.concatenate(positions).astype("i4")[mixed],
            sequences=owner.astype("i4")[mixed],
            table=order.reshape(len(lengths), widest).astype("i4"),
            block=block,
            kv_heads=kv_heads,
        )

    def scores(self, **options):
        return Scores(self.block, self.q.shape[-1] ** -0.5, self.kv_heads, **options)

    def operands(self, ctx, k_type=F32, v_type=F32):
        places = (ctx.from_numpy(a) for a in (self.positions, self.sequences, self.table))
        return (
            tensor(ctx, self.q),
            tensor(ctx, self.k, k_type),
            tensor(ctx, self.v, v_type),
            *places,
        )

    def cached(self, ctx, k_type, v_type):
        """Operands with keys and values written into states of any type, positions as views."""
        q, k, v, positions, sequences, table = self.operands(ctx)
        slots = ctx.from_numpy(np.arange(len(self.k)))
        keys, values = (
            ctx.zeros(*x.shape, dtype=dtype).set_rows(x, slots)
            for x, dtype in ((k, k_type), (v, v_type))
        )
        places = Pages(positions, sequences, table, self.block).joined
        return q, keys, values, places.positions, places.sequences, places.table

    def build(self, k_type=F32, v_type=F32, **options):
        return lambda ctx: paged_attention(
            *self.operands(ctx, k_type, v_type), scores=self.scores(**options)
        )


@pytest.mark.parametrize("group", [1, 2, 3, 8])
@pytest.mark.parametrize("kv_heads", [1, 2])
def test_heads_share_keys(any_gpu, check, rng, kv_heads, group):
    case = Case.random(rng, heads=kv_heads * group, kv_heads=kv_heads)
    check(any_gpu, case.build(), limit=LIMIT)


@pytest.mark.parametrize(
    ("cols", "dtype"),
    [
        *((cols, F16) for cols in (4, 32, 64, 80, 128)),
        pytest.param(256, F16, marks=rare_on("wide")),
        *((cols, F32) for cols in (4, 80)),
        *(pytest.param(cols, F32, marks=rare) for cols in (32, 64, 128, 256)),
    ],
    ids=str,
)
def test_heads_of_every_size(any_gpu, check, rng, cols, dtype):
    case = Case.random(rng, cols=cols)
    check(any_gpu, case.build(dtype, dtype), limit=LIMIT)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cols", "v_cols"),
    [
        pytest.param(192, 128, marks=rare_on("wide")),
        pytest.param(4, 260, marks=rare_on("wide")),
        pytest.param(32, 64, marks=rare),
        pytest.param(64, 4, marks=rare),
    ],
)
def test_keys_and_values_of_different_sizes(any_gpu, check, rng, cols, v_cols):
    check(any_gpu, Case.random(rng, cols=cols, v_cols=v_cols).build(), limit=LIMIT)


@pytest.mark.parametrize(
    ("k_type", "v_type"),
    [(F16, F32), pytest.param(F32, F16, marks=rare_on("wide"))],
)
def test_keys_and_values_of_different_types(any_gpu, check, rng, k_type, v_type):
    check(any_gpu, Case.random(rng).build(k_type, v_type), limit=LIMIT)


@pytest.mark.parametrize("block", [1, 16, 32, 48])
@pytest.mark.parametrize("lengths", [(1,), (16, 17, 15), (65, 1, 3, 130), (1500,)], ids=str)
def test_sequences_of_any_length_over_scattered_blocks(any_gpu, check, rng, lengths, block):
    check(any_gpu, Case.random(rng, lengths=lengths, block=block).build(), limit=LIMIT)


@pytest.mark.parametrize("tokens", [1, 7, 40])
def test_a_prompt_sees_only_its_past(any_gpu, check, rng, tokens):
    check(any_gpu, Case.random(rng, lengths=(40, 33), tokens=tokens).build(), limit=LIMIT)


@pytest.mark.parametrize("window", [1, 3, 16, 64, 100, 1000])
@pytest.mark.parametrize("lengths", [(5, 70), (300,)], ids=str)
def test_a_window_hides_what_is_further_back(any_gpu, check, rng, lengths, window):
    check(any_gpu, Case.random(rng, lengths=lengths).build(window=window), limit=LIMIT)


def test_a_window_of_one_sees_its_own_value_only(gpu, rng):
    case = Case.random(rng, lengths=(40,), heads=2, kv_heads=2, tokens=1)
    with Context(gpu) as ctx:
        got = case.build(window=1)(ctx).numpy()
    slot = case.table[0, 39 // 16] * 16 + 39 % 16
    np.testing.assert_allclose(got[0].reshape(-1), case.v[slot], rtol=1e-6)


@pytest.mark.parametrize("softcap", [0.5, 30.0])
def test_a_softcap_bends_scores(any_gpu, check, rng, softcap):
    check(any_gpu, Case.random(rng).build(softcap=softcap), limit=LIMIT)


def test_scores_far_beyond_the_softcap_saturate(any_gpu, check, rng):
    case = Case.random(rng)
    case.q *= 1000
    check(any_gpu, case.build(softcap=2.0), limit=LIMIT)


def test_large_scores_do_not_overflow(any_gpu, check, rng):
    case = Case.random(rng)
    case.q *= 1e4
    # Scores of some 1e5 are off by 4e-3 in f32, by the order of their sums.
    check(any_gpu, case.build(), limit=1e-8)


@pytest.mark.parametrize("splits", [2, pytest.param(3, marks=rare), 7])
@pytest.mark.parametrize(
    ("lengths", "options"),
    [
        *(((1, 40, 3), options) for options in OPTIONS),
        *(((1500, 700), options) for options in OPTIONS[:2]),
        pytest.param((1500, 700), OPTIONS[2], marks=rare_on("wide")),
    ],
    ids=str,
)
def test_splits_joined_are_the_whole(any_gpu, check, rng, lengths, options, splits):
    case = Case.random(rng, lengths=lengths)

    def joined(ctx):
        operands = case.operands(ctx, F16, F16)
        return attention_merge(
            paged_attention_splits(*operands, splits=splits, scores=case.scores(**options))
        )

    check(any_gpu, joined, limit=LIMIT)


@pytest.mark.slow
def test_no_tokens_attend_to_nothing(any_gpu, rng):
    """A kernel that looked for their last would look at all numbers there are."""
    case = Case.random(rng)
    with Context(any_gpu) as ctx:
        q, k, v, _, _, table = case.operands(ctx)
        positions, sequences = ctx.from_ints([]), ctx.from_ints([])
        y = q.slice(0, 0, 0).paged_attention(
            k, v, positions, sequences, table, scores=case.scores()
        )
        assert y.numpy().size == 0


@pytest.mark.parametrize("splits", [1, 4])
def test_padding_gives_zeros(any_gpu, check, rng, splits):
    case = Case.random(rng, lengths=(9, 40, 300))
    case.positions[[0, 3]] = -1
    case.sequences[3] = -1

    def attended(ctx):
        if splits == 1:
            return case.build()(ctx)
        operands = case.operands(ctx)
        return attention_merge(
            paged_attention_splits(*operands, splits=splits, scores=case.scores())
        )

    check(any_gpu, attended, limit=LIMIT)
    with Context(any_gpu) as ctx:
        assert not attended(ctx).numpy()[[0, 3]].any()


@pytest.mark.parametrize("longest", [100, 1500])
def test_attention_splits_long_caches_and_not_short_ones(any_gpu, check, rng, longest):
    case = Case.random(rng, lengths=(longest,), tokens=1)

    def attended(ctx):
        q, k, v, *places = case.operands(ctx)
        found = attention(
            q, k, v, Pages(*places, case.block), scale=0.2, kv_heads=case.kv_heads, longest=longest
        )
        assert found.call.op is (attention_merge if longest > 1000 else paged_attention)
        return found

    check(any_gpu, attended, limit=LIMIT)


@pytest.mark.parametrize(
    ("k_type", "v_type"),
    [
        (Q8_0, Q4_0),
        pytest.param(F16, Q8_0, marks=rare_on("wide")),
        pytest.param(Q8_0, Q8_0, marks=rare),
        pytest.param(Q4_0, Q4_0, marks=rare),
    ],
    ids=str,
)
def test_a_cache_in_blocks_is_read_as_it_was_rounded(any_gpu, check, rng, k_type, v_type):
    case = Case.random(rng, heads=8, cols=64, v_cols=96)
    check(
        any_gpu,
        lambda ctx: paged_attention(*case.cached(ctx, k_type, v_type), scores=case.scores()),
        limit=LIMIT,
    )


@pytest.mark.parametrize(
    ("cols", "dtype"),
    [
        pytest.param(32, Q8_0, marks=rare_on("wide")),
        pytest.param(96, Q4_0, marks=rare_on("wide")),
        pytest.param(32, Q4_0, marks=rare),
        pytest.param(96, Q8_0, marks=rare),
        *(
            pytest.param(cols, dtype, marks=rare)
            for cols in (64, 128, 160, 192, 256)
            for dtype in (Q8_0, Q4_0)
        ),
    ],
    ids=str,
)
def test_a_cache_in_blocks_takes_heads_of_whole_blocks(any_gpu, check, rng, cols, dtype):
    """Any number of them, as llama.cpp does: a position may then be an odd number of blocks."""
    for kv_heads in (1, 2, 3, 5, 8):
        case = Case.random(rng, heads=kv_heads, kv_heads=kv_heads, cols=cols)
        check(
            any_gpu,
            lambda ctx, case=case: paged_attention(
                *case.cached(ctx, dtype, dtype), scores=case.scores()
            ),
            limit=LIMIT,
        )


@pytest.mark.parametrize("options", [{}, {"window": 70}, {"softcap": 20.0}], ids=str)
def test_splits_of_a_cache_in_blocks(full, check, rng, options):
    case = Case.random(rng, lengths=(300, 40), cols=32, kv_heads=2)

    def joined(ctx):
        operands = case.cached(ctx, Q8_0, Q4_0)
        return attention_merge(
            paged_attention_splits(*operands, splits=3, scores=case.scores(**options))
        )

    check(full, joined, limit=LIMIT)


@pytest.mark.parametrize("tokens", [1, 3])
def test_a_cache_in_blocks_fits_every_devices_bindings(gpu, check, rng, tokens):
    """Two bindings for keys, two for values: `attention` joins positions and sequences."""
    case = Case.random(rng, lengths=(9, 40), tokens=tokens)

    def attended(ctx):
        q, k, v, *_ = case.cached(ctx, Q8_0, Q8_0)
        pages = Pages(*(case.operands(ctx)[3:]), case.block)
        return attention(q, k, v, pages, scale=0.2, kv_heads=case.kv_heads, longest=40)

    check(gpu, attended, limit=LIMIT)


def test_heads_that_are_no_whole_blocks_are_refused(full, rng):
    case = Case.random(rng, cols=48, kv_heads=4)
    with Context(full) as ctx:
        operands = case.cached(ctx, Q8_0, Q8_0)
        with pytest.raises(
            ShapeError, match="a head of k has 48 values, q8_0 needs multiples of 32"
        ):
            paged_attention(*operands, scores=case.scores())


def test_a_cache_in_blocks_needs_places_in_one_buffer(full, rng):
    case = Case.random(rng)
    with Context(full) as ctx:
        q, k, v, *_ = case.cached(ctx, Q8_0, Q8_0)
        with pytest.raises(
            ShapeError, match=r"lie in 9 buffers, needs at most 8; .* of Pages\.joined"
        ):
            paged_attention(q, k, v, *case.operands(ctx)[3:], scores=case.scores())


@pytest.mark.parametrize("tokens", [5, 23])
def test_long_prompts_are_cut_into_dispatches(full, check, rng, monkeypatch, tokens):
    """So that none is longer than a driver's watchdog allows."""
    case = Case.random(rng, lengths=(40, 33), tokens=tokens)

    def attended(ctx):
        q, k, v, *places = case.operands(ctx)
        pages = Pages(*places, case.block)
        found = attention(q, k, v, pages, scale=0.2, kv_heads=case.kv_heads, longest=40)
        assert found.call.op is concat
        return found

    monkeypatch.setattr("wgpu_backend.ops.attention.paged.MOST_WORK", 2 * 4 * 40 * 64 * 8)
    check(full, attended, limit=LIMIT)


def test_the_reference_is_plain_attention(rng):
    """The reference itself, against the formula on one sequence that lies in order."""
    q, k, v = (rng.standard_normal((9, 1, 8)) for _ in range(3))
    scores = q[:, 0] @ k[:, 0].T * 0.3
    scores[np.triu_indices(9, 1)] = -np.inf
    weights = np.exp(scores)
    want = weights / weights.sum(axis=1, keepdims=True) @ v[:, 0]
    places = np.arange(9), np.zeros(9, "i4"), np.zeros((1, 1), "i4")
    got = numpy_attention(q, k[:, 0], v[:, 0], *places, scores=Scores(16, 0.3, 1))
    np.testing.assert_allclose(got[:, 0], want, rtol=1e-5, atol=1e-6)


def test_queries_may_be_part_of_a_joined_projection(any_gpu, check, rng):
    case = Case.random(rng, heads=4, kv_heads=2, cols=32)
    joined = np.concatenate([np.zeros((len(case.q), 5)), case.q.reshape(len(case.q), -1)], axis=1)

    def attended(ctx):
        q, *rest = case.operands(ctx)
        q = ctx.from_numpy(joined).slice(1, 5, 5 + 4 * 32).reshape(*q.shape)
        return paged_attention(q, *rest, scores=case.scores())

    check(any_gpu, attended, limit=LIMIT)


@pytest.mark.parametrize("dtype", [F16, pytest.param(BF16, marks=rare_on("wide"))], ids=str)
def test_queries_of_half_precision(any_gpu, check, rng, dtype):
    case = Case.random(rng)

    def attended(ctx):
        _, *rest = case.operands(ctx)
        return paged_attention(tensor(ctx, case.q, dtype), *rest, scores=case.scores())

    check(any_gpu, attended, limit=LIMIT)


@pytest.mark.parametrize("layout", ["stepped", "sliced", "permuted", "shifted"])
def test_places_may_be_views(gpu, check, rng, layout):
    case = Case.random(rng)

    def attended(ctx):
        q, k, v, *_ = case.operands(ctx)
        arrays = case.positions, case.sequences, case.table
        places = (LAYOUTS[layout](ctx, a, I32) for a in arrays)
        return paged_attention(q, k, v, *places, scores=case.scores())

    check(gpu, attended, limit=LIMIT)


def test_keys_written_in_the_same_graph_are_seen(gpu, check, rng):
    case = Case.random(rng, lengths=(17,), tokens=1)
    slots = np.arange(len(case.k))

    def attended(ctx):
        q, _, v, *places = case.operands(ctx)
        cache = ctx.zeros(*case.k.shape, dtype=F16)
        cache = cache.set_rows(tensor(ctx, case.k), ctx.from_numpy(slots))
        return paged_attention(q, cache, v, *places, scores=case.scores())

    check(gpu, attended, limit=LIMIT)


def small(ctx, **changes):
    """Operands and options that fit, but for `changes`."""
    operands = {
        "q": ctx.zeros(2, 4, 8),
        "k": ctx.zeros(32, 16),
        "v": ctx.zeros(32, 16),
        "positions": ctx.zeros(2, dtype=I32),
        "sequences": ctx.zeros(2, dtype=I32),
        "table": ctx.zeros(1, 2, dtype=I32),
    }
    scores = Scores(16, 1.0, changes.pop("kv_heads", 2))
    return paged_attention(*(operands | changes).values(), scores=scores)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kv_heads": 3}, "4 query heads, not a multiple of 3 cache heads"),
        ({"kv_heads": 0}, "4 query heads, not a multiple of 0 cache heads"),
        ({"k": (32, 12)}, "keys have 12 values a slot, 2 heads of 8 need 16"),
        ({"v": (32, 15)}, "values have 15 a slot, not 2 heads"),
        ({"v": (32, 12)}, "values have 12 a slot, not 2 heads of multiples of 4"),
        ({"q": (2, 4, 6), "k": (32, 12)}, "2 heads of 6 need 12; heads are multiples of 4"),
        ({"q": (2, 32)}, r"q is \(2, 32\) with 2 axes, needs 3 to 3"),
        ({"k": (2, 16, 16)}, "k .* 3 axes, needs 2 to 2"),
        ({"positions": (3,)}, r"positions is \(3,\), q has 2 tokens"),
        ({"sequences": (1,)}, r"sequences is \(1,\), q has 2 tokens"),
        ({"table": (2,)}, "table .* 1 axes, needs 2 to 2"),
        ({"table": (0, 2)}, r"table is \(0, 2\), needs at least 1 block"),
        ({"v": (31, 16)}, "keys have 32 slots, values 31"),
    ],
    ids=str,
)
def test_shapes_that_do_not_fit_are_refused(full, changes, message):
    with Context(full) as ctx:
        made = {
            name: ctx.zeros(*shape, dtype=F32 if name in "qkv" else I32)
            if isinstance(shape, tuple)
            else shape
            for name, shape in changes.items()
        }
        with pytest.raises(ShapeError, match=message):
            small(ctx, **made)


@pytest.mark.parametrize(
    ("name", "value"), [("positions", 10**6), ("sequences", 99), ("table", 2**20), ("table", -1)]
)
def test_places_outside_the_cache_harm_nothing(any_gpu, rng, name, value):
    """What comes out is undefined; the kernels run without the driver's bounds checks."""
    case = Case.random(rng)
    getattr(case, name)[...] = value
    with Context(any_gpu) as ctx:
        assert np.isfinite(case.build()(ctx).numpy()).all()


def test_types_that_do_not_fit_are_refused(full):
    with Context(full) as ctx:
        with pytest.raises(DTypeError, match="k is bf16, needs f32, f16"):
            small(ctx, k=ctx.zeros(32, 16, dtype=BF16))
        with pytest.raises(DTypeError, match="table is f32, needs i32"):
            small(ctx, table=ctx.zeros(1, 2))
        with pytest.raises(DTypeError, match="q is i32, needs f32"):
            small(ctx, q=ctx.zeros(2, 4, 8, dtype=I32))


def test_views_of_a_cache_are_refused(full):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match=r"k is a view of \(32, 16\), needs the whole cache"):
            small(ctx, k=ctx.zeros(33, 16).slice(0, 1, 33))
        with pytest.raises(ShapeError, match="lie 4 apart, need 1; call contiguous"):
            small(ctx, q=ctx.zeros(2, 8, 4).permute(0, 2, 1))


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 8)], ids=str)
def test_a_merge_needs_splits(full, shape):
    with Context(full) as ctx, pytest.raises(ShapeError, match="axes, needs 4 to 4"):
        attention_merge(ctx.zeros(*shape))
