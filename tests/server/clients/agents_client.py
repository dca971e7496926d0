"""OpenAI's Agents SDK, and agents of LlamaIndex and LangChain."""

import asyncio

import agents
from features import refused, try_all, url
from langchain.agents import create_agent
from langchain_core.exceptions import ContextOverflowError
from langchain_ollama import ChatOllama
from langchain_openai import ChatOpenAI
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.core.tools import FunctionTool
from llama_index.llms.ollama import Ollama
from llama_index.llms.openai_like import OpenAILike
from openai import AsyncOpenAI
from pydantic import BaseModel

API = f"{url()}/v1"
MODELS = (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel)


class Found(BaseModel):
    """What an answer's schema asks for."""

    warm: bool


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"{city}: 3"


def an_agent(kind, model="actor", **more):
    client = AsyncOpenAI(base_url=API, api_key="none", max_retries=0)
    return agents.Agent(name="a", model=kind(model=model, openai_client=client), **more)


def agents_sdk():
    for kind in MODELS:
        one = an_agent(kind, tools=[agents.function_tool(weather)], instructions="Be kind")
        found = agents.Runner.run_sync(one, "Hi")
        assert found.final_output == "It is cold.", kind
        assert [item.output for item in found.new_items if hasattr(item, "output")] == ["Oslo: 3"]


def agents_sdk_streamed():
    async def ask(kind):
        tools = [agents.function_tool(weather)]
        found = agents.Runner.run_streamed(an_agent(kind, tools=tools), "Hi")
        assert len([event async for event in found.stream_events()]) > 9
        return found.final_output

    for kind in MODELS:
        assert asyncio.run(ask(kind)) == "It is cold.", kind


def agents_sdk_schema():
    for kind in MODELS:
        one = an_agent(kind, "tale", output_type=Found)
        assert isinstance(agents.Runner.run_sync(one, "Hi").final_output, Found), kind


def _llama_index():
    tools, size = {"is_function_calling_model": True, "is_chat_model": True}, 512
    yield OpenAILike("actor", api_base=API, api_key="none", context_window=size, **tools)
    yield Ollama("actor", base_url=url(), context_window=size, thinking=False)


def llama_index():
    tool = FunctionTool.from_defaults(weather)

    async def ask(llm):
        return str(await FunctionAgent(tools=[tool], llm=llm).run("Hi"))

    for llm in _llama_index():
        assert llm.complete("Hi").text == "Hello there now.", llm
        assert "".join(p.delta or "" for p in llm.stream_complete("Hi")) == "Hello there now.", llm
        assert asyncio.run(ask(llm)) == "It is cold.", llm


def _langchain(model):
    yield ChatOpenAI(model=model, base_url=API, api_key="none", max_retries=0)
    yield ChatOpenAI(
        model=model, base_url=API, api_key="none", max_retries=0, use_responses_api=True
    )
    yield ChatOllama(model=model, base_url=url(), reasoning=False)


def langchain():
    for llm in _langchain("actor"):
        agent = create_agent(llm, tools=[weather], system_prompt="Be kind")
        said = agent.invoke({"messages": [("user", "Hi")]})["messages"]
        assert said[-1].text == "It is cold.", llm
        assert [message.type for message in said] == ["human", "ai", "tool", "ai"]
        assert len([*agent.stream({"messages": [("user", "Hi")]})]) == 3


def langchain_schema():
    for llm in [*_langchain("tale")][:2]:
        assert isinstance(llm.with_structured_output(Found).invoke("Hi"), Found)


def langchain_full_context():
    for llm in [*_langchain("tale")][:2]:
        refused(lambda llm=llm: llm.invoke("fox " * 3000), ContextOverflowError, 400)


if __name__ == "__main__":
    agents.set_tracing_disabled(True)
    try_all([agents_sdk, agents_sdk_streamed, agents_sdk_schema, llama_index, langchain,
             langchain_schema, langchain_full_context])  # fmt: skip
