"""A parser of GGUF headers, versions 2 and 3, little-endian, for untrusted files.

This file knows the format and its limits, but not the meaning of keys and tensors for a model.
::

    magic version n_tensors n_kv │ key type value … │ name dims type offset … │ pad │ data pad …
    ╰──────── 24 bytes ────────╯ ╰─── metadata ───╯ ╰──── tensor infos ────╯

Every count and length is compared with the remaining bytes before memory is allocated for it, so
memory stays within a small multiple of the header's real size. For any bytes the result is a header
whose tensors lie inside the file and do not overlap, or a `GGUFError`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from wgpu_backend import dtypes
from wgpu_backend.dtypes import DType
from wgpu_backend.errors import GGUFError
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.gguf.file_bytes import FileBytes

# Bytes of the first read; each further one doubles it.
_FIRST_NBYTES = 1 << 20
_MAX_KEYS = 65_536
_MAX_TENSORS = 65_536
# The specification's limit.
_MAX_KEY_NBYTES = 65_535
# ggml stores names in 64 bytes including a NUL.
_MAX_NAME_NBYTES = 63
# A key may hold a whole tokenizer.json, of tens of megabytes.
_MAX_STRING_NBYTES = 64 << 20
# GGML_MAX_DIMS of ggml.h.
_MAX_DIMS = 4
# The specification requires multiples of 8; llama.cpp accepts any power of two, and so does this.
_MAX_ALIGNMENT = 1 << 20
# The specification's value for files without the key general.alignment.
_DEFAULT_ALIGNMENT = 32

_STRING, _ARRAY = 8, 9
_UINT32, _BOOL = 4, 7
_NUMBERS: dict[int, np.dtype[np.generic]] = {
    number: np.dtype(code)
    for number, code in {
        0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4",
        # Any byte but zero is true, as ggml reads it; as NumPy's bool it would be undefined.
        _BOOL: "u1",
        10: "<u8", 11: "<i8", 12: "<f8",
    }.items()
}  # fmt: skip

# Types of the format without kernels here: name, elements per block, bytes per block.
_OTHER_TYPES: dict[int, DType] = {
    number: DType(name, block, block_nbytes, number, None)
    for number, name, block, block_nbytes in (
        (24, "i8", 1, 1), (25, "i16", 1, 2), (27, "i64", 1, 8), (28, "f64", 1, 8),
    )
}  # fmt: skip

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """The place and type of one tensor.

    Parameters
    ----------
    name : str
        As in the file: ``blk.0.attn_q.weight``.
    dtype : DType
        Element type or block format.
    shape : tuple of int
        Row-major: the file's dimensions reversed, so ``shape[-1]`` is contiguous.
    offset : int
        First byte, counted from the start of the file.
    nbytes : int
        Bytes of data, without padding.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """The part of a file before its data.

    Parameters
    ----------
    version : int
        2 or 3.
    alignment : int
        Every tensor starts a multiple of this many bytes after the start of the data.
    metadata : Mapping of str to Value
        In file order. Arrays of numbers and bools are read-only NumPy arrays, arrays of strings
        are lists.
    tensors : Mapping of str to TensorInfo
        In file order, which is also the order of their offsets.
    numbers : Mapping of str to np.dtype
        Types that the file has for scalar numbers and bools of the metadata.
    """

    version: int
    alignment: int
    metadata: Mapping[str, Value]
    tensors: Mapping[str, TensorInfo]
    numbers: Mapping[str, np.dtype[np.generic]]


def parse_header(buffer: bytes | FileBytes, source: str, check_types: bool) -> Header:
    """Parse the header of a file, or of one in memory; `source` is its name in messages.

    Raises
    ------
    GGUFError
        The file is damaged or hostile; or, with `check_types`, a tensor has a type without a kernel
        here. The message names key or tensor and the numbers.
    """
    cursor = _Cursor(source, buffer)
    version = _read_version(cursor)
    n_tensors = cursor.count("tensor count", _MAX_TENSORS)
    n_keys = cursor.count("key count", _MAX_KEYS)
    metadata, alignment, numbers = _read_metadata(cursor, n_keys)
    tensors = _read_tensors(cursor, n_tensors, alignment, check_types)
    return Header(
        version,
        alignment,
        MappingProxyType(metadata),
        MappingProxyType(tensors),
        MappingProxyType(numbers),
    )


