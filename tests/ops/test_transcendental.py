"""Functions of floats that are our own, against NumPy in f64: units in the last place of f32."""

import numpy as np
import pytest

from wgpu_backend.dtypes import F32
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.reference import get_reference

# Largest error found on the rasteriser, rounded up: divisions and roots of WGSL may add 2.5 units.
UNITS = {
    "exp": 2, "expm1": 2, "exp2": 2, "log": 2, "log1p": 3, "log2": 2, "log10": 2, "rsqrt": 2,
    "reciprocal": 1, "tan": 4, "asin": 3, "acos": 2, "atan": 3, "sinh": 2, "cosh": 2, "tanh": 3,
    "asinh": 3, "acosh": 3, "atanh": 3, "erf": 3, "erfinv": 4, "atan2": 3, "hypot": 2,
}  # fmt: skip
DIVISION = 2.5
PAIRS = ("atan2", "hypot")
# Near zero they are their operand, or a multiple of it.
ODD = ("expm1", "log1p", "sin", "tan", "asin", "atan", "sinh", "tanh", "asinh", "atanh", "erf")
SPECIAL = np.array(
    [0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 0.5, -0.5, 2, -2.5, 1e-20, -1e-30, 1e30, -3e38,
     1 - 2**-24, 1 + 2**-23, 88.7, 89.3, -88, -104, 127, 128, -126, -150, 0.7853982, 1.5707964],
    "f4",
)  # fmt: skip


def numbers(rng, count=3000):
    """Special values, any bits, and numbers of middling size."""
    any_bits = rng.integers(0, 2**32, count, np.uint32).view("f4")
    sizes = [rng.uniform(-size, size, count).astype("f4") for size in (1, 5, 100)]
    return np.concatenate([SPECIAL, any_bits, *sizes])


def normal(x):
    """Without numbers so small that devices may take them as zero."""
    return np.where(np.abs(x) < np.float32(2.0**-126), np.float32(0), x)


def assert_close(got, want, units):
    """Equal, or so many units apart; what is below normal numbers may be taken as zero."""
    with np.errstate(all="ignore"):
        rounded = want.astype("f4")
        unit = np.spacing(np.maximum(np.abs(rounded), np.float32(2.0**-126)))
        apart = np.abs(got - want) / unit
    finite = np.isfinite(rounded)
    np.testing.assert_array_equal(got[~finite], rounded[~finite])
    seen = np.abs(want) >= 2.0**-126
    assert apart[finite & seen].max(initial=0) <= units
    assert np.abs(got[finite & ~seen]).max(initial=0) <= 2.0**-126


def computed(executor, name, *operands):
    with Context(executor) as ctx:
        first, *others = (ctx.from_numpy(x) for x in operands)
        return getattr(first, name)(*others).numpy()


@pytest.mark.parametrize("name", UNITS)
def test_a_function_is_within_some_units_of_numpy(gpu, rng, name):
    x = numbers(rng)
    operands = [x]
    if name in PAIRS:
        a, b = (v.reshape(-1) for v in np.meshgrid(SPECIAL, SPECIAL))
        with np.errstate(all="ignore"):
            near = (x * rng.uniform(0.5, 2, x.size)).astype("f4")
        operands = [np.concatenate([a, x, x]), np.concatenate([b, rng.permutation(x), near])]
    operands = [normal(v) for v in operands]
    with np.errstate(all="ignore"):
        want = get_reference(name)(*(v.astype("f8") for v in operands))
    assert_close(computed(gpu, name, *operands), want, UNITS[name] + DIVISION)


@pytest.mark.parametrize("name", ODD)
def test_small_values_stay_and_zero_keeps_its_sign(executor, name):
    x = np.array([1e-30, -1e-30, 1e-12, -1e-9, 0.0, -0.0], "f4")
    got = computed(executor, name, x)
    want = x * np.float32(2 / np.sqrt(np.pi)) if name == "erf" else x
    np.testing.assert_allclose(got, want, rtol=3e-7)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(x))


def test_powers_of_two_and_logarithms_are_exact(gpu):
    n = np.arange(-126, 128).astype("f4")
    np.testing.assert_array_equal(computed(gpu, "exp2", n), 2.0 ** n.astype("f8"))
    np.testing.assert_array_equal(computed(gpu, "log2", (2.0 ** n.astype("f8")).astype("f4")), n)


def test_the_reference_of_erfinv_inverts_erf(rng):
    y = np.concatenate([rng.uniform(-3, 3, 2000), rng.uniform(-1e-3, 1e-3, 100)])
    erf, erfinv = get_reference("erf"), get_reference("erfinv")
    np.testing.assert_allclose(erfinv(erf(y)), y, rtol=1e-12, atol=1e-12)


def test_logaddexp_neither_overflows_nor_cancels(gpu, rng):
    a, b = (v.reshape(-1) for v in np.meshgrid(SPECIAL, SPECIAL))
    a = np.concatenate([a, rng.uniform(-90, 90, 4000)]).astype("f4")
    b = np.concatenate([b, a[-4000:] + rng.uniform(-20, 20, 4000)]).astype("f4")
    got = computed(gpu, "logaddexp", a, b)
    with np.errstate(all="ignore"):
        want = np.logaddexp(a.astype("f8"), b.astype("f8"))
    # Beside the unit of the result there is that of log 2, where the sum is near zero.
    np.testing.assert_allclose(got, want, rtol=3e-7, atol=2e-7)


def test_they_join_in_one_kernel(full, rng):
    x = rng.uniform(0.1, 0.9, 33).astype("f4")
    with Context(full) as ctx:
        y = ctx.from_numpy(x, F32)
        got = y.tan().atan2(y.erf()).expm1().log1p().hypot(y.acos()).elu(alpha=0.5).numpy()
    t = get_reference
    want = t("log1p")(t("expm1")(t("atan2")(t("tan")(x), t("erf")(x))))
    np.testing.assert_allclose(got, np.hypot(want, np.arccos(x)), rtol=1e-6)
