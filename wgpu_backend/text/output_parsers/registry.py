"""Formats of model families, and the choice of one by a model's chat template."""

from __future__ import annotations

import re

from wgpu_backend.errors import OptionError
from wgpu_backend.text.output_parsers.calls import OfferedTools, Tools, make_calls, parse_calls
from wgpu_backend.text.output_parsers.formats import HERMES as HERMES_FORM
from wgpu_backend.text.output_parsers.formats import (
    CallForm,
    Format,
    find_suffix,
    make_bare_parser,
    reasoning_spans,
)
from wgpu_backend.text.output_parsers.gemma import GEMMA
from wgpu_backend.text.output_parsers.harmony import HARMONY
from wgpu_backend.text.output_parsers.incoming_text import FormatMismatch, Reader
from wgpu_backend.text.output_parsers.literals import parse_calls_in_python
from wgpu_backend.text.output_parsers.parts import ToolCall
from wgpu_backend.text.output_parsers.readers import (
    READ_MISTRAL,
    json_reader,
    match_arguments,
    python_reader,
    read_arguments,
    read_json,
    section_reader,
    skip_closing,
    skip_to_json,
)
from wgpu_backend.text.output_parsers.spans import Body, Matched, OutputParser, Span, SpanReader
from wgpu_backend.text.output_parsers.tagged import (
    Tagging,
    function_reader,
    nested_reader,
    read_glm_call,
    tagged_reader,
    tool_call_reader,
)

# Hermes and Qwen: ``<tool_call>`` with JSON, or with Qwen3-Coder's tags; and GLM's pairs.
# Hermes' is ``{"name": "weather", "arguments": {"city": "Oslo"}}`` between the tags, the others
#
#     <tool_call>
#     <function=weather>
#     <parameter=city>
#     Oslo
#     </parameter>
#     </function>
#     </tool_call>
#
#     <tool_call>weather
#     <arg_key>city</arg_key>
#     <arg_value>Oslo</arg_value>
#     </tool_call>
#
# Seed-OSS writes Qwen3-Coder's tags in ``<seed:tool_call>``; Hunyuan several of ``<tool_call>``,
# with a name and a code block in each, in ``<tool_calls>``.


_END, _ALL_END = "</tool_call>", "</tool_calls>"


def _functions(*closings: str, lines: bool = True) -> Tagging:
    return Tagging(
        "<function=", ">", "<parameter=", ">", "</parameter>", "</function>", closings, lines=lines
    )


def glm_tagging(suffix: str = "") -> Tagging:
    """Return the tags of GLM, or of Hy 3 with a suffix in each."""
    return Tagging(
        call="",
        named="",
        parameter=f"<arg_key{suffix}>",
        keyed=f"<arg_value{suffix}>",
        closing=f"</arg_value{suffix}>",
        closings=(f"</tool_call{suffix}>",),
        key_end=f"</arg_key{suffix}>",
    )


def sections_reader(suffix: str = "") -> SpanReader:
    """Return a reader of ``<tool_calls>``: a JSON list, or several ``<tool_call>``."""
    call, end = f"<tool_call{suffix}>", f"</tool_calls{suffix}>"
    of_json, tagging = json_reader(end), glm_tagging(suffix)
    of_calls = json_reader(*tagging.closings)

    def read(body: Body) -> Reader[None]:
        text = body.text
        mark = yield from text.skip_spaces()
        if mark in ("{", "["):
            yield from of_json.read(body)
            return
        yield from text.expect(call)
        while True:
            if (yield from text.skip_spaces()) in ("{", "["):
                yield from of_calls.read(body)
            else:
                yield from read_glm_call(body, tagging, f"<tool_sep{suffix}>")
            yield from text.skip_spaces()
            if (yield from text.take(call, end)) != call:
                return

    return SpanReader(read, of_json.match)


