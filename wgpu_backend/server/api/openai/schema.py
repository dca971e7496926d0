"""Fields of OpenAI's requests, and the requests that they make."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wgpu_backend.server.api import peer_fields
from wgpu_backend.server.api.llama_server.prompts import parse_prompts
from wgpu_backend.server.api.openai.messages import convert_message
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.engine_request import require_engine, require_short
from wgpu_backend.server.core.model_pool import Loaded
from wgpu_backend.server.core.request import CompletionRequest, RequestError
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.structured_output import (
    check_tools,
    choose_tools,
    response_grammar,
)
from wgpu_backend.server.core.timings import needs_progress

_WITHOUT_MEANING = schema.ignore_fields(
    "user", "metadata", "store", "service_tier", "safety_identifier",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "moderation",
    "keep_alive",
)  # fmt: skip
_COMMON = {
    **peer_fields.FORM,
    **_WITHOUT_MEANING,
    "model": schema.MODEL_OR_OWN,
    "stream": schema.STREAM,
    "stream_options": Field((dict,), "include_usage: whether a stream ends with token counts"),
    "max_tokens": schema.MOST,
    "temperature": Field((float,), "default 1", least=0),
    "top_p": Field((float,), least=0, most=1),
    "top_k": schema.WHOLE,
    "min_p": Field((float,), least=0, most=1),
    "seed": schema.WHOLE,
    "logit_bias": Field((dict,), "values added to the logits of tokens, by their ids"),
    "n": schema.CHOICES,
    "best_of": Field(
        (int,), "number of answers to generate; the n most likely are returned", least=1, most=128
    ),
    "verbose": Field((bool,), "return the prompt as well, as __verbose"),
    "id_slot": schema.SLOT,
    "timings_per_token": schema.TIMINGS,
    "return_progress": schema.PROGRESS,
}
CHAT = {
    **_COMMON,
    **schema.ignore_fields("verbosity"),
    **schema.refuse_fields("no sound is made here", "audio"),
    **schema.refuse_fields("the model's own template is used", "chat_template"),
    **schema.refuse_fields(
        "needs tools and tool_choice in its place", "functions", "function_call"
    ),
    "messages": schema.MESSAGES,
    "tools": schema.TOOLS,
    "tool_choice": Field((str, dict), "auto, none, required, or a function"),
    "parallel_tool_calls": Field((bool,), "false: at most one call"),
    "response_format": Field((dict,), "format of the answer"),
    "max_completion_tokens": schema.MOST,
    "logprobs": Field((bool,), "return log probabilities of tokens"),
    "top_logprobs": schema.LOGPROBS,
    "reasoning_effort": schema.TEXT,
    "reasoning_format": Field(
        (str,), "none: leave reasoning in the text", among=("none", "auto", "deepseek")
    ),
    "reasoning": Field((dict,), "effort: as reasoning_effort"),
    "modalities": Field((list,), "accepted, without effect"),
    "continue_final_message": Field(
        (bool,), "has no effect: an answer as last message is always continued"
    ),
    "add_generation_prompt": Field((bool,), "has no effect: true, unless an answer is continued"),
}
COUNTED = {name: field for name, field in CHAT.items() if name != "stream"}
COMPLETIONS = {
    **_COMMON,
    "prompt": Field((str, list), "a text, tokens, or a list of such; empty for a new text"),
    "logprobs": schema.LOGPROBS,
    "suffix": Field((str,), "is refused"),
    "echo": Field((bool,), "return the prompt as well, with logprobs of its tokens"),
}
EMBEDDINGS = {
    **_WITHOUT_MEANING,
    "model": schema.MODEL_OR_OWN,
    "input": Field(
        (str, list, dict), 'a text, its tokens, a picture as {"image": base64}, or a list of such'
    ),
    "dimensions": Field((int,), "length of each vector", least=1),
    "encoding_format": Field((str,), among=("float", "base64")),
}
# OpenAI's defaults; Ollama's, which the engine has, sample more narrowly.
USUAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def _read_options(fields: Fields, *limits: str) -> dict[str, Any]:
    found = peer_fields.read_sampling(fields)
    for name in limits:
        if (limit := fields.get(name, int)) is not None:
            found["num_predict"] = limit
    return found


def _read_bias(fields: Fields) -> dict[int, float]:
    given: Mapping[str, Any] = fields.get("logit_bias", dict) or {}
    try:
        return {int(token): float(bias) for token, bias in given.items()}
    except (TypeError, ValueError, OverflowError):
        raise RequestError(400, "logit_bias: needs an object of token ids and numbers") from None


def make_chat_request(fields: Fields) -> CompletionRequest:
    """Build the completion request of a conversation."""
    continues = fields.switch("continue_final_message", default=False)
    if continues and fields.switch("add_generation_prompt", default=False):
        raise RequestError(
            400, "continue_final_message and add_generation_prompt: needs one of the two"
        )
    messages = [convert_message(message) for message in fields.objects("messages")]
    if not messages:
        raise RequestError(400, "messages: needs at least one")
    if [message.get("role") for message in messages[-2:]] == ["assistant"] * 2:
        raise RequestError(
            400, "messages: the last two are from the assistant, needs one to continue"
        )
    choice = fields.get("tool_choice", str, dict)
    tools, must_call = choose_tools(choice, check_tools(fields.objects("tools")))
    logprobs = fields.switch("logprobs", default=False)
    reasoning = Fields(fields.get("reasoning", dict) or {}, where="reasoning.")
    # OpenRouter's object, and OpenAI's field.
    effort = reasoning.text("effort") or fields.text("reasoning_effort") or None
    choices, best = _read_choices(fields)
    request = CompletionRequest(
        messages,
        options=_read_options(fields, "n_predict", "max_tokens", "max_completion_tokens"),
        usual=USUAL,
        tools=tools,
        must_call=must_call,
        one_call=not fields.switch("parallel_tool_calls", default=True),
        grammar=response_grammar(fields.get("response_format", dict), "response_format"),
        think=False if effort == "none" else effort,
        optional_think="reasoning_effort",
        # llama-server's field.
        raw_thoughts=None
        if (form := fields.get("reasoning_format", str)) is None
        else form == "none",
        # OpenAI answers with an error instead, which clients know.
        truncate=False,
        engine={
            "logprobs": (fields.get("top_logprobs", int) or 0) if logprobs else None,
            "logit_bias": _read_bias(fields),
            "progress": needs_progress(fields),
            "n": choices,
        },
        best=best,
        slot=schema.parse_slot(fields.get("id_slot", int)),
    )
    return peer_fields.apply_peer_fields(fields, request)


def make_completion_request(fields: Fields) -> CompletionRequest:
    """Build the completion request of a text."""
    fields.refuse("suffix", "inserting is not supported")
    choices, best = _read_choices(fields)
    echo = fields.switch("echo", default=False)
    request = CompletionRequest(
        None,
        "",
        _read_options(fields, "n_predict", "max_tokens"),
        USUAL,
        engine={
            "logprobs": fields.get("logprobs", int),
            "logit_bias": _read_bias(fields),
            "progress": needs_progress(fields) and not echo,
            "n": choices,
        },
        echo=echo,
        best=best,
        slot=schema.parse_slot(fields.get("id_slot", int)),
    )
    return peer_fields.apply_peer_fields(fields, request)


def _read_choices(fields: Fields) -> tuple[int, int]:
    """Return how many choices to generate, and how many of the best to return; 0 for all."""
    given = fields.get("n", int) or 1
    made = fields.get("best_of", int) or given
    if made < given:
        raise RequestError(400, f"best_of: {made}, needs at least n, which is {given}")
    # The best are known only at the end.
    if made > given and fields.switch("stream", default=False):
        raise RequestError(400, f"best_of: {made} above n, {given}, needs stream false")
    return made, given if made > given else 0


def make_prompt_requests(
    fields: Fields, request: CompletionRequest, loaded: Loaded
) -> list[CompletionRequest]:
    """Build a completion request for each prompt, in which control tokens may be spelled.

    Raises
    ------
    RequestError
        A prompt is neither text nor tokens, or the model makes no text.
    ContextFull
        A prompt is far too long.
    """
    tokenizer = require_engine(loaded).model.tokenizer
    given = fields.get("prompt", str, list) or ""
    for text in [given] if isinstance(given, str) else given:
        if isinstance(text, str):
            require_short(text, loaded)
    prompts, _ = parse_prompts(given, tokenizer)
    return [replace(request, prompt=each.given, media=each.media) for each in prompts]
