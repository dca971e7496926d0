"""The tokenizer of a model file: from text to token ids and back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, Protocol, Self

from wgpu_backend.errors import TokenizerError
from wgpu_backend.text.tokenizer.encoders import (
    MODELS,
    Source,
    TextEncoder,
    build_encoder,
    is_library_failure,
)
from wgpu_backend.text.tokenizer.fragments import Splitter
from wgpu_backend.text.tokenizer.library import KEY, LIBRARY, LibraryTokenizer
from wgpu_backend.text.tokenizer.pieces import Detokenizer, Pieces, clean_spaces
from wgpu_backend.text.tokenizer.pretokenizers import (
    PLAIN,
    PRETOKENIZERS,
    PreTokenizer,
    find_rules,
)
from wgpu_backend.text.tokenizer.shield import Shield
from wgpu_backend.text.tokenizer.special import SpecialTokens, read_special
from wgpu_backend.text.tokenizer.vocabulary import (
    TokenType,
    Vocabulary,
    read_flag,
    read_text,
    read_vocabulary,
)


class ModelFile(Protocol):
    """An open model file: its path, and its metadata with the tokenizer's keys."""

    @property
    def path(self) -> str | PathLike[str]:
        """Return the path of the file."""
        ...

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Return values by key, as in a GGUF header."""
        ...


class Tokenizer:
    """A converter between text and token ids, rebuilt from a model file's metadata.

    Created by `from_metadata` or `of_file`.

    Parameters
    ----------
    vocabulary : Vocabulary
        The token table.
    special : SpecialTokens
        Its special tokens.
    encoder : TextEncoder or LibraryTokenizer
        Its algorithm; a LibraryTokenizer handles special tokens itself, a TextEncoder encodes the
        stretches between them.
    rules : PreTokenizer
        Rules by which its texts are spelled.
    space_prefix : bool
        Whether text starts with a space that its author did not write.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        special: SpecialTokens,
        encoder: TextEncoder | LibraryTokenizer,
        rules: PreTokenizer,
        *,
        space_prefix: bool,
    ) -> None:
        self._vocabulary = vocabulary
        self._special = special
        self._encoder = encoder if not isinstance(encoder, LibraryTokenizer) else None
        self._library = encoder if isinstance(encoder, LibraryTokenizer) else None
        self._rules = rules
        self._space_prefix = space_prefix
        texts = vocabulary.texts
        if self._library and not self._library.byte_level and vocabulary.model == LIBRARY:
            texts = self._library.spell_all(texts, special.types)
        self._pieces = Pieces(texts, special.types, byte_level=rules.byte_level)
        tokens = [(vocabulary.texts[i], i) for i in special.matched]
        self._parsing = Splitter(tokens, special.lstrip, special.rstrip)
        plain = [(text, i) for text, i in tokens if special.types[i] == TokenType.USER_DEFINED]
        self._plain = Splitter(plain, special.lstrip, special.rstrip)
        self._shield = Shield((text, i) for text, i in tokens if i in special.control)

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocab_size} tokens)"

    @classmethod
    def from_metadata(
        cls, metadata: Mapping[str, object], *, pretokenizer: str | None = None
    ) -> Self:
        """Build the tokenizer that a model file's metadata describes.

        Parameters
        ----------
        metadata : Mapping
            The file's key-value pairs; string arrays are lists, others NumPy arrays or lists.
        pretokenizer : str, optional
            A name to use instead of ``tokenizer.ggml.pre``.

        Raises
        ------
        TokenizerError
            The algorithm or the pre-tokenizer is unknown, or the metadata contradicts itself.
        """
        vocabulary = read_vocabulary(metadata)
        if pretokenizer is None and KEY in metadata:
            return cls._from_library(metadata, vocabulary)
        if vocabulary.model not in MODELS:
            raise TokenizerError(
                f"tokenizer: model is {vocabulary.model!r}, needs one of {', '.join(MODELS)}"
            )
        rules = find_rules(metadata, vocabulary.model, pretokenizer)
        special = read_special(metadata, vocabulary, add_bos=rules.add_bos)
        encoder = build_encoder(Source(metadata, vocabulary, special, rules))
        declared = read_flag(metadata, "add_space_prefix")
        prefix = vocabulary.model == "llama" if declared is None else declared
        return cls(vocabulary, special, encoder, rules, space_prefix=prefix)

    @classmethod
    def _from_library(cls, metadata: Mapping[str, object], vocabulary: Vocabulary) -> Self:
        text = metadata[KEY]
        if not isinstance(text, str):
            raise TokenizerError(f"tokenizer: {KEY} is {type(text).__name__}, needs a string")
        special = read_special(metadata, vocabulary)
        library = LibraryTokenizer(text, special.control, len(vocabulary.texts))
        name = read_text(metadata, "pre") or ""
        known = PRETOKENIZERS.get(name) if library.byte_level else None
        rules = known or replace(
            PLAIN, byte_level=library.byte_level, clean_spaces=vocabulary.model == "bert"
        )
        # llama.cpp's vocabularies say themselves whether a space comes first; this is for those
        # that only the library knows.
        own = vocabulary.model == LIBRARY and not library.byte_level and library.begins_with_space
        prefix = own or read_flag(metadata, "add_space_prefix") is True
        return cls(vocabulary, special, library, rules, space_prefix=prefix)

    @classmethod
    def of_file(cls, file: ModelFile, *, pretokenizer: str | None = None) -> Self:
        """Build the tokenizer of an open model file.

        Parameters
        ----------
        file : ModelFile
            A file such as an open GGUF file.
        pretokenizer : str, optional
            A name to use instead of ``tokenizer.ggml.pre``.

        Raises
        ------
        TokenizerError
            As from `from_metadata`, with the file's name.
        """
        try:
            return cls.from_metadata(file.metadata, pretokenizer=pretokenizer)
        except TokenizerError as error:
            raise TokenizerError(f"{file.path}: {error}") from None

    @property
    def vocab_size(self) -> int:
        """Return the number of tokens."""
        return len(self._vocabulary.texts)

    @property
    def special_ids(self) -> Mapping[str, int]:
        """Return ids by role: bos, eos, unk, sep, pad, mask, eot, eom and fim_pre to fim_sep."""
        return self._special.roles

    @property
    def bos_id(self) -> int | None:
        """Return the id of the token that starts a text, or None."""
        return self._special.roles.get("bos")

    @property
    def eos_id(self) -> int | None:
        """Return the id of the token that ends a text, or None."""
        return self._special.roles.get("eos")

    @property
    def eot_id(self) -> int | None:
        """Return the id of the token that ends a message, or None."""
        return self._special.roles.get("eot")

    @property
    def eog_ids(self) -> frozenset[int]:
        """Return the ids that end a generation."""
        return self._special.eog

    @property
    def add_bos(self) -> bool:
        """Return whether `encode` starts with BOS when it adds special tokens."""
        return self._special.add_bos

    @property
    def add_eos(self) -> bool:
        """Return whether `encode` ends with EOS when it adds special tokens."""
        return self._special.add_eos

    def is_control(self, token: int) -> bool:
        """Return whether a token is control or unknown, so that no user's text becomes it."""
        return token in self._special.control

    @property
    def types(self) -> Sequence[int]:
        """Return the ``TokenType`` of each token, repaired if the file is wrong."""
        return self._special.types

    @property
    def space_prefix(self) -> bool:
        """Return whether text starts with a space that its author did not write."""
        return self._space_prefix

    @property
    def cleans_spaces(self) -> bool:
        """Return whether llama.cpp's detokeniser removes spaces before punctuation."""
        return self._rules.clean_spaces

    def token_id(self, text: str) -> int | None:
        """Return the id of the token spelled `text` in the file, or None."""
        return self._vocabulary.ids.get(text)

    def token_text(self, token: int) -> str:
        """Return the spelling of a token in the file, such as ``Ġthe`` or ``▁the``."""
        return self._vocabulary.texts[self._check_id(token)]

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes that a token stands for; they need not be whole characters.

        Raises
        ------
        TokenizerError
            No token has that id.
        """
        return self._pieces[self._check_id(token)]

    def encode(self, text: str, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Turn text into tokens.

        Parameters
        ----------
        text : str
            Any text; lone surrogates become U+FFFD.
        add_special : bool, optional
            Add BOS and EOS if the model uses them.
        parse_special : bool, optional
            Control tokens spelled out in the text become those tokens. Only for the output of a
            chat template: see `shield` for the parts of it that a user wrote.

        Returns
        -------
        list of int

        Raises
        ------
        TokenizerError
            The vocabulary's tables are damaged.
        """
        text = _well_formed(text)
        shielded = parse_special and self._shield.is_marked(text)
        if library := self._library:
            shielded |= parse_special and library.may_be_marked(text)
            shield = self._shield if shielded else None
            ids = _try_encode(
                lambda: library.encode(text, parse=parse_special, shield=shield), text
            )
            return self._wrap(ids) if add_special else ids
        splitter = self._parsing if parse_special else self._plain
        ids: list[int] = []
        first = True
        for fragment in splitter.split(text):
            if isinstance(fragment, int):
                ids.append(fragment)
            else:
                ids += self._encode_text(fragment, first, shielded=shielded)
            first = isinstance(fragment, int)
        return self._wrap(ids) if add_special else ids

    def encode_further(self, text: str) -> list[int]:
        """Turn text that follows other text into tokens: nothing is put before it."""
        text = _well_formed(text)
        if library := self._library:
            return _try_encode(lambda: library.encode_further(text), text)
        ids: list[int] = []
        for fragment in self._plain.split(text):
            known = isinstance(fragment, int)
            ids += [fragment] if known else self._encode_text(fragment, False, shielded=False)
        return ids

    def shield(self, text: str) -> str:
        """Mark a user's text so that `encode` never parses control tokens in it.

        For the messages that go into a chat template, whose result is encoded with `parse_special`.
        The marks survive the template and are removed by encoding.

        Parameters
        ----------
        text : str
            Text that a user wrote.

        Returns
        -------
        str
            The same text, with a noncharacter inside each control token that it spells, or after
            every character if it spells one after normalising.
        """
        marked = self._shield.mark(text)
        if self._library and any(map(self._library.becomes_control, {text, marked})):
            return self._shield.mark_all(text)
        return marked

    def decode(
        self, ids: Iterable[int], *, skip_special: bool = True, clean: bool | None = None
    ) -> str:
        """Turn tokens into text; the inverse of `encode` as far as the vocabulary allows.

        WordPiece drops case, accents and spaces while it encodes. Its decoded text is llama.cpp's,
        which encodes to the same tokens again.

        Parameters
        ----------
        ids : iterable of int
            Tokens.
        skip_special : bool, optional
            Drop control tokens instead of spelling them.
        clean : bool, optional
            Remove spaces before punctuation as llama.cpp's detokeniser does. By default only for
            WordPiece, whose every token adds a space; in others an author wrote that space.

        Returns
        -------
        str
            Text, with U+FFFD for invalid UTF-8.

        Raises
        ------
        TokenizerError
            No token has one of the ids.
        """
        hidden = self._special.control if skip_special else frozenset[int]()
        shown = [token for token in map(self._check_id, ids) if token not in hidden]
        pieces = {token: self._pieces[token] for token in set(shown)}
        text = b"".join(map(pieces.__getitem__, shown)).decode(errors="replace")
        if self._space_prefix and shown and not self.is_control(shown[0]):
            # The space that encoding put before the text is not part of it.
            text = text.removeprefix(" ")
        wanted = self._vocabulary.model == "bert" if clean is None else clean
        return clean_spaces(text) if wanted and self._rules.clean_spaces else text

    def control_ids(self, texts: Iterable[str]) -> frozenset[int]:
        """Return the ids of control tokens with these texts."""
        wanted = set(texts)
        control = self._special.control if wanted else ()
        return frozenset(token for token in control if self.token_text(token) in wanted)

    def stream(
        self, *, skip_special: bool = True, spelled: frozenset[int] = frozenset()
    ) -> Detokenizer:
        """Start turning a stream of tokens into text.

        Parameters
        ----------
        skip_special : bool, optional
            Drop control tokens instead of spelling them.
        spelled : frozenset of int, optional
            Control tokens to spell all the same.
        """
        hidden = self._special.control - spelled if skip_special else frozenset[int]()
        return Detokenizer(self._pieces, hidden)

    def _encode_text(self, text: str, first: bool, *, shielded: bool) -> list[int]:
        if shielded:
            text = self._shield.unmark(text)
        encoder = self._encoder
        if encoder is None or not text:
            return []
        return _try_encode(lambda: encoder.encode(text, first), text)

    def encode_pair(self, first: str, second: str) -> tuple[list[int], list[int]]:
        """Encode two texts for models that read them together; return tokens and the type of each.

        BERT has one separator between them, and type 1 for the second. RoBERTa has two, and one
        type; both have a separator at the end.

        Raises
        ------
        TokenizerError
            The file puts nothing between two texts.
        """
        if library := self._library:
            inner = [self.encode(text, add_special=False) for text in (first, second)]
            ids, types = library.pair(*inner)
            # Without a template for pairs, the library only joins the two.
            if len(ids) > sum(map(len, inner)):
                return ids, types
            raise TokenizerError(
                "tokenizer: cannot encode a text pair: needs BOS and EOS, but the post_processor "
                "of tokenizer.json adds no token to a pair"
            )
        # Only the first text keeps its BOS.
        before, after = self.encode(first), self.encode(second)[1 if self.add_bos else 0 :]
        if self._vocabulary.model == "bert":
            return before + after, [0] * len(before) + [1] * len(after)
        if not (self.add_bos and self.add_eos):
            raise TokenizerError(
                "tokenizer: cannot encode a text pair: needs BOS and EOS, but add_bos_token is "
                f"{self.add_bos} and add_eos_token is {self.add_eos}"
            )
        roles = self._special.roles
        ids = [*before, roles["sep"] if "sep" in roles else roles["eos"], *after]
        return ids, [0] * len(ids)

    def _wrap(self, ids: list[int]) -> list[int]:
        if self._library:
            return self._library.wrap(ids)
        roles = self._special.roles
        before = [roles["bos"]] if self.add_bos else []
        if self._vocabulary.model == "bert":
            return before + ids + [roles["sep"]] * ("sep" in roles)
        return before + ids + ([roles["eos"]] if self.add_eos else [])

    def _check_id(self, token: int) -> int:
        if 0 <= token < self.vocab_size:
            return token
        raise TokenizerError(f"tokenizer: token is {token}, needs an id below {self.vocab_size}")


def _well_formed(text: str) -> str:
    """Join pairs of surrogates and replace lone ones; JSON can contain either."""
    try:
        text.encode()
    except UnicodeEncodeError:
        # UTF-16 joins the halves of a pair, which are two characters in Python.
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _try_encode(encode: Callable[[], list[int]], text: str) -> list[int]:
    try:
        return encode()
    except BaseException as error:
        if not is_library_failure(error):
            raise
        raise TokenizerError(
            f"tokenizer: {len(text)} characters cannot be encoded, needs a sound vocabulary: "
            f"{error}"
        ) from error
