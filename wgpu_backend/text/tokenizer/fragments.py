"""Splitting of text at the tokens that are matched before the vocabulary's algorithm runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

Fragment = str | int
"""A stretch of text, or the id of a token found in it."""

_WHITE_SPACE = " \t\n\v\f\r"
_HEAD_CHARS = 4


class Splitter:
    """A finder of given tokens in text: longer tokens first, wherever they are.

    Parameters
    ----------
    tokens : iterable of (str, int)
        Texts and ids, the longest first.
    lstrip, rstrip : frozenset of int
        Ids that absorb the white space before and after them.
    """

    def __init__(
        self,
        tokens: Iterable[tuple[str, int]],
        lstrip: frozenset[int] = frozenset(),
        rstrip: frozenset[int] = frozenset(),
    ) -> None:
        self._lstrip = lstrip
        self._rstrip = rstrip
        # Vocabularies have thousands of tokens and a text contains a handful: the first characters
        # exclude most of them.
        self._by_head: dict[str, list[tuple[int, str, int]]] = {}
        for rank, (text, token) in enumerate(tokens):
            self._by_head.setdefault(text[:_HEAD_CHARS], []).append((rank, text, token))

    def split(self, text: str) -> list[Fragment]:
        """Split a text into stretches without any of the tokens, and the tokens between them."""
        fragments: list[Fragment] = [text] if text else []
        for token_text, token in self.find_present(text):
            fragments = [
                piece for fragment in fragments for piece in self._cut(fragment, token_text, token)
            ]
        return fragments

    def find_present(self, text: str) -> list[tuple[str, int]]:
        """List the tokens whose text occurs in `text`, the longest first."""
        found = sorted(
            entry
            for head, entries in self._by_head.items()
            if head in text
            for entry in entries
            if entry[1] in text
        )
        return [(token_text, token) for _, token_text, token in found]

    def _cut(self, fragment: Fragment, token_text: str, token: int) -> Iterator[Fragment]:
        if isinstance(fragment, int) or token_text not in fragment:
            yield fragment
            return
        first, *rest = fragment.split(token_text)
        yield from self._trim(first, before=token if rest else None, after=None)
        for index, part in enumerate(rest):
            yield token
            last = index == len(rest) - 1
            yield from self._trim(part, before=None if last else token, after=token)

    def _trim(self, part: str, before: int | None, after: int | None) -> Iterator[str]:
        if after in self._rstrip:
            part = part.lstrip(_WHITE_SPACE)
        if before in self._lstrip:
            part = part.rstrip(_WHITE_SPACE)
        if part:
            yield part
