"""Formats that are a few tags around what other formats have between theirs."""

from __future__ import annotations

import re

from wgpu_backend.text.output_parsers.arriving import Broken, Reading
from wgpu_backend.text.output_parsers.bare_json import bare
from wgpu_backend.text.output_parsers.formats import CallForm, Format, suffix_in
from wgpu_backend.text.output_parsers.qwen import CALL as HERMES
from wgpu_backend.text.output_parsers.qwen import sections
from wgpu_backend.text.output_parsers.readers import (
    json_calls,
    named_arguments,
    python_list,
    sectioned,
)
from wgpu_backend.text.output_parsers.spans import Body, Span
from wgpu_backend.text.output_parsers.tagged import (
    Tagging,
    function_call,
    nested_calls,
    tagged_calls,
)

_NAME = re.compile(r"[\w.\-]*")


def _json(
    name: str,
    opening: str,
    closing: str = "",
    *,
    mark: str = "",
    listed: bool = True,
    keyed: bool = False,
    others: tuple[Span, ...] = (),
) -> Format:
    """A format of JSON between two tags; of an object alone, or a list."""
    closings = (closing,) if closing else ()

    def form(template: str) -> CallForm:
        after = tuple(tag for tag in closings if tag in template)
        if keyed:
            return CallForm((opening, '[{"{name}": '), ("}]", *after), name_key="")
        return CallForm((opening,), after, listed=listed)

    span = Span(opening, read=json_calls(*closings, keyed=keyed), inner=closings)
    return Format(name, (mark or opening,), (span, HERMES), others, form=form)


def _python(name: str, opening: str, closing: str, *marks: str) -> Format:
    def form(template: str) -> CallForm:
        """JSON between the tags, which keeps to a schema; such models write that as well."""
        del template
        return CallForm((opening,), (closing,), listed=True)

    span = Span(opening, read=python_list(closing), inner=(closing,))
    return Format(name, (opening, *marks), (span, HERMES), form=form)


def _kimi(template: str) -> CallForm:
    del template
    before = (_KIMI[0], _KIMI[1], "functions.{name}:0", _KIMI[2])
    return CallForm(before, (_KIMI[3], _KIMI[4]), name_key="")


_KIMI = (
    "<|tool_calls_section_begin|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>",
    "<|tool_call_end|>", "<|tool_calls_section_end|>",
)  # fmt: skip
KIMI = Format(
    "kimi",
    (_KIMI[0], "<|im_middle|>"),  # K2's first template lists tools and tells of no call
    (
        Span(
            _KIMI[0],
            read=sectioned(_KIMI[1], _KIMI[2:3], _KIMI[3], _KIMI[4]),
            inner=_KIMI[1:],
            interrupts=True,
        ),
    ),
    form=_kimi,
)


def _solar(template: str) -> CallForm:
    del template
    before = ("<|tool_calls|>", "<|tool_call:begin|>", "0", "<|tool_call:name|>", "{name}")
    return CallForm((*before, "<|tool_call:args|>"), ("<|tool_call:end|>",), name_key="")


_SOLAR = ("<|tool_call:begin|>", "<|tool_call:name|>", "<|tool_call:args|>", "<|tool_call:end|>")
SOLAR = Format(
    "solar",
    ("<|tool_call:begin|>", "<|begin|>assistant"),
    (
        Span(
            "<|tool_calls|>",
            read=sectioned(_SOLAR[0], _SOLAR[1:3], _SOLAR[3], "<|calls|>"),
            inner=(*_SOLAR, "<|calls|>"),
        ),
    ),
    (
        Span("<|content|>", ("<|end|>",), unwrapped=True),
        Span("<|begin|>assistant", unwrapped=True),
        Span("<|begin|>", unwrapped=True),
    ),
    form=_solar,
)

_INVOKED = ('">', '<parameter name="', '">', "</parameter>", "</invoke>")
_M2 = Tagging('<invoke name="', *_INVOKED, ("</minimax:tool_call>",))
_M3 = "]<]minimax[>["
MINIMAX = Format(
    "minimax",
    ("<minimax:tool_call>", _M3),
    (
        Span("<minimax:tool_call>", read=tagged_calls(_M2), inner=_M2.closings),
        Span(
            f"{_M3}<tool_call>",
            read=nested_calls(_M3, "</tool_call>"),
            inner=(_M3, "<tool_call>", "</tool_call>"),
        ),
        HERMES,
    ),
)

