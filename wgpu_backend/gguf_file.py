"""GGUF files: mapped, checked, and their tensors' bytes handed out without a copy.

This file knows the life of an open file; what its bytes mean is in `gguf_header`.
"""

from __future__ import annotations

import mmap
from contextlib import suppress
from os import PathLike, fstat
from pathlib import Path
from types import TracebackType
from typing import Self

from wgpu_backend.config import Config
from wgpu_backend.errors import GGUFError, ModelError
from wgpu_backend.gguf_header import Header, TensorInfo, parse_header

__all__ = ["GGUFFile", "TensorInfo", "open_gguf", "parse_gguf"]


class GGUFFile:
    """An open file: metadata, tensor infos and the bytes of the tensors.

    Made by `open_gguf` and `parse_gguf`; closes as a context manager or by `close`.

    Parameters
    ----------
    path : Path
        The file, as messages name it.
    header : Header
        What its first part says; its fields are attributes of the file too.
    buffer : bytes or mmap
        The whole file.
    """

    def __init__(self, path: Path, header: Header, buffer: bytes | mmap.mmap) -> None:
        self.path = path
        self.version = header.version
        self.alignment = header.alignment
        self.metadata = header.metadata
        self.tensors = header.tensors
        self.config = Config(str(path), header.metadata)
        self._buffer: bytes | mmap.mmap | None = buffer

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def data(self, name: str) -> memoryview:
        """Exact bytes of one tensor, read-only and not copied.

        The view stays good after `close`; the mapping goes when the last view does.

        Raises
        ------
        ModelError
            The file has no tensor of that name, or is closed.
        """
        if self._buffer is None:
            raise ModelError(f"{self.path}: tensor {name!r} asked of a closed file, open it again")
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(
                f"{self.path}: no tensor {name!r} among the {len(self.tensors)} in the file"
            )
        return memoryview(self._buffer)[info.offset : info.offset + info.nbytes]

    def forget(self, name: str) -> None:
        """Let the system take back the memory that a tensor's bytes were read into.

        They are read from the file again when somebody looks. Without this a loaded model would
        hold its file in memory twice: on the device and as pages of the mapping.
        """
        info = self.tensors[name]
        if isinstance(self._buffer, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            first = -(-info.offset // mmap.PAGESIZE) * mmap.PAGESIZE
            size = info.offset + info.nbytes - first
            if size >= mmap.PAGESIZE:
                self._buffer.madvise(mmap.MADV_DONTNEED, first, size)

    def close(self) -> None:
        """Let go of the file; a second call does nothing."""
        buffer, self._buffer = self._buffer, None
        if isinstance(buffer, mmap.mmap):
            with suppress(BufferError):  # views are still out: the last of them unmaps the file
                buffer.close()


def open_gguf(path: str | PathLike[str], check_types: bool = True) -> GGUFFile:
    """Map a file and read its header.

    Parameters
    ----------
    path : path-like
        A regular file.
    check_types : bool
        Refuse tensors of types that no kernel here reads. Without, such a file can be looked at.

    Raises
    ------
    GGUFError
        The file is not there, damaged or hostile; the message names key or tensor and the numbers.
    """
    path = Path(path)
    buffer = _map(path)
    try:
        return parse_gguf(buffer, path, check_types)
    except BaseException:
        buffer.close()
        raise


def parse_gguf(
    buffer: bytes | mmap.mmap, path: str | PathLike[str] = "<memory>", check_types: bool = True
) -> GGUFFile:
    """Read a file that is in memory already; `path` is only its name in messages.

    Raises
    ------
    GGUFError
        As `open_gguf`.
    """
    return GGUFFile(Path(path), parse_header(buffer, str(path), check_types), buffer)


def _map(path: Path) -> mmap.mmap:
    """Map a regular file; anything else could block or never end."""
    try:
        if not path.is_file():
            fault = "not a regular file, needs one" if path.exists() else "no such file"
            raise GGUFError(f"{path}: {fault}")
        with path.open("rb") as file:
            if not fstat(file.fileno()).st_size:  # mmap refuses an empty file
                raise GGUFError(f"{path}: 0 bytes, the header of a GGUF file has 24")
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except OSError as error:
        raise GGUFError(f"{path}: {error.strerror}") from error
