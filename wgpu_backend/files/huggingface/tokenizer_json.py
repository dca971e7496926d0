"""A folder's tokenizer.json, whole and with what tokenizer_config.json adds to it.

It is what the tokenizers library is given, here and by transformers. What the library would pass
over in silence is an error here. ``truncation`` and ``padding`` are settings of a call, which
transformers replaces in each; here the context bounds a text.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

from wgpu_backend.errors import TokenizerError
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.vocab_files import ROLES
from wgpu_backend.text.tokenizer.library import build_tokenizer, walk_steps

_log = logging.getLogger("wgpu_backend.folders")

_TOKEN = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
_FLAGS = ("single_word", "lstrip", "rstrip")
# What older files and those written by hand leave out, by the type of the step.
_USUAL: dict[str, dict[str, Any]] = {
    "BertNormalizer": {"clean_text": True, "handle_chinese_chars": True, "strip_accents": None},
    "ByteLevel": {"add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    "Digits": {"individual_digits": False},
    "Metaspace": {"replacement": "▁"},
    "Split": {"invert": False},
    "WordPiece": {
        "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100,
    },
}  # fmt: skip
# Keys that older files have; the library reads others in their place.
_OLDER = {"Metaspace": ("str_rep", "add_prefix_space")}
_SECTIONS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_LEFT_TO_CALLS = ("truncation", "padding")


def completed(tokenizer: Mapping[str, Any], given: Settings, size: int | None) -> dict[str, Any]:
    """What a tokenizer.json says, with what it leaves out.

    Parameters
    ----------
    tokenizer : Mapping
    given : Settings
        Of tokenizer_config.json, whose tokens are added, and whose flags count, as in transformers.
    size : int or None
        Rows of the embedding; tokens of `given` beyond them are left out.
    """
    made = {"version": "1.0", **tokenizer} | dict.fromkeys(_LEFT_TO_CALLS)
    for name in _SECTIONS:
        made[name] = _with_usual(made.get(name), decodes=name == "decoder")
    model: object = made.get("model")
    if isinstance(model, dict):
        fields = cast("dict[str, Any]", model)
        made["model"] = _USUAL["WordPiece"] | fields if _is_words(fields) else fields
        made["added_tokens"] = _added(made, fields, given, size)
    return made


def check(tokenizer: Mapping[str, Any], source: str) -> None:
    """Refuse what the library cannot do, would pass over, or does by chance.

    Raises
    ------
    TokenizerError
        Names the file and the key.
    """
    try:
        build_tokenizer(tokenizer)
    except TokenizerError as error:
        raise TokenizerError(f"{source}: {error}") from None
    model = cast("Mapping[str, Any]", tokenizer["model"])
    known = json.loads(
        build_tokenizer({**tokenizer, "added_tokens": [], "model": _tiny(model)}).to_str()
    )
    for name in (*_SECTIONS, "model"):
        for step, understood in zip(
            walk_steps(tokenizer.get(name)), walk_steps(known[name]), strict=True
        ):
            _check_keys(step, understood, f"{source}: key '{name}")
    chance = tokenizer["model"].get("dropout")
    if chance:
        raise TokenizerError(
            f"{source}: key 'model.dropout' is {chance}: tokens would be drawn by chance, needs "
            "null or 0"
        )


def _tiny(model: Mapping[str, Any]) -> dict[str, Any]:
    """A model with all its settings and of its tokens one, since others say nothing of settings."""
    vocabulary: object = model["vocab"]
    if isinstance(vocabulary, list):
        some = cast("list[object]", vocabulary)[:1]
        return {**model, "vocab": some, "unk_id": None}
    made = {**model, "vocab": {str(model.get("unk_token")): 0}}
    return made | {"merges": []} if "merges" in model else made


def _check_keys(step: Mapping[str, Any], understood: Mapping[str, Any], place: str) -> None:
    for key, value in step.items():
        older = key in _OLDER.get(str(step.get("type")), ())
        if key not in understood and value not in (None, False) and not older:
            raise TokenizerError(
                f"{place}.{key}' is {str(value)[:60]!r}, the tokenizers library has no such "
                f"setting of {step.get('type')}, needs one of {', '.join(understood)}"
            )


def _with_usual(step: object, *, decodes: bool) -> Any:  # noqa: ANN401
    if not isinstance(step, dict):
        return step
    fields = cast("dict[str, Any]", step)
    usual = _USUAL.get(str(fields.get("type")), {})
    if decodes and fields.get("type") == "WordPiece":
        usual = {"prefix": "##", "cleanup": True}
    made = {**usual, **fields}
    for name in ("normalizers", "pretokenizers", "decoders", "processors"):
        inner: object = made.get(name)
        if isinstance(inner, list):
            steps = cast("list[object]", inner)
            made[name] = [_with_usual(step, decodes=decodes) for step in steps]
    return made


def _is_words(model: Mapping[str, Any]) -> bool:
    return model.get("type") == "WordPiece"


def _added(
    tokenizer: Mapping[str, Any], model: Mapping[str, Any], given: Settings, size: int | None
) -> list[dict[str, Any]]:
    """Added tokens with all flags and the ids that the library gives them."""
    listed = cast("list[dict[str, Any]]", tokenizer.get("added_tokens") or [])
    tokens = {str(token.get("content")): _flagged(token) for token in listed}
    further = {token["content"]: token for token in _given(given, tokens)}
    vocabulary = _texts(model)
    made: list[dict[str, Any]] = []
    highest = -1
    for text, token in (tokens | further).items():
        number = vocabulary.get(text)
        if number is None:
            number = max(highest + 1, len(vocabulary))
            highest = number
        new = text not in vocabulary and "id" not in token
        if text not in tokens and (new if size is None else number >= size):
            continue
        if token.get("id", number) != number and text in tokens:
            _log.warning(
                "tokenizer.json says id %s of %r, the tokenizers library gives it %d",
                token["id"], text, number,
            )  # fmt: skip
        made.append({**token, "id": number})
    return made


def _texts(model: Mapping[str, Any]) -> dict[str, int]:
    vocabulary: object = model.get("vocab")
    if isinstance(vocabulary, dict):
        return cast("dict[str, int]", vocabulary)
    pieces = cast("list[list[Any]]", vocabulary if isinstance(vocabulary, list) else [])
    return {str(piece[0]): i for i, piece in enumerate(pieces) if piece}


def _flagged(token: Mapping[str, Any], number: int | None = None) -> dict[str, Any]:
    """A token with all flags, and an id; control tokens are found in a text as it is."""
    special = bool(token.get("special"))
    flags = {flag: bool(token.get(flag)) for flag in _FLAGS}
    normalized = bool(token.get("normalized", not special))
    named = {} if number is None else {"id": number}
    return {**token, **named, **flags, "normalized": normalized, "special": special}


def _given(given: Settings, known: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Tokens of tokenizer_config.json: those it lists, then those it gives a role."""
    listed = given.section("added_tokens_decoder").values
    texts = set(known)
    for number in sorted(listed, key=int):
        token = cast("Mapping[str, Any]", listed[number])
        if isinstance(token.get("content"), str) and token["content"]:
            texts.add(token["content"])
            yield _flagged({name: token[name] for name in _TOKEN if name in token}, int(number))
    for value in _roles(given):
        token = _as_token(value)
        text = token.get("content")
        if isinstance(text, str) and text and text not in texts:
            texts.add(text)
            chosen = {name: token[name] for name in _TOKEN if name in token}
            yield _flagged(chosen | {"special": True})


def _as_token(value: object) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    return {"content": value}


def _roles(given: Settings) -> Iterator[object]:
    for role in ROLES:
        yield given.value(f"{role}_token")
    names = ["extra_special_tokens", "additional_special_tokens"]
    if isinstance(given.value(names[0]), list):  # the newer name of the other
        names.pop()
    for name in names:
        yield from _listed(given.value(name))


def _listed(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from cast("Mapping[str, object]", value).values()
    elif isinstance(value, list):
        yield from cast("list[object]", value)
