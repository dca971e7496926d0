"""Calls in each family's own form, tags in the texts of arguments, and types by a schema."""

import json
import sys

import pytest

from wgpu_backend.text.output_parsers import ToolCall, Whole, find_format, parser_for, whole
from wgpu_backend.text.output_parsers.calls import OfferedTools, decode_json
from wgpu_backend.text.output_parsers.kinds import allowed_kinds
from wgpu_backend.text.output_parsers.literals import parse_calls_in_python, parse_literal
from wgpu_backend.text.output_parsers.values import convert


def tool(name, **properties):
    schema = {"type": "object", "properties": properties}
    return {"type": "function", "function": {"name": name, "parameters": schema}}


TOOLS = [tool("w", x={"type": "string"}, y={"type": "string"}), tool("g", y={"type": "string"})]
A = '{"x": "a"}'
CALL = f'{{"name": "w", "arguments": {A}}}'
# As the chat templates of the models write a call: format, mark in the template, answer.
FORMS = [
    ("lfm2", "<|tool_call_start|>", '<|tool_call_start|>[w(x="a")]<|tool_call_end|>'),
    ("lfm2", "<|tool_list_start|>", "<|tool_call_start|>[w(x='a')]<|tool_call_end|>"),
    ("lfm2", "<|tool_call_start|>", f"<|tool_call_start|>[{CALL}]<|tool_call_end|>"),
    ("olmo", "<function_calls>", '<function_calls>w("a")\n</function_calls>'),
    ("granite", "<|tool_call|>", f"<|tool_call|>[{CALL}]"),
    ("granite", "<|tool_call|>", f"<|tool_call|> [{CALL}]<|/tool_call|>"),
    ("nemotron", "<TOOLCALL>", f"<TOOLCALL>[{CALL}]</TOOLCALL>"),
    (
        "kimi",
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.w:0<|tool_call_argument_begin|>"
        f"{A}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "kimi",
        "<|im_system|>tool_declare<|im_middle|>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.w:12<|tool_call_argument_begin|>"
        f"{A}<|tool_call_end|><|tool_calls_section_end|>",
    ),
    (
        "lfm2",
        "List of tools: <|tool_list_start|>[",
        f'<|tool_call_start|>[{CALL[:-1]}, "id": "call_1"}}]<|tool_call_end|>',
    ),
    (
        "kimi-k3",
        "<|open|>",
        '<|open|>tools<|sep|><|open|>call tool="w" index="1"<|sep|><|open|>argument key="x" '
        'type="string"<|sep|>a<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>'
        "<|close|>message<|sep|>",
    ),
    (
        "qwen",
        "<tool_calls> <tool_call>",
        f"<tool_calls>\n<tool_call>w\n```json\n{A}\n```\n</tool_call>\n</tool_calls>",
    ),
    ("qwen", "<tool_calls>", f"<tool_calls>\n{CALL}\n</tool_calls>"),
    ("qwen", "<tool_call>", "<function=w>\n<parameter=x>\na\n</parameter>\n</function>"),
    ("apriel", "<tool_calls>[", f"<tool_calls>[{CALL}]</tool_calls>"),
    ("apertus", "<|tools_prefix|>", f'<|tools_prefix|>[{{"w": {A}}}]<|tools_suffix|>'),
    (
        "seed",
        "<seed:tool_call>",
        "<seed:tool_call>\n<function=w>\n<parameter=x>a</parameter>\n</function>\n</seed:tool_call>",
    ),
    (
        "solar",
        "<|tool_call:begin|>",
        f"<|tool_calls|><|tool_call:begin|>abc<|tool_call:name|>w<|tool_call:args|>{A}"
        "<|tool_call:end|><|calls|>",
    ),
    ("gigachat", "<|function_call|>", f"<|function_call|>{CALL}<|message_sep|>"),
    (
        "gigachat-3",
        "<|role_sep|>",
        f"<|message_sep|>\n\nfunction call<|role_sep|>\n{CALL}<|message_sep|>\n\n",
    ),
    ("internlm", "<|action_start|>", f"<|action_start|><|plugin|>\n{CALL}<|action_end|>"),
    ("firefunction", "functools[", f"functools[{CALL}]"),
    ("functionary", ">>>all", f">>>w\n{A}"),
    (
        "minimax",
        "<minimax:tool_call>",
        '<minimax:tool_call>\n<invoke name="w">\n<parameter name="x">a</parameter>\n</invoke>\n'
        "</minimax:tool_call>",
    ),
    (
        "minimax",
        "]<]minimax[>[",
        ']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="w">]<]minimax[>[<x>a]<]minimax[>[</x>'
        "]<]minimax[>[</invoke>\n]<]minimax[>[</tool_call>",
    ),
    (
        "dsml",
        "｜DSML｜",
        '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="w">\n<｜DSML｜parameter name="x" string='
        '"true">a</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
    ),
    (
        "gcml",
        "<|role_sep|> <｜GCML｜invoke",
        '<｜GCML｜tool_calls>\n<｜GCML｜invoke name="w">\n<｜GCML｜parameter name="x" string='
        '"true">a</｜GCML｜parameter>\n</｜GCML｜invoke>\n</｜GCML｜tool_calls>',
    ),
    (
        "mirothinker",
        "<use_mcp_tool> <tool_call>",
        "<use_mcp_tool>\n<server_name>tools</server_name>\n<tool_name>w</tool_name>\n<arguments>\n"
        f"{A}\n</arguments>\n</use_mcp_tool>",
    ),
    (
        "muse",
        "<atem:function_calls>",
        ' to=w<|message|><atem:function_calls>\n<atem:invoke name="w">\n<atem:parameter name="x">a'
        "</atem:parameter>\n</atem:invoke>\n</atem:function_calls>",
    ),
    (
        "minicpm",
        '<function name="',
        '<function name="w"><param name="x"><![CDATA[a]]></param></function>',
    ),
    (
        "hy",
        "{% set HYTK = ':o' %}<think{}>",
        "<tool_calls:o>\n<tool_call:o>w<tool_sep:o>\n<arg_key:o>x</arg_key:o>\n<arg_value:o>a"
        "</arg_value:o>\n</tool_call:o>\n</tool_calls:o>",
    ),
    ("llama", "<|header_start|>", '<|python_start|>[w(x="a")]<|python_end|>'),
    ("llama", "<|header_start|>", '[w(x="a")]'),
    (
        "command-r",
        "directly-answer",
        f'Action:\n```json\n[{{"tool_name": "w", "parameters": {A}}}]```',
    ),
    ("gemma", "<start_of_turn>", '```tool_code\nw(x="a")\n```'),
    # Small models write a call as their whole answer, whatever their template asks for.
    ("qwen", "<tool_call>", CALL),
    ("mistral", "[TOOL_CALLS]", f"```json\n{CALL}\n```"),
    ("granite", "<|tool_call|>", f"```\n[{CALL}]\n```"),
]


