"""Complex numbers against NumPy: functions, folds, products, and functions that they lack."""

from typing import Any

import numpy as np
import pytest

import wgpu_backend.array as wx
from wgpu_backend.errors import DTypeError

pytestmark = pytest.mark.usefixtures("session")

NUMPYS = {"acos": "arccos", "acosh": "arccosh", "asin": "arcsin", "asinh": "arcsinh",
          "atan": "arctan", "atanh": "arctanh"}  # fmt: skip
OF_ONE = ("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "conj", "cos", "cosh", "exp",
          "exp2", "expm1", "imag", "isfinite", "isinf", "isnan", "log", "log10", "log1p", "log2",
          "negative", "real", "reciprocal", "round", "sign", "sin", "sinh", "sqrt", "square", "tan",
          "tanh")  # fmt: skip
OF_TWO = ("add", "divide", "equal", "multiply", "not_equal", "power", "subtract")
MEANINGLESS = ("argmax", "cummax", "degrees", "erf", "floor", "logsumexp", "max", "median",
               "sigmoid", "signbit", "softmax", "sort", "std", "var")  # fmt: skip


@pytest.fixture
def z(rng: np.random.Generator) -> Any:
    parts = rng.standard_normal((2, 5, 7)) * 2
    return (parts[0] + 1j * parts[1]).astype("c8")


def same(ours: Any, theirs: Any, tolerance: float = 3e-6) -> None:
    wanted = np.asarray(theirs)
    assert (ours.shape, ours.numpy().dtype) == (wanted.shape, wanted.dtype)
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(ours.numpy(), wanted, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("name", OF_ONE)
def test_functions_of_each_number(z, name):
    same(getattr(wx, name)(wx.array(z)), getattr(np, NUMPYS.get(name, name))(z))


@pytest.mark.parametrize("name", OF_TWO)
def test_functions_of_two_numbers_that_broadcast(z, name):
    same(getattr(wx, name)(wx.array(z), wx.array(z[2])), getattr(np, name)(z, z[2]), 1e-5)


def test_not_a_number_and_infinities_in_either_part_count():
    nan, inf = np.nan, np.inf
    values = [3 + 4j, complex(nan, 1), complex(1, nan), complex(inf, 0), complex(0, -inf)]
    z = np.array(values, "c8")
    for name in ("abs", "isnan", "isinf", "isfinite"):
        np.testing.assert_array_equal(getattr(wx, name)(wx.array(z)).numpy(), getattr(np, name)(z))
    np.testing.assert_array_equal(wx.nan_to_num(wx.array(z)).numpy(), np.nan_to_num(z))


ENDS = [0.0, 1.5, -2.0, np.inf, -np.inf, np.nan]
SPECIAL = ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp", "log", "log1p",
           "sqrt", "tan", "tanh")  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_functions_of_infinities_and_nan_are_those_of_c(name):
    z = np.array([complex(x, y) for x in ENDS for y in ENDS], "c8")
    with np.errstate(all="ignore"):
        wanted = getattr(np, NUMPYS.get(name, name))(z.astype("c16"))
    got = getattr(wx, name)(wx.array(z)).numpy()
    for ours, theirs in ((got.real, wanted.real), (got.imag, wanted.imag)):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["divide", "log", "log1p", "reciprocal", "sign", "sqrt"])
def test_large_and_small_numbers_do_not_overflow_on_the_way(rng, name):
    sizes = 10.0 ** rng.uniform(-18, 36, (2, 40))
    z, other = (sizes * np.exp(2j * np.pi * rng.random((2, 40)))).astype("c8")
    operands = (z, other) if name == "divide" else (z,)
    wanted = getattr(np, name)(*(each.astype("c16") for each in operands))
    fits = (np.abs(wanted) < 1e38) & (np.abs(wanted) > 1e-36)
    # NumPy's own log1p of small numbers cancels.
    fits &= (np.abs(z) > 1e-3) | (name != "log1p")
    got = getattr(wx, name)(*map(wx.array, operands)).numpy()
    assert fits.sum() > 15
    np.testing.assert_allclose(np.abs(got - wanted)[fits] / np.abs(wanted)[fits], 0, atol=2e-6)


