"""Each family of functions against NumPy, on fresh values in several layouts and ranks."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wgpu_backend.array as wx
from wgpu_backend.errors import DTypeError, OptionError, ShapeError

pytestmark = pytest.mark.usefixtures("session")

SHAPES = [(), (33,), (3, 257), (2, 3, 1, 4, 2, 3), (2, 0, 3)]
LAYOUTS: dict[str, Callable[[Any], Any]] = {
    "dense": lambda x: x,
    "turned": lambda x: x.T,
    "every other": lambda x: x[..., ::2],
    "backwards": lambda x: x[::-1],
}


def layouts(values: np.ndarray) -> list[tuple[Any, np.ndarray]]:
    """Arrays of these values, and views of them, beside NumPy's."""
    array = wx.array(values)
    views = LAYOUTS.values() if values.ndim else [LAYOUTS["dense"]]
    return [(view(array), view(values)) for view in views]


def same(ours: Any, theirs: Any, tolerance: float = 2e-6) -> None:
    """Values and shapes are equal, floats to within rounding."""
    if isinstance(theirs, tuple | list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b, tolerance)
        return
    values = np.asarray(theirs)
    assert ours.shape == values.shape
    np.testing.assert_allclose(ours.numpy(), values, rtol=tolerance, atol=tolerance)


UNARY = ("abs", "negative", "square", "sign", "floor", "ceil", "trunc", "round", "exp", "expm1",
         "sin", "cos", "tanh", "arctan", "isnan", "isfinite", "signbit", "degrees")  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_functions_of_one_value(rng, shape):
    values = rng.standard_normal(shape, dtype="f4")
    for (ours, theirs), name in zip(layouts(values) * 6, UNARY, strict=False):
        same(getattr(wx, name)(ours), getattr(np, name)(theirs))
    for name in UNARY:
        same(getattr(wx, name)(wx.array(values)), getattr(np, name)(values))


@pytest.mark.parametrize("kind", ["float32", "int32", "uint8", "int16"])
def test_functions_of_two_values_broadcast(rng, kind):
    a = rng.integers(1, 9, (2, 3, 1, 4, 2, 3)).astype(kind)
    b = rng.integers(1, 5, (5, 4, 1, 3)).astype(kind)
    for name in ("add", "subtract", "multiply", "floor_divide", "remainder", "maximum", "power"):
        with np.errstate(over="ignore"):
            wanted = getattr(np, name)(a, b)
        found = getattr(wx, name)(wx.array(a), wx.array(b))
        assert found.dtype == getattr(wx, kind)
        same(found, wanted.astype(kind), 1e-5)
    if kind != "float32":
        for name in ("bitwise_and", "bitwise_or", "bitwise_xor", "left_shift", "right_shift"):
            same(getattr(wx, name)(wx.array(a), wx.array(b)), getattr(np, name)(a, b))
        x, y = wx.array(a), wx.array(b)
        same((x & y) | ~(x ^ 3) << 1, (a & b) | ~(a ^ 3) << 1)
    assert wx.divmod(wx.array(a), 2)[1].tolist() == (a % 2).tolist()


def test_operators_give_names_other_arrays(rng):
    x = before = wx.array(rng.integers(0, 9, 7).astype("i4"))
    x += 2
    x //= 2
    x %= 3
    x <<= 2
    x |= 1
    expected = (((before.numpy() + 2) // 2) % 3 << 2) | 1
    assert x.tolist() == expected.tolist()
    assert before is not x


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (1, 2, 3, 4, 5)])
def test_folds_over_axes(rng, axis):
    values = rng.uniform(0.5, 1.5, (2, 3, 1, 4, 2, 3)).astype("f4")
    array = wx.array(values)
    for name in ("sum", "prod", "mean", "max", "min", "var", "std", "any", "all", "median"):
        for keepdims in (False, True):
            wanted = getattr(np, name)(values, axis=axis, keepdims=keepdims)
            same(getattr(wx, name)(array, axis=axis, keepdims=keepdims), wanted, 2e-5)
    same(array.logsumexp(axis), np.log(np.exp(values).sum(axis)), 1e-5)
    assert wx.count_nonzero(array > 1, axis=axis).tolist() == (values > 1).sum(axis).tolist()
    if not isinstance(axis, tuple):
        assert array.argmax(axis).tolist() == values.argmax(axis).tolist()
        assert array.argmin(axis).tolist() == values.argmin(axis).tolist()


def test_sums_of_integers_have_32_bits(rng):
    values = rng.integers(0, 255, (3, 33)).astype("u1")
    total = wx.array(values).sum()
    assert (total.dtype, total.item()) == (wx.uint32, int(values.sum()))
    assert wx.array(values > 9).sum().dtype == wx.int32
    assert wx.array(values).mean().dtype == wx.float32


