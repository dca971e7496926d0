"""Hermes and Qwen: ``<tool_call>`` with JSON, or with Qwen3-Coder's tags; and GLM's pairs.

::

    <tool_call>
    {"name": "weather", "arguments": {"city": "Oslo"}}
    </tool_call>

    <tool_call>
    <function=weather>
    <parameter=city>
    Oslo
    </parameter>
    </function>
    </tool_call>

    <tool_call>weather
    <arg_key>city</arg_key>
    <arg_value>Oslo</arg_value>
    </tool_call>

Seed-OSS writes Qwen3-Coder's tags in ``<seed:tool_call>``; Hunyuan several of ``<tool_call>``, with
a name and a code block in each, in ``<tool_calls>``.
"""

from __future__ import annotations

from wgpu_backend.text.output_parsers.arriving import Reading
from wgpu_backend.text.output_parsers.formats import HERMES, CallForm, Format
from wgpu_backend.text.output_parsers.readers import json_calls
from wgpu_backend.text.output_parsers.spans import Body, Read, Span
from wgpu_backend.text.output_parsers.tagged import (
    Tagging,
    function_call,
    glm_call,
    tagged_calls,
    tool_call,
)

_END, _ALL_END = "</tool_call>", "</tool_calls>"


def _functions(*closings: str, lines: bool = True) -> Tagging:
    return Tagging(
        "<function=", ">", "<parameter=", ">", "</parameter>", "</function>", closings, lines=lines
    )


def pairs(suffix: str = "") -> Tagging:
    """Tags of GLM, and of Hy 3 with a suffix in each."""
    return Tagging(
        call="",
        named="",
        parameter=f"<arg_key{suffix}>",
        keyed=f"<arg_value{suffix}>",
        closing=f"</arg_value{suffix}>",
        closings=(f"</tool_call{suffix}>",),
        key_end=f"</arg_key{suffix}>",
    )


def sections(suffix: str = "") -> Read:
    """Reader of ``<tool_calls>``: a list in JSON, or ``<tool_call>`` several times."""
    call, end = f"<tool_call{suffix}>", f"</tool_calls{suffix}>"
    of_json, tagging = json_calls(end), pairs(suffix)

    def read(body: Body) -> Reading[None]:
        text = body.text
        mark = yield from text.spaces()
        if mark in ("{", "["):
            yield from of_json(body)
            return
        yield from text.expect(call)
        while True:
            if (yield from text.spaces()) in ("{", "["):
                yield from json_calls(*tagging.closings)(body)
            else:
                yield from glm_call(body, tagging, f"<tool_sep{suffix}>")
            yield from text.spaces()
            if (yield from text.took(call, end)) != call:
                return

    return read


CALL = Span(
    "<tool_call>",
    read=tool_call(pairs(), _functions(_END), "<tool_sep>"),
    inner=(*_functions(_END).inner, *pairs().inner, _END),
)
FUNCTION = Span("<function=", read=function_call(_functions(), fallback=(_END,)))
CALLS = Span("<tool_calls>", read=sections(), inner=(_ALL_END, "<tool_sep>"))


def _list(template: str) -> CallForm:
    del template
    return CallForm((CALLS.opening,), (_ALL_END,), listed=True)


def _tagged(template: str) -> CallForm:
    """Qwen3-Coder's form, where a template has it; Hermes' otherwise."""
    if "<function=" not in template:
        return HERMES
    return functions_form("<tool_call>", "\n", _END, "\n")


def functions_form(opening: str, before: str, closing: str, line: str) -> CallForm:
    """Form of a call with ``<function=``, whose values stand on lines of their own or do not."""
    return CallForm(
        (opening, before + "<function={name}>\n"),
        ("</function>\n", closing),
        argument=("<parameter={key}>" + line,),
        argument_end=(line + "</parameter>\n",),
    )


def _seed(template: str) -> CallForm:
    del template
    return functions_form("<seed:tool_call>", "\n", "</seed:tool_call>", "")


def _glm(template: str) -> CallForm:
    del template
    return CallForm(
        ("<tool_call>", "{name}\n"),
        ("</tool_call>",),
        argument=("<arg_key>", "{key}", "</arg_key>", "\n", "<arg_value>"),
        argument_end=("</arg_value>", "\n"),
    )


APRIEL = Format(
    "apriel",
    ("<tool_calls>[",),
    (Span(CALLS.opening, read=CALLS.read, inner=CALLS.inner, interrupts=True), CALL),
    form=_list,
)
SEED = Format(
    "seed",
    ("<seed:tool_call>",),
    (
        Span(
            "<seed:tool_call>",
            read=tagged_calls(_functions("</seed:tool_call>", lines=False)),
            inner=("</seed:tool_call>",),
        ),
        FUNCTION,
        CALL,
    ),
    form=_seed,
)
GLM = Format("glm", ("<arg_key>",), (CALL,), form=_glm)
QWEN = Format("qwen", ("<tool_call>", "<tool_calls>"), (CALL, CALLS, FUNCTION), form=_tagged)