def parsed(template, pieces, tools=TOOLS, prompt="", *, cut_off=False):
    parser = parser_for(template, tools=tools, prompt=prompt)
    parts = [part for piece in pieces for part in parser.push(piece)]
    return whole([*parts, *parser.finish(cut=cut_off)])


def at_every_place(template, text, tools=TOOLS):
    """What is found whole and by characters, which has to be what any two pieces give."""
    found = parsed(template, [text], tools)
    assert parsed(template, text, tools) == found
    for at in range(1, len(text)):
        assert parsed(template, [text[:at], text[at:]], tools) == found, at
    return found


@pytest.mark.parametrize(("name", "mark", "text"), FORMS)
def test_families_write_calls_in_their_own_forms(name, mark, text):
    template = f"{{% if tools %}}{mark}{{% endif %}}"
    assert find_format(template).name == name
    assert at_every_place(template, text) == Whole("", "", (ToolCall("w", {"x": "a"}),))


def qwen(name, **values):
    inner = "".join(f"<parameter={k}>\n{v}\n</parameter>\n" for k, v in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


def glm(name, **values):
    inner = "".join(
        f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in values.items()
    )
    return f"<tool_call>{name}\n{inner}</tool_call>"


def seed(name, **values):
    inner = "".join(f"<parameter={k}>{v}</parameter>\n" for k, v in values.items())
    return f"<seed:tool_call>\n<function={name}>\n{inner}</function>\n</seed:tool_call>"


def minimax(name, **values):
    inner = "".join(f'<parameter name="{k}">{v}</parameter>\n' for k, v in values.items())
    return f'<minimax:tool_call>\n<invoke name="{name}">\n{inner}</invoke>\n</minimax:tool_call>'


def python(name, **values):
    inner = ", ".join(f"{k}={v!r}" for k, v in values.items())
    return f"<|tool_call_start|>[{name}({inner})]<|tool_call_end|>"


def gemma(name, **values):
    inner = ",".join(f'{k}:<|"|>{v}<|"|>' for k, v in values.items())
    return f"<|tool_call>call:{name}{{{inner}}}<tool_call|>"


def in_json(before, after, *, named=False):
    def write(name, **values):
        given = values if named else {"name": name, "arguments": values}
        return f"{before.format(name)}{json.dumps(given)}{after}"

    return write


DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{}<｜tool▁sep｜>"
DEEPSEEK_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
WRITERS = {
    "Hermes": ("<tool_call>", in_json("<tool_call>\n", "\n</tool_call>")),
    "Qwen3-Coder": ("<tool_call>", qwen),
    "GLM": ("<arg_key>", glm),
    "Seed-OSS": ("<seed:tool_call>", seed),
    "MiniMax": ("<minimax:tool_call>", minimax),
    "LFM2": ("<|tool_call_start|>", python),
    "Gemma": ("<|tool_call>", gemma),
    "Nemotron": ("<TOOLCALL>", in_json("<TOOLCALL>[", "]</TOOLCALL>")),
    "Mistral": ("[TOOL_CALLS]", in_json("[TOOL_CALLS]{}[ARGS]", "", named=True)),
    "Functionary": ("<|python_tag|>", in_json("<function={}>", "</function>", named=True)),
    "DeepSeek": ("<｜tool▁calls▁begin｜>", in_json(DEEPSEEK, DEEPSEEK_END, named=True)),
    "gpt-oss": (
        "<|channel|>",
        in_json("<|channel|>commentary to=functions.{}<|message|>", "<|call|>", named=True),
    ),
}
TEXTS = [
    "ends with </tool_call> here", "<tool_call> begins", "a </parameter> b", "see <parameter=y>",
    "<function=g>\nq", "a </function> b", "p = '<parameter=z>'\nin\n'</parameter>'",
    "<arg_key>k</arg_key>", "a </arg_value> b", "use [TOOL_CALLS] here", "```json\n{}\n```",
    "ends with <tool_call|> here", "{a: [1, 2]}", 'She said "no" \\ and \'yes\'', "</TOOLCALL>]",
    "<|tool_call_end|>]", "\n\nlines\n", "", "<｜tool▁call▁end｜>", "<|call|> <|end|>", "}]})",
    "<seed:tool_call></seed:tool_call>", "</invoke></minimax:tool_call>", "it's ''' and \"\"\"",
]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("name", WRITERS)
def test_a_tag_in_an_argument_is_text(name, text):
    template, write = WRITERS[name]
    answer = write("w", x=text, y="tail")
    wanted = Whole("", "", (ToolCall("w", {"x": text, "y": "tail"}),))
    assert parsed(template, [answer]) == wanted
    assert parsed(template, answer) == wanted


@pytest.mark.parametrize("name", WRITERS)
def test_calls_follow_each_other_with_tags_in_them(name):
    template, write = WRITERS[name]
    first, second = write("w", x="a </x> b", y="1"), write("g", y="</tool_call> end")
    wanted = (ToolCall("w", {"x": "a </x> b", "y": "1"}), ToolCall("g", {"y": "</tool_call> end"}))
    between = "<|start|>assistant" if name == "gpt-oss" else "\n"
    assert at_every_place(template, first + between + second) == Whole("", "", wanted)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("<tool_call>\n<function=w>\n<parameter=x>\na\n</tool_call>", ("a",)),
        (
            "<tool_call>\n<function=w>\n<parameter=x>\na</parameter>\n</function>\n</tool_call>",
            ("a",),
        ),
        ("<tool_call>\n<function=w>\n<parameter=x>\na\n</parameter>", ("a",)),
        (f"<tool_call>{CALL}}}</tool_call>", ("a",)),
        (f"<tool_call>{CALL}", ("a",)),
    ],
)
def test_a_call_whose_tags_are_left_out_is_one(text, calls):
    found = at_every_place("<tool_call>", text)
    assert tuple(call.arguments["x"] for call in found.tool_calls) == calls
    assert found.content == ""


