"""Ops that choose a token from logits and pass it on: top_k, penalise, sample, resolve_tokens.

Values that differ from token to token or from user to user are tensors, not parameters, so one
recorded graph serves all: `sampling` has a row of `SamplingParams` for each row of logits.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from wgpu_backend.dtypes import F32, I32, U32, DType
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ops.check import MAX_GROUPS, require, require_dtype, require_rank
from wgpu_backend.ops.index.writing import require_writable
from wgpu_backend.ops.op import op
from wgpu_backend.ops.reference import Array
from wgpu_backend.ops.sampling.host import transforms
from wgpu_backend.ops.sampling.host.candidates import Candidates, largest
from wgpu_backend.ops.sampling.host.sampling_params import SamplingParams

# So many fit into 16 KiB of workgroup memory, with room for values that tie.
MAX_K = 256
# Columns: the fields of `SamplingParams`.
SAMPLING = 8
PENALISE_COLUMNS = 2048
# Each part pays for sorting its winners, so they are few, and long.
PARTS = 12
SHORTEST_PART = 4096


def top_k(x: Node, *, k: int) -> Node:
    """Return the ids of the largest values of each row.

    Long rows are cut into parts, one work group each, whose results a second dispatch merges.

    Parameters
    ----------
    x : (rows, cols)
        f32.
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
    # With one part, a second pass would find the same winners.
    if cols <= part:
        return top_k_of_parts(x, k=k, part=cols)
    winners = top_k_of_parts(x, k=k, part=part)
    return top_k_of_ids(x, winners, k=k)


