"""Decoding of tokens: the bytes of each token, and streams that never split a character."""

from __future__ import annotations

import codecs
import re

from wgpu_backend.errors import TokenizerError
from wgpu_backend.text.tokenizer.vocabulary import TokenType

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_VERBATIM = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED)
SPACE = "▁"
"""The space in SentencePiece vocabularies."""


def _gpt2_alphabet() -> dict[str, int]:
    """Map GPT-2's printable stand-ins to the bytes that they mean."""
    # Without space, control characters and the soft hyphen 0xAD, as in GPT-2's code.
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(256 + index): byte for index, byte in enumerate(others)
    }


ALPHABET = _gpt2_alphabet()
"""GPT-2's printable stand-ins, and the bytes that they mean."""


class Pieces:
    """The bytes that each token stands for.

    Parameters
    ----------
    texts : list of str
        Texts of the tokens as the file spells them.
    types : list of int
        Their repaired types.
    byte_level : bool
        Whether texts are bytes in GPT-2's alphabet instead of plain text with ``▁`` for a space.
    """

    def __init__(self, texts: list[str], types: list[int], *, byte_level: bool) -> None:
        self._texts = texts
        self._types = types
        self._byte_level = byte_level
        for index, kind in enumerate(types):
            if kind == TokenType.BYTE and not _BYTE_TOKEN.fullmatch(texts[index]):
                raise TokenizerError(
                    f"tokenizer: byte token {index} is {texts[index]!r}, needs the form <0x0A>"
                )

    def __len__(self) -> int:
        return len(self._texts)

    def __getitem__(self, token: int) -> bytes:
        text, kind = self._texts[token], self._types[token]
        if kind in _VERBATIM:
            return text.encode()
        if kind == TokenType.BYTE:
            return bytes([int(text[3:5], 16)])
        if kind != TokenType.NORMAL:
            return b""
        if self._byte_level:
            return b"".join(
                bytes([ALPHABET[char]]) if char in ALPHABET else char.encode() for char in text
            )
        return text.replace(SPACE, " ").encode()


class Detokenizer:
    """A decoder of a stream of tokens, which holds back bytes of unfinished characters.

    The joined results of `push` and `flush` are the same however the tokens arrive. Bytes that are
    not valid UTF-8 become U+FFFD.

    Parameters
    ----------
    pieces : Pieces
        Bytes of the tokens.
    hidden : frozenset of int
        Tokens that have no text here.
    """

    def __init__(self, pieces: Pieces, hidden: frozenset[int]) -> None:
        self._pieces = pieces
        self._hidden = hidden
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token: int) -> str:
        """Take one token and return the text that is complete with it, possibly empty.

        Rows of an embedding after the last token, as in padded vocabularies, have no text.

        Parameters
        ----------
        token : int
            Id of a token.
        """
        if token in self._hidden or token >= len(self._pieces):
            return ""
        return self._decoder.decode(self._pieces[token])

    def flush(self) -> str:
        """End the stream and return the remaining text, with U+FFFD for an unfinished character."""
        return self._decoder.decode(b"", final=True)


def clean_spaces(text: str) -> str:
    """Remove the spaces that word-wise vocabularies leave before punctuation, as llama.cpp does.

    Parameters
    ----------
    text : str
        Decoded text.
    """
    text = re.sub(r" ([?!.,])", r"\1", text)
    text = text.replace(" ' ", "'")
    return re.sub(r" ('(?:[sm]|re|ve))", r"\1", text)
