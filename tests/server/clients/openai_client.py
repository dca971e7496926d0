"""OpenAI's Python client."""

import json

import openai
from features import encoded_picture, idle, refused, slots, try_all, url, width

client = openai.OpenAI(base_url=f"{url()}/v1", api_key="none", max_retries=0)
SCHEMA = {
    "type": "object",
    "properties": {"animal": {"enum": ["fox", "bear"]}},
    "required": ["animal"],
    "additionalProperties": False,
}
SAID = [{"role": "user", "content": "Hi"}]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "weather", "parameters": CITY}
TOOLS = [{"type": "function", "function": FUNCTION}]
FIXED = {"temperature": 0, "max_tokens": 12}


def list_():
    assert {"tale:latest", "actor:latest"} <= {model.id for model in client.models.list()}
    assert client.models.retrieve("tale").id == "tale"


def generate():
    found = client.completions.create(model="tale", prompt="A fox", n=2, **FIXED)
    assert [c.finish_reason for c in found.choices] == ["length", "length"]
    assert found.usage.completion_tokens == 24


def chat():
    found = client.chat.completions.create(model="actor", messages=SAID, **FIXED)
    assert found.choices[0].message.content == "Hello there now."
    assert found.choices[0].finish_reason == "stop"


def stream():
    with client.chat.completions.stream(
        model="actor", messages=SAID, stream_options={"include_usage": True}, **FIXED
    ) as events:
        for _ in events:
            pass
        found = events.get_final_completion()
    assert found.choices[0].message.content == "Hello there now."
    assert found.usage.completion_tokens == 3


def tools():
    found = client.chat.completions.create(model="actor", messages=SAID, tools=TOOLS, **FIXED)
    message = found.choices[0].message
    assert message.tool_calls[0].function.arguments == '{"city": "Oslo"}'
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "3"}
    found = client.chat.completions.create(
        model="actor", messages=[*SAID, message, result], tools=TOOLS, **FIXED
    )
    assert found.choices[0].message.content == "It is cold."


def streamed_tools():
    with client.chat.completions.stream(
        model="actor", messages=SAID, tools=TOOLS, **FIXED
    ) as events:
        found = events.until_done().get_final_completion()
    assert found.choices[0].message.tool_calls[0].function.name == "weather"
    assert found.choices[0].finish_reason == "tool_calls"


def forced_tools():
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        found = client.chat.completions.create(
            model="actor", messages=SAID, tools=TOOLS, tool_choice=choice, max_tokens=300
        )
        assert found.choices[0].message.tool_calls[0].function.name == "weather"


def schema():
    form = {"name": "one", "schema": SCHEMA, "strict": True}
    found = client.chat.completions.create(
        model="tale", messages=SAID, response_format={"type": "json_schema", "json_schema": form}
    )
    assert json.loads(found.choices[0].message.content)["animal"] in ("fox", "bear")
    text = {"format": {"type": "json_schema", **form}}
    found = client.responses.create(model="tale", input="Hi", text=text)
    assert json.loads(found.output_text)["animal"] in ("fox", "bear")


def thinking():
    found = client.chat.completions.create(
        model="actor", messages=SAID, reasoning_effort="low", **FIXED
    )
    assert found.choices[0].message.reasoning_content == "hm"


def responses():
    found = client.responses.create(model="actor", input="Hi", instructions="Be kind")
    assert (found.output_text, found.status) == ("Hello there now.", "completed")
    tool = {"type": "function", **FUNCTION, "strict": False}
    found = client.responses.create(model="actor", input="Hi", tools=[tool])
    assert found.output[0].arguments == '{"city": "Oslo"}'


def streamed_responses():
    with client.responses.stream(model="actor", input="Hi") as events:
        text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
        assert events.get_final_response().output_text == text == "Hello there now."


def embed():
    found = client.embeddings.create(model="tale", input=["a fox", "a bear"])
    assert [each.index for each in found.data] == [0, 1]
    assert len(found.data[0].embedding) == width()


def rerank():
    body = {"model": "judge", "query": "a", "documents": ["b", "c"], "top_n": 1}
    found = client.post("/rerank", body=body, cast_to=object)
    assert len(found["results"]) == 1


def logprobs():
    found = client.chat.completions.create(
        model="tale", messages=SAID, logprobs=True, top_logprobs=2, **FIXED
    )
    assert len(found.choices[0].logprobs.content[0].top_logprobs) == 2


def pictures():
    data = f"data:image/png;base64,{encoded_picture('red')}"
    parts = [
        {"type": "image_url", "image_url": {"url": data, "detail": "low"}},
        {"type": "text", "text": "Which colour?"},
    ]
    said = [{"role": "user", "content": parts}]
    found = client.chat.completions.create(model="eyes", messages=said, **FIXED)
    assert found.choices[0].message.content == "Red."
    assert found.usage.prompt_tokens > 36
    with client.chat.completions.stream(model="eyes", messages=said, **FIXED) as events:
        assert events.get_final_completion().choices[0].message.content == "Red."
    parts = [
        {"type": "input_image", "image_url": data, "detail": "auto"},
        {"type": "input_text", "text": "Which colour?"},
    ]
    found = client.responses.create(
        model="eyes", input=[{"role": "user", "content": parts}], temperature=0
    )
    assert found.output_text == "Red."
    far = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}}]
    said = [{"role": "user", "content": far}]
    refused(
        lambda: client.chat.completions.create(model="eyes", messages=said),
        openai.BadRequestError,
        400,
    )


def cancel():
    events = client.completions.create(model="tale", prompt="A fox", stream=True)
    next(iter(events))
    events.close()
    idle(slots)


def errors():
    def ask(**more):
        return lambda: client.chat.completions.create(
            **{"model": "actor", "messages": SAID, **more}
        )

    assert "not found" in str(refused(ask(model="no"), openai.NotFoundError, 404))
    refused(ask(temperature=-1), openai.BadRequestError, 400)


if __name__ == "__main__":
    try_all([list_, generate, chat, stream, tools, streamed_tools, forced_tools, schema, thinking,
             responses, streamed_responses, embed, rerank, logprobs, pictures,
             cancel, errors])  # fmt: skip
