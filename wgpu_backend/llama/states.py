"""The format of saved states: cached keys, values and recurrent states of sequences, as bytes.

::

    magic (8) · version (u32) · bytes of the header (u32) · header (JSON) · rows · CRC-32 (u32)

The integers are little-endian. The header describes the model, the cache and the sequences. It is
checked completely before a context changes, since files may be damaged or hostile. The bytes do
not depend on the device: a state that a GPU saved can be restored on the CPU.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from wgpu_backend.dtypes import F16
from wgpu_backend.errors import BackendError
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.kvcache.layered import LayeredCache
from wgpu_backend.nn.kvcache.paged import PagedCache
from wgpu_backend.nn.kvcache.saving import Saved, SavedPart

# The line break shows a transfer that changed line ends, as PNG's does.
MAGIC = b"WGPUKV\r\n"
VERSION = 1
_FIXED = struct.Struct("<8sII")
_CHECK = struct.Struct("<I")
# Limits of what a hostile header can make the reader allocate or count.
_MOST_HEADER_BYTES = 1 << 26
_MOST_COUNT = 1 << 31

Json = Mapping[str, Any]
# Data of a header before its type is checked.
Unchecked = Any


class StateError(BackendError, ValueError):
    """An error: a saved state is damaged, or of another program or model."""


@dataclass(frozen=True, slots=True)
class SavedSequence:
    """A sequence of a state.

    Parameters
    ----------
    number : int
        Its number in the context that saved it.
    """

    number: int
    saved: Saved


@dataclass(frozen=True, slots=True)
class Layout:
    """The facts of a model and its cache that a state must agree with.

    Parameters
    ----------
    model : mapping
        Names and sizes that distinguish models.
    cols : sequence of sequence of int
        Columns of each tensor of each part of the cache.
    halves : sequence of bool
        Whether a part's rows are saved as f16; else as f32, quantized ones too.
    """

    model: Json
    cols: Sequence[Sequence[int]]
    halves: Sequence[bool]

    @classmethod
    def from_cache(cls, model: Json, cache: Cache) -> Layout:
        """Return the layout of a model with a cache."""
        parts = cache.parts if isinstance(cache, LayeredCache) else [cast("PagedCache", cache)]
        tensors = [part.tensors for part in parts]
        cols = [[tensor.shape[1] for tensor in part] for part in tensors]
        return cls(model, cols, [all(t.dtype == F16 for t in part) for part in tensors])

    def make_header(self) -> Json:
        """Return the layout as the fields of a header."""
        return {"model": dict(self.model), "cols": [list(c) for c in self.cols],
                "halves": list(self.halves)}  # fmt: skip


def pack_state(layout: Layout, sequences: Sequence[SavedSequence], tokens: Sequence[int]) -> bytes:
    """Return sequences, and tokens to store with them, as bytes."""
    header = {
        **layout.make_header(),
        "tokens": [int(token) for token in tokens],
        "sequences": [
            {"id": each.number, "parts": [_describe(part) for part in each.saved]}
            for each in sequences
        ],
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    pieces = [_FIXED.pack(MAGIC, VERSION, len(text)), text]
    for each in sequences:
        for part, half in zip(each.saved, layout.halves, strict=True):
            pieces += [rows.astype("<f2" if half else "<f4").tobytes() for rows in part.rows]
    whole = b"".join(pieces)
    return whole + _CHECK.pack(zlib.crc32(whole))


def _describe(part: SavedPart) -> Json:
    return {"length": part.length, "runs": [list(run) for run in part.runs]}


def unpack_state(data: bytes, layout: Layout) -> tuple[list[SavedSequence], list[int]]:
    """Return the sequences and the tokens of a state.

    Raises
    ------
    StateError
        The bytes are damaged, or of another model or type of cache.
    """
    header, rows = _open(data)
    # First the model: a state of another one has rows of other sizes.
    _compare(header, layout)
    reader = _RowReader(rows)
    try:
        sequences = [
            _read_sequence(each, layout, reader) for each in _require_list(header["sequences"])
        ]
        tokens = [_require_count(token) for token in _require_list(header["tokens"])]
    except (KeyError, TypeError, AttributeError) as error:
        # The error may quote a hostile header of any length.
        raise StateError(
            f"state: the header lacks a field, or one has another type: {error!r}"[:200]
        ) from None
    if reader.bytes_left:
        raise StateError(f"state: {reader.bytes_left} bytes follow the last row")
    if len({each.number for each in sequences}) < len(sequences):
        raise StateError("state: two sequences have the same number")
    return sequences, tokens


def _open(data: bytes) -> tuple[Json, memoryview]:
    """Return the header and the rows, after checking magic, version, sizes and checksum."""
    if len(data) < _FIXED.size + _CHECK.size or not data.startswith(MAGIC):
        raise StateError(f"state: {len(data)} bytes that begin with {data[:8]!r}, needs {MAGIC!r}")
    _, version, size = _FIXED.unpack_from(data)
    if version != VERSION:
        raise StateError(f"state: version {version}, this program reads {VERSION}")
    end, body = _FIXED.size + size, len(data) - _CHECK.size
    if size > _MOST_HEADER_BYTES or end > body:
        raise StateError(
            f"state: the header claims {size} bytes in a file of {len(data)}; the file is "
            "truncated or damaged"
        )
    # A view, since slices of bytes would copy the rows.
    view = memoryview(data)
    if zlib.crc32(view[:body]) != _CHECK.unpack_from(data, body)[0]:
        raise StateError(f"state: the checksum of {len(data)} bytes differs; they are damaged")
    try:
        header = json.loads(bytes(view[_FIXED.size : end]))
    except (ValueError, RecursionError) as error:
        # Deeply nested JSON exceeds Python's recursion limit.
        raise StateError(f"state: the header is not JSON: {error}"[:200]) from None
    if not isinstance(header, dict):
        raise StateError("state: the header is not a JSON object")
    return cast("Json", header), view[end:body]


def _compare(header: Json, layout: Layout) -> None:
    for name, expected in layout.make_header().items():
        found = header.get(name)
        if found != expected:
            raise StateError(
                f"state: {name} is {str(found)[:150]}, the context has {str(expected)[:150]}; it "
                "is of another model or type of cache"
            )


def _read_sequence(value: Unchecked, layout: Layout, reader: _RowReader) -> SavedSequence:
    number, parts = _require_count(value["id"]), _require_list(value["parts"])
    if len(parts) != len(layout.cols):
        raise StateError(f"state: {len(parts)} parts, the cache has {len(layout.cols)}")
    places = zip(parts, layout.cols, layout.halves, strict=True)
    return SavedSequence(
        number, [_read_part(each, cols, half, reader) for each, cols, half in places]
    )


def _read_part(value: Unchecked, cols: Sequence[int], half: bool, reader: _RowReader) -> SavedPart:
    length = _require_count(value["length"])
    runs = [_require_run(run) for run in _require_list(value["runs"])]
    count = sum(end - begin for begin, end in runs)
    rows = [reader.take(count, each, half) for each in cols]
    return SavedPart(length, runs, rows)


def _require_run(value: Unchecked) -> tuple[int, int]:
    ends = [_require_count(each) for each in _require_list(value)]
    if len(ends) != 2 or ends[0] >= ends[1]:
        raise StateError(f"state: positions {str(value)[:60]}, needs a first and a later end")
    return ends[0], ends[1]


def _require_list(value: Unchecked) -> list[Any]:
    if not isinstance(value, list):
        raise StateError(f"state: {str(value)[:60]}, needs a list")
    return cast("list[Any]", value)


def _require_count(value: Unchecked) -> int:
    # Not isinstance(): True is an int too.
    if type(value) is not int or not 0 <= value < _MOST_COUNT:
        raise StateError(f"state: {str(value)[:60]}, needs a number from 0 below {_MOST_COUNT}")
    return value


class _RowReader:
    """A reader of the rows of a state, in their order."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    @property
    def bytes_left(self) -> int:
        return len(self._data)

    def take(self, count: int, cols: int, half: bool) -> np.ndarray[Any, np.dtype[np.float32]]:
        """Read `count` rows as f32: (count, cols)."""
        # Checked before the rows are allocated: the counts are the header's.
        nbytes = count * cols * (2 if half else 4)
        if nbytes > self.bytes_left:
            raise StateError(
                f"state: {count} rows of {cols} need {nbytes} bytes, {self.bytes_left} left"
            )
        values = np.frombuffer(self._data[:nbytes], "<f2" if half else "<f4")
        self._data = self._data[nbytes:]
        return values.astype(np.float32).reshape(count, cols)