_MUSE = Tagging(
    '<atem:invoke name="',
    '">',
    '<atem:parameter name="',
    '">',
    "</atem:parameter>",
    "</atem:invoke>",
    ("</atem:function_calls>",),
)


def _recipient(body: Body) -> Reading[None]:
    name = yield from body.text.run(_NAME)
    if not name or (yield from body.text.took("<|message|>")) is None:
        raise Broken("no recipient")


MUSE = Format(
    "muse",
    ("<atem:function_calls>",),
    (
        Span("<atem:function_calls>", read=tagged_calls(_MUSE), inner=_MUSE.closings),
        HERMES,
    ),
    (
        Span(" to=self<|message|>", ("<|eom|>",)),
        Span(" to=", read=_recipient),
        Span("<|start|>assistant", unwrapped=True),
        Span("<|message|>", unwrapped=True),
    ),
)

_PARAM = Tagging(
    '<function name="', '">', '<param name="', '">', "</param>", "</function>", cdata=True
)
MINICPM = Format(
    "minicpm",
    ('<function name="',),
    (Span('<function name="', read=function_call(_PARAM)), HERMES),
)

_K3 = Tagging(
    '<|open|>call tool="',
    "<|sep|>",
    '<|open|>argument key="',
    "<|sep|>",
    "<|close|>argument<|sep|>",
    "<|close|>call<|sep|>",
    ("<|close|>tools<|sep|>",),
)
KIMI_K3 = Format(
    "kimi-k3",
    ("<|open|>",),
    (
        Span(
            "<|open|>tools<|sep|>",
            read=tagged_calls(_K3),
            inner=("<|open|>", "<|close|>", "<|sep|>"),
            interrupts=True,
        ),
        HERMES,
    ),
    (
        Span("<|open|>response<|sep|>", ("<|close|>response<|sep|>",), unwrapped=True),
        Span("<|close|>think<|sep|>", unwrapped=True),
        Span("<|close|>message<|sep|>", unwrapped=True),
    ),
)


def _functionary(body: Body) -> Reading[None]:
    """Read a recipient and its JSON; what is for ``all`` is text."""
    name = yield from body.text.run(_NAME)
    if (yield from body.text.took("\n")) is None:
        raise Broken("no recipient")
    if name != "all":
        body.give([(yield from named_arguments(body.text, name))])


FUNCTIONARY = Format(
    "functionary",
    (">>>all",),
    (Span(">>>", read=_functionary), HERMES),
    make=bare,
)


def _hy(template: str) -> tuple[Span, ...]:
    suffix = suffix_in(template) or ""
    tags = ("tool_call", "tool_sep", "arg_key", "arg_value")
    inner = [f"{slash}{tag}{suffix}>" for tag in tags for slash in ("<", "</")]
    opening, closing = f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"
    return (Span(opening, read=sections(suffix), inner=(closing, *inner)), HERMES)


HY = Format("hy", ("<think{}>", "<tool_calls{}>"), of_template=_hy)
FAMILIES = (
    _python(
        "lfm2", "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_list_start|>", "List of tools: "
    ),
    _python("olmo", "<function_calls>", "</function_calls>"),
    _json("granite", "<|tool_call|>", "<|/tool_call|>"),
    _json("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
    _json("apertus", "<|tools_prefix|>", "<|tools_suffix|>", keyed=True),
    _json("gigachat", "<|function_call|>", "<|message_sep|>", listed=False),
    _json(
        "gigachat-3",
        "<|message_sep|>\n\nfunction call<|role_sep|>\n",
        "<|message_sep|>",
        mark="<|role_sep|>",
        listed=False,
    ),
    _json(
        "internlm",
        "<|action_start|><|plugin|>",
        "<|action_end|>",
        mark="<|action_start|>",
        listed=False,
    ),
    _json("firefunction", "functools", mark="functools["),
    KIMI,
    KIMI_K3,
    SOLAR,
    MINIMAX,
    MUSE,
    MINICPM,
    FUNCTIONARY,
    HY,
)
