"""Vocabularies of older folders without tokenizer.json: byte pairs, and SentencePiece models.

The further settings of a tokenizer.json follow from the class in tokenizer_config.json.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from wgpu_backend.errors import TokenizerError
from wgpu_backend.files.huggingface.json_files import read_bytes, read_json
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.text.tokenizer.pretokenizers import PRETOKENIZERS

VOCABULARY, MERGES = "vocab.json", "merges.txt"
ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
"""Tokens that tokenizer_config.json names."""
_AROUND = ("Roberta", "Bart", "Longformer", "LED", "CLIP")
_CLIP_WORD = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_BYTES = {"type": "ByteLevel", "add_prefix_space": False}


def has_vocabulary(folder: Path) -> bool:
    """Return whether a folder has both files."""
    return (folder / VOCABULARY).exists() and (folder / MERGES).exists()


def read_merges(path: Path) -> list[list[str]]:
    """Return the pairs of merges.txt in order of rank, without the version line."""
    lines = read_bytes(path).decode("utf-8", "replace").split("\n")
    pairs = [line.split(" ") for line in lines if line.strip()]
    return [pair for pair in pairs if pair[0] != "#version:"]


def named_tokens(given: Settings) -> list[str]:
    """Return the texts of tokens with a role in tokenizer_config.json."""
    texts = (token_text(given.value(f"{role}_token")) for role in ROLES)
    return [text for text in dict.fromkeys(texts) if text is not None]


def token_text(value: object) -> str | None:
    """Return the text of a token, given as a string or as an object."""
    if isinstance(value, Mapping):
        value = cast("Mapping[str, Any]", value).get("content")
    return value if isinstance(value, str) else None


def build_json(
    folder: Path, given: Settings, added: Mapping[int, tuple[str, bool]]
) -> dict[str, Any]:
    """Build an equivalent tokenizer.json.

    Parameters
    ----------
    folder : Path
        The folder of the checkpoint.
    given : Settings
        Settings of tokenizer_config.json.
    added : Mapping of int to (str, bool)
        Added tokens: texts, and whether they are control tokens.

    Raises
    ------
    ModelError
        A file is damaged.
    """
    vocabulary = read_json(folder / VOCABULARY)
    ids = {text: number for text, number in vocabulary.items() if type(number) is int}
    tokens = {ids[text]: (text, True) for text in named_tokens(given) if text in ids} | dict(added)
    return {
        "added_tokens": list(_list_added(tokens.items())),
        **_steps(given.text("tokenizer_class", default="")),
        "post_processor": _around(given, ids),
        "decoder": _BYTES,
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": read_merges(folder / MERGES),
            **_word_ends(given),
        },
    }


def _word_ends(given: Settings) -> dict[str, Any]:
    """Return CLIP's mark of the last pair of a word, and its token for unknown text."""
    if not given.text("tokenizer_class", default="").startswith("CLIP"):
        return {}
    unknown = token_text(given.value("unk_token")) or "<|endoftext|>"
    return {"end_of_word_suffix": "</w>", "unk_token": unknown}


def _list_added(tokens: Iterable[tuple[int, tuple[str, bool]]]) -> Iterable[dict[str, Any]]:
    for number, (text, special) in sorted(tokens):
        yield {"id": number, "content": text, "special": special}


def _steps(class_name: str) -> dict[str, Any]:
    """Return the normalisation and splitting of a class, by default GPT-2's."""
    if class_name.startswith("CLIP"):
        return _clip_steps()
    if not class_name.startswith("Qwen2"):
        return {"pre_tokenizer": _BYTES}
    [expression] = PRETOKENIZERS["qwen2"].expressions
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated"}
    cuts = {"type": "Sequence", "pretokenizers": [split, _BYTES | {"use_regex": False}]}
    return {"normalizer": {"type": "NFC"}, "pre_tokenizer": cuts}


def _clip_steps() -> dict[str, Any]:
    """Return CLIP's steps: one space between words, lower case, and no spaces in pairs."""
    space = {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "}
    split = {"type": "Split", "pattern": {"Regex": _CLIP_WORD}, "behavior": "Removed"}
    return {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [{"type": "NFC"}, space, {"type": "Lowercase"}],
        },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [split | {"invert": True}, _BYTES | {"use_regex": True}],
        },
    }


def _around(given: Settings, ids: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the tokens around a text: always for RoBERTa-like classes, otherwise by flags."""
    texts = {
        role: token_text(given.value(f"{role}_token")) for role in ("bos", "eos", "cls", "sep")
    }
    named = {role: text for role, text in texts.items() if text is not None and text in ids}
    class_name = given.text("tokenizer_class", default="")
    if class_name.startswith(_AROUND):
        first, last = named.get("cls", "<s>"), named.get("sep", "</s>")
        if class_name.startswith("CLIP"):
            first, last = named.get("bos", "<|startoftext|>"), named.get("eos", "<|endoftext|>")
        if first in ids and last in ids:
            around = {"sep": [last, ids[last]], "cls": [first, ids[first]]}
            flags = {"trim_offsets": True, "add_prefix_space": False}
            return {"type": "RobertaProcessing", **around, **flags}
    before, after = (
        [named[role]] if given.flag(f"add_{role}_token", default=False) and role in named else []
        for role in ("bos", "eos")
    )
    if not before and not after:
        return None
    return _template(before, after, ids)


def _template(before: list[str], after: list[str], ids: Mapping[str, int]) -> dict[str, Any]:
    def put(kind: int, name: str) -> list[dict[str, Any]]:
        inner = [{"Sequence": {"id": name, "type_id": kind}}]
        first, last = (
            [{"SpecialToken": {"id": text, "type_id": kind}} for text in texts]
            for texts in (before, after)
        )
        return first + inner + last

    known = {text: {"id": text, "ids": [ids[text]], "tokens": [text]} for text in before + after}
    single = put(0, "A")
    pair = single + put(1, "B")
    return {
        "type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": known,
    }  # fmt: skip


# SentencePiece models: pieces with scores and types, and the normalisation of text.
#
# The format is protobuf (https://protobuf.dev/programming-guides/encoding/); of the messages in
# sentencepiece_model.proto only the fields that are needed here are read::
#
#     ModelProto       1: SentencePiece, repeated   2: TrainerSpec   3: NormalizerSpec
#     SentencePiece    1: piece   2: score   3: type
#     TrainerSpec      3: model type, 1 unigram, 2 byte pairs
#     NormalizerSpec   2: map of characters   3: a space before   4: no spaces twice


_VARINT, _FIXED64, _BYTE_PIECE, _FIXED32 = 0, 1, 2, 5
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
        raise TokenizerError(f"{path}: not a SentencePiece model: {error}") from None


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
        raise ValueError(f"piece {text[:40]!r} of type {kind}, needs {NORMAL} to {BYTE}")
    return text, score, kind


def _message(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise TypeError("a field is a number, needs bytes")
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
        if kind == _BYTE_PIECE:
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
    # Ten bytes hold 64 bits; more would be a damaged file.
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError(f"a number of more than 10 bytes at byte {at}")
