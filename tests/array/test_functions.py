"""Functions of arrays are NumPy's, over types, odd sizes, views, many axes and broadcasting."""

import numpy as np
import pytest

import wgpu_backend.array as wx
from wgpu_backend.errors import DTypeError, ShapeError

pytestmark = pytest.mark.usefixtures("session")

UNARY = {
    name: (low, high)
    for names, low, high in [
        ("exp expm1 sin cos tan tanh arctan arcsinh sinh cosh sigmoid erf abs negative", -3, 3),
        ("sqrt log log2 log10 log1p rsqrt reciprocal", 0.1, 9),
        ("arcsin arccos arctanh", -0.9, 0.9),
        ("arccosh", 1.1, 9),
        ("floor ceil round trunc sign square isnan isfinite signbit", -5, 5),
    ]
    for name in names.split()
}
REFERENCES = {
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "erf": np.vectorize(__import__("math").erf),
    "rsqrt": lambda x: 1 / np.sqrt(x),
}
BINARY = [
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "arctan2", "hypot",
    "logaddexp", "equal", "less", "greater_equal", "not_equal", "floor_divide", "remainder",
    "copysign",
]  # fmt: skip
INTEGERS = [
    "add", "subtract", "multiply", "maximum", "floor_divide", "remainder", "bitwise_and",
    "bitwise_or", "bitwise_xor", "left_shift", "right_shift", "equal", "less",
]  # fmt: skip
REDUCTIONS = ["sum", "mean", "max", "min", "prod", "var", "std", "any", "all", "argmax", "argmin"]
SHAPES = [((33,), (33,)), ((3, 1, 5), (4, 1)), ((2, 3, 1, 2, 3), (2, 1, 4, 1, 1)), ((0, 3), (3,))]


def numbers(rng, shape, low=-4.0, high=4.0):
    return rng.uniform(low, high, shape).astype("f4")


def same(found, expected, rtol=2e-6):
    expected = np.asarray(expected)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found.numpy(), expected, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_value(rng, name):
    reference = REFERENCES.get(name) or getattr(np, name)
    for shape in ((257,), (3, 5, 2), (2, 1, 3, 2, 3)):
        x = numbers(rng, shape, *UNARY[name])
        same(getattr(wx, name)(wx.array(x).T), reference(x.astype("f8").T), rtol=5e-6)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_values(rng, name):
    for left, right in SHAPES:
        a, b = numbers(rng, left), numbers(rng, right)
        if name == "power":
            a = np.abs(a)
        same(getattr(wx, name)(wx.array(a), wx.array(b)), getattr(np, name)(a, b), rtol=2e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "uint16", "int32", "uint32"])
@pytest.mark.parametrize("name", INTEGERS)
def test_integers_are_exact_and_keep_their_type(rng, name, dtype):
    info = np.iinfo(dtype)
    a = rng.integers(info.min, info.max, (5, 7), dtype, endpoint=True)
    b = rng.integers(1, 7, (7,)).astype(dtype)
    found, expected = getattr(wx, name)(wx.array(a), wx.array(b)), getattr(np, name)(a, b)
    np.testing.assert_array_equal(found.numpy(), expected)
    assert found.numpy().dtype == expected.dtype


def test_signs_of_zero_are_those_of_maximum_and_minimum():
    # np.clip itself keeps -0.0 where bounds are numbers, and gives 0.0 where they are arrays.
    x = np.array([-0.0, 0.0, -1.0, 5.0], "f4")
    for low, high in ((0.0, 3.0), (-3.0, -0.0), (-0.0, 3.0)):
        wanted = np.minimum(np.maximum(x, np.full_like(x, low)), np.full_like(x, high))
        for bounds in ((low, high), (wx.full((4,), low), wx.full((4,), high))):
            found = wx.clip(wx.array(x), *bounds).numpy()
            np.testing.assert_array_equal(np.signbit(found), np.signbit(wanted))


@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (1, 3, 5)])
@pytest.mark.parametrize("name", REDUCTIONS)
def test_reductions_over_any_axes(rng, name, axis):
    shape = (2, 3, 4, 2, 3, 2) if axis == (1, 3, 5) else (5, 33, 3)
    x = numbers(rng, shape, 0.5, 1.5)
    if name.startswith("arg") and isinstance(axis, tuple):
        axis = axis[0]
    given = x > 1 if name in ("any", "all") else x
    expected = getattr(np, name)(given, axis=axis)
    same(getattr(wx, name)(wx.array(given), axis=axis), expected, rtol=2e-5)
    kept = getattr(np, name)(given, axis=axis, keepdims=True)
    assert getattr(wx, name)(wx.array(given), axis=axis, keepdims=True).shape == kept.shape


