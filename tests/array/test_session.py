"""What is computed when, and how long it lives."""

import gc
import weakref

import numpy as np
import pytest

import wgpu_backend.array as wx
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ContextError, DTypeError, OptionError, OutOfMemory, ShapeError
from wgpu_backend.graph.spec import Spec

pytestmark = pytest.mark.usefixtures("session")


def test_nothing_is_computed_before_somebody_asks():
    x = wx.ones(5) + 1
    assert not x.is_evaluated
    assert x.tolist() == [2] * 5
    assert x.is_evaluated


def test_what_python_holds_is_computed_once(session, rng):
    values = rng.standard_normal(33, dtype="f4")
    inner = wx.array(values) + 1
    outer = inner * 2
    wx.eval(outer)
    assert inner.is_evaluated
    np.testing.assert_array_equal(inner.numpy(), values + 1)


def test_memory_goes_with_the_last_array_that_looks_at_it(session):
    before = session.active_nbytes
    x = wx.arange(1000).astype(wx.float32) + 1
    view = x.reshape(10, 100)[3]
    wx.eval(view)
    assert session.active_nbytes >= before + 4000
    del x
    assert session.active_nbytes >= before + 4000, "the view still looks at it"
    del view
    assert session.active_nbytes == before


def test_arrays_are_in_no_reference_cycle(session):
    gc.disable()
    try:
        x = wx.ones(3) + wx.ones(3)
        gone = weakref.ref(x)
        wx.eval(x)
        del x
        assert gone() is None
    finally:
        gc.enable()


def test_two_hundred_evaluations_leave_memory_as_it_was(session, rng):
    x = wx.array(rng.standard_normal((33, 65), dtype="f4"))
    before = session.active_nbytes
    for _ in range(200):
        y = x @ x.T
        wx.eval(y + 1)
    del y
    assert session.active_nbytes == before


def test_memory_that_goes_while_other_memory_is_counted_is_counted_too(session):
    """Finalisers run between any two steps of a thread: here, in the middle of a sum."""

    class Size(int):
        def __radd__(self, before):
            going.clear()
            return before + int(self)

    going = [wx.arange(300, dtype=wx.float32) + 1]
    wx.eval(going)
    before = session.active_nbytes
    storage = session.executor.state(Spec.dense((16,), F32), "more")
    storage.nbytes = Size(storage.nbytes)
    session._own(storage)
    assert session.active_nbytes == before - 1200 + 64
    del storage
    assert session.active_nbytes == before - 1200


def test_sweep_frees_what_is_neither_kept_nor_wanted():
    weight, other = wx.ones(3) * 2, wx.ones(3) * 3
    wx.keep(weight)
    wanted = weight + other
    wx.sweep(wanted)
    assert wanted.tolist() == [5] * 3
    assert weight.tolist() == [2] * 3
    with pytest.raises(ContextError, match="freed"):
        other + 1


def test_a_memory_limit_refuses_what_is_too_large_and_says_both_numbers(session):
    x = wx.ones((64, 64)) + 0
    wx.eval(x)
    wx.set_memory_limit(session.active_nbytes + 100)
    try:
        with pytest.raises(OutOfMemory, match=r"\d+ bytes on top of \d+ in use, the limit is \d+"):
            wx.eval(x + 1)
    finally:
        assert wx.set_memory_limit(None) is not None
    assert (x + 1).sum().item() == 2 * 64 * 64


def test_the_peak_counts_what_was_needed_meanwhile(session):
    wx.reset_peak_memory()
    before = wx.get_peak_memory()
    x = wx.ones((100, 100)) * 2
    wx.eval((x @ x) + 1)
    assert wx.get_peak_memory() >= before + 2 * 40_000
    assert wx.get_active_memory() <= wx.get_peak_memory()
    with pytest.raises(OptionError):
        wx.set_cache_limit(-1)


def test_live_arrays_are_listed_with_the_largest_first(session):
    small, large = wx.ones(3), wx.ones((7, 7)) + 1
    assert [id(a) for a in wx.live_arrays()][:2] == [id(large), id(small)]
    assert "(7, 7)" in wx.debug_arrays().splitlines()[1]


def test_streams_are_the_one_queue_of_a_device(session):
    with wx.stream(wx.new_stream()):
        x = wx.ones(2)
    wx.synchronize(wx.default_stream())
    assert x.session is session


def test_what_is_no_array_is_one_line(session):
    with pytest.raises(ShapeError, match="2 values, needs 1"):
        wx.ones(2).item()
    with pytest.raises(ShapeError, match="any"):
        bool(wx.ones(2))
    with pytest.raises(DTypeError, match=r"float|needs"):
        wx.array(["a"])
    with pytest.raises(DTypeError, match="300"):
        wx.array(300, dtype=wx.uint8)
