"""Encoders of text, by the algorithm of the vocabulary.

Each builder rebuilds an encoder from the token table alone: a Hugging Face tokenizer if its
algorithm is llama.cpp's, `WordPieces` for WordPiece. Control tokens are left out of it, so that no
text can become one; they are added by ``fragments.py``.
"""

from __future__ import annotations

import logging
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, cast

import numpy as np
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from wgpu_backend.errors import TokenizerError
from wgpu_backend.text.tokenizer.categories import WHITE_SPACE, character_kind, pin_properties
from wgpu_backend.text.tokenizer.pieces import ALPHABET, SPACE
from wgpu_backend.text.tokenizer.pretokenizers import PreTokenizer
from wgpu_backend.text.tokenizer.special import SpecialTokens
from wgpu_backend.text.tokenizer.vocabulary import TokenType, Vocabulary, read_flag

_log = logging.getLogger("wgpu_backend.tokenizer")

Prepare = Callable[[str, bool], str]
"""A rewrite of a stretch of text; the flag is set at the start and after a special token."""


@dataclass(frozen=True, slots=True)
class Source:
    """The data that an encoder is built from.

    Parameters
    ----------
    metadata : Mapping
        The file's key-value pairs.
    vocabulary : Vocabulary
        Its token table.
    special : SpecialTokens
        Its special tokens.
    pretokenizer : PreTokenizer
        Rules by which a byte-pair vocabulary splits words.
    """

    metadata: Mapping[str, object]
    vocabulary: Vocabulary
    special: SpecialTokens
    pretokenizer: PreTokenizer

    def typed_ids(self, keep: int | None = None) -> dict[str, int]:
        """Return the ids of the tokens that ordinary text may become, and of `keep`."""
        control = self.special.control - {keep}
        return {text: i for text, i in self.vocabulary.ids.items() if i not in control}

    def role(self, name: str) -> int:
        """Return the id of a special token that the algorithm requires."""
        token = self.special.roles.get(name)
        if token is None:
            raise TokenizerError(
                f"tokenizer: {self.vocabulary.model} has no {name} token, needs its id"
            )
        return token


class TextEncoder(Protocol):
    """An encoder of stretches of text without special tokens."""

    def encode(self, text: str, first: bool) -> list[int]:
        """Encode a stretch; `first` is set at the start and after a special token."""
        ...


# WordPiece as in llama.cpp: normalised characters, and the longest match first.

# Ideographs are words of their own. Extension E starts 256 characters late, as in the program
# that vocabularies were made with.
_IDEOGRAPHS = (
    range(0x4E00, 0xA000), range(0x3400, 0x4DC0), range(0x20000, 0x2A6E0), range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820), range(0x2B920, 0x2CEB0), range(0xF900, 0xFB00),
    range(0x2F800, 0x2FA20),
)  # fmt: skip


class WordPieces:
    """An encoder of words by the longest pieces that they start with.

    Parameters
    ----------
    ids : Mapping of str to int
        Ids of the pieces as the file spells them: ``▁`` marks starts of words.
    unknown : int
        Id of a word that no pieces make up.
    lowercase : bool
        Whether capitals become small letters.
    strip_accents : bool
        Whether letters lose their marks.
    """

    def __init__(
        self, ids: Mapping[str, int], unknown: int, *, lowercase: bool, strip_accents: bool
    ) -> None:
        self._ids = ids
        self._unknown = unknown
        # No longer piece can match, so that a word takes time linear in its length.
        self._longest = max(map(len, ids), default=1)
        self._characters = _Characters(lowercase=lowercase, strip_accents=strip_accents)

    def encode(self, text: str, first: bool) -> list[int]:
        """Encode a stretch of text.

        Parameters
        ----------
        text : str
            The text, without lone surrogates.
        first : bool
            Unused: WordPiece does not depend on the text before.
        """
        del first
        words = text.translate(self._characters).split(" ")
        return [token for word in words if word for token in self._pieces(SPACE + word)]

    def _pieces(self, word: str) -> list[int]:
        """Return the ids of a word's pieces, in time linear in its length."""
        found: list[int] = []
        start = 0
        while start < len(word):
            for end in range(min(len(word), start + self._longest), start, -1):
                token = self._ids.get(word[start:end])
                if token is not None:
                    found.append(token)
                    start = end
                    break
            else:
                # One unknown token stands for the whole word, not for its unknown part, as in BERT.
                return [self._unknown]
        return found


