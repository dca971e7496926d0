"""Fields of requests: their checks, and their part of the OpenAPI document."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wgpu_backend.server.core.request import RequestError

_WORDS = {
    str: "a string", bool: "true or false", int: "a whole number", float: "a number",
    list: "a list", dict: "an object",
}  # fmt: skip
_TYPES = {
    str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object",
}  # fmt: skip

# Seeds are unsigned numbers of 64 bits; no other field needs more.
_MOST_WHOLE = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a JSON object; null is as if it were not there.

    Parameters
    ----------
    kinds : tuple of type
        What it may be, as Python reads JSON; a float may be written as a whole number.
    least, most : float or None
        Of a number.
    among : tuple of str
        Texts that it may be; empty for any.
    is_file : bool
        Whether it is base64 that a form of several parts brings as a file.
    refused : str
        Why it may have no value but an empty one; empty where it may.
    empty : bool
        Whether a text that is required may be empty.
    """

    kinds: tuple[type, ...]
    about: str = ""
    required: bool = False
    least: float | None = None
    most: float | None = None
    among: tuple[str, ...] = ()
    is_file: bool = False
    refused: str = ""
    empty: bool = False

    def check(self, name: str, value: object) -> None:
        """Refuse a value that the field may not have.

        Raises
        ------
        RequestError
        """
        require_kind(name, value, self.kinds)
        if self.refused and value:
            raise RequestError(400, f"{name} is refused: {self.refused}")
        if isinstance(value, str) and self.among and value not in self.among:
            needed = ", ".join(self.among)
            raise RequestError(400, f"{name}: {value[:40]!r}, needs one of {needed}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._require_within(name, value)

    def _require_within(self, name: str, value: float) -> None:
        least = -math.inf if self.least is None else self.least
        most = math.inf if self.most is None else self.most
        if not least <= value <= most:
            raise RequestError(400, f"{name}: {str(value)[:40]}, needs {self._describe_range()}")

    def _describe_range(self) -> str:
        if self.most is None:
            return f"at least {self.least:g}"
        return (
            f"at most {self.most:g}" if self.least is None else f"{self.least:g} to {self.most:g}"
        )

    def schema(self) -> dict[str, Any]:
        """Return the JSON Schema of the field."""
        types = [_TYPES[kind] for kind in self.kinds]
        # null is as if the field was left out.
        found: dict[str, Any] = {"type": types if self.required else [*types, "null"]}
        if self.about:
            found["description"] = self.about
        if self.required and str in self.kinds and not self.empty:
            found["minLength"] = 1
        if self.among:
            found["enum"] = [*self.among] if self.required else [*self.among, None]
        bounds = {"minimum": self.least, "maximum": self.most}
        return found | {name: bound for name, bound in bounds.items() if bound is not None}


Form = Mapping[str, Field]
"""Fields of a request by name."""


def require_kind(name: str, value: object, kinds: tuple[type, ...]) -> None:
    """Refuse a value of another kind, and numbers that are not finite.

    Raises
    ------
    RequestError
    """
    # JSON does not distinguish 1 from 1.0.
    allowed = (*kinds, int) if float in kinds else kinds
    # In Python, true and false are whole numbers.
    wrong = isinstance(value, bool) and bool not in kinds
    if wrong or not isinstance(value, allowed):
        needed = " or ".join(_WORDS[kind] for kind in kinds)
        raise RequestError(400, f"{name}: {str(value)[:60]!r}, needs {needed}")
    if isinstance(value, float) and not math.isfinite(value):
        raise RequestError(400, f"{name}: {value}, needs a finite number")
    if isinstance(value, int) and not -_MOST_WHOLE <= value <= _MOST_WHOLE:
        raise RequestError(400, f"{name}: has more than 64 bits")


def make_schema(form: Form, *, closed: bool) -> dict[str, Any]:
    """Return the JSON Schema of a form; with `closed`, other fields are refused."""
    found: dict[str, Any] = {
        "type": "object",
        "properties": {name: field.schema() for name, field in form.items()},
        "additionalProperties": not closed,
    }
    required = [name for name, field in form.items() if field.required]
    return {**found, "required": required} if required else found


TEXT, SWITCH, WHOLE = Field((str,)), Field((bool,)), Field((int,))
NUMBER, LIST, OBJECT = Field((float,)), Field((list,)), Field((dict,))
TEXTS = Field((str, list), "a text, or a list of them")
ANYTHING = Field((str, bool, float, list, dict))
MODEL = Field((str,), "name of a model", required=True)
MODEL_OR_OWN = Field((str,), "name of a model; default that of `serve --model`")
STREAM = Field((bool,), "stream the answer while it is generated")
MESSAGES = Field((list,), "the conversation, the oldest message first", required=True)
TOOLS = Field((list,), "functions that the model may call")
STOP = Field((str, list), "texts that end the answer, and are not returned")
CHOICES = Field((int,), "number of answers to one prompt", least=1, most=128)
LOGPROBS = Field(
    (int,), "number of most likely tokens to return at each position", least=0, most=20
)
PROGRESS = Field((bool,), "report in a stream how much of the prompt was read")
SLOT = Field((int,), "slot whose tokens `/slots` can save; -1 for none", least=-1, most=31)
TIMINGS = Field((bool,), "report timings with each piece of a stream")
MOST = Field((int,), "most tokens of the answer")
DURATION = Field((str, float), "how long the model stays loaded, such as 5m; negative for no limit")


def ignore_fields(*names: str) -> Form:
    """Describe fields that clients send by default, and that have no effect here."""
    return dict.fromkeys(names, Field(ANYTHING.kinds, "accepted, without effect"))


def refuse_fields(why: str, *names: str) -> Form:
    """Describe official fields of features that are not supported; empty values are accepted."""
    field = Field(ANYTHING.kinds, f"is refused: {why}", refused=why)
    return dict.fromkeys(names, field)


def parse_slot(given: int | None) -> int | None:
    """Return the slot that a request names."""
    return None if given is None or given < 0 else given
