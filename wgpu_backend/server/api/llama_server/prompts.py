"""Prompts as llama-server takes them: texts, tokens, both mixed, with pictures, or several."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from wgpu_backend.engine.media import MARKER, Part
from wgpu_backend.server.core.media import guess_part
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.text.tokenizer import Tokenizer

_NEEDED = "needs a string, token ids, or a list of such"


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    """The tokens of a prompt; or its text, and the pictures and sounds of its markers."""

    given: str | list[int]
    media: Sequence[Part] = ()


def parse_prompts(given: Any, tokenizer: Tokenizer) -> tuple[list[ParsedPrompt], bool]:  # noqa: ANN401
    """Return each prompt, and whether the prompts came in a list.

    Raises
    ------
    RequestError
        The prompt has another type.
    """
    if isinstance(given, list):
        items = cast("list[Any]", given)
        lists = any(isinstance(item, list | dict) for item in items)
        if items and (lists or all(isinstance(item, str) for item in items)):
            return [_parse_prompt(item, tokenizer) for item in items], True
    return [_parse_prompt(given, tokenizer)], False


def _parse_prompt(given: Any, tokenizer: Tokenizer) -> ParsedPrompt:  # noqa: ANN401
    if isinstance(given, dict):
        parts = cast("dict[str, Any]", given)
        given = parts.get("prompt_string")
        if parts.get("multimodal_data"):
            return _parse_illustrated(given, parts["multimodal_data"])
    if given == "":
        return ParsedPrompt(tokenize_empty(tokenizer))
    if not isinstance(given, str | list) or not given:
        raise RequestError(400, f"prompt: {str(cast('object', given))[:40]!r}, {_NEEDED}")
    return ParsedPrompt(tokenize_mixed(cast("str | list[object]", given), tokenizer))


def _parse_illustrated(text: object, data: object) -> ParsedPrompt:
    """Return a prompt with pictures and sounds, one for each marker of its text."""
    if not isinstance(text, str):
        raise RequestError(400, f"prompt: prompt_string: {str(text)[:40]!r}, needs a string")
    if not isinstance(data, list):
        raise RequestError(400, f"prompt: multimodal_data: {str(data)[:40]!r}, needs a list")
    media = [
        guess_part(f"prompt: multimodal_data[{number}]", each)
        for number, each in enumerate(cast("list[object]", data))
    ]
    if (count := text.count(MARKER)) != len(media):
        raise RequestError(
            400,
            f"prompt: multimodal_data has {len(media)} items, prompt_string {count} markers "
            f"{MARKER}; needs one for each",
        )
    return ParsedPrompt(text, media)


def tokenize_empty(tokenizer: Tokenizer) -> list[int]:
    """Return the tokens of an empty text: BOS, or else EOS.

    Raises
    ------
    RequestError
        The vocabulary has neither.
    """
    known = (tokenizer.bos_id, tokenizer.eos_id)
    found = tokenizer.encode("") or [each for each in known if each is not None][:1]
    if not found:
        raise RequestError(400, "prompt: is empty, and the model has no token to begin with")
    return found


def tokenize_mixed(
    given: str | Sequence[object],
    tokenizer: Tokenizer,
    *,
    add_special: bool = True,
    parse_special: bool = True,
) -> list[int]:
    """Return the tokens of a text, or of texts and tokens in a row.

    Raises
    ------
    RequestError
        There is something else among them.
    """
    found: list[int] = []
    for number, item in enumerate([given] if isinstance(given, str) else given):
        if isinstance(item, str):
            # Only the first text may begin with BOS.
            begins = add_special and number == 0
            found += tokenizer.encode(item, add_special=begins, parse_special=parse_special)
        else:
            found.append(check_token(item, tokenizer))
    return found


def check_token(given: object, tokenizer: Tokenizer) -> int:
    """Check a token id.

    Raises
    ------
    RequestError
        The token is not in the vocabulary.
    """
    size = tokenizer.vocab_size
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < size:
        raise RequestError(400, f"tokens: {str(given)[:40]!r}, needs a number below {size}")
    return given


def parse_biases(given: Any, tokenizer: Tokenizer) -> dict[int, float]:  # noqa: ANN401
    """Return token biases, from pairs of a token or a text and a number, or false to rule it out.

    Raises
    ------
    RequestError
        The biases have another form.
    """
    pairs = cast("Any", [*given.items()] if isinstance(given, dict) else given or [])
    found: dict[int, float] = {}
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(cast("list[Any]", pair)) != 2:
            raise RequestError(400, "logit_bias: needs pairs of a token and a number")
        token, bias = cast("list[Any]", pair)
        if bias is not False and (isinstance(bias, bool) or not isinstance(bias, int | float)):
            raise RequestError(400, f"logit_bias: {str(bias)[:40]!r}, needs a number, or false")
        if isinstance(token, str) and token.isdecimal() and isinstance(given, dict):
            # Keys of JSON objects are texts, also those that are ids. 20 digits hold 64 bits.
            token = int(token[:20])
        ids = [token] if not isinstance(token, str) else tokenizer.encode(token, add_special=False)
        for id_ in ids:
            found[check_token(id_, tokenizer)] = float("-inf") if bias is False else float(bias)
    return found