HERMES = Span(
    "<tool_call>",
    read=tool_call_reader(glm_tagging(), _functions(_END), "<tool_sep>"),
    inner=(*_functions(_END).inner, *glm_tagging().inner, _END),
    strays=(_END, "</function>", "</parameter>"),
)
FUNCTION = Span("<function=", read=function_reader(_functions(), fallback=(_END,)))
CALLS = Span("<tool_calls>", read=sections_reader(), inner=(_ALL_END, "<tool_sep>"))


def _wrapped(name: str) -> Span:
    """Return a span of JSON in tags that a small model takes for the right ones.

    They may be part of an answer as well, so that only calls of offered functions count.
    """
    opening, closing = f"<{name}>", f"</{name}>"

    def read(body: Body) -> Reader[None]:
        text, found = body.text, list[ToolCall]()
        yield from skip_to_json(text)
        while (yield from text.skip_spaces()) in ("{", "["):
            found += make_calls((yield from read_json(text)))
            if any(call.name not in body.offered for call in found):
                raise ValueError("the text is not a tool call")
        yield from text.take("```")
        yield from text.skip_spaces()
        yield from text.expect(closing)
        body.give(found)

    return Span(opening, read=SpanReader(read), strays=(closing,))


def _list(template: str) -> CallForm:
    del template
    return CallForm((CALLS.opening,), (_ALL_END,), listed=True)


# MiroThinker: ``<use_mcp_tool>`` with a server, which is not the caller's concern, a name and JSON.

_MCP_END = "</use_mcp_tool>"
_MCP_TAGS = ("<server_name>", "<tool_name>", "<arguments>")


def _read_mcp(body: Body) -> Reader[None]:
    text, (server, tool, arguments) = body.text, _MCP_TAGS
    while True:
        yield from text.skip_spaces()
        tag = yield from text.take(server, tool, _MCP_END)
        if tag == server:
            yield from text.read_until("</server_name>")
            yield from text.skip_spaces()
            yield from text.expect(tool)
        elif tag != tool:
            break
        name = yield from text.read_until("</tool_name>")
        yield from text.skip_spaces()
        yield from text.expect(arguments)
        body.give([(yield from read_arguments(text, name))])
        yield from skip_closing(body, "</arguments>")
    if not body.given:
        raise FormatMismatch("the text is not a tool call")


def _mcp_form(template: str) -> CallForm:
    del template
    before = "<use_mcp_tool>\n<server_name>tools</server_name>\n<tool_name>{name}</tool_name>\n"
    return CallForm((before + "<arguments>\n",), (f"\n</arguments>\n{_MCP_END}",), name_key="")


def _qwen_form(template: str) -> CallForm:
    """Return Qwen3-Coder's form if the template has it, and Hermes' otherwise."""
    if "<function=" not in template:
        return HERMES_FORM
    return functions_form("<tool_call>", "\n", _END, "\n")


def functions_form(opening: str, before: str, closing: str, line: str) -> CallForm:
    """Return the form of a call with ``<function=``, with or without line breaks around values."""
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
    (Span(CALLS.opening, read=CALLS.read, inner=CALLS.inner, interrupts=True), HERMES),
    form=_list,
)
SEED = Format(
    "seed",
    ("<seed:tool_call>",),
    (
        Span(
            "<seed:tool_call>",
            read=tagged_reader(_functions("</seed:tool_call>", lines=False)),
            inner=("</seed:tool_call>",),
            strays=("</seed:tool_call>",),
        ),
        FUNCTION,
        HERMES,
    ),
    form=_seed,
)
GLM = Format("glm", ("<arg_key>",), (HERMES,), form=_glm)
QWEN = Format(
    "qwen",
    ("<tool_call>", "<tool_calls>"),
    (HERMES, CALLS, FUNCTION, *map(_wrapped, ("function_call", "tools", "tool", "json", "xml"))),
    form=_qwen_form,
)


MIRO = Format(
    "mirothinker",
    ("<use_mcp_tool>",),
    (Span("<use_mcp_tool>", read=SpanReader(_read_mcp), inner=(_MCP_END, *_MCP_TAGS)), HERMES),
    form=_mcp_form,
)


# Formats of further model families: a few tags around calls that other formats have as well.


