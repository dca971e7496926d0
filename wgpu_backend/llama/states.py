"""What contexts have of sequences, as bytes: a header that says what follows, and a checksum.

::

    magic (8) · version (u32) · bytes of the header (u32) · header (JSON) · rows · CRC-32 (u32)

Everything is compared with the context before anything is changed. The bytes are the same on every
device, so what a GPU saved goes on under NumPy.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from wgpu_backend.errors import BackendError
from wgpu_backend.nn.kvcache.saving import Saved, SavedPart

MAGIC = b"WGPUKV\r\n"
VERSION = 1
_FIXED = struct.Struct("<8sII")
_CHECK = struct.Struct("<I")
_MOST_HEADER = 1 << 26
_MOST_PLACES = 1 << 31
Given = Any
"""Plain data of a header, before it is checked."""

Json = Mapping[str, Any]


class StateError(BackendError, ValueError):
    """A saved state that is damaged, of another program, or of another model."""


@dataclass(frozen=True, slots=True)
class SavedSequence:
    """A sequence of a state."""

    number: int
    saved: Saved


@dataclass(frozen=True, slots=True)
class Layout:
    """What a state has to agree with: the model, and how a cache stores it.

    Parameters
    ----------
    model : mapping
        Sizes and names that tell models apart.
    cols : sequence of sequence of int
        Columns of each tensor of each part of the cache.
    halves : sequence of bool
        Whether a part's rows are f16, else f32.
    """

    model: Json
    cols: Sequence[Sequence[int]]
    halves: Sequence[bool]

    def header(self) -> Json:
        """As a header has it."""
        return {"model": dict(self.model), "cols": [list(c) for c in self.cols],
                "halves": list(self.halves)}  # fmt: skip


def packed(layout: Layout, sequences: Sequence[SavedSequence], tokens: Sequence[int]) -> bytes:
    """Bytes of sequences, and of tokens that go with them."""
    header = {
        **layout.header(),
        "tokens": [int(token) for token in tokens],
        "sequences": [
            {"id": each.number, "parts": [_described(part) for part in each.saved]}
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


def _described(part: SavedPart) -> Json:
    return {"length": part.length, "runs": [list(run) for run in part.runs]}


def unpacked(data: bytes, layout: Layout) -> tuple[list[SavedSequence], list[int]]:
    """Sequences and tokens of a state.

    Raises
    ------
    StateError
        The bytes are damaged, or of another model or type of cache.
    """
    header, rows = _opened(data)
    _compare(header, layout)
    reader = _Rows(rows)
    try:
        sequences = [_sequence(each, layout, reader) for each in _list(header["sequences"])]
        tokens = [_count(token, _MOST_PLACES) for token in _list(header["tokens"])]
    except (KeyError, TypeError, AttributeError) as error:
        raise StateError(f"state: the header lacks what it needs: {error!r}"[:200]) from None
    if reader.left:
        raise StateError(f"state: {reader.left} bytes follow the last row")
    if len({each.number for each in sequences}) < len(sequences):
        raise StateError("state: a sequence is there twice")
    return sequences, tokens


def _opened(data: bytes) -> tuple[Json, memoryview]:
    """Header and rows of bytes that are sound."""
    if len(data) < _FIXED.size + _CHECK.size or not data.startswith(MAGIC):
        raise StateError(f"state: {len(data)} bytes that begin with {data[:8]!r}, needs {MAGIC!r}")
    _, version, size = _FIXED.unpack_from(data)
    if version != VERSION:
        raise StateError(f"state: version {version}, this program reads {VERSION}")
    end, body = _FIXED.size + size, len(data) - _CHECK.size
    if size > _MOST_HEADER or end > body:
        raise StateError(f"state: a header of {size} bytes in a file of {len(data)}")
    view = memoryview(data)
    if zlib.crc32(view[:body]) != _CHECK.unpack_from(data, body)[0]:
        raise StateError(f"state: the checksum of {len(data)} bytes differs: they are damaged")
    try:
        header = json.loads(bytes(view[_FIXED.size : end]))
    except (ValueError, RecursionError) as error:
        raise StateError(f"state: the header is no JSON: {error}"[:200]) from None
    if not isinstance(header, dict):
        raise StateError("state: the header is no object")
    return cast("Json", header), view[end:body]


def _compare(header: Json, layout: Layout) -> None:
    for name, wanted in layout.header().items():
        found = header.get(name)
        if found != wanted:
            raise StateError(
                f"state: {name} is {str(found)[:150]}, the context has {str(wanted)[:150]}: it is "
                "of another model or type of cache"
            )


def _sequence(given: Given, layout: Layout, reader: _Rows) -> SavedSequence:
    number, parts = _count(given["id"], _MOST_PLACES), _list(given["parts"])
    if len(parts) != len(layout.cols):
        raise StateError(f"state: {len(parts)} parts, the cache has {len(layout.cols)}")
    places = zip(parts, layout.cols, layout.halves, strict=True)
    return SavedSequence(number, [_part(each, cols, half, reader) for each, cols, half in places])


def _part(given: Given, cols: Sequence[int], half: bool, reader: _Rows) -> SavedPart:
    length = _count(given["length"], _MOST_PLACES)
    runs = [_run(run) for run in _list(given["runs"])]
    count = sum(end - begin for begin, end in runs)
    rows = [reader.take(count, each, half) for each in cols]
    return SavedPart(length, runs, rows)


def _run(given: Given) -> tuple[int, int]:
    ends = [_count(each, _MOST_PLACES) for each in _list(given)]
    if len(ends) != 2 or ends[0] >= ends[1]:
        raise StateError(f"state: positions {str(given)[:60]}, needs a first and a later end")
    return ends[0], ends[1]


def _list(given: Given) -> list[Any]:
    if not isinstance(given, list):
        raise StateError(f"state: {str(given)[:60]}, needs a list")
    return cast("list[Any]", given)


def _count(given: Given, most: int) -> int:
    if type(given) is not int or not 0 <= given < most:
        raise StateError(f"state: {str(given)[:60]}, needs a number from 0 below {most}")
    return given


class _Rows:
    """Takes rows off bytes."""

    def __init__(self, data: memoryview) -> None:
        self._data = data

    @property
    def left(self) -> int:
        return len(self._data)

    def take(self, count: int, cols: int, half: bool) -> np.ndarray[Any, np.dtype[np.float32]]:
        """So many rows, as f32."""
        nbytes = count * cols * (2 if half else 4)
        if nbytes > self.left:
            raise StateError(f"state: {count} rows of {cols} need {nbytes} bytes, {self.left} left")
        values = np.frombuffer(self._data[:nbytes], "<f2" if half else "<f4")
        self._data = self._data[nbytes:]
        return values.astype(np.float32).reshape(count, cols)
