"""Fields that vLLM, SGLang and llama-server have, on every route that makes text."""

import json

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

from tests.server.scripted import CALL, SCRIPTS, scripted
from tests.server.serving import client_of, events_of, named_events, opened
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create

USER = {"role": "user", "content": "Hi"}
CHAT, TEXT, RESPOND, MESSAGES = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages",
)  # fmt: skip
BODIES = {
    CHAT: {"messages": [USER], "max_tokens": 60},
    TEXT: {"prompt": "Once", "max_tokens": 60},
    RESPOND: {"input": "Hi", "max_output_tokens": 60},
    MESSAGES: {"messages": [USER], "max_tokens": 60},
    "/completion": {"prompt": "Once", "n_predict": 60},
}
YES = {"type": "object", "properties": {"ok": {"const": True}}, "required": ["ok"]}
YES |= {"additionalProperties": False}
OTHER_CALL = '{"name": "weather", "arguments": {"city": "Bonn"}}'
TWICE = ["<tool_call>", CALL, "</tool_call>", "\n<tool_call>", OTHER_CALL, "</tool_call>\n"]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"name": "weather", "parameters": SCHEMA}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Of a server that has ``twice``, which calls two functions, and ``spaced`` as well."""
    root = tmp_path_factory.mktemp("store")
    call = '{"name": "mcp__sky__weather", "arguments": {"city": "Oslo"}}'
    said = {"twice": TWICE, "spaced": ["<tool_call>", call, "</tool_call>"]}
    for name, script in said.items():
        path = scripted(root / f"{name}.gguf", scripts={**SCRIPTS, "<|tools|>": script})
        create(Store(root), ModelName.parse(name), Modelfile(str(path), {}, system=""), root)
    with client_of(root, opens=lambda it, _: opened(it, 512)) as client:
        yield client


def text_of(path, answer):
    found = answer.json()
    assert answer.status_code == 200, found
    match path:
        case "/v1/chat/completions":
            return found["choices"][0]["message"]["content"]
        case "/v1/completions":
            return found["choices"][0]["text"]
        case "/v1/responses":
            return found["output"][0]["content"][0]["text"]
        case "/v1/messages":
            return found["content"][0]["text"]
        case _:
            return found["content"]


def asked(client, path, **more):
    answer = client.post(path, json={"model": "tale", "seed": 1, **BODIES[path], **more})
    assert "warning" not in answer.headers
    return text_of(path, answer)


SHAPES = [
    ({"guided_json": YES}, '{"ok": true}'),
    ({"guided_json": json.dumps(YES)}, '{"ok": true}'),
    ({"json_schema": json.dumps(YES)}, '{"ok": true}'),
    ({"json_schema": YES}, '{"ok": true}'),
    ({"structured_outputs": {"json": YES}}, '{"ok": true}'),
    ({"guided_regex": "a[b]c"}, "abc"),
    ({"regex": "a[b]c"}, "abc"),
    ({"structured_outputs": {"regex": "a[b]c"}}, "abc"),
    ({"guided_choice": ["a (b)* c|d"]}, "a (b)* c|d"),
    ({"structured_outputs": {"choice": ["a (b)* c|d"]}}, "a (b)* c|d"),
    ({"guided_grammar": 'root ::= "xy"'}, "xy"),
    ({"guided_grammar": 'start: "xy"'}, "xy"),
    ({"ebnf": 'root ::= "xy"'}, "xy"),
    ({"structured_outputs": {"grammar": 'root ::= "xy"'}}, "xy"),
    ({"grammar": 'root ::= "xy"'}, "xy"),
]


@pytest.mark.parametrize(("more", "wanted"), SHAPES)
@pytest.mark.parametrize("path", BODIES)
def test_every_name_of_a_shape(client, path, more, wanted):
    text = asked(client, path, **more)
    if wanted.startswith("{"):
        assert json.loads(text) == json.loads(wanted)
    else:
        assert text == wanted


def test_any_object(client):
    text = asked(client, CHAT, structured_outputs={"json_object": True})
    assert text.lstrip().startswith("{")


@pytest.mark.parametrize("path", BODIES)
def test_the_same_may_be_said_under_two_names(client, path):
    """guidance's vLLM mode sends its grammar under the names of an old and of a new vLLM."""
    pairs = [
        {"guided_grammar": 'start: "yes"', "structured_outputs": {"grammar": 'start: "yes"'}},
        {"guided_regex": "yes", "regex": "yes"},
        {"guided_choice": ["yes"], "structured_outputs": {"choice": ["yes"]}},
    ]
    assert [asked(client, path, **pair) for pair in pairs] == ["yes"] * 3
    same = {"guided_json": {"const": "yes"}, "structured_outputs": {"json": {"const": "yes"}}}
    assert asked(client, path, **same) == '"yes"'


