"""Grammars of whole answers, which include the model's own framing.

A schema describes the text for the user. Before it a model may reason, gpt-oss writes a header, and
tool calls stand between tags. All of that has to be in the grammar, and tags that are control
tokens have to be named by their ids.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from wgpu_backend.errors import OptionError
from wgpu_backend.text.grammar import Grammar
from wgpu_backend.text.output_parsers.calls import Tools
from wgpu_backend.text.output_parsers.formats import HERMES, CallForm, reasoning_spans
from wgpu_backend.text.output_parsers.harmony import HARMONY
from wgpu_backend.text.output_parsers.kinds import allowed_kinds
from wgpu_backend.text.output_parsers.registry import find_format
from wgpu_backend.text.output_parsers.spans import Span

_TEXT = r"/(?s:.*)/"
_ANALYSIS = ("<|channel|>", "analysis", "<|message|>")
_NEXT_MESSAGE = ("<|end|>", "<|start|>", "assistant")
_FINAL = ("<|channel|>", "final", "<|message|>")
# Keywords of arguments that tags between values cannot express.
_CHOOSING = {"anyOf", "oneOf", "allOf", "$ref", "dependentRequired", "if", "not"}
_NAMED = ("$defs", "definitions")
# Keywords that restrict nothing.
_ANNOTATIONS = ("title", "description", "default", "examples")


@dataclass(frozen=True, slots=True)
class Setting:
    """The circumstances of an answer.

    Parameters
    ----------
    template : str
        The model's chat template; empty if it continues a text.
    prompt : str
        The end of the prompt, which may begin the reasoning.
    tag : callable
        Id of a token that no text becomes, by its spelling; see `wgpu_backend.text.grammar.tag_id`.
    thinks : bool
        Whether the model may reason first.
    """

    template: str
    prompt: str
    tag: Callable[[str], int | None]
    thinks: bool = True

    def quote(self, *texts: str) -> str:
        """Write tags and texts in sequence, as Lark."""
        ids = [(text, self.tag(text)) for text in texts]
        return " ".join(json.dumps(t) if token is None else f"<[{token}]>" for t, token in ids)


def answer_grammar(grammar: Grammar, setting: Setting, tools: Tools = ()) -> Grammar:
    """Return the grammar of an answer whose text for the user follows a schema.

    Grammars of other kinds already describe the whole answer.

    Parameters
    ----------
    grammar : Grammar
        The constraint on the text for the user.
    setting : Setting
        The circumstances of the answer.
    tools : sequence of mapping
        Functions that the model may call instead of writing that text.

    Raises
    ------
    OptionError
        A function has no name.
    """
    rules: list[str] = []
    before = _before(setting, rules)
    final = [setting.quote(*_FINAL)] if _is_harmony(setting) else []
    if grammar.kind != "json_schema" or not (before or final or tools):
        return grammar
    rules += [f"said: {' '.join([*final, 'answer'])}", f"answer: {_json(grammar)}"]
    if not tools:
        return _lark([*before, "said"], rules)
    # Harmony ends the answer after a call; other models may go on with another one.
    several = "call" if _is_harmony(setting) else 'call ("\\n"? call)*'
    return _lark([*before, f"({several} | said)"], [*rules, *_calls(tools, setting)])


def call_grammar(tools: Tools, setting: Setting) -> Grammar:
    """Return the grammar of an answer that calls a function with arguments by its schema.

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
    """Return the rules of a call of one of these functions."""
    form, rules = find_format(setting.template).form(setting.template), list[str]()
    for number, tool in enumerate(tools):
        name, schema = _function(tool)
        tagged = _argument_rules(form, schema, str(number), setting) if form.argument else None
        used = HERMES if form.argument and tagged is None else form
        rules.append(f"call_{number}: {_call(used, name, f'arguments_{number}', setting)}")
        whole = Grammar.json_schema(schema)
        rules += [f"arguments_{number}: {_json(whole)}"] if tagged is None else tagged
    return [*rules, "call: " + " | ".join(f"call_{number}" for number in range(len(tools)))]


