"""Keys of a tokenizer, from the files of a folder.

===========================  ==========================================
file                         ``tokenizer.ggml.model``
===========================  ==========================================
tokenizer.model              ``llama``; ``t5`` if it is unigram
tokenizer.json: BPE          ``gpt2``; ``llama`` with bytes as fallback
vocab.json, merges.txt       ``gpt2``; if there is no tokenizer.json
spiece.model                 ``t5``; if there is no tokenizer.json
tokenizer.json: WordPiece    ``bert``
tokenizer.json: Unigram      ``t5``
tokenizer.json: others       ``huggingface``, a name of this project
===========================  ==========================================

These keys are for programs without support for tokenizer.json, such as llama.cpp. If they cannot
express it, ``tokenizer.ggml.pre`` or ``model`` is ``huggingface``, which llama.cpp rejects. Here a
folder's tokens are those of its tokenizer.json, kept in ``tokenizer.huggingface.json``.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from wgpu_backend.errors import TokenizerError
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.json_files import read_json
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.special_tokens import SpecialTokens, chat_templates
from wgpu_backend.files.huggingface.tokenizer_json import check, complete_json, pretokenizer_name
from wgpu_backend.files.huggingface.vocab_files import (
    BYTE_PAIRS,
    VOCABULARY,
    build_json,
    has_vocabulary,
    is_sentencepiece,
    read_sentencepiece,
)
from wgpu_backend.text.tokenizer.library import KEY, LIBRARY, walk_steps
from wgpu_backend.text.tokenizer.vocabulary import TokenType

_BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")
# Texts of control tokens that some files mark as ordinary.
_CONTROL = re.compile(r"<\|.*\|>|<｜.*｜>|<unused.*>|<pad>|<mask>|<2mass>|\[@BOS@\]", re.DOTALL)
_BERT = {"BertNormalizer", "BertPreTokenizer"}
_ADDED_SCORE, _UNUSED_SCORE = -1000.0, -10_000.0


@dataclass(slots=True)
class Table:
    """Texts, types and scores of tokens, by id.

    Parameters
    ----------
    size : int
        Number of tokens; those without a text are unused.
    """

    size: int
    texts: list[str] = field(default_factory=list[str])
    types: list[int] = field(default_factory=list[int])
    scores: list[float] = field(default_factory=list[float])

    def __post_init__(self) -> None:
        self.texts = [f"[PAD{i}]" for i in range(self.size)]
        self.types = [int(TokenType.UNUSED)] * self.size
        self.scores = [_UNUSED_SCORE] * self.size

    def put(self, number: int, text: str, kind: int, score: float = 0.0) -> None:
        """Set text, type and score of a token."""
        self.texts[number], self.types[number], self.scores[number] = text, int(kind), score

    def mark_bytes(self) -> None:
        """Mark the tokens that are bytes, which replace text without tokens."""
        for number, text in enumerate(self.texts):
            if _BYTE.fullmatch(text):
                self.types[number] = TokenType.BYTE

    def keys(self, model: str, *, scored: bool) -> dict[str, Value]:
        """Return the keys of the table."""
        made: dict[str, Value] = {
            "tokenizer.ggml.model": model,
            "tokenizer.ggml.tokens": self.texts,
            "tokenizer.ggml.token_type": np.array(self.types, np.int32),
        }
        if scored:
            made["tokenizer.ggml.scores"] = np.array(self.scores, np.float32)
        return made


class TokenizerFiles:
    """The files of a tokenizer in a folder.

    Parameters
    ----------
    folder : Path
        The folder of the checkpoint.
    settings : Settings
        Settings of config.json.

    Raises
    ------
    ModelError
        A file is damaged.
    """

    def __init__(self, folder: Path, settings: Settings) -> None:
        self.folder = folder
        self.settings = settings
        self.json_path = folder / "tokenizer.json"
        self.json = read_json(self.json_path) if self.json_path.exists() else {}
        config = folder / "tokenizer_config.json"
        self.given = Settings(str(config), read_json(config) if config.exists() else {})
        if not self.json and has_vocabulary(folder):
            self.json_path = folder / VOCABULARY
            self.json = build_json(folder, self.given, self.list_configured())
        if self.json:
            # Called to report damaged entries.
            self.list_added()
            rows = settings.value("vocab_size")
            self.json = complete_json(self.json, self.given, rows if type(rows) is int else None)

    @property
    def model(self) -> dict[str, Any]:
        """Return the model section of tokenizer.json."""
        model: object = self.json.get("model")
        if not isinstance(model, dict):
            raise TokenizerError(f"{self.json_path}: key 'model' is missing, needs an object")
        return cast("dict[str, Any]", model)

    def steps(self, *sections: str) -> list[Mapping[str, Any]]:
        """Return the steps of sections of tokenizer.json, including inner steps."""
        return [step for name in sections for step in walk_steps(self.json.get(name))]

    def list_added(self) -> dict[int, tuple[str, bool]]:
        """Return added tokens by id: texts, and whether they are control tokens."""
        made: dict[int, tuple[str, bool]] = {}
        for token in cast("list[dict[str, Any]]", self.json.get("added_tokens") or []):
            number, text = token.get("id"), token.get("content")
            if type(number) is not int or not isinstance(text, str):
                raise TokenizerError(f"{self.json_path}: key 'added_tokens' has one without id")
            made[number] = (text, bool(token.get("special")))
        return made

    def list_configured(self) -> dict[int, tuple[str, bool]]:
        """Return added tokens of tokenizer_config.json and added_tokens.json."""
        made: dict[int, tuple[str, bool]] = {}
        path = self.folder / "added_tokens.json"
        for text, number in (read_json(path) if path.exists() else {}).items():
            made[int(number)] = (text, False)
        decoder = self.given.section("added_tokens_decoder")
        for number, token in cast("Mapping[str, Mapping[str, Any]]", decoder.values).items():
            made[int(number)] = (str(token.get("content")), bool(token.get("special")))
        return made

    def generation(self) -> Settings:
        """Return the settings of generation_config.json."""
        path = self.folder / "generation_config.json"
        return Settings(str(path), read_json(path) if path.exists() else {})


def tokenizer_keys(folder: Path, settings: Settings) -> dict[str, Value]:
    """Return the keys of a folder's tokenizer.

    Raises
    ------
    TokenizerError
        There is none, or it is of an unknown kind.
    ModelError
        A file is damaged.
    """
    files = TokenizerFiles(folder, settings)
    made = _model_keys(files)
    texts = cast("list[str]", made["tokenizer.ggml.tokens"])
    ids = {text: number for number, text in enumerate(texts)}
    # GGUF spells WordPiece's texts differently.
    if made["tokenizer.ggml.model"] == "bert":
        ids |= _vocabulary(files)
    if files.json:
        check(files.json, str(files.json_path))
        made[KEY] = json.dumps(files.json, ensure_ascii=False, separators=(",", ":"))
    special = SpecialTokens(settings, files.given, files.json, ids, files.generation())
    return made | special.keys() | chat_templates(files.given, folder)


def _model_keys(files: TokenizerFiles) -> dict[str, Value]:
    path = files.folder / "tokenizer.model"
    # Some folders have a file of this name in another format, next to tokenizer.json.
    if path.exists() and not (files.json and not is_sentencepiece(path)):
        return _sentencepiece(files, path)
    pieces = files.folder / "spiece.model"
    if not files.json and pieces.exists():
        if files.given.text("tokenizer_class", default="").startswith("Siglip"):
            raise TokenizerError(
                f"{files.folder}: spiece.model lacks SigLIP's normalisation of text (lower case, "
                "no punctuation), needs tokenizer.json"
            )
        return _sentencepiece(files, pieces)
    if not files.json:
        raise TokenizerError(f"{files.folder}: no tokenizer.json and no tokenizer.model")
    kind = files.model.get("type", "BPE")
    made = _MODELS.get(str(kind))
    if made is None:
        raise TokenizerError(
            f"{files.json_path}: key 'model' is of type {kind!r}, needs one of {', '.join(_MODELS)}"
        )
    return made(files)


def _table(files: TokenizerFiles, highest: int) -> Table:
    """Return an empty table with a row for each row of the model's embedding."""
    size = files.settings.uint("vocab_size", default=highest + 1)
    if not highest < size <= 1 << 24:
        raise TokenizerError(
            f"{files.json_path}: highest id is {highest}, config.json has vocab_size {size}"
        )
    return Table(size)


