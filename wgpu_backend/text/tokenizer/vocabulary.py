"""The token table of a GGUF file, read from its metadata and checked.

``special.py`` finds the control tokens in it, and ``encoders.py`` turns text into its tokens.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, cast

import numpy as np

from wgpu_backend.errors import TokenizerError

_log = logging.getLogger("wgpu_backend.tokenizer")

_PREFIX = "tokenizer.ggml."
# -1 in an unsigned key: the model has no such token.
_ABSENT_ID = 0xFFFF_FFFF


class TokenType(IntEnum):
    """The type of a token, numbered as in ``tokenizer.ggml.token_type``."""

    UNDEFINED = 0
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A checked token table.

    Parameters
    ----------
    model : str
        ``tokenizer.ggml.model``: the algorithm.
    texts : list of str
        Text of each token, as the file spells it; no text occurs twice.
    types : list of int
        A ``TokenType`` for each token.
    scores : list of float
        Score of each token; zeros if the file has none.
    merges : list of str
        Pairs of texts separated by a space, in order of rank; empty if the file has none.
    ids : dict of str to int
        Inverse of `texts`.
    """

    model: str
    texts: list[str]
    types: list[int]
    scores: list[float]
    merges: list[str]
    ids: dict[str, int]


def read_vocabulary(metadata: Mapping[str, object]) -> Vocabulary:
    """Read and check the token table of a model file.

    Parameters
    ----------
    metadata : Mapping
        The file's key-value pairs.

    Raises
    ------
    TokenizerError
        A key is missing or of another type, or two arrays differ in length.
    """
    model = read_text(metadata, "model")
    if model is None:
        raise TokenizerError(f"tokenizer: metadata has no {_PREFIX}model, needs one")
    # llama.cpp gives empty tokens these texts, too; a text must not occur twice.
    texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(_strings(metadata, "tokens"))]
    if not texts:
        raise TokenizerError(f"tokenizer: {_PREFIX}tokens has 0 tokens, needs at least 1")
    types = _numbers(metadata, "token_type", "iu", len(texts))
    scores = _numbers(metadata, "scores", "iuf", len(texts))
    if not np.isfinite(scores).all():
        raise TokenizerError(f"tokenizer: {_PREFIX}scores has infinite values, needs finite ones")
    types = _known_types(types) if len(types) else [int(TokenType.NORMAL)] * len(texts)
    return Vocabulary(
        model=model,
        texts=texts,
        types=types,
        scores=cast("list[float]", scores.tolist()) or [0.0] * len(texts),
        merges=_strings(metadata, "merges", required=False),
        ids=_unique_ids(texts, types),
    )


def read_text(metadata: Mapping[str, object], key: str) -> str | None:
    """Read a string key under ``tokenizer.ggml.``, or None if it is missing.

    Raises
    ------
    TokenizerError
        The value is not a string.
    """
    return cast("str | None", _read_typed(metadata, key, str))


def read_flag(metadata: Mapping[str, object], key: str) -> bool | None:
    """Read a boolean key under ``tokenizer.ggml.``, or None if it is missing.

    Raises
    ------
    TokenizerError
        The value is not a boolean.
    """
    return cast("bool | None", _read_typed(metadata, key, bool))


def read_id(metadata: Mapping[str, object], key: str, vocab_size: int) -> int | None:
    """Read a token id under ``tokenizer.ggml.``, or None if it is missing.

    Raises
    ------
    TokenizerError
        The value is not an integer, or no token has that id.
    """
    value = cast("int | None", _read_typed(metadata, key, int))
    if value is None or value in (-1, _ABSENT_ID):
        return None
    if not 0 <= value < vocab_size:
        raise TokenizerError(
            f"tokenizer: {_PREFIX}{key} is {value}, needs an id below {vocab_size}"
        )
    return value


def read_ids(metadata: Mapping[str, object], key: str, vocab_size: int) -> frozenset[int]:
    """Read an array of token ids under ``tokenizer.ggml.``, empty if it is missing.

    Raises
    ------
    TokenizerError
        The value is not an array of integers, or no token has one of the ids.
    """
    value = metadata.get(_PREFIX + key)
    if value is None:
        return frozenset()
    ids = np.asarray(value)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TokenizerError(
            f"tokenizer: {_PREFIX}{key} is of type {type(value).__name__}, needs an integer array"
        )
    beyond = ids[(ids < 0) | (ids >= vocab_size)]
    if len(beyond):
        raise TokenizerError(
            f"tokenizer: {_PREFIX}{key} has {beyond[0]}, needs ids below {vocab_size}"
        )
    return frozenset(cast("list[int]", ids.tolist()))


def _read_typed(metadata: Mapping[str, object], key: str, kind: type) -> object | None:
    value = metadata.get(_PREFIX + key)
    if isinstance(value, np.generic):
        value = cast("object", value.item())
    # `isinstance` would accept a bool as an id, since bool is a kind of int in Python.
    if value is None or type(value) is kind:
        return value
    raise TokenizerError(
        f"tokenizer: {_PREFIX}{key} is of type {type(value).__name__}, needs {kind.__name__}"
    )


def _strings(metadata: Mapping[str, object], key: str, *, required: bool = True) -> list[str]:
    value = metadata.get(_PREFIX + key)
    if value is None and not required:
        return []
    if not isinstance(value, list | tuple):
        kind = "missing" if value is None else f"of type {type(value).__name__}"
        raise TokenizerError(f"tokenizer: {_PREFIX}{key} is {kind}, needs an array of strings")
    items = cast("Sequence[object]", value)
    for index, item in enumerate(items):
        if not isinstance(item, str):
            raise TokenizerError(
                f"tokenizer: {_PREFIX}{key} has {type(item).__name__} at {index}, needs strings"
            )
    return list(cast("Sequence[str]", items))


def _numbers(
    metadata: Mapping[str, object], key: str, kinds: str, count: int
) -> np.ndarray[Any, np.dtype[Any]]:
    """Read an array of `count` numbers; a missing key gives an empty array."""
    value = metadata.get(_PREFIX + key)
    if value is None:
        return np.zeros(0, np.float32)
    numbers = np.asarray(value)
    if numbers.ndim != 1 or numbers.dtype.kind not in kinds:
        raise TokenizerError(
            f"tokenizer: {_PREFIX}{key} is of type {type(value).__name__}, needs a number array"
        )
    if len(numbers) != count:
        raise TokenizerError(
            f"tokenizer: {_PREFIX}{key} has {len(numbers)} values, needs {count}: one per token"
        )
    return numbers


def _known_types(types: np.ndarray[Any, np.dtype[Any]]) -> list[int]:
    known = np.where((types >= 0) & (types <= max(TokenType)), types, TokenType.UNDEFINED)
    return cast("list[int]", known.tolist())


def _unique_ids(texts: Iterable[str], types: list[int]) -> dict[str, int]:
    """Map texts to ids; only unused padding tokens may repeat a text."""
    ids: dict[str, int] = {}
    for index, text in enumerate(texts):
        first = ids.setdefault(text, index)
        if first != index and types[index] != TokenType.UNUSED:
            raise TokenizerError(
                f"tokenizer: token {text!r} has ids {first} and {index}, needs one id for each text"
            )
        if first != index:
            _log.warning("token %r has ids %d and %d; the second is unused", text, first, index)
    return ids
