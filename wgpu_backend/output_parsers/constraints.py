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
from wgpu_backend.grammar import Grammar
from wgpu_backend.output_parsers.calls import Tools
from wgpu_backend.output_parsers.choosing import format_of
from wgpu_backend.output_parsers.formats import CallForm, reasoning
from wgpu_backend.output_parsers.harmony import HARMONY
from wgpu_backend.output_parsers.spans import Span

_TEXT = r"/(?s:.*)/"
_ANALYSIS = ("<|channel|>", "analysis", "<|message|>")
_NEXT_MESSAGE = ("<|end|>", "<|start|>", "assistant")
_FINAL = ("<|channel|>", "final", "<|message|>")


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
        Id of a token that no text becomes, by its spelling; see `wgpu_backend.grammar.tag_id`.
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
        rules.append(f"call_{number}: {_call(form, name, f'arguments_{number}', setting)}")
        rules.append(f"arguments_{number}: {_json(schema)}")
    return [*rules, "call: " + " | ".join(f"call_{number}" for number in range(len(tools)))]


def _is_harmony(setting: Setting) -> bool:
    return bool(setting.template) and format_of(setting.template) is HARMONY


def _lark(start: Sequence[str], rules: Sequence[str]) -> Grammar:
    return Grammar.lark("\n".join([f"start: {' '.join(start)}", *rules]))


def _json(schema: Grammar) -> str:
    source = schema.source()
    return f"%json {source if source.startswith('{') else '{}'}"


def _function(tool: Mapping[str, object]) -> tuple[str, Grammar]:
    given = cast("Mapping[str, object]", tool.get("function") or tool)
    name = given.get("name")
    if not isinstance(name, str) or not name:
        raise OptionError("tools: a function has no name")
    schema = given.get("parameters")
    known: dict[str, object] = {"type": "object"}
    if isinstance(schema, Mapping):
        known |= cast("Mapping[str, object]", schema)
    return name, Grammar.json_schema(known)


def _call(form: CallForm, name: str, arguments: str, setting: Setting) -> str:
    before = [text.replace("{name}", name) for text in form.before]
    after = list(form.after)
    if form.name_key:
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
