"""A grammar as a caller gives it: data that can be compared, hashed and sent to another process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from wgpu_backend.errors import GrammarError
from wgpu_backend.text.grammar.schemas import prepared

Kind = Literal["json_schema", "gbnf", "regex", "lark"]
_KINDS = ("json_schema", "gbnf", "regex", "lark")
MOST_BYTES = 1 << 19
MOST_DEPTH = 60  # llguidance reads JSON 127 deep, and a schema's levels take two each
# As llama.cpp has it: more would let a model that is in doubt write white space without end.
_WHITE_SPACE = r"( |\n[ \t]{0,20})?"


@dataclass(frozen=True, slots=True)
class Grammar:
    """What an answer has to be.

    Parameters
    ----------
    kind : str
        ``json_schema``, ``gbnf`` (llama.cpp's), ``regex`` (Rust's, of the whole answer) or ``lark``
        (llguidance's).
    text : str
        At most 512 KiB.

    Raises
    ------
    GrammarError
        There is no such kind, or the text is too large, empty, or nested too deep.
    """

    kind: Kind
    text: str

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise GrammarError(f"grammar: kind {self.kind!r}, needs one of {', '.join(_KINDS)}")
        if not isinstance(cast("object", self.text), str):
            found = type(self.text).__name__
            raise GrammarError(f"grammar: a text is needed, got {found}")
        size = len(self.text.encode("utf-8", "replace"))
        if size > MOST_BYTES:
            raise GrammarError(f"grammar: {size} bytes, needs at most {MOST_BYTES}")
        if self.kind == "json_schema":
            _require_schema(self.text)
        elif self.kind != "regex" and not self.text.strip():
            raise GrammarError("grammar: the text is empty, needs at least one rule")

    @classmethod
    def json(cls) -> Grammar:
        """Any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def json_schema(cls, schema: Mapping[str, object] | str | bool) -> Grammar:
        """JSON that a schema describes; properties come in the schema's order.

        Objects have no others but those that it names, unless it speaks of `additionalProperties`.

        Parameters
        ----------
        schema : mapping, bool or str
            A text is read as JSON.

        Raises
        ------
        GrammarError
            It is no schema.
        """
        if isinstance(schema, str):
            return cls("json_schema", schema)
        if not isinstance(cast("object", schema), Mapping | bool):
            found = type(schema).__name__
            raise GrammarError(f"JSON schema: needs an object, true or false, got {found}")
        try:
            return cls("json_schema", json.dumps(schema, ensure_ascii=False, allow_nan=False))
        except (TypeError, ValueError, RecursionError) as error:
            raise GrammarError(f"JSON schema: {_one_line(error)}") from None

    @classmethod
    def gbnf(cls, text: str) -> Grammar:
        """Grammar in llama.cpp's notation, which begins with ``root``."""
        return cls("gbnf", text)

    @classmethod
    def regex(cls, text: str) -> Grammar:
        """Texts that an expression matches from their beginning to their end."""
        return cls("regex", text)

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Grammar in llguidance's dialect of Lark, which begins with ``start``."""
        return cls("lark", text)

    @classmethod
    def of_format(cls, form: object) -> Grammar | None:
        """Grammar of Ollama's ``format``: ``"json"``, or a schema as a mapping or as a text.

        Returns
        -------
        Grammar or None
            None for None and an empty text, which ask for nothing.

        Raises
        ------
        GrammarError
            It is another thing.
        """
        if form is None or form == "":
            return None
        if form == "json":
            return cls.json()
        if isinstance(form, Mapping):
            return cls.json_schema(cast("Mapping[str, object]", form))
        if isinstance(form, str) and form.lstrip().startswith("{"):
            return cls.json_schema(form)
        raise GrammarError(f"format: {_short(form)}, needs 'json' or a JSON schema")

    def source(self) -> str:
        """Text for the compiler; of a schema one that says what stands between its values."""
        if self.kind != "json_schema":
            return self.text
        schema = json.loads(self.text)
        if isinstance(schema, bool):
            return self.text
        how = {"whitespace_pattern": _WHITE_SPACE, "coerce_one_of": True}
        return json.dumps({**prepared(schema), "x-guidance": how})


def _require_schema(text: str) -> None:
    depth = deepest = 0
    for char in text:
        depth += (char in "{[") - (char in "}]")
        deepest = max(deepest, depth)
    if deepest > MOST_DEPTH:
        raise GrammarError(f"JSON schema: nested {deepest} deep, needs at most {MOST_DEPTH}")
    try:
        schema: object = json.loads(text)
    except ValueError as error:
        raise GrammarError(f"JSON schema: no JSON: {_one_line(error)}") from None
    if not isinstance(schema, dict | bool):
        raise GrammarError(f"JSON schema: {_short(schema)}, needs an object, true or false")


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
