"""Attention over a paged cache: the op, and its parallel form for long caches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from wgpu_backend.dtypes import F16, F32, I32, Q4_0, Q8_0
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.attention.paged_kernels import select_tiles
from wgpu_backend.ops.attention.splits import attention_merge, useful_splits
from wgpu_backend.ops.check import FLOATS, require, require_dtype, require_rank
from wgpu_backend.ops.op import op
from wgpu_backend.ops.shape.copying import concat
from wgpu_backend.ops.shape.views import viewed

CACHE_TYPES = (F32, F16, Q8_0, Q4_0)
BLOCK_VALUES = 32  # of the block formats among them
PLACES = ("positions", "sequences")  # what tells where a token stands
TILE_ROWS = 8  # of a work group, about
# Bytes and operations of one dispatch, which nothing cuts any more: half of what a submit may hold.
MOST_WORK = 1 << 34


@dataclass(frozen=True)
class Pages:
    """Where the positions of each sequence lie in the cache.

    Parameters
    ----------
    positions : (tokens,), i32
        Position of each token in its sequence; -1 attends to nothing.
    sequences : (tokens,), i32
        Row of `table` that each token belongs to.
    table : (sequences, blocks), i32
        Block of the cache that holds positions ``block * i`` to ``block * (i + 1) - 1``.
    block : int
        Positions in a block.
    """

    positions: Node
    sequences: Node
    table: Node
    block: int

    @cached_property
    def joined(self) -> Pages:
        """The same with positions and sequences in one buffer.

        Keys and values in blocks take two bindings each, and a kernel has eight.
        """
        if self.positions.storage is self.sequences.storage:
            return self
        both = concat(self.positions, self.sequences, axis=0)
        count = self.positions.spec.shape[0]
        positions, sequences = (viewed(both, Spec((count,), I32, (1,), n)) for n in (0, count))
        return replace(self, positions=positions, sequences=sequences)

    def part(self, start: int, stop: int) -> Pages:
        """Of the tokens from `start` to `stop`."""
        positions, sequences = (_part(n, start, stop) for n in (self.positions, self.sequences))
        return replace(self, positions=positions, sequences=sequences)


@dataclass(frozen=True, slots=True)
class Scores:
    """How attention reads its cache and makes scores; see `attention`.

    Parameters
    ----------
    block : int
        Positions in a block of the cache.
    scale : float
    kv_heads : int
    window : int
    softcap : float
    halves : bool
        Pairs of f16 may be multiplied, a few of which are added up before they go into f32.
    """

    block: int
    scale: float
    kv_heads: int
    window: int = 0
    softcap: float = 0.0
    halves: bool = False


def attention(
    q: Node,
    k: Node,
    v: Node,
    pages: Pages,
    *,
    scale: float,
    kv_heads: int,
    longest: int,
    window: int = 0,
    softcap: float = 0.0,
) -> Node:
    """Causal attention of queries over the cache of their sequences, in f32.

    Source: Vaswani et al. 2017, eq. 1; the online softmax is Milakov & Gimelshein 2018, alg. 3;
    splitting the positions is Dao et al. 2023, "Flash-Decoding".

    Parameters
    ----------
    q : (tokens, heads, k_cols), f32
    k : (slots, kv_heads * k_cols), f32, f16, q8_0 or q4_0
    v : (slots, kv_heads * v_cols), f32, f16, q8_0 or q4_0
        Blocks need heads of a multiple of 32 values, others of a multiple of 4.
    pages : Pages
    scale : float
        Factor of every score.
    kv_heads : int
        Heads of the cache; divides `heads`, neighbours share one.
    longest : int
        No sequence is longer than this many positions; decides how far the work is split.
    window : int
        Positions further back than this are not seen; 0 sees all.
    softcap : float
        Scores become ``softcap * tanh(score / softcap)``; 0 leaves them.

    Returns
    -------
    (tokens, heads, v_cols), f32.
    """
    seen = min(longest, window) if window else longest
    scores = Scores(pages.block, scale, kv_heads, window, softcap)
    if k.spec.dtype.quantised and v.spec.dtype.quantised:
        pages = pages.joined
    step = _most_tokens(q, v, kv_heads, seen)
    whole = attended(_part(q, 0, step), k, v, pages.part(0, step), scores=scores, seen=seen)
    for start in range(step, q.spec.shape[0], step):
        part, its = _part(q, start, start + step), pages.part(start, start + step)
        whole = concat(whole, attended(part, k, v, its, scores=scores, seen=seen), axis=0)
    return whole


def _part(node: Node, start: int, stop: int) -> Node:
    """Rows of a node, itself for all of them."""
    spec = node.spec
    stop = min(stop, spec.shape[0])
    if start == 0 and stop == spec.shape[0]:
        return node
    shape = (stop - start, *spec.shape[1:])
    return viewed(
        node, Spec(shape, spec.dtype, spec.strides, spec.offset + start * spec.strides[0])
    )


def _most_tokens(q: Node, v: Node, kv_heads: int, seen: int) -> int:
    """Tokens that one dispatch may take."""
    heads, cols = q.spec.shape[1:]
    each = 2 * heads * seen * (cols + v.spec.shape[1] // max(kv_heads, 1))
    return max(MOST_WORK // max(each, 1) // 4 * 4, 4)


def attended(q: Node, k: Node, v: Node, pages: Pages, *, scores: Scores, seen: int) -> Node:
    """Attention in as many splits as keep a device busy.

    Parameters
    ----------
    q, k, v, pages
        See `attention`.
    scores : Scores
    seen : int
        No token sees more positions than this.
    """
    tokens, heads = q.spec.shape[:2]
    groups = max(scores.kv_heads, 1) * -(-tokens * heads // (max(scores.kv_heads, 1) * TILE_ROWS))
    splits = useful_splits(seen, groups)
    operands = (q, k, v, pages.positions, pages.sequences, pages.table)
    if splits == 1:
        return paged_attention(*operands, scores=scores)
    return attention_merge(paged_attention_splits(*operands, scores=scores, splits=splits))


def paged_launch(
    q: Node,
    k: Node,
    v: Node,
    positions: Node,
    sequences: Node,
    table: Node,
    *,
    scores: Scores,
    splits: int = 1,
) -> Launch:
    """Launch of an op over the operands of `paged_attention`, see there."""
    operands = {
        "q": q, "k": k, "v": v, "positions": positions, "sequences": sequences, "table": table,
    }  # fmt: skip
    _require_cache(operands)
    tokens, heads, cols = q.spec.shape
    v_cols = _require_heads(operands, scores.kv_heads)
    _require_blocks(operands, {"k": cols, "v": v_cols})
    shape = (tokens, heads, v_cols) if splits == 1 else (tokens, heads, splits, v_cols + 4)
    table_width = table.spec.shape[1]
    seen = min(table_width * scores.block, scores.window or table_width * scores.block)
    return Launch(
        Spec.dense(shape, F32),
        operands,
        groups=(scores.kv_heads, max(tokens, 1), splits),
        attributes=scores,
        params={
            **_params(scores),
            **_extents(q, scores.kv_heads, v_cols),
            "splits": splits,
            "table_width": table_width,
            **_strides(operands),
            "eps": 0.0,  # of norms that are made first
        },
        choices=_choices(operands, scores),
        shader="ops/attention",
        work=q.spec.nbytes + 2 * tokens * heads * seen * (cols + v_cols),
    )


def _extents(q: Node, kv_heads: int, v_cols: int) -> dict[str, int]:
    """Parameters that tell how many there are of what: a group shares a head of the cache."""
    tokens, heads, cols = q.spec.shape
    group = heads // kv_heads
    return {
        "heads": heads,
        "group": group,
        "rows": tokens * group,
        "k_quads": cols // 4,
        "v_quads": v_cols // 4,
    }


def _strides(operands: Mapping[str, Node]) -> dict[str, int]:
    token, head, _ = operands["q"].spec.strides
    of_tokens = {f"{name}_stride": operands[name].spec.strides[0] for name in PLACES}
    return {"q_token_stride": token, "q_head_stride": head, **of_tokens}


def _choices(operands: Mapping[str, Node], scores: Scores) -> dict[str, str | int]:
    # Snippets are named here, as other kernels that read by vectors refuse blocks.
    snippets = {name: f"formats/vec4/{operands[name].spec.dtype}" for name in "kv"}
    joined = operands["sequences"].storage is operands["positions"].storage
    return {
        "CAPPED": scores.softcap > 0,
        **snippets,
        **({"sequences": "=positions"} if joined else {}),
    }


def _require_heads(operands: Mapping[str, Node], kv_heads: int) -> int:
    """Values of a head's result; all heads are of multiples of four values."""
    heads, cols = operands["q"].spec.shape[1:]
    keys, values = (operands[name].spec.shape[1] for name in "kv")
    require(
        kv_heads > 0 and heads % kv_heads == 0,
        ShapeError,
        f"attention: {heads} query heads, not a multiple of {kv_heads} cache heads",
    )
    require(
        keys == kv_heads * cols and cols % 4 == 0,
        ShapeError,
        f"attention: keys have {keys} values a slot, {kv_heads} heads of {cols} need "
        f"{kv_heads * cols}; heads are multiples of 4",
    )
    v_cols = values // kv_heads
    require(
        v_cols * kv_heads == values and v_cols % 4 == 0,
        ShapeError,
        f"attention: values have {values} a slot, not {kv_heads} heads of multiples of 4",
    )
    return v_cols