def test_the_root_of_the_largest_number():
    np.testing.assert_allclose(wx.sqrt(wx.array(np.array([3e38], "c8"))).numpy(), 1.7320508e19)


def test_numbers_over_infinities_are_zero_and_infinities_have_a_direction():
    inf = np.inf
    ends = np.array([complex(inf, 1), complex(-inf, 0), complex(2, inf), complex(0, -inf)], "c8")
    over = wx.divide(wx.array(np.full(4, 3 - 4j, "c8")), wx.array(ends)).numpy()
    np.testing.assert_array_equal(over, 0)
    np.testing.assert_array_equal(wx.reciprocal(wx.array(ends)).numpy(), 0)
    np.testing.assert_array_equal(wx.sign(wx.array(ends)).numpy(), [1, -1, 1j, -1j])
    both = wx.divide(wx.array(ends), wx.array(ends)).numpy()
    assert np.isnan(both).all()


def test_expm1_and_sinh_of_infinities():
    inf, nan = np.inf, np.nan
    z = wx.array(np.array([complex(*p) for p in ((inf, 0), (-inf, nan), (nan, 0), (inf, 0))], "c8"))
    wanted = [complex(inf, 0), -1, complex(nan, 0), complex(inf, 0)]
    np.testing.assert_array_equal(wx.expm1(z).numpy(), np.array(wanted, "c8"))
    sinh = wx.sinh(wx.array(np.array([complex(0, inf), complex(nan, 0)], "c8"))).numpy()
    np.testing.assert_array_equal(sinh.real, [0, nan])
    np.testing.assert_array_equal(sinh.imag, [nan, 0])


def test_what_is_imaginary_is_true():
    z = wx.array([0j, 1j, 0.5j])
    assert wx.any(z).item()
    assert wx.all(z[1:]).item()
    assert wx.count_nonzero(z).item() == 2
    assert wx.where(z, 1, 2).tolist() == [2, 1, 1]
    assert z.astype(wx.bool_).tolist() == [False, True, True]


@pytest.mark.parametrize("name", ["sum", "prod", "mean"])
def test_folds(z, name):
    for axis in (None, 0, -1, (0, 1)):
        for keepdims in (False, True):
            ours = getattr(wx, name)(wx.array(z), axis=axis, keepdims=keepdims)
            same(ours, getattr(np, name)(z, axis=axis, keepdims=keepdims), 2e-5)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_running_folds(z, name):
    for axis in (0, 1):
        same(getattr(wx, name)(wx.array(z), axis=axis), getattr(np, name)(z, axis=axis), 2e-5)
    reverse = getattr(wx, name)(wx.array(z[0]), axis=0, reverse=True, inclusive=False)
    turned = getattr(np, name)(z[0, :0:-1])[::-1]
    same(reverse, np.append(turned, np.complex64(name == "cumprod")), 2e-5)


def test_products(z):
    a, b = wx.array(z), wx.array(z.T)
    same(a @ b, z @ z.T, 1e-5)
    same(wx.tensordot(a, b, 1), z @ z.T, 1e-5)
    same(wx.einsum("ij,jk->ki", a, b), (z @ z.T).T, 1e-5)
    same(wx.vecdot(a, a[0]), np.vecdot(z, z[0]), 1e-5)
    same(wx.outer(a[0], a[1]), np.outer(z[0], z[1]), 1e-5)


def test_views_numbers_and_other_types(z):
    a = wx.array(z)
    same(a[::2, 1::3].T * 2j, z[::2, 1::3].T * np.complex64(2j))
    same(1 / a, np.complex64(1) / z)
    same(a + wx.arange(7), z + np.arange(7, dtype="i2"))
    same(wx.imag(a)[1::2] + 1, z.imag[1::2] + 1)
    assert wx.allclose(a, a + 1e-9).item()
    assert wx.array_equal(a, a).item()


@pytest.mark.parametrize("name", MEANINGLESS)
def test_what_has_no_meaning_is_refused(z, name):
    with pytest.raises(DTypeError, match="complex64"):
        getattr(wx, name)(wx.array(z))


def test_order_and_remainders_are_refused(z):
    a = wx.array(z)
    for function in (wx.less, wx.maximum, wx.remainder, wx.floor_divide, wx.atan2):
        with pytest.raises(DTypeError, match="complex64"):
            function(a, a)
