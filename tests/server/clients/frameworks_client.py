"""Pydantic AI and Instructor, by chats, responses and Ollama's provider."""

import instructor
import openai
from features import try_all, url
from pydantic import BaseModel, Field
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.ollama import OllamaModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.ollama import OllamaProvider
from pydantic_ai.providers.openai import OpenAIProvider

API = f"{url()}/v1"
MODELS = (OpenAIChatModel, OpenAIResponsesModel, OllamaModel)


class Child(BaseModel):
    age: int = Field(ge=1, le=99)
    warm: bool


def _agent(kind, name, **more):
    provider = OllamaProvider if kind is OllamaModel else OpenAIProvider
    model = kind(name, provider=provider(base_url=API, api_key="none"))
    return Agent(model, model_settings={"temperature": 0, "max_tokens": 100}, **more)


def weather(city: str) -> str:
    """Find the weather."""
    return f"{city}: 3"


def pydantic_ai_tools():
    for kind in MODELS:
        done = _agent(kind, "actor", tools=[weather]).run_sync("Weather?")
        assert done.output == "It is cold."
        assert any("Oslo: 3" in str(message.parts) for message in done.all_messages())


def pydantic_ai_schema():
    for kind in MODELS:
        child = _agent(kind, "tale", output_type=NativeOutput(Child)).run_sync("A child").output
        assert 1 <= child.age <= 99


def instructor_modes():
    for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON_SCHEMA):
        # A forced call has the form of the model's own calls, which the story model has not.
        model = "claude" if mode is instructor.Mode.TOOLS else "tale"
        client = instructor.from_openai(openai.OpenAI(base_url=API, api_key="none"), mode=mode)
        asked = {
            "model": model, "messages": [{"role": "user", "content": "A child"}],
            "response_model": Child, "max_retries": 0, "temperature": 0, "max_tokens": 400,
        }  # fmt: skip
        assert 1 <= client.create(**asked).age <= 99
        assert list(client.create_partial(**asked))[-1].age == client.create(**asked).age


try_all([pydantic_ai_tools, pydantic_ai_schema, instructor_modes])