@pytest.mark.parametrize("path", BODIES)
def test_tokens_that_end_an_answer(client, path):
    plain = {"model": "actor", "prompt": "<|plain|>", "return_tokens": True}
    second = client.post("/completion", json=plain).json()["tokens"][1]
    prompts = {TEXT: {"prompt": "<|plain|>"}, "/completion": {"prompt": "<|plain|>"}}
    how = {"model": "actor", "temperature": 0, **prompts.get(path, {})}
    assert asked(client, path, **how) == "Hello there now."
    assert asked(client, path, **how, stop_token_ids=[second]) == "Hello"
    longer = asked(client, path, **how, min_tokens=8)
    assert longer.startswith("Hello there now.")
    assert len(longer) > len("Hello there now.")


@pytest.mark.slow
@pytest.mark.parametrize("path", BODIES)
def test_penalties_by_either_name(client, path):
    how = {"temperature": 0, "repeat_last_n": -1}
    limit = {"max_tokens": 40} if path != RESPOND else {"max_output_tokens": 40}
    ours = asked(client, path, **how, **limit, repeat_penalty=1.6)
    theirs = asked(client, path, temperature=0, **limit, repetition_penalty=1.6)
    assert ours == theirs != asked(client, path, temperature=0, **limit)


# Each leaves one token, as a temperature of 0 does.
SAMPLERS = [
    {"top_n_sigma": 1e-4, "temperature": 2.0, "dry_multiplier": 1e-6},
    {"mirostat": 2, "mirostat_tau": 0, "mirostat_eta": 0.5},
    {"samplers": "tk", "top_k": 1, "temperature": 0.5},
]


@pytest.mark.parametrize("path", [*BODIES, "/api/generate", "/api/chat"])
def test_samplers_of_llama_server_on_every_route(client, path):
    def text(**options):
        if not path.startswith("/api"):
            name = {RESPOND: "max_output_tokens", "/completion": "n_predict"}.get(path)
            return asked(client, path, **{name or "max_tokens": 5}, **options)
        ask = {"prompt": "Once", "raw": True} if path == "/api/generate" else {"messages": [USER]}
        body = {"model": "tale", "stream": False, **ask, "options": {"num_predict": 5, **options}}
        answer = client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert "warning" not in answer.headers
        return answer.json().get("response") or answer.json()["message"]["content"]

    greedy = text(temperature=0)
    assert [text(**options) for options in SAMPLERS] == [greedy] * 3
    assert text(temperature=0, xtc_probability=1, xtc_threshold=0) != greedy
    drawn = [text(seed=5, mirostat=1, mirostat_tau=9, temperature=1) for _ in range(2)]
    assert drawn[0] == drawn[1]


def test_a_time_limit_on_a_route_of_openai(client):
    how = {"t_max_predict_ms": 1e-6, "grammar": 'root ::= "a" "\\n" "b"{30}'}
    assert asked(client, TEXT, **how) in ("a", "a\n")


def test_special_tokens_are_spelled_where_they_are_wanted(client):
    end = "<|after|>"
    [token] = client.post("/tokenize", json={"model": "actor", "content": end}).json()["tokens"]
    body = {"prompt": "Hi", "model": "actor", "logit_bias": {str(token): 100}, "max_tokens": 1}
    assert asked(client, TEXT, **body) == ""
    assert asked(client, TEXT, **body, skip_special_tokens=False) == end


@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPOND])
def test_thinking_is_switched_on(client, path):
    def answer(**more):
        found = client.post(path, json={"model": "actor", **BODIES[path], **more})
        assert "warning" not in found.headers, found.headers
        return found.text

    assert "hm" in answer(enable_thinking=True)
    assert "hm" in answer(chat_template_kwargs={"enable_thinking": True})
    assert "hm" not in answer(enable_thinking=False)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"guided_json": YES, "regex": "a"}, "guided_json, regex: 2 constraints of the text"),
        (
            {"structured_outputs": {"regex": "a", "choice": ["b"]}},
            "structured_outputs: 2 constraints",
        ),
        (
            {"response_format": {"type": "json_object"}, "ebnf": 'root ::= "a"'},
            "ebnf: 2 constraints",
        ),
        ({"guided_choice": []}, "guided_choice: needs a list of texts"),
        ({"guided_choice": ["a", 5]}, "guided_choice: needs a list of texts"),
        ({"guided_json": "{"}, "guided_json: "),
        ({"structured_outputs": {"structural_tag": "x"}}, "structural_tag is refused"),
        ({"prompt_logprobs": 1}, "prompt_logprobs is refused: needs echo with logprobs"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids: 'a', needs whole numbers"),
        ({"stop_token_ids": [True]}, "stop_token_ids: 'True', needs whole numbers"),
        ({"min_tokens": -1}, "min_tokens: -1, needs at least 0"),
        ({"repetition_penalty": 0}, "repetition_penalty: 0, needs 0.01 to 100"),
    ],
)
def test_what_is_wrong_is_told(client, more, message):
    found = client.post(CHAT, json={"model": "tale", **BODIES[CHAT], **more})
    assert (found.status_code, message in found.json()["error"]["message"]) == (400, True), (
        found.text
    )