@pytest.mark.parametrize(
    "text",
    [
        "Write <tool_call> in front of it.",
        "<tool_call>{\"name\": 'w'}</tool_call> so",
        "Say [TOOL_CALLS] or <function=w, and so on.",
        '{"answer": 1}',
        '```json\n{"name": "nobody", "arguments": {}}\n```',
        "```python\nprint(1)\n```",
    ],
)
def test_what_is_no_call_stays_text(text):
    for template in ("<tool_call>", "[TOOL_CALLS]", "<|tool_call_start|>", "<|python_tag|>"):
        assert at_every_place(template, text) == Whole(text, "", ())


def test_text_that_speaks_of_a_call_keeps_the_calls_after_it():
    text = f'I write <tool_call> and "{{": <tool_call>{CALL}</tool_call>'
    found = at_every_place("<tool_call>", text)
    assert found == Whole('I write <tool_call> and "{":', "", (ToolCall("w", {"x": "a"}),))


STRING = {"type": "string"}
NULL = {"type": "null"}
TYPES = [
    # Schema, text of the model, value: a text stays one however its schema says "text".
    (STRING, "123", "123"),
    ({"anyOf": [STRING, NULL]}, "00123", "00123"),
    ({"oneOf": [NULL, STRING]}, "1e5", "1e5"),
    ({"type": ["string", "null"]}, "true", "true"),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": "string", "nullable": True}, "12", "12"),
    ({"enum": ["123", "456"]}, "123", "123"),
    ({"enum": ["1", 2]}, "1", "1"),
    ({"enum": ["1", 2]}, "2", 2),
    ({"const": "123"}, "123", "123"),
    ({"$ref": "#/$defs/Id"}, "123", "123"),
    ({"$ref": "#/definitions/Deep"}, "123", "123"),
    ({"allOf": [STRING, {"minLength": 1}]}, "123", "123"),
    ({"allOf": [{"$ref": "#/$defs/Id"}]}, "[1]", "[1]"),
    ({"anyOf": [{"enum": ["7"]}, NULL]}, "7", "7"),
    ({"pattern": "^[0-9]+$"}, "123", "123"),
    ({"anyOf": [STRING, {"type": "integer"}]}, "5", 5),
    ({"anyOf": [STRING, {"type": "integer"}]}, "x", "x"),
    ({"anyOf": [STRING, {"type": "integer"}]}, "005", "005"),
    ({"anyOf": [STRING, {"type": "array"}]}, '["a"]', ["a"]),
    ({"type": "integer"}, "5", 5),
    ({"type": "integer"}, "5.0", 5),
    ({"type": "integer"}, '"5"', 5),
    ({"type": "number"}, "5", 5),
    ({"type": "number"}, ".5", 0.5),
    ({"type": "boolean"}, "True", True),
    ({"type": "boolean"}, "FALSE", False),
    ({"type": ["boolean", "null"]}, "None", None),
    ({"type": "array"}, "['a', 'it\\'s', None]", ["a", "it's", None]),
    ({"type": "object"}, "{'a': True, 'b': (1, 2),}", {"a": True, "b": [1, 2]}),
    ({"properties": {}}, "{'a': 1}", {"a": 1}),
    ({"type": "array"}, "open['x']", "open['x']"),
    ({}, "123", 123),
    ({}, "a b", "a b"),
    ({"$ref": "#/$defs/Loop"}, "1", 1),
    ({"anyOf": [{"$ref": "#/$defs/Loop"}, STRING]}, "a", "a"),
    ({"type": "str"}, "123", "123"),
    ({"type": "STRING"}, "1e5", "1e5"),
    ({"type": "varchar"}, "007", "007"),
    ({"type": "INTEGER"}, "5.0", 5),
    ({"type": "dict"}, "{'a': None}", {"a": None}),
    ({"type": ["bool", "none"]}, "None", None),
    ({"$ref": "#/$defs/List%5Bstr%5D"}, "12", "12"),
    ({"$ref": "#Named"}, "12", "12"),
]
ROOT = {
    "$defs": {
        "Id": STRING,
        "List[str]": STRING,
        "Other": {"$anchor": "Named", "type": "string"},
        "Loop": {"anyOf": [{"$ref": "#/$defs/Loop"}] * 9},
    },
    "definitions": {"Deep": {"$ref": "#/$defs/Id"}},
}


