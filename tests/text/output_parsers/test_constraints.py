"""Answers constrained to tool calls, or to JSON after reasoning, in each model's format."""

import json
import random
from functools import partial

import pytest

from tests.text.grammar.walks import allowed, random_text
from tests.text.tokenizer.vocabularies import CONTROL, byte_pairs
from wgpu_backend.errors import OptionError
from wgpu_backend.text.grammar import Grammar, GrammarVocabulary, tag_id
from wgpu_backend.text.output_parsers import Content, Thinking, ToolCall, parser_for
from wgpu_backend.text.output_parsers.constraints import Setting, answer_grammar, call_grammar
from wgpu_backend.text.output_parsers.registry import FORMATS, find_format
from wgpu_backend.text.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Oslo", "Bonn"]}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "stop_it"}},
]
VARIANTS = {
    "qwen, coder": "<tool_call> <function=",
    "mistral, with [ARGS]": "[TOOL_CALLS][ARGS]",
    "deepseek, in code": "<｜tool▁calls▁begin｜> ```json",
    "command-r, before": "Action: ```json",
}
TEMPLATES = {each.name: each.marks[0] if each.marks else "" for each in FORMATS} | VARIANTS
TAGS = (
    "<|end|>", "<think>", "</think>", "[TOOL_CALLS]", "<|START_ACTION|>", "<|END_ACTION|>",
    "<|channel|>", "<|message|>", "<|constrain|>", "<|start|>", "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>",
)  # fmt: skip


def _made(tags):
    special = [(tag, CONTROL) for tag in ("</s>", *tags)]
    tokenizer = Tokenizer.from_metadata(byte_pairs(["a b", "t r"], special, eos_token_id=258))
    return tokenizer, GrammarVocabulary(tokenizer, tokenizer.vocab_size)


@pytest.fixture(scope="module", params=[TAGS, ()], ids=["tags are tokens", "tags are text"])
def made(request):
    return _made(request.param)


def parts_of(template, text, prompt="", tools=TOOLS):
    parser = parser_for(template, tools=tools, prompt=prompt)
    return [*parser.push(text), *parser.finish()]


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_that_has_to_be_a_call_is_one_that_the_parser_reads(made, name):
    tokenizer, vocabulary = made
    template = TEMPLATES[name] + " tools"
    grammar = call_grammar(
        TOOLS[:1], Setting(template, "", partial(tag_id, tokenizer), thinks=False)
    )
    rng = random.Random(2)
    for _ in range(4):
        text = random_text(vocabulary, tokenizer, grammar, rng)
        [call] = [p for p in parts_of(template, text) if not _is_space(p)]
        assert isinstance(call, ToolCall), text
        assert call.name == "weather"
        assert call.arguments["city"] in ("Oslo", "Bonn")


@pytest.mark.parametrize(
    ("name", "begins"),
    [
        ("apertus", '<|tools_prefix|>[{"weather": {'),
        ("lfm2", '<|tool_call_start|>[{"name": "weather", "arguments": {'),
        ("olmo", '<function_calls>[{"name": "weather", "arguments": {'),
        ("granite", '<|tool_call|>[{"name": "weather", "arguments": {'),
        ("llama", '{"name": "weather", "parameters": {'),
        ("qwen", '<tool_call>\n{"name": "weather", "arguments": {'),
        ("qwen, coder", "<tool_call>\n<function=weather>\n<parameter=city>\n"),
        ("glm", "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>"),
        ("seed", "<seed:tool_call>\n<function=weather>\n<parameter=city>"),
        ("minimax", '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">'),
        ("minicpm", '<function name="weather"><param name="city">'),
        (
            "dsml",
            '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="weather">\n<｜DSML｜parameter name="city" '
            'string="true">',
        ),
    ],
)
def test_a_call_that_has_to_be_is_in_the_familys_own_form(name, begins):
    tokenizer, vocabulary = _made(())
    setting = Setting(TEMPLATES[name], "", partial(tag_id, tokenizer), thinks=False)
    grammar = call_grammar(TOOLS[:1], setting)
    text = random_text(vocabulary, tokenizer, grammar, random.Random(1))
    assert text.startswith(begins)


def _is_space(part):
    return isinstance(part, Content) and not part.text.strip()


def test_any_of_the_functions_may_be_called(made):
    tokenizer, vocabulary = made
    grammar = call_grammar(TOOLS, Setting("<tool_call>", "", partial(tag_id, tokenizer)))
    rng = random.Random(0)
    texts = [random_text(vocabulary, tokenizer, grammar, rng, 300) for _ in range(8)]
    found = [parts_of("<tool_call>", text)[0].name for text in texts if text is not None]
    assert {*found} == {"weather", "stop_it"}


THINKS = "<think> </think> <tool_call>"
ANSWER = Grammar.json_schema({"enum": ["yes", "no"]})


@pytest.mark.parametrize("prompt", ["user\n<think>\n", ""])
def test_reasoning_may_come_before_the_answer(made, prompt):
    tokenizer, vocabulary = made
    grammar = answer_grammar(ANSWER, Setting(THINKS, prompt, partial(tag_id, tokenizer)))
    thought = "I wonder, {or not}</think>\n\n" if prompt else "<think>So.</think>"
    for reasoned in [thought] if prompt else [thought, ""]:
        matcher = vocabulary.matcher(grammar)
        for token in tokenizer.encode(f'{reasoned}"yes"', add_special=False, parse_special=True):
            assert token in allowed(matcher.mask())
            matcher.take(token)
        assert matcher.is_ended
        parts = parts_of(THINKS, f'{reasoned}"yes"', prompt, tools=())
        assert "".join(p.text for p in parts if isinstance(p, Content)).strip() == '"yes"'
        assert any(isinstance(p, Thinking) for p in parts) == bool(reasoned)


