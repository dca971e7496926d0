"""Fields of OpenAI's requests, and what they ask for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wgpu_backend.grammar import Grammar
from wgpu_backend.server import forms
from wgpu_backend.server.answering import engine_of, require_short
from wgpu_backend.server.chat_turns import turn_of
from wgpu_backend.server.fields import Fields
from wgpu_backend.server.forms import Field
from wgpu_backend.server.llama_prompts import prompts
from wgpu_backend.server.pool import Loaded
from wgpu_backend.server.structured import (
    checked_tools,
    chosen_tools,
    own_grammar,
    response_grammar,
)
from wgpu_backend.server.timings import reads_along
from wgpu_backend.server.wanted import RequestError, Wanted

_WITHOUT_MEANING = forms.without_meaning(
    "user", "metadata", "store", "service_tier", "parallel_tool_calls", "safety_identifier",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "moderation",
    "keep_alive",
)  # fmt: skip
_COMMON = {
    **_WITHOUT_MEANING,
    "model": forms.MODEL_OR_OWN,
    "stream": forms.STREAM,
    "stream_options": Field((dict,), "include_usage: whether a stream ends with counts"),
    "max_tokens": forms.MOST,
    "temperature": Field((float,), "1 where it is missing", least=0),
    "top_p": Field((float,), least=0, most=1),
    "top_k": forms.WHOLE,
    "min_p": Field((float,), least=0, most=1),
    "seed": forms.WHOLE,
    "stop": forms.STOP,
    "frequency_penalty": forms.NUMBER,
    "presence_penalty": forms.NUMBER,
    "logit_bias": Field((dict,), "added to the logits of tokens, by their ids"),
    "n": forms.CHOICES,
    "ignore_eos": Field((bool,), "go on behind tokens that end a text"),
    "n_predict": forms.MOST,
    "grammar": Field((str,), "a grammar in GBNF that the text keeps to"),
    "json_schema": Field((dict,), "a JSON Schema that the text follows"),
    "verbose": Field((bool,), "give the prompt, too, as __verbose"),
    **forms.without_meaning("cache_prompt"),
    "id_slot": forms.SLOT,
    "timings_per_token": forms.TIMINGS,
    "return_progress": forms.PROGRESS,
}
CHAT = {
    **_COMMON,
    **forms.without_meaning("verbosity"),
    **forms.refused("no sound is made here", "audio"),
    **forms.refused("an answer is not predicted", "prediction"),
    **forms.refused("nothing is searched here", "web_search_options"),
    **forms.refused("needs tools and tool_choice in its place", "functions", "function_call"),
    "messages": forms.MESSAGES,
    "tools": forms.TOOLS,
    "tool_choice": Field((str, dict), "auto, none, required, or a function"),
    "response_format": Field((dict,), "what the answer has to look like"),
    "max_completion_tokens": forms.MOST,
    "logprobs": Field((bool,), "give log probabilities of tokens"),
    "top_logprobs": forms.LOGPROBS,
    "reasoning_effort": forms.TEXT,
    "reasoning_format": Field(
        (str,), "none: leave reasoning in the text", among=("none", "auto", "deepseek")
    ),
    "reasoning": Field((dict,), "effort: as reasoning_effort"),
    "chat_template_kwargs": Field((dict,), "variables of the model's own template"),
    "modalities": Field((list,), "taken, and without meaning here"),
    "continue_final_message": Field((bool,), "as is done wherever the last message is an answer"),
    "add_generation_prompt": Field((bool,), "is always done, but where an answer is continued"),
}
COUNTED = {name: field for name, field in CHAT.items() if name != "stream"}
COMPLETIONS = {
    **_COMMON,
    "prompt": Field((str, list), "a text, tokens, or a list of such; nothing begins a new text"),
    "logprobs": forms.LOGPROBS,
    "suffix": Field((str,), "is refused"),
    "echo": Field((bool,), "give the prompt, too, with logprobs those of its tokens"),
    "best_of": Field((int,), "as many as n: none are made to be left out", least=1),
}
EMBEDDINGS = {
    **_WITHOUT_MEANING,
    "model": forms.MODEL_OR_OWN,
    "input": Field((str, list, dict), "a text, its tokens, or a list of such"),
    "dimensions": Field((int,), "numbers of each vector", least=1),
    "encoding_format": Field((str,), among=("float", "base64")),
}
_NUMBERS = ("temperature", "top_p", "min_p", "frequency_penalty", "presence_penalty")
USUAL = {"temperature": 1.0, "top_p": 1.0, "top_k": 0}


def _options(fields: Fields, *limits: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        name: v for name in _NUMBERS if (v := fields.get(name, float)) is not None
    }
    found |= {name: v for name in ("seed", "top_k") if (v := fields.get(name, int)) is not None}
    if stop := fields.texts("stop"):
        found["stop"] = stop
    for name in limits:
        if (limit := fields.get(name, int)) is not None:
            found["num_predict"] = limit
    return found


def _bias(fields: Fields) -> dict[int, float]:
    given: Mapping[str, Any] = fields.get("logit_bias", dict) or {}
    try:
        return {int(token): float(bias) for token, bias in given.items()}
    except (TypeError, ValueError):
        raise RequestError(400, "logit_bias: needs numbers by token ids") from None


def chat_wanted(fields: Fields) -> Wanted:
    """What a request for an answer to a conversation asks for."""
    continues = fields.switch("continue_final_message", default=False)
    if continues and fields.switch("add_generation_prompt", default=False):
        raise RequestError(
            400, "continue_final_message and add_generation_prompt: needs one of the two"
        )
    said = [turn_of(message) for message in fields.objects("messages")]
    if not said:
        raise RequestError(400, "messages: needs at least one")
    if [turn.get("role") for turn in said[-2:]] == ["assistant"] * 2:
        raise RequestError(400, "messages: the last two are answers, needs one to go on with")
    choice = fields.get("tool_choice", str, dict)
    tools, must_call = chosen_tools(choice, checked_tools(fields.objects("tools")))
    logprobs = fields.switch("logprobs", default=False)
    reasoning = Fields(fields.get("reasoning", dict) or {}, where="reasoning.")
    effort = reasoning.text("effort") or fields.text("reasoning_effort") or None
    return Wanted(
        said,
        options=_options(fields, "n_predict", "max_tokens", "max_completion_tokens"),
        usual=USUAL,
        tools=tools,
        must_call=must_call,
        grammar=_grammar(fields),
        think=False if effort == "none" else effort,
        raw_thoughts=None
        if (form := fields.get("reasoning_format", str)) is None
        else form == "none",
        truncate=False,
        logprobs=(fields.get("top_logprobs", int) or 0) if logprobs else None,
        logit_bias=_bias(fields),
        ignore_eos=fields.switch("ignore_eos", default=False),
        progress=reads_along(fields),
        slot=forms.slot_of(fields.get("id_slot", int)),
        choices=fields.get("n", int) or 1,
        template=fields.get("chat_template_kwargs", dict) or {},
    )


def completion_wanted(fields: Fields) -> Wanted:
    """What a request for the continuation of a text asks for."""
    fields.refuse("suffix", "inserting is not supported")
    _require_all_given(fields)
    return Wanted(
        None,
        "",
        _options(fields, "n_predict", "max_tokens"),
        USUAL,
        logprobs=fields.get("logprobs", int),
        echo=fields.switch("echo", default=False),
        logit_bias=_bias(fields),
        ignore_eos=fields.switch("ignore_eos", default=False),
        progress=reads_along(fields) and not fields.switch("echo", default=False),
        slot=forms.slot_of(fields.get("id_slot", int)),
        choices=fields.get("n", int) or 1,
        grammar=_grammar(fields),
    )


def _require_all_given(fields: Fields) -> None:
    """Refuse a choice among more answers than are given."""
    made, given = fields.get("best_of", int), fields.get("n", int) or 1
    if made is not None and made != given:
        raise RequestError(400, f"best_of: {made}, needs {given}, as n; a choice is not supported")


def for_each_prompt(fields: Fields, wanted: Wanted, loaded: Loaded) -> list[Wanted]:
    """What a request asks for of each of its prompts, in which control tokens may be spelled.

    Raises
    ------
    RequestError
        A prompt is neither text nor tokens, or the model makes no text.
    ContextFull
        One is far too long.
    """
    tokenizer = engine_of(loaded).model.tokenizer
    given = fields.get("prompt", str, list) or ""
    for text in [given] if isinstance(given, str) else given:
        if isinstance(text, str):
            require_short(text, loaded)
    return [replace(wanted, prompt=tokens) for tokens in prompts(given, tokenizer)[0]]


def _grammar(fields: Fields) -> Grammar | None:
    """What an answer has to be, in OpenAI's words or llama-server's."""
    form = response_grammar(fields.get("response_format", dict), "response_format")
    own = own_grammar(fields.get("grammar", str), fields.get("json_schema", dict))
    if form is not None and own is not None:
        raise RequestError(400, "response_format: needs no grammar or json_schema beside it")
    return form or own