@pytest.mark.parametrize("axis", [0, -1, None])
def test_scans_and_orders(rng, axis):
    values = rng.uniform(0.5, 1.5, (5, 3, 33)).astype("f4")
    values[values > 1.3] = 1.25  # some are equal
    for array, theirs in layouts(values):
        same(wx.cumsum(array, axis), np.cumsum(theirs, axis), 1e-5)
        same(wx.cumprod(array, axis), np.cumprod(theirs, axis), 1e-4)
        same(wx.sort(array, axis), np.sort(theirs, axis))
        order = np.argsort(theirs, axis, kind="stable")
        assert wx.argsort(array, axis).tolist() == order.tolist()
    along = 0 if axis is None else axis
    largest = np.sort(values, along)
    same(wx.topk(wx.array(values), 2, along), np.take(largest, [-2, -1], along))
    same(wx.diff(wx.array(values), axis=along, n=2), np.diff(values, 2, along), 1e-5)


def test_values_move(rng):
    values = rng.integers(0, 99, (4, 5, 6)).astype("i4")
    for array, x in layouts(values):
        same(wx.flip(array, axis=(0, 2)), np.flip(x, (0, 2)))
        same(wx.roll(array, (1, -2), axis=(0, 1)), np.roll(x, (1, -2), (0, 1)))
        same(wx.roll(array, 7), np.roll(x, 7))
        same(wx.tile(array, (2, 1, 3)), np.tile(x, (2, 1, 3)))
        same(wx.repeat(array, 3, axis=1), np.repeat(x, 3, 1))
        same(wx.pad(array, [(1, 0), (0, 2), (1, 1)]), np.pad(x, [(1, 0), (0, 2), (1, 1)]))
        same(wx.tril(array, k=1), np.tril(x, 1))
        same(wx.diagonal(array, 1, 0, 2), np.diagonal(x, 1, 0, 2))
        same(wx.trace(array), np.trace(x))
        same(wx.concatenate([array, array], 1), np.concatenate([x, x], 1))
    times = rng.integers(0, 4, 5)
    same(wx.repeat(wx.array(values), times, axis=1), np.repeat(values, times, 1))
    same(wx.meshgrid(*map(wx.array, values[0, :2])), list(np.meshgrid(*values[0, :2])))


def test_views_of_storage(rng):
    values = rng.standard_normal((6, 8), dtype="f4")
    array = wx.array(values) * 1
    same(array.view(wx.uint32), values.view("u4"))
    same(array.T.view(wx.int32), values.T.copy().view("i4"))
    assert array.view(wx.uint8)[1:].tolist() == values.view("u1")[1:].tolist()
    same(array.view(wx.uint8).view(wx.float32), values)
    wanted = np.lib.stride_tricks.as_strided(values.ravel()[3:], (4, 3, 2), (32, 8, 4))
    same(wx.as_strided(array, (4, 3, 2), (8, 2, 1), 3), wanted)
    same(wx.as_strided(array, (5,), (-2,), 9), values.ravel()[9::-2])
    with pytest.raises(ShapeError, match=r"reach values 0 to 48, there are 48"):
        wx.as_strided(array, (49,))
    with pytest.raises(ShapeError, match="multiple of 8 bytes"):
        wx.ones((2, 3)).view(wx.uint64)
    parts = wx.array(np.complex64([1 + 2j, 3 - 4j]))
    assert (parts.real.tolist(), parts.imag.tolist()) == ([1, 3], [2, -4])


def test_values_are_found_and_written_by_ids(rng):
    values = rng.integers(0, 9, (5, 4, 6)).astype("i4")
    array, ids = wx.array(values), rng.integers(-4, 4, (2, 3))
    same(wx.take(array, ids, axis=1), np.take(values, ids, 1))
    same(wx.take(array, wx.array([7, -1])), np.take(values, [7, -1]))
    places = np.argsort(rng.random((5, 4, 6)), 1)
    found = wx.take_along_axis(array, wx.array(places.astype("i4")), axis=1)
    same(found, np.take_along_axis(values, places, 1))
    written = values.copy()
    np.put_along_axis(written, places, found.numpy() + 1, 1)
    same(wx.put_along_axis(array, places, found + 1, axis=1), written)
    added = values.copy()
    np.add.at(added, (slice(None), [0, 2, 0]), 5)
    same(array.at[:, [0, 2, 0]].add(5), added)
    same(array.at[array > 4].multiply(2), np.where(values > 4, values * 2, values))
    same(wx.scatter_add_axis(array, np.zeros((5, 2, 6), "i4"), 1, axis=1)[:, 0], values[:, 0] + 2)
    same(wx.nonzero(array > 4), np.nonzero(values > 4))
    same(wx.argwhere(array > 4), np.argwhere(values > 4))
    rows = np.sort(values.ravel())
    for side in ("left", "right"):
        wanted = np.searchsorted(rows, values[0], side)
        same(wx.searchsorted(wx.array(rows), array[0], side=side), wanted)


