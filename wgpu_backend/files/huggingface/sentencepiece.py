"""SentencePiece models: pieces with scores and types, and the normalisation of text.

The format is protobuf (https://protobuf.dev/programming-guides/encoding/); of the messages in
sentencepiece_model.proto only the fields that are needed here are read::

    ModelProto       1: SentencePiece, repeated   2: TrainerSpec   3: NormalizerSpec
    SentencePiece    1: piece   2: score   3: type
    TrainerSpec      3: model type, 1 unigram, 2 byte pairs
    NormalizerSpec   2: map of characters   3: a space before   4: no spaces twice
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wgpu_backend.errors import TokenizerError
from wgpu_backend.files.huggingface.json_files import read_bytes

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
UNIGRAM, BYTE_PAIRS = 1, 2
# Types of pieces, numbered as those of tokens in GGUF files.
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


@dataclass(frozen=True, slots=True)
class SentencePieces:
    """A SentencePiece model.

    Parameters
    ----------
    pieces : list of (str, float, int)
        Text, score and type of each, by id.
    kind : int
        `UNIGRAM` or `BYTE_PAIRS`.
    charsmap : bytes
        Map of replaced characters; empty for none.
    space_prefix : bool
        Whether text begins with a space that its author did not write.
    single_spaces : bool
        Whether spaces that follow spaces are dropped.
    """

    pieces: list[tuple[str, float, int]]
    kind: int
    charsmap: bytes
    space_prefix: bool
    single_spaces: bool


def read_sentencepiece(path: Path) -> SentencePieces:
    """Read a model.

    Raises
    ------
    TokenizerError
        The file is damaged.
    """
    try:
        return _model(read_bytes(path))
    except (struct.error, UnicodeDecodeError, IndexError, TypeError, ValueError) as error:
        raise TokenizerError(f"{path}: no SentencePiece model: {error}") from None


def is_sentencepiece(path: Path) -> bool:
    """Return whether a file is such a model; other formats use the name tokenizer.model, too."""
    try:
        read_sentencepiece(path)
    except TokenizerError:
        return False
    return True


def _model(data: bytes) -> SentencePieces:
    pieces: list[tuple[str, float, int]] = []
    kind, charsmap, flags = UNIGRAM, b"", {3: True, 4: True}
    for field, value in _fields(data):
        if field == 1:
            pieces.append(_piece(_message(value)))
        elif field == 2:
            kind = next((int(v) for f, v in _fields(_message(value)) if f == 3), UNIGRAM)
        elif field == 3:
            for inner, setting in _fields(_message(value)):
                if inner == 2:
                    charsmap = _message(setting)
                elif inner in flags:
                    flags[inner] = bool(setting)
    if not pieces:
        raise ValueError("0 pieces, needs at least 1")
    return SentencePieces(pieces, kind, charsmap, flags[3], flags[4])


def _piece(data: bytes) -> tuple[str, float, int]:
    text, score, kind = "", 0.0, NORMAL
    for field, value in _fields(data):
        if field == 1:
            text = _message(value).decode()
        elif field == 2:
            (score,) = struct.unpack("<f", _message(value))
        elif field == 3:
            kind = int(value)
    if not NORMAL <= kind <= BYTE:
        raise ValueError(f"piece {text[:40]!r} of type {kind}, known are {NORMAL} to {BYTE}")
    return text, score, kind


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise TypeError("a number where bytes have to be")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield numbers and values of the fields of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == _BYTES:
            nbytes, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            nbytes = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {kind} at byte {at}")
        if nbytes > len(data) - at:
            raise ValueError(f"field of {nbytes} bytes at byte {at}, {len(data) - at} are left")
        yield key >> 3, data[at : at + nbytes]
        at += nbytes


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Decode a number of seven bits per byte, the lowest first; return it and its end."""
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError(f"a number of more than 10 bytes at byte {at}")
