"""Agno, any-llm and Microsoft's Agent Framework, by each of the APIs that they speak."""

import asyncio

import agent_framework
import any_llm
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from agno.agent import Agent
from agno.models.ollama import Ollama
from agno.models.openai import OpenAIChat, OpenAIResponses
from features import try_all, url
from pydantic import BaseModel

API = f"{url()}/v1"
SAID = [{"role": "user", "content": "Hi"}]
PROVIDERS = {"ollama": url(), "openai": API, "llamacpp": API, "anthropic": url()}
FRAMEWORKS = (OpenAIChatCompletionClient, OpenAIChatClient)


class Found(BaseModel):
    """What an answer's schema asks for."""

    warm: bool


def weather(city: str) -> str:
    """Tell the weather of a city.

    Args:
        city: its name
    """
    return f"{city}: 3"


def _agno_models(name):
    fixed = {"base_url": API, "api_key": "none"}
    yield Ollama(id=name, host=url(), request_params={"think": False})
    yield from (kind(id=name, **fixed) for kind in (OpenAIChat, OpenAIResponses))


def agno_tools():
    for model in _agno_models("actor"):
        done = Agent(model=model, tools=[weather], telemetry=False).run("Hi")
        assert done.content == "It is cold.", model
        assert [each.result for each in done.tools] == ["Oslo: 3"], model


def agno_tools_streamed():
    for model in _agno_models("actor"):
        events = Agent(model=model, tools=[weather], telemetry=False).run("Hi", stream=True)
        said = [each.content for each in events if each.event == "RunContent"]
        assert "".join(filter(None, said)) == "It is cold.", model


def agno_schema():
    for model in _agno_models("tale"):
        done = Agent(model=model, output_schema=Found, telemetry=False).run("Hi")
        assert isinstance(done.content, Found), model


def _any(provider, **more):
    fixed = {"ollama": {"think": False}, "anthropic": {"max_tokens": 30}}.get(provider, {})
    where = {"provider": provider, "api_base": PROVIDERS[provider], "api_key": "none"}
    return any_llm.completion(model="actor", messages=SAID, **where, **fixed, **more)


def any_llm_chat():
    for provider in PROVIDERS:
        assert _any(provider).choices[0].message.content == "Hello there now.", provider


def any_llm_stream():
    for provider in PROVIDERS:
        parts = [each.choices for each in _any(provider, stream=True)]
        said = [part[0].delta.content or "" for part in parts if part]
        assert "".join(said) == "Hello there now.", provider


def any_llm_tools():
    for provider in PROVIDERS:
        call = _any(provider, tools=[weather]).choices[0].message.tool_calls[0]
        assert (call.function.name, call.function.arguments) == ("weather", '{"city": "Oslo"}')


def any_llm_embed():
    for provider in ("ollama", "openai", "llamacpp"):
        where = {"provider": provider, "api_base": PROVIDERS[provider], "api_key": "none"}
        found = any_llm.embedding(model="tale", inputs=["a", "b"], **where)
        assert len(found.data) == 2, provider


def any_llm_list():
    for provider in PROVIDERS:
        where = {"provider": provider, "api_base": PROVIDERS[provider], "api_key": "none"}
        assert "actor:latest" in {each.id for each in any_llm.list_models(**where)}, provider


def agent_framework_tools():
    """By responses, the second request has the first by its id."""
    for kind in FRAMEWORKS:
        client = kind(base_url=API, api_key="none", model="actor")
        agent = agent_framework.Agent(client, instructions="Be kind", tools=[weather])
        assert asyncio.run(agent.run("Hi")).text == "It is cold.", kind


def agent_framework_streamed():
    async def ask(kind):
        client = kind(base_url=API, api_key="none", model="actor")
        stream = agent_framework.Agent(client, tools=[weather]).run("Hi", stream=True)
        assert len([each async for each in stream]) > 4
        return (await stream.get_final_response()).text

    for kind in FRAMEWORKS:
        assert asyncio.run(ask(kind)) == "It is cold.", kind


def agent_framework_session():
    async def ask(kind):
        client = kind(base_url=API, api_key="none", model="actor")
        agent = agent_framework.Agent(client)
        session = agent.create_session()
        await agent.run("Hi", session=session)
        return (await agent.run("And then?", session=session)).text

    for kind in FRAMEWORKS:
        assert asyncio.run(ask(kind)) == "Hello there now.", kind


if __name__ == "__main__":
    try_all(
        [
            agno_tools, agno_tools_streamed, agno_schema,
            any_llm_chat, any_llm_stream, any_llm_tools, any_llm_embed, any_llm_list,
            agent_framework_tools, agent_framework_streamed, agent_framework_session,
        ]
    )  # fmt: skip