def _params(scores: Scores) -> dict[str, int | float]:
    return {name: value for name, value in asdict(scores).items() if name != "halves"}


def _require_blocks(operands: Mapping[str, Node], heads: Mapping[str, int]) -> None:
    """Heads are whole blocks, and there are bindings enough."""
    quantised = [name for name in heads if operands[name].spec.dtype.quantised]
    for name in quantised:
        require(
            heads[name] % BLOCK_VALUES == 0,
            ShapeError,
            f"attention: a head of {name} has {heads[name]} values, {operands[name].spec.dtype} "
            f"needs multiples of {BLOCK_VALUES}; choose f16 for the cache",
        )
    require(
        len(quantised) < 2 or operands["positions"].storage is operands["sequences"].storage,
        ShapeError,
        "attention: keys and values in blocks, positions and sequences lie in 2 buffers, need 1; "
        "take those of Pages.joined",
    )


def _require_cache(operands: Mapping[str, Node]) -> None:
    q, k, v = (operands[name] for name in "qkv")
    require_rank("attention", "q", q, 3, 3)
    require_dtype("attention", "q", q, FLOATS)
    require(
        q.spec.strides[2] == 1,
        ShapeError,
        f"attention: values of a query lie {q.spec.strides[2]} apart, need 1; call contiguous()",
    )
    for name, node in (("k", k), ("v", v)):
        require_rank("attention", name, node, 2, 2)
        require_dtype("attention", name, node, CACHE_TYPES)
        require(
            node.spec.is_dense and node.spec.offset == 0,
            ShapeError,
            f"attention: {name} is a view of {node.spec.shape}, needs the whole cache of a layer",
        )
    require(
        0 < k.spec.shape[0] == v.spec.shape[0],
        ShapeError,
        f"attention: keys have {k.spec.shape[0]} slots, values {v.spec.shape[0]}, needs as many",
    )
    _require_places(operands, q.spec.shape[0])