class _Characters(dict[int, str]):
    """A cache of replacements of characters; spaces separate words."""

    def __init__(self, *, lowercase: bool, strip_accents: bool) -> None:
        super().__init__()
        self._lowercase = lowercase
        self._strip_accents = strip_accents

    def __missing__(self, code: int) -> str:
        made = self[code] = self._replacement(chr(code))
        return made

    def _replacement(self, char: str) -> str:
        if self._strip_accents and character_kind(ord(char)):
            # The first code point of the decomposition is the letter; the rest are its marks.
            char = unicodedata.normalize("NFD", char)[0]
        kind = character_kind(ord(char))
        if char in WHITE_SPACE:
            return " "
        if char in "\0\ufffd" or kind == "C" or (kind == "M" and self._strip_accents):
            return ""
        alone = kind == "P" or (kind == "S" and char < "\x7f")
        alone = alone or any(ord(char) in block for block in _IDEOGRAPHS)
        if self._lowercase and kind:
            # As in llama.cpp, which maps code points one to one: İ becomes i, without its dot.
            char = char.lower()[0]
        return f" {char} " if alone else char


class LibraryEncoder:
    """An encoder with an algorithm of Hugging Face's library.

    Parameters
    ----------
    backend : tokenizers.Tokenizer
        The algorithm with its table.
    prepare : callable, optional
        Rewrites the text first.
    tokens : int, optional
        Number of tokens of the vocabulary; larger ids are dropped.
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
            Whether the text is at the start or after a special token.
        """
        if self._prepare is not None:
            text = self._prepare(text, first)
        ids = self._backend.encode(text, add_special_tokens=False).ids
        # Larger ids stand for bytes that the vocabulary has no token for.
        return ids if self._tokens is None else [token for token in ids if token < self._tokens]


# Bit 31 is set in units with a replacement. It is compared as well, so these match no byte.
_LABEL = 1 << 31 | 0xFF
_VALUE = (1 << 31) - 1


class Charsmap:
    """SentencePiece's precompiled map of replacements, in a double array (Kanda, 2018, section 3).

    The longest rule that the text starts with is applied. The library's own normaliser matches
    whole grapheme clusters, and so misses rules for a part of one, such as a letter followed by a
    mark.

    Parameters
    ----------
    units : list of int
        The array. A unit holds a label in bits 0 to 7, whether a rule ends there in bit 8, and an
        offset to its children in the bits from 10, to be shifted by 8 if bit 9 is set. A child
        without a label holds the start of the replacement in bits 0 to 30.
    replacements : bytes
        Texts, each terminated by a zero.
    """

    def __init__(self, units: list[int], replacements: bytes) -> None:
        self._units = units
        self._replacements = replacements
        # Characters that occurred and start no rule.
        self._inert: set[str] = set()

    def normalize(self, text: str) -> str:
        """Replace, from left to right, the longest stretch that a rule matches.

        Parameters
        ----------
        text : str
            The text, without lone surrogates.

        Raises
        ------
        TokenizerError
            The map points outside itself.
        """
        made: list[str] = []
        place = 0
        while place < len(text):
            char = text[place]
            end, replacement = (place, None) if char in self._inert else self._rule(text, place)
            made.append(char if replacement is None else self._text_at(replacement))
            # A rule of no characters would never end.
            place = max(end, place + 1)
        return "".join(made)

    def _rule(self, text: str, start: int) -> tuple[int, int | None]:
        """Return the end of the longest rule's stretch and the start of its replacement."""
        found: tuple[int, int | None] = (start, None)
        node = self._offset(self._unit(0))
        for place in range(start, len(text)):
            unit = 0
            for byte in text[place].encode():
                node ^= byte
                unit = self._unit(node)
                if not byte or unit & _LABEL != byte:
                    if place == start:
                        self._inert.add(text[place])
                    return found
                node ^= self._offset(unit)
            if unit >> 8 & 1:
                found = place + 1, self._unit(node) & _VALUE
        return found

    def _unit(self, node: int) -> int:
        if node < len(self._units):
            return self._units[node]
        raise TokenizerError(
            f"tokenizer: precompiled_charsmap points at unit {node}, has {len(self._units)}"
        )

    @staticmethod
    def _offset(unit: int) -> int:
        return unit >> 10 << (8 if unit & 1 << 9 else 0)

    def _text_at(self, start: int) -> str:
        end = self._replacements.find(b"\0", start)
        if end < 0:
            raise TokenizerError(
                f"tokenizer: precompiled_charsmap has no text that ends after byte {start} of "
                f"{len(self._replacements)}"
            )
        return self._replacements[start:end].decode("utf-8", "replace")


