"""Haystack, by its components for OpenAI and Ollama."""

from features import try_all, url, width
from haystack.components.agents import Agent
from haystack.components.embedders import OpenAITextEmbedder
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import Tool
from haystack.utils import Secret
from haystack_integrations.components.embedders.ollama import OllamaTextEmbedder
from haystack_integrations.components.generators.ollama import OllamaChatGenerator

OPENAI = {"api_base_url": f"{url()}/v1", "api_key": Secret.from_token("none")}
HI = [ChatMessage.from_user("Hi")]
WEATHER = Tool(
    name="weather",
    description="Find the weather.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}},
    function=lambda city: f"{city}: 3",
)


def _generators(**more):
    yield OpenAIChatGenerator(model="actor", **OPENAI, **more)
    yield OllamaChatGenerator(model="actor", url=url(), **more)


def haystack_chat():
    for generator in _generators():
        assert generator.run(HI)["replies"][0].text == "Hello there now."


def haystack_stream():
    pieces = []
    for generator in _generators(streaming_callback=lambda chunk: pieces.append(chunk.content)):
        pieces.clear()
        assert generator.run(HI)["replies"][0].text == "".join(pieces) == "Hello there now."


def haystack_agent():
    for generator in _generators():
        agent = Agent(chat_generator=generator, tools=[WEATHER])
        agent.warm_up()
        assert agent.run(messages=HI)["last_message"].text == "It is cold."


def haystack_embed():
    for embedder in (
        OpenAITextEmbedder(model="tale", **OPENAI),
        OllamaTextEmbedder(model="tale", url=url()),
    ):
        assert len(embedder.run("a")["embedding"]) == width()


try_all([haystack_chat, haystack_stream, haystack_agent, haystack_embed])
