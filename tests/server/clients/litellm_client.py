"""LiteLLM, by its providers for Ollama, OpenAI and Anthropic."""

import litellm
from features import refused, try_all, url

SAID = [{"role": "user", "content": "Hi"}]
FUNCTION = {"name": "weather", "description": "tells", "parameters": {"type": "object"}}
TOOLS = [{"type": "function", "function": FUNCTION}]
PROVIDERS = {"ollama_chat": "", "openai": "/v1", "anthropic": ""}


def ask(provider, model="actor", **more):
    base = url() + PROVIDERS[provider]
    return litellm.completion(
        f"{provider}/{model}", messages=SAID, api_base=base, api_key="none", max_tokens=50,
        temperature=0, **more,
    )  # fmt: skip


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


def embed():
    for provider, path in (("ollama", ""), ("openai", "/v1")):
        found = litellm.embedding(
            f"{provider}/tale", ["a fox"], api_base=url() + path, api_key="none"
        )
        assert len(found.data[0]["embedding"]) == 192, provider


def rerank():
    found = litellm.rerank(
        "jina_ai/judge", "a", ["b", "c"], top_n=1, api_base=f"{url()}/v1/rerank", api_key="none"
    )
    assert len(found.results) == 1


def errors():
    refused(lambda: ask("openai", "no"), litellm.NotFoundError, 404)
    refused(lambda: ask("anthropic", "no"), litellm.NotFoundError, 404)


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    try_all([chat, stream, tools, embed, rerank, errors])