class _Cursor:
    """A position in the header; no read goes past the end.

    `subject` is the thing being read, for messages; `buffer` is the part of the file that was
    needed so far.
    """

    def __init__(self, source: str, data: bytes | FileBytes) -> None:
        self.source = source
        self._file = None if isinstance(data, bytes) else data
        self.buffer = data if isinstance(data, bytes) else b""
        self.size = len(data) if isinstance(data, bytes) else data.nbytes
        self.position = 0
        self.subject = "header"
        self.fetch(4)

    def fail(self, message: str) -> NoReturn:
        raise GGUFError(f"{self.source}: {self.subject}: {message}")

    def advance(self, nbytes: int) -> int:
        """Step over `nbytes` bytes, and return the place where they start."""
        start = self.position
        if nbytes > self.size - start:
            self.fail(f"needs {nbytes} bytes at offset {start}, {self.size - start} are left")
        self.position = start + nbytes
        self.fetch(self.position)
        return start

    def fetch(self, end: int) -> bytes:
        """Read the file up to `end` into the buffer, as far as it goes, and return the buffer."""
        here = len(self.buffer)
        if here < min(end, self.size) and self._file is not None:
            wanted = min(max(end, 2 * here, _FIRST_NBYTES), self.size)
            self.buffer += self._file.read(self.subject, here, wanted - here)
        return self.buffer

    def u32(self) -> int:
        return _U32.unpack_from(self.buffer, self.advance(4))[0]

    def u64(self) -> int:
        return _U64.unpack_from(self.buffer, self.advance(8))[0]

    def count(self, subject: str, limit: int) -> int:
        self.subject = subject
        count = self.u64()
        if count > limit:
            self.fail(f"{count}, at most {limit}")
        return count

    def raw_string(self, limit: int) -> bytes:
        length = self.u64()
        if length > limit:
            self.fail(f"string of {length} bytes, at most {limit}")
        start = self.advance(length)
        return self.buffer[start : start + length]

    def name(self, limit: int) -> str:
        """Read a key or tensor name; these are looked up and printed, so they must be UTF-8."""
        raw = self.raw_string(limit)
        if not raw:
            self.fail("name of 0 bytes, needs at least 1")
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            self.fail(f"name {raw[:40]!r} is not UTF-8 at byte {error.start}, needs UTF-8")

    def numbers(self, kind: int, count: int) -> npt.NDArray[np.generic]:
        dtype = _NUMBERS[kind]
        start = self.advance(count * dtype.itemsize)
        # The slice is a copy, so that the array does not keep the whole header in memory.
        values = np.frombuffer(self.buffer[start : self.position], dtype)
        if kind == _BOOL:
            # Bytes other than 0 and 1 would be undefined as NumPy's bool.
            values = values != 0
            values.setflags(write=False)
        return values

    def strings(self, count: int) -> list[str]:
        """Read an array of strings; the hot loop for large vocabularies, so it calls nothing."""
        # Every string has a length of 8 bytes: a count that cannot fit is refused before the list
        # grows.
        if count * 8 > self.size - self.position:
            self.advance(count * 8)
        buffer, position, size = self.buffer, self.position, self.size
        here = len(buffer)
        length_at = _U64.unpack_from
        strings: list[str] = []
        append = strings.append
        for _ in range(count):
            if position + 8 > here:
                if position + 8 > size:
                    self.fail(f"ends after {len(strings)} strings, {count} are announced")
                buffer = self.fetch(position + 8)
                here = len(buffer)
            (length,) = length_at(buffer, position)
            start = position + 8
            position = start + length
            if position > here or length > _MAX_STRING_NBYTES:
                if position > size or length > _MAX_STRING_NBYTES:
                    self.fail(
                        f"string {len(strings)} has {length} bytes, {size - start} are left "
                        f"and at most {_MAX_STRING_NBYTES} may be"
                    )
                buffer = self.fetch(position)
                here = len(buffer)
            # Tokens may be pieces of characters. With "replace", two different ones could become
            # the same text; surrogates restore the file's bytes on encoding.
            append(buffer[start:position].decode("utf-8", "surrogateescape"))
        self.position = position
        return strings


def _read_version(cursor: _Cursor) -> int:
    magic = bytes(cursor.buffer[:4])
    if magic != b"GGUF":
        cursor.fail(f"starts with {magic!r}, a GGUF file starts with b'GGUF'")
    cursor.position = 4
    version = cursor.u32()
    # Versions are small, so that a version in the upper bytes means another byte order.
    if version and version & 0xFFFF == 0:
        swapped = int.from_bytes(version.to_bytes(4, "little"), "big")
        cursor.fail(
            f"big-endian file of version {swapped}, needs little-endian; "
            "convert it with gguf-convert-endian"
        )
    # Version 1 has counts and lengths of 32 bits; the parser reads them as 64 bits.
    if version not in (2, 3):
        cursor.fail(f"version {version}, needs 2 or 3")
    return version


def _read_metadata(
    cursor: _Cursor, count: int
) -> tuple[dict[str, Value], int, dict[str, np.dtype[np.generic]]]:
    """Read all keys, the alignment of tensors, and the types of scalar numbers."""
    metadata: dict[str, Value] = {}
    numbers: dict[str, np.dtype[np.generic]] = {}
    alignment = _DEFAULT_ALIGNMENT
    for index in range(count):
        cursor.subject = f"key {index}"
        key = cursor.name(_MAX_KEY_NBYTES)
        cursor.subject = f"key {_quote(key)}"
        if key in metadata:
            cursor.fail("is there twice, needs to be there once")
        kind = cursor.u32()
        value = metadata[key] = _read_value(cursor, kind)
        if kind in _NUMBERS:
            numbers[key] = np.dtype("?") if kind == _BOOL else _NUMBERS[kind]
        if key == "general.alignment":
            alignment = _check_alignment(cursor, kind, value)
    return metadata, alignment, numbers


