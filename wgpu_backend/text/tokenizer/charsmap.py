"""SentencePiece's precompiled character map: the longest rule that the text starts with, applied.

The library's own normaliser takes grapheme clusters instead, and so misses rules for what stands
inside one, such as a letter whose cluster goes on with a mark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import numpy as np

from wgpu_backend.errors import TokenizerError

_LABEL = 1 << 31 | 0xFF
_VALUE = (1 << 31) - 1


class Charsmap:
    """Rules that replace stretches of text, in a double array (Kanda, 2018, section 3).

    Parameters
    ----------
    units : list of int
        The array. A unit holds a label in bits 0 to 7, whether a rule ends there in bit 8, and an
        offset to its children in the bits from 10, to be shifted by 8 where bit 9 is set; a child
        without a label says in bits 0 to 30 where the replacement starts.
    replacements : bytes
        Texts, each with a zero behind it.
    """

    def __init__(self, units: list[int], replacements: bytes) -> None:
        self._units = units
        self._replacements = replacements
        self._inert: set[str] = set()  # characters that were met and start no rule

    def normalize(self, text: str) -> str:
        """Replace, from left to right, the longest stretch that a rule knows.

        Parameters
        ----------
        text : str
            The text, without lone surrogates.

        Returns
        -------
        str

        Raises
        ------
        TokenizerError
            When the map points outside itself.
        """
        made: list[str] = []
        place = 0
        while place < len(text):
            char = text[place]
            end, replacement = (place, None) if char in self._inert else self._rule(text, place)
            made.append(char if replacement is None else self._text_at(replacement))
            place = max(end, place + 1)
        return "".join(made)

    def _rule(self, text: str, start: int) -> tuple[int, int | None]:
        """Where the longest rule's stretch ends and its replacement starts."""
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
                f"tokenizer: precompiled_charsmap has no text that ends behind byte {start} of "
                f"{len(self._replacements)}"
            )
        return self._replacements[start:end].decode("utf-8", "replace")


def read_charsmap(metadata: Mapping[str, object]) -> Charsmap | None:
    """Read the character map of a model file, None where it has none.

    Parameters
    ----------
    metadata : Mapping
        The file's key-value pairs.

    Returns
    -------
    Charsmap or None

    Raises
    ------
    TokenizerError
        When it is no byte array or shorter than its trie.
    """
    value = metadata.get("tokenizer.ggml.precompiled_charsmap")
    if value is None:
        return None
    charsmap = np.asarray(value)
    if charsmap.dtype.kind not in "iu" or charsmap.ndim != 1:
        raise TokenizerError("tokenizer: precompiled_charsmap is no byte array, needs one")
    data = charsmap.astype(np.uint8).tobytes()
    trie_bytes = int.from_bytes(data[:4], "little")
    if trie_bytes % 4 or trie_bytes + 4 >= len(data):
        raise TokenizerError(
            f"tokenizer: precompiled_charsmap has {len(data)} bytes, its trie needs "
            f"{trie_bytes} and 5 more"
        )
    units = np.frombuffer(data, "<u4", trie_bytes // 4, 4)
    if not len(units):
        return None
    return Charsmap(cast("list[int]", units.tolist()), data[4 + trie_bytes :])
