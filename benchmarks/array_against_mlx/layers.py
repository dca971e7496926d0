# ruff: noqa: ANN401 - arrays of two libraries, alike in what is called
"""Random operands of products and network layers."""

from __future__ import annotations

from typing import Any

import wgpu_backend.array as wx
from benchmarks.array_against_mlx.draw import FLOATS, Both, Case, Draw, Drawn


def pair(shape_a: tuple[int, ...], shape_b: tuple[int, ...], **options: Any) -> Drawn:
    """Draw two arrays of given shapes."""

    def drawn(d: Draw) -> Case:
        kind = d.one_of(*FLOATS)
        return (d.array(shape_a, kind), d.array(shape_b, kind)), options

    return drawn


def matrices(d: Draw) -> Case:
    """Draw two matrices, or stacks of them."""
    n, k, m = (int(v) for v in d.rng.integers(1, 40, 3))
    batch = d.one_of((), (3,), (2, 3))
    kind = d.one_of(*FLOATS)
    return (d.array((*batch, n, k), kind), d.array((*d.one_of((), batch), k, m), kind)), {}


def convolved(axes: int, *, transposed: bool = False) -> Drawn:
    """Draw images and kernels."""

    def drawn(d: Draw) -> Case:
        groups = d.one_of(1, 1, 2)
        inner, outer = 2 * int(d.rng.integers(1, 5)), 2 * int(d.rng.integers(1, 5))
        picture = tuple(int(n) for n in d.rng.integers(5, 9, axes))
        kernel = tuple(int(n) for n in d.rng.integers(1, 4, axes))
        kind = d.one_of("float32", "float16")
        options: dict[str, Any] = {
            "stride": d.one_of(1, 2),
            "padding": d.one_of(0, 1) if min(kernel) > 1 else 0,
            "dilation": d.one_of(1, 2) if not transposed else 1,
            "groups": groups,
        }
        x = d.array((2, *picture, inner), kind)
        return (x, d.array((outer, *kernel, inner // groups), kind)), options

    return drawn


def equation(d: Draw) -> Case:
    """Draw an einsum."""
    text, *shapes = d.one_of(
        ("ij,jk->ik", (3, 4), (4, 5)),
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
        ("ii->i", (5, 5)),
        ("ij->", (3, 7)),
        ("i,j,k->kji", (3,), (4,), (5,)),
        ("bhqd,bhkd->bhqk", (2, 3, 4, 5), (2, 3, 6, 5)),
        ("abc,cd,d->ab", (2, 3, 4), (4, 5), (5,)),
        ("ij,ij->j", (3, 4), (3, 4)),
        ("ij,jk", (3, 4), (4, 5)),
    )
    return (text, *(d.array(s) for s in shapes)), {}


def quantised(d: Draw) -> Case:
    """Draw a matrix and its quantisation."""
    mode = d.one_of("affine", "mxfp4", "mxfp8", "nvfp4")
    options: dict[str, Any] = {"mode": mode}
    if mode == "affine":
        options |= {"group_size": d.one_of(32, 64, 128), "bits": d.one_of(2, 3, 4, 5, 6, 8)}
    return (d.array((int(d.rng.integers(1, 9)), 256), d.one_of("float32", "bfloat16")),), options


def normed(d: Draw) -> Case:
    """Draw rows and a weight of a norm."""
    cols = int(d.rng.integers(1, 40))
    shape = (*d.shape(0, 2), cols)
    return (d.array(shape, d.one_of(*FLOATS)), d.array((cols,))), {"eps": 1e-5}


def normed_twice(d: Draw) -> Case:
    """Draw rows, a weight and a bias."""
    (x, weight), options = normed(d)
    return (x, weight, d.array(weight.ours.shape)), options


def rotated(d: Draw) -> Case:
    """Draw tokens of heads and the options of their rotation."""
    cols, heads = 2 * int(d.rng.integers(2, 9)), int(d.rng.integers(1, 4))
    dims = d.one_of(cols, cols // 2 // 2 * 2)
    options: dict[str, Any] = {"base": 10000.0, "freqs": None}
    if d.rng.random() < 0.4:
        options = {"base": None, "freqs": d.array((dims // 2,), low=1, high=50)}
    options |= {
        "dims": dims,
        "traditional": d.one_of(True, False),
        "scale": d.one_of(1.0, 0.25),
        "offset": d.one_of(0, 7, d.array((2,), "int32", 0, 20)),
    }
    return (d.array((2, heads, 5, cols), d.one_of(*FLOATS)),), options


def attended(d: Draw) -> Case:
    """Draw queries, keys, values and a mask."""
    kv, share, cols = int(d.rng.integers(1, 3)), d.one_of(1, 3), d.one_of(8, 64)
    kind = d.one_of("float32", "float16")
    q = d.array((2, kv * share, 5, cols), kind)
    k, v = (d.array((2, kv, 7, cols), kind) for _ in range(2))
    mask = d.one_of(None, "causal", d.array((5, 7), kind), d.array((2, 1, 5, 7), "bool"))
    if isinstance(mask, Both) and mask.ours.dtype == wx.bool:
        mask = Both(mask.ours | True, mask.theirs | True)
    sinks = d.one_of(None, d.array((kv * share,), kind))
    return (q, k, v), {"scale": cols**-0.5, "mask": mask, "sinks": sinks}