def _read_value(cursor: _Cursor, kind: int) -> Value:
    if kind == _STRING:
        # Scalar strings are printed and rendered; surrogates would fail there, far from here.
        return cursor.raw_string(_MAX_STRING_NBYTES).decode("utf-8", "replace")
    if kind == _ARRAY:
        return _read_array(cursor)
    if kind not in _NUMBERS:
        cursor.fail(f"value type {kind}, needs 0 to 12")
    return cursor.numbers(kind, 1)[0].item()


def _read_array(cursor: _Cursor) -> Value:
    kind, count = cursor.u32(), cursor.u64()
    if kind == _ARRAY:
        cursor.fail("array of arrays, arrays hold numbers, bools or strings")
    if kind == _STRING:
        return cursor.strings(count)
    if kind not in _NUMBERS:
        cursor.fail(f"array of value type {kind}, needs 0 to 12")
    return cursor.numbers(kind, count)


def _check_alignment(cursor: _Cursor, kind: int, value: Value) -> int:
    if kind != _UINT32 or not isinstance(value, int):
        cursor.fail(f"value type {kind}, needs {_UINT32} (uint32)")
    if not 1 <= value <= _MAX_ALIGNMENT or value & (value - 1):
        cursor.fail(f"{value}, needs a power of two from 1 to {_MAX_ALIGNMENT}")
    return value


def _read_tensors(
    cursor: _Cursor, count: int, alignment: int, check_types: bool
) -> dict[str, TensorInfo]:
    """Read all infos, then place them: the start of the data is known only after the last one."""
    infos: dict[str, TensorInfo] = {}
    for index in range(count):
        cursor.subject = f"tensor {index}"
        info = _read_tensor(cursor, check_types)
        if info.name in infos:
            cursor.fail("is there twice, needs to be there once")
        infos[info.name] = info
    start = _align(cursor.position, alignment)
    return _place(cursor, infos, start, alignment)


def _read_tensor(cursor: _Cursor, check_types: bool) -> TensorInfo:
    """Read one info; its offset is still relative to the start of the data."""
    name = cursor.name(_MAX_NAME_NBYTES)
    cursor.subject = f"tensor {_quote(name)}"
    n_dims = cursor.u32()
    if n_dims > _MAX_DIMS:
        cursor.fail(f"{n_dims} dimensions, at most {_MAX_DIMS}")
    # The file has the contiguous dimension first.
    shape = tuple(cursor.u64() for _ in range(n_dims))[::-1]
    # A tensor may have no elements, but none of its axes may be longer than an i64 counts.
    if math.prod(max(length, 1) for length in shape) >= 2**63:
        cursor.fail(f"shape {shape}, needs at most 2^63 - 1 elements")
    dtype = _read_dtype(cursor, check_types)
    row = shape[-1] if shape else 1
    if row % dtype.block:
        cursor.fail(f"rows of {row} elements, {dtype} needs multiples of {dtype.block}")
    return TensorInfo(name, dtype, shape, cursor.u64(), dtype.nbytes(math.prod(shape)))


def _read_dtype(cursor: _Cursor, check_types: bool) -> DType:
    number = cursor.u32()
    ours, other = dtypes.from_ggml(number), _OTHER_TYPES.get(number)
    # Such tensors can be shown and copied, but not computed with.
    dtype = ours or (None if check_types else other)
    if dtype is None:
        shown = f"{other.name.upper()} ({number})" if other else str(number)
        supported = ", ".join(dtype.name for dtype in dtypes.ALL if dtype.ggml is not None)
        cursor.fail(f"type {shown} is not supported; supported are {supported}")
    return dtype


def _place(
    cursor: _Cursor, infos: dict[str, TensorInfo], start: int, alignment: int
) -> dict[str, TensorInfo]:
    """Check that tensors are aligned, in order, disjoint and inside; make offsets absolute."""
    placed: dict[str, TensorInfo] = {}
    end, last = start, cursor.position
    for info in infos.values():
        cursor.subject = f"tensor {_quote(info.name)}"
        if info.offset % alignment:
            cursor.fail(f"offset {info.offset}, needs a multiple of {alignment}")
        offset = start + info.offset
        if offset < end:
            cursor.fail(f"starts at byte {offset}, the tensor before it ends at {end}")
        last = offset + info.nbytes
        if last > cursor.size:
            cursor.fail(f"ends at byte {last}, the file has {cursor.size}; it is truncated")
        placed[info.name] = replace(info, offset=offset)
        end = _align(last, alignment)
    # Some writers pad the last tensor and some do not; half a padding is a truncated file.
    if last < cursor.size < end:
        cursor.fail(f"padding ends at byte {end}, the file has {cursor.size}; it is truncated")
    return placed


def _align(nbytes: int, alignment: int) -> int:
    return -(-nbytes // alignment) * alignment


def _quote(name: str) -> str:
    """Quote a name for one line of a message, however long it is."""
    return repr(name if len(name) <= 80 else name[:77] + "...")
