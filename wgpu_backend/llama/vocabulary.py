"""The tokens of a model: llama.h's ``llama_vocab``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from wgpu_backend.errors import TokenizerError
from wgpu_backend.ops.sampling.host import Spelling
from wgpu_backend.text.grammar import GrammarVocabulary
from wgpu_backend.text.tokenizer import Tokenizer
from wgpu_backend.text.tokenizer.pieces import clean_spaces
from wgpu_backend.text.tokenizer.vocabulary import TokenType, Vocabulary, read_vocabulary

# LLAMA_TOKEN_NULL: the vocabulary has no such token.
NULL = -1
# The bits of ``LLAMA_TOKEN_ATTR_…``.
_ATTRIBUTES = {
    TokenType.UNDEFINED: 0,
    TokenType.UNKNOWN: 1,
    TokenType.UNUSED: 2,
    TokenType.NORMAL: 4,
    TokenType.CONTROL: 8,
    TokenType.USER_DEFINED: 16,
    TokenType.BYTE: 32,
}
# ``LLAMA_VOCAB_TYPE_…`` for each value of ``tokenizer.ggml.model``; 2 is BPE.
_VOCAB_TYPES = {
    "llama": 1, "gpt2": 2, "gemma4": 2, "hybriddna": 2, "whitespace": 2, "bert": 3, "t5": 4,
    "rwkv": 5, "plamo2": 6,
}  # fmt: skip
_SPM = 1
_WPM = 3


class Tokens:
    """The tokens of a model, which need only its metadata: the base class of `Model`.

    Parameters
    ----------
    metadata : mapping
        Key-value pairs of the file.
    rows : int
        Rows of the embedding. Files pad it, so that it may have more rows than there are tokens.
    """

    def __init__(self, metadata: Mapping[str, object], tokenizer: Tokenizer, rows: int) -> None:
        self.tokenizer = tokenizer
        self._rows = rows
        self._metadata = metadata

    @cached_property
    def grammars(self) -> GrammarVocabulary:
        """The tokens as grammars need them."""
        return GrammarVocabulary(self.tokenizer, self._rows)

    @cached_property
    def spelling(self) -> Spelling:
        """The spelling of tokens, for DRY's breakers."""
        return Spelling(self.tokenizer)

    @cached_property
    def _table(self) -> Vocabulary:
        # Read on the first use: the tokenizer does not keep scores.
        return read_vocabulary(self._metadata)

    def n_vocab(self) -> int:
        """Return the number of rows, which is the number of logits."""
        return self._rows

    def vocab_type(self) -> int:
        """Return the tokenizer's algorithm: ``LLAMA_VOCAB_TYPE_…``; 0 if llama.cpp has none."""
        return _VOCAB_TYPES.get(self._table.model, 0)

    def tokenize(
        self, text: bytes | str, add_special: bool = True, special: bool = False
    ) -> list[int]:
        """Turn text into tokens.

        Parameters
        ----------
        text : bytes or str
            UTF-8; invalid bytes become U+FFFD.
        add_special : bool
            Add BOS and EOS if the file says so.
        special : bool
            Turn the spelling of control tokens into those tokens.
        """
        whole = text if isinstance(text, str) else bytes(text).decode("utf-8", "replace")
        return self.tokenizer.encode(whole, add_special=add_special, parse_special=special)

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        """Return the bytes of a token; none for a control token, unless `special` is true."""
        known = self._require_known(token)
        # A padding row.
        if known >= self.tokenizer.vocab_size:
            return b""
        hidden = not special and self.tokenizer.is_control(known)
        return b"" if hidden else self.tokenizer.token_bytes(known)

    def detokenize(
        self, tokens: Sequence[int], special: bool = False, *, remove_special: bool = False
    ) -> bytes:
        """Return the bytes of tokens, which may end within a character.

        As in llama.h, the leading space is dropped if the tokenizer adds one before texts. Spaces
        before punctuation are dropped if the file says so.

        Parameters
        ----------
        special : bool
            Spell control tokens.
        remove_special : bool
            Drop the BOS and the EOS that the tokenizer adds to texts.
        """
        shown, tokenizer = list(tokens), self.tokenizer
        strip = tokenizer.space_prefix
        if remove_special and tokenizer.add_bos and shown[:1] == [self.token_bos()]:
            # llama.cpp then keeps the space.
            shown, strip = shown[1:], False
        if remove_special and tokenizer.add_eos and shown[-1:] == [self.token_eos()]:
            shown = shown[:-1]
        pieces = [self.token_to_piece(token, special) for token in shown]
        if strip and pieces:
            pieces[0] = pieces[0].removeprefix(b" ")
        text = b"".join(pieces)
        if not tokenizer.cleans_spaces:
            return text
        # Bytes that are not UTF-8 pass through as surrogates: a text may end within a character.
        return clean_spaces(text.decode(errors="surrogateescape")).encode(errors="surrogateescape")

    def token_get_text(self, token: int) -> str:
        """Return the spelling in the file, such as ``Ġthe`` or ``▁the``; empty for padding rows."""
        known = self._require_known(token)
        return self.tokenizer.token_text(known) if known < self.tokenizer.vocab_size else ""

    def token_get_score(self, token: int) -> float:
        """Return the score in the file; 0 if it has none."""
        known = self._require_known(token)
        return self._table.scores[known] if known < len(self._table.scores) else 0.0

    def token_get_attr(self, token: int) -> int:
        """Return the type of a token in the file: ``LLAMA_TOKEN_ATTR_…``."""
        types, known = self.tokenizer.types, self._require_known(token)
        return _ATTRIBUTES[TokenType(types[known])] if known < len(types) else 0

    def is_eog(self, token: int) -> bool:
        """Return whether a token ends a generation."""
        return self._require_known(token) in self.tokenizer.eog_ids

    def is_control(self, token: int) -> bool:
        """Return whether a token is a control token; the unknown token and padding rows are not."""
        types, known = self.tokenizer.types, self._require_known(token)
        return known < len(types) and types[known] == TokenType.CONTROL

    def _find_special(self, role: str) -> int:
        return self.tokenizer.special_ids.get(role, NULL)

    def token_bos(self) -> int:
        """Return the token that begins a text; -1 for none, as for the tokens below."""
        return self._find_special("bos")

    def token_eos(self) -> int:
        """Return the token that ends a text."""
        return self._find_special("eos")

    def token_eot(self) -> int:
        """Return the token that ends a message."""
        return self._find_special("eot")

    def token_cls(self) -> int:
        """Return the token that a classifier's text begins with: BOS, as in llama.cpp."""
        return self.token_bos()

    def token_sep(self) -> int:
        """Return the token between two texts."""
        return self._find_special("sep")

    def token_pad(self) -> int:
        """Return the padding token."""
        return self._find_special("pad")

    def token_mask(self) -> int:
        """Return the token in place of a masked one."""
        return self._find_special("mask")

    def token_nl(self) -> int:
        """Return the token of a line break.

        As in llama.cpp: the byte's token for SPM, the padding token for WPM, the first token of a
        line break's text for others. Without any of these it is the padding token.
        """
        kind = self.vocab_type()
        if kind == _SPM:
            found = [self.tokenizer.token_id(text) for text in ("<0x0A>", "\n")]
            return next((each for each in found if each is not None), self.token_pad())
        if kind == _WPM:
            return self.token_pad()
        made = self.tokenizer.encode("\n", add_special=False)
        return made[0] if made else self.token_pad()

    def token_fim(self, part: str) -> int:
        """Return a fill-in-the-middle token: ``pre``, ``suf``, ``mid``, ``pad``, ``rep``, ``sep``.

        Raises
        ------
        TokenizerError
            There is no such part.
        """
        parts = ("pre", "suf", "mid", "pad", "rep", "sep")
        if part not in parts:
            raise TokenizerError(f"token_fim: {part!r}, needs one of {', '.join(parts)}")
        return self._find_special(f"fim_{part}")

    def token_prefix(self) -> int:
        """Return the token that precedes the text before a gap."""
        return self.token_fim("pre")

    def token_middle(self) -> int:
        """Return the token that precedes the text in a gap."""
        return self.token_fim("mid")

    def token_suffix(self) -> int:
        """Return the token that precedes the text after a gap."""
        return self.token_fim("suf")

    def add_bos_token(self) -> bool:
        """Return whether texts begin with BOS."""
        return self.tokenizer.add_bos

    def add_eos_token(self) -> bool:
        """Return whether texts end with EOS."""
        return self.tokenizer.add_eos

    def _require_known(self, token: int) -> int:
        if 0 <= token < self._rows:
            return int(token)
        raise TokenizerError(f"token {token}: the vocabulary has {self._rows}, from 0")
