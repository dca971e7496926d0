"""Reading of a file's bytes on demand.

Files are read and not memory-mapped: if a mapped file is truncated, the process ends with a signal,
whereas a short read can be reported. Every read compares the file with its state when it was
opened, so that bytes written meanwhile are not taken for weights.
"""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path
from typing import Protocol

from wgpu_backend.errors import GGUFError, ModelError

# Without these flags Windows changes line ends, a pipe in the file's place blocks, and a terminal
# there becomes the controlling terminal of the process.
_FLAGS = ("O_BINARY", "O_NONBLOCK", "O_NOCTTY", "O_CLOEXEC", "O_NOINHERIT")
_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


class Source(Protocol):
    """A sequence of bytes that are read on demand."""

    @property
    def nbytes(self) -> int:
        """Return the number of bytes."""
        ...

    def read_into(self, out: memoryview, offset: int) -> None:
        """Fill `out` with the bytes from `offset` on."""
        ...


def require_regular(path: Path, mode: int) -> None:
    """Raise if a file is not a regular one: it could block, or never end.

    Parameters
    ----------
    path : Path
        The file, for the message.
    mode : int
        The mode from `os.stat`.

    Raises
    ------
    GGUFError
        It is another kind of file; the message names the kind.
    """
    if not stat.S_ISREG(mode):
        kind = next((kind for is_kind, kind in _KINDS if is_kind(mode)), "no file")
        raise GGUFError(f"{path}: {kind}, needs a regular file")


class FileBytes:
    """An open regular file.

    Threads may share it, and a signal handler may close it while its thread reads it.

    Parameters
    ----------
    path : Path
        The file to open.

    Attributes
    ----------
    nbytes : int
        Number of bytes when it was opened.

    Raises
    ------
    GGUFError
        There is no such file, it may not be read, or it is not a regular file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.RLock()
        self._descriptor: int | None = None
        try:
            # Checked before opening, too: opening a device can have side effects, such as winding a
            # tape.
            require_regular(path, path.stat().st_mode)
            self._descriptor = os.open(path, _flags())
            self._opened = os.fstat(self._descriptor)
            require_regular(path, self._opened.st_mode)
        except GGUFError:
            self.close()
            raise
        except FileNotFoundError:
            raise GGUFError(f"{path}: no such file") from None
        except OSError as error:
            raise GGUFError(f"{path}: {error.strerror}") from error
        except ValueError as error:
            raise GGUFError(f"{str(path)!r}: {error}") from error
        self.nbytes = self._opened.st_size

    def __del__(self) -> None:
        # No other reference is left, so there is no lock to wait for.
        if getattr(self, "_descriptor", None) is not None:
            self._close()

    def read(self, subject: str, offset: int, nbytes: int) -> bytes:
        """Return the bytes from `offset` on, read as by `read_into`."""
        out = bytearray(nbytes)
        self.read_into(subject, memoryview(out), offset)
        return bytes(out)

    def read_into(self, subject: str, out: memoryview, offset: int) -> None:
        """Fill `out` with the bytes from `offset` on.

        Parameters
        ----------
        subject : str
            The thing that is read, for messages.
        out : memoryview
            Buffer of bytes.
        offset : int
            First byte; at least as many bytes as `out` has follow it, by the size when it was
            opened.

        Raises
        ------
        GGUFError
            The file was truncated or written to since it was opened, or cannot be read.
        ModelError
            It was closed.
        """
        with self._lock:
            if self._descriptor is None:
                raise ModelError(f"{self.path}: {subject} read from a closed file, open it again")
            try:
                got = _fill(self._descriptor, out, offset)
                # After the read, so that a write during it shows as well.
                now = os.fstat(self._descriptor)
            except OSError as error:
                raise GGUFError(f"{self.path}: {subject}: {error.strerror}") from error
        before = self._opened
        if got < out.nbytes or now.st_size != before.st_size:
            raise GGUFError(
                f"{self.path}: {subject}: the file has {now.st_size} bytes, it had "
                f"{before.st_size} when it was opened; it was changed meanwhile, open it again"
            )
        if now.st_mtime_ns != before.st_mtime_ns:
            late = (now.st_mtime_ns - before.st_mtime_ns) * 1e-9
            raise GGUFError(
                f"{self.path}: {subject}: the file was written to after it was opened, by its "
                f"times {late:.3f} s later; open it again"
            )

    def close(self) -> None:
        """Close the file, after a read in progress; a second call does nothing."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        # Cleared first: after a failed close, a second one could close another file that was given
        # the same number.
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


class FileRange:
    """A range of an open file, with a name for messages.

    Parameters
    ----------
    file : FileBytes
        The open file.
    subject : str
        Name of the range in messages.
    offset, nbytes : int
        First byte and number of bytes.
    """

    __slots__ = ("_file", "_subject", "nbytes", "offset")

    def __init__(self, file: FileBytes, subject: str, offset: int, nbytes: int) -> None:
        self._file, self._subject, self.offset, self.nbytes = file, subject, offset, nbytes

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._file.path

    def read_into(self, out: memoryview, offset: int) -> None:
        """Fill `out` with the bytes from `offset` of the range on; raises like `FileBytes` does."""
        self._file.read_into(self._subject, out, self.offset + offset)


class HeldRange:
    """A range of bytes in memory."""

    __slots__ = ("_view", "nbytes")

    def __init__(self, view: memoryview) -> None:
        self._view, self.nbytes = view, view.nbytes

    def read_into(self, out: memoryview, offset: int) -> None:
        """Fill `out` with the bytes from `offset` on."""
        out[:] = self._view[offset : offset + out.nbytes]


def _flags() -> int:
    flags = os.O_RDONLY
    for name in _FLAGS:
        flags |= getattr(os, name, 0)
    return flags


def _fill(descriptor: int, out: memoryview, offset: int) -> int:
    """Fill `out` as far as the file goes; return the number of bytes, as a read may be short."""
    done = 0
    while done < out.nbytes:
        got = _read_once(descriptor, out[done:], offset + done)
        if not got:
            break
        done += got
    return done


def _read_once(descriptor: int, out: memoryview, offset: int) -> int:
    # preadv does not move the file position, which a forked child shares.
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [out], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    data = os.read(descriptor, min(out.nbytes, _AT_ONCE))
    out[: len(data)] = data
    return len(data)


# `os.read` allocates a buffer of its own, which this keeps small.
_AT_ONCE = 1 << 20
