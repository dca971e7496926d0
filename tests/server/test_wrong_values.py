"""Values of wrong types in every field of every route: an error of the request, or an answer."""

import json

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

from tests.server.serving import client_of
from tests.server.test_endpoints import ANSWERED, SAID, operations
from tests.server.test_videos import PIECES, store_seer
from tests.shares import rare
from wgpu_backend.files.store.modelfile import KNOWN_PARAMETERS

# As JSON has them, or as programs write it.
WRONG = [
    "5", "-1", "1.5", "true", '"x"', '""', "[]", "[[], 1]", "{}", '{"a": {}}', "1e999", "NaN",
    "18446744073709551616", '[{"type": 5}]', '["a", null]', '{"type": []}', "null",
]  # fmt: skip
NAMES = ("model", "name", "insecure", "source", "destination", "from")  # that reach elsewhere
OPTIONS = tuple(sorted(KNOWN_PARAMETERS))
CALL = {"role": "assistant", "tool_calls": [{"function": "?"}]}
# A body's field, and a value in which "?" is what is wrong.
WITHIN = [
    ("options", "?"),
    ("messages", ["?"]),
    ("messages", [{"role": "?", "content": "a"}]),
    ("messages", [{"role": "user", "content": "?"}]),
    ("messages", [{"role": "user", "content": ["?"]}]),
    ("messages", [{"role": "user", "content": [{"type": "?"}]}]),
    ("messages", [{"role": "user", "content": [{"type": "text", "text": "?"}]}]),
    ("messages", [{"role": "assistant", "content": "a", "reasoning_content": "?"}]),
    ("messages", [{"role": "user", "content": "a", "images": "?"}]),
    ("messages", [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": "?"}]),
    ("messages", [{"role": "user", "content": "a"}, CALL]),
    ("messages", [{"role": "assistant", "tool_calls": [{"function": {"name": "?"}}]}]),
    (
        "messages",
        [{"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "?"}}]}],
    ),
    ("messages", [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "?"}]}]),
    (
        "messages",
        [
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "a", "content": "?"}],
            }
        ],
    ),
    ("messages", [{"role": "assistant", "content": [{"type": "tool_use", "id": "?"}]}]),
    (
        "messages",
        [{"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "?"}]}],
    ),
    ("messages", [{"role": "user", "content": [{"type": "document", "source": "?"}]}]),
    (
        "messages",
        [{"role": "user", "content": [{"type": "document", "source": {"type": "?"}}]}],
    ),
    ("input", ["?"]),
    ("input", [{"type": "?"}]),
    ("input", [{"role": "?", "content": "a"}]),
    ("input", [{"role": "user", "content": "?"}]),
    ("input", [{"role": "user", "content": [{"type": "input_text", "text": "?"}]}]),
    ("input", [{"type": "function_call", "call_id": "a", "name": "?"}]),
    ("input", [{"type": "function_call", "call_id": "?", "name": "a"}]),
    ("input", [{"type": "function_call", "call_id": "a", "name": "a", "arguments": "?"}]),
    ("input", [{"type": "function_call_output", "call_id": "a", "output": "?"}]),
    ("input", [{"type": "custom_tool_call", "call_id": "a", "name": "a", "input": "?"}]),
    ("input", [{"type": "local_shell_call", "call_id": "a", "action": "?"}]),
    ("input", [{"type": "reasoning", "summary": "?"}]),
    ("tools", ["?"]),
    ("tools", [{"type": "?"}]),
    ("tools", [{"type": "function", "name": "?"}]),
    ("tools", [{"type": "namespace", "name": "?"}]),
    ("tools", [{"type": "namespace", "name": "a", "tools": "?"}]),
    ("tools", [{"type": "namespace", "name": "a", "tools": ["?"]}]),
    ("tools", [{"type": "function", "name": "a", "parameters": "?"}]),
    ("tools", [{"name": "a", "input_schema": "?"}]),
    ("tools", [{"type": "function", "function": "?"}]),
    ("tools", [{"type": "function", "function": {"name": "?"}}]),
    ("tools", [{"type": "function", "function": {"name": "a", "description": "?"}}]),
    ("tools", [{"type": "function", "function": {"name": "a", "parameters": "?"}}]),
    (
        "tools",
        [{"type": "function", "function": {"name": "a", "parameters": {"properties": "?"}}}],
    ),
    ("tool_choice", {"type": "?"}),
    ("tool_choice", {"type": "function", "function": "?"}),
    ("tool_choice", {"type": "function", "function": {"name": "?"}}),
    ("tool_choice", {"type": "allowed_tools", "mode": "?"}),
    ("tool_choice", {"type": "allowed_tools", "mode": "auto", "tools": "?"}),
    ("tool_choice", {"type": "allowed_tools", "mode": "auto", "tools": ["?"]}),
    ("tool_choice", {"type": "auto", "disable_parallel_tool_use": "?"}),
    ("response_format", {"type": "?"}),
    ("response_format", {"type": "json_schema", "json_schema": "?"}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": "?"}}),
    ("response_format", {"type": "json_object", "schema": "?"}),
    ("format", {"type": "?"}),
    ("format", {"properties": "?"}),
    ("text", {"format": "?"}),
    ("text", {"format": {"type": "?"}}),
    ("text", {"format": {"type": "json_schema", "schema": "?"}}),
    ("text", {"verbosity": "?"}),
    ("output_config", {"effort": "?"}),
    ("output_config", {"format": "?"}),
    ("output_config", {"format": {"type": "json_schema", "schema": "?"}}),
    ("reasoning", {"effort": "?"}),
    ("thinking", {"type": "?"}),
    ("thinking", {"type": "enabled", "budget_tokens": "?"}),
    ("stream_options", {"include_usage": "?"}),
    ("logit_bias", {"5": "?"}),
    ("logit_bias", ["?"]),
    ("logit_bias", [["?", 1]]),
    ("logit_bias", [[5, "?"]]),
    ("chat_template_kwargs", {"enable_thinking": "?"}),
    ("chat_template_kwargs", {"messages": "?"}),
    ("chat_template_kwargs", {"add_generation_prompt": "?"}),
    ("structured_outputs", {"json": "?"}),
    ("structured_outputs", {"regex": "?"}),
    ("structured_outputs", {"choice": "?"}),
    ("structured_outputs", {"grammar": "?"}),
    ("structured_outputs", {"json_object": "?"}),
    ("stop", ["?"]),
    ("stop_sequences", ["?"]),
    ("stop_token_ids", ["?"]),
    ("samplers", ["?"]),
    ("prompt", ["?"]),
    ("prompt", [["?"]]),
    ("prompt", {"prompt_string": "?"}),
    ("context", ["?"]),
    ("documents", ["?"]),
    ("input_extra", ["?"]),
    ("input_extra", [{"text": "?"}]),
    ("response_fields", ["?"]),
    ("system", [{"type": "text", "text": "?"}]),
    ("system", ["?"]),
    ("lora", ["?"]),
    ("parameters", {"stop": "?"}),
    ("parameters", {"num_ctx": "?"}),
    ("files", {"a": "?"}),
    ("adapters", {"a": "?"}),
    ("license", ["?"]),
]
WITHIN += [("options", {name: "?"}) for name in OPTIONS]
# Parts of contents: with a picture, a video, a sound or a file.
PARTS = [
    {"type": "image_url", "image_url": "?"},
    {"type": "image_url", "image_url": {"url": "?"}},
    {"type": "video_url", "video_url": "?"},
    {"type": "video_url", "video_url": {"url": "?", "fps": "?"}},
    {"type": "video_url", "video_url": {"url": f"data:image/png;base64,{PIECES[0]}"}, "fps": "?"},
    {"type": "input_video", "input_video": "?"},
    {"type": "input_video", "input_video": {"data": "?"}},
    {"type": "input_video", "input_video": {"data": PIECES[0], "fps": "?"}},
    {"type": "video", "video": "?"},
    {"type": "video", "video": ["?"]},
    {"type": "video", "video": [PIECES[0], "?"]},
    {"type": "video", "video": PIECES, "fps": "?"},
    {"type": "input_audio", "input_audio": "?"},
    {"type": "input_audio", "input_audio": {"data": "?", "format": "?"}},
    {"type": "input_image", "image_url": "?"},
    {"type": "input_image", "image_url": {"url": "?"}},
    {"type": "input_file", "file_data": "?"},
    {"type": "image", "source": "?"},
    {"type": "image", "source": {"type": "?"}},
    {"type": "image", "source": {"type": "base64", "media_type": "?", "data": "?"}},
    {"type": "image", "source": {"type": "url", "url": "?"}},
    {"type": "document", "source": {"type": "content", "content": "?"}},
    {"type": "search_result", "content": "?", "title": "?"},
    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "?"}]},
    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image", "source": "?"}]},
    {"type": "refusal", "refusal": "?"},
]
SPOKEN = ("messages", "input")
WITHIN += [(name, [{"role": "user", "content": [part]}]) for part in PARTS for name in SPOKEN]
# Fields of a message, and items of a conversation.
SPOKEN_FIELDS = ("images", "videos", "audio", "name", "tool_call_id", "tool_name", "thinking")
WITHIN += [("messages", [{**SAID[0], name: "?"}]) for name in SPOKEN_FIELDS]
ITEMS = [
    {"type": "item_reference", "id": "?"},
    {"role": "assistant", "content": [{"type": "output_text", "text": "?"}]},
    {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "?"}]},
    {"type": "reasoning", "summary": [], "encrypted_content": "?"},
    {"type": "function_call_output", "call_id": "?", "output": "a"},
    {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text"}, "?"]},
    {"type": "function_call", "call_id": "a", "name": "a", "namespace": "?", "arguments": "{}"},
    {"type": "custom_tool_call_output", "call_id": "a", "output": "?"},
    {"type": "local_shell_call_output", "id": "?", "output": "?"},
    {**SAID[0], "extra": "?"},
]
WITHIN += [("input", [item]) for item in ITEMS]
# Keywords of a JSON schema.
WORDS = (
    "enum", "const", "anyOf", "allOf", "$ref", "$defs", "required", "pattern", "minimum", "items",
    "multipleOf", "maxLength", "prefixItems", "patternProperties", "propertyNames",
    "unevaluatedProperties",
)  # fmt: skip
WITHIN += [("format", {"properties": {"a": {}}, "anyOf": [{}], name: "?"}) for name in WORDS]
WITHIN += [
    ("include", ["?"]),
    ("metadata", {"a": "?"}),
    ("conversation", {"id": "?"}),
    ("timestamp_granularities", ["?"]),
    ("modalities", ["?"]),
    ("text", {"format": {"type": "json_schema", "name": "?", "schema": {}, "strict": "?"}}),
    ("response_format", {"type": "json_schema", "json_schema": {"schema": {"enum": "?"}}}),
    ("response_format", {"type": "grammar", "grammar": "?"}),
    ("structured_outputs", {"structural_tag": "?"}),
    ("structured_outputs", {"choice": ["?"]}),
    ("structured_outputs", {"json": {"enum": "?"}}),
    ("tools", [{"name": "a", "input_schema": {"properties": {"b": {"enum": "?"}}}}]),
    ("tools", [{"type": "function", "name": "a", "parameters": {"enum": "?"}}]),
    ("tools", [{"type": "custom", "name": "?", "format": "?"}]),
    ("tool_choice", {"type": "tool", "name": "?"}),
    ("guided_choice", ["?"]),
    ("logit_bias", {"-1": 1, "18446744073709551616": "?"}),
    ("logit_bias", [[5, 1, "?"]]),
    ("logit_bias", [["a", "?"]]),
    ("samplers", ["top_k", "?"]),
    ("dry_sequence_breakers", ["?"]),
    ("lora", [{"id": "?"}]),
    ("lora", [{"id": 0, "scale": "?"}]),
    ("prompt", {"prompt_string": "a", "multimodal_data": ["?"]}),
    ("prompt", [5, "?"]),
    ("images", ["?"]),
    ("content", ["?"]),
    ("tokens", ["?"]),
    ("thinking", {"type": "adaptive", "display": "?"}),
    ("thread", {"id": "?"}),
    ("system", [{"type": "?"}]),
    ("chat_template_kwargs", {"tools": "?"}),
]
OTHERS = ("{", "images", "lora-adapters")  # no fields, or a model of images
ROUTES = [
    endpoint
    for endpoint, given in ANSWERED.items()
    if given and endpoint[0] == "POST" and not any(each in endpoint[1] for each in OTHERS)
]


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store"), default_model="tale") as client:
        yield client


