"""Ollama's Python client."""

import json

from features import encoded_picture, idle, picture, pull_name, refused, slots, try_all, url
from ollama import Client, ResponseError

client = Client(url())
FIXED = {"temperature": 0, "seed": 1, "num_predict": 12}
SCHEMA = {
    "type": "object",
    "properties": {"animal": {"enum": ["fox", "bear"]}},
    "required": ["animal"],
    "additionalProperties": False,
}
SAID = [{"role": "user", "content": "Hi"}]


def weather(city: str) -> str:
    """Tell the weather.

    Args:
      city: where
    """
    return city


def list_():
    assert {"tale:latest", "actor:latest"} <= {model.model for model in client.list().models}
    facts = client.show("tale")
    assert facts.details.family == facts.modelinfo["general.architecture"]


def pull():
    last = list(client.pull(pull_name(), insecure=True, stream=True))[-1]
    assert last.status == "success", last
    client.copy(pull_name().removeprefix("http://"), "pulled")
    client.delete("pulled")


def create():
    made = client.create("mine", from_="tale", system="Be kind", parameters={"num_predict": 3})
    assert made.status == "success"
    assert client.generate("mine", "Hi").eval_count == 3
    client.delete("mine")


def generate():
    found = client.generate("tale", "Tell me a story about a fox.", options=FIXED)
    assert found.done_reason == "length"
    assert found.eval_count == 12


def chat():
    found = client.chat("actor", SAID, think=False, options=FIXED)
    assert found.message.content == "Hello there now."


def stream():
    whole = client.generate("tale", "A fox", options=FIXED).response
    pieces = list(client.generate("tale", "A fox", options=FIXED, stream=True))
    assert "".join(piece.response for piece in pieces) == whole
    assert pieces[-1].done


def tools():
    found = client.chat("actor", SAID, tools=[weather], think=False, options=FIXED)
    [call] = found.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", {"city": "Oslo"})
    said = [*SAID, found.message, {"role": "tool", "content": "3", "tool_name": "weather"}]
    found = client.chat("actor", said, tools=[weather], think=False, options=FIXED)
    assert found.message.content == "It is cold."


def thinking():
    for think in (True, None):
        found = client.chat("actor", SAID, think=think, options=FIXED)
        assert (found.message.thinking, found.message.content) == ("hm", "Yes")


def schema():
    found = client.chat("tale", SAID, format=SCHEMA, options={"temperature": 0})
    assert json.loads(found.message.content)["animal"] in ("fox", "bear")


def embed():
    found = client.embed("tale", ["a fox", "a bear"]).embeddings
    assert len(found) == 2
    assert client.embeddings("tale", "a fox").embedding == list(found[0])


def logprobs():
    found = client.generate("tale", "A fox", options=FIXED, logprobs=True, top_logprobs=2)
    assert len(found.logprobs) == found.eval_count
    assert len(found.logprobs[0].top_logprobs) == 2


def pictures():
    assert "vision" in client.show("eyes").capabilities
    asked = {"role": "user", "content": "Which colour?"}
    cold = {"temperature": 0}
    # The client reads files; bytes and base64 as they are.
    for given in (str(picture("red")), picture("red").read_bytes(), encoded_picture("red")):
        found = client.chat("eyes", [{**asked, "images": [given]}], options=cold)
        assert found.message.content == "Red.", found
    said = [{**asked, "images": [str(picture("blue"))]}, found.message, asked]
    assert client.chat("eyes", said, options=cold).message.content == "Blue."
    found = client.generate("eyes", "Which colour?", images=[str(picture("blue"))], options=cold)
    assert found.response == "Blue."
    bad = [{**asked, "images": [str(picture("red"))]}]
    assert "does not support images" in str(
        refused(lambda: client.chat("tale", bad), ResponseError, 400)
    )


def cancel():
    pieces = client.generate("tale", "A fox", options={"num_predict": -1}, stream=True)
    next(pieces)
    pieces.close()
    idle(slots)


def errors():
    assert "not found" in str(refused(lambda: client.chat("no", SAID), ResponseError, 404))
    refused(lambda: client.generate("tale", "a", options={"top_k": "many"}), ResponseError, 400)


if __name__ == "__main__":
    try_all([list_, pull, create, generate, chat, stream, tools, thinking, schema, embed, logprobs,
             pictures, cancel, errors])  # fmt: skip
