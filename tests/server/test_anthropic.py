"""Anthropic's routes."""

import re
from datetime import datetime

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

from tests.server.serving import client_of, named_events

USER = {"role": "user", "content": "Hi"}
TOOL = {"name": "weather", "description": "tells", "input_schema": {"type": "object"}}
ASKED = {"model": "actor", "max_tokens": 50, "messages": [USER], "temperature": 0}
USED = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}}
RESULT = {
    "type": "tool_result",
    "tool_use_id": "toolu_1",
    "content": [{"type": "text", "text": "3"}],
}
THINKS = {"thinking": {"type": "enabled", "budget_tokens": 1024}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store")) as client:
        yield client


def asked(client, **more):
    response = client.post("/v1/messages", json={**ASKED, **more})
    assert response.status_code == 200, response.text
    return response.json()


def contents(message):
    """Blocks without their ids, which are random."""
    return [{k: v for k, v in block.items() if k != "id"} for block in message["content"]]


def streamed(client, **more):
    """The message that the events of a stream make."""
    events = named_events(client.post("/v1/messages", json={**ASKED, **more, "stream": True}))
    assert [e["type"] for e in events[:2]] == ["message_start", "ping"]
    message, texts = events[0]["message"], []
    for event in events:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(message["content"])
                message["content"].append(event["content_block"])
                texts.append("")
            case "content_block_delta":
                texts[event["index"]] += next(v for k, v in event["delta"].items() if k != "type")
            case "message_delta":
                message |= {**event["delta"], "usage": event["usage"]}
    assert events[-1] == {"type": "message_stop"}
    for block, text in zip(message["content"], texts, strict=True):
        name = "partial" if block["type"] == "tool_use" else block["type"]
        block[name] = text
    return message


def test_an_answer_whole_and_streamed(client):
    whole = asked(client)
    assert contents(whole) == [{"type": "text", "text": "Hello there now."}]
    assert (whole["type"], whole["role"], whole["model"]) == ("message", "assistant", "actor")
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("end_turn", None)
    counted = client.post("/v1/messages/count_tokens", json={"model": "actor", "messages": [USER]})
    usage = whole["usage"]
    both = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert (both, usage["output_tokens"]) == (counted.json()["input_tokens"], 3)
    pieces = streamed(client)
    assert contents(pieces) == contents(whole)
    assert pieces["stop_reason"] == "end_turn"
    assert pieces["usage"]["output_tokens"] == 3


def test_system_and_blocks_are_read(client):
    def count(**more):
        body = {"model": "actor", "messages": [USER], **more}
        return client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]

    plain = count()
    blocks = [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}]
    assert count(messages=[{"role": "user", "content": blocks}]) == plain
    assert count(system="Be kind") == plain + len("system: Be kind")
    assert count(system=[{"type": "text", "text": "Be kind"}]) == count(system="Be kind")
    assert count(tools=[TOOL]) > plain
    assert count(tools=[TOOL], tool_choice={"type": "none"}) == plain


def test_calls_and_their_results(client):
    whole = asked(client, tools=[TOOL])
    call = {k: v for k, v in USED.items() if k != "id"}
    assert contents(whole) == [call]
    assert whole["stop_reason"] == "tool_use"
    pieces = streamed(client, tools=[TOOL])
    assert contents(pieces) == [{**call, "input": {}, "partial": '{"city": "Oslo"}'}]
    said = [USER, {"role": "assistant", "content": [USED]}, {"role": "user", "content": [RESULT]}]
    assert contents(asked(client, tools=[TOOL], messages=said))[0]["text"] == "It is cold."
    failed = {**RESULT, "is_error": True}
    said[-1] = {"role": "user", "content": [failed]}
    assert asked(client, tools=[TOOL], messages=said)["stop_reason"] == "end_turn"


def test_reasoning(client):
    wanted = [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "Yes"},
    ]
    assert contents(asked(client, **THINKS)) == wanted
    assert contents(streamed(client, **THINKS)) == wanted
    block = {**wanted[0], "signature": "x"}
    said = [USER, {"role": "assistant", "content": [block, wanted[1]]}, USER]
    assert contents(asked(client, messages=said)) == [{"type": "text", "text": "Hello there now."}]


def test_thinking_is_signed_before_its_end(client):
    body = {**ASKED, **THINKS, "stream": True}
    events = [e for e in named_events(client.post("/v1/messages", json=body)) if "index" in e]
    thoughts = [event for event in events if event["index"] == 0]
    assert thoughts[-2]["delta"] == {"type": "signature_delta", "signature": ""}
    assert thoughts[-1]["type"] == "content_block_stop"


def test_several_messages_of_a_role_are_one_turn(client):
    def count(*said, **more):
        body = {"model": "actor", "messages": [*said], **more}
        return client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"]

    def said(role, *texts):
        return {"role": role, "content": [{"type": "text", "text": text} for text in texts]}

    assert count(USER, said("user", "now")) == count(said("user", "Hi", "now"))
    apart = [said("assistant", "a"), {"role": "assistant", "content": [USED]}]
    both = {"role": "assistant", "content": [*said("assistant", "a")["content"], USED]}
    result = {"role": "user", "content": [RESULT, RESULT]}
    assert count(USER, *apart, result) == count(USER, both, result)
    each = {"role": "user", "content": [RESULT]}
    assert count(USER, both, each, each) == count(USER, both, result)


def test_clients_send_it_all_where_no_thread_is_kept(client):
    body = {**ASKED, "thread": {"type": "create"}}
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        if path.endswith("tokens"):
            body.pop("max_tokens"), body.pop("temperature")
        found = client.post(path, json=body)
        details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        error = found.json()["error"]
        assert (found.status_code, error["type"], error["details"]) == (400, BAD, details)