def _put_added(table: Table, added: Mapping[int, tuple[str, bool]]) -> None:
    """Put added tokens into a table; tokens that are not control tokens get plain spaces."""
    for number, (text, special) in added.items():
        if number >= table.size:
            continue
        if special or _CONTROL.fullmatch(text):
            table.put(number, text, TokenType.CONTROL, _ADDED_SCORE)
        else:
            # GGUF spells spaces of such tokens as they are.
            plain = text.replace("▁", " ")
            table.put(number, plain, TokenType.USER_DEFINED, _ADDED_SCORE)


def _sentencepiece(files: TokenizerFiles, path: Path) -> dict[str, Value]:
    model = read_sentencepiece(path)
    added = _extra(files, len(model.pieces)) | files.list_added() | files.list_configured()
    size = files.settings.uint("vocab_size", default=max([len(model.pieces) - 1, *added]) + 1)
    table = Table(min(size, 1 << 24))
    for number, (text, score, kind) in enumerate(model.pieces[: table.size]):
        table.put(number, text, kind, score)
    _put_added(table, added)
    prefix = files.given.flag("add_prefix_space", default=model.space_prefix)
    if model.kind == BYTE_PAIRS:
        made = table.keys("llama", scored=True)
        return made | {
            "tokenizer.ggml.pre": "default",
            "tokenizer.ggml.add_space_prefix": prefix,
        }
    return _unigram_keys(table, prefix, model.single_spaces, model.charsmap)