@pytest.mark.parametrize(("schema", "text", "value"), TYPES)
def test_a_schema_says_what_a_bare_value_is(schema, text, value):
    found = convert(text, allowed_kinds(schema, ROOT))
    assert found == value
    assert type(found) is type(value)


def test_types_of_a_tool_reach_every_form_with_bare_values():
    schema = {"anyOf": [STRING, NULL]}
    tools = [tool("w", x=schema, y={"type": "array"})]
    for name in ("Qwen3-Coder", "GLM", "Seed-OSS", "MiniMax"):
        template, write = WRITERS[name]
        found = parsed(template, write("w", x="007", y="[1, None]"), tools)
        assert found.tool_calls == (ToolCall("w", {"x": "007", "y": [1, None]}),)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "additionalProperties": STRING},
        {"patternProperties": {"^[xy]$": STRING}, "additionalProperties": False},
        {"$ref": "#/$defs/Both", "$defs": {"Both": {"properties": {"x": STRING, "y": STRING}}}},
        {"allOf": [{"properties": {"x": STRING}}, {"properties": {"y": STRING}}]},
        {"oneOf": [{"properties": {"x": STRING}}, {"properties": {"x": STRING, "y": STRING}}]},
        {"properties": {"x": STRING}, "additionalProperties": {"type": ["string", "null"]}},
        {"x": STRING, "y": STRING},
    ],
)
def test_a_parameter_is_found_wherever_the_schema_has_it(schema):
    tools = [{"type": "function", "function": {"name": "w", "parameters": schema}}]
    template, write = WRITERS["Qwen3-Coder"]
    found = parsed(template, write("w", x="007", y="1e5"), tools)
    assert found.tool_calls == (ToolCall("w", {"x": "007", "y": "1e5"}),)