@pytest.mark.parametrize(
    ("given", "count"), [({}, 2), ({"parallel": True}, 2), ({"parallel": False}, 1)]
)
def test_one_call_at_a_time(client, given, count):
    flag = {"parallel_tool_calls": given["parallel"]} if given else {}
    tools = [{"type": "function", "function": FUNCTION}]
    chat = {"model": "twice", **BODIES[CHAT], "tools": tools, **flag}
    choice = client.post(CHAT, json=chat).json()["choices"][0]
    cities = [
        json.loads(c["function"]["arguments"])["city"] for c in choice["message"]["tool_calls"]
    ]
    assert (cities, choice["finish_reason"]) == (["Oslo", "Bonn"][:count], "tool_calls")
    pieces = events_of(client.post(CHAT, json={**chat, "stream": True}))
    calls = [c for p in pieces for c in p["choices"][0]["delta"].get("tool_calls", [])]
    assert [call["index"] for call in calls] == list(range(count))
    assert pieces[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("given", "count"), [({}, 2), ({"parallel": True}, 2), ({"parallel": False}, 1)]
)
@pytest.mark.parametrize("stream", [False, True])
def test_one_call_at_a_time_elsewhere(client, given, count, stream):
    flag = {"parallel_tool_calls": given["parallel"]} if given else {}
    tools = [{"type": "function", **FUNCTION}]
    body = {"model": "twice", **BODIES[RESPOND], "tools": tools, **flag, "stream": stream}
    found = client.post(RESPOND, json=body)
    made = named_events(found)[-1]["response"] if stream else found.json()
    assert [each["type"] for each in made["output"]] == ["function_call"] * count
    made_tokens = made["usage"]["output_tokens"]
    assert made_tokens == 6 if count == 2 else made_tokens <= 3  # the rest is not made
    choice = {"type": "auto", "disable_parallel_tool_use": not given.get("parallel", True)}
    tools = [{"name": "weather", "input_schema": SCHEMA}]
    body = {"model": "twice", **BODIES[MESSAGES], "tools": tools, "tool_choice": choice}
    found = client.post(MESSAGES, json={**body, "stream": stream})
    if stream:
        events = named_events(found)
        begun = [e["content_block"] for e in events if e["type"] == "content_block_start"]
        assert [each["type"] for each in begun] == ["tool_use"] * count
    else:
        assert [each["type"] for each in found.json()["content"]] == ["tool_use"] * count


SHELL = {"type": "function", "name": "weather", "parameters": SCHEMA}
SPACE = {"type": "namespace", "name": "mcp__sky", "tools": [SHELL]}


def test_functions_of_a_namespace_are_called_by_both_names(client):
    body = {"model": "spaced", "input": "Hi", "tools": [SHELL, SPACE]}
    made = client.post(RESPOND, json=body)
    assert "warning" not in made.headers
    [item] = made.json()["output"]
    assert (item["name"], item["namespace"]) == ("weather", "mcp__sky")
    streamed = named_events(client.post(RESPOND, json={**body, "stream": True}))
    [item] = streamed[-1]["response"]["output"]
    assert (item["name"], item["namespace"]) == ("weather", "mcp__sky")
    result = {"type": "function_call_output", "call_id": item["call_id"], "output": "cold"}
    again = {**body, "input": [{"role": "user", "content": "Hi"}, item, result]}
    assert client.post(RESPOND, json=again).json()["output"][0]["type"] == "message"