# Mistral: calls after ``[TOOL_CALLS]``, as a list of JSON objects. Since Mistral Small 3.1 it is a
# name and arguments for each call: ``[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}``, at times with
# ``[CALL_ID]`` between them.

_MISTRAL = "[TOOL_CALLS]"


def _mistral_form(template: str) -> CallForm:
    if "[ARGS]" in template:
        return CallForm((_MISTRAL, "{name}", "[ARGS]"), name_key="")
    return CallForm((_MISTRAL,), listed=True)


MISTRAL = Format(
    "mistral",
    (_MISTRAL,),
    (Span(_MISTRAL, read=READ_MISTRAL, inner=("[ARGS]", "[CALL_ID]"), interrupts=True),),
    form=_mistral_form,
)


# Command R and Command A: a list of actions, and the answer between special tags. Command R7B and
# later write ``<|START_ACTION|>[{"tool_name": …, "parameters": {…}}]<|END_ACTION|>``. The first
# Command R writes a code block after ``Action:``, where the function ``directly-answer`` stands
# for no call.

_FENCE_SPACES = (" ", "", "\n")
_NO_CALL = ("directly-answer", "directly_answer")


def _actions_reader(closing: str) -> SpanReader:
    def read(body: Body) -> Reader[None]:
        yield from skip_to_json(body.text)
        found = parse_calls((yield from body.text.read_brackets()))
        body.give(call for call in found if call.name not in _NO_CALL)
        yield from skip_closing(body, closing)

    return SpanReader(read)


def _command_r_form(template: str) -> CallForm:
    before, after = ("<|START_ACTION|>",), ("<|END_ACTION|>",)
    if before[0] not in template:
        before, after = ("Action: ```json\n",), ("\n```",)
    return CallForm(before, after, "tool_name", "parameters", listed=True)


COMMAND_R = Format(
    "command-r",
    (
        "<|START_ACTION|>",
        "<|START_RESPONSE|>",
        *(f"Action:{s}```json" for s in _FENCE_SPACES),
        _NO_CALL[0],
    ),
    (
        Span("<|START_ACTION|>", read=_actions_reader("<|END_ACTION|>"), inner=("<|END_ACTION|>",)),
        *(Span(f"Action:{space}```json", read=_actions_reader("```")) for space in _FENCE_SPACES),
    ),
    (
        Span("<|START_RESPONSE|>", ("<|END_RESPONSE|>",), unwrapped=True),
        Span("<|START_TEXT|>", ("<|END_TEXT|>",), unwrapped=True),
    ),
    form=_command_r_form,
)


# Llama 3: bare JSON, calls after ``<|python_tag|>``, or ``<function=name>{…}</function>``.

_TOOL_NAME = re.compile(r"[\w.]*")
_LLAMA_ENDS = ("<|eom_id|>", "<|eot_id|>")
_LLAMA_JSON = json_reader(*_LLAMA_ENDS)


def _read_llama(body: Body) -> Reader[None]:
    """Read calls as JSON, in sequence or with semicolons, or a call of a built-in tool."""
    text = body.text
    if (yield from text.skip_spaces()) in ("{", "["):
        yield from _LLAMA_JSON.read(body)
        return
    name = (yield from text.read_while(_TOOL_NAME)).removesuffix(".call")
    source = yield from text.read_brackets("python")
    [call] = parse_calls_in_python(f"call{source}")
    if not name or call.positional or not call.named:
        raise FormatMismatch("the text is not a tool call")
    body.give([ToolCall(name, call.named)])
    yield from skip_closing(body, *_LLAMA_ENDS)


def _llama_form(template: str) -> CallForm:
    return CallForm(arguments_key="parameters")


LLAMA = Format(
    "llama",
    ("<|python_tag|>", "<|start_header_id|>", "<|python_start|>", "<|header_start|>"),
    (
        Span("<|python_tag|>", read=SpanReader(_read_llama, _LLAMA_JSON.match), inner=_LLAMA_ENDS),
        Span("<|python_start|>", read=python_reader("<|python_end|>"), inner=("<|python_end|>",)),
        FUNCTION,
    ),
    make=make_bare_parser,
    form=_llama_form,
)


