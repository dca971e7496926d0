"""Byte pairs of older folders without tokenizer.json: vocab.json and merges.txt.

The further settings of a tokenizer.json follow from the class in tokenizer_config.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from wgpu_backend.files.huggingface.json_files import read_bytes, read_json
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.text.tokenizer.pretokenizers import PRETOKENIZERS

VOCABULARY, MERGES = "vocab.json", "merges.txt"
ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
"""Tokens that tokenizer_config.json names."""
_AROUND = ("Roberta", "Bart", "Longformer", "LED")
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
        "model": {"type": "BPE", "vocab": vocabulary, "merges": read_merges(folder / MERGES)},
    }


def _list_added(tokens: Iterable[tuple[int, tuple[str, bool]]]) -> Iterable[dict[str, Any]]:
    for number, (text, special) in sorted(tokens):
        yield {"id": number, "content": text, "special": special}


def _steps(class_name: str) -> dict[str, Any]:
    """Return the normalisation and splitting of a class, by default GPT-2's."""
    if not class_name.startswith("Qwen2"):
        return {"pre_tokenizer": _BYTES}
    [expression] = PRETOKENIZERS["qwen2"].expressions
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated"}
    cuts = {"type": "Sequence", "pretokenizers": [split, _BYTES | {"use_regex": False}]}
    return {"normalizer": {"type": "NFC"}, "pre_tokenizer": cuts}


def _around(given: Settings, ids: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the tokens around a text: always for RoBERTa-like classes, otherwise by flags."""
    texts = {
        role: token_text(given.value(f"{role}_token")) for role in ("bos", "eos", "cls", "sep")
    }
    named = {role: text for role, text in texts.items() if text is not None and text in ids}
    if given.text("tokenizer_class", default="").startswith(_AROUND):
        first, last = named.get("cls", "<s>"), named.get("sep", "</s>")
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
