"""Responses that later requests may continue by their id."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from wgpu_backend.server.core.request import RequestError

Item = dict[str, Any]
# Characters. A conversation of 20,000 tokens has some 100,000, so hundreds fit.
MOST = 1 << 25
_AGAIN = "send the conversation itself"


@dataclass(frozen=True, slots=True)
class _Kept:
    """A response: its conversation with the answer, the size of both, and the answer's ids."""

    items: list[Item]
    size: int
    ids: list[str]


class KeptResponses:
    """Conversations of responses by id, in memory; the oldest are dropped.

    Parameters
    ----------
    most : int
        Characters that are kept.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most = most
        self._size = 0
        self._kept: dict[str, _Kept] = {}
        self._items: dict[str, Item] = {}

    def keep(self, response: str, before: Sequence[Item], output: Sequence[Item]) -> None:
        """Keep the conversation of a response, `before` and its `output`, if it fits."""
        items = [*before, *output]
        size = _measure(items)
        if size > self._most:
            return
        while self._size + size > self._most:
            self._drop_oldest()
        answers = {item["id"]: item for item in output}
        self._kept[response] = _Kept(items, size, [*answers])
        self._items |= answers
        self._size += size

    def conversation(self, response: str) -> list[Item]:
        """Return the items of a conversation up to the end of a response.

        Raises
        ------
        RequestError
            The response is not kept.
        """
        if response not in self._kept:
            raise RequestError(
                400, f"previous_response_id: {response[:60]!r} not found; {_AGAIN}",
                {"code": "previous_response_not_found", "param": "previous_response_id"},
            )  # fmt: skip
        return self._kept[response].items

    def resolve(self, item: Item) -> Item:
        """Return the item of an answer that an `item_reference` names; other items as they are.

        Raises
        ------
        RequestError
            The item is not kept.
        """
        if item.get("type") != "item_reference":
            return item
        name: object = item.get("id")
        if not isinstance(name, str) or name not in self._items:
            raise RequestError(400, f"input: item_reference: {name!s:.60} not found; {_AGAIN}")
        return self._items[name]

    def _drop_oldest(self) -> None:
        oldest = self._kept.pop(next(iter(self._kept)))
        self._size -= oldest.size
        for name in oldest.ids:
            del self._items[name]


def _measure(value: object) -> int:
    """Return about how many characters a JSON value has."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(_measure(each) for pair in cast("Item", value).items() for each in pair)
    if isinstance(value, list):
        return sum(map(_measure, cast("list[object]", value)))
    return 8