def _is_harmony(setting: Setting) -> bool:
    return bool(setting.template) and find_format(setting.template) is HARMONY


def _lark(start: Sequence[str], rules: Sequence[str]) -> Grammar:
    return Grammar.lark("\n".join([f"start: {' '.join(start)}", *rules]))


def _json(schema: Grammar) -> str:
    source = schema.source()
    return f"%json {source if source.startswith('{') else '{}'}"


def _argument_rules(
    form: CallForm, schema: Mapping[str, object], number: str, setting: Setting
) -> list[str] | None:
    """Return the rules of arguments between tags, or None if tags cannot express the schema."""
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
        is_text = "false" if "string" not in allowed_kinds(value, schema).types else "true"
        texts = (text.replace("{key}", key).replace("{text}", is_text) for text in form.argument)
        before = setting.quote(*texts)
        order.append(f"({before} {name}){'' if key in needed else '?'}")
        rules += made
    return [f"arguments_{number}: " + (" ".join(order) or '""'), *rules]


def _value(
    form: CallForm, given: object, root: Mapping[str, object], name: str, setting: Setting
) -> list[str] | None:
    """Return the rules of one value and of the tags after it: plain text, or JSON."""
    kinds, end = allowed_kinds(given, root), form.argument_end
    schema = cast("Mapping[str, object]", given if isinstance(given, Mapping) else {})
    if "string" not in kinds.types:
        whole = Grammar.json_schema({**{k: root[k] for k in _NAMED if k in root}, **schema})
        return [f"{name}: {name}_json {setting.quote(*end)}", f"{name}_json: {_json(whole)}"]
    if kinds.types != frozenset({"string"}):
        return None
    if kinds.texts:
        texts = " | ".join(json.dumps(text) for text in sorted(kinds.texts))
        return [f"{name}: ({texts}) {setting.quote(*end)}"]
    if not schema.keys() <= {"type", *_ANNOTATIONS}:
        return None
    if setting.tag(end[0]) is not None:
        return [f"{name}: {name}_text {setting.quote(*end)}", f"{name}_text: {_TEXT}"]
    if len(end) > 1 and setting.tag(end[1]) is not None:
        # The text goes on to the control token: its last characters are those before that token.
        last = re.escape(end[0]).replace("/", "\\/")
        return [
            f"{name}: {name}_text {setting.quote(*end[1:])}",
            f"{name}_text: /(?s:.*){last}/",
        ]
    return [f"{name}: {name}_text", f"{name}_text[suffix={json.dumps(''.join(end))}]: {_TEXT}"]


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
    return f"{setting.quote(*before)} {arguments} {setting.quote(*after)}"


def _before(setting: Setting, rules: list[str]) -> list[str]:
    """Return the text before the answer itself, and add the rules that it needs."""
    if not setting.template or not setting.thinks:
        return []
    if find_format(setting.template) is HARMONY:
        rules.append(f"thinking: {_TEXT}")
        header, end = setting.quote(*_ANALYSIS), setting.quote(*_NEXT_MESSAGE)
        return [f"({header} thinking {end})?"]
    spans = reasoning_spans(setting.template)
    begun = next((s for s in spans if setting.prompt.rstrip().endswith(s.opening)), None)
    if begun is not None:
        return [_reasoning_rule(begun, setting, rules)]
    if spans:
        return [f"({setting.quote(spans[0].opening)} {_reasoning_rule(spans[0], setting, rules)})?"]
    return []


def _reasoning_rule(span: Span, setting: Setting, rules: list[str]) -> str:
    """Return text up to the tag that ends it, and the line breaks after it."""
    closing = span.closings[0]
    rules.append("LINES: /\\n{0,2}/")
    if setting.tag(closing) is not None:
        rules.append(f"thinking: {_TEXT}")
        return f"thinking {setting.quote(closing)} LINES"
    rules.append(f"thinking[suffix={json.dumps(closing)}]: {_TEXT}")
    return "thinking LINES"
