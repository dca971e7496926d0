"""Ctrl-C during work that must not be left half done: it is noted, and raised at a safe point.

Python runs a signal's handler between any two steps of the main thread, so a KeyboardInterrupt may
come up between taking a lock and the `try` that gives it back, or in a callback that C made, where
it is lost. Inside `held` the handler is one that only takes note; `deliver`, which is called where
an error would do no harm, and the end of `held` call the one that was there before::

    with held():            # handler: takes note
        lock.acquire()      ⟵ Ctrl-C
        ...
        deliver()           # before a kernel compiles, a weight goes up, a step is submitted
        lock.release()
                            # handler: the one before, which raises KeyboardInterrupt here

Other threads are never interrupted, and `held` does nothing there; nor does it where SIGINT is
ignored or ends the process at once.
"""

from __future__ import annotations

import inspect
import os
import signal
import threading
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from threading import get_ident
from types import FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

# The C module of `signal`, which is fifty times as fast: it does not look up enums for handlers.
_signal: Any = import_module("_signal")

# Seconds between two looks at the awaited event. In between, noted interrupts are delivered.
PAUSE = 0.05


class _Hold:
    """The state of the main thread, the only one that gets signals."""

    depth = 0
    noted = False
    before: Callable[[int, FrameType | None], Any]
    # Number of the thread, which every step asks for several times.
    main = threading.main_thread().ident


def _follow_fork() -> None:
    """Note the thread that forked, the main one of the child."""
    _Hold.main = get_ident()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_follow_fork)


def _note(_number: int, _frame: FrameType | None) -> None:
    _Hold.noted = True


def hold() -> bool:
    """Start noting interrupts; return whether `release` has to follow."""
    if get_ident() != _Hold.main:
        return False
    if not _Hold.depth:
        before = _signal.getsignal(signal.SIGINT)
        if not callable(before) or before is _note:
            return False
        _Hold.before = before
        try:
            # Nothing raises KeyboardInterrupt from here on.
            _signal.signal(signal.SIGINT, _note)
        # Python runs in a thread that may not set handlers, as in a program that embeds it.
        except ValueError:
            return False
    _Hold.depth += 1
    return True


def release() -> None:
    """End `hold`; the outermost one delivers the interrupt."""
    _Hold.depth -= 1
    if not _Hold.depth:
        # A finaliser that Python runs between these lines may hold and release by itself, and an
        # exception that it raises is lost.
        noted, _Hold.noted = _Hold.noted, False
        # Otherwise another handler was set meanwhile, and stays.
        if _signal.getsignal(signal.SIGINT) is _note:
            _signal.signal(signal.SIGINT, _Hold.before)
        _Hold.noted |= noted
        deliver()


def deliver() -> None:
    """Call the handler for a noted interrupt: by default, raise KeyboardInterrupt."""
    if _Hold.noted and get_ident() == _Hold.main:
        _Hold.noted = False
        _Hold.before(signal.SIGINT, inspect.currentframe())


class held:  # noqa: N801  # reads as a function, like `contextlib.suppress`
    """A context in which an interrupt is noted, then raised at its end or by `deliver`."""

    __slots__ = ("_mine",)

    def __enter__(self) -> None:
        self._mine = hold()

    def __exit__(self, *_: object) -> None:
        if self._mine:
            release()


def uninterrupted(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function run inside `held`."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        # As `with held()`, in half as many calls.
        mine = hold()
        try:
            return function(*args, **kwargs)
        finally:
            if mine:
                release()

    return call


def wait_until(ready: Callable[[float], object]) -> None:
    """Wait for another thread, and deliver interrupts meanwhile.

    Parameters
    ----------
    ready : callable
        Given seconds, waits for so long at most and says whether that was enough.
    """
    while not ready(PAUSE):
        deliver()
