"""Open GGUF files: their checked headers, and the bytes of tensors on demand.

This file handles open files and the parts of split ones; the format is in `header`. A split model
has files whose names end in ``-00001-of-00003.gguf``. Every part is a GGUF file: the first has the
model's keys, and each has some of the tensors.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import ExitStack
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Self

from wgpu_backend.errors import GGUFError, ModelError, Unclosed
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.files.gguf.file_bytes import FileBytes, FileRange, HeldRange, Source
from wgpu_backend.files.gguf.header import Header, TensorInfo, parse_header

__all__ = ["GGUFFile", "TensorInfo", "open_gguf", "open_parts", "parse_gguf"]

PART_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
SPLIT_KEYS = ("split.no", "split.count", "split.tensors.count")
# split.count is a uint16.
_MAX_PARTS = 65_535
# Names of missing parts in a message.
_SHOWN = 9


class GGUFFile:
    """An open file: metadata, tensor infos and the bytes of the tensors.

    Created by `open_gguf` and `parse_gguf`; closed as a context manager or by `close`.

    Parameters
    ----------
    path : Path
        The file, as messages name it.
    header : Header
        Header of its first part; its fields are attributes of the file, too.
    data : bytes or FileBytes
        The whole file.

    Attributes
    ----------
    paths : tuple of Path
        The files that contain the tensors: one, or all parts of a split model.
    """

    def __init__(self, path: Path, header: Header, data: bytes | FileBytes) -> None:
        self.path = path
        self.version = header.version
        self.alignment = header.alignment
        self.metadata = header.metadata
        self.tensors = header.tensors
        self.numbers = header.numbers
        self.config = Config(str(path), header.metadata)
        self.paths: tuple[Path, ...] = (path,)
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
        """Return the exact bytes of one tensor, read-only; they stay valid after `close`.

        Raises
        ------
        GGUFError
            The file was truncated or written to since it was opened; the message has both sizes.
        ModelError
            The file has no tensor of that name, or is closed.
        """
        source = self.source(name)
        whole = bytearray(source.nbytes)
        source.read_into(memoryview(whole), 0)
        return memoryview(whole).toreadonly()

    def source(self, name: str) -> Source:
        """Return the bytes of one tensor for reading in pieces, while the file is open.

        Reading raises like `data` does.

        Raises
        ------
        ModelError
            The file has no tensor of that name, or is closed.
        """
        if self._data is None:
            raise ModelError(f"{self.path}: tensor {name!r} read from a closed file, open it again")
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(
                f"{self.path}: no tensor {name!r} among the {len(self.tensors)} in the file"
            )
        if isinstance(self._data, bytes):
            return HeldRange(memoryview(self._data)[info.offset : info.offset + info.nbytes])
        return FileRange(self._data, f"tensor {name!r}", info.offset, info.nbytes)

    def rows_together(self, name: str) -> int:
        """Return the number of rows of a tensor that are best read together: here 1."""
        return 1

    def close(self) -> None:
        """Close the file; a second call does nothing."""
        data, self._data = self._data, None
        if isinstance(data, FileBytes):
            data.close()
        if self.unclosed is not None:
            self.unclosed.silence()


class _SplitFile(GGUFFile):
    """A model in several files, as if it were one: the first part's keys, and all tensors.

    Parameters
    ----------
    parts : sequence of GGUFFile
        In order; closed with the model.
    """

    def __init__(self, parts: Sequence[GGUFFile]) -> None:
        first = parts[0]
        tensors = {name: info for part in parts for name, info in part.tensors.items()}
        header = Header(first.version, first.alignment, first.metadata, tensors, first.numbers)
        # Empty, since the bytes are in the parts; None would mean that the file is closed.
        super().__init__(first.path, header, b"")
        self.paths = tuple(part.path for part in parts)
        self._parts = parts
        self._part_of = {name: part for part in parts for name in part.tensors}
        self.unclosed = Unclosed(f"file {first.path}", *parts)

    def source(self, name: str) -> Source:
        """Return the bytes of one tensor from the part that contains it, as `GGUFFile.source`."""
        if self._data is not None and name not in self.tensors:
            return super().source(name)
        return self._part_of.get(name, self._parts[0]).source(name)

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        super().close()
        for part in self._parts:
            part.close()


def open_gguf(path: str | PathLike[str], check_types: bool = True) -> GGUFFile:
    """Open a file and read its header; for the first part of a split model, open all parts.

    Parameters
    ----------
    path : path-like
        A regular file. The other parts of a split model are in the same folder.
    check_types : bool
        Reject tensors of types without a kernel here. If false, such a file can be inspected.

    Raises
    ------
    GGUFError
        The file is missing, damaged or hostile; the message names key or tensor and the numbers.
        Or it is a directory, a pipe or a device, which are not opened. Or a part of a split model
        is missing, or belongs to another model; the message names it.
    """
    path = Path(path)
    with ExitStack() as opened:
        first = opened.enter_context(_open_one(path, check_types))
        count = _split_key(first, "split.count", 1)
        if count < 2:
            opened.pop_all()
            return first
        others = _other_parts(first, count)
        split = _join([first, *(opened.enter_context(_open_one(o, check_types)) for o in others)])
        opened.pop_all()
        return split


def open_parts(paths: Sequence[Path], check_types: bool = True) -> GGUFFile:
    """Open one file, or the parts of a split model in any order and with any names.

    Raises
    ------
    GGUFError
        As `open_gguf`.
    """
    with ExitStack() as opened:
        parts = [opened.enter_context(_open_one(path, check_types)) for path in paths]
        found = parts[0] if len(parts) == 1 and _split_key(parts[0], "split.count", 1) < 2 else None
        if found is None:
            parts.sort(key=lambda part: _split_key(part, "split.no"))
            found = _join(parts)
        opened.pop_all()
        return found


def _open_one(path: Path, check_types: bool) -> GGUFFile:
    file = FileBytes(path)
    try:
        if not file.nbytes:
            raise GGUFError(f"{path}: 0 bytes, the header of a GGUF file has 24")
        return GGUFFile(path, parse_header(file, str(path), check_types), file)
    except BaseException:
        file.close()
        raise


def _split_key(file: GGUFFile, key: str, default: int | None = None) -> int:
    value = file.metadata.get(key, default)
    if value is None:
        raise GGUFError(f"{file.path}: key {key!r} is missing, every part of a split model has it")
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= _MAX_PARTS:
        raise GGUFError(f"{file.path}: key {key!r} is {value!r}, needs 0 to {_MAX_PARTS}")
    return value


def _other_parts(first: GGUFFile, count: int) -> list[Path]:
    """Return the paths of the second part and of all after it.

    Raises
    ------
    GGUFError
        The file is not the first part, does not have a part's name, or parts are missing.
    """
    path, number = first.path, _split_key(first, "split.no")
    found = PART_NAME.fullmatch(path.name)
    stem = path.name.removesuffix(".gguf") if found is None else found[1]
    names = [f"{stem}-{n:05}-of-{count:05}.gguf" for n in range(1, count + 1)]
    if number:
        raise GGUFError(
            f"{path}: part {number + 1} of {count}, name the first part: {path.parent / names[0]}"
        )
    if path.name != names[0]:
        raise GGUFError(
            f"{path}: part 1 of {count} of a split model, needs the name {names[0]}, so that "
            "the other parts are found"
        )
    paths = [path.parent / name for name in names[1:]]
    missing = [other.name for other in paths if not other.exists()]
    if missing:
        more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
        raise GGUFError(
            f"{path}: part 1 of {count}; missing in its folder: {', '.join(missing[:_SHOWN])}{more}"
        )
    return paths


def _join(parts: Sequence[GGUFFile]) -> GGUFFile:
    """Join parts into one file.

    Raises
    ------
    GGUFError
        The files are not the parts of one model; the message names the wrong file.
    """
    first, seen = parts[0], dict[str, GGUFFile]()
    count, total = _split_key(first, "split.count"), first.metadata.get("split.tensors.count")
    for number, part in enumerate(parts):
        _require_same_model(part, number, first)
        for name in part.tensors:
            if name in seen:
                raise GGUFError(
                    f"{part.path}: tensor {name!r} is in {seen[name].path.name} too; one of the "
                    "two is a part of another model"
                )
            seen[name] = part
    if len(parts) != count:
        raise GGUFError(f"{first.path}: {len(parts)} of {count} parts, needs all of them")
    if total is not None and len(seen) != total:
        raise GGUFError(
            f"{first.path}: its {count} parts have {len(seen)} tensors, split.tensors.count is "
            f"{total}; one of the parts is of another model"
        )
    return _SplitFile(parts)


def _require_same_model(part: GGUFFile, number: int, first: GGUFFile) -> None:
    """Raise if a file is not the part with this number (from 0) of the first part's model."""
    count = _split_key(first, "split.count")
    own = _split_key(part, "split.no"), _split_key(part, "split.count")
    if own != (number, count):
        raise GGUFError(
            f"{part.path}: part {own[0] + 1} of {own[1]} by its keys, needs part {number + 1} of "
            f"the {count} of {first.path.name}"
        )
    for key in ("split.tensors.count", "general.architecture"):
        value, wanted = part.metadata.get(key), first.metadata.get(key)
        # Only the first part must have the model's own keys.
        if value != wanted and (value is not None or key in SPLIT_KEYS):
            raise GGUFError(
                f"{part.path}: {key} is {value!r}, that of {first.path.name} is {wanted!r}: a part "
                "of another model"
            )


def parse_gguf(
    data: bytes, path: str | PathLike[str] = "<memory>", check_types: bool = True
) -> GGUFFile:
    """Parse a file in memory; `path` is only its name in messages.

    Raises
    ------
    GGUFError
        As `open_gguf`.
    """
    return GGUFFile(Path(path), parse_header(data, str(path), check_types), data)
