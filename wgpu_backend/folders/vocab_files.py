"""Byte pairs of folders without tokenizer.json: vocab.json and merges.txt, as the older files are.

What tokenizer.json says beside them is a fact of the class in tokenizer_config.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from wgpu_backend.folders.json_files import read_bytes, read_json
from wgpu_backend.folders.settings import Settings
from wgpu_backend.tokenizer.pretokenizers import PRETOKENIZERS

VOCABULARY, MERGES = "vocab.json", "merges.txt"
ROLES = ("bos", "eos", "unk", "pad", "cls", "sep", "mask")
"""Tokens that tokenizer_config.json names."""
_BYTES = {"type": "ByteLevel", "add_prefix_space": False}


def has_vocabulary(folder: Path) -> bool:
    """Whether a folder has both files."""
    return (folder / VOCABULARY).exists() and (folder / MERGES).exists()


def read_merges(path: Path) -> list[list[str]]:
    """Pairs of merges.txt, the first first; the line with a version is none."""
    lines = read_bytes(path).decode("utf-8", "replace").split("\n")
    pairs = [line.split(" ") for line in lines if line.strip()]
    return [pair for pair in pairs if pair[0] != "#version:"]


def named_tokens(given: Settings) -> list[str]:
    """Texts of the tokens that tokenizer_config.json gives a role."""
    values = (given.value(f"{role}_token") for role in ROLES)
    texts = (
        cast("Mapping[str, Any]", value).get("content") if isinstance(value, Mapping) else value
        for value in values
    )
    return [text for text in dict.fromkeys(texts) if isinstance(text, str)]


def tokenizer_of_files(
    folder: Path, given: Settings, added: Mapping[int, tuple[str, bool]]
) -> dict[str, Any]:
    """What tokenizer.json would say.

    Parameters
    ----------
    folder : Path
    given : Settings
        Of tokenizer_config.json.
    added : Mapping of int to (str, bool)
        Added tokens: texts, and whether they control.

    Raises
    ------
    ModelError
        A file is damaged.
    """
    vocabulary = read_json(folder / VOCABULARY)
    ids = {text: number for text, number in vocabulary.items() if type(number) is int}
    tokens = {ids[text]: (text, True) for text in named_tokens(given) if text in ids} | dict(added)
    return {
        "added_tokens": list(_added(tokens.items())),
        **_steps(given.text("tokenizer_class", default="")),
        "decoder": _BYTES,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": read_merges(folder / MERGES)},
    }


def _added(tokens: Iterable[tuple[int, tuple[str, bool]]]) -> Iterable[dict[str, Any]]:
    for number, (text, special) in sorted(tokens):
        yield {"id": number, "content": text, "special": special}


def _steps(class_name: str) -> dict[str, Any]:
    """How a class composes and cuts text; GPT-2's way where it is none that differs."""
    if not class_name.startswith("Qwen2"):
        return {"pre_tokenizer": _BYTES}
    [expression] = PRETOKENIZERS["qwen2"].expressions
    split = {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated"}
    cuts = {"type": "Sequence", "pretokenizers": [split, _BYTES | {"use_regex": False}]}
    return {"normalizer": {"type": "NFC"}, "pre_tokenizer": cuts}
