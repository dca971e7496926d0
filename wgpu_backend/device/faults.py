# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""Errors of wgpu, translated into the exceptions of this package.

wgpu raises its own errors from some calls and logs the rest. Inside `TranslateErrors` both become
one of ours: DeviceLost if the device is lost, OutOfMemory, or DeviceError for all else.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import TracebackType

from wgpu_backend.errors import BackendError, DeviceError, DeviceLost, OutOfMemory

_LOG = logging.getLogger("wgpu_backend.device")
_NOISE = re.compile(r"^(Validation Error|Caused by:|In wgpu\w+.*|)$")
# The last spelling is Dawn's.
_LOST = ("device is lost", "device was lost", "[Device] is lost")
_OURS = threading.local()
_THEIRS = (
    RuntimeError,
    ValueError,
    AttributeError,
    TypeError,
    OverflowError,
)


def is_gpu_error(error: BaseException, name: str = "GPUError") -> bool:
    """Return whether an error is of a class of this name, of any WebGPU implementation.

    Each has classes of its own, and one that is not installed cannot be named here.
    """
    return any(kind.__name__ == name for kind in type(error).__mro__)


def cause(error: BaseException) -> str:
    """Return the informative lines of a wgpu error as one line."""
    lines = [line.strip() for line in str(error).splitlines()]
    return "; ".join(line for line in lines if not _NOISE.match(line)) or type(error).__name__


def is_loss(error: BaseException) -> bool:
    """Return whether a wgpu error means that the device is gone."""
    text = str(error)
    return any(words in text for words in _LOST)


def convert_error(error: BaseException, subject: str, report: Callable[[], str]) -> BackendError:
    """Return our exception for a wgpu error.

    Parameters
    ----------
    error : BaseException
        What wgpu raised.
    subject : str
        What was being done, the start of the message.
    report : callable
        Gives the memory report, asked for only when memory ran out.
    """
    if is_loss(error):
        return DeviceLost(f"{subject}: the driver gave the device up; open a new one")
    if is_gpu_error(error, "GPUOutOfMemoryError") or "not enough memory" in str(error).lower():
        return OutOfMemory(f"{subject}: the device is out of memory", report())
    return DeviceError(f"{subject}: {cause(error)}")


class _Divert(logging.Filter):
    """A filter that sends wgpu's log records during our calls to our own logger, as debug."""

    def filter(self, record: logging.LogRecord) -> bool:
        if not getattr(_OURS, "depth", 0):
            return True
        _LOG.debug("wgpu: %s", record.getMessage())
        return False


def divert_logs() -> None:
    """Install the filter on loggers of imported implementations; safe to call again."""
    # A logger made before its package is imported would have the wrong class.
    loaded = [name for name in ("wgpu", "wgpudawn") if name in sys.modules]
    for logger in map(logging.getLogger, loaded):
        if not any(isinstance(f, _Divert) for f in logger.filters):
            logger.addFilter(_Divert())


@contextmanager
def quiet() -> Generator[None]:
    """Keep wgpu's log records of this thread out of the user's log."""
    _OURS.depth = getattr(_OURS, "depth", 0) + 1
    try:
        yield
    finally:
        _OURS.depth -= 1


class TranslateErrors:
    """A context that raises our exceptions for wgpu's, see `convert`, and is `quiet`, too.

    A class, since every replay enters it, and a generator costs several calls more.
    """

    __slots__ = ("_report", "_subject")

    def __init__(self, subject: str, report: Callable[[], str]) -> None:
        self._subject, self._report = subject, report

    def __enter__(self) -> None:
        _OURS.depth = getattr(_OURS, "depth", 0) + 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        _OURS.depth -= 1
        theirs = isinstance(error, _THEIRS) or (error is not None and is_gpu_error(error))
        if error is not None and theirs and not isinstance(error, BackendError):
            raise convert_error(error, self._subject, self._report) from error
