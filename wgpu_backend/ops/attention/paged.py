"""Attention over a paged cache: the op, and its parallel form for long caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.attention.paged_checks import (
    MOST_BUFFERS,
    PLACES,
    buffers,
    require_buffers,
    require_operands,
)
from wgpu_backend.ops.attention.paged_kernels import select_tiles
from wgpu_backend.ops.attention.paged_options import Scores, Temperature
from wgpu_backend.ops.attention.splits import (
    attention_merge,
    in_first_split,
    useful_splits,
)
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array, takes_f16
from wgpu_backend.ops.shape.copying import concat, contiguous
from wgpu_backend.ops.shape.views import make_view


@dataclass(frozen=True)
class Pages:
    """The position of each token, the cache blocks of each sequence, and how far tokens see.

    Parameters
    ----------
    positions : (tokens,), i32
        Position of each token in its sequence, counted as `table` counts; -1 attends to nothing.
    sequences : (tokens,), i32
        Row of `table` that each token belongs to.
    table : (sequences, blocks), i32
        Block of the cache that holds positions ``block * i`` to ``block * (i + 1) - 1``.
    block : int
        Positions in a block.
    ends : (tokens,), i32, or None
        Last position that each token sees, where that is after its own: of an image's tokens the
        last of the image, of an encoder's the last of the text. None where all see their past.
    """

    positions: Node
    sequences: Node
    table: Node
    block: int
    ends: Node | None = None

    @property
    def operands(self) -> dict[str, Node]:
        """Return the tensors by the parameter names of `paged_attention`."""
        ends = {} if self.ends is None else {"ends": self.ends}
        return {**{name: getattr(self, name) for name in (*PLACES, "table")}, **ends}

    @cached_property
    def joined(self) -> Pages:
        """Return these pages with positions, sequences and ends in one buffer.

        Keys and values in blocks take two bindings each, and a kernel has eight.
        """
        return self._in_one(*PLACES, "ends")

    @cached_property
    def all_joined(self) -> Pages:
        """Return these pages with block table, positions, sequences and ends in one buffer."""
        return self._in_one("table", *PLACES, "ends")

    def _in_one(self, *names: str) -> Pages:
        given = self.operands
        nodes = {name: given[name] for name in names if name in given}
        apart = len({node.storage for node in nodes.values()}) > 1
        return replace(self, **in_one_buffer(nodes)) if apart else self

    def part(self, start: int, stop: int) -> Pages:
        """Return the pages of tokens `start` to `stop`."""
        tokens = {
            name: slice_rows(n, start, stop) for name, n in self.operands.items() if name != "table"
        }
        return replace(self, **tokens)


def slice_rows(node: Node, start: int, stop: int) -> Node:
    """Return rows `start` to `stop` of a node; the node itself if these are all rows."""
    spec = node.spec
    stop = min(stop, spec.shape[0])
    if start == 0 and stop == spec.shape[0]:
        return node
    shape = (stop - start, *spec.shape[1:])
    return make_view(
        node, Spec(shape, spec.dtype, spec.strides, spec.offset + start * spec.strides[0])
    )


def in_one_buffer(nodes: Mapping[str, Node]) -> dict[str, Node]:
    """Return the same values as views of one tensor, in this order."""
    dense = [node if node.spec.is_dense else contiguous(node) for node in nodes.values()]
    rows = [make_view(n, replace(n.spec, shape=(n.spec.size,), strides=(1,))) for n in dense]
    joined = reduce(lambda a, b: concat(a, b, axis=0), rows)
    found, start = dict[str, Node](), 0
    for name, node in nodes.items():
        spec = Spec.dense(node.spec.shape, node.spec.dtype)
        found[name] = make_view(joined, replace(spec, offset=start))
        start += node.spec.size
    return found


# Rows of a tile, about: splits are counted before the kernel is chosen.
TILE_ROWS = 8
# Operands that may be missing, and the parameters that say they are there.
OPTIONAL = {"ends": "ENDED", "sinks": "SINKS", "bias": "BIASED"}
# Bytes and operations of one dispatch, which nothing cuts any more: 0.7 s of a GPU with 100 G/s,
# where drivers allow 2 s. Fewer leave a large card idle: 32 tokens behind 32,768 positions.
MOST_WORK = 1 << 36


def attention(
    q: Node,
    k: Node,
    v: Node | None,
    pages: Pages,
    *,
    scale: float,
    kv_heads: int,
    longest: int,
    window: int = 0,
    softcap: float = 0.0,
    causal: bool = True,
    chunk: int = 0,
    symmetric_window: int = 0,
    alibi: float = 0.0,
    temperature: Temperature | None = None,
    sinks: Node | None = None,
    bias: Node | None = None,
    v_cols: int = 0,
) -> Node:
    """Attend with queries to the cached keys and values of their sequences, in f32.

    A token sees its past, shortened by `window` and `chunk`, and everything up to its end if
    `pages` has ends. With ``causal=False`` it sees what is before its end, shortened by
    `symmetric_window`.

    Source: Vaswani et al. 2017, eq. 1; the online softmax is Milakov & Gimelshein 2018, alg. 3;
    splitting the positions is Dao et al. 2023, "Flash-Decoding".

    Parameters
    ----------
    q : (tokens, heads, k_cols)
        f32.
    k : (slots, kv_heads * k_cols)
        f32, f16, q8_0 or q4_0.
    v : (slots, kv_heads * v_cols), f32, f16, q8_0 or q4_0, or None
        Blocks need heads of a multiple of 32 values, others of a multiple of 4. None where values
        are the first `v_cols` columns of keys.
    scale : float
        Factor of every score.
    kv_heads : int
        Heads of the cache; divides `heads`, neighbours share one.
    longest : int
        No sequence is longer than this many positions; decides how far the work is split.
    window : int
        Positions of its past that a token sees, itself included; 0 for all.
    softcap : float
        Scores become ``softcap * tanh(score / softcap)``; 0 leaves them.
    causal : bool
        Whether tokens see up to themselves at least; otherwise `pages` has ends, and they see up
        to these.
    chunk : int
        A token sees no past before the multiple of this at or before its position (Llama 4); 0
        sees all.
    symmetric_window : int
        Positions up to half of this before and after a token are seen, itself besides
        (ModernBERT); 0 for all.
    alibi : float
        Scores fall with the distance of positions, by slopes of ``2 ** (-alibi * i / heads)`` for
        the heads ``i = 1, 2, …`` (Press et al. 2022, §3); 0 leaves them. Where heads are no power
        of two, those beyond one have the slopes between, the odd ones of twice as many heads.
    temperature : Temperature or None
        Factor of queries by their position.
    sinks : (heads,), f32, f16 or bf16, or None
        Further score of each head, which has no value (Xiao et al. 2023, eq. 2).
    bias : (heads, 2 * reach + 1), f32, f16 or bf16, or None
        Added to scores by the distance of a position from the token, ``-reach … reach``; those
        further away have the bias of `reach` (Raffel et al. 2020, §2.1).
    v_cols : int
        Columns of keys that are values, where `v` is None: DeepSeek-AI 2024, "DeepSeek-V2", §2.1.

    Returns
    -------
    (tokens, heads, v_cols), f32.

    Raises
    ------
    ShapeError, DTypeError
        Operands do not belong together, or options exclude each other.
    """
    scores = Scores(
        pages.block, scale, kv_heads, window, softcap,
        causal=causal, chunk=chunk, symmetric_window=symmetric_window, alibi=alibi,
        temperature=temperature, v_cols=v_cols,
    )  # fmt: skip
    terms = {name: node for name, node in (("sinks", sinks), ("bias", bias)) if node is not None}
    v = k if v is None else v
    pages, terms = _bindable(pages, {"q": q, "k": k, "v": v}, terms)
    # Tokens of an image see to its end, which may be outside their window.
    seen = longest if causal and pages.ends is not None else scores.seen(longest)
    step = _most_tokens(q, v, scores, seen)
    parts = [
        attend_in_splits(
            slice_rows(q, at, at + step), k, v, pages.part(at, at + step),
            scores=scores, seen=seen, **terms,
        )
        for at in range(0, max(q.spec.shape[0], 1), step)
    ]  # fmt: skip
    return reduce(lambda a, b: concat(a, b, axis=0), parts)


def _bindable(
    pages: Pages, others: Mapping[str, Node], terms: dict[str, Node]
) -> tuple[Pages, dict[str, Node]]:
    """Return pages, sinks and bias in few enough buffers for a kernel, unchanged if they fit."""
    if _too_many(others, terms, pages):
        pages = pages.joined
    if _too_many(others, terms, pages):
        pages = pages.all_joined
    if _too_many(others, terms, pages):
        terms = in_one_buffer(terms)
    return pages, terms


def _too_many(others: Mapping[str, Node], terms: Mapping[str, Node], pages: Pages) -> bool:
    return buffers({**others, **terms, **pages.operands}) > MOST_BUFFERS


def _most_tokens(q: Node, v: Node, scores: Scores, seen: int) -> int:
    """Return how many tokens one dispatch may take."""
    heads, cols = q.spec.shape[1:]
    v_cols = scores.v_cols or v.spec.shape[1] // max(scores.kv_heads, 1)
    # A product and a sum for each value of a key and of its value.
    each = 2 * heads * seen * (cols + v_cols)
    return max(MOST_WORK // max(each, 1) // 4 * 4, 4)


def attend_in_splits(
    q: Node, k: Node, v: Node, pages: Pages, *, scores: Scores, seen: int, **terms: Node
) -> Node:
    """Attend in as many splits as keep a device busy.

    Parameters
    ----------
    q, k, v, pages
        See `attention`.
    seen : int
        No token sees more positions than this.
    terms : Node
        Sinks and bias, those that are there.
    """
    tokens, heads = q.spec.shape[:2]
    groups = max(scores.kv_heads, 1) * -(-tokens * heads // (max(scores.kv_heads, 1) * TILE_ROWS))
    prompt = tokens > pages.table.spec.shape[0]
    # Tables of windows begin where a pass does: a split would take other blocks of a sequence.
    moves = bool(scores.window or scores.chunk) and prompt
    splits = 1 if moves else useful_splits(seen, groups, prompt=prompt)
    places = pages.operands
    operands = (q, k, v, *(places.pop(name) for name in (*PLACES, "table")))
    others = {**places, **terms}
    if splits == 1:
        return paged_attention(*operands, scores=scores, **others)
    return attention_merge(
        paged_attention_splits(*operands, scores=scores, splits=splits, **others)
    )


def paged_launch(operands: Mapping[str, Node | None], *, scores: Scores, splits: int = 1) -> Launch:
    """Return the launch of an op over the operands of `paged_attention`; absent ones are None."""
    given = {name: node for name, node in operands.items() if node is not None}
    v_cols = require_operands(given, scores)
    require_buffers(given)
    q, table_width = given["q"], given["table"].spec.shape[1]
    tokens, heads, cols = q.spec.shape
    # A split adds its largest score and its total, in a vector of four.
    shape = (tokens, heads, v_cols) if splits == 1 else (tokens, heads, splits, v_cols + 4)
    seen = scores.seen(table_width * scores.block)
    return Launch(
        Spec.dense(shape, F32),
        given,
        groups=(scores.kv_heads, max(tokens, 1), splits),
        attributes=scores,
        params={
            **scores.params(heads),
            **_extents(q, scores.kv_heads, v_cols),
            "splits": splits,
            "table_width": table_width,
            **_strides(given),
            **_others(given),
            # Of norms, which `rope_attention` makes first.
            "eps": 0.0,
        },
        choices=_choices(given, scores),
        shader="ops/attention/attention",
        work=q.spec.nbytes + 2 * tokens * heads * seen * (cols + v_cols),
    )


def _extents(q: Node, kv_heads: int, v_cols: int) -> dict[str, int]:
    """Return the size parameters of a kernel; the heads of a group share one head of the cache."""
    tokens, heads, cols = q.spec.shape
    group = heads // kv_heads
    return {
        "heads": heads,
        "group": group,
        "rows": tokens * group,
        "k_vec4s": cols // 4,
        "v_vec4s": v_cols // 4,
    }


def _strides(operands: Mapping[str, Node]) -> dict[str, int]:
    token, head, _ = operands["q"].spec.strides
    of_tokens = {f"{name}_stride": operands[name].spec.strides[0] for name in PLACES}
    return {"q_token_stride": token, "q_head_stride": head, **of_tokens}


def _others(operands: Mapping[str, Node]) -> dict[str, int]:
    """Return the parameters of optional operands."""
    ends, bias = operands.get("ends"), operands.get("bias")
    missing = {f"{name}_offset": 0 for name in OPTIONAL if name not in operands}
    return {
        **missing,
        "ends_stride": 0 if ends is None else ends.spec.strides[0],
        "bias_reach": 0 if bias is None else bias.spec.shape[1] // 2,
    }


def _choices(operands: Mapping[str, Node], scores: Scores) -> dict[str, str | int]:
    # Snippets are named here, as other kernels that read by vectors refuse blocks.
    snippets = {name: f"formats/vec4/{operands[name].spec.dtype}" for name in "kv"}
    if scores.v_cols:
        snippets["v"] = "=k"
    present = {on: name in operands for name, on in OPTIONAL.items()}
    return {
        **scores.choices,
        **{on: True for on, is_there in present.items() if is_there},
        **snippets,
        **_shared_imports(operands),
    }


def _shared_imports(operands: Mapping[str, Node]) -> dict[str, str]:
    """Return imports for operands that share another's binding or are absent."""
    places = operands["positions"].storage
    joined = ("sequences", "table", "ends")
    found = {n: "=positions" for n in joined if n not in operands or operands[n].storage is places}
    terms = {n: "=q" for n in ("sinks", "bias") if n not in operands}
    if not terms and operands["sinks"].storage is operands["bias"].storage:
        terms["bias"] = "=sinks"
    return {**found, **terms}