# DeepSeek: calls between special tags.

_CALLS_BEGIN, _CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL_BEGIN, _CALL_END, _SEPARATOR = (
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)


def _deepseek_form(template: str) -> CallForm:
    """Return the form of R1 or V3.1, by the template.

    ::

        <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather
        ```json
        {"city": "Oslo"}
        ```<｜tool▁call▁end｜><｜tool▁calls▁end｜>

        <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}…

    The first form is R1's, the second V3.1's.
    """
    if "```json" not in template:
        return CallForm(
            (_CALLS_BEGIN, _CALL_BEGIN, "{name}", _SEPARATOR), (_CALL_END, _CALLS_END), name_key=""
        )
    before = (_CALLS_BEGIN, _CALL_BEGIN, "function", _SEPARATOR, "{name}\n```json\n")
    return CallForm(before, ("\n```", _CALL_END, _CALLS_END), name_key="")


def _invoke_span(mark: str, name: str) -> Span:
    """Return the span of DeepSeek V3.2, or of V4, whose tag has ``tool_calls`` in it.

    GigaChat 3.5 has another mark in its tags.

    ::

        <｜DSML｜function_calls>
        <｜DSML｜invoke name="weather">
        <｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>
        </｜DSML｜invoke>
        </｜DSML｜function_calls>
    """
    end = f"</{mark}{name}>"
    tagging = Tagging(
        f'<{mark}invoke name="',
        '">',
        f'<{mark}parameter name="',
        '">',
        f"</{mark}parameter>",
        f"</{mark}invoke>",
        (end,),
    )
    return Span(f"<{mark}{name}>", read=tagged_reader(tagging), inner=(mark, end))


DEEPSEEK = Format(
    "deepseek",
    (_CALLS_BEGIN,),
    (
        Span(
            _CALLS_BEGIN,
            read=section_reader(_CALL_BEGIN, (_SEPARATOR,), _CALL_END, _CALLS_END),
            inner=(_CALL_BEGIN, _SEPARATOR, _CALL_END, _CALLS_END),
            strays=(_CALL_END, _CALLS_END),
        ),
    ),
    form=_deepseek_form,
)


def _invoke_form(template: str) -> CallForm:
    """Return the form of DeepSeek V3.2 and later; its mark is apart, as a control token."""
    mark = next(each for each in _MARKS if each in template)
    block = "function_calls" if "function_calls>" in template else "tool_calls"
    return CallForm(
        ("<", mark, f"{block}>\n", "<", mark, 'invoke name="{name}">\n'),
        ("</", mark, "invoke>\n", "</", mark, f"{block}>"),
        argument=("<", mark, 'parameter name="{key}" string="{text}">'),
        argument_end=("</", mark, "parameter>\n"),
    )


_MARKS = ("｜DSML｜", "｜GCML｜")
DSML = Format(
    "dsml",
    _MARKS[:1],
    (*(_invoke_span(_MARKS[0], name) for name in ("function_calls", "tool_calls")), HERMES),
    form=_invoke_form,
)
GCML = Format(
    "gcml", _MARKS[1:], (_invoke_span(_MARKS[1], "tool_calls"), HERMES), form=_invoke_form
)


# Calls that are written as JSON and nothing else, where the answer begins:
# ``{"name": "weather", "arguments": {"city": "Oslo"}}``, or a list of such objects, in a code block
# or not; or ``[weather(city="Oslo")]``. Hermes' tags are read as well: most models know them even
# if their template does not mention calls.


def _json_form(template: str) -> CallForm:
    return CallForm()


JSON = Format("json", (), QWEN.calls, make=make_bare_parser, form=_json_form)


_NAME = re.compile(r"[\w.\-]*")


