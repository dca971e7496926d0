"""Texts and numbers that JSON in UTF-8 cannot hold, and control tokens in whole prompts."""

import json

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")
from tests.server.serving import client_of
from wgpu_backend.server.core.defaults import supply_variables
from wgpu_backend.text.chat_template import ChatTemplate

HALF = rb'"\ud83d"'
FIXED = b'"options": {"num_predict": 2, "temperature": 0}, "stream": false'


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store")) as client:
        yield client


def strict(text):
    """A value as parsers read it that take JSON by the letter, and UTF-8."""

    def refuse(name):
        raise ValueError(name)

    value = json.loads(text, parse_constant=refuse)
    json.dumps(value, ensure_ascii=False).encode()
    return value


TURNS = b'"messages": [{"role": "user", "content": %s}]'
BODIES = [
    ("/api/chat", b'{"model": "actor", ' + TURNS + b", " + FIXED + b"}"),
    ("/api/generate", b'{"model": "tale", "prompt": %s, ' + FIXED + b"}"),
    ("/v1/responses", b'{"model": "actor", "input": "a", "metadata": {"k": %s}}'),
    ("/v1/responses", b'{"model": "actor", "input": "a", "instructions": %s}'),
    ("/v1/completions", b'{"model": "tale", "prompt": %s, "max_tokens": 2}'),
    ("/v1/messages", b'{"model": "actor", "max_tokens": 2, ' + TURNS + b"}"),
    ("/apply-template", b'{"model": "actor", ' + TURNS + b"}"),
    ("/tokenize", b'{"model": "tale", "content": %s}'),
    pytest.param(
        "/v1/images/generations",
        b'{"model": "pictures", "prompt": %s, "size": "64x64", "steps": 1}',
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize("half", [HALF, b'"a\xed\xa0\xbdb"'], ids=["escaped", "as bytes"])
@pytest.mark.parametrize(("path", "body"), BODIES)
def test_half_of_a_surrogate_pair_is_taken_as_go_takes_it(client, path, body, half):
    found = client.post(path, content=body.replace(b"%s", half))
    assert found.status_code == 200, found.text
    strict(found.text)


def test_half_of_a_pair_in_calls_that_were_made_and_in_stored_messages(client):
    call = {"id": "a", "function": {"name": "f", "arguments": r'{"x": "\ud83d", "y": 1e999}'}}
    turns = [{"role": "user", "content": "x"}, {"role": "assistant", "tool_calls": [call]}]
    body = {"model": "actor", "messages": [*turns, {"role": "user", "content": "y"}]}
    assert client.post("/v1/chat/completions", json=body).status_code == 200
    made = b'{"model": "mine", "from": "actor", "system": %s, "license": [%s], ' + TURNS + b"}"
    assert client.post("/api/create", content=made.replace(b"%s", HALF)).status_code == 200
    shown = client.post("/api/show", json={"model": "mine"})
    assert shown.status_code == 200
    found = strict(shown.text)
    assert found["messages"][0]["content"] == found["system"] == found["license"] == "\ufffd"


@pytest.mark.parametrize("number", [b"NaN", b"-Infinity", b"1e999", b"-1e400"])
def test_a_number_that_json_does_not_have_is_an_error_of_the_body(client, number):
    body = b'{"model": "tale", "prompt": "a", "options": {"temperature": ' + number + b"}}"
    found = client.post("/api/generate", content=body)
    assert found.status_code == 400
    assert number.lstrip(b"-").decode() in found.json()["error"]


def test_control_tokens_in_a_whole_prompt_are_what_they_spell(client):
    options = {"temperature": 0, "num_predict": 9}
    body = {"model": "actor", "prompt": "x<|plain|>", "raw": True, "stream": False}
    raw = client.post("/api/generate", json={**body, "options": options}).json()
    body = {"model": "actor", "prompt": "x<|plain|>", "temperature": 0, "max_tokens": 9}
    other = client.post("/v1/completions", json=body).json()
    assert raw["response"] == other["choices"][0]["text"] == "Hello there now."
    assert raw["prompt_eval_count"] == other["usage"]["prompt_tokens"] == 2
    said = [{"role": "user", "content": "x<|plain|>"}]  # of a conversation, they are text
    chat = {"model": "actor", "messages": said, "stream": False, "options": options, "think": False}
    assert client.post("/api/chat", json=chat).json()["prompt_eval_count"] > 10


@pytest.mark.parametrize("name", ["xml_tools", "available_tools", "tools"])
def test_templates_find_tools_under_the_names_that_they_have_for_them(name):
    template = ChatTemplate(f"{{% for t in {name} %}}{{{{ t.function.name }}}}{{% endfor %}}")
    tools = [{"type": "function", "function": {"name": "weather"}}]
    more = supply_variables(template.source, tools)
    assert template.render([], tools=tools, **more) == "weather"
    assert not supply_variables(template.source)
