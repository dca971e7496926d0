"""Text to tokens, by the algorithm that the vocabulary was made with.

Each builder rebuilds an encoder from the token table alone: a Hugging Face tokenizer where its
algorithm is llama.cpp's, ``word_pieces.py`` for WordPiece. Control tokens are left out of it, so
that no text can become one, whatever it says; they come in by ``fragments.py``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from wgpu_backend.errors import TokenizerError
from wgpu_backend.text.tokenizer.categories import pinned
from wgpu_backend.text.tokenizer.charsmap import read_charsmap
from wgpu_backend.text.tokenizer.pieces import ALPHABET, SPACE
from wgpu_backend.text.tokenizer.pretokenizers import PreTokenizer
from wgpu_backend.text.tokenizer.special import SpecialTokens
from wgpu_backend.text.tokenizer.vocabulary import TokenType, Vocabulary, read_flag
from wgpu_backend.text.tokenizer.word_pieces import WordPieces

_log = logging.getLogger("wgpu_backend.tokenizer")

Prepare = Callable[[str, bool], str]
"""Rewrites a stretch of text; the flag says that nothing or a special token stands before it."""


@dataclass(frozen=True, slots=True)
class Source:
    """What an encoder is built from.

    Parameters
    ----------
    metadata : Mapping
        The file's key-value pairs.
    vocabulary : Vocabulary
        Its token table.
    special : SpecialTokens
        Its special tokens.
    pretokenizer : PreTokenizer
        How a byte-pair vocabulary cuts words.
    """

    metadata: Mapping[str, object]
    vocabulary: Vocabulary
    special: SpecialTokens
    pretokenizer: PreTokenizer

    def typed_ids(self, keep: int | None = None) -> dict[str, int]:
        """Ids of the texts that text may become, and of `keep`."""
        control = self.special.control - {keep}
        return {text: i for text, i in self.vocabulary.ids.items() if i not in control}

    def role(self, name: str) -> int:
        """Id of a special token that the algorithm cannot do without."""
        token = self.special.roles.get(name)
        if token is None:
            raise TokenizerError(
                f"tokenizer: {self.vocabulary.model} has no {name} token, needs its id"
            )
        return token


class TextEncoder(Protocol):
    """Encodes stretches of text that hold no special tokens."""

    def encode(self, text: str, first: bool) -> list[int]:
        """Encode a stretch of text; `first` says that nothing or a special token is before it."""
        ...


class LibraryEncoder:
    """Encodes with an algorithm of Hugging Face's library.

    Parameters
    ----------
    backend : tokenizers.Tokenizer
        The algorithm with its table.
    prepare : callable, optional
        Rewrites the text before.
    tokens : int, optional
        Number of tokens that the vocabulary has; ids from there on are left out.
    """

    def __init__(
        self, backend: Tokenizer, prepare: Prepare | None = None, *, tokens: int | None = None
    ) -> None:
        self._backend = backend
        self._prepare = prepare
        self._tokens = tokens

    def encode(self, text: str, first: bool) -> list[int]:
        """Encode a stretch of text.

        Parameters
        ----------
        text : str
            The text, without lone surrogates.
        first : bool
            Whether nothing or a special token stands before it.

        Returns
        -------
        list of int
        """
        if self._prepare is not None:
            text = self._prepare(text, first)
        ids = self._backend.encode(text, add_special_tokens=False).ids
        return ids if self._tokens is None else [token for token in ids if token < self._tokens]


def build_encoder(source: Source) -> TextEncoder:
    """Build the encoder of a vocabulary.

    Parameters
    ----------
    source : Source
        The vocabulary and what belongs to it.

    Returns
    -------
    TextEncoder

    Raises
    ------
    TokenizerError
        When the algorithm cannot work with the table.
    """
    try:
        return _BUILDERS[source.vocabulary.model](source)
    except BaseException as error:
        if not is_library_failure(error):
            raise
        raise TokenizerError(
            f"tokenizer: {source.vocabulary.model} with {len(source.vocabulary.texts)} tokens and "
            f"{len(source.vocabulary.merges)} merges cannot be built, needs them to agree: {error}"
        ) from error


def is_library_failure(error: BaseException) -> bool:
    """Whether an exception is how the library says that it cannot use a table.

    It raises bare Exceptions, and where its own code panics a PanicException, which is none.
    Our own errors say more than a wrapped one would, and pass.

    Parameters
    ----------
    error : BaseException
        What came out of the library.

    Returns
    -------
    bool
    """
    if isinstance(error, TokenizerError):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _byte_pairs(source: Source) -> TextEncoder:
    rules = source.pretokenizer
    vocab, size = source.typed_ids(), len(source.vocabulary.texts)
    if rules.byte_level:
        # A byte without a token becomes nothing, but what stands on its two sides never merges.
        vocab |= dict(zip(sorted(ALPHABET.keys() - vocab.keys()), count(size), strict=False))
    merges = _read_merges(source.vocabulary, vocab)
    cuts: list[Any] = [
        pre_tokenizers.Split(Regex(pinned(expression)), "isolated")
        for expression in rules.expressions
    ]
    if rules.byte_level:
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    backend = Tokenizer(
        models.BPE(
            vocab=vocab,
            merges=merges,
            ignore_merges=rules.ignore_merges,
            byte_fallback=not rules.byte_level,
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(cuts)
    return LibraryEncoder(backend, None if rules.byte_level else _escape_spaces, tokens=size)


def _read_merges(vocabulary: Vocabulary, vocab: dict[str, int]) -> list[tuple[str, str]]:
    if not vocabulary.merges:
        raise TokenizerError(
            f"tokenizer: {vocabulary.model} has {len(vocabulary.texts)} tokens and 0 merges, "
            "needs tokenizer.ggml.merges"
        )
    merges: list[tuple[str, str]] = []
    for index, merge in enumerate(vocabulary.merges):
        space = merge.find(" ", 1)  # the first text may itself start with a space
        if space < 0:
            raise TokenizerError(
                f"tokenizer: merge {index} is {merge!r}, needs two texts and a space between"
            )
        left, right = merge[:space], merge[space + 1 :]
        if left in vocab and right in vocab and left + right in vocab:
            merges.append((left, right))
    dropped = len(vocabulary.merges) - len(merges)
    if dropped:
        _log.debug(
            "%d of %d merges make no token that text may become", dropped, len(vocabulary.merges)
        )
    return merges


def _escape_spaces(text: str, first: bool) -> str:
    del first
    return text.replace(" ", SPACE)


def _sentencepiece(source: Source) -> TextEncoder:
    unknown = source.special.roles.get("unk")
    texts = source.vocabulary.texts
    backend = Tokenizer(
        models.BPE(
            vocab=source.typed_ids(keep=unknown),
            merges=_scored_merges(source),
            unk_token=None if unknown is None else texts[unknown],
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    prefix = read_flag(source.metadata, "add_space_prefix")
    if prefix is False:
        return LibraryEncoder(backend, _escape_spaces)
    return LibraryEncoder(backend, _prefix_and_escape)


def _prefix_and_escape(text: str, first: bool) -> str:
    return (SPACE if first else "") + text.replace(" ", SPACE)


def _scored_merges(source: Source) -> list[tuple[str, str]]:
    """Rank every way to make a token of two others by the score of what it makes."""
    types, scores = source.special.types, source.vocabulary.scores
    mergeable = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED, TokenType.UNDEFINED)
    vocab = {text: i for text, i in source.vocabulary.ids.items() if types[i] in mergeable}
    merges: list[tuple[str, str]] = []
    for text in sorted(vocab, key=lambda text: scores[vocab[text]], reverse=True):
        for cut in range(1, len(text)):
            left = text[:cut]
            if left in vocab:
                right = text[cut:]
                if right in vocab:
                    merges.append((left, right))
    return merges


def _word_pieces(source: Source) -> TextEncoder:
    unknown = source.role("unk")
    lowercase = read_flag(source.metadata, "normalizer.lowercase") is not False
    accents = read_flag(source.metadata, "normalizer.strip_accents")
    return WordPieces(
        source.typed_ids(),
        unknown,
        lowercase=lowercase,
        strip_accents=lowercase if accents is None else accents,
    )


def _unigram(source: Source) -> TextEncoder:
    unknown = source.role("unk")
    backend = Tokenizer(models.Unigram(_scored(source), unk_id=unknown, byte_fallback=False))
    prefix = read_flag(source.metadata, "add_space_prefix") is True
    collapse = read_flag(source.metadata, "remove_extra_whitespaces") is True
    charsmap = read_charsmap(source.metadata)

    def prepare(text: str, first: bool) -> str:
        del first
        if charsmap is not None:
            text = charsmap.normalize(text)
        if collapse:
            return "".join(SPACE + word for word in text.split(" ") if word)
        if prefix and text.strip(" "):
            spaces = len(text) - len(text.lstrip(" "))
            text = text[:spaces] + " " + text[spaces:]
        return text.replace(" ", SPACE)

    return LibraryEncoder(backend, prepare)


def _scored(source: Source) -> list[tuple[str, float]]:
    """Pieces by id, each with its score."""
    texts, scores, types = source.vocabulary.texts, source.vocabulary.scores, source.special.types
    best = max(scores)
    # A piece with a space in it is never found: by then every space has become a ▁.
    return [
        (text, score) if kind == TokenType.NORMAL
        else (text, 0.0) if kind == TokenType.USER_DEFINED
        else (text, score) if kind == TokenType.UNUSED
        else (f" {index}", best)
        for index, (text, score, kind) in enumerate(zip(texts, scores, types, strict=True))
    ]  # fmt: skip


_BUILDERS: dict[str, Callable[[Source], TextEncoder]] = {
    "gpt2": _byte_pairs,
    "gemma4": _byte_pairs,
    "llama": _sentencepiece,
    "bert": _word_pieces,
    "t5": _unigram,
}

MODELS = tuple(_BUILDERS)
"""Every name that ``tokenizer.ggml.model`` may have."""
