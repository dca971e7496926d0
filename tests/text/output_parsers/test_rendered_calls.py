"""Calls as a model's own template writes them into a conversation, read back by the parser.

The templates are short ones with the same tags, quotation and order as the models' own.
"""

import pytest

from wgpu_backend.text.chat_template import ChatTemplate, name_calls
from wgpu_backend.text.output_parsers import ToolCall, find_format, parser_for, whole


def tool(name, **properties):
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TEXT = {"type": "string"}
TOOLS = [
    tool("weather", city=TEXT, days={"type": "integer"}),
    tool("note", text=TEXT, tags={"type": "array"}, urgent={"type": "boolean"}),
    tool("now"),
]
LOOP = (
    "{% if tools %}{{ tools|tojson }}{% endif %}{% for m in messages %}{% if m.role == 'user' %}"
    "<user>{{ m.content }}</user>{% elif m.role == 'tool' %}<tool>{{ m.tool_call_id }}</tool>"
    "{% elif m.tool_calls %}"
)
END = "{% endif %}{% endfor %}"


def template(before, call, after="", *, each="{% set f = c.function %}"):
    return f"{LOOP}{before}{{% for c in m.tool_calls %}}{each}{call}{{% endfor %}}{after}{END}"


def arguments(text):
    return "{% for k, v in f.arguments.items() %}" + text + "{% endfor %}"


VALUE = "{{ v if v is string else v|tojson }}"
BARE = "{{ v if v is string else v|string }}"
PYTHON = '{{ "\'" ~ v ~ "\'" if v is string else v|string }}{% if not loop.last %}, {% endif %}'
TEMPLATES = {
    "MiniMax M1": template(
        "<tool_calls>\n",
        '{{ \'{"name": "\' ~ f.name ~ \'", "arguments": \' ~ f.arguments|tojson ~ "}\\n" }}',
        "</tool_calls>",
    ),
    "MiniMax M2": template(
        "\n<minimax:tool_call>\n",
        '<invoke name="{{ f.name }}">\n'
        + arguments(f'<parameter name="{{{{ k }}}}">{VALUE}</parameter>\n')
        + "</invoke>\n",
        "</minimax:tool_call>",
    ),
    "DeepSeek V3.2": template(
        "\n\n<｜DSML｜function_calls>\n",
        '<｜DSML｜invoke name="{{ f.name }}">\n'
        + arguments(
            '<｜DSML｜parameter name="{{ k }}" string="{{ "true" if v is string else "false" }}">'
            f"{VALUE}</｜DSML｜parameter>\n"
        )
        + "</｜DSML｜invoke>\n",
        "</｜DSML｜function_calls>",
    ),
    "MiniCPM 4": template(
        "<|thought_start|>\nI look.\n<|thought_end|>\n<|tool_call_start|>\n```python\n",
        "{{ f.name }}("
        + arguments(
            "{{ k }}={{ v|tojson if v is string else v|string }}{% if not loop.last %}, {% endif %}"
        )
        + ")\n",
        "```\n<|tool_call_end|>",
    ),
    "MiniCPM 5": template(
        "",
        '<function name="{{ f.name }}">'
        + arguments(
            '<param name="{{ k }}">{% if v is string and ("<" in v or "\n" in v) %}'
            f"<![CDATA[{{{{ v }}}}]]>{{% else %}}{BARE}{{% endif %}}</param>"
        )
        + "</function>\n",
    ),
    "Kimi K2 Thinking": template(
        "<|tool_calls_section_begin|>",
        "{% set tool_call = c %}<|tool_call_begin|>{{ tool_call['id'] }}"
        "<|tool_call_argument_begin|>{{ f.arguments|tojson }}<|tool_call_end|>",
        "<|tool_calls_section_end|>",
    ),
    "LFM2.5": template(
        "<|tool_call_start|>[",
        "{{ f.name }}(" + arguments("{{ k }}=" + PYTHON) + "){% if not loop.last %}, {% endif %}",
        "]<|tool_call_end|>",
    ),
}
FORMATS = {
    "MiniMax M1": "qwen", "MiniMax M2": "minimax", "DeepSeek V3.2": "dsml", "MiniCPM 4": "lfm2",
    "MiniCPM 5": "minicpm", "Kimi K2 Thinking": "kimi", "LFM2.5": "lfm2",
}  # fmt: skip
CALLS = [
    [("weather", {"city": "Oslo", "days": 2})],
    [("weather", {"city": "007", "days": -3}), ("now", {}), ("weather", {"city": "Bonn"})],
    [("note", {"text": "it's O'Hare's, isn't it?", "tags": ["a", 1, "it's"], "urgent": True})],
    [("note", {"text": "'", "urgent": False}), ("note", {"text": "say 'x', y='z') or \"no\""})],
    [("note", {"text": "see </invoke> and </param>, ]]> or </｜DSML｜parameter>\n<b>\nend"})],
    [("note", {"text": "a [x] (y) {z} <|tool_call_end|> 5 < 6", "tags": []})],
]


def conversation(calls, *, ids=True):
    made = [
        {"type": "function", "function": {"name": name, "arguments": values}}
        | ({"id": f"call_{i}"} if ids else {})
        for i, (name, values) in enumerate(calls)
    ]
    results = [
        {"role": "tool", "content": "ok"} | ({"tool_call_id": f"call_{i}"} if ids else {})
        for i in range(len(calls))
    ]
    user = {"role": "user", "content": "hi"}
    return [user, {"role": "assistant", "content": "", "tool_calls": made}, *results]


@pytest.mark.parametrize("calls", CALLS, ids=range(len(CALLS)))
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_rendered_call_is_read_back(name, calls):
    source = TEMPLATES[name]
    assert find_format(source).name == FORMATS[name]
    made, messages = ChatTemplate(source), conversation(calls)[:2]
    before = made.render(messages[:1], tools=TOOLS)
    text = made.render(name_calls(source, messages), tools=TOOLS).removeprefix(before)
    wanted = tuple(ToolCall(function, values) for function, values in calls)
    for step in (1, 3, 64, len(text)):
        parser = parser_for(source, tools=TOOLS, prompt=before)
        parts = [p for at in range(0, len(text), step) for p in parser.push(text[at : at + step])]
        found = whole([*parts, *parser.finish()])
        assert found.tool_calls == wanted, step
        assert not found.content.strip()
        assert found.thinking == ("I look." if name == "MiniCPM 4" else "")


@pytest.mark.parametrize("ids", [True, False])
def test_kimis_history_names_functions_in_ids(ids):
    source = TEMPLATES["Kimi K2 Thinking"]
    said = conversation(CALLS[1], ids=ids) + conversation(CALLS[0], ids=ids)
    text = ChatTemplate(source).render(name_calls(source, said))
    wanted = ["weather:0", "now:1", "weather:2", "weather:3"]
    for each in wanted:
        assert f"<|tool_call_begin|>functions.{each}<|tool_call_argument_begin|>" in text
        assert f"<tool>functions.{each}</tool>" in text
    # Results in another order keep the ids of their calls.
    if ids:
        said[2:5] = said[4:1:-1]
        text = ChatTemplate(source).render(name_calls(source, said))
        assert text.index("<tool>functions.weather:2") < text.index("<tool>functions.weather:0")


def test_ids_of_other_templates_stay():
    said = conversation(CALLS[0])
    assert name_calls(TEMPLATES["MiniMax M2"], said) is said
    odd = [{"role": "assistant", "tool_calls": ["x", {"function": 1}]}, {"role": "tool"}]
    assert name_calls(TEMPLATES["Kimi K2 Thinking"], odd) == odd
