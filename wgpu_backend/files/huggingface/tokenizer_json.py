"""A folder's tokenizer.json, completed with tokenizer_config.json, and its pre-tokenizer's name.

The tokenizers library gets this text, here and in transformers. Keys that the library would
silently ignore are an error here. ``truncation`` and ``padding`` are settings of a call, which
transformers overrides each time; here the context limits a text.
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
from wgpu_backend.text.tokenizer.pretokenizers import PRETOKENIZERS, PreTokenizer

_log = logging.getLogger("wgpu_backend.folders")

_TOKEN = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
_FLAGS = ("single_word", "lstrip", "rstrip")
# Keys that older or hand-written files omit, by the type of the step.
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
# Keys of older files, which the library replaced by others.
_OLDER = {"Metaspace": ("str_rep", "add_prefix_space")}
_SECTIONS = ("normalizer", "pre_tokenizer", "post_processor", "decoder")
_LEFT_TO_CALLS = ("truncation", "padding")


def complete_json(
    tokenizer: Mapping[str, Any], given: Settings, size: int | None
) -> dict[str, Any]:
    """Return a tokenizer.json with its omitted keys.

    Parameters
    ----------
    tokenizer : Mapping
        Content of tokenizer.json.
    given : Settings
        Settings of tokenizer_config.json, whose tokens are added, and whose flags count, as in
        transformers.
    size : int or None
        Rows of the embedding; tokens of `given` after them are dropped.
    """
    made = {"version": "1.0", **tokenizer} | dict.fromkeys(_LEFT_TO_CALLS)
    for name in _SECTIONS:
        made[name] = _with_usual(made.get(name), decodes=name == "decoder")
    model: object = made.get("model")
    if isinstance(model, dict):
        fields = cast("dict[str, Any]", model)
        made["model"] = _USUAL["WordPiece"] | fields if _is_words(fields) else fields
        made["added_tokens"] = _complete_added(made, fields, given, size)
    return made


def check(tokenizer: Mapping[str, Any], source: str) -> None:
    """Raise for keys that the library cannot use or would ignore, and for random tokens.

    Raises
    ------
    TokenizerError
        The message names the file and the key.
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
            f"{source}: key 'model.dropout' is {chance}: tokens would be random, needs null or 0"
        )


def _tiny(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model with its settings and one token, so that only settings can raise errors."""
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


def _complete_added(
    tokenizer: Mapping[str, Any], model: Mapping[str, Any], given: Settings, size: int | None
) -> list[dict[str, Any]]:
    """Return added tokens with all flags and the ids that the library gives them."""
    listed = cast("list[dict[str, Any]]", tokenizer.get("added_tokens") or [])
    tokens = {str(token.get("content")): _add_flags(token) for token in listed}
    further = {token["content"]: token for token in _list_configured(given, tokens)}
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


def _add_flags(token: Mapping[str, Any], number: int | None = None) -> dict[str, Any]:
    """Return a token with all flags, and an id; control tokens are matched in raw text."""
    special = bool(token.get("special"))
    flags = {flag: bool(token.get(flag)) for flag in _FLAGS}
    normalized = bool(token.get("normalized", not special))
    named = {} if number is None else {"id": number}
    return {**token, **named, **flags, "normalized": normalized, "special": special}


def _list_configured(given: Settings, known: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield tokens of tokenizer_config.json: those it lists, then those with a role."""
    listed = given.section("added_tokens_decoder").values
    texts = set(known)
    for number in sorted(listed, key=int):
        token = cast("Mapping[str, Any]", listed[number])
        if isinstance(token.get("content"), str) and token["content"]:
            texts.add(token["content"])
            yield _add_flags({name: token[name] for name in _TOKEN if name in token}, int(number))
    for value in _roles(given):
        token = _as_token(value)
        text = token.get("content")
        if isinstance(text, str) and text and text not in texts:
            texts.add(text)
            chosen = {name: token[name] for name in _TOKEN if name in token}
            yield _add_flags(chosen | {"special": True})


def _as_token(value: object) -> Mapping[str, Any]:
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    return {"content": value}


def _roles(given: Settings) -> Iterator[object]:
    for role in ROLES:
        yield given.value(f"{role}_token")
    names = ["extra_special_tokens", "additional_special_tokens"]
    # The newer name of the same list.
    if isinstance(given.value(names[0]), list):
        names.pop()
    for name in names:
        yield from _list_values(given.value(name))


def _list_values(value: object) -> Iterator[object]:
    if isinstance(value, Mapping):
        yield from cast("Mapping[str, object]", value).values()
    elif isinstance(value, list):
        yield from cast("list[object]", value)


# Names of pre-tokenizers in GGUF files. The steps of tokenizer.json are spelled as in
# `tokenizer.pretokenizers` and looked up there. llama.cpp's converter identifies models by their
# results for a text, so it may have another name for the same steps.

# Of several names for the same steps, the one of the model that had them first.
_PREFERRED = (
    "gpt-2", "roberta-bpe", "llama-bpe", "smaug-bpe", "qwen2", "gpt-4o", "smollm", "starcoder",
    "deepseek-v3", "bloom", "tekken",
)  # fmt: skip
_CONTRACTIONS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_SPELLINGS = (
    ("\r", r"\r"), ("\n", r"\n"),
    ("(?i:'s|'t|'re|'ve|'m|'ll|'d)", _CONTRACTIONS),
    ("(?i:[sdmt]|ll|ve|re)", "(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])"),
)  # fmt: skip


def pretokenizer_name(tokenizer: dict[str, Any], *, roberta: bool = False) -> str | None:
    """Return the name of the steps in a tokenizer.json, or None if they are unknown.

    Parameters
    ----------
    tokenizer : dict
        Content of tokenizer.json.
    roberta : bool
        Whether to prefer RoBERTa's name among names for equal rules.
    """
    steps = tuple(_expressions(tokenizer.get("pre_tokenizer")))
    whole_words = bool(tokenizer["model"].get("ignore_merges"))
    found = [name for name, rules in PRETOKENIZERS.items() if _same(rules, steps)]
    exact = [name for name in found if PRETOKENIZERS[name].ignore_merges == whole_words] or found
    if roberta and "roberta-bpe" in exact:
        return "roberta-bpe"
    preferred = next((name for name in _PREFERRED if name in exact), None)
    return preferred or next(iter(exact), None)


def _same(rules: PreTokenizer, steps: tuple[str, ...]) -> bool:
    return rules.byte_level and rules.expressions == steps


def _expressions(step: object) -> Iterator[str]:
    """Yield the regular expressions of a step and its inner steps; a byte mapping has none."""
    if not isinstance(step, dict):
        return
    fields = cast("dict[str, Any]", step)
    kind = fields.get("type")
    if kind == "Sequence":
        for inner in cast("list[object]", fields.get("pretokenizers") or []):
            yield from _expressions(inner)
    elif kind == "ByteLevel":
        if fields.get("use_regex", True):
            yield from PRETOKENIZERS["gpt-2"].expressions
    elif kind == "Digits":
        yield r"\p{N}" if fields.get("individual_digits") else r"\p{N}+"
    elif kind == "Split":
        yield _spell(fields)
    else:
        yield f"<{kind}>"


def _spell(split: dict[str, Any]) -> str:
    """Return the expression of a split in the spelling of our tables."""
    pattern = cast("dict[str, Any]", split.get("pattern") or {})
    expression = str(pattern.get("Regex", pattern.get("String", "")))
    for theirs, ours in _SPELLINGS:
        expression = expression.replace(theirs, ours)
    return expression
