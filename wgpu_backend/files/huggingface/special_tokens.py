"""Keys of special tokens: which ones there are, and whether a tokenizer adds them.

tokenizer_config.json names tokens by their texts, config.json by ids, and the post-processor of
tokenizer.json defines the tokens added around a text. As in transformers, nothing is added without
a post-processor, whatever tokenizer_config.json says. Ids by name override others. All tokens that
end an answer by generation_config.json are kept under the key that Ollama writes,
``tokenizer.ggml.eos_token_ids``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.json_files import read_bytes, read_json
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.vocab_files import token_text

_KEYS = {
    "bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding",
    "cls": "cls", "mask": "mask", "eot": "eot",
}  # fmt: skip


class SpecialTokens:
    """Special tokens of a folder.

    Parameters
    ----------
    settings : Settings
        Settings of config.json.
    given : Settings
        Settings of tokenizer_config.json; empty if there is none.
    tokenizer : Mapping
        tokenizer.json; empty if there is none.
    ids : Mapping of str to int
        Tokens by their texts.
    generation : Settings
        Settings of generation_config.json; empty if there is none.
    """

    def __init__(
        self,
        settings: Settings,
        given: Settings,
        tokenizer: Mapping[str, Any],
        ids: Mapping[str, int],
        generation: Settings,
    ) -> None:
        self._settings = settings
        self._generation = generation
        self._given = given
        self._ids = ids
        self._texts = {kind: token_text(given.value(f"{kind}_token")) for kind in _KEYS}
        self._added: dict[str, bool] = {}
        if tokenizer:
            self._added = {"bos": False, "eos": False}
            self._texts["bos"] = self._texts["bos"] or self._texts["cls"]
            self._texts["eos"] = self._texts["eos"] or self._texts["sep"]
            self._process(cast("Mapping[str, Any]", tokenizer.get("post_processor") or {}))

    def keys(self) -> dict[str, Value]:
        """Return ids of the tokens, and flags for those that are added to texts."""
        made: dict[str, Value] = {}
        ends = self._numbers("eos")
        for kind, key in _KEYS.items():
            named = self._ids.get(self._texts[kind] or "")
            numbers = self._numbers(kind) if named is None else [named]
            if numbers:
                made[f"tokenizer.ggml.{key}_token_id"] = numbers[0]
            added = self._added.get(kind, self._given.value(f"add_{kind}_token"))
            if isinstance(added, bool):
                made[f"tokenizer.ggml.add_{kind}_token"] = added
        if any(end != made["tokenizer.ggml.eos_token_id"] for end in ends):
            made["tokenizer.ggml.eos_token_ids"] = np.array(ends, np.int32)
        return made

    def _numbers(self, kind: str) -> list[int]:
        """Return a token's ids in generation_config.json and config.json."""
        found: list[int] = []
        for settings in (self._generation, self._settings):
            value = settings.value(f"{kind}_token_id")
            listed = cast("list[object]", value) if isinstance(value, list) else [value]
            found += [number for number in listed if type(number) is int]
        return [number for number in dict.fromkeys(found) if 0 <= number < len(self._ids)]

    def _process(self, processor: Mapping[str, Any]) -> None:
        """Record the tokens that a post-processor adds."""
        kind = processor.get("type")
        if kind == "Sequence":
            for inner in cast("list[Mapping[str, Any]]", processor.get("processors") or []):
                self._process(inner)
        elif kind == "RobertaProcessing" or kind == "BertProcessing":
            self._around(processor)
        elif kind == "TemplateProcessing":
            self._template(processor)

    def _around(self, processor: Mapping[str, Any]) -> None:
        self._added |= {"bos": True, "eos": True, "sep": True}
        for kind, role in (("cls", "bos"), ("sep", "eos")):
            pair = cast("list[str]", processor.get(kind) or [""])
            self._texts[kind] = self._texts[kind] or pair[0]
            self._texts[role] = self._texts[role] or self._texts[kind]

    def _template(self, processor: Mapping[str, Any]) -> None:
        single, pair = (_pieces(processor.get(name)) for name in ("single", "pair"))
        if len(single) > 1:
            self._first(single[0])
            self._last(single[-1])
        self._between(pair, ends=bool(single and single[-1]))

    def _first(self, text: str | None) -> None:
        if text is None:
            return
        if text not in (self._texts["bos"], self._texts["cls"]):
            self._texts["bos"] = self._texts["bos"] or text
            self._texts["cls"] = self._texts["cls"] or text
        self._added["bos"] = text in (self._texts["bos"], self._texts["cls"])

    def _last(self, text: str | None) -> None:
        if text is None:
            return
        # The configured EOS then only ends a message.
        if text != self._texts["eos"]:
            self._texts["eot"], self._texts["eos"] = self._texts["eos"], text
        self._added["eos"] = True

    def _between(self, pair: list[str | None], *, ends: bool) -> None:
        """Record whether a pair of texts has a separator in addition to an end token."""
        sequences = [place for place, text in enumerate(pair) if text is None]
        if len(sequences) != 2:
            return
        between = pair[sequences[0] + 1 : sequences[1]]
        parting = [text for text in between if text in (self._texts["sep"], self._texts["eos"])]
        if between:
            self._added["sep"] = len(parting) > 1 or bool(parting and not ends)


def chat_templates(given: Settings, folder: Path) -> dict[str, Value]:
    """Return the keys of the chat template, and of a folder's further templates.

    As in transformers, chat_template.jinja overrides tokenizer_config.json, where an older one
    often stays, and that overrides chat_template.json. Files in additional_chat_templates have the
    names of their templates.

    Parameters
    ----------
    given : Settings
        Settings of tokenizer_config.json.
    folder : Path
        The folder of the checkpoint.
    """
    named = _named_templates(given)
    file, coded = folder / "chat_template.jinja", folder / "chat_template.json"
    if file.exists():
        named = {"default": _read_text(file)}
    elif not named and coded.exists():
        named = _named_templates(Settings(str(coded), read_json(coded)))
    further = folder / "additional_chat_templates"
    if further.is_dir():
        named |= {path.stem: _read_text(path) for path in sorted(further.glob("*.jinja"))}
    made: dict[str, Value] = {}
    for name, text in named.items():
        bare = "".join(c if c.isascii() and c.isalnum() else "_" for c in name)
        suffix = "" if bare == "default" else f".{bare}"
        made[f"tokenizer.chat_template{suffix}"] = text
    return made


def _named_templates(given: Settings) -> dict[str, str]:
    """Return templates of a file by their names; an unnamed one is the default."""
    value = given.value("chat_template")
    if isinstance(value, str):
        return {"default": value}
    made: dict[str, str] = {}
    for choice in cast("list[Mapping[str, Any]]", value) if isinstance(value, list) else []:
        name, text = choice.get("name"), choice.get("template")
        if not isinstance(name, str) or not isinstance(text, str):
            raise given.error("chat_template", "has entries without name or template")
        made[name] = text
    return made


def _read_text(path: Path) -> str:
    return read_bytes(path).decode("utf-8", "replace")


def _pieces(value: object) -> list[str | None]:
    """Return the texts of special tokens, with None for each sequence."""
    made: list[str | None] = []
    for piece in cast("list[Mapping[str, Any]]", value or []):
        token = cast("Mapping[str, Any] | None", piece.get("SpecialToken"))
        made.append(None if token is None else str(token.get("id")))
    return made