def _json_format(
    name: str,
    opening: str,
    closing: str = "",
    *,
    mark: str = "",
    listed: bool = True,
    keyed: bool = False,
    others: tuple[Span, ...] = (),
) -> Format:
    """Make a format of JSON between two tags, either one object or a list."""
    closings = (closing,) if closing else ()

    def form(template: str) -> CallForm:
        after = tuple(tag for tag in closings if tag in template)
        if keyed:
            return CallForm((opening, '[{"{name}": '), ("}]", *after), name_key="")
        return CallForm((opening,), after, listed=listed)

    span = Span(opening, read=json_reader(*closings, keyed=keyed), inner=closings, strays=closings)
    return Format(name, (mark or opening,), (span, HERMES), others, form=form)


def _python_format(name: str, opening: str, closing: str, *marks: str) -> Format:
    def form(template: str) -> CallForm:
        """Return JSON between the tags, which can follow a schema; such models write it as well."""
        del template
        return CallForm((opening,), (closing,), listed=True)

    span = Span(opening, read=python_reader(closing), inner=(closing,), strays=(closing,))
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
    # K2's first template lists tools but does not show a call.
    (_KIMI[0], "<|im_middle|>"),
    (
        Span(
            _KIMI[0],
            read=section_reader(_KIMI[1], _KIMI[2:3], _KIMI[3], _KIMI[4]),
            inner=_KIMI[1:],
            interrupts=True,
            strays=_KIMI[3:],
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
            read=section_reader(_SOLAR[0], _SOLAR[1:3], _SOLAR[3], "<|calls|>"),
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


def _minimax_form(template: str) -> CallForm:
    """Return MiniMax M2's form; M3's nested elements follow no schema, it knows Hermes' tags."""
    if _M3 in template:
        return HERMES_FORM
    return CallForm(
        ("<minimax:tool_call>", '\n<invoke name="{name}">\n'),
        ("</invoke>\n", "</minimax:tool_call>"),
        argument=('<parameter name="{key}">',),
        argument_end=("</parameter>\n",),
    )


MINIMAX = Format(
    "minimax",
    ("<minimax:tool_call>", _M3),
    (
        Span(
            "<minimax:tool_call>",
            read=tagged_reader(_M2),
            inner=_M2.closings,
            strays=(*_M2.closings, _M2.end),
        ),
        Span(
            f"{_M3}<tool_call>",
            read=nested_reader(_M3, "</tool_call>"),
            inner=(_M3, "<tool_call>", "</tool_call>"),
        ),
        HERMES,
    ),
    form=_minimax_form,
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


def _read_recipient(body: Body) -> Reader[None]:
    name = yield from body.text.read_while(_NAME)
    if not name or (yield from body.text.take("<|message|>")) is None:
        raise FormatMismatch("the tool call names no function")


MUSE = Format(
    "muse",
    ("<atem:function_calls>",),
    (
        Span("<atem:function_calls>", read=tagged_reader(_MUSE), inner=_MUSE.closings),
        HERMES,
    ),
    (
        Span(" to=self<|message|>", ("<|eom|>",)),
        Span(" to=", read=SpanReader(_read_recipient)),
        Span("<|start|>assistant", unwrapped=True),
        Span("<|message|>", unwrapped=True),
    ),
)

_PARAM = Tagging(
    '<function name="', '">', '<param name="', '">', "</param>", "</function>", cdata=True
)


def _minicpm_form(template: str) -> CallForm:
    del template
    return CallForm(
        ('<function name="{name}">',),
        ("</function>",),
        argument=('<param name="{key}">',),
        argument_end=("</param>",),
    )


MINICPM = Format(
    "minicpm",
    ('<function name="',),
    (Span('<function name="', read=function_reader(_PARAM)), HERMES),
    form=_minicpm_form,
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
            read=tagged_reader(_K3),
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


def _read_functionary(body: Body) -> Reader[None]:
    """Read a recipient and its JSON; a message to ``all`` is text."""
    name = yield from body.text.read_while(_NAME)
    if (yield from body.text.take("\n")) is None:
        raise FormatMismatch("the tool call names no function")
    if name != "all":
        body.give([(yield from read_arguments(body.text, name))])


def _match_functionary(text: str, at: int, offered: OfferedTools) -> Matched:
    del offered
    named = _RECIPIENT.match(text, at)
    found = match_arguments(text, named.end()) if named and named[1] != "all" else None
    return ([ToolCall(named[1], found[0])], found[1]) if named and found else None


_RECIPIENT = re.compile(r"([\w.\-]++)\n")
FUNCTIONARY = Format(
    "functionary",
    (">>>all",),
    (Span(">>>", read=SpanReader(_read_functionary, _match_functionary)), HERMES),
    make=make_bare_parser,
)


def _hy(template: str) -> tuple[Span, ...]:
    suffix = find_suffix(template) or ""
    tags = ("tool_call", "tool_sep", "arg_key", "arg_value")
    inner = [f"{slash}{tag}{suffix}>" for tag in tags for slash in ("<", "</")]
    opening, closing = f"<tool_calls{suffix}>", f"</tool_calls{suffix}>"
    return (Span(opening, read=sections_reader(suffix), inner=(closing, *inner)), HERMES)


HY = Format("hy", ("<think{}>", "<tool_calls{}>"), of_template=_hy)
FAMILIES = (
    _python_format(
        "lfm2", "<|tool_call_start|>", "<|tool_call_end|>", "<|tool_list_start|>", "List of tools: "
    ),
    _python_format("olmo", "<function_calls>", "</function_calls>"),
    _json_format("granite", "<|tool_call|>", "<|/tool_call|>"),
    _json_format("nemotron", "<TOOLCALL>", "</TOOLCALL>"),
    _json_format("apertus", "<|tools_prefix|>", "<|tools_suffix|>", keyed=True),
    _json_format("gigachat", "<|function_call|>", "<|message_sep|>", listed=False),
    _json_format(
        "gigachat-3",
        "<|message_sep|>\n\nfunction call<|role_sep|>\n",
        "<|message_sep|>",
        mark="<|role_sep|>",
        listed=False,
    ),
    _json_format(
        "internlm",
        "<|action_start|><|plugin|>",
        "<|action_end|>",
        mark="<|action_start|>",
        listed=False,
    ),
    _json_format("firefunction", "functools", mark="functools["),
    KIMI,
    KIMI_K3,
    SOLAR,
    MINIMAX,
    MUSE,
    MINICPM,
    FUNCTIONARY,
    HY,
)


# The first one whose mark is in the template wins: GLM's templates contain Qwen's tag as well.
FORMATS = (
    HARMONY, DEEPSEEK, DSML, GCML, MISTRAL, COMMAND_R, *FAMILIES, MIRO, SEED, APRIEL, GLM, QWEN,
    LLAMA, GEMMA, JSON,
)  # fmt: skip


def find_format(template: str) -> Format:
    """Return the format of a model's calls, by default plain JSON."""
    return next(
        (each for each in FORMATS if any(mark in template for mark in each.marks)),
        JSON,
    )


def thinks(template: str) -> bool:
    """Return whether a model's reasoning can be separated from its answers."""
    return find_format(template) is HARMONY or bool(reasoning_spans(template))


def calls_tools(template: str) -> bool:
    """Return whether a template can describe functions to its model."""
    return "tools" in template


def parser_for(
    template: str, *, tools: Tools = (), prompt: str = "", name: str | None = None
) -> OutputParser:
    """Return a parser of one answer.

    Parameters
    ----------
    template : str
        The model's chat template; empty if it has none.
    tools : sequence of mappings
        Functions that may be called, in OpenAI's format. Without any, text that looks like a call
        stays text.
    prompt : str
        The text that the model continues: some templates end with the tag that begins its
        reasoning.
    name : str or None
        Format to use instead of the template's.

    Raises
    ------
    OptionError
        There is no format with this name.
    """
    chosen = find_format(template) if name is None else _find_named(name)
    return chosen.parser(template, tools, prompt)


def _find_named(name: str) -> Format:
    for each in FORMATS:
        if each.name == name:
            return each
    known = ", ".join(each.name for each in FORMATS)
    raise OptionError(f"parser: {name!r}, needs one of {known}")
