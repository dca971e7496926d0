"""Structured answers: what the fields of each API ask for, as grammars and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from wgpu_backend.errors import GrammarError
from wgpu_backend.grammar import Grammar
from wgpu_backend.server.wanted import RequestError

Tools = Sequence[Mapping[str, Any]]


def format_grammar(form: object) -> Grammar | None:
    """Grammar of Ollama's ``format``: ``json`` or a schema.

    Raises
    ------
    GrammarError
        It is neither.
    """
    return Grammar.of_format(form)


def own_grammar(gbnf: str | None, schema: Mapping[str, Any] | None) -> Grammar | None:
    """Grammar of llama-server's ``grammar`` or ``json_schema``.

    Raises
    ------
    RequestError
        Both are given.
    GrammarError
        The schema is none.
    """
    if gbnf and schema is not None:
        raise RequestError(400, "grammar and json_schema: needs one of the two")
    if gbnf:
        return Grammar.gbnf(gbnf)
    return None if schema is None else _schema(schema, "json_schema")


def response_grammar(form: Mapping[str, Any] | None, where: str) -> Grammar | None:
    """Grammar of OpenAI's ``response_format``, or of ``text.format`` of a response.

    Parameters
    ----------
    form : mapping or None
        With ``type``: ``text``, ``json_object``, or ``json_schema`` with ``schema`` in it or in its
        ``json_schema``.
    where : str
        Its name, for messages.

    Raises
    ------
    RequestError
        It is of another type, or a schema is missing.
    GrammarError
        The schema is none.
    """
    kind = (form or {}).get("type", "text")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return _json_object(form, where)
    if kind != "json_schema":
        needed = "text, json_object or json_schema"
        raise RequestError(400, f"{where}.type: {str(kind)[:40]!r}, needs {needed}")
    inner: object = form.get("json_schema", form)
    schema = cast("Mapping[str, Any]", inner).get("schema") if isinstance(inner, Mapping) else None
    if schema is None:
        raise RequestError(400, f"{where}: json_schema needs a schema")
    return _schema(schema, where)


def _json_object(form: Mapping[str, Any], where: str) -> Grammar:
    """Any object; llama-server takes a schema here, too."""
    schema = form.get("schema")
    return Grammar.json() if schema is None else _schema(schema, where)


def _schema(schema: object, where: str) -> Grammar:
    try:
        return Grammar.json_schema(cast("Mapping[str, Any]", schema))
    except GrammarError as error:
        raise GrammarError(f"{where}: {error}") from None


def chosen_tools(choice: object, tools: Tools) -> tuple[Tools, Tools]:
    """What a ``tool_choice`` leaves of tools, and those of which one has to be called.

    Parameters
    ----------
    choice : str, mapping or None
        ``auto``, ``none``, ``required`` or ``any``; or a function by its name: OpenAI's
        ``{"type": "function", "function": {"name": …}}``, the responses' and Anthropic's with
        ``name`` beside ``type``; Anthropic's ``{"type": "any"}``.
    tools : sequence of mapping
        As OpenAI describes them.

    Raises
    ------
    RequestError
        It is another thing, or there is no such tool.
    """
    none: Mapping[str, Any] = {}
    given = cast("Mapping[str, Any]", choice) if isinstance(choice, Mapping) else none
    kind = cast("object", given.get("type") if given else choice)
    if kind in (None, "auto"):
        return tools, ()
    if kind == "none":
        return (), ()
    if kind in ("required", "any"):
        if not tools:
            raise RequestError(400, f"tool_choice: {kind}, and there are no tools")
        return tools, tools
    name: object = cast("Mapping[str, Any]", given.get("function") or given).get("name")
    if kind not in ("function", "tool") or not isinstance(name, str):
        needed = "auto, none, required or a function by its name"
        raise RequestError(
            400, f"tool_choice: {str(cast('object', choice))[:60]!r}, needs {needed}"
        )
    named = [tool for tool in tools if (tool.get("function") or tool).get("name") == name]
    if not named:
        raise RequestError(400, f"tool_choice: {name[:60]!r} is none of the tools")
    return tools, named
