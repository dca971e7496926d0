# ruff: noqa: ANN401 - arrays of two libraries, alike in what is called
"""Compare functions of `wgpu_backend.array` with MLX's on random arrays.

    pip install "mlx[cpu]"
    python -m benchmarks.array_against_mlx [--device cpu] [--cases 12] [--only NAME]

Each case is drawn anew: shapes of 0 to 4 axes with extents from 1 to 9, element types, and layouts
(dense, transposed, every other value, reversed, broadcast). For a function it prints how many cases
there were, the largest difference, in units of the larger of 1 and the value, and what else
differed: shapes, types where both have them, NaN in other places.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx  # pyright: ignore[reportMissingImports]
import mlx.nn as mlx_nn  # pyright: ignore[reportMissingImports]
import numpy as np

import wgpu_backend.array as wx

FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int32", "uint32", "int16", "uint16", "int8", "uint8")
NAMES = {
    d.name: n
    for n, d in ((n, getattr(wx, n)) for n in (*FLOATS, *INTEGERS, "int64", "uint64", "bool"))
}
UNITS = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}
# Differences that are meant, by function: shown beside the figures.
BY_DESIGN = {
    "argmax": "int32, the default index type of the array API; MLX has uint32",
    "argmin": "int32; MLX has uint32",
    "argsort": "int32; MLX has uint32. Equal values keep their order; MLX's need not",
    "argpartition": "int32; MLX has uint32. Any order on both sides of the place is right",
    "topk": "ascending; MLX's are in no order",
    "partition": "sorted; any order on both sides of the place is right",
    "random.categorical": "int32; MLX has uint32",
    "random.permutation": "int32; MLX has uint32",
    "quantize": "equal but where a quotient falls between two codes to the last bit",
}


@dataclass
class Both:
    """The same values as an array of each."""

    ours: Any
    theirs: Any


@dataclass
class Found:
    """What cases of a function gave."""

    cases: int = 0
    worst: float = 0.0
    problems: list[str] = field(default_factory=list)


class Draw:
    """Random arrays of both."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng

    def shape(self, least: int = 0, most: int = 4) -> tuple[int, ...]:
        """Extents of an array."""
        rank = int(self.rng.integers(least, most + 1))
        return tuple(int(n) for n in self.rng.integers(1, 10, rank))

    def values(self, shape: tuple[int, ...], dtype: str, low: float, high: float) -> Any:
        """Values in a type, exact in NumPy's float32 or integers."""
        if dtype == "bool":
            return self.rng.random(shape) < 0.5
        if dtype in FLOATS:
            return self.rng.uniform(low, high, shape).astype(np.float32)
        info = np.iinfo(dtype)
        least, most = max(int(low), info.min), min(int(high), info.max)
        return self.rng.integers(least, max(most, least + 1), shape).astype(dtype)

    def array(
        self,
        shape: tuple[int, ...],
        dtype: str = "float32",
        low: float = -3.0,
        high: float = 3.0,
    ) -> Both:
        """An array in one of several layouts."""
        way = self.rng.integers(0, 5) if shape else 0
        host = self.values(shape, dtype, low, high)
        if way == 1:
            order = self.rng.permutation(len(shape))
            back = [int(k) for k in np.argsort(order)]
            return self._each(host.transpose(order), dtype, lambda x: x.transpose(*back))
        if way == 2:
            doubled = np.repeat(host, 2, -1)
            return self._each(doubled, dtype, lambda x: x[..., ::2])
        if way == 3:
            return self._each(host[::-1], dtype, lambda x: x[::-1])
        if way == 4:
            one = host[:1]
            return self._each(one, dtype, lambda x: _module(x).broadcast_to(x, shape))
        return self._each(host, dtype, lambda x: x)

    def _each(self, host: Any, dtype: str, view: Callable[[Any], Any]) -> Both:
        host = host.copy()
        ours = wx.array(host).astype(getattr(wx, dtype))
        theirs = mx.array(host).astype(mx.bool_ if dtype == "bool" else getattr(mx, dtype))
        return Both(view(ours), view(theirs))

    def one_of(self, *choices: Any) -> Any:
        """One of several."""
        return choices[int(self.rng.integers(0, len(choices)))]

    def axis(self, shape: tuple[int, ...]) -> int:
        """An axis of a shape, from either end."""
        return int(self.rng.integers(-len(shape), len(shape)))


