"""A grammar as data that can be compared, hashed and sent to another process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from wgpu_backend.errors import GrammarError
from wgpu_backend.text.grammar.schemas import prepare_schema

Kind = Literal["json_schema", "gbnf", "regex", "lark"]
_KINDS = ("json_schema", "gbnf", "regex", "lark")
MOST_BYTES = 1 << 19
# llguidance reads JSON up to 127 levels deep, and each level of a schema takes two.
MOST_DEPTH = 60
# llama.cpp's limit: with more, an uncertain model could write white space without end.
_WHITE_SPACE = r"( |\n[ \t]{0,20})?"


@dataclass(frozen=True, slots=True)
class Grammar:
    """A constraint on an answer.

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
        The kind is unknown, or the text is too large, empty or nested too deep.
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
        """Return the grammar of any JSON object."""
        return cls.json_schema({"type": "object"})

    @classmethod
    def json_schema(cls, schema: Mapping[str, object] | str | bool) -> Grammar:
        """Return the grammar of JSON that a schema describes, properties in its order.

        Objects have only the properties that the schema names, unless it sets
        `additionalProperties`.

        Parameters
        ----------
        schema : mapping, bool or str
            A string is parsed as JSON.

        Raises
        ------
        GrammarError
            It is not a schema.
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
        """Return a grammar in llama.cpp's notation, which begins with ``root``."""
        return cls("gbnf", text)

    @classmethod
    def regex(cls, text: str) -> Grammar:
        """Return the grammar of texts that an expression matches as a whole."""
        return cls("regex", text)

    @classmethod
    def lark(cls, text: str) -> Grammar:
        """Return a grammar in llguidance's dialect of Lark, which begins with ``start``."""
        return cls("lark", text)

    @classmethod
    def of_format(cls, form: object) -> Grammar | None:
        """Return the grammar of Ollama's ``format``: ``"json"``, or a schema (mapping or string).

        Returns
        -------
        Grammar or None
            None for None and an empty string, which ask for no constraint.

        Raises
        ------
        GrammarError
            The format is none of these.
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
        """Return the text for the compiler, with a schema's rule for white space added."""
        if self.kind != "json_schema":
            return self.text
        schema = json.loads(self.text)
        if isinstance(schema, bool):
            return self.text
        how = {"whitespace_pattern": _WHITE_SPACE, "coerce_one_of": True}
        return json.dumps({**prepare_schema(schema), "x-guidance": how})


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
