"""Fields that no form has: ignored with a warning, or refused by a strict server."""

import logging

import pytest

from tests.server.serving import client_of, events_of, lines

USER = {"role": "user", "content": "Hi"}
WEATHER = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
CHAT = "/v1/chat/completions"
SEARCH = {"type": "web_search"}
ROUTES = {
    "/api/generate": {"model": "actor", "prompt": "Hi", "stream": False},
    "/api/chat": {"model": "actor", "messages": [USER], "stream": False},
    CHAT: {"model": "actor", "messages": [USER]},
    "/v1/completions": {"model": "actor", "prompt": "Hi", "max_tokens": 2},
    "/v1/responses": {"model": "actor", "input": "Hi"},
    "/v1/messages": {"model": "actor", "messages": [USER], "max_tokens": 9},
    "/completion": {"model": "actor", "prompt": "Hi", "n_predict": 2},
    "/v1/embeddings": {"model": "tale", "input": "Hi"},
    "/api/show": {"model": "tale"},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store")) as client:
        yield client


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store"), strict=True) as client:
        yield client


NESTED = [
    ("/api/generate", {"options": {"new_topic_penalty": 1}}, "options.new_topic_penalty"),
    ("/api/chat", {"options": {"heat": 1}}, "options.heat"),
    ("/v1/responses", {"reasoning": {"heat": 1}}, "reasoning.heat"),
    ("/v1/responses", {"text": {"heat": 1}}, "text.heat"),
    ("/v1/responses", {"tools": [SEARCH]}, "tools: web_search"),
    ("/v1/messages", {"thinking": {"type": "disabled", "heat": 1}}, "thinking.heat"),
    ("/v1/messages", {"tool_choice": {"type": "auto", "heat": 1}}, "tool_choice.heat"),
    ("/v1/messages", {"output_config": {"heat": 1}}, "output_config.heat"),
    ("/v1/messages", {"tools": [{**SEARCH, "name": "s"}]}, "tools: web_search"),
    (CHAT, {"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools: custom"),
    ("/api/chat", {"tools": [SEARCH]}, "tools: web_search"),
    (CHAT, {"structured_outputs": {"heat": 1}}, "structured_outputs.heat"),
    (CHAT, {"model": "tale", "reasoning_effort": "high"}, "reasoning_effort"),
    (
        "/v1/messages",
        {"model": "tale", "thinking": {"type": "adaptive"}},
        "thinking",
    ),
    (
        "/v1/messages",
        {"model": "tale", "thinking": {"type": "enabled", "budget_tokens": 1024}},
        "thinking",
    ),
    (
        "/v1/messages",
        {"messages": [USER, {"role": "assistant", "content": [{"type": "server_tool_use"}]}, USER]},
        "messages: content: server_tool_use",
    ),
    (
        "/v1/responses",
        {"input": [{"type": "web_search_call", "id": "w"}, USER]},
        "input: web_search_call",
    ),
]
AT_TOP = [(path, {"heat": 1}, "heat") for path in ROUTES]


@pytest.mark.parametrize(("path", "more", "name"), [*AT_TOP, *NESTED])
def test_what_is_not_known_is_ignored_with_a_warning(client, strict, path, more, name):
    body = {**ROUTES[path], **more}
    found = client.post(path, json=body)
    assert found.status_code == 200, found.text
    assert found.headers["warning"] == f'299 wgpu-backend "ignored: {name}"'
    refused = strict.post(path, json=body)
    assert (refused.status_code, name.split(".")[-1] in refused.text) == (400, True), refused.text


@pytest.mark.parametrize("path", [path for path in ROUTES if path != "/api/show"])
def test_what_is_known_has_no_warning(client, path):
    assert "warning" not in client.post(path, json=ROUTES[path]).headers


def test_a_stream_has_the_warning_too(client):
    found = client.post(CHAT, json={**ROUTES[CHAT], "heat": 1, "stream": True})
    assert "ignored: heat" in found.headers["warning"]
    assert events_of(found)


def test_the_log_tells_of_each_name_once(tmp_path, caplog):
    with client_of(tmp_path) as client, caplog.at_level(logging.WARNING, "wgpu_backend.server"):
        for path in ("/api/generate", "/api/chat", "/api/generate"):
            client.post(path, json={**ROUTES[path], "heat\n": 1, "options": {"heat": 1}})
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]
    assert told == [
        "POST /api/generate: ignores heat?: no such field",
        "POST /api/generate: ignores options.heat: no such option",
    ]


def test_a_header_stays_short_and_is_a_quoted_text(client):
    names = {f'"\\é{number}' + "x" * 99: 1 for number in range(50)}
    found = client.post("/api/show", json={"model": "tale", **names}).headers["warning"]
    assert found.isascii()
    assert found.endswith(' and 30 more"')
    assert (found.count('"'), "\\" in found) == (2, False)


def test_requests_are_logged_with_what_they_took(tmp_path, caplog):
    with (
        client_of(tmp_path, debug=True) as client,
        caplog.at_level(logging.INFO, "wgpu_backend.server"),
    ):
        made = client.post(CHAT, json={**ROUTES[CHAT], "stream": True})
        client.post(CHAT, json={"model": "no", "messages": [USER], "heat": 1})
        client.post("/api/chat", content=b"{")
        client.post("/nowhere", json={})
    assert made.status_code == 200
    told = [each.getMessage() for each in caplog.records if each.levelno == logging.INFO]
    assert len(told) == 4
    answered, missing, damaged, nowhere = told
    for part in ("POST  /v1/chat/completions  200", "actor", " + 3 tokens", "fields: model, mess"):
        assert part in answered
    assert ("404  no" in missing, "model 'no' not found" in missing) == (True, True)
    assert ("400" in damaged, "not JSON" in damaged) == (True, True)
    assert "/nowhere  404" in nowhere


def test_values_of_known_fields_stay_errors(client):
    wrong = [
        (CHAT, {"temperature": -1}),
        (CHAT, {"n": 1000}),
        (CHAT, {"temperature": "hot"}),
        ("/api/chat", {"options": {"temperature": "hot"}}),
        ("/api/chat", {"temperature": "hot"}),
        ("/v1/messages", {"thinking": {"type": "sometimes"}}),
        ("/v1/responses", {"previous_response_id": "r"}),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}),
    ]
    for path, more in wrong:
        found = client.post(path, json={**ROUTES[path], **more})
        assert (found.status_code, "warning" in found.headers) == (400, False), more


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
def test_ollamas_options_may_stand_at_the_top(client, path):
    body = {**ROUTES[path], "num_predict": 1}
    assert client.post(path, json=body).json()["eval_count"] == 1
    both = client.post(path, json={**body, "options": {"num_predict": 2}})
    assert (both.json()["eval_count"], "warning" in both.headers) == (2, False)
    streamed = lines(client.post(path, json={**body, "stream": True, "stop": ["ello"]}))
    assert streamed[-1]["eval_count"] == 1
