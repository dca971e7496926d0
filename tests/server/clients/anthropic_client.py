"""Anthropic's Python client."""

import json

import anthropic
from features import encoded_picture, idle, refused, slots, try_all, url

client = anthropic.Anthropic(base_url=url(), api_key="none", max_retries=0)
ASKED = {"model": "actor", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 50}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = [{"name": "weather", "input_schema": CITY}]


def chat():
    found = client.messages.create(**ASKED, system="Be kind")
    assert (found.content[0].text, found.stop_reason) == ("Hello there now.", "end_turn")


def stream():
    with client.messages.stream(**ASKED) as events:
        assert "".join(events.text_stream) == "Hello there now."
        assert events.get_final_message().usage.output_tokens == 3


def tools():
    found = client.messages.create(**ASKED, tools=TOOLS)
    call = found.content[0]
    assert (call.name, call.input, found.stop_reason) == ("weather", {"city": "Oslo"}, "tool_use")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": "3"}
    said = [
        *ASKED["messages"],
        {"role": "assistant", "content": found.content},
        {"role": "user", "content": [result]},
    ]
    found = client.messages.create(**{**ASKED, "messages": said}, tools=TOOLS)
    assert found.content[0].text == "It is cold."


def streamed_tools():
    with client.messages.stream(**ASKED, tools=TOOLS) as events:
        found = events.get_final_message()
    assert found.content[0].input == {"city": "Oslo"}


def forced_tools():
    for choice in ({"type": "any"}, {"type": "tool", "name": "weather"}):
        found = client.messages.create(
            **{**ASKED, "max_tokens": 300}, tools=TOOLS, tool_choice=choice
        )
        assert found.stop_reason == "tool_use"


def schema():
    form = {"type": "json_schema", "schema": CITY}
    asked = {**ASKED, "model": "tale", "max_tokens": 60}
    found = client.messages.create(**asked, output_config={"format": form})
    assert json.loads(found.content[0].text) == {"city": "Oslo"}


def thinking():
    asked = {**ASKED, "thinking": {"type": "enabled", "budget_tokens": 1024}}
    with client.messages.stream(**asked) as events:
        found = events.get_final_message()
    assert (found.content[0].thinking, found.content[1].text) == ("hm", "Yes")


def count_tokens():
    found = client.messages.count_tokens(model="actor", messages=ASKED["messages"])
    usage = client.messages.create(**ASKED).usage
    assert found.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def models():
    found = {model.id: model for model in client.models.list()}
    assert found["tale:latest"].type == "model"
    assert client.models.retrieve("tale").created_at == found["tale:latest"].created_at


def pictures():
    source = {"type": "base64", "media_type": "image/png", "data": encoded_picture("blue")}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": "Which colour?"}]
    said = [{"role": "user", "content": blocks}]
    # Newer clients have no argument for the temperature.
    asked = {"model": "eyes", "messages": said, "max_tokens": 16}
    asked["extra_body"] = {"temperature": 0}
    found = client.messages.create(**asked)
    assert found.content[0].text == "Blue."
    with client.messages.stream(**asked) as events:
        assert "".join(events.text_stream) == "Blue."
    assert client.messages.count_tokens(model="eyes", messages=said).input_tokens > 36
    refused(
        lambda: client.messages.create(**{**asked, "model": "tale"}),
        anthropic.BadRequestError,
        400,
    )


def cancel():
    said = [{"role": "user", "content": "Tell me a story about a fox."}]
    with client.messages.stream(model="tale", messages=said, max_tokens=500) as events:
        next(iter(events.text_stream))
    idle(slots)


def errors():
    def ask(**more):
        return lambda: client.messages.create(**{**ASKED, **more})

    assert "not found" in str(refused(ask(model="no"), anthropic.NotFoundError, 404))
    refused(ask(max_tokens=0), anthropic.BadRequestError, 400)


if __name__ == "__main__":
    try_all([chat, stream, tools, streamed_tools, forced_tools, schema, thinking, count_tokens,
             models, pictures, cancel, errors])  # fmt: skip
