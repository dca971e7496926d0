"""Attention over a paged cache: the op, its parallel form for long caches, and the join."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from wgpu_backend.device_info import Capabilities
from wgpu_backend.dtypes import F16, F32, I32
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import FLOATS, require, require_dtype, require_rank
from wgpu_backend.ops.op import op

SPLIT_POSITIONS = 256  # positions that are worth a work group of their own
ENOUGH_GROUPS = 256  # with this many work groups a device is busy without splitting


@dataclass(frozen=True, slots=True)
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
    """

    block: int
    scale: float
    kv_heads: int
    window: int = 0
    softcap: float = 0.0


def select_lanes(launch: Launch, capabilities: Capabilities) -> Launch:
    """Size the work group: a lane per position, and each lane's share of the result follows."""
    width = 8 if capabilities.software else 64
    quads = int(launch.params["v_quads"])  # pyright: ignore[reportArgumentType]
    choices = {**launch.choices, "WG": width, "LANE_QUADS": -(-quads // width)}
    return replace(launch, choices=choices)


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
    k : (slots, kv_heads * k_cols), f32 or f16
    v : (slots, kv_heads * v_cols), f32 or f16
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
    tokens, heads = q.spec.shape[:2]
    positions = min(longest, window) if window else longest
    splits = min(positions // SPLIT_POSITIONS, ENOUGH_GROUPS // max(tokens * heads, 1))
    operands = (q, k, v, pages.positions, pages.sequences, pages.table)
    scores = Scores(pages.block, scale, kv_heads, window, softcap)
    if splits <= 1:
        return paged_attention(*operands, scores=scores)
    return attention_merge(paged_attention_splits(*operands, scores=scores, splits=splits))


def _paged(operands: Mapping[str, Node], scores: Scores, splits: int) -> Launch:
    q, k, v = (operands[name] for name in "qkv")
    _require_cache(operands)
    tokens, heads, cols = q.spec.shape
    kv_heads = scores.kv_heads
    require(
        kv_heads > 0 and heads % kv_heads == 0,
        ShapeError,
        f"attention: {heads} query heads, not a multiple of {kv_heads} cache heads",
    )
    require(
        k.spec.shape[1] == kv_heads * cols and cols % 4 == 0,
        ShapeError,
        f"attention: keys have {k.spec.shape[1]} values a slot, {kv_heads} heads of {cols} need "
        f"{kv_heads * cols}; heads are multiples of 4",
    )
    v_cols = v.spec.shape[1] // kv_heads
    require(
        v_cols * kv_heads == v.spec.shape[1] and v_cols % 4 == 0,
        ShapeError,
        f"attention: values have {v.spec.shape[1]} a slot, not {kv_heads} heads of multiples of 4",
    )
    shape = (tokens, heads, v_cols) if splits == 1 else (tokens, heads, splits, v_cols + 4)
    return Launch(
        Spec.dense(shape, F32),
        operands,
        groups=(heads, tokens, splits),
        params={
            **asdict(scores),
            "heads": heads,
            "k_quads": cols // 4,
            "v_quads": v_cols // 4,
            "splits": splits,
            "table_width": operands["table"].spec.shape[1],
            "q_token_stride": q.spec.strides[0],
            "q_head_stride": q.spec.strides[1],
        },
        choices={"SPLIT": splits > 1, "Q_SIZE": cols},
        shader="attention",
        work=q.spec.nbytes * 64,
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
        require_dtype("attention", name, node, (F32, F16))
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
    require_rank("attention", "table", operands["table"], 2, 2)
    require(
        operands["table"].spec.size > 0,
        ShapeError,
        f"attention: table is {operands['table'].spec.shape}, needs at least 1 block",
    )
    for name in ("positions", "sequences", "table"):
        require_dtype("attention", name, operands[name], (I32,))
    for name in ("positions", "sequences"):
        require(
            operands[name].spec.shape == q.spec.shape[:1],
            ShapeError,
            f"attention: {name} is {operands[name].spec.shape}, q has {q.spec.shape[0]} tokens",
        )


@op(
    shader="attention",
    select=select_lanes,
    dense=("positions", "sequences", "table"),
    trusted=True,
)
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
    operands = {
        "q": q, "k": k, "v": v, "positions": positions, "sequences": sequences, "table": table,
    }  # fmt: skip
    return _paged(operands, scores, 1)


@op(
    shader="attention",
    select=select_lanes,
    dense=("positions", "sequences", "table"),
    trusted=True,
)
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
    operands = {
        "q": q, "k": k, "v": v, "positions": positions, "sequences": sequences, "table": table,
    }  # fmt: skip
    return _paged(operands, scores, splits)


@op(trusted=True)
def attention_merge(x: Node) -> Launch:
    """Join the ranges of `paged_attention_splits`.

    Parameters
    ----------
    x : (tokens, heads, splits, cols + 4), f32

    Returns
    -------
    (tokens, heads, cols), f32.
    """
    require_rank("attention_merge", "x", x, 4)
    tokens, heads, splits, width = x.spec.shape
    out = Spec.dense((tokens, heads, width - 4), F32)
    return Launch(
        out,
        {"x": x},
        threads=out.size // 4,
        params={"size": out.size // 4, "splits": splits, "quads": (width - 4) // 4},
        work=x.spec.nbytes,
    )