def test_sets(rng):
    values = rng.integers(0, 9, (5, 7)).astype("f4")
    found = wx.unique_all(wx.array(values))
    numbers, first, inverse, counts = np.unique(
        values, return_index=True, return_inverse=True, return_counts=True
    )
    same(found, (numbers, first, inverse.reshape(values.shape), counts))
    same(wx.isin(wx.array(values), [1, 5]), np.isin(values, [1, 5]))
    assert wx.unique_values(wx.array([np.nan, np.nan, 1.0])).size == 3
    assert wx.unique_values(wx.zeros((0,))).size == 0


EQUATIONS = ("ij,jk->ik", "bij,bjk->bik", "ii->i", "ij->", "i,j->ji", "ij,ij", "...ij,jk->...ik",
             "ab,bc,cd->da")  # fmt: skip


@pytest.mark.parametrize("text", EQUATIONS)
def test_einsum(rng, text):
    extents = {name: 2 + i for i, name in enumerate("abcdijk")}
    extents["i"] = 5
    if text == "ii->i":
        extents["i"] = 4
    shapes = [
        (2, 3) * p.startswith("...") + tuple(extents[n] for n in p.replace("...", ""))
        for p in text.split("->")[0].split(",")
    ]
    values = [rng.standard_normal(s, dtype="f4") for s in shapes]
    same(wx.einsum(text, *map(wx.array, values)), np.einsum(text, *values), 1e-5)


def test_products_of_whole_numbers_are_exact(rng):
    a = rng.integers(-(2**31), 2**31, (3, 300)).astype("i4")
    b = rng.integers(-(2**31), 2**31, (300, 80)).astype("i4")
    for rows in (a[:, :9], a):  # few are multiplied one by one, many by digits
        cols = b[: rows.shape[1]]
        same(wx.array(rows) @ wx.array(cols), (rows @ cols).astype("i4"))
    small = rng.integers(0, 255, (5, 2, 3)).astype("u1")
    found = wx.array(small) @ wx.array(small.transpose(0, 2, 1))
    assert found.dtype == wx.uint8
    same(found, small @ small.transpose(0, 2, 1))


def test_products_of_any_axes(rng):
    a = rng.standard_normal((2, 3, 4, 5), dtype="f4")
    b = rng.standard_normal((4, 5, 6), dtype="f4")
    same(wx.tensordot(wx.array(a), wx.array(b)), np.tensordot(a, b), 1e-5)
    same(wx.inner(wx.array(a), wx.array(b[:, :, 0])), np.inner(a, b[:, :, 0]), 1e-5)
    same(wx.vecdot(wx.array(a), wx.array(a[0]), axis=-2), (a * a[0]).sum(-2), 1e-5)
    same(wx.kron(wx.array(a[0, 0]), wx.array(b[0])), np.kron(a[0, 0], b[0]))
    same(wx.outer(wx.array(a[0]), wx.array(b)), np.outer(a[0], b))
    c = rng.standard_normal((4, 6), dtype="f4")
    found = wx.addmm(wx.array(c), wx.array(a), wx.array(b[0]), alpha=2, beta=0.5)
    same(found, 0.5 * c + 2 * (a @ b[0]), 1e-5)


def test_arrays_from_nothing():
    same(wx.linspace(-3, 4, 50), np.linspace(-3, 4, 50, dtype="f4"))
    same(wx.linspace(0, 1, 4, endpoint=False), np.linspace(0, 1, 4, endpoint=False))
    same(wx.eye(3, 5, k=1, dtype=wx.int8), np.eye(3, 5, 1))
    same(wx.tri(4, 6, -1), np.tri(4, 6, -1))
    same(wx.arange(9, 1, -2), np.arange(9, 1, -2))
    same(wx.from_dlpack(np.arange(5, dtype="f4")), np.arange(5))
    assert np.from_dlpack(wx.arange(4)).tolist() == [0, 1, 2, 3]
    same(wx.asarray(wx.ones(2)), np.ones(2))


