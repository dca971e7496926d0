"""Strands Agents, by its models for OpenAI, Ollama, Anthropic and llama.cpp."""

import asyncio

import strands
from features import try_all, url
from pydantic import BaseModel
from strands.agent.conversation_manager import NullConversationManager
from strands.models.anthropic import AnthropicModel
from strands.models.llamacpp import LlamaCppModel
from strands.models.ollama import OllamaModel
from strands.models.openai import OpenAIModel
from strands.models.openai_responses import OpenAIResponsesModel
from strands.types.exceptions import ContextWindowOverflowException

API = {"base_url": f"{url()}/v1", "api_key": "none"}


class Found(BaseModel):
    """What an answer's schema asks for."""

    warm: bool


@strands.tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"{city}: 3"


def _models(name):
    yield OpenAIModel(client_args=API, model_id=name)
    yield OpenAIModel(client_args=API, model_id=name, stream=False)
    yield OpenAIResponsesModel(client_args=API, model_id=name)
    yield OllamaModel(url(), model_id=name, additional_args={"think": False})
    there = {"base_url": url(), "api_key": "none"}
    yield AnthropicModel(client_args=there, model_id=name, max_tokens=99)
    yield LlamaCppModel(base_url=url(), model_id=name, params={"top_k": 40, "tfs_z": 0.95})


def _agent(model, **more):
    return strands.Agent(model=model, callback_handler=None, **more)


def strands_answers():
    for model in _models("actor"):
        assert str(_agent(model)("Hi")).strip() == "Hello there now.", model


def strands_tools():
    for model in _models("actor"):
        agent = _agent(model, tools=[weather], system_prompt="Be kind")
        assert str(agent("Hi")).strip() == "It is cold.", model
        results = [part["toolResult"] for m in agent.messages for part in m["content"]
                   if "toolResult" in part]  # fmt: skip
        assert [each["content"] for each in results] == [[{"text": "Oslo: 3"}]], model


def strands_schema():
    """By a forced call; Ollama's API and its model for llama.cpp have none."""
    for model in [*_models("codex")][:5]:
        if isinstance(model, OllamaModel):
            continue
        assert isinstance(
            _agent(model)("Hi", structured_output_model=Found).structured_output, Found
        )


def strands_llama_cpp():
    """What its model for llama.cpp asks beyond OpenAI's API."""
    model = LlamaCppModel(base_url=url(), model_id="tale", params={"max_tokens": 60})
    said = [{"role": "user", "content": [{"text": "Hi"}]}]

    async def structured():
        return [event async for event in model.structured_output(Found, said)]

    assert isinstance(asyncio.run(structured())[-1]["output"], Found)
    model = LlamaCppModel(base_url=url(), model_id="tale", params={"grammar": 'root ::= "yes"'})
    assert str(_agent(model)("Hi")).strip() == "yes"
    model = LlamaCppModel(base_url=url(), model_id="tale", use_native_token_count=True)
    assert asyncio.run(model.count_tokens(said)) > 0


def strands_overflow():
    """A prompt that is too long is known as such, so that agents shorten it."""
    kind = ContextWindowOverflowException
    for model in _models("actor"):
        if isinstance(model, OllamaModel):
            continue  # Ollama's API cuts prompts
        found = None
        try:
            _agent(model, conversation_manager=NullConversationManager())("word " * 900)
        except kind as error:
            found = error
        assert found is not None, model


if __name__ == "__main__":
    try_all([strands_answers, strands_tools, strands_schema, strands_llama_cpp, strands_overflow])