def test_earlier_calls_of_other_tools_are_read(client):
    said = [
        {"role": "user", "content": "Hi"},
        {"type": "custom_tool_call", "name": "apply_patch", "call_id": "c", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "done"},
        {"type": "local_shell_call", "call_id": "d", "action": {"command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "d", "output": "a.txt"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "output_text", "text": "b"}],
        },
    ]
    found = client.post(RESPOND, json={"model": "actor", "input": said, "store": False})
    assert (found.status_code, "warning" in found.headers) == (200, False), found.text


def test_documents_are_read_as_texts(client):
    plain = {"type": "document", "title": "T", "source": {"type": "text", "data": "Once"}}
    inner = {"type": "content", "content": [{"type": "text", "text": "upon"}]}
    parts = {"type": "document", "source": inner}
    body = {"model": "tale", "max_tokens": 2}
    path = f"{MESSAGES}/count_tokens"

    def count(content):
        said = [{"role": "user", "content": content}]
        found = client.post(path, json={"model": body["model"], "messages": said})
        assert found.status_code == 200, found.text
        return found.json()["input_tokens"]

    assert count([plain, parts]) == count("T\nOnce\nupon")
    pdf = {"type": "document", "source": {"type": "base64", "data": "eA=="}}
    said = [{"role": "user", "content": [pdf]}]
    refused = client.post(MESSAGES, json={**body, "messages": said})
    assert (refused.status_code, "'base64', needs text" in refused.text) == (400, True)


BEGUN = [USER, {"role": "assistant", "content": "Once upon a time"}]


def news_of(path, answer):
    """Text of a streamed answer."""
    if path.startswith("/api"):
        return "".join(json.loads(line)["message"]["content"] for line in answer.text.splitlines())
    if path == CHAT:
        deltas = [each["choices"][0]["delta"] for each in events_of(answer) if each["choices"]]
        return "".join(delta.get("content") or "" for delta in deltas)
    pieces = [each.get("delta") for each in named_events(answer)]
    return "".join(p if isinstance(p, str) else p.get("text", "") for p in pieces if p)


@pytest.mark.parametrize("path", [CHAT, RESPOND, MESSAGES, "/api/chat"])
def test_an_answer_that_was_begun_has_the_new_text_alone(client, path):
    limit = {RESPOND: "max_output_tokens", "/api/chat": "num_predict"}.get(path, "max_tokens")
    said = {"input" if path == RESPOND else "messages": BEGUN, limit: 4, "temperature": 0}
    body = {"model": "tale", **said}
    whole = client.post(path, json={**body, "stream": False})
    text = whole.json()["message"]["content"] if path == "/api/chat" else text_of(path, whole)
    assert text.startswith(",")  # of "Once upon a time, there was"
    assert news_of(path, client.post(path, json={**body, "stream": True})) == text


@pytest.mark.parametrize(
    ("path", "name"),
    [("/completion", "n_predict"), (TEXT, "max_tokens"), (CHAT, "max_tokens"),
     (CHAT, "max_completion_tokens")],
)  # fmt: skip
def test_a_limit_of_0_reads_the_prompt_and_makes_no_token(client, path, name):
    words = "A limit of nothing makes no token, and yet the prompt was read and is kept. " * 3
    said = {"messages": [{"role": "user", "content": words}]} if path == CHAT else {"prompt": words}
    body = {"model": "tale", **said}
    found = client.post(path, json={**body, name: 0})
    assert text_of(path, found) == ""
    made = found.json().get("tokens_predicted", found.json().get("usage", {}).get("total_tokens"))
    assert made == (0 if path == "/completion" else found.json()["usage"]["prompt_tokens"])
    again = client.post(path, json={**body, name: 1}).json()
    kept = again.get("tokens_cached") or again["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert kept > 20


@pytest.mark.parametrize("path", ["/api/generate", "/api/chat"])
@pytest.mark.parametrize("zero", [0, "0"])
def test_on_routes_of_ollama_a_limit_of_0_is_none(client, path, zero):
    ask = {"prompt": "<|plain|>"}
    if path == "/api/chat":
        ask = {"messages": [{"role": "user", "content": "<|plain|>"}]}
    body = {"model": "actor", "stream": False, **ask, "options": {"num_predict": zero}}
    found = client.post(path, json=body).json()
    assert (found["done_reason"], found["eval_count"] > 1) == ("stop", True)


@pytest.mark.parametrize(
    ("path", "name"), [(RESPOND, "max_output_tokens"), (MESSAGES, "max_tokens")]
)
def test_a_limit_of_0_is_refused_where_the_official_api_refuses_it(client, path, name):
    found = client.post(path, json={"model": "tale", **BODIES[path], name: 0})
    assert found.status_code == 400
    assert f"{name}: 0, needs at least 1" in found.text
