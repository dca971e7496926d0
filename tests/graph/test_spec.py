import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wgpu_backend.dtypes import F32, Q4_0
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.graph.spec import (
    Spec,
    broadcast,
    broadcast_strides,
    dense_strides,
    permute,
    reshape,
    slice_axis,
)
from wgpu_backend.ops.host_values import apply_strides

SHAPES = st.lists(st.integers(0, 5), max_size=4).map(tuple)
FULL_SHAPES = st.lists(st.integers(1, 5), max_size=4).map(tuple)


@st.composite
def views(draw, shapes=SHAPES):
    """A spec made by slices and permutations, and NumPy's view made by the same."""
    shape = draw(shapes)
    values = np.arange(np.prod(shape, dtype=int), dtype="f4").reshape(shape)
    flat, spec = values.reshape(-1), Spec.dense(shape, F32)
    for _ in range(draw(st.integers(0, 3)) if shape else 0):
        if draw(st.booleans()):
            order = draw(st.permutations(range(len(shape))))
            spec, values = permute(spec, order), values.transpose(order)
        else:
            axis = draw(st.integers(0, len(shape) - 1))
            stop = draw(st.integers(0, values.shape[axis]))
            start, step = draw(st.integers(0, stop)), draw(st.integers(1, 3))
            spec = slice_axis(spec, axis, start, stop, step)
            values = values[(slice(None),) * axis + (slice(start, stop, step),)]
    return flat, spec, values


@given(views())
def test_slices_and_permutations_see_what_numpy_sees(view):
    flat, spec, values = view
    np.testing.assert_array_equal(apply_strides(flat, spec), values)


@given(views(), st.data())
def test_reshape_is_a_view_where_numpy_has_one(view, data):
    flat, spec, values = view
    shape = data.draw(shapes_of(values.size))
    found = reshape(spec, shape)
    try:
        want = values.reshape(shape, copy=False)
    except ValueError:
        assert found is None
    else:
        assert found is not None
        np.testing.assert_array_equal(apply_strides(flat, found), want)


@st.composite
def shapes_of(draw, size):
    """A shape of that many values."""
    shape = []
    for _ in range(draw(st.integers(0, 3))):
        divisors = [d for d in range(1, size + 1) if size % d == 0] or [0, 2]
        shape.append(draw(st.sampled_from(divisors)))
        size //= shape[-1] or 1
    return (*shape, size)


@given(views())
def test_the_span_covers_every_value(view):
    _, spec, values = view
    assert not values.size or spec.span == int(values.max()) + 1


@given(views())
def test_dense_means_that_values_follow_each_other(view):
    _, spec, values = view
    ascending = values.reshape(-1)
    if values.size:
        assert spec.is_dense == bool(np.all(np.diff(ascending) == 1))


@given(SHAPES, SHAPES)
def test_shapes_broadcast_as_in_numpy(left, right):
    a, b = Spec.dense(left, F32), Spec.dense(right, F32)
    try:
        want = np.broadcast_shapes(left, right)
    except ValueError:
        with pytest.raises(ShapeError, match="do not broadcast"):
            broadcast("add", a, b)
    else:
        assert broadcast("add", a, b) == want


@given(views(FULL_SHAPES), st.integers(0, 2))
def test_broadcast_strides_repeat_values(view, extra):
    flat, spec, values = view
    shape = (*(3,) * extra, *(4 if n == 1 else n for n in values.shape))
    found = Spec(shape, F32, broadcast_strides(spec, shape), spec.offset)
    np.testing.assert_array_equal(apply_strides(flat, found), np.broadcast_to(values, shape))


def test_dense_strides_are_those_of_c_order():
    assert dense_strides((2, 3, 4)) == (12, 4, 1)
    assert dense_strides(()) == ()


def test_nbytes_of_blocks():
    assert Spec.dense((3, 64), Q4_0).nbytes == 3 * 2 * 18
    with pytest.raises(DTypeError, match="q4_0: 33 elements, needs a multiple of 32"):
        assert Spec.dense((33,), Q4_0).nbytes


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda s: reshape(s, (4, 2)), r"\(2, 3\) has 6 values, \(4, 2\) has 8"),
        (lambda s: reshape(s, (4, -1)), r"\(2, 3\) of 6 values does not fit \(4, -1\)"),
        (lambda s: reshape(s, (-1, -1)), "does not fit"),
        (lambda s: reshape(s, (-2, -3)), "has 6"),
        (lambda s: reshape(s, (0, -1)), "does not fit"),
        (lambda s: permute(s, (0, 0)), r"order \(0, 0\), \(2, 3\) has 2 axes"),
        (lambda s: permute(s, (0,)), r"order \(0,\), \(2, 3\) has 2 axes"),
        (lambda s: permute(s, (0, 2)), "axis 2, .* has axes -2 to 1"),
        (lambda s: slice_axis(s, 1, 0, 4), "0:4:1 of axis 1, which has 3 values"),
        (lambda s: slice_axis(s, 1, 2, 1), "2:1:1 of axis 1"),
        (lambda s: slice_axis(s, 0, -1, 1), "-1:1:1 of axis 0, which has 2"),
        (lambda s: slice_axis(s, 0, 0, 2, 0), "0:2:0 of axis 0"),
        (lambda s: slice_axis(s, -3, 0, 1), "axis -3, .* has axes -2 to 1"),
        (lambda s: Spec.dense((2, -1), F32), r"shape \(2, -1\): an extent is negative"),
    ],
)
def test_views_that_are_not_there_are_refused(make, message):
    with pytest.raises(ShapeError, match=message):
        make(Spec.dense((2, 3), F32))


def test_minus_one_takes_what_is_left():
    assert reshape(Spec.dense((4, 6), F32), (3, -1)).shape == (3, 8)
    assert reshape(Spec.dense((0, 6), F32), (-1, 3)).shape == (0, 3)