@pytest.fixture(scope="module")
def described(client):
    return operations(client.get("/openapi.json").json())


def asked(described, endpoint):
    """A body that is answered, and the fields that it may have."""
    content = described[endpoint]["requestBody"]["content"]["application/json"]
    given = ANSWERED[endpoint]
    body = dict(given[0] if isinstance(given, tuple) else given)
    return body, content["schema"]["properties"]


def places(fields):
    yield from ((name, "?") for name in fields if name not in NAMES)
    yield from ((name, value) for name, value in WITHIN if name in fields)


def require_sound(client, described, endpoint, values):
    """`values` gives what is tried at each place, by its number."""
    body, fields = asked(described, endpoint)
    for number, (name, value) in enumerate(places(fields)):
        for text in values(number):
            for stream in {False, number % 2 == 0} if "stream" in fields else {None}:
                whole = {"stream": stream, **body, name: value} if stream is not None else body
                content = json.dumps({**whole, name: value}).replace('"?"', text)
                found = client.request(*endpoint, content=content)
                assert found.status_code < 500, (content, found.text)
                assert "internal error" not in found.text, (content, found.text)


@pytest.mark.parametrize("endpoint", ROUTES, ids=" ".join)
def test_wrong_values_are_told(client, described, endpoint):
    some = len(endpoint[1])  # others on each route
    require_sound(
        client,
        described,
        endpoint,
        lambda number: [] if (number + some) % 6 else [WRONG[(number + some) // 6 % len(WRONG)]],
    )


@pytest.mark.parametrize("endpoint", ROUTES, ids=" ".join)
def test_wrong_names_are_told(client, described, endpoint):
    body, fields = asked(described, endpoint)
    for name in (name for name in NAMES if name in fields and name != "insecure"):
        for text in (text for text in (*WRONG, '["\\ud800"]') if text[0] not in '"n'):
            content = json.dumps({**body, name: "?"}).replace('"?"', text)
            found = client.request(*endpoint, content=content)
            assert 400 <= found.status_code < 500, (content, found.text)
            assert "internal error" not in found.text, (content, found.text)


@rare  # of the first test: some 95,000 requests, half an hour of a core
@pytest.mark.parametrize("endpoint", ROUTES, ids=" ".join)
def test_all_wrong_values_are_told(client, described, endpoint):
    require_sound(client, described, endpoint, lambda _: WRONG)


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    store = store_seer(tmp_path_factory.mktemp("seer"))
    with client_of(store, default_model="seer") as client:
        yield client


@pytest.mark.parametrize("part", PARTS, ids=str)
@pytest.mark.parametrize(
    ("endpoint", "name"),
    [
        ("/v1/chat/completions", "messages"),
        ("/v1/responses", "input"),
        ("/v1/messages", "messages"),
        ("/api/chat", "messages"),
    ],
)
def test_wrong_parts_are_told_by_a_model_that_sees(seeing, endpoint, name, part):
    body = {**ANSWERED["POST", endpoint], "model": "seer"}
    for text in (*WRONG, f'"{PIECES[0]}"', f'["{PIECES[0][:60]}"]', '"data:image/png;base64,"'):
        content = json.dumps({**body, name: [{"role": "user", "content": [part]}]})
        found = seeing.post(endpoint, content=content.replace('"?"', text))
        assert found.status_code < 500, (part, text, found.text)
        assert "internal error" not in found.text, (part, text, found.text)


@pytest.mark.parametrize("item", ITEMS, ids=str)
def test_wrong_items_after_a_kept_response_are_told(client, item):
    before = client.post("/v1/responses", json={**ANSWERED["POST", "/v1/responses"]}).json()
    for text in WRONG:
        body = {"model": "tale", "max_output_tokens": 1, "previous_response_id": before["id"]}
        content = json.dumps({**body, "input": [item, SAID[0]]}).replace('"?"', text)
        found = client.post("/v1/responses", content=content)
        assert found.status_code < 500, (item, text, found.text)
        if found.status_code == 200:
            # What was kept may be continued, whatever it had.
            again = {**body, "previous_response_id": found.json()["id"], "input": "a"}
            found = client.post("/v1/responses", json=again)
            assert found.status_code < 500, (item, text, found.text)


@pytest.mark.parametrize("text", [*WRONG, "%00", "..%2F..", "%F0%9F%99%82", "a" * 3000])
def test_wrong_paths_and_queries_are_told(client, text):
    for method, path in (endpoint for endpoint in ANSWERED if "{" in endpoint[1]):
        found = client.request(method, path.partition("{")[0] + text)
        assert found.status_code < 500, (path, found.text)
    paths = [path for method, path in ANSWERED if method == "GET" and "{" not in path]
    for path in [*paths, "/slots/0"]:
        for name in ("model", "slot", "fail_on_no_slot", "action", text):
            found = client.request("GET" if path in paths else "POST", f"{path}?{name}={text}")
            assert found.status_code < 500, (path, name, found.text)


@pytest.mark.parametrize("text", [text for text in WRONG if text != "null"])
def test_wrong_scales_of_adapters_are_told(client, text):
    for shape in ("?", ["?"], [{"id": "?"}], [{"id": 0, "scale": "?"}]):
        content = json.dumps(shape).replace('"?"', text)
        found = client.post("/lora-adapters?model=tale", content=content)
        assert found.status_code < 500, (content, found.text)


@pytest.mark.slow
@pytest.mark.parametrize("image", [False, True])
@pytest.mark.parametrize("text", [text for text in WRONG if text not in ("5", "null")])
def test_wrong_values_of_pictures_are_told(client, text, image):
    endpoint = "/v1/images/edits" if image else "/v1/images/generations"
    body = dict(ANSWERED["POST", endpoint])
    names = ("n", "size", "seed", "steps", "guidance_scale", "response_format", "mask", "strength")
    for name in names:
        found = client.post(endpoint, content=json.dumps({**body, name: "?"}).replace('"?"', text))
        assert found.status_code < 500, (name, text, found.text)
