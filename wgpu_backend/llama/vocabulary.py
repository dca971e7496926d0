"""Questions about a model's tokens, as llama.h asks them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property

from wgpu_backend.errors import TokenizerError
from wgpu_backend.grammar import GrammarVocabulary
from wgpu_backend.tokenizer import Tokenizer
from wgpu_backend.tokenizer.vocabulary import TokenType, Vocabulary, read_vocabulary

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
_KINDS = {"llama": 1, "gpt2": 2, "bert": 3, "t5": 4, "rwkv": 5, "gemma4": 1}


class Tokens:
    """Tokens of a model: base class of `Model`.

    Parameters
    ----------
    metadata : mapping
        The file's key-value pairs.
    tokenizer : Tokenizer
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

    def detokenize(self, tokens: Sequence[int], special: bool = False) -> bytes:
        """Bytes of tokens; they need not be whole characters.

        The space that a tokenizer puts in front of a text goes, where BOS says that it begins here.
        """
        text = b"".join(self.token_to_piece(token, special) for token in tokens)
        begins = len(tokens) > 0 and tokens[0] == self.token_bos()
        return text[1:] if begins and text[:1] == b" " else text

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
        known = self._known(token)
        if known >= len(self._table.types):
            return 0
        return _ATTRIBUTES[TokenType(self._table.types[known])]

    def is_eog(self, token: int) -> bool:
        """Whether a generation is over after the token."""
        return self._known(token) in self.tokenizer.eog_ids

    def is_control(self, token: int) -> bool:
        """Whether it is a control token, which no text of a user becomes."""
        return self.tokenizer.is_control(self._known(token))

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
        """Token of a line break: the one that it becomes, the last where several."""
        found = self.tokenizer.encode("\n", add_special=False)
        return found[-1] if found else NULL

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
