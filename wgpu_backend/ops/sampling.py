"""Ops that choose a token from logits: top_k, penalise, sample; and that hand it on: recall.

What differs from token to token or from user to user is a tensor, not a parameter, so that one
recorded graph serves all of it: `knobs` holds a row of `wgpu_backend.sample.knobs.Knobs` for each
row of logits.
"""

from __future__ import annotations

from dataclasses import replace

from wgpu_backend.dtypes import F32, I32, U32, DType
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import MAX_GROUPS, require, require_dtype, require_rank
from wgpu_backend.ops.op import op
from wgpu_backend.ops.writing import require_writable

MAX_K = 256  # what fits into 16 KiB of workgroup memory, with room for values that tie
KNOBS = 8
PENALISE_COLUMNS = 2048
# Each part pays for sorting its winners, so they are few, and long.
PARTS = 12
SHORTEST_PART = 4096


def top_k(x: Node, *, k: int) -> Node:
    """Ids of the largest values of each row.

    Long rows are cut into parts, a work group each, whose winners meet in a second dispatch.

    Parameters
    ----------
    x : (rows, cols), f32
    k : int
        1 to 256.

    Returns
    -------
    (rows, k), i32
        Largest first, of equal values the lower id; NaN counts as larger than any number, and -1
        fills up where a row has fewer values.
    """
    require_rank("top_k", "x", x, 2, 2)
    cols = x.spec.shape[1]
    part = max(-(-cols // PARTS), SHORTEST_PART)
    if cols <= part:
        return top_k_of_parts(x, k=k, part=cols)
    winners = top_k_of_parts(x, k=k, part=part)
    return top_k_of_ids(x, winners, k=k)


@op(shader="top_k", dense=("x",), trusted=True)
def top_k_of_parts(x: Node, *, k: int, part: int) -> Launch:
    """Ids of the largest values of each part of each row; see `top_k`.

    Parameters
    ----------
    x : (rows, cols), f32
    k : int
        1 to 256.
    part : int
        Columns in a part; the last may have fewer.

    Returns
    -------
    (rows, parts * k), i32
        As `top_k`, part by part.
    """
    cols = _require_row_of(x, k)
    require(part > 0, ShapeError, f"top_k: parts of {part} columns, needs at least 1")
    parts = -(-cols // part)
    return _top_k(x, x, k, length=cols, part=part, parts=parts, gathered=False)


@op(shader="top_k", dense=("x", "ids"), trusted=True)
def top_k_of_ids(x: Node, ids: Node, *, k: int) -> Launch:
    """Ids of the largest values among some of each row; see `top_k`.

    Parameters
    ----------
    x : (rows, cols), f32
    ids : (rows, n), i32
        Columns to look at, no column twice; those outside the row are passed over.
    k : int
        1 to 256.

    Returns
    -------
    (rows, k), i32.
    """
    _require_row_of(x, k)
    _require_rows("top_k", "ids", ids, I32, x, 2)
    length = ids.spec.shape[1]
    return _top_k(x, ids, k, length=length, part=max(length, 1), parts=1, gathered=True)


def _require_row_of(x: Node, k: int) -> int:
    """Columns of `x`, once `x` and `k` are what top_k takes."""
    require_rank("top_k", "x", x, 2, 2)
    require_dtype("top_k", "x", x, (F32,))
    require(1 <= k <= MAX_K, ShapeError, f"top_k: k is {k}, needs 1 to {MAX_K}")
    rows, cols = x.spec.shape
    require(
        cols > 0 and rows <= MAX_GROUPS,
        ShapeError,
        f"top_k: x is {x.spec.shape}, needs 1 column and at most {MAX_GROUPS} rows",
    )
    return cols


def _top_k(
    x: Node, ids: Node, k: int, *, length: int, part: int, parts: int, gathered: bool
) -> Launch:
    rows, cols = x.spec.shape
    return Launch(
        Spec.dense((rows, parts * k), I32),
        {"x": x, "ids": ids},
        groups=(parts, rows, 1),
        params={"cols": cols, "k": k, "length": length, "part": part, "parts": parts},
        # There are few groups: as many threads as the smallest device allows.
        choices={"GATHERED": gathered, "WG": 256},
        work=4 * rows * length * 4,
    )


@op(dense=("x", "history", "knobs"), trusted=True)
def penalise(x: Node, history: Node, knobs: Node) -> Launch:
    """Lower the logits of tokens that were seen before.

    Parameters
    ----------
    x : (rows, cols), f32
    history : (rows, n), i32
        Tokens seen, in any order; -1 marks an empty place.
    knobs : (rows, 8), f32

    Returns
    -------
    (rows, cols), f32.

    Raises
    ------
    ShapeError
        Numbers of rows differ.
    """
    require_rank("penalise", "x", x, 2, 2)
    require_dtype("penalise", "x", x, (F32,))
    _require_rows("penalise", "history", history, I32, x, 2)
    _require_knobs("penalise", knobs, x)
    rows, cols = x.spec.shape
    return Launch(
        Spec.dense((rows, cols), F32),
        {"x": x, "history": history, "knobs": knobs},
        groups=(-(-cols // PENALISE_COLUMNS), rows, 1),
        params={"cols": cols, "length": history.spec.shape[1], "zero": 0},
        choices={"COLUMNS": f"{PENALISE_COLUMNS}u"},
        work=2 * x.spec.nbytes,
    )


@op(dense=("x", "ids", "knobs", "draws"), trusted=True)
def sample(x: Node, ids: Node, knobs: Node, draws: Node) -> Launch:
    """Choose one of the most likely tokens of each row.

    Parameters
    ----------
    x : (rows, cols), f32
        Logits, penalised where they are to be.
    ids : (rows, n), i32
        Of the n largest, as `top_k` gives them; n is 1 to 256.
    knobs : (rows, 8), f32
        Here `top_k` is 1 to n.
    draws : (rows,), u32
        Uniform random numbers.

    Returns
    -------
    (rows,), i32
        Tokens; -1 where the largest logit is NaN or infinite.

    Raises
    ------
    ShapeError
        Numbers of rows differ, or there are more than 256 candidates.
    """
    _require_choice("sample", x, ids, knobs)
    _require_rows("sample", "draws", draws, U32, x, 1)
    rows = x.spec.shape[0]
    return _sample(x, ids, knobs, draws, rows)


@op(shader="sample", dense=("x", "ids", "knobs", "draws"), trusted=True)
def sample_into(kept: Node, x: Node, ids: Node, knobs: Node, draws: Node) -> Launch:
    """Choose a token of each row as `sample` does, and keep it where a later step finds it.

    Parameters
    ----------
    kept : (places,), i32, a state, dense
    x, ids, knobs
        See `sample`.
    draws : (rows, 2), u32
        A random number, and the place of the row's token; a row with a place beyond the last is
        not kept. Of two equal places either may win.

    Returns
    -------
    `kept` after the write.

    Raises
    ------
    ShapeError
        As `sample`, or `kept` is not dense.
    ContextError
        `kept` is a weight or an input, which ops do not write.

    See Also
    --------
    recall : Reads them.
    """
    _require_choice("sample_into", x, ids, knobs)
    _require_rows("sample_into", "draws", draws, U32, x, 2)
    require(
        draws.spec.shape[1] == 2,
        ShapeError,
        f"sample_into: draws has {draws.spec.shape[1]} columns, needs 2",
    )
    _require_kept("sample_into", kept)
    require_writable("sample_into", kept)
    launch = _sample(x, ids, knobs, draws, kept.spec.shape[0])
    return replace(launch, out=kept.spec, into=kept, choices={"PLACED": True})


@op(dense=("ids",), trusted=True)
def recall(ids: Node, kept: Node) -> Launch:
    """Put tokens in the place of references to them.

    Parameters
    ----------
    ids : (...), i32
        Tokens; ``reference(place)`` stands for what a place of `kept` holds.
    kept : (places,), i32, dense

    Returns
    -------
    (...), i32
        Tokens, and -1 for references to places that are not there.
    """
    require_dtype("recall", "ids", ids, (I32,))
    _require_kept("recall", kept)
    size = ids.spec.size
    return Launch(
        Spec.dense(ids.spec.shape, I32),
        {"ids": ids, "kept": kept},
        threads=size,
        params={"size": size, "places": kept.spec.shape[0]},
        work=2 * ids.spec.nbytes,
    )


def reference(place: int) -> int:
    """Id that `recall` replaces by what a place holds; -1 stays free for no token."""
    return -2 - place


def _sample(x: Node, ids: Node, knobs: Node, draws: Node, places: int) -> Launch:
    rows, cols = x.spec.shape
    return Launch(
        Spec.dense((rows,), I32),
        {"x": x, "ids": ids, "knobs": knobs, "draws": draws},
        groups=(1, rows, 1),
        params={"cols": cols, "candidates": ids.spec.shape[1], "places": places},
        work=ids.spec.nbytes * 16,
    )


def _require_choice(op: str, x: Node, ids: Node, knobs: Node) -> None:
    require_rank(op, "x", x, 2, 2)
    require_dtype(op, "x", x, (F32,))
    _require_rows(op, "ids", ids, I32, x, 2)
    _require_knobs(op, knobs, x)
    candidates = ids.spec.shape[1]
    require(
        1 <= candidates <= MAX_K,
        ShapeError,
        f"{op}: ids has {candidates} candidates, needs 1 to {MAX_K}",
    )


def _require_kept(op: str, kept: Node) -> None:
    require_rank(op, "kept", kept, 1, 1)
    require_dtype(op, "kept", kept, (I32,))
    require(
        kept.spec.is_dense and kept.spec.offset == 0,
        ShapeError,
        f"{op}: kept is {kept.spec.shape} of strides {kept.spec.strides} at {kept.spec.offset}, "
        "needs a dense tensor of its own",
    )


def _require_rows(op: str, name: str, node: Node, dtype: DType, x: Node, rank: int) -> None:
    require_rank(op, name, node, rank, rank)
    require_dtype(op, name, node, (dtype,))
    require(
        node.spec.shape[0] == x.spec.shape[0],
        ShapeError,
        f"{op}: {name} has {node.spec.shape[0]} rows, x has {x.spec.shape[0]}",
    )


def _require_knobs(op: str, knobs: Node, x: Node) -> None:
    _require_rows(op, "knobs", knobs, F32, x, 2)
    require(
        knobs.spec.shape[1] == KNOBS,
        ShapeError,
        f"{op}: knobs has {knobs.spec.shape[1]} columns, needs {KNOBS}",
    )
