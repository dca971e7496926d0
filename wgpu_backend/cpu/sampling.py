"""NumPy twins of `wgpu_backend.ops.sampling.sampling`."""

from __future__ import annotations

import numpy as np

from wgpu_backend.cpu.twin import Array, twin
from wgpu_backend.ops.sampling.host import transforms
from wgpu_backend.ops.sampling.host.candidates import Candidates, largest
from wgpu_backend.ops.sampling.host.sampling_params import SamplingParams


@twin
def top_k_of_parts(x: Array, *, k: int, part: int) -> Array:
    """Largest values of each part of each row."""
    starts = range(0, x.shape[1], part)
    found = [[_best(row[s : s + part], k, s) for s in starts] for row in x]
    return np.array(found, np.int32).reshape(len(x), len(starts) * k)


@twin
def top_k_of_ids(x: Array, ids: Array, *, k: int) -> Array:
    """Largest values among some of each row."""
    y = np.full((len(x), k), -1, np.int32)
    for row, values, columns in zip(y, x, ids, strict=True):
        columns = np.sort(columns[(columns >= 0) & (columns < x.shape[1])])
        places = _best(values[columns], k, 0)
        row[:] = np.where(places < 0, -1, columns[places] if len(columns) else -1)
    return y


def _best(values: Array, k: int, first: int) -> Array:
    """Return ids of the k largest, counted from `first`; NaN is above infinity, -1 fills up."""
    is_nan = np.isnan(values)
    others = np.flatnonzero(~is_nan)
    ids = [
        np.flatnonzero(is_nan),
        others[largest(values[others], k).ids] if len(others) else others,
    ]
    joined = np.concatenate(ids)[:k] + first
    return np.pad(joined, (0, k - len(joined)), constant_values=-1)


@twin
def penalise(x: Array, history: Array, sampling: Array) -> Array:
    """Lower the logits of tokens that were seen before."""
    rows = zip(x, history, sampling, strict=True)
    return np.stack(
        [transforms.penalise(v, seen, SamplingParams(*map(float, k))) for v, seen, k in rows]
    )


@twin
def sample(x: Array, ids: Array, sampling: Array, draws: Array) -> Array:
    """Choose one of the most likely tokens of each row."""
    rows = zip(x, ids, sampling, draws, strict=True)
    return np.array([_chosen(v, i, SamplingParams(*map(float, k)), int(d)) for v, i, k, d in rows])


@twin
def sample_into(token_slots: Array, x: Array, ids: Array, sampling: Array, draws: Array) -> Array:
    """Choose a token of each row, and keep it in its slot."""
    tokens, slots = sample(x, ids, sampling, draws[:, 0]), draws[:, 1]
    there = slots < len(token_slots)
    token_slots[slots[there]] = tokens[there]
    return token_slots


@twin
def top_k_sample_into(
    token_slots: Array, x: Array, ids: Array, sampling: Array, draws: Array, *, k: int
) -> Array:
    """Choose among the largest of some of each row."""
    return sample_into(token_slots, x, top_k_of_ids(x, ids, k=k), sampling, draws)


@twin
def resolve_tokens(ids: Array, token_slots: Array) -> Array:
    """Put tokens in the place of references to them."""
    slots = -2 - ids.astype(np.int64)
    there = (slots >= 0) & (slots < len(token_slots))
    return np.where(there, token_slots[np.where(there, slots, 0)], np.maximum(ids, -1))


def _chosen(logits: Array, ids: Array, sampling: SamplingParams, draw: int) -> int:
    ids = ids[ids >= 0].astype(np.int64)
    if not np.isfinite(logits[ids[0]]):
        return -1
    return transforms.pick(Candidates(ids, logits[ids]), sampling, draw)