def test_positional_values_take_the_parameters_of_all_parts_of_a_schema():
    schema = {"allOf": [{"properties": {"x": STRING}}, {"$ref": "#/$defs/Y"}]}
    schema["$defs"] = {"Y": {"properties": {"y": STRING}}}
    tools = [{"type": "function", "function": {"name": "w", "parameters": schema}}]
    found = parsed(
        "<|tool_call_start|>", "<|tool_call_start|>[w('a', 'b')]<|tool_call_end|>", tools
    )
    assert found.tool_calls == (ToolCall("w", {"x": "a", "y": "b"}),)


def test_minimax_writes_values_in_values():
    token = "]<]minimax[>["
    inner = "<a><item>1</item><item>b</item></a><b><c>true</c></b>".replace("<", token + "<")
    text = f'{token}<tool_call>\n{token}<invoke name="f">{inner}{token}</invoke>{token}</tool_call>'
    found = at_every_place(token, text, [tool("f")])
    assert found.tool_calls == (ToolCall("f", {"a": [1, "b"], "b": {"c": True}}),)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'{"x": "\ud83d"}', {"x": "\ufffd"}),
        (r'{"\udc00": "\ud83d\ude00"}', {"\ufffd": "\U0001f600"}),
        ('{"x": [1e999, -1e999, NaN, Infinity, 1e300]}', {"x": [None, None, None, None, 1e300]}),
        ('{"x": ' + "9" * 400 + ".5}", {"x": None}),
    ],
)
def test_values_can_be_written_as_json_again(text, value):
    assert decode_json(text) == value
    json.dumps(decode_json(text), allow_nan=False, ensure_ascii=False).encode()


def test_python_notation():
    assert parse_literal('{"a": [0x1F, -2.5e1, 1_000, "b" \'c\', r"\\n"]}') == {
        "a": [31, -25.0, 1000, "bc", "\\n"]
    }
    assert parse_literal(r"'\x41\u00e9\n\q\101'") == "Aé\n\\qA"
    assert parse_literal("'''it's\n\"'''") == "it's\n\""
    [one, two] = parse_calls_in_python("[a.b(1, x={'k': null}), c()]")
    assert one == ("a.b", [1], {"x": {"k": None}})
    assert two == ("c", [], {})
    for text in (
        "[a(1)",
        "a(1))",
        "f(x)",
        "f(-)",
        "f(1 2)",
        "[",
        "007",
        "{1}",
        "__import__('os')()",
    ):
        with pytest.raises(ValueError, match=r"."):
            parse_calls_in_python(text)
    with pytest.raises(ValueError, match="nested deeper"):
        parse_literal("[" * 1000)


def test_offered_functions():
    offered = OfferedTools([*TOOLS, {"name": "bare"}])
    assert "w" in offered
    assert "bare" in offered
    assert "x" not in offered
    assert offered.parameters["w"] == ("x", "y")
    assert not offered.kinds("nobody", "x").is_restricted


def test_many_spans_without_an_end_are_read_in_bounded_time():
    text = '<tool_call>{"' * 20_000
    assert parsed("<tool_call>", [text]).content == text


def steps_to_read(template, pieces):
    """Calls of Python functions; patterns are compiled before."""
    parsed(template, pieces)
    parser, steps = parser_for(template, tools=TOOLS), 0

    def count(frame, event, arg):
        nonlocal steps
        steps += event == "call"

    sys.setprofile(count)
    try:
        parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    finally:
        sys.setprofile(None)
    return steps, len(whole(parts).tool_calls)


