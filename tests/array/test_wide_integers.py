"""Integers of 64 bits: what orders, folds and joins them is exact beyond 2^53, as NumPy's is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import wgpu_backend.array as wx
from wgpu_backend.errors import DTypeError

pytestmark = pytest.mark.usefixtures("session")

KINDS = {"int64": np.int64, "uint64": np.uint64}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def values(rng: np.random.Generator, kind: str, *shape: int) -> Any:
    """Any numbers of a type, its ends, neighbours that f64 takes for one, and equal ones."""
    ends = np.iinfo(KINDS[kind])
    found = rng.integers(ends.min, ends.max, shape, KINDS[kind], endpoint=True)
    row = found.reshape(-1)
    close = [ends.max, ends.min, 2**60 + 1, 2**60, 2**60 + 2, ends.max - 1, ends.min + 1, 0, 1]
    row[:18] = np.resize(np.array(close, KINDS[kind]), min(18, row.size))
    return found


def same(ours: Any, theirs: Any) -> None:
    got, wanted = ours.numpy(), np.asarray(theirs)
    assert got.dtype == (
        np.int32 if wanted.dtype == np.intp and got.itemsize == 4 else wanted.dtype
    )
    np.testing.assert_array_equal(got, wanted)


AXES = [None, 0, -1]


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "argmax", "argmin"])
def test_axes_are_folded(rng, kind, name, axis):
    x = values(rng, kind, 6, 47)
    theirs = {"axis": axis, **({"dtype": x.dtype} if name in ("sum", "prod") else {})}
    same(getattr(wx, name)(wx.array(x), axis=axis), getattr(np, name)(x, **theirs))
    same(getattr(wx, name)(wx.array(x).T[::-2]), getattr(np, name)(x.T[::-2]))


def test_many_values_are_folded_in_parts(rng, kind):
    x = values(rng, kind, 9001, 2)
    ours = wx.array(x)
    same(wx.sum(ours, axis=0), x.sum(0))
    same(wx.max(ours), x.max())
    same(wx.min(ours, axis=0), x.min(0))
    same(wx.argmin(ours, axis=0), x.argmin(0))
    same(wx.sum(wx.zeros((3, 0), dtype=ours.dtype), axis=1), np.zeros(3, x.dtype))
    same(wx.prod(wx.zeros((3, 0), dtype=ours.dtype), axis=1), np.ones(3, x.dtype))


SCANS = {"cumsum": np.add, "cumprod": np.multiply, "cummax": np.maximum, "cummin": np.minimum}


@pytest.mark.parametrize("shape", [(2, 33), (2, 2500), (33, 2)], ids=str)
@pytest.mark.parametrize("name", SCANS)
def test_running_folds(rng, kind, name, shape):
    x = values(rng, kind, *shape)
    ours, scanned = getattr(wx, name), SCANS[name].accumulate
    same(ours(wx.array(x), axis=1), scanned(x, axis=1))
    same(ours(wx.array(x), axis=0), scanned(x, axis=0))
    backwards = ours(wx.array(x), axis=1, reverse=True, inclusive=False)
    ends = np.iinfo(x.dtype)
    first = {"cumsum": 0, "cumprod": 1, "cummax": ends.min, "cummin": ends.max}[name]
    ahead = np.concatenate([x[:, 1:], np.full((shape[0], 1), first, x.dtype)], axis=1)
    same(backwards, scanned(ahead[:, ::-1], axis=1)[:, ::-1])


@pytest.mark.parametrize("shape", [(3, 47), (2, 1500)], ids=str)
def test_order(rng, kind, shape):
    x = values(rng, kind, *shape)
    ours = wx.array(x)
    same(wx.sort(ours), np.sort(x))
    same(wx.argsort(ours), np.argsort(x, kind="stable"))
    same(wx.sort(ours, axis=0), np.sort(x, axis=0))
    same(wx.sort(ours, axis=None), np.sort(x, axis=None))
    falling = np.argsort(~x, kind="stable")  # equal values keep their order
    same(wx.argsort(ours, descending=True), falling)
    same(wx.sort(ours[:, ::-1], descending=True), np.sort(x)[:, ::-1])
    same(wx.topk(ours, 5), np.sort(x)[:, -5:])
    assert wx.partition(ours, 3).numpy()[0, 3] == np.sort(x[0])[3]


def test_places_and_sets(rng, kind):
    x = values(rng, kind, 3, 30)
    ours, ordered = wx.array(x), np.sort(x[1])
    for side in ("left", "right"):
        found = wx.searchsorted(wx.array(ordered), ours, side=side)
        same(found, np.searchsorted(ordered, x, side))
    unique = wx.unique_all(ours)
    for got, wanted in zip(
        unique,
        np.unique(x, return_index=True, return_inverse=True, return_counts=True),
        strict=True,
    ):
        np.testing.assert_array_equal(got.numpy(), wanted)
    same(wx.isin(ours, ours[1]), np.isin(x, x[1]))


@pytest.mark.parametrize("shape", [(3, 5, 4), (60, 40, 300)], ids=str)
def test_products_of_matrices(rng, kind, shape):
    rows, cols, count = shape
    a, b = values(rng, kind, rows, count), values(rng, kind, count, cols)
    same(wx.matmul(wx.array(a), wx.array(b)), a @ b)
    same(wx.vecdot(wx.array(a[:3]), wx.array(b.T[:3])), (a[:3] * b.T[:3]).sum(-1))
    same(wx.trace(wx.array(a)), np.trace(a, dtype=a.dtype))
    same(wx.einsum("ij,ij->j", wx.array(a), wx.array(a)), (a * a).sum(0))


@pytest.mark.parametrize("name", ["add", "multiply", "maximum", "minimum"])
def test_values_fold_into_places(rng, kind, name):
    x, given = values(rng, kind, 7, 5), values(rng, kind, 9, 5)
    ids = np.array([3, -1, 3, 0, 6, 3, 2, -7, 3], np.int32)
    got = getattr(wx.array(x).at[wx.array(ids)], name)(wx.array(given))
    wanted = x.copy()
    getattr(np, name).at(wanted, ids, given)
    same(got, wanted)


def test_ranges_beyond_words(kind):
    dtype = getattr(wx, kind)
    top = int(np.iinfo(KINDS[kind]).max)
    for begin, end, step in [
        (2**60, 2**60 + 9, 2),
        (top - 3, top, 1),
        (top, top - 9, -4),
        (0, 3, 1),
    ]:
        wanted = np.array(range(begin, end, step), KINDS[kind])
        same(wx.arange(begin, end, step, dtype=dtype), wanted)
    assert wx.arange(2**40, 2**40, dtype=dtype).shape == (0,)
    with pytest.raises(DTypeError, match=f"arange: {top + 1} does not fit"):
        wx.arange(top, top + 2, dtype=dtype)