def test_official_fields_without_a_value_are_taken(client):
    empty = dict.fromkeys(("thread", "container", "fallbacks", "context_management"))
    more = {"mcp_servers": [], "speed": "standard", "diagnostics": {}, "user_profile_id": "u"}
    assert asked(client, **empty, **more)["stop_reason"] == "end_turn"


def test_models_have_this_apis_fields_for_its_clients(client):
    head = {"anthropic-version": "2023-06-01"}
    listed = client.get("/v1/models", headers=head).json()
    plain = client.get("/v1/models").json()["data"]
    names = [model["id"] for model in plain]
    assert (listed["first_id"], listed["last_id"]) == (names[0], names[-1])
    assert listed["has_more"] is False
    for model, other in zip(listed["data"], plain, strict=True):
        assert (model["type"], model["id"], model["display_name"]) == ("model", *[other["id"]] * 2)
        made = datetime.fromisoformat(model["created_at"])
        assert made.timestamp() == other["created"]
        assert "type" not in other
    one = client.get("/v1/models/actor", headers=head).json()
    assert (one["type"], one["id"]) == ("model", "actor")
    assert "type" not in client.get("/v1/models/actor").json()


def test_a_path_that_there_is_not_is_told_in_this_apis_words(client):
    for method, path, status, kind in (
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/messages", 405, BAD),
    ):
        found = client.request(method, path)
        told = found.json()
        assert (found.status_code, told["type"], told["error"]["type"]) == (status, "error", kind)


def test_an_answer_has_an_id_in_its_head(client):
    heads = [client.post("/v1/messages", json=body).headers for body in (ASKED, {})]
    ids = {head["request-id"] for head in heads}
    assert len(ids) == 2
    assert all(id_.startswith("req_") for id_ in ids)
    assert "request-id" not in client.get("/api/version").headers


def test_an_answer_that_is_begun_goes_on(client):
    begun = {"role": "assistant", "content": [{"type": "text", "text": "Once upon"}]}
    body = {"model": "tale", "messages": [USER, begun], "max_tokens": 4}
    found = asked(client, **body)
    chat = {**body, "messages": [USER, {"role": "assistant", "content": "Once upon"}]}
    same = client.post("/v1/chat/completions", json={**chat, "temperature": 0}).json()
    assert contents(found)[0]["text"] == same["choices"][0]["message"]["content"]
    assert found["usage"]["input_tokens"] > 0
    alone = asked(client, model="tale", max_tokens=4)
    assert contents(alone) != contents(found)
    count = {"model": "tale", "messages": body["messages"]}
    counted = client.post("/v1/messages/count_tokens", json=count).json()["input_tokens"]
    usage = found["usage"]
    assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_how_an_answer_ends(client):
    cut = asked(client, stop_sequences=[" there"])
    assert (cut["stop_reason"], cut["stop_sequence"]) == ("stop_sequence", " there")
    assert contents(cut) == [{"type": "text", "text": "Hello"}]
    assert asked(client, max_tokens=1)["stop_reason"] == "max_tokens"
    made = {"model": "brief", "from": "actor", "parameters": {"stop": [" there"]}}
    assert client.post("/api/create", json=made).status_code == 200
    own = asked(client, model="brief")
    assert (own["stop_reason"], own["stop_sequence"]) == ("end_turn", None)


BAD = "invalid_request_error"
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}


@pytest.mark.parametrize(
    ("more", "status", "kind", "message"),
    [
        ({"model": "no"}, 404, "not_found_error", "model 'no' not found"),
        ({"max_tokens": None}, 400, BAD, "max_tokens is required"),
        ({"max_tokens": 0}, 400, BAD, "max_tokens: 0, needs at least 1"),
        ({"messages": []}, 400, BAD, "messages"),
        ({"messages": [], "system": "Be kind"}, 400, BAD, "messages: needs at least one"),
        ({"messages": ["Hi"]}, 400, BAD, "messages[0]: needs an object"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, 400, BAD, "does not support images"),
        ({**THINKS, "messages": [USER, {"role": "assistant", "content": "a"}]}, 400, BAD, "last"),
        ({"messages": [USER, {"role": "assistant", "content": [USED]}]}, 400, BAD, "results"),
        ({"tools": [TOOL], "model": "tale"}, 400, BAD, "does not support tools"),
        ({"tool_choice": {"type": "any"}}, 400, BAD, "tool_choice"),
        ({"messages": [{"role": "user", "content": "a" * 600}]}, 400, BAD, "context"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_what_is_wrong_is_told(client, more, status, kind, message, stream):
    found = client.post("/v1/messages", json={**ASKED, **more, "stream": stream})
    told = found.json()
    assert (found.status_code, told["type"], told["error"]["type"]) == (status, "error", kind)
    assert message in told["error"]["message"]


@pytest.mark.parametrize("length", [600, 1 << 21])  # the longer one is refused before tokenizing
@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_told_in_anthropics_words(client, length, stream):
    said = [{"role": "user", "content": "a" * length}]
    found = client.post("/v1/messages", json={**ASKED, "messages": said, "stream": stream})
    told = found.json()["error"]["message"]
    # What Claude Code looks for, to summarise the conversation and ask again.
    numbers = re.match(r"prompt is too long: (\d+) tokens > (\d+) maximum; shorten it", told)
    assert numbers, told
    assert int(numbers[1]) > int(numbers[2]) == 256
    assert "serve --num-ctx" in told


def test_strangers_get_the_errors_of_this_api(tmp_path):
    with client_of(tmp_path, api_keys=("key",)) as client:
        assert (
            client.post("/v1/messages", json=ASKED).json()["error"]["type"]
            == "authentication_error"
        )
        assert (
            client.post("/v1/messages", json=ASKED, headers={"x-api-key": "key"}).status_code == 200
        )
