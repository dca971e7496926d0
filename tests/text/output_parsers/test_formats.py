"""Each format's answers, whole and in pieces, as the models' templates describe them."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wgpu_backend.errors import OptionError
from wgpu_backend.text.output_parsers import (
    FORMATS,
    Content,
    ToolCall,
    Whole,
    find_format,
    parser_for,
    thinks,
    whole,
)

TEMPLATES = Path(__file__).parents[4] / "shared/data/chat_templates"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]
OSLO = ToolCall("weather", {"city": "Oslo"})
DAYS = ToolCall("weather", {"city": "7", "days": 2})
NOW = ToolCall("now", {})
JSON = '{"name": "weather", "arguments": {"city": "Oslo"}}'
THINK = "<think>"  # in a template: its model reasons

# Format, template beside its marks, answer, content, thinking, calls.
VECTORS = [
    ("json", "", "Hello.", "Hello.", "", ()),
    ("json", "", f"<tool_call>{JSON}</tool_call>", "", "", (OSLO,)),
    ("json", "", JSON, "", "", (OSLO,)),
    ("json", "", f'\n[{JSON}, {{"name": "now"}}]', "", "", (OSLO, NOW)),
    ("json", "", f"{JSON}\n{JSON}", "", "", (OSLO, OSLO)),
    ("json", "", '{"name": "other"}', '{"name": "other"}', "", ()),
    ("json", "", ' {"answer": [1, "}"]} so', ' {"answer": [1, "}"]} so', "", ()),
    ("json", "", '{"name": "weather', '{"name": "weather', "", ()),
    ("json", THINK, f"<think> a b </think>\n\n{JSON}", "", "a b", (OSLO,)),
    ("json", THINK, "\n<think>x</think>\n y ", "y ", "x", ()),
    ("json", THINK, "a < b, <thin", "a < b, <thin", "", ()),
    ("json", THINK, "<think>endless </thin", "", "endless </thin", ()),
    ("qwen", "", f"Sure. <tool_call>\n{JSON}\n</tool_call>", "Sure.", "", (OSLO,)),
    ("qwen", "", f"<tool_call>{JSON}</tool_call>\n<tool_call>{JSON}", "", "", (OSLO, OSLO)),
    ("qwen", "", "<tool_call>{}</tool_call>.", "<tool_call>{}</tool_call>.", "", ()),
    (
        "qwen",
        THINK,
        "<think>I look.</think>\n<tool_call>\n<function=weather>\n<parameter=city>\n7\n</parameter>"
        "\n<parameter=days>\n2\n</parameter>\n</function>\n</tool_call>",
        "",
        "I look.",
        (DAYS,),
    ),
    ("llama", "", '{"name": "weather", "parameters": {"city": "Oslo"}}', "", "", (OSLO,)),
    ("llama", "", f"<|python_tag|>{JSON}; {JSON}<|eom_id|>", "", "", (OSLO, OSLO)),
    (
        "llama",
        "",
        '<|python_tag|>search.call(query="a \\"b\\"")',
        "",
        "",
        (ToolCall("search", {"query": 'a "b"'}),),
    ),
    ("llama", "", 'Now <function=weather>{"city": "Oslo"}</function>', "Now", "", (OSLO,)),
    ("mistral", "", f"[TOOL_CALLS] [{JSON}]", "", "", (OSLO,)),
    (
        "mistral",
        "",
        '[TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]now{}',
        "",
        "",
        (OSLO, NOW),
    ),
    ("mistral", "", "[TOOL_CALLS]now[CALL_ID]a1[ARGS]{}</s>", "", "", (NOW,)),
    ("mistral", "[THINK]", "[THINK]hm[/THINK]See [TOOL]", "See [TOOL]", "hm", ()),
    (
        "deepseek",
        THINK,
        "<think>hm</think>Wait.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n"
        '```json\n{"city": "Oslo"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        "Wait.",
        "hm",
        (OSLO,),
    ),
    (
        "deepseek",
        "",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}'
        "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "",
        "",
        (OSLO, NOW),
    ),
    (
        "glm",
        THINK,
        "<think></think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>7</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>2</arg_value>\n</tool_call><tool_call>now</tool_call>",
        "",
        "",
        (DAYS, NOW),
    ),
    (
        "command-r",
        "<|START_THINKING|>",
        '<|START_THINKING|>hm<|END_THINKING|><|START_ACTION|>[{"tool_call_id": "0", "tool_name": '
        '"weather", "parameters": {"city": "Oslo"}}]<|END_ACTION|>',
        "",
        "hm",
        (OSLO,),
    ),
    ("command-r", "", "<|START_RESPONSE|>Cold.<|END_RESPONSE|>", "Cold.", "", ()),
    (
        "command-r",
        "",
        'Action: ```json\n[{"tool_name": "weather", "parameters": {"city": "Oslo"}}]\n```',
        "",
        "",
        (OSLO,),
    ),
    (
        "gemma",
        "",
        "<start_function_call>call:weather{city:<escape>Oslo<escape>}<end_function_call>",
        "",
        "",
        (OSLO,),
    ),
    (
        "gemma",
        "<|channel>thought",
        '<|channel>thought\nhm<channel|><|tool_call>call:f{a:[1,-2.5,true],b:{c:<|"|>{,}<|"|>}}<tool_call|>',
        "",
        "hm",
        (ToolCall("f", {"a": [1, -2.5, True], "b": {"c": "{,}"}}),),
    ),
    ("gemma", "", f"Here:\n```tool_call\n{JSON}\n```", "Here:", "", (OSLO,)),
    ("gemma", "", "```python\n1\n```", "```python\n1\n```", "", ()),
    (
        "harmony",
        "",
        "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>commentary "
        'to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
        "",
        "hm",
        (OSLO,),
    ),
    (
        "harmony",
        "",
        "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>",
        "b",
        "a",
        (),
    ),
    ("harmony", "", "No channel <| at all", "No channel <| at all", "", ()),
    (
        "harmony",
        "",
        "<|start|>assistant to=functions.now<|channel|>commentary<|message|>{}",
        "",
        "",
        (NOW,),
    ),
]
IDS = [f"{v[0]}-{i}" for i, v in enumerate(VECTORS)]


def parsed(name, template, pieces, tools=TOOLS, prompt="") -> Whole:
    parser = parser_for(template, tools=tools, prompt=prompt, name=name)
    parts = [part for piece in pieces for part in parser.push(piece)]
    return whole([*parts, *parser.finish()])


@pytest.mark.parametrize(
    ("name", "template", "text", "content", "thinking", "calls"), VECTORS, ids=IDS
)
def test_an_answer_is_taken_apart(name, template, text, content, thinking, calls):
    wanted = Whole(content, thinking, calls)
    assert parsed(name, template, [text]) == wanted
    assert parsed(name, template, list(text)) == wanted


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(VECTORS), st.lists(st.integers(1, 12), max_size=80))
def test_any_division_of_a_text_gives_the_same(vector, sizes):
    name, template, text = vector[:3]
    pieces, at = [], 0
    for size in sizes:
        pieces.append(text[at : at + size])
        at += size
    assert parsed(name, template, [*pieces, text[at:]]) == Whole(*vector[3:])


CUT = [
    ("qwen", '<tool_call>\n{"name": "weather", "argu'),
    ("qwen", "<tool_call>\n<function=weather>\n<parameter=city>\nOs"),
    ("glm", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>"),
    ("mistral", '[TOOL_CALLS]weather[ARGS]{"city": "Os'),
    ("llama", '{"name": "weather", "parameters": {"ci'),
    ("json", '[{"name": "weather", "arguments"'),
    ("harmony", "<|channel|>commentary to=functions.weather<|message|>"),
    ("harmony", '<|channel|>commentary to=functions.weather<|message|>{"ci'),
    ("gemma", "<|tool_call>call:weather{city:"),
]


@pytest.mark.parametrize(("name", "text"), CUT)
def test_of_a_call_that_is_cut_nothing_is_given(name, text):
    parser = parser_for("", tools=TOOLS, name=name)
    assert whole([*parser.push(text), *parser.finish(cut=True)]) == Whole("", "", ())


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [
        ("qwen", '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}', "", (OSLO,)),
        ("json", '{"weather": "col', '{"weather": "col', ()),
        ("json", '{"name": "Oslo", "is": "col', '{"name": "Oslo", "is": "col', ()),
    ],
)
def test_whole_calls_and_text_that_is_cut_are_given(name, text, content, calls):
    parser = parser_for("", tools=TOOLS, name=name)
    assert whole([*parser.push(text), *parser.finish(cut=True)]) == Whole(content, "", calls)


TOKENS = sorted({tag for f in FORMATS for tag in f.parser(THINK, TOOLS, "").tags})


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from([f.name for f in FORMATS]),
    st.lists(st.sampled_from([*TOKENS, *(t[:-1] for t in TOKENS), JSON, "a", " ", "{", "}", "\n"])),
    st.data(),
)
def test_text_that_no_model_would_write_does_not_depend_on_its_pieces(name, words, data):
    text = "".join(words)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(name, THINK, pieces) == parsed(name, THINK, [text])


@pytest.mark.parametrize("name", [f.name for f in FORMATS])
def test_no_piece_of_a_tag_is_shown_before_its_end(name):
    for vector in VECTORS:
        if vector[0] != name or not vector[5]:
            continue
        parser = parser_for(vector[1], tools=TOOLS, name=name)
        seen = whole(part for char in vector[2] for part in parser.push(char))
        assert vector[3].startswith(seen.content)
        assert vector[4].startswith(seen.thinking)


@pytest.mark.parametrize("name", [f.name for f in FORMATS if f.name != "harmony"])
def test_without_tools_what_looks_like_a_call_is_text(name):
    for vector in VECTORS:
        if vector[0] == name:
            assert parsed(name, vector[1], list(vector[2]), tools=()).tool_calls == ()
    assert parsed(name, "", [JSON], tools=()).content == JSON


def test_reasoning_that_the_prompt_begins():
    for prompt in ("<|im_start|>assistant\n<think>\n", "<think>"):
        found = parsed("qwen", THINK, ["hm</th", "ink>\n\nYes"], prompt=prompt)
        assert found == Whole("Yes", "hm", ())
    assert parsed("qwen", THINK, ["Yes"], prompt="<think>\n\n</think>\n\n") == Whole("Yes", "", ())


def test_reasoning_comes_before_it_is_over():
    parser = parser_for(THINK, tools=TOOLS)
    parser.push("<think>one")
    assert whole(parser.push(" two th")).thinking == " two th"


def test_arguments_that_are_text_and_deep_json():
    call = json.dumps({"name": "weather", "arguments": json.dumps({"city": "Oslo"})})
    assert parsed("qwen", "", [f"<tool_call>{call}</tool_call>"]).tool_calls == (OSLO,)
    deep = "<tool_call>" + "[" * 100_000 + "</tool_call>"
    assert parsed("qwen", "", [deep]) == Whole(deep, "", ())
    nest = "<|tool_call>call:f{a:" + "[" * 100_000 + "<tool_call|>"
    assert parsed("gemma", "", [nest]) == Whole(nest, "", ())


@pytest.mark.parametrize(
    ("file", "name", "reasons"),
    [
        ("google-gemma-2-2b-it", "gemma", False),
        ("mistralai-Mistral-Nemo-Instruct-2407", "mistral", False),
        ("meta-llama-Llama-3.1-8B-Instruct", "llama", False),
        ("Qwen-Qwen2.5-7B-Instruct", "qwen", False),
        ("Qwen-Qwen3-0.6B", "qwen", True),
        ("HuggingFaceTB-SmolLM3-3B", "json", True),
        ("openai-gpt-oss-120b", "harmony", True),
        ("deepseek-ai-DeepSeek-R1-Distill-Qwen-32B", "deepseek", True),
        ("microsoft-Phi-3.5-mini-instruct", "json", False),
    ],
)
def test_templates_tell_their_format(file, name, reasons):
    path = TEMPLATES / f"{file}.jinja"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    text = path.read_text(encoding="utf-8")
    assert find_format(text).name == name
    assert thinks(text) == reasons


def test_an_unknown_format_is_an_error_with_those_there_are():
    with pytest.raises(OptionError, match="parser: 'toaster', needs one of harmony, deepseek"):
        parser_for("", name="toaster")


@pytest.mark.parametrize("step", [1, 7, 5000])
def test_what_is_too_long_for_a_header_of_harmony_is_text(step):
    text = "<|channel|>" + "word " * 300 + "<|end|><|start|>assistant<|channel|>final<|message|>b"
    pieces = [text[at : at + step] for at in range(0, len(text), step)]
    assert parsed("harmony", "", pieces) == Whole("word " * 300 + "b", "", ())
    parser = parser_for("", tools=TOOLS, name="harmony")
    shown = parser.push("<|channel|>" + "word " * 300)
    assert shown == [Content("word " * 300)]