CALLS = {
    "transpose": lambda xp, x: xp.transpose(x, (2, 0, 1)),
    "moveaxis": lambda xp, x: xp.moveaxis(x, 0, -1),
    "concatenate": lambda xp, x: xp.concatenate([x, x * 2, x], axis=1),
    "stack": lambda xp, x: xp.stack([x, -x], axis=-1),
    "flip": lambda xp, x: xp.flip(x, axis=(0, 2)),
    "roll": lambda xp, x: xp.roll(x, 2, axis=1),
    "tile": lambda xp, x: xp.tile(x, (2, 1, 3)),
    "repeat": lambda xp, x: xp.repeat(x, 3, axis=1),
    "pad": lambda xp, x: xp.pad(x, [(1, 2), (0, 0), (3, 1)]),
    "tril": lambda xp, x: xp.tril(x, 1),
    "triu": lambda xp, x: xp.triu(x, -1),
    "diagonal": lambda xp, x: xp.diagonal(x, 1, 0, 1),
    "sort": lambda xp, x: xp.sort(x, axis=1),
    "argsort": lambda xp, x: xp.argsort(x, axis=0),
    "cumsum": lambda xp, x: xp.cumsum(x, axis=1),
    "cumprod": lambda xp, x: xp.cumprod(x, axis=2),
    "take": lambda xp, x: xp.take(x, xp.array([2, 0, 1]), axis=1),
    "where": lambda xp, x: xp.where(x > 0, x, 0.0),
    "clip": lambda xp, x: xp.clip(x, -1, 2),
    "einsum": lambda xp, x: xp.einsum("ijk,ljk->il", x, x),
    "tensordot": lambda xp, x: xp.tensordot(x, x, axes=([1, 2], [1, 2])),
    "matmul": lambda xp, x: xp.matmul(x, xp.transpose(x, (0, 2, 1))),
    "outer": lambda xp, x: xp.outer(x[0, 0], x[0, 1]),
    "expand_dims": lambda xp, x: xp.expand_dims(x, (0, 3)),
    "meshgrid": lambda xp, x: xp.meshgrid(x[0, 0], x[0, 1])[1],
    "linspace": lambda xp, x: xp.linspace(-1, 3, 33) + 0 * x[0, 0, 0],
    "eye": lambda xp, x: xp.eye(3, 5, k=1) * x[0, 0, 0],
}


@pytest.mark.parametrize("name", CALLS)
def test_shapes_orders_and_products(rng, name):
    x = numbers(rng, (5, 4, 3))
    for host in (x, x[::2], x.transpose(2, 0, 1)[:, :4].transpose(1, 2, 0)):
        given = wx.array(x)
        if host is not x:
            given = given[::2] if host.base is x and host.shape[0] == 3 else wx.array(host)
        same(CALLS[name](wx, given), CALLS[name](np, host), rtol=1e-4)


def test_types_are_promoted_as_the_standard_says():
    kinds = {(wx.int8, wx.uint8): wx.int16, (wx.float16, wx.bfloat16): wx.float32}
    kinds |= {(wx.int32, wx.float16): wx.float16, (wx.bool, wx.uint16): wx.uint16}
    for (a, b), expected in kinds.items():
        assert wx.result_type(a, b) == expected
        assert (wx.ones(2, dtype=a) + wx.ones(2, dtype=b)).dtype == expected
    assert (wx.ones(2, dtype=wx.uint8) + 1).dtype == wx.uint8
    assert (wx.arange(3) / 2).dtype == wx.float32
    with pytest.raises(DTypeError, match="no integer type holds both"):
        wx.ones(2, dtype=wx.uint64) + wx.ones(2, dtype=wx.int8)


def test_random_numbers_are_those_of_their_key():
    key = wx.random.key(7)
    first, second = wx.random.split(key)
    x = wx.random.normal((1000,), key=first)
    assert x.tolist() == wx.random.normal((1000,), key=first).tolist()
    assert x.tolist() != wx.random.normal((1000,), key=second).tolist()
    assert abs(x.mean().item()) < 0.15
    assert sorted(wx.random.permutation(100, key=key).tolist()) == list(range(100))
    wx.random.seed(3)
    one = wx.random.uniform(shape=(4,)).tolist()
    two = wx.random.uniform(shape=(4,)).tolist()
    wx.random.seed(3)
    assert wx.random.uniform(shape=(4,)).tolist() == one != two


def test_files_keep_arrays(rng, tmp_path):
    arrays = {
        "floats": wx.array(numbers(rng, (3, 5))),
        "bytes": wx.array(rng.integers(0, 255, (7,), "u1")),
        "half": wx.array(numbers(rng, (33,))).astype(wx.bfloat16),
        "nothing": wx.zeros((0, 3)),
    }
    wx.save_safetensors(tmp_path / "a.safetensors", arrays, {"of": "a test"})
    found, metadata = wx.load(tmp_path / "a.safetensors", return_metadata=True)
    assert metadata == {"of": "a test"}
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name].numpy(), array.numpy())
    found.close()
    wx.savez(tmp_path / "a.npz", arrays["floats"], named=arrays["bytes"])
    assert sorted(wx.load(tmp_path / "a.npz")) == ["arr_0", "named"]
    wx.save(tmp_path / "a.npy", arrays["floats"])
    np.testing.assert_array_equal(wx.load(tmp_path / "a.npy").numpy(), arrays["floats"].numpy())


def test_what_does_not_fit_names_the_function_and_both_sides():
    for call, text in [
        (lambda: wx.ones(3) + wx.ones(4), r"add: .*\(3,\).*\(4,\)"),
        (lambda: wx.ones((2, 3)) @ wx.ones((2, 3)), r"matmul: .*\(2, 3\)"),
        (lambda: wx.ones((2, 3)).reshape(4), r"6 values, \(4,\) has 4"),
        (lambda: wx.concatenate([wx.ones((2, 3)), wx.ones((2, 4))]), "concat"),
        (lambda: wx.broadcast_to(wx.ones(3), (2, 4)), r"broadcast_to: .*\(3,\)"),
        (lambda: wx.squeeze(wx.ones((2, 3)), 0), "has 2 values, needs 1"),
    ]:
        with pytest.raises(ShapeError, match=text):
            call()
