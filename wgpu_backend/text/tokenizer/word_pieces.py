"""WordPiece as llama.cpp has it: what becomes of characters, and the longest match first."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from wgpu_backend.text.tokenizer.categories import WHITE_SPACE, kind_of
from wgpu_backend.text.tokenizer.pieces import SPACE

# Ideographs are words of their own. Extension E starts 256 characters late, as in the program
# that vocabularies were made with.
_IDEOGRAPHS = (
    range(0x4E00, 0xA000), range(0x3400, 0x4DC0), range(0x20000, 0x2A6E0), range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820), range(0x2B920, 0x2CEB0), range(0xF900, 0xFB00),
    range(0x2F800, 0x2FA20),
)  # fmt: skip


class WordPieces:
    """Encodes words by the longest pieces that they start with.

    Parameters
    ----------
    ids : Mapping of str to int
        Ids of the pieces as the file spells them: ``▁`` marks starts of words.
    unknown : int
        Id of a word that no pieces make up.
    lowercase : bool
        Capitals become small letters.
    strip_accents : bool
        Letters lose their marks.
    """

    def __init__(
        self, ids: Mapping[str, int], unknown: int, *, lowercase: bool, strip_accents: bool
    ) -> None:
        self._ids = ids
        self._unknown = unknown
        self._longest = max(map(len, ids), default=1)
        self._characters = _Characters(lowercase=lowercase, strip_accents=strip_accents)

    def encode(self, text: str, first: bool) -> list[int]:
        """Encode a stretch of text.

        Parameters
        ----------
        text : str
            The text, without lone surrogates.
        first : bool
            Whether nothing or a special token stands before it; makes no difference here.

        Returns
        -------
        list of int
        """
        del first
        words = text.translate(self._characters).split(" ")
        return [token for word in words if word for token in self._pieces(SPACE + word)]

    def _pieces(self, word: str) -> list[int]:
        """Ids of a word's pieces; the loop is linear in its length, however long it is."""
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
                return [self._unknown]
        return found


class _Characters(dict[int, str]):
    """What each character becomes, worked out when it is first met; words are parted by spaces."""

    def __init__(self, *, lowercase: bool, strip_accents: bool) -> None:
        super().__init__()
        self._lowercase = lowercase
        self._strip_accents = strip_accents

    def __missing__(self, code: int) -> str:
        made = self[code] = self._made_of(chr(code))
        return made

    def _made_of(self, char: str) -> str:
        if self._strip_accents and kind_of(ord(char)):
            char = unicodedata.normalize("NFD", char)[0]
        kind = kind_of(ord(char))
        if char in WHITE_SPACE:
            return " "
        if char in "\0\ufffd" or kind == "C" or (kind == "M" and self._strip_accents):
            return ""
        alone = kind == "P" or (kind == "S" and char < "\x7f")
        alone = alone or any(ord(char) in block for block in _IDEOGRAPHS)
        if self._lowercase and kind:
            char = char.lower()[0]
        return f" {char} " if alone else char
