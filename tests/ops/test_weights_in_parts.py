"""Slices of weights that lie in several bindings: any op takes one that lies in a single part."""

import numpy as np
import pytest

from tests.ops.operands import WEIGHTS, tensor, weight, weight_bytes
from wgpu_backend.dtypes import F16, F32, Q4_0
from wgpu_backend.errors import DeviceError
from wgpu_backend.ml.context import Context

ROWS, COLS = 2000, 256


@pytest.fixture
def weight_in_parts(split, rng):
    """A weight of some format, and the rows that its parts begin at."""

    def made(dtype):
        found = weight(split, ROWS, COLS, dtype, weight_bytes(rng, ROWS, COLS, dtype))
        firsts = [part.first_row for part in found.storage.handle]
        assert len(firsts) > 1
        return found, firsts

    return made


@pytest.mark.parametrize("dtype", WEIGHTS, ids=str)
def test_ops_read_rows_of_one_part(split, rng, weight_in_parts, dtype):
    whole, firsts = weight_in_parts(dtype)
    x = rng.standard_normal((2, COLS), "f4")
    for first in (0, firsts[1], firsts[-1] + 3):
        with Context(split) as ctx:
            few = whole.slice(0, first, first + 5)
            want = whole.rows(ctx.from_numpy(np.arange(first, first + 5))).numpy()
            taken = few.rows(ctx.from_ints([4, 0])).numpy()
            product = few.mulmat(tensor(ctx, x)).numpy()
        np.testing.assert_array_equal(taken, want[[4, 0]])
        np.testing.assert_allclose(product, x @ want.T, rtol=1e-3, atol=1e-2 * np.abs(want).max())


@pytest.mark.parametrize("dtype", [F32, F16], ids=str)
def test_columns_of_rows_of_one_part(split, weight_in_parts, dtype):
    whole, firsts = weight_in_parts(dtype)
    first = firsts[1] + 1
    with Context(split) as ctx:
        want = whole.rows(ctx.from_numpy(np.arange(first, first + 6))).numpy()[::2, 3:40]
        window = whole.slice(0, first, first + 6, 2).slice(1, 3, 40)
        np.testing.assert_array_equal((window + ctx.zeros(1)).numpy(), want)


def test_rows_of_several_parts_are_refused(split, weight_in_parts):
    whole, firsts = weight_in_parts(Q4_0)
    with Context(split) as ctx:
        few = whole.slice(0, firsts[1] - 1, firsts[1] + 1)
        with pytest.raises(
            DeviceError, match=r"weights of \(2, 256\) is a weight split over .* bindings"
        ):
            few.mulmat(ctx.zeros(1, COLS)).numpy()