def test_gpt_oss_writes_headers_around_what_was_asked_for():
    tokenizer, vocabulary = _made(TAGS)
    template = "<|channel|>"
    grammar = answer_grammar(ANSWER, Setting(template, "", partial(tag_id, tokenizer)))
    said = "<|channel|>analysis<|message|>hm<|end|><|start|>assistant"
    for before in (said, ""):
        text = f'{before}<|channel|>final<|message|>"no"'
        matcher = vocabulary.matcher(grammar)
        for token in tokenizer.encode(text, add_special=False, parse_special=True):
            matcher.take(token)
        assert matcher.is_ended
        assert json.loads(parts_of(template, text)[-1].text) == "no"


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_answer_to_a_schema_may_be_calls(made, name):
    tokenizer, vocabulary = made
    template = TEMPLATES[name] + " tools"
    setting = Setting(template, "", partial(tag_id, tokenizer), thinks=False)
    grammar = answer_grammar(ANSWER, setting, TOOLS[:1])
    texts = [_likely(vocabulary, tokenizer, grammar, wanted) for wanted in ("yes", "Oslo")]
    said, called = [parts_of(template, text) for text in texts]
    assert "".join(part.text for part in said if isinstance(part, Content)).strip() == '"yes"'
    assert {part.name for part in called if isinstance(part, ToolCall)} == {"weather"}


def _likely(vocabulary, tokenizer, grammar, wanted):
    """A random text of a grammar that has another in it."""
    rng = random.Random(5)
    texts = (random_text(vocabulary, tokenizer, grammar, rng) for _ in range(60))
    return next(text for text in texts if text is not None and wanted in text)


def test_grammars_of_the_whole_answer_and_of_no_template_stay_as_they_are(made):
    setting = Setting(THINKS, "", partial(tag_id, made[0]))
    whole = Grammar.regex("yes|no")
    assert answer_grammar(whole, setting) is whole
    assert answer_grammar(ANSWER, Setting("", "", partial(tag_id, made[0]))) is ANSWER
    assert (
        answer_grammar(ANSWER, Setting(THINKS, "", partial(tag_id, made[0]), thinks=False))
        is ANSWER
    )


def test_tools_that_cannot_be_called_are_named(made):
    setting = Setting("<tool_call>", "", partial(tag_id, made[0]))
    assert find_format("<tool_call>").name == "qwen"
    with pytest.raises(OptionError, match="no tools to call"):
        call_grammar([], setting)
    with pytest.raises(OptionError, match="a function has no name"):
        call_grammar([{"type": "function", "function": {}}], setting)


FIND = {
    "name": "find",
    "parameters": {
        "type": "object",
        "properties": {
            "q": {"type": "string", "description": "what"},
            "n": {"type": "integer"},
            "mode": {"enum": ["fast", "slow"]},
            "where": {"type": "array", "items": {"$ref": "#/$defs/place"}},
        },
        "required": ["q", "mode"],
        "$defs": {"place": {"type": "string"}},
    },
}


def _held(vocabulary, tokenizer, grammar, text):
    """Whether a grammar has this text."""
    matcher = vocabulary.matcher(grammar)
    for token in tokenizer.encode(text, add_special=False, parse_special=True):
        if token not in allowed(matcher.mask()):
            return False
        matcher.take(token)
    return matcher.is_ended


@pytest.mark.parametrize("tags", [("<tool_call>", "</tool_call>", "</arg_value>", "｜DSML｜"), ()])
@pytest.mark.parametrize("name", ["qwen, coder", "glm", "seed", "minimax", "dsml", "minicpm"])
def test_values_between_tags_keep_to_their_schema(name, tags):
    tokenizer, vocabulary = _made(tags)
    setting = Setting(TEMPLATES[name], "", partial(tag_id, tokenizer), thinks=False)
    form = find_format(setting.template).form(setting.template)
    grammar = call_grammar([FIND], setting)

    def string(key):
        return "true" if key in ("q", "mode") else "false"

    def written(**values):
        inner = "".join(
            "".join(form.argument).replace("{key}", key).replace("{text}", string(key))
            + text
            + "".join(form.argument_end)
            for key, text in values.items()
        )
        before, after = "".join(form.before).replace("{name}", "find"), "".join(form.after)
        return before + inner + after

    said = 'say "5 < 6"\n\nor </b>'
    text = written(q=said, n="-7", mode="slow", where='["a", "b"]')
    assert _held(vocabulary, tokenizer, grammar, text)
    values = {"q": said, "n": -7, "mode": "slow", "where": ["a", "b"]}
    assert parts_of(setting.template, text, tools=[FIND]) == [ToolCall("find", values)]
    assert _held(vocabulary, tokenizer, grammar, written(q="", mode="fast"))
    for wrong in ({"q": "a"}, {"q": "a", "mode": "other"}, {"q": "a", "n": "x", "mode": "fast"}):
        assert not _held(vocabulary, tokenizer, grammar, written(**wrong))


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string", "pattern": "x+"}}, "required": ["a"]},
        {"properties": {"a": {"type": ["string", "null"]}}},
        {"properties": {"a": {}}},
        {"anyOf": [{"required": ["a"]}], "properties": {"a": {"type": "string"}}},
    ],
)
def test_a_schema_that_tags_cannot_keep_to_is_one_of_a_call_in_json(schema):
    tokenizer, vocabulary = _made(())
    setting = Setting("<function= <tool_call>", "", partial(tag_id, tokenizer), thinks=False)
    grammar = call_grammar([{"name": "f", "parameters": schema}], setting)
    text = '<tool_call>\n{"name": "f", "arguments": {"a": "xx"}}\n</tool_call>'
    assert _held(vocabulary, tokenizer, grammar, text)