def _module(x: Any) -> Any:
    return mx if isinstance(x, mx.array) else wx


Case = tuple[tuple[Any, ...], dict[str, Any]]
Drawn = Callable[[Draw], Case]


def unary(dtypes: tuple[str, ...], low: float = -3.0, high: float = 3.0) -> Drawn:
    """One array."""

    def drawn(d: Draw) -> Case:
        return (d.array(d.shape(), d.one_of(*dtypes), low, high),), {}

    return drawn


def binary(dtypes: tuple[str, ...], low: float = -3.0, high: float = 3.0) -> Drawn:
    """Two arrays that broadcast, of one type or two, or one and a number."""

    def drawn(d: Draw) -> Case:
        shape = d.shape(0, 3)
        other = tuple(d.one_of(1, n) for n in shape[int(d.rng.integers(0, len(shape) + 1)) :])
        kind = d.one_of(*dtypes)
        first = d.array(shape, kind, low, high)
        if d.rng.random() < 0.2:
            return (first, 2), {}
        second = d.one_of(kind, kind, *dtypes)
        return (first, d.array(other, second, low, high)), {}

    return drawn


def reduced(dtypes: tuple[str, ...], *, one_axis: bool = False, keep: bool = True) -> Drawn:
    """One array and axes of it."""

    def drawn(d: Draw) -> Case:
        shape = d.shape(1)
        options: dict[str, Any] = {"axis": d.axis(shape)}
        if not one_axis:
            some = tuple(a for a in range(len(shape)) if d.rng.random() < 0.5) or (0,)
            options = {"axis": d.one_of(None, d.axis(shape), some)}
        if keep:
            options["keepdims"] = d.one_of(True, False)
        return (d.array(shape, d.one_of(*dtypes)),), options

    return drawn


def shaped(function: Callable[[Draw, tuple[int, ...]], dict[str, Any]], least: int = 1) -> Drawn:
    """One array of any type and options made of its shape."""

    def drawn(d: Draw) -> Case:
        shape = d.shape(least)
        return (d.array(shape, d.one_of(*FLOATS, *INTEGERS, "bool"), 0, 9),), function(d, shape)

    return drawn


def _pair(shape_a: tuple[int, ...], shape_b: tuple[int, ...], **options: Any) -> Drawn:
    def drawn(d: Draw) -> Case:
        kind = d.one_of(*FLOATS)
        return (d.array(shape_a, kind), d.array(shape_b, kind)), options

    return drawn


def matrices(d: Draw) -> Case:
    """Two matrices, or stacks of them."""
    n, k, m = (int(v) for v in d.rng.integers(1, 40, 3))
    batch = d.one_of((), (3,), (2, 3))
    kind = d.one_of(*FLOATS)
    return (d.array((*batch, n, k), kind), d.array((*d.one_of((), batch), k, m), kind)), {}


def with_ids(d: Draw) -> Case:
    """An array, ids, and an axis."""
    shape = d.shape(1)
    axis = d.axis(shape)
    ids = d.array(d.shape(1, 2), "int32", 0, shape[axis])
    return (d.array(shape, d.one_of(*FLOATS, *INTEGERS)), ids), {"axis": axis}


def along(d: Draw) -> Case:
    """An array and an id for each value."""
    shape = d.shape(1)
    axis = d.axis(shape)
    wanted = list(shape)
    wanted[axis] = int(d.rng.integers(1, 6))
    ids = d.array(tuple(wanted), "int32", 0, shape[axis])
    return (d.array(shape, d.one_of(*FLOATS, *INTEGERS)), ids), {"axis": axis}


def put(d: Draw) -> Case:
    """An array, places along an axis, each once, and values."""
    shape = d.shape(1)
    axis = d.axis(shape) % len(shape)
    order = np.argsort(d.rng.random(shape), axis=axis).astype(np.int32)
    kind = d.one_of(*FLOATS, *INTEGERS)
    ids = d._each(order, "int32", lambda x: x)
    return (d.array(shape, kind), ids, d.array(shape, kind)), {"axis": axis}


def chosen(d: Draw) -> Case:
    """A condition and two arrays that broadcast with it."""
    shape = d.shape(1, 3)
    kind = d.one_of(*FLOATS, *INTEGERS, "bool")
    return (d.array(shape, "bool"), d.array(shape, kind), d.array(shape[-1:], kind)), {}


def convolved(axes: int, *, transposed: bool = False) -> Drawn:
    """Pictures and kernels."""

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