@pytest.mark.parametrize("name", WRITERS)
def test_a_call_that_is_there_as_a_whole_is_read_in_few_steps(name):
    # 20 MB/s of calls of 250 bytes leave some 50 of them.
    template, write = WRITERS[name]
    text = "\n".join(write("w", x="some words", y="more of them") for _ in range(50))
    steps, calls = steps_to_read(template, [text])
    assert calls == 50
    assert steps <= 20 * 50


MUTATIONS = ["</tool_call>", "<tool_call>", "</s>", "[TOOL_CALLS]", "```", "\n", ";", " and ", "é"]


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("separator", ["", "\n", "\n\n", " "])
def test_random_calls_are_the_same_as_a_whole_and_in_pieces(rng, name, separator):
    template, write = WRITERS[name]
    for _ in range(4):
        texts = rng.choice([*TEXTS, *MUTATIONS], size=(3, 2))
        calls = [write("w", x=str(x), y=str(y)) for x, y in texts]
        text = separator.join([*calls, str(rng.choice(MUTATIONS))])
        wanted = parsed(template, [text])
        assert [call.arguments for call in wanted.tool_calls] == [
            {"x": str(x), "y": str(y)} for x, y in texts
        ]
        cuts = sorted(rng.integers(0, len(text), size=5).tolist())
        pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert parsed(template, pieces) == wanted
        assert parsed(template, text) == wanted


PIECES = [
    *MUTATIONS, "}", "]", "{", "[", '"', "\\", "'", "(", ",", "<function=", "</function>",
    "<|call|>", "<parameter=x>", ">>>", "[ARGS]", "[CALL_ID]abc", "</TOOLCALL>",
    "<|tool_call_end|>", "null",
]  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize("separator", ["", "text", "  and "])
def test_a_damaged_answer_is_the_same_however_it_is_cut(rng, name, separator):
    template, write = WRITERS[name]
    for _ in range(12):
        said = rng.choice([*TEXTS, "a", "12"], size=(3, 2))
        text = separator.join(write("w", x=str(x), y=str(y)) for x, y in said)
        for _ in range(int(rng.integers(1, 4))):
            at, length = (int(n) for n in rng.integers(0, len(text), size=2))
            inserted = str(rng.choice(PIECES)) if rng.random() < 0.5 else ""
            text = text[:at] + inserted + text[at + length % 9 :]
        assert_same_in_pieces(rng, template, text)


@pytest.mark.parametrize(("_", "template", "answer"), FORMS)
def test_a_damaged_call_of_any_form_is_the_same_however_it_is_cut(rng, _, template, answer):
    for _ in range(8):
        text = answer + " and " + answer
        at, length = (int(n) for n in rng.integers(0, len(text), size=2))
        inserted = str(rng.choice(PIECES)) if rng.random() < 0.5 else ""
        assert_same_in_pieces(rng, template, text[:at] + inserted + text[at + length % 9 :])


def assert_same_in_pieces(rng, template, text):
    cuts = sorted(rng.integers(0, len(text), size=4).tolist())
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    for cut_off in (False, True):
        wanted = parsed(template, [text], cut_off=cut_off)
        assert parsed(template, text, cut_off=cut_off) == wanted, text
        assert parsed(template, pieces, cut_off=cut_off) == wanted, text


def test_what_follows_a_code_block_of_calls_is_kept():
    text = f'Action:\n```json\n[{{"tool_name": "w", "parameters": {A}}}]```;Then'
    found = at_every_place("directly-answer", text)
    assert found == Whole(";Then", "", (ToolCall("w", {"x": "a"}),))


@pytest.mark.parametrize("name", WRITERS)
def test_a_call_in_pieces_is_read_in_few_steps_more(name):
    template, write = WRITERS[name]
    said = "one {'a': [x, \"b\"]} and another\n" * 5
    text = "\n".join(write("w", x=said, y="more of them") for _ in range(50))
    pieces = [text[at : at + 64] for at in range(0, len(text), 64)]
    steps, calls = steps_to_read(template, pieces)
    assert calls == 50
    assert steps <= 45 * 50 + 3 * len(pieces), steps / 50


def test_a_call_of_mistral_is_given_when_the_next_one_begins():
    # Its tag begins with a bracket, as a list of calls without a tag does.
    template, write = WRITERS["Mistral"]
    parser = parser_for(template, tools=TOOLS)
    given = [parser.push(write("w", x=text)) for text in "abc"]
    calls = [[part for part in parts if isinstance(part, ToolCall)] for parts in given]
    assert calls[1] == [ToolCall("w", {"x": "b"})]
    assert len(calls[0] + calls[1] + calls[2]) == 3


