"""Values of wrong types in every field of every route: an error of the request, or an answer."""

import json

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

from tests.server.serving import client_of
from tests.server.test_endpoints import ANSWERED, operations
from tests.shares import rare

# As JSON has them, or as programs write it.
WRONG = [
    "5", "-1", "1.5", "true", '"x"', '""', "[]", "[[], 1]", "{}", '{"a": {}}', "1e999", "NaN",
    "18446744073709551616", '[{"type": 5}]', '["a", null]', '{"type": []}', "null",
]  # fmt: skip
NAMES = ("model", "name", "insecure", "source", "destination", "from")  # that reach elsewhere
OPTIONS = (
    "num_ctx", "num_predict", "num_keep", "top_k", "seed", "repeat_last_n", "temperature", "top_p",
    "min_p", "typical_p", "repeat_penalty", "presence_penalty", "frequency_penalty", "stop",
    "num_batch", "use_mmap", "numa", "mirostat", "mirostat_tau", "mirostat_eta", "dry_multiplier",
    "dry_base", "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers", "samplers",
    "xtc_probability", "xtc_threshold", "top_n_sigma", "dynatemp_range", "dynatemp_exponent",
    "min_keep",
)  # fmt: skip
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


@rare  # of the first test: 51,748 requests, 17 minutes of a core
@pytest.mark.parametrize("endpoint", ROUTES, ids=" ".join)
def test_all_wrong_values_are_told(client, described, endpoint):
    require_sound(client, described, endpoint, lambda _: WRONG)


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
