"""Answers of the server that are JSON, keep to a schema, or have to be a call."""

import json

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

from tests.server.serving import client_of, lines, opened

SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "maximum": 9}},
    "required": ["ok", "n"],
    "additionalProperties": False,
}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Bonn"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
NONE = {"properties": {}, "additionalProperties": False}
OTHER = {"type": "function", "function": {"name": "other", "parameters": NONE}}
USER = {"role": "user", "content": "Hi"}
OPTIONS = {"seed": 1, "num_predict": 200}
FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store"), opens=lambda it, _: opened(it, 512)) as client:
        yield client


def fits(text):
    value = json.loads(text)
    return value.keys() == {"ok", "n"} and isinstance(value["ok"], bool) and value["n"] <= 9


def posted(client, path, **body):
    found = client.post(path, json=body)
    assert found.status_code == 200, found.text
    return found.json()


@pytest.mark.parametrize("stream", [False, True])
def test_ollamas_format_is_a_schema(client, stream):
    asked = {
        "model": "tale",
        "format": SCHEMA,
        "options": OPTIONS,
        "stream": stream,
        "think": False,
    }
    told = lines(client.post("/api/generate", json={**asked, "prompt": "A fox"}))
    assert fits("".join(line["response"] for line in told))
    assert told[-1]["done_reason"] == "stop"
    told = lines(client.post("/api/chat", json={**asked, "model": "actor", "messages": [USER]}))
    assert fits("".join(line["message"]["content"] for line in told))


def test_ollamas_format_is_any_object(client):
    asked = {
        "model": "actor",
        "format": "json",
        "messages": [USER],
        "stream": False,
        "think": False,
    }
    told = posted(client, "/api/chat", **asked, options={**OPTIONS, "num_predict": 30})
    assert told["message"]["content"].lstrip().startswith("{")


def test_openais_response_format(client):
    asked = {"model": "actor", "messages": [USER], "seed": 2, "max_tokens": 200}
    asked["reasoning_effort"] = "none"
    told = posted(client, "/v1/chat/completions", **asked, response_format=FORMAT, n=2)
    assert all(fits(choice["message"]["content"]) for choice in told["choices"])
    open_ = {"type": "json_schema", "json_schema": {"name": "x"}}
    for form in ({"type": "json_object"}, open_):
        told = posted(client, "/v1/chat/completions", **asked, response_format=form)
        assert told["choices"][0]["message"]["content"].startswith("{")


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ("required", {"weather", "other"}),
        ({"type": "function", "function": {"name": "other"}}, {"other"}),
    ],
)
def test_a_call_that_is_asked_for_is_made(client, choice, names):
    asked = {"model": "actor", "messages": [USER], "tools": [TOOL, OTHER], "tool_choice": choice}
    asked |= {"temperature": 0, "max_tokens": 120, "reasoning_effort": "none"}
    told = posted(client, "/v1/chat/completions", **asked)["choices"][0]
    [call] = told["message"]["tool_calls"]
    assert told["finish_reason"] == "tool_calls"
    assert call["function"]["name"] in names
    found = json.loads(call["function"]["arguments"])
    cities = ({"city": "Oslo"}, {"city": "Bonn"})
    assert found in (cities if call["function"]["name"] == "weather" else ({},))


@pytest.mark.slow
def test_responses_and_messages_ask_alike(client):
    form = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
    asked = {"model": "actor", "input": "Hi", "temperature": 0, "max_output_tokens": 200}
    asked["reasoning"] = {"effort": "none"}
    told = posted(client, "/v1/responses", **asked, text=form)
    assert told["text"]["format"] == form["format"]
    assert fits(told["output"][-1]["content"][0]["text"])
    tool = {"type": "function", **TOOL["function"]}
    told = posted(client, "/v1/responses", **asked, tools=[tool], tool_choice="required")
    assert told["output"][-1]["name"] == "weather"
    tool = {"name": "weather", "input_schema": PARAMETERS}
    asked = {"model": "actor", "messages": [USER], "max_tokens": 200, "temperature": 0}
    told = posted(client, "/v1/messages", **asked, tools=[tool], tool_choice={"type": "any"})
    assert told["content"][-1]["input"]["city"] in ("Oslo", "Bonn")


