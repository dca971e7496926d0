"""Questions about a model's tokens, as llama.h asks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from wgpu_backend.errors import TokenizerError
from wgpu_backend.ops.sampling.host import Spelling
from wgpu_backend.text.grammar import GrammarVocabulary
from wgpu_backend.text.tokenizer import Tokenizer
from wgpu_backend.text.tokenizer.pieces import clean_spaces
from wgpu_backend.text.tokenizer.vocabulary import TokenType, Vocabulary, read_vocabulary

NULL = -1  # where a vocabulary has no such token
_ATTRIBUTES = {
    TokenType.UNDEFINED: 0,
    TokenType.UNKNOWN: 1,
    TokenType.UNUSED: 2,
    TokenType.NORMAL: 4,
    TokenType.CONTROL: 8,
    TokenType.USER_DEFINED: 16,
    TokenType.BYTE: 32,
}
# ``tokenizer.ggml.model`` in the numbers of `LLAMA_VOCAB_TYPE_…`.
_KINDS = {
    "llama": 1, "gpt2": 2, "gemma4": 2, "hybriddna": 2, "whitespace": 2, "bert": 3, "t5": 4,
    "rwkv": 5, "plamo2": 6,
}  # fmt: skip
_BYTES_IN_BRACKETS = 1  # the kind whose line break is a byte's token
_WITHOUT_LINE_BREAKS = 3


class Tokens:
    """Tokens of a model: base class of `Model`.

    Parameters
    ----------
    metadata : mapping
        The file's key-value pairs.
    rows : int
        Of the embedding, which may be more than the tokenizer's tokens.
    """

    def __init__(self, metadata: Mapping[str, object], tokenizer: Tokenizer, rows: int) -> None:
        self.tokenizer = tokenizer
        self._rows = rows
        self._metadata = metadata

    @cached_property
    def grammars(self) -> GrammarVocabulary:
        """Fits grammars to the tokens."""
        return GrammarVocabulary(self.tokenizer, self._rows)

    @cached_property
    def spelling(self) -> Spelling:
        """Knows how tokens spell texts."""
        return Spelling(self.tokenizer)

    @cached_property
    def _table(self) -> Vocabulary:
        return read_vocabulary(self._metadata)

    def n_vocab(self) -> int:
        """Tokens, and logits there are each time."""
        return self._rows

    def vocab_type(self) -> int:
        """Algorithm of the tokenizer: ``LLAMA_VOCAB_TYPE_…``; 0 where llama.cpp has no number."""
        return _KINDS.get(self._table.model, 0)

    def tokenize(
        self, text: bytes | str, add_special: bool = True, special: bool = False
    ) -> list[int]:
        """Turn text into tokens.

        Parameters
        ----------
        text : bytes or str
            UTF-8; what is none becomes U+FFFD.
        add_special : bool
            Add BOS and EOS where the model wants them.
        special : bool
            Control tokens spelled out in the text become those tokens.
        """
        whole = text if isinstance(text, str) else bytes(text).decode("utf-8", "replace")
        return self.tokenizer.encode(whole, add_special=add_special, parse_special=special)

    def token_to_piece(self, token: int, special: bool = False) -> bytes:
        """Bytes that a token stands for; none of a control token unless `special` says so."""
        known = self._known(token)
        if known >= self.tokenizer.vocab_size:
            return b""
        hidden = not special and self.tokenizer.is_control(known)
        return b"" if hidden else self.tokenizer.token_bytes(known)

    def detokenize(
        self, tokens: Sequence[int], special: bool = False, *, remove_special: bool = False
    ) -> bytes:
        """Bytes of tokens; they need not be whole characters.

        Parameters
        ----------
        special : bool
            Spell control tokens.
        remove_special : bool
            Leave out a BOS and an EOS that the tokenizer puts around texts.

        As in llama.h, a space of the first token goes where the tokenizer puts one in front of
        texts, and spaces before punctuation where the vocabulary says so.
        """
        shown, tokenizer = list(tokens), self.tokenizer
        strip = tokenizer.space_prefix
        if remove_special and tokenizer.add_bos and shown[:1] == [self.token_bos()]:
            shown, strip = shown[1:], False
        if remove_special and tokenizer.add_eos and shown[-1:] == [self.token_eos()]:
            shown = shown[:-1]
        pieces = [self.token_to_piece(token, special) for token in shown]
        if strip and pieces:
            pieces[0] = pieces[0].removeprefix(b" ")
        text = b"".join(pieces)
        if not tokenizer.cleans_spaces:
            return text
        return clean_spaces(text.decode(errors="surrogateescape")).encode(errors="surrogateescape")

    def token_get_text(self, token: int) -> str:
        """Spelling in the file, such as ``Ġthe`` or ``▁the``; padding rows have none."""
        known = self._known(token)
        return self.tokenizer.token_text(known) if known < self.tokenizer.vocab_size else ""

    def token_get_score(self, token: int) -> float:
        """Score in the file; 0 where it has none."""
        known = self._known(token)
        return self._table.scores[known] if known < len(self._table.scores) else 0.0

    def token_get_attr(self, token: int) -> int:
        """What the file says the token is: ``LLAMA_TOKEN_ATTR_…``."""
        types, known = self.tokenizer.types, self._known(token)
        return _ATTRIBUTES[TokenType(types[known])] if known < len(types) else 0

    def is_eog(self, token: int) -> bool:
        """Whether a generation is over after the token."""
        return self._known(token) in self.tokenizer.eog_ids

    def is_control(self, token: int) -> bool:
        """Whether it is a control token, which no text of a user becomes; the unknown one is not.

        Nor are rows beyond the vocabulary.
        """
        types, known = self.tokenizer.types, self._known(token)
        return known < len(types) and types[known] == TokenType.CONTROL

    def _role(self, role: str) -> int:
        return self.tokenizer.special_ids.get(role, NULL)

    def token_bos(self) -> int:
        """Token that begins a text; -1 for none, as of all that follow."""
        return self._role("bos")

    def token_eos(self) -> int:
        """Token that ends a text."""
        return self._role("eos")

    def token_eot(self) -> int:
        """Token that ends a turn."""
        return self._role("eot")

    def token_cls(self) -> int:
        """Token that a classifier's text begins with: BOS, as in llama.cpp."""
        return self.token_bos()

    def token_sep(self) -> int:
        """Token between two texts."""
        return self._role("sep")

    def token_pad(self) -> int:
        """Token that fills up."""
        return self._role("pad")

    def token_mask(self) -> int:
        """Token in the place of one that is asked for."""
        return self._role("mask")

    def token_nl(self) -> int:
        """Token of a line break.

        As in llama.cpp: of an SPM vocabulary the byte's, of a WPM one the padding, of others the
        first that a line break becomes; where there is none, the padding too.
        """
        kind = self.vocab_type()
        if kind == _BYTES_IN_BRACKETS:
            found = [self.tokenizer.token_id(text) for text in ("<0x0A>", "\n")]
            return next((each for each in found if each is not None), self.token_pad())
        if kind == _WITHOUT_LINE_BREAKS:
            return self.token_pad()
        made = self.tokenizer.encode("\n", add_special=False)
        return made[0] if made else self.token_pad()

    def token_fim(self, part: str) -> int:
        """Token of filling in the middle: ``pre``, ``suf``, ``mid``, ``pad``, ``rep``, ``sep``.

        Raises
        ------
        TokenizerError
            There is no such part.
        """
        parts = ("pre", "suf", "mid", "pad", "rep", "sep")
        if part not in parts:
            raise TokenizerError(f"token_fim: {part!r}, needs one of {', '.join(parts)}")
        return self._role(f"fim_{part}")

    def token_prefix(self) -> int:
        """Token in front of what comes before a gap."""
        return self.token_fim("pre")

    def token_middle(self) -> int:
        """Token in front of what fills a gap."""
        return self.token_fim("mid")

    def token_suffix(self) -> int:
        """Token in front of what comes behind a gap."""
        return self.token_fim("suf")

    def add_bos_token(self) -> bool:
        """Whether texts begin with BOS."""
        return self.tokenizer.add_bos

    def add_eos_token(self) -> bool:
        """Whether texts end with EOS."""
        return self.tokenizer.add_eos

    def _known(self, token: int) -> int:
        if 0 <= token < self._rows:
            return int(token)
        raise TokenizerError(f"token {token}: the vocabulary has {self._rows}, from 0")