def padded(d: Draw) -> Case:
    """An array, and values to add around it."""
    shape = d.shape(1)
    pairs = [(int(a), int(b)) for a, b in d.rng.integers(0, 3, (len(shape), 2))]
    mode = d.one_of("constant", "edge")
    return (d.array(shape, d.one_of("float32", "int32")), pairs), {"mode": mode}


def strided(d: Draw) -> Case:
    """Views of the values of an array."""
    return (d.array((5, 9)),), {"shape": (4, 3, 2), "strides": (9, 2, 1), "offset": 3}


def equation(d: Draw) -> Case:
    """An einsum."""
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


def index(d: Draw, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """Numbers, slices, new axes and an array of ids."""
    found: list[Any] = []
    used = False
    for extent in shape:
        if d.rng.random() < 0.2:
            found.append(None)
        kind = int(d.rng.integers(0, 4))
        if kind == 0 and not used:
            found.append(int(d.rng.integers(-extent, extent)))
        elif kind == 1 and not used:
            used = True
            found.append(d.array((2, 3), "int32", 0, extent))
        else:
            step = d.one_of(1, 2, -1)
            found.append(slice(None, None, step) if step < 0 else slice(0, extent, step))
    return tuple(found)


def indexed(d: Draw) -> Case:
    """An array and an index."""
    shape = d.shape(1)
    return (d.array(shape, d.one_of(*FLOATS, *INTEGERS)), index(d, shape)), {}


def assigned(d: Draw) -> Case:
    """An array, a slice of it, and values."""
    shape = d.shape(1)
    start = tuple(int(d.rng.integers(0, n)) for n in shape)
    places = tuple(slice(a, None, d.one_of(1, 2)) for a in start)
    return (d.array(shape, d.one_of("float32", "int32"), 0, 9), places, 5), {}


def added(d: Draw) -> Case:
    """An array, ids of rows that repeat, and rows to add."""
    shape = d.shape(1, 3)
    ids = d.array((7,), "int32", 0, shape[0])
    return (d.array(shape), ids, d.array((7, *shape[1:]))), {}


def placed(d: Draw) -> Case:
    """An array and a window that begins where an array says."""
    start = Both(wx.array([1, 2], dtype=wx.int32), mx.array([1, 2], dtype=mx.int32))
    return (d.array((5, 4, 7)), start), {"axes": (0, 2), "slice_size": (2, 4, 3)}


def _assign(x: Any, places: Any, values: Any) -> Any:
    made = x + 0
    made[places] = values
    return made


def quantised(d: Draw) -> Case:
    """A matrix and how to quantise it."""
    mode = d.one_of("affine", "mxfp4", "mxfp8", "nvfp4")
    options: dict[str, Any] = {"mode": mode}
    if mode == "affine":
        options |= {"group_size": d.one_of(32, 64, 128), "bits": d.one_of(2, 3, 4, 5, 6, 8)}
    return (d.array((int(d.rng.integers(1, 9)), 256), d.one_of("float32", "bfloat16")),), options


def planes(module: Any, w: Any, options: dict[str, Any]) -> tuple[Any, ...]:
    """The same planes for both: MLX's."""
    made = mx.quantize(mx.array(np.asarray(w)), **options)
    return made if module is mx else tuple(wx.array(np.asarray(p)) for p in made)


def _dequantised(module: Any) -> Callable[..., Any]:
    def function(w: Any, **options: Any) -> Any:
        return module.dequantize(*planes(module, _host(w), options), **options)

    return function


def _multiplied(module: Any) -> Callable[..., Any]:
    def function(w: Any, **options: Any) -> Any:
        host = _host(w)
        x = module.array((host[:, ::-1] / 3).astype(np.float32))
        given = planes(module, host, options)
        given = given if len(given) == 3 else (*given, None)
        return module.quantized_matmul(x, *given, transpose=True, **options)

    return function


def _gathered(module: Any) -> Callable[..., Any]:
    def function(w: Any, **options: Any) -> Any:
        host = np.stack([_host(w)] * 3) * np.arange(1, 4, dtype=np.float32).reshape(3, 1, 1)
        x = module.array((host[:, :, ::-1] / 3).astype(np.float32))
        given = planes(module, host, options)
        given = given if len(given) == 3 else (*given, None)
        lhs, rhs = (module.array(np.asarray(v, np.uint32)) for v in ([0, 2], [1, 1]))
        return module.gather_qmm(
            x, *given, lhs_indices=lhs, rhs_indices=rhs, transpose=True, **options
        )

    return function


def _host(x: Any) -> Any:
    if isinstance(x, mx.array):
        return np.asarray(x.astype(mx.float32) if x.dtype == mx.bfloat16 else x)
    return np.asarray(x)


def normed(d: Draw) -> Case:
    """Rows, and a weight for them."""
    cols = int(d.rng.integers(1, 40))
    shape = (*d.shape(0, 2), cols)
    return (d.array(shape, d.one_of(*FLOATS)), d.array((cols,))), {"eps": 1e-5}


def normed_twice(d: Draw) -> Case:
    """Rows, a weight and a bias."""
    (x, weight), options = normed(d)
    return (x, weight, d.array(weight.ours.shape)), options


def rotated(d: Draw) -> Case:
    """Tokens of heads, and how they are rotated."""
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
    """Queries, keys, values, and a mask."""
    kv, share, cols = int(d.rng.integers(1, 3)), d.one_of(1, 3), d.one_of(8, 64)
    kind = d.one_of("float32", "float16")
    q = d.array((2, kv * share, 5, cols), kind)
    k, v = (d.array((2, kv, 7, cols), kind) for _ in range(2))
    mask = d.one_of(None, "causal", d.array((5, 7), kind), d.array((2, 1, 5, 7), "bool"))
    if isinstance(mask, Both) and mask.ours.dtype == wx.bool:
        mask = Both(mask.ours | True, mask.theirs | True)
    sinks = d.one_of(None, d.array((kv * share,), kind))
    return (q, k, v), {"scale": cols**-0.5, "mask": mask, "sinks": sinks}


def keyed(*choices: dict[str, Any]) -> Drawn:
    """Options of a draw, with a key."""

    def drawn(d: Draw) -> Case:
        number = int(d.rng.integers(0, 2**31))
        options = dict(d.one_of(*choices))
        return (), {**options, "key": Both(wx.random.key(number), mx.random.key(number))}

    return drawn


def _meshed(d: Draw) -> Case:
    rows = [d.array((int(n),)) for n in d.rng.integers(1, 6, 3)]
    return tuple(rows), {"indexing": d.one_of("xy", "ij")}


def _listed(d: Draw) -> Case:
    shape = d.shape(1, 3)
    axis = d.axis(shape)
    kind = d.one_of(*FLOATS, *INTEGERS)
    return ([d.array(shape, kind) for _ in range(3)],), {"axis": axis}


def _fixed(*cases: Case) -> Drawn:
    return lambda d: d.one_of(*cases)


def _order(d: Draw, shape: tuple[int, ...]) -> dict[str, Any]:
    return {"axes": tuple(int(k) for k in d.rng.permutation(len(shape)))}


SMALL = ("float32", "int32", "int16", "uint8")
ALL = (*FLOATS, *INTEGERS, "bool")
NUMBERS = (*FLOATS, *INTEGERS)
ANGLES = ("sin", "cos", "tan", "arctan", "sinh", "cosh", "tanh", "arcsinh", "exp", "expm1", "erf")
CASES: dict[str, Drawn] = {
    **{name: unary(FLOATS) for name in (*ANGLES, "sigmoid", "degrees", "radians")},
    **{name: unary(FLOATS, 0.1, 9) for name in ("log", "log2", "log10", "sqrt", "rsqrt")},
    **{name: unary(FLOATS, -0.9, 0.9) for name in ("arcsin", "arccos", "arctanh", "erfinv")},
    **{name: unary(FLOATS, 1.1, 9) for name in ("arccosh", "reciprocal")},
    "log1p": unary(FLOATS, -0.9, 9),
    **{name: unary(NUMBERS) for name in ("abs", "negative", "square", "sign")},
    **{name: unary(FLOATS) for name in ("floor", "ceil", "round", "isnan", "isinf", "isfinite")},
    **{name: unary(ALL) for name in ("logical_not", "isposinf", "isneginf")},
    "bitwise_invert": unary((*INTEGERS, "bool"), -99, 99),
    "nan_to_num": unary(FLOATS),
    **{name: binary(NUMBERS, 0, 9) for name in ("add", "multiply", "maximum", "minimum")},
    "subtract": binary(NUMBERS, 0, 9),
    "divide": binary(NUMBERS, 1, 9),
    "power": binary(("float32", "int32"), 1, 5),
    **{name: binary(NUMBERS, 1, 99) for name in ("floor_divide", "remainder", "divmod")},
    "arctan2": binary(FLOATS),
    "logaddexp": binary(FLOATS),
    **{
        name: binary(ALL, 0, 4)
        for name in (
            *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal"),
            *("logical_and", "logical_or"),
        )
    },
    **{f"bitwise_{n}": binary((*INTEGERS[:2], "bool"), 0, 99) for n in ("and", "or", "xor")},
    **{name: binary(INTEGERS[:2], 0, 9) for name in ("left_shift", "right_shift")},
    "where": chosen,
    "clip": lambda d: ((d.array(d.shape(), d.one_of(*NUMBERS), 0, 9), 2, 5), {}),
    "isclose": binary(FLOATS),
    "allclose": binary(("float32",)),
    "array_equal": lambda d: ((x := d.array(d.shape(1)), d.one_of(x, d.array((3,)))), {}),
    **{name: reduced(SMALL) for name in ("sum", "mean", "max", "min", "any", "all")},
    "prod": reduced(("float32", "int32")),
    "logsumexp": reduced(FLOATS),
    **{name: reduced(("float32",)) for name in ("var", "std", "median")},
    **{name: reduced(NUMBERS, one_axis=True) for name in ("argmax", "argmin")},
    **{name: reduced(NUMBERS, one_axis=True, keep=False) for name in ("sort", "argsort")},
    **{
        name: reduced(("float32", "int32"), one_axis=True, keep=False)
        for name in ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")
    },
    "softmax": reduced(FLOATS, keep=False),
    "partition": shaped(lambda d, s: {"kth": s[-1] // 2, "axis": -1}),
    "argpartition": shaped(lambda d, s: {"kth": s[-1] // 2, "axis": -1}),
    "topk": shaped(lambda d, s: {"k": 1 + s[-1] // 2, "axis": -1}),
    "reshape": shaped(lambda d, s: {"shape": (-1,)}),
    "flatten": shaped(lambda d, s: {"start_axis": d.axis(s) % len(s)}),
    "unflatten": shaped(lambda d, s: {"axis": d.axis(s), "shape": (-1, 1)}),
    "transpose": shaped(_order),
    "permute_dims": shaped(_order),
    "swapaxes": lambda d: ((d.array(s := d.shape(1)), d.axis(s), d.axis(s)), {}),
    "moveaxis": lambda d: ((d.array(s := d.shape(1)), d.axis(s), d.axis(s)), {}),
    "expand_dims": shaped(lambda d, s: {"axis": d.axis(s)}),
    "squeeze": shaped(lambda d, s: {}),
    "broadcast_to": shaped(lambda d, s: {"shape": (2, *s)}),
    "as_strided": strided,
    "contiguous": shaped(lambda d, s: {}),
    "view": lambda d: ((d.array((3, 8)), "uint16"), {}),
    "concatenate": _listed,
    "stack": _listed,
    "split": lambda d: ((d.array((6, 4, 9)), 3, d.one_of(0, 2)), {}),
    "tile": shaped(lambda d, s: {"reps": tuple(int(v) for v in d.rng.integers(1, 3, len(s)))}),
    "repeat": shaped(lambda d, s: {"repeats": 3, "axis": d.one_of(None, d.axis(s))}),
    "roll": shaped(lambda d, s: {"shift": d.one_of(1, -2, 7), "axis": d.one_of(None, d.axis(s))}),
    "pad": padded,
    "tril": shaped(lambda d, s: {"k": d.one_of(-1, 0, 2)}, least=2),
    "triu": shaped(lambda d, s: {"k": d.one_of(-1, 0, 2)}, least=2),
    "diagonal": shaped(lambda d, s: {"offset": d.one_of(-1, 0, 1)}, least=2),
    "diag": lambda d: ((d.array(d.one_of((5,), (4, 6))),), {"k": d.one_of(-1, 0, 2)}),
    "trace": shaped(lambda d, s: {}, least=2),
    "meshgrid": _meshed,
    **{name: shaped(lambda d, s: {}, least=0) for name in ("atleast_1d", "atleast_2d")},
    "atleast_3d": shaped(lambda d, s: {}, least=0),
    "zeros_like": shaped(lambda d, s: {}),
    "ones_like": shaped(lambda d, s: {}),
    "arange": _fixed(((5,), {}), ((2, 9, 3), {}), ((0.5, 4.0, 0.25), {}), ((9, 1, -2), {})),
    "linspace": _fixed(((0, 1, 9), {}), ((-3, 4, 50), {}), ((5, 1, 7), {})),
    "eye": _fixed(((4,), {}), ((3, 5), {"k": 1}), ((5, 3), {"k": -2})),
    "identity": _fixed(((4,), {})),
    "tri": _fixed(((4,), {}), ((3, 5, 1), {}), ((5, 3, -1), {})),
    "full": _fixed((((2, 3), 1.5), {}), (((4,), 7), {})),
    "zeros": _fixed((((2, 3),), {})),
    "ones": _fixed((((2, 3),), {})),
    "take": with_ids,
    "take_along_axis": along,
    "put_along_axis": put,
    "getitem": indexed,
    "setitem": assigned,
    "at.add": added,
    "slice": placed,
    "slice_update": lambda d: (
        (d.array((5, 4, 7)), d.array((2, 4, 3)), placed(d)[0][1]),
        {"axes": (0, 2)},
    ),
    "matmul": matrices,
    "addmm": lambda d: ((d.array((4, 5)), d.array((4, 7)), d.array((7, 5))), {"alpha": 0.5}),
    "outer": _pair((5,), (7,)),
    "inner": _pair((3, 5), (4, 5)),
    "tensordot": _pair((3, 4, 5), (4, 5, 6), axes=2),
    "kron": _pair((2, 3), (4, 5)),
    "einsum": equation,
    "gather_mm": lambda d: (
        (d.array((3, 4, 5)), d.array((2, 5, 6))),
        {
            "lhs_indices": d.array((4,), "uint32", 0, 3),
            "rhs_indices": d.array((4,), "uint32", 0, 2),
        },
    ),
    **{f"conv{n}d": convolved(n) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": convolved(n, transposed=True) for n in (1, 2, 3)},
    "conv_general": lambda d: (
        (d.array((2, 7, 6, 4)), d.array((6, 3, 2, 4))),
        {"stride": (2, 1), "padding": ([1, 0], [2, 1]), "input_dilation": 2, "flip": True},
    ),
    "convolve": lambda d: (
        (d.array((9,)), d.array((4,))),
        {"mode": d.one_of("full", "same", "valid")},
    ),
    "quantize": quantised,
    "dequantize": quantised,
    "quantized_matmul": quantised,
    "gather_qmm": quantised,
    "from_fp8": lambda d: ((d.array((7, 9), "uint8", 0, 127),), {}),
    "to_fp8": unary(FLOATS, -99, 99),
    "fast.rms_norm": normed,
    "fast.layer_norm": normed_twice,
    "fast.rope": rotated,
    "fast.scaled_dot_product_attention": attended,
    "random.split": lambda d: ((Both(wx.random.key(7), mx.random.key(7)), 5), {}),
    "random.uniform": keyed({"shape": (3, 5)}, {"low": -2.0, "high": 3.0, "shape": (7,)}),
    "random.normal": keyed({"shape": (3, 5)}, {"shape": (9,), "loc": 2.0, "scale": 3.0}),
    "random.randint": keyed({"low": 0, "high": 9, "shape": (9,)}),
    "random.bernoulli": keyed({"p": 0.3, "shape": (9, 5)}),
    "random.gumbel": keyed({"shape": (9,)}),
    "random.laplace": keyed({"shape": (9,)}),
    "random.truncated_normal": keyed({"lower": -1.0, "upper": 2.0, "shape": (9,)}),
    "random.permutation": keyed({"x": 33}),
    "random.categorical": keyed({"logits": None}),
    "relu": unary(FLOATS),
    "silu": unary(FLOATS),
    "gelu": unary(FLOATS),
    "gelu_approx": unary(FLOATS),
    "softplus": unary(FLOATS),
    "relu_squared": unary(FLOATS),
    "glu": lambda d: ((d.array((3, 8)),), {}),
}
SPECIAL: dict[str, Callable[[Any], Callable[..., Any]]] = {
    "dequantize": _dequantised,
    "quantized_matmul": _multiplied,
    "gather_qmm": _gathered,
    "getitem": lambda module: lambda x, places: x[places],
    "setitem": lambda module: _assign,
    "at.add": lambda module: lambda x, ids, values: x.at[ids].add(values),
}


def function_of(name: str, module: Any) -> Callable[..., Any]:
    """A function of ours or MLX's by its name here."""
    if name in SPECIAL:
        return SPECIAL[name](module)
    if name == "view":
        return lambda x, kind: module.view(x, getattr(module, kind))
    if name == "random.categorical":
        return lambda logits, key: module.random.categorical(
            module.array(np.linspace(-2, 2, 40, dtype=np.float32).reshape(4, 10)), key=key
        )
    if name == "random.uniform":
        return lambda **options: module.random.uniform(
            options.pop("low", 0), options.pop("high", 1), **options
        )
    path = name.split(".")
    if module is mx and not hasattr(mx, path[0]):
        return getattr(mlx_nn, name)
    found: Any = module
    for part in path:
        found = getattr(found, part)
    if name in ("argsort", "argpartition"):  # the values there: places of equal ones may differ
        return lambda x, axis, **options: module.take_along_axis(
            x, found(x, axis=axis, **options), axis=axis
        )
    if name == "tile":
        return lambda x, reps: found(x, reps)
    if name == "repeat":
        return lambda x, repeats, axis: found(x, repeats, axis=axis)
    return found


def side(value: Any, ours: bool) -> Any:
    """Operands of one side."""
    if isinstance(value, Both):
        return value.ours if ours else value.theirs
    if isinstance(value, list | tuple):
        return type(value)(side(v, ours) for v in value)
    if isinstance(value, dict):
        return {k: side(v, ours) for k, v in value.items()}
    return value


def outputs(value: Any) -> Iterator[Any]:
    """Arrays of a result."""
    if isinstance(value, list | tuple):
        for v in value:
            yield from outputs(v)
    else:
        yield value


def compare(name: str, ours: Any, theirs: Any, found: Found) -> None:
    """Note how two results differ."""
    a, b = _host(ours), _host(theirs)
    if isinstance(theirs, mx.array):
        own = NAMES.get(ours.dtype.name, ours.dtype.name)
        other = str(theirs.dtype).removeprefix("mlx.core.").removesuffix("_")
        if own != other:
            found.problems.append(f"type {own}, MLX {other}")
    if a.shape != b.shape:
        found.problems.append(f"shape {a.shape}, MLX {b.shape}")
        return
    if name in ("partition", "argpartition", "topk"):
        a, b = np.sort(a.reshape(-1)), np.sort(b.reshape(-1))
    x, y = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isnan(x), np.isnan(y)):
        found.problems.append("NaN in other places")
    with np.errstate(invalid="ignore"):
        error = np.abs(x - y) / np.maximum(1, np.abs(y))
    error = np.where(x == y, 0, np.nan_to_num(error)) / UNITS.get(str(ours.dtype), 1.0)
    found.worst = max(found.worst, float(error.max(initial=0)))


def run(name: str, cases: int, seed: int) -> Found:
    """Compare one function on fresh cases."""
    found = Found()
    for number in range(cases):
        d = Draw(np.random.default_rng([seed, number, sum(map(ord, name))]))
        args, options = CASES[name](d)
        results: list[Any] = []
        for module, ours in ((wx, True), (mx, False)):
            try:
                result = function_of(name, module)(*side(args, ours), **side(options, ours))
                module.eval([x for x in outputs(result) if hasattr(x, "dtype")])
                results.append(result)
            except Exception as error:  # shown in the table
                results.append(error)
        mine, other = results
        if isinstance(other, Exception):
            continue  # what MLX refuses is not compared
        found.cases += 1
        if isinstance(mine, Exception):
            found.problems.append(f"{type(mine).__name__}: {mine}"[:100])
            continue
        for a, b in zip(outputs(mine), outputs(other), strict=True):
            compare(name, a, b, found)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Compare with MLX")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cases", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="")
    asked = parser.parse_args()
    wx.set_default_device(asked.device)
    print("| function | cases | largest difference | else |\n|---|---:|---:|---|")
    total, wrong = 0, 0
    for name in sorted(CASES):
        if asked.only and asked.only != name:
            continue
        found = run(name, asked.cases, asked.seed)
        total += found.cases
        said = sorted(set(found.problems))
        wrong += bool(said) and name not in BY_DESIGN
        note = BY_DESIGN.get(name, "; ".join(said))
        print(f"| {name} | {found.cases} | {found.worst:.3g} | {note} |")
        sys.stdout.flush()
    print(f"\n{len(CASES)} functions, {total} cases, {wrong} with unexplained problems")


if __name__ == "__main__":
    main()
