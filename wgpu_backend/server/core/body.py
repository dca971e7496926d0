"""Bodies of requests: read once, each field checked by name and type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from starlette.requests import Request

from wgpu_backend.server.core.multipart import is_multipart, read_multipart
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.request_log import ignore, note_body
from wgpu_backend.server.core.schema import Form, require_kind
from wgpu_backend.text.output_parsers.calls import replace_surrogates

# Templates and schemas recurse into values, whose depth Python's stack limits.
_MAX_DEPTH = 100
# An escape of half a surrogate pair, or the half itself.
_HALF = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


class Fields:
    """The fields of a JSON object, read by name; unknown fields are ignored.

    Parameters
    ----------
    form : mapping of str to Field or None
        All known fields; None to accept any.
    where : str
        Prefix of names in messages.
    """

    def __init__(
        self, values: Mapping[str, Any], form: Form | None = None, where: str = ""
    ) -> None:
        self._values = values
        self._where = where
        if form is not None:
            self._check(form)

    def _check(self, form: Form) -> None:
        for name in [name for name in self._values if name not in form]:
            ignore(self._where + name, "no such field")
        self._values = {name: value for name, value in self._values.items() if name in form}
        for name, value in self._values.items():
            if value is not None:
                form[name].check(self._where + name, value)
        for name, field in form.items():
            value = self._values.get(name)
            if field.required and (value is None or (value == "" and not field.empty)):
                raise RequestError(400, f"{self._where}{name} is required")

    def get(self, name: str, *kinds: type) -> Any:  # noqa: ANN401
        """Return the value of a field; None if it is missing.

        Raises
        ------
        RequestError
            The value is of another kind.
        """
        value = self._values.get(name)
        if value is None:
            return None
        require_kind(self._where + name, value, kinds)
        return value

    def has(self, name: str) -> bool:
        """Return whether a field is given, and not null."""
        return self._values.get(name) is not None

    def text(self, name: str, default: str = "") -> str:
        """Return a text field, or the default."""
        return self.get(name, str) or default

    def require(self, name: str) -> str:
        """Return a required text field."""
        found = self.text(name)
        if not found:
            raise RequestError(400, f"{self._where}{name} is required")
        return found

    def switch(self, name: str, *, default: bool) -> bool:
        """Return a boolean field, or the default."""
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
        """Return a field that is a string or a list of strings."""
        found = self.get(name, str, list)
        items = [found] if isinstance(found, str) else cast("list[object]", found or [])
        for number, item in enumerate(items):
            if not isinstance(item, str):
                raise RequestError(400, f"{self._where}{name}[{number}]: needs a string")
        return cast("list[str]", items)

    def refuse(self, name: str, why: str) -> None:
        """Refuse a field that has a value.

        Raises
        ------
        RequestError
        """
        if self._values.get(name):
            raise RequestError(400, f"{self._where}{name}: {why}")


async def read_fields(request: Request, form: Form | None = None) -> Fields:
    """Read the fields of a request's body.

    Raises
    ------
    RequestError
        The body is neither a JSON object nor a form with files, or a field has a wrong value.
    """
    if form is not None and is_multipart(request, form):
        return _note_fields(await read_multipart(request, form), form)
    value = await _read_json(request)
    if not isinstance(value, dict):
        raise RequestError(400, "body: needs a JSON object")
    _require_flat(cast("object", value))
    return _note_fields(cast("dict[str, Any]", value), form)


async def read_objects(request: Request, form: Form) -> list[Fields]:
    """Read a body that is a list of objects.

    Raises
    ------
    RequestError
        The body is not such a list, or a field has a wrong value.
    """
    value = await _read_json(request)
    if not isinstance(value, list):
        raise RequestError(400, "body: needs a list of JSON objects")
    _require_flat(cast("object", value))
    found: list[Fields] = []
    for number, item in enumerate(cast("list[object]", value)):
        if not isinstance(item, dict):
            raise RequestError(400, f"body[{number}]: needs an object")
        found.append(Fields(cast("dict[str, Any]", item), form, f"[{number}]."))
    return found


async def _read_json(request: Request) -> object:
    body = await request.body()
    if not body.strip():
        raise RequestError(400, "missing request body")
    try:
        return _decode(body)
    except ValueError as error:
        raise RequestError(400, f"body: not JSON: {error}") from None
    except RecursionError:
        raise RequestError(400, f"body: JSON is nested more than {_MAX_DEPTH} deep") from None


def _decode(body: bytes) -> object:
    """Decode a body; half of a surrogate pair in it becomes U+FFFD, as in Go.

    Raises
    ------
    ValueError
        It is not JSON, or has a NaN or a number that does not fit into a double.
    """
    # RFC 4627 also allows UTF-16 and UTF-32. Halves of surrogate pairs are replaced below.
    text = body.decode(json.detect_encoding(body), "surrogatepass")
    value: object = json.loads(text, parse_constant=_reject_constant, parse_float=_parse_double)
    return replace_surrogates(value) if _HALF.search(text) else value


def _reject_constant(text: str) -> None:
    raise ValueError(f"{text[:40]} is not a JSON number")


def _parse_double(text: str) -> float:
    value = float(text)
    if abs(value) == float("inf"):
        raise ValueError(f"{text[:40]} is too large for a double")
    return value


def _note_fields(values: Mapping[str, Any], form: Form | None) -> Fields:
    note_body(values)
    return Fields(values, form)


def _require_flat(value: object) -> None:
    """Refuse values that are nested too deep for templates and schemas."""
    # Level by level: recursion would overflow on the values that this refuses.
    level = [value]
    for _ in range(_MAX_DEPTH):
        level = [item for each in level for item in _list_children(each)]
        if not level:
            return
    raise RequestError(400, f"body: JSON is nested more than {_MAX_DEPTH} deep")


def _list_children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()
