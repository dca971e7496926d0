"""Grammars of whole answers: what a model writes around what was asked for.

A schema says what the text for the user is. In front of it a model may reason, gpt-oss writes a
header, and calls of functions stand in tags; all of that has to be in the grammar, and tags that
are control tokens have to be named by their ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from wgpu_backend.errors import OptionError
from wgpu_backend.text.grammar import Grammar
from wgpu_backend.text.output_parsers.calls import Tools
from wgpu_backend.text.output_parsers.choosing import format_of
from wgpu_backend.text.output_parsers.formats import HERMES, CallForm, reasoning
from wgpu_backend.text.output_parsers.harmony import HARMONY
from wgpu_backend.text.output_parsers.kinds import allowed_kinds
from wgpu_backend.text.output_parsers.spans import Span

_TEXT = r"/(?s:.*)/"
_ANALYSIS = ("<|channel|>", "analysis", "<|message|>")
_NEXT_MESSAGE = ("<|end|>", "<|start|>", "assistant")
_FINAL = ("<|channel|>", "final", "<|message|>")
_CHOOSING = {"anyOf", "oneOf", "allOf", "$ref", "dependentRequired", "if", "not"}  # of arguments
_NAMED = ("$defs", "definitions")
_SAID = ("title", "description", "default", "examples")  # keys that restrict nothing


@dataclass(frozen=True, slots=True)
class Setting:
    """Where an answer is made.

    Parameters
    ----------
    template : str
        The model's chat template; empty where a text is continued.
    prompt : str
        Its end, which may begin the reasoning.
    tag : callable
        Id of a token that no text becomes, by its spelling; see `wgpu_backend.text.grammar.tag_id`.
    thinks : bool
        Whether the model may reason first.
    """

    template: str
    prompt: str
    tag: Callable[[str], int | None]
    thinks: bool = True

    def quoted(self, *texts: str) -> str:
        """Tags and texts, one behind another."""
        ids = [(text, self.tag(text)) for text in texts]
        return " ".join(json.dumps(t) if token is None else f"<[{token}]>" for t, token in ids)


def answer_grammar(grammar: Grammar, setting: Setting, tools: Tools = ()) -> Grammar:
    """Grammar of an answer whose text for the user keeps to a schema.

    Those of other kinds are of the whole answer as they are.

    Parameters
    ----------
    grammar : Grammar
    setting : Setting
    tools : sequence of mapping
        Functions that the model may call in place of that text.

    Raises
    ------
    OptionError
        A function has no name.
    """
    rules: list[str] = []
    before = _before(setting, rules)
    final = [setting.quoted(*_FINAL)] if _is_harmony(setting) else []
    if grammar.kind != "json_schema" or not (before or final or tools):
        return grammar
    rules += [f"said: {' '.join([*final, 'answer'])}", f"answer: {_json(grammar)}"]
    if not tools:
        return _lark([*before, "said"], rules)
    # Harmony ends the answer behind a call, other models may go on with another.
    several = "call" if _is_harmony(setting) else 'call ("\\n"? call)*'
    return _lark([*before, f"({several} | said)"], [*rules, *_calls(tools, setting)])


def call_grammar(tools: Tools, setting: Setting) -> Grammar:
    """Grammar of an answer that calls one of these functions, with arguments by its schema.

    Raises
    ------
    OptionError
        A function has no name, or there is none.
    """
    if not tools:
        raise OptionError("tool_choice: there are no tools to call")
    rules: list[str] = []
    before = _before(setting, rules)
    return _lark([*before, "call"], [*rules, *_calls(tools, setting)])


def _calls(tools: Tools, setting: Setting) -> list[str]:
    """Rules of a call of one of these functions."""
    form, rules = format_of(setting.template).form(setting.template), list[str]()
    for number, tool in enumerate(tools):
        name, schema = _function(tool)
        tagged = _tagged(form, schema, str(number), setting) if form.argument else None
        used = HERMES if form.argument and tagged is None else form
        rules.append(f"call_{number}: {_call(used, name, f'arguments_{number}', setting)}")
        whole = Grammar.json_schema(schema)
        rules += [f"arguments_{number}: {_json(whole)}"] if tagged is None else tagged
    return [*rules, "call: " + " | ".join(f"call_{number}" for number in range(len(tools)))]


def _is_harmony(setting: Setting) -> bool:
    return bool(setting.template) and format_of(setting.template) is HARMONY


def _lark(start: Sequence[str], rules: Sequence[str]) -> Grammar:
    return Grammar.lark("\n".join([f"start: {' '.join(start)}", *rules]))


def _json(schema: Grammar) -> str:
    source = schema.source()
    return f"%json {source if source.startswith('{') else '{}'}"


def _tagged(
    form: CallForm, schema: Mapping[str, object], number: str, setting: Setting
) -> list[str] | None:
    """Rules of arguments between tags; None where a schema says more than they can keep to."""
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        return None
    needed = cast("list[object]", required)
    if _CHOOSING & schema.keys() or schema.get("minProperties"):
        return None
    order, rules = list[str](), list[str]()
    for index, (key, value) in enumerate(cast("Mapping[str, object]", properties).items()):
        name = f"value_{number}_{index}"
        made = _value(form, value, schema, name, setting)
        if made is None or "{" in key:
            return None
        before = setting.quoted(*(text.replace("{key}", key) for text in form.argument))
        order.append(f"({before} {name}){'' if key in needed else '?'}")
        rules += made
    return [f"arguments_{number}: " + (" ".join(order) or '""'), *rules]


def _value(
    form: CallForm, given: object, root: Mapping[str, object], name: str, setting: Setting
) -> list[str] | None:
    """Rules of one value and of the tags after it: a text as it stands, or JSON."""
    kinds, end = allowed_kinds(given, root), form.argument_end
    schema = cast("Mapping[str, object]", given if isinstance(given, Mapping) else {})
    if "string" not in kinds.types:
        whole = Grammar.json_schema({**{k: root[k] for k in _NAMED if k in root}, **schema})
        return [f"{name}: {name}_json {setting.quoted(*end)}", f"{name}_json: {_json(whole)}"]
    if kinds.types != frozenset({"string"}):
        return None
    if kinds.texts:
        texts = " | ".join(json.dumps(text) for text in sorted(kinds.texts))
        return [f"{name}: ({texts}) {setting.quoted(*end)}"]
    if not schema.keys() <= {"type", *_SAID}:
        return None
    if setting.tag(end[0]) is not None:
        return [f"{name}: {name}_text {setting.quoted(*end)}", f"{name}_text: {_TEXT}"]
    rest = setting.quoted(*end[1:])
    return [
        f"{name}: {name}_text {rest}",
        f"{name}_text[suffix={json.dumps(end[0])}]: {_TEXT}",
    ]


def _function(tool: Mapping[str, object]) -> tuple[str, dict[str, object]]:
    given = cast("Mapping[str, object]", tool.get("function") or tool)
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise OptionError("tools: a function has no name")
    schema = given.get("parameters")
    known: dict[str, object] = {"type": "object"}
    if isinstance(schema, Mapping):
        known |= cast("Mapping[str, object]", schema)
    return name, known


def _call(form: CallForm, name: str, arguments: str, setting: Setting) -> str:
    before = [text.replace("{name}", name) for text in form.before]
    after = list(form.after)
    if form.name_key and not form.argument:
        keys = f'{{"{form.name_key}": {json.dumps(name)}, "{form.arguments_key}": '
        before.append("[" * form.listed + keys)
        after.insert(0, "}" + "]" * form.listed)
    return f"{setting.quoted(*before)} {arguments} {setting.quoted(*after)}"


def _before(setting: Setting, rules: list[str]) -> list[str]:
    """What comes before the answer itself, with the rules that it needs."""
    if not setting.template or not setting.thinks:
        return []
    if format_of(setting.template) is HARMONY:
        rules.append(f"thinking: {_TEXT}")
        header, end = setting.quoted(*_ANALYSIS), setting.quoted(*_NEXT_MESSAGE)
        return [f"({header} thinking {end})?"]
    spans = reasoning(setting.template)
    begun = next((s for s in spans if setting.prompt.rstrip().endswith(s.opening)), None)
    if begun is not None:
        return [_reasoned(begun, setting, rules)]
    if spans:
        return [f"({setting.quoted(spans[0].opening)} {_reasoned(spans[0], setting, rules)})?"]
    return []


def _reasoned(span: Span, setting: Setting, rules: list[str]) -> str:
    """Text up to the tag that ends it, and the lines behind it."""
    closing = span.closings[0]
    rules.append("LINES: /\\n{0,2}/")
    if setting.tag(closing) is not None:
        rules.append(f"thinking: {_TEXT}")
        return f"thinking {setting.quoted(closing)} LINES"
    rules.append(f"thinking[suffix={json.dumps(closing)}]: {_TEXT}")
    return "thinking LINES"
