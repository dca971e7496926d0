"""Bodies of requests: read once, each field checked by name and type."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from starlette.requests import Request

from wgpu_backend.server.wanted import RequestError

_MAX_DEPTH = 100
_KINDS = {
    str: "a text", bool: "true or false", int: "a whole number", float: "a number", list: "a list",
    dict: "an object",
}  # fmt: skip


class Fields:
    """Fields of a JSON object, asked for by name; those that nobody knows are refused.

    Parameters
    ----------
    values : mapping
    known : sequence of str
        All names that there may be; empty for any.
    where : str
        What stands before names in messages.
    """

    def __init__(
        self, values: Mapping[str, Any], known: Sequence[str] = (), where: str = ""
    ) -> None:
        self._values = values
        self._where = where
        unknown = [name for name in values if known and name not in known]
        if unknown:
            raise RequestError(400, f"{where}{unknown[0][:60]}: no such field")

    def get(self, name: str, *kinds: type) -> Any:  # noqa: ANN401
        """Value of a field, None where it is not there.

        Raises
        ------
        RequestError
            It is of another kind.
        """
        value = self._values.get(name)
        if value is None:
            return None
        allowed = (*kinds, int) if float in kinds else kinds
        wrong = isinstance(value, bool) and bool not in kinds
        if wrong or not isinstance(value, allowed):
            needed = " or ".join(_KINDS[kind] for kind in kinds)
            raise RequestError(400, f"{self._where}{name}: {str(value)[:60]!r}, needs {needed}")
        if isinstance(value, float) and not math.isfinite(value):
            raise RequestError(400, f"{self._where}{name}: {value}, needs a finite number")
        return cast("Any", value)

    def text(self, name: str, default: str = "") -> str:
        """Text of a field."""
        return self.get(name, str) or default

    def required(self, name: str) -> str:
        """Text of a field that has to be there."""
        found = self.text(name)
        if not found:
            raise RequestError(400, f"{self._where}{name} is required")
        return found

    def switch(self, name: str, *, default: bool) -> bool:
        """Whether a field is true."""
        found = self.get(name, bool)
        return default if found is None else found

    def objects(self, name: str) -> list[dict[str, Any]]:
        """List of objects."""
        found = cast("list[object]", self.get(name, list) or [])
        for number, item in enumerate(found):
            if not isinstance(item, dict):
                raise RequestError(400, f"{self._where}{name}[{number}]: needs an object")
        return cast("list[dict[str, Any]]", found)

    def texts(self, name: str) -> list[str]:
        """Text, or list of texts."""
        found = self.get(name, str, list)
        items = [found] if isinstance(found, str) else cast("list[object]", found or [])
        for number, item in enumerate(items):
            if not isinstance(item, str):
                raise RequestError(400, f"{self._where}{name}[{number}]: needs a text")
        return cast("list[str]", items)

    def refuse(self, name: str, why: str) -> None:
        """Refuse a field that has a value.

        Raises
        ------
        RequestError
        """
        if self._values.get(name):
            raise RequestError(400, f"{self._where}{name}: {why}")


async def fields_of(request: Request, known: Sequence[str] = ()) -> Fields:
    """Fields of a request's body.

    Raises
    ------
    RequestError
        It is no JSON object, or has a field that is not known.
    """
    body = await request.body()
    depth = deepest = 0
    for byte in body:
        depth += (byte in b"{[") - (byte in b"}]")
        deepest = max(deepest, depth)
    if deepest > _MAX_DEPTH:
        raise RequestError(400, f"body: JSON nested {deepest} deep, needs at most {_MAX_DEPTH}")
    try:
        value: object = json.loads(body)
    except ValueError as error:
        raise RequestError(400, f"body: no JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(400, "body: needs a JSON object")
    return Fields(cast("dict[str, Any]", value), known)
