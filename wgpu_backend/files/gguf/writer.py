"""Writing of GGUF files, version 3: keys first, then tensors in pieces.

Only the header is kept in memory. The file has a temporary name until it is complete, so a file
with the requested name is always complete. The format is in `header`.
"""

from __future__ import annotations

import os
import shutil
import struct
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import DType
from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.gguf.file_bytes import require_regular
from wgpu_backend.files.gguf.reader import SPLIT_KEYS, GGUFFile

ALIGNMENT = 32
_VERSION = 3
_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {
    "u1": 0, "i1": 1, "u2": 2, "i2": 3, "u4": 4, "i4": 5, "f4": 6, "b1": _BOOL, "u8": 10,
    "i8": 11, "f8": 12,
}  # fmt: skip
# Bytes of a tensor per read.
_AT_ONCE = 1 << 20
# A scalar integer gets the first type that can hold it.
_INTEGERS = ("u4", "i4", "u8", "i8")


@dataclass(frozen=True, slots=True)
class OutgoingTensor:
    """A tensor to write.

    Parameters
    ----------
    name : str
        Name in the file: ``blk.0.attn_q.weight``.
    dtype : DType
        A type that GGUF has a number for.
    shape : tuple of int
        Row-major.
    pieces : callable
        Makes the bytes, in order, piece by piece; called once.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    pieces: Callable[[], Iterable[bytes | memoryview]]

    @property
    def nbytes(self) -> int:
        """Return the bytes of data, without padding."""
        rows = int(np.prod(self.shape[:-1], dtype=np.int64)) if self.shape else 1
        return rows * self.dtype.nbytes(self.shape[-1] if self.shape else 1)


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value | np.generic],
    tensors: Sequence[OutgoingTensor],
    progress: Callable[[float], None] | None = None,
) -> None:
    """Write a file, completely or not at all.

    Parameters
    ----------
    path : Path
        An existing file is replaced once the new one is complete.
    metadata : Mapping of str to Value or np.generic
        NumPy's numbers and arrays keep their types; Python's integers become the first of u32, i32,
        u64 and i64 that holds them, floats f32.
    tensors : sequence of OutgoingTensor
        In the file's order.
    progress : callable or None
        Called with the share of bytes written, 0 to 1; an exception from it ends writing.

    Raises
    ------
    ModelError
        There is no room, or the pieces of a tensor are not as many bytes as it has.
    GGUFError
        `path` is not a regular file.
    OSError
        It cannot be written; names the file.
    """
    total, pieces = encode_file(path, metadata, tensors)
    with whole_file(path, total) as file:
        done = 0
        for piece in pieces:
            done += file.write(piece)
            if progress is not None:
                progress(done / total)


def encode_file(
    path: Path, metadata: Mapping[str, Value | np.generic], tensors: Sequence[OutgoingTensor]
) -> tuple[int, Iterator[bytes | memoryview]]:
    """Return the size of a whole file, and its bytes in pieces; `path` is for messages."""
    head = header(metadata, tensors)

    def pieces() -> Iterator[bytes | memoryview]:
        yield head
        for tensor in tensors:
            yield from _check_size(path, tensor)
            yield _padding(tensor.nbytes)

    return len(head) + sum(_align(tensor.nbytes) for tensor in tensors), pieces()


def merge_parts(file: GGUFFile) -> tuple[int, Iterator[bytes | memoryview]]:
    """Return the size and bytes of one file with the keys and tensors of a split one."""
    tensors = [
        OutgoingTensor(info.name, info.dtype, info.shape, partial(_read, file, info.name))
        for info in file.tensors.values()
    ]
    return encode_file(file.path, copy_metadata(file), tensors)


def copy_metadata(file: GGUFFile) -> dict[str, Value | np.generic]:
    """Return the keys of a file with their types, except those that describe its layout.

    The written file is a single one, whose tensors begin at multiples of 32 bytes.
    """
    return {
        key: file.numbers[key].type(value) if key in file.numbers else value
        for key, value in file.metadata.items()
        if key not in (*SPLIT_KEYS, "general.alignment")
    }


def _read(file: GGUFFile, name: str) -> Iterator[memoryview]:
    source = file.source(name)
    for start in range(0, source.nbytes, _AT_ONCE):
        piece = memoryview(bytearray(min(_AT_ONCE, source.nbytes - start)))
        source.read_into(piece, start)
        yield piece


def header(metadata: Mapping[str, Value | np.generic], tensors: Sequence[OutgoingTensor]) -> bytes:
    """Encode the part of a file before the data, with padding."""
    out = [struct.pack("<4sIQQ", b"GGUF", _VERSION, len(tensors), len(metadata))]
    for key, value in metadata.items():
        out += (_string(key), *_encode_value(value))
    offset = 0
    for tensor in tensors:
        dims = tensor.shape[::-1]
        assert tensor.dtype.ggml is not None
        out.append(_string(tensor.name))
        out.append(struct.pack(f"<I{len(dims)}Q", len(dims), *dims))
        out.append(struct.pack("<IQ", tensor.dtype.ggml, offset))
        offset += _align(tensor.nbytes)
    made = b"".join(out)
    return made + _padding(len(made))


@contextmanager
def whole_file(path: Path, nbytes: int) -> Generator[BinaryIO]:
    """Open a file with a temporary name until the block ends; delete it if the block fails.

    Parameters
    ----------
    path : Path
        Final name of the file.
    nbytes : int
        Number of bytes to write; rejected if the disk has less room.

    Raises
    ------
    ModelError, GGUFError, OSError
        As `write_gguf`.
    """
    if path.exists():
        require_regular(path, path.stat().st_mode)
    # In the same folder, since renaming is atomic only within one file system.
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        room = shutil.disk_usage(path.parent).free
        if nbytes > room:
            raise ModelError(f"{path}: needs {nbytes} bytes, the disk has room for {room}")
        with draft.open("wb") as file:
            yield file
            file.flush()
            # Otherwise a power cut could leave an empty file with the final name.
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        # An error while reading another file keeps that file's name.
        if str(error.filename) not in ("None", str(draft), str(path.parent)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        draft.unlink(missing_ok=True)


def _check_size(path: Path, tensor: OutgoingTensor) -> Iterator[bytes | memoryview]:
    """Yield the pieces of a tensor, and check that they have as many bytes as the header says."""
    nbytes = 0
    for piece in tensor.pieces():
        nbytes += piece.nbytes if isinstance(piece, memoryview) else len(piece)
        yield piece
    if nbytes != tensor.nbytes:
        raise ModelError(
            f"{path}: tensor {tensor.name}: {nbytes} bytes came, {tensor.dtype} of shape "
            f"{tensor.shape} has {tensor.nbytes}"
        )


def _encode_value(value: Value | np.generic) -> tuple[bytes, ...]:
    """Encode the type and bytes of a value."""
    if isinstance(value, str):
        return struct.pack("<I", _STRING), _string(value)
    if isinstance(value, list):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(value)), *map(_string, value)
    if isinstance(value, np.ndarray):
        # Without NumPy's mark of the byte order, which the next line sets.
        kind = value.dtype.str[1:]
        array = np.ascontiguousarray(value, value.dtype.newbyteorder("<"))
        return struct.pack("<IIQ", _ARRAY, _NUMBERS[kind], value.size), array.tobytes()
    number = _number(value)
    return struct.pack("<I", _NUMBERS[number.dtype.str[1:]]), number.tobytes()


def _number(value: float | np.generic) -> NDArray[np.generic]:
    if isinstance(value, np.generic):
        return np.asarray(value)
    if isinstance(value, bool):
        return np.array(value, "?")
    if isinstance(value, float):
        # llama.cpp reads keys of floats as f32 alone.
        return np.array(value, "<f4")
    ranges = ((kind, np.iinfo(kind)) for kind in _INTEGERS)
    kind = next(kind for kind, info in ranges if info.min <= value <= info.max)
    return np.array(value, f"<{kind}")


def _string(text: str) -> bytes:
    # Tokens may be pieces of characters, which the reader decodes to surrogates.
    raw = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(raw)) + raw


def _align(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _padding(nbytes: int) -> bytes:
    return bytes(_align(nbytes) - nbytes)