QWEN_CALL = "<tool_call>\n<function=w>\n<parameter=x>\na\n</parameter>\n</function>\n</tool_call>"
SEED_CALL = QWEN_CALL.replace("tool_call", "seed:tool_call").replace("\na\n", "a")
CALLED = (ToolCall("w", {"x": "a"}),)


@pytest.mark.parametrize("name", [n for n in WRITERS if n not in ("Mistral", "gpt-oss")])
def test_a_call_that_ends_an_answer_ends_its_reasoning(rng, name):
    # As in Ollama and vLLM: Qwen 3.5 and others forget the tag before a call.
    template, write = WRITERS[name]
    text = f"I look.\n{write('w', x='a </think> b')}"
    for answer in (text, f"{text}\n{write('g', y='b')}", f"{text}\n</think>\n"):
        found = parsed(template + "<think>", [answer], prompt="<think>\n")
        assert (found.content, found.thinking) == ("", "I look.")
        assert found.tool_calls[0] == ToolCall("w", {"x": "a </think> b"})
        assert len(found.tool_calls) == 1 + ("b" in answer.split("</think> b")[1])
        assert parsed(template + "<think>", answer, prompt="<think>\n") == found


@pytest.mark.parametrize(
    ("text", "thought"),
    [
        (f"I could say {QWEN_CALL} here.</think>done", f"I could say {QWEN_CALL} here."),
        (
            "<tool_call> or <tool_call> is a tag.</think>done",
            "<tool_call> or <tool_call> is a tag.",
        ),
        (QWEN_CALL.replace("=w", "=nobody") + "</think>done", QWEN_CALL.replace("=w", "=nobody")),
    ],
)
def test_a_call_that_reasoning_goes_on_after_is_part_of_it(text, thought):
    for pieces in ([text], text):
        found = parsed("<tool_call><think>", pieces, prompt="<think>\n")
        assert found == Whole("done", thought, ())


def test_a_call_in_reasoning_that_is_cut_is_not_made():
    for pieces in ([QWEN_CALL[:-40]], QWEN_CALL[:-40]):
        found = parsed("<tool_call><think>", pieces, prompt="<think>\n", cut_off=True)
        assert found.tool_calls == ()
        assert found.content == ""


def test_a_repeated_tag_of_reasoning_is_dropped():
    assert parsed("<think>", "<think>\nplan</think>so", prompt="<think>\n") == Whole(
        "so", "plan", ()
    )


@pytest.mark.parametrize(
    "text",
    [
        QWEN_CALL.replace("</function>\n", "</function>\n</function>\n"),
        QWEN_CALL + "\n</tool_call>",
        QWEN_CALL.removeprefix("<tool_call>\n"),
        QWEN_CALL.replace("=w>", '="w">').replace("=x>", '="x">'),
        f"<tool_call>\n```json\n{CALL}\n```\n</tool_call>",
        f"{CALL}\n</tool_call>",
        f"<tools>\n{CALL}\n</tools>",
        f"<function_call>{CALL}</function_call>",
        f"<json>\n{CALL}\n</json>",
    ],
)
def test_tags_that_models_repeat_or_confuse_are_not_part_of_the_answer(text):
    assert at_every_place("<tool_call>", text) == Whole("", "", CALLED)


@pytest.mark.parametrize("line", ["</parameter>", "</function>", "</tool_call>", "<parameter=z>"])
def test_a_tag_on_the_last_line_of_an_argument_is_part_of_it(line):
    text = QWEN_CALL.replace("</parameter>\n", f"{line}\n</parameter>\n")
    (call,) = at_every_place("<tool_call>", text).tool_calls
    assert call.arguments == {"x": f"a\n{line}"}


@pytest.mark.parametrize(
    "text",
    [
        '<json>{"name": "nobody", "arguments": {}}</json> so',
        f"<xml>{CALL} and text</xml>",
        '<json>\n{"a": [1]}\n</json>',
        "<tool>hammer</tool>",
    ],
)
def test_an_answer_in_tags_of_its_own_stays_text(text):
    assert at_every_place("<tool_call>", text) == Whole(text, "", ())