def read_charsmap(metadata: Mapping[str, object]) -> Charsmap | None:
    """Read the character map of a model file, or None if it has none.

    Parameters
    ----------
    metadata : Mapping
        The file's key-value pairs.

    Raises
    ------
    TokenizerError
        It is not a byte array, or is shorter than its trie.
    """
    value = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if value is None:
        return None
    charsmap = np.asarray(value)
    if charsmap.dtype.kind not in "iu" or charsmap.ndim != 1:
        raise TokenizerError("tokenizer: precompiled_charsmap is not a byte array, needs one")
    data = charsmap.astype(np.uint8).tobytes()
    trie_bytes = int.from_bytes(data[:4], "little")
    # The size of the trie comes first, and a byte or more of texts after it.
    if trie_bytes % 4 or trie_bytes + 4 >= len(data):
        raise TokenizerError(
            f"tokenizer: precompiled_charsmap has {len(data)} bytes, needs a trie "
            f"of whole words, here {trie_bytes} bytes, and 5 bytes more"
        )
    units = np.frombuffer(data, "<u4", trie_bytes // 4, 4)
    if not len(units):
        return None
    return Charsmap(cast("list[int]", units.tolist()), data[4 + trie_bytes :])


def build_encoder(source: Source) -> TextEncoder:
    """Build the encoder of a vocabulary.

    Parameters
    ----------
    source : Source
        The vocabulary and the data that belongs to it.

    Raises
    ------
    TokenizerError
        The algorithm cannot use the table.
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
    """Return whether an exception means that the library cannot use a table.

    The library raises bare Exceptions, and on a panic of its own code a PanicException, which does
    not derive from Exception. Our own errors are more precise, and pass unchanged.

    Parameters
    ----------
    error : BaseException
        The exception from the library.
    """
    if isinstance(error, TokenizerError):
        return False
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _byte_pairs(source: Source) -> TextEncoder:
    rules = source.pretokenizer
    vocab, size = source.typed_ids(), len(source.vocabulary.texts)
    if rules.byte_level:
        # A byte without a token becomes nothing, but keeps its two sides from merging.
        vocab |= dict(zip(sorted(ALPHABET.keys() - vocab.keys()), count(size), strict=False))
    merges = _read_merges(source.vocabulary, vocab)
    cuts: list[Any] = [
        pre_tokenizers.Split(Regex(pin_properties(expression)), "isolated")
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
        # The first text may itself start with a space.
        space = merge.find(" ", 1)
        if space < 0:
            raise TokenizerError(
                f"tokenizer: merge {index} is {merge!r}, needs two texts with a space between them"
            )
        left, right = merge[:space], merge[space + 1 :]
        # Merges that lead to control tokens are dropped, since no text may become one; the library
        # would refuse a merge of an unknown token.
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
    # SentencePiece's dummy prefix: the first word gets the tokens of the same word after a space.
    return (SPACE if first else "") + text.replace(" ", SPACE)


def _scored_merges(source: Source) -> list[tuple[str, str]]:
    """Rank every way to make a token of two others by the score of the result."""
    types, scores = source.special.types, source.vocabulary.scores
    mergeable = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED, TokenType.UNDEFINED)
    vocab = {text: i for text, i in source.vocabulary.ids.items() if types[i] in mergeable}
    merges: list[tuple[str, str]] = []
    # Sorting is stable, also in reverse: of equal scores the lower id comes first.
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
    backend = Tokenizer(models.Unigram(_score_pieces(source), unk_id=unknown, byte_fallback=False))
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


def _score_pieces(source: Source) -> list[tuple[str, float]]:
    """List pieces by id, each with its score."""
    texts, scores, types = source.vocabulary.texts, source.vocabulary.scores, source.special.types
    # Scores are logarithms of probabilities, so the 0 of user-defined pieces is above all others;
    # llama.cpp does the same.
    best = max(scores)
    # A piece with a space in it never matches: by then every space has become a ▁.
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
"""All supported values of ``tokenizer.ggml.model``."""
