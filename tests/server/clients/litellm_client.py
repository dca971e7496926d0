"""LiteLLM, by its providers for Ollama, OpenAI and Anthropic."""

import gc
import json

import litellm
from features import idle, refused, slots, try_all, url, width

SAID = [{"role": "user", "content": "Hi"}]
FUNCTION = {"name": "weather", "description": "tells", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
PROVIDERS = {"ollama_chat": "", "openai": "/v1", "anthropic": ""}


def ask(provider, model="actor", **more):
    fixed = {"api_base": url() + PROVIDERS[provider], "api_key": "none", "temperature": 0}
    fixed |= {"think": False} if provider == "ollama_chat" else {}
    asked = {"messages": SAID, "max_tokens": 50, **fixed, **more}
    return litellm.completion(f"{provider}/{model}", **asked)


def generate():
    found = litellm.text_completion(
        "A fox", "tale", custom_llm_provider="text-completion-openai", api_base=f"{url()}/v1",
        api_key="none", max_tokens=12,
    )  # fmt: skip
    assert found.usage.completion_tokens == 12
    asked = {"messages": SAID, "api_base": url(), "max_tokens": 12, "temperature": 0}
    whole = litellm.completion("ollama/tale", **asked).choices[0].message.content
    pieces = litellm.completion("ollama/tale", stream=True, **asked)
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == whole


def chat():
    for provider in PROVIDERS:
        assert ask(provider).choices[0].message.content == "Hello there now.", provider


def stream():
    for provider in PROVIDERS:
        pieces = [piece.choices[0].delta.content or "" for piece in ask(provider, stream=True)]
        assert "".join(pieces) == "Hello there now.", provider


def tools():
    for provider in PROVIDERS:
        [call] = ask(provider, tools=TOOLS).choices[0].message.tool_calls
        assert call.function.name == "weather", provider


def schema():
    form = {"name": "one", "schema": CITY, "strict": True}
    wanted = {"type": "json_schema", "json_schema": form}
    for provider in PROVIDERS:
        # For Anthropic's, LiteLLM makes the schema a tool that has to be called.
        model = "actor" if provider == "anthropic" else "tale"
        found = ask(provider, model, response_format=wanted, max_tokens=300)
        assert json.loads(found.choices[0].message.content) == {"city": "Oslo"}, provider


def thinking():
    found = ask("openai", reasoning_effort="low", allowed_openai_params=["reasoning_effort"])
    assert found.choices[0].message.reasoning_content == "hm"


def logprobs():
    found = ask("openai", "tale", logprobs=True, top_logprobs=2, max_tokens=12)
    assert len(found.choices[0].logprobs.content) == found.usage.completion_tokens


def embed():
    for provider, path in (("ollama", ""), ("openai", "/v1")):
        found = litellm.embedding(
            f"{provider}/tale", ["a fox"], api_base=url() + path, api_key="none"
        )
        assert len(found.data[0]["embedding"]) == width(), provider


def rerank():
    found = litellm.rerank(
        "jina_ai/judge", "a", ["b", "c"], top_n=1, api_base=f"{url()}/v1/rerank", api_key="none"
    )
    assert len(found.results) == 1


def cancel():
    for provider in PROVIDERS:
        pieces = ask(provider, "tale", stream=True, max_tokens=500)
        next(iter(pieces))
        del pieces  # it has no close that all providers know
        gc.collect()
        idle(slots)


def errors():
    refused(lambda: ask("openai", "no"), litellm.NotFoundError, 404)
    refused(lambda: ask("anthropic", "no"), litellm.NotFoundError, 404)


def full_context():
    said = [{"role": "user", "content": "fox " * 3000}]
    for provider in ("openai", "anthropic"):
        refused(
            lambda provider=provider: ask(provider, "tale", messages=said),
            litellm.ContextWindowExceededError,
            400,
        )


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    try_all([generate, chat, stream, tools, schema, thinking, logprobs, embed, rerank, cancel,
             errors, full_context])  # fmt: skip