def _extra(files: TokenizerFiles, pieces: int) -> dict[int, tuple[str, bool]]:
    """Return T5's sentinel tokens, which follow the pieces in reverse order."""
    count = files.given.uint("extra_ids", default=0)
    # A folder may name any number; T5 has a hundred.
    return {pieces + count - 1 - i: (f"<extra_id_{i}>", True) for i in range(min(count, 1000))}


def _vocabulary(files: TokenizerFiles) -> dict[str, int]:
    vocabulary: object = files.model.get("vocab")
    items = cast("dict[str, int]", vocabulary) if isinstance(vocabulary, dict) else {}
    if not items or not all(type(number) is int and number >= 0 for number in items.values()):
        raise TokenizerError(f"{files.json_path}: key 'model.vocab' needs strings and their ids")
    return items


def _make_table(files: TokenizerFiles) -> Table:
    vocabulary, added = _vocabulary(files), files.list_added()
    table = _table(files, max([*vocabulary.values(), *added]))
    for text, number in vocabulary.items():
        table.put(number, text, TokenType.NORMAL)
    _put_added(table, added)
    return table


def _byte_pairs(files: TokenizerFiles) -> dict[str, Value]:
    if files.model.get("byte_fallback") and not _is_affixed(files):
        return _character_pairs(files)
    if not any(_is(step, "ByteLevel") for step in files.steps("pre_tokenizer", "normalizer")):
        return _other(files)
    processor = cast("Mapping[str, Any]", files.json.get("post_processor") or {})
    roberta = _is(processor, "RobertaProcessing")
    name = pretokenizer_name(files.json, roberta=roberta) if _is_composed(files) else None
    table = _make_table(files)
    # A mark at the end of words stands for the space between them.
    if end := str(files.model.get("end_of_word_suffix") or ""):
        table.texts = [re.sub(f"(?<=.){re.escape(end)}$", "Ġ", text) for text in table.texts]
    return table.keys("gpt2", scored=False) | {
        "tokenizer.ggml.pre": name or LIBRARY,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in _merges(files)],
    }


def _merges(files: TokenizerFiles) -> list[tuple[str, str]]:
    """Return the pairs to merge in order of rank, with spaces spelled as bytes."""
    made: list[tuple[str, str]] = []
    for item in cast("list[Any]", files.model.get("merges") or []):
        pair = cast("list[str]", item.split(" ") if isinstance(item, str) else item)
        if len(pair) != 2:
            raise TokenizerError(f"{files.json_path}: key 'model.merges' has {str(item)[:60]!r}")
        # GGUF separates the two texts by a space, which no text may contain then.
        made.append((pair[0].replace(" ", "Ġ"), pair[1].replace(" ", "Ġ")))
    return made


def _character_pairs(files: TokenizerFiles) -> dict[str, Value]:
    """Return SentencePiece's byte pairs: the earlier a merge, the better its token's score."""
    table = _make_table(files)
    ids = _vocabulary(files)
    for rank, (left, right) in enumerate(_merges(files)):
        number = ids.get((left + right).replace("Ġ", " "))
        # A token's score is that of its first merge.
        if number is not None and not table.scores[number]:
            table.scores[number] = -1.0 - rank
    table.mark_bytes()
    unknown = ids.get(str(files.model.get("unk_token")))
    if unknown is not None:
        table.types[unknown] = TokenType.UNKNOWN
    return table.keys("llama", scored=True) | {
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.add_space_prefix": files.given.flag(
            "add_prefix_space", default=_prepends(files)
        ),
    }


