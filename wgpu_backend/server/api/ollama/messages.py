"""Requests of Ollama's routes, turned into what every API asks of an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from wgpu_backend.server.api.llama_server.infill import infill
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.model_pool import Loaded
from wgpu_backend.server.core.request import CompletionRequest, RequestError, clamp_options
from wgpu_backend.server.core.state import read_options
from wgpu_backend.server.core.structured_output import check_tools, format_grammar
from wgpu_backend.text.output_parsers import thinks

_EFFORTS = ("high", "medium", "low", "max")
Turns = list[dict[str, Any]]


def make_generate_request(fields: Fields, loaded: Loaded) -> CompletionRequest:
    """Build the completion request of a prompt.

    Raises
    ------
    RequestError
    """
    for name, why in (
        ("images", "images are not supported"),
        *((name, "only models of pictures have it") for name in ("width", "height", "steps")),
        ("template", "templates of a request are not supported, the model's own is used"),
    ):
        fields.refuse(name, why)
    prompt = fields.text("prompt")
    if suffix := fields.text("suffix"):
        between = infill(loaded.model.tokenizer, prompt, suffix)
        return _make_request(fields, loaded, None, prompt=between)
    raw = fields.switch("raw", default=False)
    before = cast("list[int] | None", fields.get("context", list))
    if raw and (fields.text("system") or before):
        raise RequestError(400, "raw mode does not support template, system, or context")
    bare = raw or loaded.model.prompter.template is None
    messages = None if bare else _make_conversation(fields, loaded, prompt, before)
    return _make_request(fields, loaded, messages, prompt=prompt, before=before or [])


def _make_conversation(
    fields: Fields, loaded: Loaded, prompt: str, before: list[int] | None
) -> Turns:
    """Return a conversation that ends with the prompt; `before` replaces the model's own messages.

    The system message is repeated even after `before`, since the request may change it.
    """
    system = fields.text("system", loaded.stored.system)
    own = [] if before is not None else [dict(each) for each in loaded.stored.messages]
    return [*_make_system_message(system), *own, {"role": "user", "content": prompt}]


def make_chat_request(fields: Fields, loaded: Loaded) -> CompletionRequest:
    """Build the completion request of a conversation.

    Raises
    ------
    RequestError
    """
    given = [
        _convert_message(each, number) for number, each in enumerate(fields.objects("messages"))
    ]
    own = [dict(message) for message in loaded.stored.messages]
    begins = given[:1] if given and given[0]["role"] == "system" else []
    first = begins or _make_system_message(loaded.stored.system)
    messages = [*first, *own, *given[len(begins) :]]
    return _make_request(fields, loaded, messages, tools=check_tools(fields.objects("tools")))


def _make_system_message(text: str) -> Turns:
    return [{"role": "system", "content": text}] if text else []


def _convert_message(message: Mapping[str, Any], number: int) -> dict[str, Any]:
    if message.get("images"):
        raise RequestError(400, "messages: images are not supported")
    made = {key: value for key, value in message.items() if key != "images"}
    role = made.get("role")
    if not isinstance(role, str) or not role:
        raise RequestError(400, f"messages[{number}].role is required, and has to be a text")
    made["role"] = role.lower()
    if "tool_name" in made:
        made["name"] = made["tool_name"]
    if made.get("content") is None:
        made["content"] = ""
    return made


def _make_request(
    fields: Fields,
    loaded: Loaded,
    messages: Turns | None,
    **more: Any,  # noqa: ANN401
) -> CompletionRequest:
    top = fields.get("top_logprobs", int)
    truncate = fields.switch("truncate", default=True)
    logprobs = fields.switch("logprobs", default=False)
    return CompletionRequest(
        messages,
        options=clamp_options(read_options(fields)),
        grammar=format_grammar(fields.get("format", str, dict)),
        think=_read_thinking(fields, loaded, messages),
        truncate=truncate,
        cut=truncate,
        shift=fields.switch("shift", default=True),
        engine={"logprobs": (top or 0) if logprobs else None},
        **more,
    )


def _read_thinking(fields: Fields, loaded: Loaded, messages: Turns | None) -> bool | str | None:
    """Return whether to reason first; by default models that can reason do, as in Ollama.

    Not where the operator said what happens then, nor where the answer has begun already.
    """
    given = fields.get("think", bool, str)
    if isinstance(given, str) and given not in _EFFORTS:
        needed = 'must be "high", "medium", "low", "max", true, or false'
        raise RequestError(400, f'invalid think value: "{given[:40]}" ({needed})')
    template = loaded.model.prompter.template
    if given is not None or loaded.defaults.reasons or template is None or not messages:
        return given
    open_ended = messages[-1]["role"] != "assistant"
    return True if open_ended and thinks(template.source) else None