@pytest.mark.slow
def test_a_model_may_call_a_tool_in_place_of_the_format(client):
    """The scripted model calls wherever it is told of tools, and the grammar lets it."""
    asked = {"model": "actor", "temperature": 0, "messages": [USER]}
    chat = {**asked, "max_tokens": 250, "reasoning_effort": "none"}
    told = posted(client, "/v1/chat/completions", **chat, tools=[TOOL], response_format=FORMAT)
    call = told["choices"][0]["message"]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"])["city"] in ("Oslo", "Bonn")
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    tool = {"name": "weather", "input_schema": PARAMETERS}
    told = posted(client, "/v1/messages", **asked, max_tokens=250, tools=[tool], output_config=form)
    assert told["content"][0]["name"] == "weather"
    chat |= {"tools": [TOOL], "tool_choice": "none", "response_format": FORMAT}
    assert fits(posted(client, "/v1/chat/completions", **chat)["choices"][0]["message"]["content"])


OBJECT = {"type": "json_schema", "schema": SCHEMA}


@pytest.mark.parametrize(
    "form",
    [
        {"output_config": {"format": OBJECT}},
        {"output_format": OBJECT},
        {"output_format": OBJECT, "output_config": {"format": OBJECT}},
        {"output_format": None, "output_config": {"format": OBJECT, "effort": "low"}},
    ],
    ids=lambda form: "+".join(form),
)
def test_a_format_of_a_message_has_two_names(client, form):
    """Clients of Anthropic's first version of it (Inspect AI) send the older one."""
    asked = {"model": "tale", "messages": [USER], "max_tokens": 200, "temperature": 0}
    assert fits(posted(client, "/v1/messages", **asked, **form)["content"][0]["text"])


def test_two_formats_of_a_message_are_refused(client):
    form = {"output_format": {"type": "json_object"}, "output_config": {"format": OBJECT}}
    asked = {"model": "tale", "messages": [USER], "max_tokens": 9, **form}
    found = client.post("/v1/messages", json=asked)
    assert found.status_code == 400
    assert "output_config.format, output_format: 2 formats, needs one" in found.text


def test_llama_servers_grammar_and_schema(client):
    asked = {"model": "tale", "prompt": "A fox", "seed": 3, "n_predict": 200}
    told = posted(client, "/completion", **asked, grammar='root ::= ("yes" | "no") " indeed"')
    assert told["content"] in ("yes indeed", "no indeed")
    assert fits(posted(client, "/completion", **asked, json_schema=SCHEMA)["content"])


@pytest.mark.parametrize(
    ("path", "more", "message"),
    [
        ("/api/chat", {"format": "yaml"}, "format: 'yaml', needs 'json' or a JSON schema"),
        ("/api/chat", {"format": {"$ref": "http://x/y"}}, "http://x/y"),
        ("/v1/chat/completions", {"response_format": {"type": "yaml"}}, "response_format.type"),
        (
            "/v1/chat/completions",
            {"response_format": {"type": "json_schema", "json_schema": "x"}},
            "needs an object with a schema",
        ),
        ("/v1/chat/completions", {"tool_choice": "required"}, "there are no tools"),
        ("/v1/chat/completions", {"tools": [TOOL], "tool_choice": "some"}, "tool_choice: 'some'"),
        (
            "/v1/chat/completions",
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "no"}}},
            "'no' is not among the tools",
        ),
        ("/completion", {"grammar": "root ::= x", "json_schema": {}}, "needs one"),
        ("/completion", {"grammar": "root ::= (", "json_schema": None}, "gbnf grammar:"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_told(client, path, more, message, stream):
    said = {"prompt": "Hi"} if path == "/completion" else {"messages": [USER]}
    body = {"model": "actor", "stream": stream, **said, **more}
    found = client.post(path, json=body)
    assert found.status_code == 400, found.text
    assert message in found.text.replace("\\", "")


def test_what_a_schema_cannot_ask_for_is_told(client):
    form = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}
    body = {"model": "tale", "prompt": "a", "raw": True, "format": form}
    found = client.post("/api/generate", json=body)
    assert (found.status_code, "uniqueItems" in found.json()["error"]) == (400, True)
