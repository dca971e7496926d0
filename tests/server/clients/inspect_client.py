"""Inspect AI, by its providers for OpenAI, Ollama, vLLM, SGLang, llama-cpp-python and Anthropic."""

import asyncio
from tempfile import TemporaryDirectory

from features import encoded_picture, try_all, url
from inspect_ai import Task, eval
from inspect_ai.agent import react
from inspect_ai.dataset import Sample
from inspect_ai.log import read_eval_log
from inspect_ai.model import (
    ChatMessageUser,
    ContentImage,
    ContentText,
    GenerateConfig,
    ResponseSchema,
    get_model,
)
from inspect_ai.scorer import choice, includes
from inspect_ai.solver import multiple_choice
from inspect_ai.tool import tool
from inspect_ai.util import json_schema
from pydantic import BaseModel

API = f"{url()}/v1"
PROVIDERS = {
    "openai-api/here": {"base_url": API},
    "ollama": {"base_url": API},
    "vllm": {"base_url": API},
    "sglang": {"base_url": API},
    "llama-cpp-python": {"base_url": API},
    "anthropic": {"base_url": url(), "streaming": False},
}


class Found(BaseModel):
    """What an answer's schema asks for."""

    warm: bool


@tool
def weather():
    async def execute(city: str) -> str:
        """Tell the weather.

        Args:
            city: A city.
        """
        return f"{city}: 3"

    return execute


def _models(name, without=()):
    for provider, given in PROVIDERS.items():
        if provider not in without:
            yield get_model(f"{provider}/{name}", api_key="none", memoize=False, **given)
    responses = {"base_url": API, "responses_api": True}
    yield get_model(f"openai-api/here/{name}", api_key="none", memoize=False, **responses)


def inspect_answers():
    for model in _models("actor"):
        found = asyncio.run(model.generate("Hi", config=GenerateConfig(max_tokens=20)))
        assert found.completion.strip() == "Hello there now.", model


def inspect_schema():
    wanted = ResponseSchema(name="found", json_schema=json_schema(Found))
    asked = GenerateConfig(response_schema=wanted, max_tokens=60)
    for model in _models("tale"):
        found = asyncio.run(model.generate("Hi", config=asked))
        assert isinstance(Found.model_validate_json(found.completion).warm, bool), model


def inspect_logprobs():
    asked = GenerateConfig(logprobs=True, top_logprobs=3, max_tokens=4, temperature=0)
    for model in _models("tale", without=("anthropic",)):
        found = asyncio.run(model.generate("Once", config=asked)).choices[0].logprobs
        assert len(found.content) == 4, model
        assert all(each.logprob <= 0 and len(each.top_logprobs) == 3 for each in found.content)


def inspect_picture():
    said = ChatMessageUser(content=[
        ContentText(text="What is this?"),
        ContentImage(image=f"data:image/png;base64,{encoded_picture('red')}"),
    ])  # fmt: skip
    asked = GenerateConfig(temperature=0, max_tokens=60)
    for model in _models("eyes"):
        found = asyncio.run(model.generate([said], config=asked))
        assert "red square" in found.completion, model


def _evaluated(task, model):
    with TemporaryDirectory() as folder:
        (log,) = eval(task, model=model, log_dir=folder, display="none", max_tokens=40)
        assert log.status == "success", log.error
        return read_eval_log(log.location)


def inspect_evaluates():
    sample = Sample(input="Where?", target="cold")
    agent = react(prompt=None, tools=[weather()], submit=False)
    for model in _models("actor"):
        log = _evaluated(Task([sample], solver=agent, scorer=includes()), model)
        assert log.results.scores[0].metrics["accuracy"].value == 1.0, model
        said = [m.text for m in log.samples[0].messages if m.role == "tool"]
        assert said == ["Oslo: 3"], model


def inspect_chooses():
    sample = Sample(input="Once upon a", choices=["time", "fork"], target="A")
    for model in _models("tale"):
        log = _evaluated(Task([sample], solver=multiple_choice(), scorer=choice()), model)
        assert log.results.total_samples == 1


if __name__ == "__main__":
    try_all([
        inspect_answers, inspect_schema, inspect_logprobs,
        inspect_picture, inspect_evaluates, inspect_chooses,
    ])  # fmt: skip