@op(shader="ops/sampling/top_k", dense=("x",), trusted=True)
def top_k_of_parts(x: Node, *, k: int, part: int) -> Launch:
    """Return the ids of the largest values of each part of each row; see `top_k`.

    Parameters
    ----------
    x : (rows, cols)
        f32.
    k : int
        1 to 256.
    part : int
        Columns in a part; the last may have fewer.

    Returns
    -------
    (rows, parts * k), i32
        As `top_k`, part by part.
    """
    cols = _require_row(x, k)
    require(part > 0, ShapeError, f"top_k: parts of {part} columns, needs at least 1")
    parts = -(-cols // part)
    return _top_k(x, x, k, length=cols, part=part, parts=parts, gathered=False)


@top_k_of_parts.reference
def top_k_of_parts_reference(x: Array, *, k: int, part: int) -> Array:
    """Return the ids of the largest values of each part of each row."""
    starts = range(0, x.shape[1], part)
    found = [[_best(row[s : s + part], k, s) for s in starts] for row in x]
    return np.array(found, np.int32).reshape(len(x), len(starts) * k)


@op(shader="ops/sampling/top_k", dense=("x", "ids"), trusted=True)
def top_k_of_ids(x: Node, ids: Node, *, k: int) -> Launch:
    """Return the ids of the largest among given values of each row; see `top_k`.

    Parameters
    ----------
    x : (rows, cols)
        f32.
    ids : (rows, n), i32
        Columns to look at, no column twice; those outside the row are passed over.
    k : int
        1 to 256.

    Returns
    -------
    (rows, k), i32.
    """
    _require_row(x, k)
    _require_rows("top_k", "ids", ids, I32, x, 2)
    length = ids.spec.shape[1]
    return _top_k(x, ids, k, length=length, part=max(length, 1), parts=1, gathered=True)


@top_k_of_ids.reference
def top_k_of_ids_reference(x: Array, ids: Array, *, k: int) -> Array:
    """Return the ids of the largest among given values of each row."""
    y = np.full((len(x), k), -1, np.int32)
    for row, values, columns in zip(y, x, ids, strict=True):
        # By id, so that the first of equal values wins, as in `top_k`.
        columns = np.sort(columns[(columns >= 0) & (columns < x.shape[1])])
        places = _best(values[columns], k, 0)
        row[:] = np.where(places < 0, -1, columns[places] if len(columns) else -1)
    return y


def _require_row(x: Node, k: int) -> int:
    """Check the operands of top_k, and return the number of columns."""
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


@op(dense=("x", "history", "sampling"), trusted=True)
def penalise(x: Node, history: Node, sampling: Node) -> Launch:
    """Lower the logits of tokens that were seen before.

    Parameters
    ----------
    x : (rows, cols)
        f32.
    history : (rows, n), i32
        Tokens seen, in any order; -1 marks an empty place.
    sampling : (rows, 8)
        f32.

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
    _require_sampling("penalise", sampling, x)
    rows, cols = x.spec.shape
    return Launch(
        Spec.dense((rows, cols), F32),
        {"x": x, "history": history, "sampling": sampling},
        groups=(-(-cols // PENALISE_COLUMNS), rows, 1),
        # A zero that the compiler does not know: it cannot fuse a product and a sum then.
        params={"cols": cols, "length": history.spec.shape[1], "zero": 0},
        choices={"COLUMNS": f"{PENALISE_COLUMNS}u"},
        work=2 * x.spec.nbytes,
    )


@penalise.reference
def penalise_reference(x: Array, history: Array, sampling: Array) -> Array:
    """Lower the logits of tokens that were seen before."""
    rows = zip(x, history, sampling, strict=True)
    return np.stack(
        [transforms.penalise(v, seen, SamplingParams(*map(float, k))) for v, seen, k in rows]
    )


@op(dense=("x", "ids", "sampling", "draws"), trusted=True)
def sample(x: Node, ids: Node, sampling: Node, draws: Node) -> Launch:
    """Choose one of the most likely tokens of each row.

    Parameters
    ----------
    x : (rows, cols), f32
        Logits, penalised where they are to be.
    ids : (rows, n), i32
        Of the n largest, as `top_k` gives them; n is 1 to 256.
    sampling : (rows, 8), f32
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
    _require_choice("sample", x, ids, sampling)
    _require_rows("sample", "draws", draws, U32, x, 1)
    rows = x.spec.shape[0]
    return _sample(x, ids, sampling, draws, rows)


@sample.reference
def sample_reference(x: Array, ids: Array, sampling: Array, draws: Array) -> Array:
    """Choose one of the most likely tokens of each row."""
    rows = zip(x, ids, sampling, draws, strict=True)
    return np.array([_chosen(v, i, SamplingParams(*map(float, k)), int(d)) for v, i, k, d in rows])


@op(shader="ops/sampling/sample", dense=("x", "ids", "sampling", "draws"), trusted=True)
def sample_into(token_slots: Node, x: Node, ids: Node, sampling: Node, draws: Node) -> Launch:
    """Choose a token of each row as `sample` does, and store it in a slot for a later step.

    Parameters
    ----------
    token_slots : (slots,)
        i32, a state, dense.
    x, ids, sampling
        See `sample`.
    draws : (rows, 2), u32
        A random number, and the slot of the row's token; a row with a slot beyond the last
        is not stored. Of two equal slots either may win.

    Returns
    -------
    `token_slots` after the write.

    Raises
    ------
    ShapeError
        As `sample`, or `token_slots` is not dense.
    ContextError
        `token_slots` is a weight or an input, which ops do not write.

    See Also
    --------
    resolve_tokens : Reads them.
    """
    return place_tokens("sample_into", token_slots, x, ids, sampling, draws)


@sample_into.reference
def sample_into_reference(
    token_slots: Array, x: Array, ids: Array, sampling: Array, draws: Array
) -> Array:
    """Choose a token of each row, and store it in its slot."""
    tokens, slots = sample_reference(x, ids, sampling, draws[:, 0]), draws[:, 1]
    there = slots < len(token_slots)
    token_slots[slots[there]] = tokens[there]
    return token_slots


def place_tokens(
    name: str, token_slots: Node, x: Node, ids: Node, sampling: Node, draws: Node, most: int = MAX_K
) -> Launch:
    """Return the launch of an op over the operands of `sample_into`, of up to `most` candidates."""
    _require_choice(name, x, ids, sampling, most)
    _require_rows(name, "draws", draws, U32, x, 2)
    require(
        draws.spec.shape[1] == 2,
        ShapeError,
        f"{name}: draws has {draws.spec.shape[1]} columns, needs 2",
    )
    _require_slots(name, token_slots)
    require_writable(name, token_slots)
    launch = _sample(x, ids, sampling, draws, token_slots.spec.shape[0])
    return replace(launch, out=token_slots.spec, into=token_slots, choices={"PLACED": True})


@op(dense=("ids",), trusted=True)
def resolve_tokens(ids: Node, token_slots: Node) -> Launch:
    """Replace references to slots by the tokens stored there.

    Parameters
    ----------
    ids : (...), i32
        Tokens; ``reference(slot)`` stands for what a slot of `token_slots` holds.
    token_slots : (slots,)
        i32, dense.

    Returns
    -------
    (...), i32
        Tokens, and -1 for references to slots that are not there.
    """
    require_dtype("resolve_tokens", "ids", ids, (I32,))
    _require_slots("resolve_tokens", token_slots)
    size = ids.spec.size
    return Launch(
        Spec.dense(ids.spec.shape, I32),
        {"ids": ids, "token_slots": token_slots},
        threads=size,
        params={"size": size, "slots": token_slots.spec.shape[0]},
        work=2 * ids.spec.nbytes,
    )


@resolve_tokens.reference
def resolve_tokens_reference(ids: Array, token_slots: Array) -> Array:
    """Replace references to slots by the tokens stored there."""
    slots = -2 - ids.astype(np.int64)
    there = (slots >= 0) & (slots < len(token_slots))
    return np.where(there, token_slots[np.where(there, slots, 0)], np.maximum(ids, -1))


def reference(slot: int) -> int:
    """Return the id that refers to the token in a slot; -1 still means no token."""
    return -2 - slot


def _sample(x: Node, ids: Node, sampling: Node, draws: Node, slots: int) -> Launch:
    rows, cols = x.spec.shape
    return Launch(
        Spec.dense((rows,), I32),
        {"x": x, "ids": ids, "sampling": sampling, "draws": draws},
        groups=(1, rows, 1),
        params={"cols": cols, "candidates": ids.spec.shape[1], "slots": slots},
        work=ids.spec.nbytes * 16,
    )


def _require_choice(op: str, x: Node, ids: Node, sampling: Node, most: int = MAX_K) -> None:
    require_rank(op, "x", x, 2, 2)
    require_dtype(op, "x", x, (F32,))
    _require_rows(op, "ids", ids, I32, x, 2)
    _require_sampling(op, sampling, x)
    candidates = ids.spec.shape[1]
    require(
        1 <= candidates <= most,
        ShapeError,
        f"{op}: ids has {candidates} candidates, needs 1 to {most}",
    )


def _require_slots(op: str, token_slots: Node) -> None:
    require_rank(op, "token_slots", token_slots, 1, 1)
    require_dtype(op, "token_slots", token_slots, (I32,))
    spec = token_slots.spec
    require(
        spec.is_dense and spec.offset == 0,
        ShapeError,
        f"{op}: token_slots is {spec.shape} of strides {spec.strides} at {spec.offset}, "
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


def _require_sampling(op: str, sampling: Node, x: Node) -> None:
    _require_rows(op, "sampling", sampling, F32, x, 2)
    require(
        sampling.spec.shape[1] == SAMPLING,
        ShapeError,
        f"{op}: sampling has {sampling.spec.shape[1]} columns, needs {SAMPLING}",
    )


def _best(values: Array, k: int, first: int) -> Array:
    """Return ids of the k largest, counted from `first`; NaN is largest, missing ids are -1."""
    is_nan = np.isnan(values)
    others = np.flatnonzero(~is_nan)
    ids = [
        np.flatnonzero(is_nan),
        others[largest(values[others], k).ids] if len(others) else others,
    ]
    joined = np.concatenate(ids)[:k] + first
    return np.pad(joined, (0, k - len(joined)), constant_values=-1)


def _chosen(logits: Array, ids: Array, sampling: SamplingParams, draw: int) -> int:
    # -1 fills up rows with fewer candidates.
    ids = ids[ids >= 0].astype(np.int64)
    # The likeliest comes first: if it is not finite, there is nothing to choose from.
    if not np.isfinite(logits[ids[0]]):
        return -1
    return transforms.pick(Candidates(ids, logits[ids]), sampling, draw)
