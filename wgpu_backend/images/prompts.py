"""Prompts as token ids: the tokenizers of pipelines, with their start, end, length and padding.

==============  =====================================  ==========================================
class           files                                  a prompt
==============  =====================================  ==========================================
CLIPTokenizer   tokenizer.json; vocab.json,            start, tokens, end; padded to 77
                merges.txt
T5Tokenizer     tokenizer.json; spiece.model           tokens, end; padded
Qwen2Tokenizer  tokenizer.json; vocab.json, merges.txt a chat's tokens; padded or as long as it is
==============  =====================================  ==========================================
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from tokenizers import normalizers

from wgpu_backend.errors import TokenizerError
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tokens import TokenizerFiles, tokenizer_keys
from wgpu_backend.files.huggingface.vocab_files import named_tokens
from wgpu_backend.text.chat_template.template import ChatTemplate
from wgpu_backend.text.tokenizer import Tokenizer
from wgpu_backend.text.tokenizer.categories import WHITE_SPACE
from wgpu_backend.text.tokenizer.clip import ClipTokenizer
from wgpu_backend.text.tokenizer.library import KEY

_log = logging.getLogger("wgpu_backend.images")

# Files have 10³⁰ where there is no limit.
_ENDLESS = 1 << 20
_SPACES = str.maketrans(dict.fromkeys(WHITE_SPACE, " "))
_NFC = normalizers.NFC()


class _Encoder(Protocol):
    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        ...


@dataclass(frozen=True, slots=True)
class PromptTokens:
    """The prompts of one call, padded to one length.

    Parameters
    ----------
    ids : (prompts, length), i64
    mask : (prompts, length), i64
        1 for a token of the prompt, 0 for padding.
    """

    ids: NDArray[np.int64]
    mask: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class PromptTokenizer:
    """A pipeline's tokenizer.

    Parameters
    ----------
    encoder : object
        Has `encode` and `decode`, which do not handle `start` and `end`.
    start, end : tuple of int
        Ids around every prompt.
    max_length : int or None
        Most tokens that the file allows, including `start` and `end`.
    template : ChatTemplate or None
        Chat template.
    """

    encoder: _Encoder
    start: tuple[int, ...]
    end: tuple[int, ...]
    pad_id: int
    max_length: int | None = None
    template: ChatTemplate | None = field(default=None, repr=False)

    def ids(self, text: str) -> list[int]:
        """Return the ids of a text of any length, including `start` and `end`."""
        return [*self.start, *self.encoder.encode(text), *self.end]

    def batch(
        self, texts: Sequence[str], length: int | None = None, *, longest: bool = False
    ) -> PromptTokens:
        """Return the ids of several texts, cut and padded at their ends.

        A warning of the logger ``wgpu_backend.images`` has the text that was cut.

        Parameters
        ----------
        length : int, optional
            Tokens of a row; `max_length` by default.
        longest : bool, optional
            Whether to pad to the longest text only; `length` is then the limit.

        Returns
        -------
        PromptTokens

        Raises
        ------
        TokenizerError
            There is no text, or the length is missing or too small.
        """
        length = self.max_length if length is None else length
        around = len(self.start) + len(self.end)
        if length is None or length < max(around, 1) or not texts:
            raise TokenizerError(
                f"tokenizer: {len(texts)} prompts in rows of {length} tokens, needs a prompt and "
                f"at least {max(around, 1)} tokens"
            )
        rows = [self._cut(text, length - around) for text in texts]
        width = max(map(len, rows)) if longest else length
        ids = np.full((len(rows), width), self.pad_id, np.int64)
        for out, row in zip(ids, rows, strict=True):
            out[: len(row)] = row
        lengths = np.array([len(row) for row in rows])
        return PromptTokens(ids, (np.arange(width) < lengths[:, None]).astype(np.int64))

    def chat(self, prompt: str, *, enable_thinking: bool | None = None) -> str:
        """Return a chat with the prompt as its only message, up to where the answer begins.

        Parameters
        ----------
        enable_thinking : bool, optional
            A variable of the template; None leaves it undefined.

        Raises
        ------
        TokenizerError
            The folder has no template.
        TemplateError
            The template fails.
        """
        if self.template is None:
            raise TokenizerError("tokenizer: has no chat template, needs chat_template.jinja")
        messages = [{"role": "user", "content": prompt}]
        if enable_thinking is None:
            return self.template.render(messages)
        return self.template.render(messages, enable_thinking=enable_thinking)

    def _cut(self, text: str, room: int) -> list[int]:
        ids = self.encoder.encode(text)
        if len(ids) > room:
            _log.warning(
                "the prompt has %d tokens, the first %d are read; left out is %r",
                len(ids), room, self.encoder.decode(ids[room:])[:200],
            )  # fmt: skip
        # CLIP pools the state of the end token, so a cut prompt needs it too.
        return [*self.start, *ids[:room], *self.end]


class _Parsing:
    """A language model's tokenizer for pipelines, which parses control tokens in the text.

    Parameters
    ----------
    prepared : callable
        Normalises a text before it is encoded.
    """

    def __init__(self, tokenizer: Tokenizer, prepared: Callable[[str], str]) -> None:
        self._tokenizer = tokenizer
        self._prepared = prepared

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""
        # `PromptTokenizer` adds start and end; a chat already has its control tokens as text.
        return self._tokenizer.encode(self._prepared(text), add_special=False, parse_special=True)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""
        return self._tokenizer.decode(ids)


def open_prompt_tokenizer(folder: Path) -> PromptTokenizer:
    """Open the tokenizer of a folder: ``tokenizer/``, ``tokenizer_2/``.

    Raises
    ------
    TokenizerError
        There is none, or its kind is unknown.
    ModelError
        A file is damaged.
    """
    files = TokenizerFiles(folder, Settings(str(folder / "config.json"), {}))
    limit = files.given.value("model_max_length")
    length = int(limit) if isinstance(limit, int | float) and limit < _ENDLESS else None
    if _is_clip(files):
        return _clip(files, length)
    return prompt_tokenizer(tokenizer_keys(folder, files.settings), length)


def prompt_tokenizer(
    metadata: Mapping[str, object], max_length: int | None = None
) -> PromptTokenizer:
    """Make the tokenizer that the metadata of a text encoder's GGUF file describes.

    Parameters
    ----------
    max_length : int or None
        Most tokens of a prompt.

    Raises
    ------
    TokenizerError
        Its kind is unknown.
    """
    tokenizer = Tokenizer.from_metadata(metadata)
    roles = tokenizer.special_ids
    end = (roles["eos"],) if tokenizer.add_eos else ()
    start = (roles["bos"],) if tokenizer.add_bos else ()
    pad = roles.get("pad", roles.get("eos", 0))
    # T5 splits words at any white space, Qwen composes characters; tokenizer.json does it itself.
    is_unigram = metadata["tokenizer.ggml.model"] == "t5"
    prepared = _unify_spaces if is_unigram else _NFC.normalize_str
    encoder = _Parsing(tokenizer, str if KEY in metadata else prepared)
    text = metadata.get("tokenizer.chat_template")
    template = _template(tokenizer, text) if isinstance(text, str) else None
    return PromptTokenizer(encoder, start, end, pad, max_length, template)


def _unify_spaces(text: str) -> str:
    return text.translate(_SPACES)


def _template(tokenizer: Tokenizer, text: str) -> ChatTemplate:
    bos, eos = (
        None if number is None else tokenizer.token_text(number)
        for number in (tokenizer.bos_id, tokenizer.eos_id)
    )
    return ChatTemplate(text, bos_token=bos, eos_token=eos)


def _is_clip(files: TokenizerFiles) -> bool:
    if not files.json:
        return False
    suffixed = files.model.get("end_of_word_suffix") == "</w>"
    return suffixed or files.given.text("tokenizer_class", default="").startswith("CLIPTokenizer")


def _clip(files: TokenizerFiles, length: int | None) -> PromptTokenizer:
    vocabulary: object = files.model.get("vocab")
    if not isinstance(vocabulary, dict):
        raise TokenizerError(f"{files.json_path}: key 'model.vocab' needs strings and their ids")
    ids = cast("dict[str, int]", vocabulary)
    if not all(type(number) is int and number >= 0 for number in ids.values()):
        raise TokenizerError(f"{files.json_path}: key 'model.vocab' needs strings and their ids")
    named = {text: ids[text] for text in named_tokens(files.given) if text in ids}
    special = named | {text: number for number, (text, _) in files.list_added().items()}
    start, end, pad = (
        _role(files, role, special, default)
        for role, default in (
            ("bos", "<|startoftext|>"), ("eos", "<|endoftext|>"), ("pad", "<|endoftext|>"),
        )
    )  # fmt: skip
    unknown = files.model.get("unk_token") or "<|endoftext|>"
    merges = [_pair(files, item) for item in cast("list[Any]", files.model.get("merges") or [])]
    encoder = ClipTokenizer(ids, merges, special, str(unknown))
    # CLIP's number of positions, for files without a limit.
    return PromptTokenizer(encoder, (start,), (end,), pad, length or 77)


def _role(files: TokenizerFiles, role: str, special: Mapping[str, int], default: str) -> int:
    value = files.given.value(f"{role}_token")
    content = cast("Mapping[str, Any]", value).get("content") if isinstance(value, dict) else value
    text = content if isinstance(content, str) else default
    if text not in special:
        raise TokenizerError(
            f"{files.json_path}: {role} token {text!r} is not among the {len(special)} special ones"
        )
    return special[text]


def _pair(files: TokenizerFiles, item: str | list[str]) -> tuple[str, str]:
    pair = item.split(" ") if isinstance(item, str) else item
    if len(pair) != 2:
        raise TokenizerError(f"{files.json_path}: key 'model.merges' has {str(item)[:60]!r}")
    return pair[0], pair[1]