@op(shader="ops/attention/attention", select=select_tiles, dense=("table",), trusted=True)
def paged_attention(
    q: Node,
    k: Node,
    v: Node,
    positions: Node,
    sequences: Node,
    table: Node,
    *,
    scores: Scores,
    ends: Node | None = None,
    sinks: Node | None = None,
    bias: Node | None = None,
) -> Launch:
    """Attend in one pass; see `attention`.

    Where values are columns of keys, `v` is `k`.
    """
    operands = {
        "q": q, "k": k, "v": v, "positions": positions, "sequences": sequences, "table": table,
        "ends": ends, "sinks": sinks, "bias": bias,
    }  # fmt: skip
    return paged_launch(operands, scores=scores)


@paged_attention.reference
@takes_f16
def paged_attention_reference(
    q: Array,
    k: Array,
    v: Array,
    positions: Array,
    sequences: Array,
    table: Array,
    *,
    scores: Scores,
    ends: Array | None = None,
    sinks: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Attend a few tokens of a sequence at a time over all that one of them sees."""
    kv_heads = scores.kv_heads
    keys = k.reshape(len(k), kv_heads, -1)
    # In latent attention, values are the first columns of keys.
    values = keys[..., : scores.v_cols] if scores.v_cols else v.reshape(len(v), kv_heads, -1)
    first, last = _seen(positions.astype(np.int64), ends, scores)
    # Tokens at position -1 (padding) see nothing and keep zeros.
    y = np.zeros((*q.shape[:2], values.shape[-1]), np.float32)
    sees = first <= last
    owners = np.maximum(sequences, 0)
    for owner in np.unique(owners[sees]):
        tokens = np.flatnonzero(sees & (owners == owner))
        start, stop = int(first[tokens].min()), int(last[tokens].max()) + 1
        seen = np.arange(start, stop)
        slots = table[owner][seen // scores.block] * scores.block + seen % scores.block
        cached = _CachedRows(start, *(a[slots].astype(np.float32) for a in (keys, values)))
        step = cached.tokens_at_once(q.shape[1])
        for some in np.split(tokens, range(step, len(tokens), step)):
            query = q[some] * _factors(positions[some], scores)[:, None, None]
            part = cached.part(first[some], last[some])
            added = _by_distance(positions[some], part, q.shape[1], scores, bias)
            y[some] = _attend(query, part, scores.softcap, added, sinks)
    return y


@op(shader="ops/attention/attention", select=select_tiles, dense=("table",), trusted=True)
def paged_attention_splits(
    q: Node,
    k: Node,
    v: Node,
    positions: Node,
    sequences: Node,
    table: Node,
    *,
    scores: Scores,
    splits: int,
    ends: Node | None = None,
    sinks: Node | None = None,
    bias: Node | None = None,
) -> Launch:
    """Attend over each of `splits` ranges of positions, for `attention_merge`.

    Returns
    -------
    (tokens, heads, splits, v_cols + 4), f32
        Unnormalised sums, then the largest score and the total of the range. Sinks are in the
        first.
    """
    operands = {
        "q": q, "k": k, "v": v, "positions": positions, "sequences": sequences, "table": table,
        "ends": ends, "sinks": sinks, "bias": bias,
    }  # fmt: skip
    return paged_launch(operands, scores=scores, splits=splits)


@paged_attention_splits.reference
@takes_f16
def paged_attention_splits_reference(
    q: Array,
    k: Array,
    v: Array,
    positions: Array,
    sequences: Array,
    table: Array,
    *,
    scores: Scores,
    splits: int,
    ends: Array | None = None,
    sinks: Array | None = None,
    bias: Array | None = None,
) -> Array:
    """Put the whole result into the first split; the others are empty."""
    operands = (q, k, v, positions, sequences, table)
    others = {"ends": ends, "sinks": sinks, "bias": bias}
    return in_first_split(paged_attention_reference(*operands, scores=scores, **others), splits)


# Scores that are held at once: 8 MiB of f32 stay in a processor's cache.
_MOST_SCORES = 1 << 21


@dataclass(frozen=True)
class _CachedRows:
    """Keys and values of neighbouring positions of a sequence, and which of them tokens see.

    Parameters
    ----------
    start : int
        The first position.
    keys, values : (positions, kv_heads, columns), f32
    first, last : (tokens,), i64, or None
        The first and the last position that each token sees; None where all see all.
    """

    start: int
    keys: Array
    values: Array
    first: Array | None = None
    last: Array | None = None

    def tokens_at_once(self, heads: int) -> int:
        """Return how many tokens to compute together."""
        # What one token sees may be infinite, and 0 times that would reach the others.
        if not (np.isfinite(self.keys).all() and np.isfinite(self.values).all()):
            return 1
        return max(_MOST_SCORES // (heads * len(self.keys)), 1)

    def part(self, first: Array, last: Array) -> _CachedRows:
        """Return the rows that some tokens see."""
        start, stop = int(first.min()), int(last.max()) + 1
        own = slice(start - self.start, stop - self.start)
        alike = bool((first == start).all() and (last == stop - 1).all())
        return _CachedRows(
            start, self.keys[own], self.values[own], *(() if alike else (first, last))
        )

    @property
    def positions(self) -> Array:
        """Positions of the rows."""
        return np.arange(self.start, self.start + len(self.keys))

    def hide(self, products: Array) -> None:
        """Rule out what a token does not see, in scores of (..., tokens, positions)."""
        if self.first is None or self.last is None:
            return
        # All see what is between these two.
        left = min(int(self.first.max()) - self.start, len(self.keys))
        right = max(int(self.last.min()) + 1 - self.start, left)
        for side in (slice(0, left), slice(right, None)):
            at = self.positions[side]
            hidden = (at < self.first[:, None]) | (at > self.last[:, None])
            np.copyto(products[..., side], np.float32(-np.inf), where=hidden)


def _attend(
    query: Array, rows: _CachedRows, softcap: float, added: Array | None, sinks: Array | None
) -> Array:
    """Attend with scaled queries of (tokens, heads, columns) over the rows that they see."""
    tokens, heads, cols = query.shape
    kv_heads = rows.keys.shape[1]
    group = heads // kv_heads
    by_head = query.reshape(tokens, kv_heads, group, cols).transpose(1, 2, 0, 3)
    products = np.matmul(
        np.ascontiguousarray(by_head, np.float32).reshape(kv_heads, group * tokens, cols),
        rows.keys.transpose(1, 2, 0),
    ).reshape(heads, tokens, -1)
    if softcap:
        products = softcap * np.tanh(products / np.float32(softcap))
    if added is not None:
        products += added
    rows.hide(products)
    sink = np.float32(-np.inf) if sinks is None else sinks.reshape(heads, 1, 1)
    largest = np.maximum(products.max(axis=-1, keepdims=True), sink)
    e = np.exp(np.subtract(products, largest, out=products), out=products)
    total = e.sum(axis=-1, keepdims=True) + np.exp(sink - largest)
    e = e.reshape(kv_heads, group * tokens, -1)
    y = np.matmul(e, rows.values.swapaxes(0, 1)).reshape(heads, tokens, -1) / total
    return y.swapaxes(0, 1)


def _seen(positions: Array, ends: Array | None, scores: Scores) -> tuple[Array, Array]:
    """Return the first and the last position that each token sees; none if the last is less."""
    last = positions if ends is None else ends.astype(np.int64)
    if not scores.causal:
        half = scores.symmetric_window // 2 if scores.symmetric_window else np.inf
        low, high = np.maximum(positions - half, 0), np.minimum(last, positions + half)
    else:
        low = positions + 1 - scores.window if scores.window else np.zeros_like(positions)
        if scores.chunk:
            low = np.maximum(low, positions // scores.chunk * scores.chunk)
        low, high = np.maximum(low, 0), np.maximum(positions, last)
    return low.astype(np.int64), np.where(positions < 0, -1, high).astype(np.int64)


def _factors(positions: Array, scores: Scores) -> Array:
    """Return the factors of queries at positions."""
    heat = scores.temperature
    if heat is None:
        return np.full(len(positions), scores.scale, np.float32)
    # As Llama 4's attention temperature: by whole lengths.
    steps = (positions + heat.offset) // heat.length
    return (scores.scale * (1 + heat.factor * np.log1p(steps))).astype(np.float32)


def _by_distance(
    positions: Array, rows: _CachedRows, heads: int, scores: Scores, bias: Array | None
) -> Array | None:
    """Return what distances add to scores of (heads, tokens, positions); None for nothing."""
    if bias is None and not scores.alibi:
        return None
    apart = rows.positions - positions[:, None]
    added = -alibi_slopes(heads, scores.alibi)[:, None, None] * np.abs(apart)
    if bias is not None:
        reach = bias.shape[1] // 2
        added = added + bias[:, np.clip(apart, -reach, reach) + reach]
    return added.astype(np.float32)


def alibi_slopes(heads: int, largest: float) -> Array:
    """Return the ALiBi slopes, (heads,); zeros where `largest` is 0."""
    if not largest:
        return np.zeros(heads)
    whole = 1 << (heads.bit_length() - 1)
    # Press et al. 2022, "Train Short, Test Long": for other numbers than powers of two, every
    # second slope of twice as many heads is added.
    exponents = [*range(2, 2 * whole + 1, 2), *range(1, 2 * whole, 2)][:heads]
    return np.exp2(-largest / (2 * whole) * np.array(exponents))
