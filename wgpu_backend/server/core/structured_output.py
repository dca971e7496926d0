"""Structured answers: the grammars and tools that the fields of each API describe."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from wgpu_backend.errors import GrammarError
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.request_log import ignore
from wgpu_backend.text.grammar import Grammar

Tools = Sequence[Mapping[str, Any]]


def format_grammar(form: object) -> Grammar | None:
    """Return the grammar of Ollama's ``format``: ``json`` or a schema.

    Raises
    ------
    GrammarError
        The value is neither of these.
    """
    return Grammar.of_format(form)


def response_grammar(form: Mapping[str, Any] | None, where: str) -> Grammar | None:
    """Return the grammar of OpenAI's ``response_format``, or of a response's ``text.format``.

    Parameters
    ----------
    form : mapping or None
        With ``type``: ``text``, ``json_object``, or ``json_schema`` with ``schema`` in it or in its
        ``json_schema``, and any object where it has none.
    where : str
        Its name, for messages.

    Raises
    ------
    RequestError
        The format has an unknown type.
    GrammarError
        The schema is invalid.
    """
    kind = (form or {}).get("type", "text")
    if form is None or kind == "text":
        return None
    if kind == "json_object":
        return _make_object_grammar(form, where)
    if kind != "json_schema":
        needed = "text, json_object or json_schema"
        raise RequestError(400, f"{where}.type: {str(kind)[:40]!r}, needs {needed}")
    inner: object = form.get("json_schema", form)
    if not isinstance(inner, Mapping):
        raise RequestError(400, f"{where}: json_schema needs an object with a schema")
    return _make_object_grammar(cast("Mapping[str, Any]", inner), where)


def _make_object_grammar(form: Mapping[str, Any], where: str) -> Grammar:
    """Return the grammar of a schema, or of any object."""
    # llama-server accepts a schema in `json_object`, too.
    schema = form.get("schema")
    return Grammar.json() if schema is None else schema_grammar(schema, where)


def schema_grammar(schema: object, where: str) -> Grammar:
    """Return the grammar of a JSON Schema.

    Raises
    ------
    GrammarError
        The schema is invalid; the message begins with `where`.
    """
    try:
        return Grammar.json_schema(cast("Mapping[str, Any] | str", schema))
    except GrammarError as error:
        raise GrammarError(f"{where}: {error}") from None


def select_client_tools(tools: Tools, usual: str = "function") -> Tools:
    """Return the tools that a client runs itself; tools that a provider would run are ignored.

    Parameters
    ----------
    usual : str
        Type of tools that clients call, and of those that name none.

    Raises
    ------
    RequestError
        A type is not a text, or the server is strict and there is another one.
    """
    found: list[Mapping[str, Any]] = []
    for number, tool in enumerate(tools):
        kind: object = tool.get("type") or usual
        if not isinstance(kind, str):
            raise RequestError(400, f"tools[{number}].type: {str(kind)[:40]!r}, needs a string")
        if kind == usual:
            found.append(tool)
        else:
            ignore(f"tools: {kind}", f"type {kind[:40]!r}, needs {usual}; none runs here")
    return found


def check_tools(tools: Tools) -> Tools:
    """Check tools in OpenAI's form: each a function with a name; see `select_client_tools`.

    Raises
    ------
    RequestError
        A tool is not a function with a name.
    """
    tools = select_client_tools(tools)
    for number, tool in enumerate(tools):
        where, function = f"tools[{number}]", tool.get("function", tool)
        if _get_name(function) is None:
            raise RequestError(400, f"{where}.function: needs an object with a name")
        if not isinstance(function.get("parameters") or {}, Mapping):
            raise RequestError(400, f"{where}: parameters need a JSON schema, an object")
    return tools


def _get_name(function: object) -> str | None:
    """Return the name of a function; None if it has none."""
    name: object = _as_mapping(function).get("name")
    return name if name and isinstance(name, str) else None


def _as_mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def choose_tools(choice: object, tools: Tools) -> tuple[Tools, Tools]:
    """Return the tools that a ``tool_choice`` leaves, and those of which one must be called.

    Parameters
    ----------
    choice : str, mapping or None
        ``auto``, ``none``, ``required`` or ``any``; or a function by its name: OpenAI's
        ``{"type": "function", "function": {"name": …}}``, the responses' and Anthropic's with
        ``name`` next to ``type``; Anthropic's ``{"type": "any"}``; OpenAI's ``allowed_tools``, with
        ``mode`` and ``tools``.
    tools : sequence of mapping
        As OpenAI describes them.

    Raises
    ------
    RequestError
        The choice has another form, or names an unknown tool.
    """
    given = _as_mapping(choice)
    kind: object = given.get("type") if given else choice
    if kind == "allowed_tools":
        return _choose_allowed_tools(given.get("allowed_tools", given), tools)
    if kind in (None, "auto"):
        return tools, ()
    if kind == "none":
        return (), ()
    # OpenAI's word and Anthropic's.
    if kind in ("required", "any"):
        if not tools:
            raise RequestError(400, f"tool_choice: {kind}, and there are no tools")
        return tools, tools
    name = _get_name(given.get("function", given))
    if kind not in ("function", "tool") or name is None:
        needed = "auto, none, required or a function by its name"
        raise RequestError(400, f"tool_choice: {str(choice)[:60]!r}, needs {needed}")
    return tools, [_find_tool(name, tools)]


def _choose_allowed_tools(given: object, tools: Tools) -> tuple[Tools, Tools]:
    """Return the result of `choose_tools`, for a choice that allows some of the tools."""
    fields = _as_mapping(given)
    mode, listed = fields.get("mode", "auto"), fields.get("tools")
    if mode not in ("auto", "required") or not isinstance(listed, list) or not listed:
        raise RequestError(
            400, "tool_choice: allowed_tools needs mode, auto or required, and tools"
        )
    given_tools = select_client_tools([*map(_as_mapping, cast("list[object]", listed))])
    names = dict.fromkeys(_get_name(tool.get("function", tool)) or "" for tool in given_tools)
    allowed = [_find_tool(name, tools) for name in names]
    return choose_tools(mode, allowed)


def _find_tool(name: str, tools: Tools) -> Mapping[str, Any]:
    found = [tool for tool in tools if _get_name(tool.get("function", tool)) == name]
    if not found:
        raise RequestError(400, f"tool_choice: {name[:60]!r} is not among the tools")
    return found[0]
