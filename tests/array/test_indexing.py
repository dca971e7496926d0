"""Reading and writing parts, as NumPy does."""

import numpy as np
import pytest

import wgpu_backend.array as wx
from wgpu_backend.array import indexing
from wgpu_backend.errors import DTypeError, ShapeError

pytestmark = pytest.mark.usefixtures("session")

INDICES = {
    "one": (2,),
    "last": (-1, ..., -2),
    "slices": (slice(1, None, 2), slice(None), slice(-4, -1)),
    "backwards": (slice(None, None, -1), slice(3, 0, -2)),
    "new axes": (None, 1, ..., None),
    "nothing": (slice(3, 3),),
    "everything": (...,),
    "ids": ([0, -1, 2],),
    "ids of a later axis": (slice(None), [[2, 0], [1, 1]]),
    "ids side by side": (slice(None), [0, 2], [1, 4]),
    "ids apart": ([0, 2], slice(None), [1, 4]),
    "ids that broadcast": (np.array([[0], [1]]), [1, 2, 3]),
    "ids beside a number": ([0, 2], 1),
    "a number in front of ids": (1, slice(None), [0, 3]),
}


@pytest.mark.parametrize("name", INDICES)
def test_parts_are_numpys(rng, name):
    values = rng.standard_normal((4, 5, 6), dtype="f4")
    np.testing.assert_array_equal(wx.array(values)[INDICES[name]].numpy(), values[INDICES[name]])


@pytest.mark.parametrize("name", INDICES)
def test_parts_are_written_as_numpy_does(rng, name):
    index, values = INDICES[name], rng.standard_normal((4, 5, 6), dtype="f4")
    given = rng.standard_normal(values[index].shape, dtype="f4")
    array = wx.array(values)
    before = array[...]
    array[index] = given
    expected = values.copy()
    expected[index] = given
    np.testing.assert_array_equal(array.numpy(), expected)
    np.testing.assert_array_equal(before.numpy(), values, err_msg="other names keep the old one")
    array[index] = 7
    expected[index] = 7
    np.testing.assert_array_equal(array.numpy(), expected)


# With so many of each id a device would keep others than the last, were all written.
REPEATED = {
    "one axis": (np.arange(4096) % 4,),
    "from the end too": (slice(None), np.arange(4096) % 10 - 5),
    "two axes": (np.arange(4096) % 3, slice(None), np.int8(np.arange(4096) % 6) - np.int8(6)),
    "behind a slice": (slice(1, 3), np.arange(2048).reshape(2, 1024) % 5, np.array([[1], [4]])),
    "beside a number": (2, np.uint8([3, 3, 1, 3])),
}


@pytest.mark.parametrize("name", REPEATED)
def test_of_equal_ids_the_last_stays(rng, name):
    index, values = REPEATED[name], rng.standard_normal((4, 5, 6), dtype="f4")
    given = rng.standard_normal(values[index].shape, dtype="f4")
    array = wx.array(values)
    array[index] = given
    values[index] = given
    np.testing.assert_array_equal(array.numpy(), values)


def test_ids_that_come_once_more_are_found_before_anything_is_written():
    """A rasteriser writes in turn, so that it would keep the last of itself."""
    assert indexing._find_repeats([np.array([2, 0, 2])]).tolist() == [True, False, False]
    assert (
        indexing._find_repeats([np.array([[0], [1]]), np.array([2, 2])]).tolist()
        == [[True, False]] * 2
    )
    assert indexing._find_repeats([np.array([2, 0, 2]), np.array([0, 0, 1])]) is None
    assert indexing._find_repeats([np.array([1, 1]), None]) is None


def test_of_equal_ids_on_the_device_one_stays(rng):
    ids, given = np.arange(300) % 3, rng.standard_normal((300, 4), dtype="f4")
    array = wx.zeros((5, 4))
    array[wx.array(ids)] = given
    got = array.numpy()
    for place in range(3):
        assert all(got[place, k] in given[place::3, k] for k in range(4))
    assert not got[3:].any()


@pytest.mark.parametrize("shape", [(33,), (4, 5, 6), (2, 3, 2, 3, 2, 3)])
def test_masks_choose_and_write(rng, shape):
    values = rng.standard_normal(shape, dtype="f4")
    array = wx.array(values)
    mask = array > 0
    np.testing.assert_array_equal(array[mask].numpy(), values[values > 0])
    array[mask] = -1
    np.testing.assert_array_equal(array.numpy(), np.where(values > 0, -1, values))
    rows = wx.array(values)[:, ...]
    of_axis = np.arange(shape[0]) % 2 == 0
    np.testing.assert_array_equal(rows[wx.array(of_axis)].numpy(), values[of_axis])
    rows[of_axis] = 3
    values[of_axis] = 3
    np.testing.assert_array_equal(rows.numpy(), values)


def test_parts_of_many_axes_and_of_views(rng):
    values = rng.standard_normal((2, 3, 4, 5, 3, 2), dtype="f4")
    turned, expected = (
        wx.array(values).transpose(5, 0, 2, 1, 4, 3),
        values.transpose(5, 0, 2, 1, 4, 3),
    )
    index = (1, slice(None), slice(None, None, -2), [0, 2], ..., 4)
    np.testing.assert_array_equal(turned[index].numpy(), expected[index])
    turned[index] = 0
    expected = expected.copy()
    expected[index] = 0
    np.testing.assert_array_equal(turned.numpy(), expected)


@pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "float16", "bool"])
def test_every_type_is_read_and_written(rng, dtype):
    values = rng.integers(0, 2, (5, 7)).astype(dtype)
    array = wx.array(values)
    array[1::2, [0, 3]] = 1
    values[1::2, [0, 3]] = 1
    assert array.dtype == wx.array(values).dtype
    np.testing.assert_array_equal(array.numpy(), values)


def test_a_number_on_the_device_stays_there():
    array, place = wx.arange(10) * 2, wx.argmax(wx.array([0.0, 3.0, 1.0]))
    assert array[place].item() == 2
    array[place + 1] = 100
    assert array[2].item() == 100


def test_what_does_not_fit_is_told_with_both_sides():
    array = wx.zeros((2, 3))
    for index, error, text in [
        (5, ShapeError, "5, axis 0 has 2 values"),
        ((0, 0, 0), ShapeError, r"3 indices, \(2, 3\) has 2 axes"),
        ([0, 7], ShapeError, "7, axis 0 has 2 values"),
        (1.5, DTypeError, "needs integers"),
        (np.array([True, False, True]), ShapeError, r"a mask of \(3,\)"),
    ]:
        with pytest.raises(error, match=text):
            array[index]
    with pytest.raises(ShapeError, match=r"setitem"):
        array[0] = np.zeros(4)
    with pytest.raises(DTypeError, match=r"needs integers"):
        wx.zeros(3, dtype=wx.int32)[0] = 1.5