def test_random_numbers_follow_from_keys():
    key = wx.random.key(7)
    first, second = wx.random.normal((1000,), key=key), wx.random.normal((1000,), key=key)
    assert first.tolist() == second.tolist()
    assert abs(first.mean().item()) < 0.2
    wx.random.seed(3)
    drawn = [wx.random.uniform(shape=(4,)).tolist() for _ in range(2)]
    wx.random.seed(3)
    assert [wx.random.uniform(shape=(4,)).tolist() for _ in range(2)] == drawn
    assert drawn[0] != drawn[1]
    assert sorted(wx.random.permutation(9, key=key).tolist()) == list(range(9))
    die = wx.random.randint(1, wx.array([7, 3]), (99, 2), key=wx.random.split(key)[0])
    assert (die.min().item(), die.max(0).tolist()) == (1, [6, 2])
    logits = wx.array([0.0, 50.0, 0.0])
    assert wx.random.categorical(logits, num_samples=5).tolist() == [1] * 5


def test_small_floats_of_eight_bits(rng):
    every = np.arange(256, dtype="u1")
    values = wx.from_fp8(wx.array(every), wx.float32)
    assert values[[0x38, 0x7E, 1, 0x80]].tolist() == [1, 448, 2**-9, 0]
    numbers = np.delete(every, [0x7F, 0xFF])
    again = wx.to_fp8(values)[wx.array(numbers.astype("i4"))]
    assert again.tolist() == numbers.tolist()
    given = rng.uniform(-500, 500, 999).astype("f4")
    table = np.unique(values.numpy()[numbers])
    nearest = np.abs(table - given[:, None]).min(1)
    found = wx.from_fp8(wx.to_fp8(wx.array(given)), wx.float32).numpy()
    np.testing.assert_array_equal(np.abs(found - given), nearest)


def test_quantised_products_are_those_of_what_was_quantised(rng):
    w, x = wx.random.normal((8, 128)), wx.random.normal((5, 128))
    for mode in ("affine", "mxfp4", "nvfp4"):
        planes = wx.quantize(w, mode=mode)
        values = wx.dequantize(*planes, mode=mode, dtype=wx.float32)
        found = wx.quantized_matmul(x, *planes, mode=mode)
        same(found, x.numpy() @ values.numpy().T, 1e-4)
    with pytest.raises(OptionError, match="mxfp4 with groups of 64"):
        wx.quantize(w, group_size=64, mode="mxfp4")


def test_arrays_are_copied_pickled_and_written_as_gguf(rng, tmp_path):
    x = wx.array(rng.standard_normal((3, 32), dtype="f4")).astype(wx.bfloat16)
    for other in (copy.copy(x), copy.deepcopy({"x": x})["x"], pickle.loads(pickle.dumps(x))):
        other[0] = 0
        assert other.dtype == wx.bfloat16
        assert other[1:].tolist() == x[1:].tolist()
        assert other[0].tolist() != x[0].tolist()
    wx.save_gguf(tmp_path / "a.gguf", {"x": x, "n": wx.arange(3)}, {"general.name": "a test"})
    found, keys = wx.load(tmp_path / "a.gguf", return_metadata=True)
    assert keys["general.name"] == "a test"
    assert found["x"].astype(wx.float32).tolist() == x.astype(wx.float32).tolist()
    assert found["n"].tolist() == [0, 1, 2]
    with pytest.raises(DTypeError, match="y is u8, which the format lacks"):
        wx.save_gguf(tmp_path / "b.gguf", {"y": wx.zeros(2, wx.uint8)})


def test_what_does_not_fit_is_one_line():
    x = wx.ones((2, 3))
    for error, words, call in (
        (ShapeError, "do not broadcast", lambda: x + wx.ones((4,))),
        (DTypeError, "needs integers", lambda: x & 1),
        (DTypeError, "no integer type", lambda: wx.zeros(2, "uint64") + wx.zeros(2, "int8")),
        (ShapeError, "outside|axis|axes", lambda: x.sum(axis=5)),
        (ShapeError, "each once", lambda: x.sum(axis=(0, 0))),
        (ShapeError, "axis j", lambda: wx.einsum("ij,jk", x, x)),
        (ShapeError, "names 1 arrays, got 2", lambda: wx.einsum("ij", x, x)),
        (ShapeError, "kth is 9", lambda: wx.partition(x, 9)),
        (ShapeError, "3 numbers, axis 0", lambda: wx.repeat(x, [1, 2, 3], axis=0)),
        (DTypeError, "ids are f32", lambda: wx.take(x, wx.ones(2))),
        (IndexError, "axis 0 has 2", lambda: x[2]),
        (OptionError, "needs 'causal'", lambda: wx.fast.scaled_dot_product_attention(
            *[wx.ones((1, 1, 2, 4))] * 3, scale=1, mask="other")),
        (ShapeError, "5 axes", lambda: wx.conv3d(wx.ones((1, 5, 5, 2)), wx.ones((1, 3, 3, 2)))),
    ):  # fmt: skip
        with pytest.raises(error, match=words) as raised:
            call()
        assert "\n" not in str(raised.value)