def _require_places(operands: Mapping[str, Node], tokens: int) -> None:
    require_rank("attention", "table", operands["table"], 2, 2)
    require(
        operands["table"].spec.size > 0,
        ShapeError,
        f"attention: table is {operands['table'].spec.shape}, needs at least 1 block",
    )
    for name in (*PLACES, "table"):
        require_dtype("attention", name, operands[name], (I32,))
    for name in PLACES:
        require(
            operands[name].spec.shape == (tokens,),
            ShapeError,
            f"attention: {name} is {operands[name].spec.shape}, q has {tokens} tokens",
        )


@op(shader="ops/attention", select=select_tiles, dense=("table",), trusted=True)
def paged_attention(
    q: Node,
    k: Node,
    v: Node,
    positions: Node,
    sequences: Node,
    table: Node,
    *,
    scores: Scores,
) -> Launch:
    """Attention in one pass; see `attention`."""
    return paged_launch(q, k, v, positions, sequences, table, scores=scores)


@op(shader="ops/attention", select=select_tiles, dense=("table",), trusted=True)
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
) -> Launch:
    """Attention over each of `splits` ranges of positions, for `attention_merge`.

    Returns
    -------
    (tokens, heads, splits, v_cols + 4), f32
        Unnormalised sums, then the largest score and the total of the range.
    """
    operands = (q, k, v, positions, sequences, table)
    return paged_launch(*operands, scores=scores, splits=splits)
