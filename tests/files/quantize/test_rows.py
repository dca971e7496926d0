"""Values in block formats: the bytes that llama.cpp writes, and what is refused."""

import tracemalloc

import numpy as np
import pytest

from tests.files.quantize.rows import FORMATS, importances, recorded, rows
from wgpu_backend.dtypes import BF16, F16, F32, IQ3_S, Q4_0, Q4_K, Q6_K, Q8_0, named
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.files.quantize import decode_blocks, quantize_rows


def as_rows(made, count=9):
    return np.frombuffer(made, np.uint8).reshape(count, -1)


@pytest.mark.parametrize("name", FORMATS)
def test_the_bytes_are_those_of_llama_cpp(name):
    assert np.array_equal(as_rows(quantize_rows(rows(), named(name))), recorded()[name])


@pytest.mark.parametrize("name", FORMATS)
def test_with_importances_the_bytes_are_those_of_llama_cpp(name):
    want = recorded().get(f"{name}_weighted", recorded()[name])
    assert np.array_equal(as_rows(quantize_rows(rows(), named(name), importances())), want)


@pytest.mark.parametrize("name", ["q4_0", "q4_1", "q2_k", "q4_k", "iq4_xs"])
def test_importances_lower_the_error_that_counts(name, rng):
    dtype, importance = named(name), importances()
    values = rng.standard_normal((4, 256), "f4")

    def error(importance):
        blocks = np.frombuffer(quantize_rows(values, dtype, importance), np.uint8)
        read = decode_blocks(dtype, blocks.reshape(-1, dtype.block_nbytes)).reshape(values.shape)
        return (importances() * (read - values) ** 2).sum()

    assert error(importance) < 0.9 * error(None)


@pytest.mark.parametrize("name", FORMATS)
def test_a_row_is_the_same_alone_and_among_others(name, rng):
    """Sums run in order however many blocks there are, and pieces end at rows."""
    dtype = named(name)
    values = rng.standard_normal((131, 256), "f4")
    together = as_rows(quantize_rows(values, dtype), 131)
    assert np.array_equal(as_rows(quantize_rows(values[130:], dtype), 1), together[130:])


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_stay_zeros(name):
    dtype = named(name)
    blocks = np.frombuffer(quantize_rows(np.zeros((1, 256), "f4"), dtype), np.uint8)
    assert not decode_blocks(dtype, blocks.reshape(-1, dtype.block_nbytes)).any()


def test_plain_types_hold_the_nearest_value(rng):
    values = rng.standard_normal((3, 5), "f4")
    assert quantize_rows(values, F32) == values.tobytes()
    assert quantize_rows(values, F16) == values.astype("f2").tobytes()
    ties = np.array([[0x3F808000, 0x3F818000, 0x3F808001]], "u4").view("f4")
    assert np.frombuffer(quantize_rows(ties, BF16), "u2").tolist() == [0x3F80, 0x3F82, 0x3F81]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_no_number_is_refused_with_its_place(value):
    values = np.zeros((200, 256), "f4")
    values[170, 33] = value
    with pytest.raises(DTypeError, match=rf"q4_0: value {value} in row 170, column 33; needs"):
        quantize_rows(values, Q4_0)


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "mxfp4"])
def test_a_value_beyond_the_scales_is_refused_with_its_row(name):
    values = np.zeros((200, 256), "f4")
    values[170, 33] = 1e20
    if name == "q1_0":
        values[170] = 1e20
    with pytest.raises(DTypeError, match=rf"{name}: row 170 needs a scale beyond 65504"):
        quantize_rows(values, named(name))


def test_plain_types_refuse_what_is_beyond_them():
    with pytest.raises(DTypeError, match=r"f16, rows from 0: 70000.0 at \(1, 2\) does not fit f16"):
        quantize_rows(np.array([[1, 2, 3], [4, 5, 7e4]], "f4"), F16)
    with pytest.raises(DTypeError, match="bf16: row 1 has a value beyond"):
        quantize_rows(np.array([[1], [3.4e38]], "f4"), BF16)


def test_what_does_not_fit_is_refused_with_both_numbers():
    with pytest.raises(ShapeError, match="q4_k: 96 columns, needs a multiple of 256"):
        quantize_rows(np.zeros((1, 96), "f4"), Q4_K)
    with pytest.raises(ShapeError, match=r"q8_0: importances of shape \(31,\), values have 32"):
        quantize_rows(np.zeros((1, 32), "f4"), Q8_0, np.ones(31, "f4"))
    with pytest.raises(DTypeError, match=r"q6_k: importance of column 3 is -1.0, needs 0 or more"):
        quantize_rows(
            np.zeros((1, 256), "f4"), Q6_K, np.where(np.arange(256) == 3, -1, 1).astype("f4")
        )
    with pytest.raises(DTypeError, match="iq3_s: no type to quantise to; those are f32, f16, bf16"):
        quantize_rows(np.zeros((1, 256), "f4"), IQ3_S)
    with pytest.raises(ShapeError, match="q8_0: values of 1 dimensions"):
        quantize_rows(np.zeros(32, "f4"), Q8_0)


def test_memory_is_that_of_the_result_and_a_few_pieces():
    values = np.ones((4096, 256), "f4")
    tracemalloc.start()
    made = quantize_rows(values, Q4_K)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * len(made) + 8e6
