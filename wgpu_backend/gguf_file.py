"""GGUF files: checked, and their tensors' bytes handed out when they are wanted.

This file knows the life of an open file; what its bytes mean is in `gguf_header`.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self

from wgpu_backend.config import Config
from wgpu_backend.errors import GGUFError, ModelError
from wgpu_backend.file_bytes import FileBytes, FileRange, HeldRange, Source
from wgpu_backend.gguf_header import Header, TensorInfo, parse_header
from wgpu_backend.unclosed import Unclosed

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
    data : bytes or FileBytes
        The whole file.
    """

    def __init__(self, path: Path, header: Header, data: bytes | FileBytes) -> None:
        self.path = path
        self.version = header.version
        self.alignment = header.alignment
        self.metadata = header.metadata
        self.tensors = header.tensors
        self.numbers = header.numbers
        self.config = Config(str(path), header.metadata)
        self._data: bytes | FileBytes | None = data
        self.unclosed = Unclosed(f"file {path}") if isinstance(data, FileBytes) else None

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
        """Exact bytes of one tensor, read-only; they stay good after `close`.

        Raises
        ------
        GGUFError
            The file was cut or written to since it was opened; the message has both sizes.
        ModelError
            The file has no tensor of that name, or is closed.
        """
        source = self.source(name)
        whole = bytearray(source.nbytes)
        source.read_into(memoryview(whole), 0)
        return memoryview(whole).toreadonly()

    def source(self, name: str) -> Source:
        """Bytes of one tensor to be read piece by piece, while the file is open.

        Reading raises as `data` does.

        Raises
        ------
        ModelError
            The file has no tensor of that name, or is closed.
        """
        if self._data is None:
            raise ModelError(f"{self.path}: tensor {name!r} asked of a closed file, open it again")
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(
                f"{self.path}: no tensor {name!r} among the {len(self.tensors)} in the file"
            )
        if isinstance(self._data, bytes):
            return HeldRange(memoryview(self._data)[info.offset : info.offset + info.nbytes])
        return FileRange(self._data, f"tensor {name!r}", info.offset, info.nbytes)

    def rows_together(self, name: str) -> int:
        """How many rows of a tensor are best read together, as they cost the same as one: 1."""
        return 1

    def close(self) -> None:
        """Let go of the file; a second call does nothing."""
        data, self._data = self._data, None
        if isinstance(data, FileBytes):
            data.close()
        if self.unclosed is not None:
            self.unclosed.silence()


def open_gguf(path: str | PathLike[str], check_types: bool = True) -> GGUFFile:
    """Open a file and read its header.

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
        Or it is a directory, a pipe or a device, which are not opened.
    """
    path = Path(path)
    file = FileBytes(path)
    try:
        if not file.nbytes:
            raise GGUFError(f"{path}: 0 bytes, the header of a GGUF file has 24")
        return GGUFFile(path, parse_header(file, str(path), check_types), file)
    except BaseException:
        file.close()
        raise


def parse_gguf(
    data: bytes, path: str | PathLike[str] = "<memory>", check_types: bool = True
) -> GGUFFile:
    """Read a file that is in memory already; `path` is only its name in messages.

    Raises
    ------
    GGUFError
        As `open_gguf`.
    """
    return GGUFFile(Path(path), parse_header(data, str(path), check_types), data)
