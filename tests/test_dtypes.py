import numpy as np
import pytest

from wgpu_backend.dtypes import (
    BF16,
    BOOL,
    F16,
    F32,
    I8,
    I32,
    I64,
    U8,
    U32,
    as_dtype,
    convert_values,
)
from wgpu_backend.errors import DTypeError


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (F16, F16),
        ("f16", F16),
        ("F16", F16),
        ("float16", F16),
        (np.float16, F16),
        (np.dtype(">f2"), F16),
        ("bf16", BF16),
        ("bfloat16", BF16),
        (bool, BOOL),
        (np.bool_, BOOL),
        ("u8", U8),
        (np.dtype("u8"), as_dtype("u64")),
        (np.uint32, U32),
    ],
)
def test_names_and_numpy_types_stand_for_element_types(value, dtype):
    assert as_dtype(value) == dtype


@pytest.mark.parametrize("value", ["f17", 3, None, float, object, np.dtype("U3"), ["f32"]])
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(DTypeError, match=r"^dtype .*(needs one of f32|needs a name)"):
        as_dtype(value)


@pytest.mark.parametrize(
    ("values", "dtype", "wrong"),
    [
        (np.array([1, 3_000_000_000]), I32, r"3000000000 at \(1,\) does not fit i32"),
        (np.array([[1], [-1]]), U32, r"-1 at \(1, 0\) does not fit u32"),
        (np.array([2**64 - 1], "u8"), I64, "18446744073709551615 .* i64"),
        (np.array([2.0**63]), I64, "does not fit i64"),
        (np.array([1.5]), I32, "1.5 at .* whole numbers -2147483648 to 2147483647"),
        (np.array([np.nan]), I8, "nan at"),
        (np.array(1e300), F32, r"1e\+300 at \(\) does not fit f32"),
        (np.array([70000.0]), F16, "does not fit f16, which holds -65504 to 65504"),
        (np.array([1 + 2j]), F32, "f32 has no imaginary part"),
        (np.array(["a"]), F32, "needs numbers"),
    ],
)
def test_values_that_a_type_does_not_hold_are_named(values, dtype, wrong):
    with pytest.raises(DTypeError, match=f"^made: .*{wrong}"):
        convert_values("made", values, dtype)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (np.array([-(2**31), 2**31 - 1]), I32),
        (np.array([2**32 - 1], "u8"), U32),
        (np.array([-(2.0**63)]), I64),
        (np.array([np.inf, -np.inf, np.nan]), F16),
        (np.array([0.1, 1e-300]), F32),
        (np.array([0.0, 2.0, np.nan]), BOOL),
        (np.zeros((0, 3), "i8"), U32),
    ],
)
def test_what_a_type_holds_is_rounded_to_it(values, dtype):
    found = convert_values("made", values, dtype)
    assert found.dtype == dtype.numpy
    np.testing.assert_array_equal(found, values.astype(dtype.numpy))