@pytest.mark.parametrize(
    ("template", "prompt", "text"),
    [
        ("<think> <answer>", "", "<think>\nplan\n</think>\n<answer>\nHello there\n</answer>"),
        ("<think> <answer>", "<think>\n", "plan\n</think>\n<answer>\nHello there\n</answer>\n"),
        ("<think></think> <response>", "", "<think>plan</think><response>Hello there</response>"),
        ("</think> <response>", "<think>\n", "plan\n</think>\n<response>Hello there</response>"),
        ("<thought> </thought>", "[|assistant|]<thought>\n", "plan\n</thought>\n\nHello there"),
        ("<reasoning>", "<reasoning>\n", "plan\n</reasoning>Hello there"),
        ("◁think▷", "", "◁think▷plan◁/think▷Hello there"),
    ],
)
def test_reasoning_and_answer_are_taken_out_of_their_tags(template, prompt, text):
    for pieces in ([text], text, [text[:9], text[9:]]):
        assert parsed(template, pieces, prompt=prompt) == Whole("Hello there", "plan", ())


def test_tags_of_answers_are_text_without_reasoning():
    for template in ("<answer> <response>", "<think>"):
        text = "<answer>\n<response>Hello</response>"
        assert parsed(template, [text]) == Whole(text, "", ())


GEMMA_CALL = '<|tool_call>call:w{x:<|"|>a<|"|>}<tool_call|>'


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        (GEMMA_CALL + "<tool_call|>", {"x": "a"}),
        (GEMMA_CALL + "<|tool_response>", {"x": "a"}),
        ('<|tool_call>call:w{"x":<|"|>a<|"|>,\'y\':1}<tool_call|>', {"x": "a", "y": 1}),
        ('<|tool_call>call:w{x:"b, y: {c}",y:\'d e\'}<tool_call|>', {"x": "b, y: {c}", "y": "d e"}),
        ('<|tool_call>call:w{x:"say \\"hi\\"",y:[<|"|>a "b"<|"|>,"c"]}<tool_call|>',
         {"x": 'say "hi"', "y": ['a "b"', "c"]}),
        ('<|tool_call>call:w{x:<|"|>C:\\users\\n<|"|>}<tool_call|>', {"x": "C:\\users\\n"}),
        ('<|tool_call>call:w{x:<|"|>ls}<tool_call|>', {"x": "ls"}),
        ('<|tool_call>call:w{x:<|"|>a<|"|>,y:{b:[<|"|>f{}]}}<tool_call|>',
         {"x": "a", "y": {"b": ["f{}"]}}),
        ('<|tool_call>call:w{x:<|"|>a<|"|><tool_call|>', {"x": "a"}),
        ('<|tool_call>call:w{x:[<|"|>a<|"|>,{y:1<tool_call|>', {"x": ["a", {"y": 1}]}),
        ("<|tool_call>call:w<tool_call|>", {}),
        ('<|tool_call>w{x:<|"|>a<|"|>}<tool_call|>', {"x": "a"}),
        (f"<|tool_call>{CALL}<tool_call|>", {"x": "a"}),
    ],
)  # fmt: skip
def test_gemmas_calls_are_read_where_marks_are_missing_or_others(text, arguments):
    for pieces in ([text], text):
        assert parsed("<|tool_call>", pieces) == Whole("", "", (ToolCall("w", arguments),))


def test_gemmas_text_about_calls_stays_text():
    for text in ("<|tool_call>nobody{}<tool_call|>", "<|tool_call> is a tag", "a<tool_call|>b"):
        for pieces in ([text], text):
            assert parsed("<|tool_call>", pieces) == Whole(text, "", ())


@pytest.mark.parametrize(
    ("template", "call", "closing"),
    [
        ("<TOOLCALL>", f"<TOOLCALL>[{CALL}]</TOOLCALL>", "</TOOLCALL>"),
        ("<|tool_call_start|>", '[w(x="a")]', "<|tool_call_end|>"),
        ("<seed:tool_call>", SEED_CALL, "</seed:tool_call>"),
        ("<|tool_call|>", f"<|tool_call|>[{CALL}]<|/tool_call|>", "<|/tool_call|>"),
        ("<|tool_calls_section_begin|>", f"```json\n{CALL}\n```", "<|tool_calls_section_end|>"),
    ],
)
def test_a_closing_tag_that_is_repeated_or_alone_is_dropped_after_a_call(template, call, closing):
    for text in (call + closing, f"{call}\n{closing}\n{closing}"):
        for pieces in ([text], text):
            assert parsed(template, pieces) == Whole("", "", CALLED)
    kept = f"Write {closing} there."
    assert parsed(template, [kept]) == Whole(kept, "", ())


def test_arguments_of_gpt_oss_may_stand_in_a_code_block():
    for fence in ("```json\n", "```\n", " ```"):
        text = f"<|channel|>commentary to=functions.w<|message|>{fence}{A}\n```<|call|>"
        for pieces in ([text], text):
            assert parsed("<|channel|>", pieces) == Whole("", "", CALLED)