def _is_composed(files: TokenizerFiles) -> bool:
    """Return whether text is changed only by NFC before it is split, as in llama.cpp."""
    kinds = {step.get("type") for step in files.steps("normalizer")}
    return kinds <= {"NFC", "Sequence"} and not _is_affixed(files)


def _is_affixed(files: TokenizerFiles) -> bool:
    """Return whether pairs are marked at the end or inside of words."""
    names = ("end_of_word_suffix", "continuing_subword_prefix")
    return any(files.model.get(name) for name in names)


def _prepends(files: TokenizerFiles) -> bool:
    """Return whether a step puts a space before the text."""
    steps = files.steps("normalizer", "pre_tokenizer")
    schemes = [step.get("prepend_scheme", "always") for step in steps if _is(step, "Metaspace")]
    return any(_is(step, "Prepend") for step in steps) or any(s != "never" for s in schemes)


def _inner(step: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return cast("list[Mapping[str, Any]]", step.get(name) or [])


def _is(step: Mapping[str, Any], kind: str) -> bool:
    return step.get("type") == kind


def _words(files: TokenizerFiles) -> dict[str, Value]:
    """Return word pieces: GGUF marks those that begin a word, checkpoints the other ones."""
    kinds = {step.get("type") for step in files.steps("normalizer", "pre_tokenizer")}
    if files.model["continuing_subword_prefix"] != "##" or not kinds <= _BERT:
        return _other(files)
    table = _make_table(files)
    for number, text in enumerate(table.texts):
        if table.types[number] != TokenType.CONTROL:
            table.texts[number] = text[2:] if text.startswith("##") else "▁" + text
    # An added token without the mark and a continuing piece may have the same text.
    if len(set(table.texts)) < table.size:
        return _other(files)
    made = table.keys("bert", scored=False) | {"tokenizer.ggml.pre": "default"}
    return made | _normaliser_keys(files.json.get("normalizer") or {})


def _normaliser_keys(normaliser: Mapping[str, Any]) -> dict[str, Value]:
    made: dict[str, Value] = {}
    for name, key in (("lowercase", "lowercase"), ("strip_accents", "strip_accents")):
        if isinstance(normaliser.get(name), bool):
            made[f"tokenizer.ggml.normalizer.{key}"] = normaliser[name]
    return made


def _other(files: TokenizerFiles) -> dict[str, Value]:
    """Return the keys of a tokenizer whose kind has no name in GGUF files."""
    table = _make_table(files)
    if files.model.get("byte_fallback"):
        table.mark_bytes()
    return table.keys(LIBRARY, scored=False)


def _unigrams(files: TokenizerFiles) -> dict[str, Value]:
    pieces = cast("list[list[Any]]", files.model.get("vocab") or [])
    table = _table(files, max([len(pieces) - 1, *files.list_added()]))
    for number, piece in enumerate(pieces):
        if len(piece) != 2 or not isinstance(piece[0], str):
            raise TokenizerError(f"{files.json_path}: key 'model.vocab' has {str(piece)[:60]!r}")
        table.put(number, piece[0], TokenType.NORMAL, float(piece[1]))
    scores = list(table.scores)
    _put_added(table, files.list_added())
    table.scores[: len(pieces)] = scores[: len(pieces)]
    unknown = files.model.get("unk_id")
    if type(unknown) is int and unknown < table.size:
        table.types[unknown] = TokenType.UNKNOWN
    if files.model.get("byte_fallback"):
        table.mark_bytes()
    charsmap = _charsmap(files.json.get("normalizer") or {})
    return _unigram_keys(table, _prepends(files), True, charsmap)


def _charsmap(normaliser: Mapping[str, Any]) -> bytes:
    coded = normaliser.get("precompiled_charsmap")
    if isinstance(coded, str):
        return b64decode(coded)
    steps = _inner(normaliser, "normalizers")
    return next((made for step in steps if (made := _charsmap(step))), b"")


def _unigram_keys(
    table: Table, prefix: bool, single_spaces: bool, charsmap: bytes
) -> dict[str, Value]:
    made = table.keys("t5", scored=True) | {
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.add_space_prefix": prefix,
        "tokenizer.ggml.remove_extra_whitespaces": single_spaces,
    }
    if charsmap:
        made["tokenizer.ggml.precompiled_charsmap"] = np.frombuffer(charsmap, np.uint8)
    return made


_MODELS: dict[str, Callable[[TokenizerFiles], dict[str, Value]]] = {
    "BPE": _byte_pairs,
    "WordPiece": _words,
    "Unigram": _unigrams,
    "WordLevel": _other,
}
