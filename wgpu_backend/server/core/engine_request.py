"""From a completion request to the engine's: defaults, template, tokens, grammar.

The checks here need a loaded model; those of an API's fields are in `Fields`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from wgpu_backend.engine.arguments import conversation
from wgpu_backend.engine.batching.request import Request, RequestFields
from wgpu_backend.engine.media import (
    MARKER,
    PART_KINDS,
    Illustrations,
    Part,
    Prepared,
    Prompt,
    drop_stand_ins,
    place_in_chat,
    place_raw,
)
from wgpu_backend.engine.prompt import PARTS, fit_conversation
from wgpu_backend.errors import ContextFull
from wgpu_backend.ops.sampling.host.options import whole_number
from wgpu_backend.server.api.openai.messages import get_begun_answer, place_system
from wgpu_backend.server.core.defaults import find_closing_tag, make_template_variables
from wgpu_backend.server.core.model_api import EngineInterface
from wgpu_backend.server.core.model_pool import Loaded
from wgpu_backend.server.core.request import CompletionRequest, RequestError, drop_meaningless
from wgpu_backend.server.core.request_log import ignore
from wgpu_backend.text.chat_template import ChatTemplate
from wgpu_backend.text.grammar import Grammar, tag_id
from wgpu_backend.text.output_parsers import calls_tools, thinks
from wgpu_backend.text.output_parsers.constraints import Setting, answer_grammar, call_grammar

# Characters below which a text is not measured; and the factor by which normalising may shrink it.
_SHORT, _SLACK = 1 << 18, 4
# Tokens at the end of a prompt in which a template may open the reasoning.
_TAIL = 16


def require_engine(loaded: Loaded) -> EngineInterface:
    """Return the engine of a model.

    Raises
    ------
    RequestError
        The model does not generate text.
    """
    if loaded.engine is None:
        raise RequestError(400, f'"{loaded.stored.entry.name}" does not support generate')
    return loaded.engine


def tokenize_prompt(loaded: Loaded, request: CompletionRequest) -> list[int]:
    """Return the prompt tokens of a completion request.

    Raises
    ------
    RequestError
        The model does not support the request.
    """
    require_engine(loaded)
    think = _check_capabilities(loaded, request)
    return _make_prompt(loaded, request, None, think).tokens


def check_tokens(given: Sequence[object], loaded: Loaded) -> list[int]:
    """Check that each token of a request is in the vocabulary.

    Raises
    ------
    RequestError
        A token is not in the vocabulary.
    """
    size = loaded.model.tokenizer.vocab_size
    for token in given:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < size:
            shown = str(token)[:40]
            raise RequestError(400, f"tokens: {shown!r}, needs whole numbers below {size}")
    return cast("list[int]", [*given])


def make_engine_request(loaded: Loaded, request: CompletionRequest) -> Request:
    """Make the engine's request: apply defaults, render the template, tokenize.

    Raises
    ------
    RequestError
        The model does not support the request.
    BackendError
        The prompt is too long, or an option is wrong.
    """
    think = _check_capabilities(loaded, request)
    # The later ones override the earlier ones.
    sources = (loaded.stored.parameters, request.usual, loaded.defaults.sampling, request.options)
    options = {name: value for each in sources for name, value in drop_meaningless(each).items()}
    # It was used when the model was loaded.
    options.pop("num_ctx", None)
    # The default of Ollama.
    keep = whole_number("num_keep", options.pop("num_keep", 4))
    stop = options.pop("stop", None) or ()
    limit = options.pop("num_predict", None)
    limit = None if limit is None else whole_number("num_predict", limit)
    prompt = _make_prompt(loaded, request, limit, think)
    tokens = prompt.tokens
    if request.cut and not prompt.placed:
        tokens = _cut_middle(tokens, keep, loaded.model.num_ctx)
    logprobs = request.engine.get("logprobs")
    fields: RequestFields = {
        **request.engine,
        "options": options,  # pyright: ignore[reportAssignmentType] checked by `Request`
        "max_tokens": limit,
        "stop": stop,
        # Choices are compared by their log probabilities.
        "logprobs": 0 if request.best and logprobs is None else logprobs,
        "prompt_logprobs": request.echo and logprobs is not None,
        "when_full": "shift" if request.shift else "stop",
        "keep": keep if request.shift else 0,
        "grammar": _make_grammar(loaded, request, tokens, think),
        "lora": _choose_lora_scales(loaded, request.engine.get("lora")),
        "placed": prompt.placed,
    }
    return Request.of(tokens, **fields)


def _check_capabilities(loaded: Loaded, request: CompletionRequest) -> bool | str | None:
    """Check that the model supports the request; return whether or how much it reasons."""
    name, template = loaded.stored.entry.name, get_template(loaded)
    think = loaded.defaults.choose_thinking(request.think)
    if request.tools and not calls_tools(template):
        raise RequestError(400, f'"{name}" does not support tools')
    if not think or thinks(template):
        return think
    why = f'"{name}" does not support thinking'
    if not request.optional_think:
        raise RequestError(400, why)
    ignore(request.optional_think, why)
    return None


def get_template(loaded: Loaded) -> str:
    """Return the source of a model's chat template; empty if it has none."""
    template = loaded.model.prompter.template
    return "" if template is None else template.source


def decode_ending(loaded: Loaded, request: CompletionRequest, tokens: Sequence[int]) -> str:
    """Return the end of a rendered prompt, in which its template may open the reasoning."""
    if request.messages is None:
        return ""
    return loaded.model.tokenizer.decode(drop_stand_ins(tokens[-_TAIL:]), skip_special=False)


def _make_grammar(
    loaded: Loaded,
    request: CompletionRequest,
    tokens: Sequence[int],
    think: bool | str | None,
) -> Grammar | None:
    """Return the grammar of the whole answer, including the model's tags."""
    if request.grammar is None and not request.must_call:
        return None
    template = "" if request.messages is None else get_template(loaded)
    ending = decode_ending(loaded, request, tokens)
    tag = partial(tag_id, loaded.model.tokenizer)
    setting = Setting(template, ending, tag, thinks=think is not False)
    if request.must_call:
        return call_grammar(request.must_call, setting)
    return request.grammar and answer_grammar(request.grammar, setting, request.tools)


def _choose_lora_scales(
    loaded: Loaded, given: Sequence[tuple[int, float]] | None
) -> Sequence[tuple[int, float]] | None:
    """Return the scales of LoRA adapters for a request; None for those of the model's file."""
    if given is not None or loaded.lora_scales is None:
        return given
    # The worker changes its own scales only between requests; until then these apply.
    return list(enumerate(loaded.lora_scales))


def _cut_middle(tokens: list[int], keep: int, room: int) -> list[int]:
    """Cut the middle out of a prompt that would leave no room in the context for an answer."""
    if len(tokens) < room:
        return tokens
    # The answer gets as much room as where messages are left out, see `engine.prompt.PARTS`.
    size = room - max(room // PARTS, 1)
    first = min(keep if keep >= 0 else size, size // 2)
    return [*tokens[:first], *tokens[first - size :]]


def require_short(text: str, loaded: Loaded) -> None:
    """Refuse a text that cannot fit into the context, before spending seconds on tokenizing it.

    Spaces do not count, since some tokenizers drop them. A margin allows for normalisation, which
    may shorten a text.

    Raises
    ------
    ContextFull
    """
    tokenizer, room = loaded.model.tokenizer, loaded.model.num_ctx
    if len(text) <= _SHORT:
        return
    # No token spells more bytes than the longest one, so this bounds the tokens from below.
    longest = max(len(tokenizer.token_bytes(token)) for token in range(tokenizer.vocab_size))
    size = sum(map(len, text.split()))
    if size > _SLACK * longest * room:
        least = -(-size // longest)
        raise ContextFull(
            f"the prompt has at least {least} tokens, the context holds {room}; "
            "shorten it, or load the model with a larger num_ctx",
            least,
            room,
        )


def _make_prompt(
    loaded: Loaded, request: CompletionRequest, limit: int | None, think: bool | str | None
) -> Prompt:
    """Return the prompt of a request, after the tokens of the conversation so far."""
    before = check_tokens(request.before, loaded)
    if request.messages is not None:
        found = _render(loaded, request, limit, think)
    else:
        found = _tokenize(loaded, request.prompt, request.media)
    if found.placed and request.echo:
        raise RequestError(400, "echo: a prompt with pictures or sound cannot be returned")
    return found.extend(before, ()) if before else found


def _tokenize(loaded: Loaded, prompt: str | Sequence[int], media: Sequence[Part]) -> Prompt:
    """Return a prompt without a template."""
    if not isinstance(prompt, str):
        if media:
            raise RequestError(400, "prompt: pictures and sound need a text, not tokens")
        return Prompt(check_tokens(prompt, loaded))
    require_short(prompt, loaded)
    if not media:
        return Prompt(loaded.model.prompter.raw(prompt))
    prepared = _prepare(loaded, media)
    markers = dict.fromkeys([MARKER, *(rules.placeholder for _, rules in prepared)])
    return place_raw(loaded.model.prompter, prompt, prepared, [*markers])


def _prepare(loaded: Loaded, media: Sequence[Part], optional: int = 0) -> list[Prepared]:
    """Prepare the pictures and sounds of a request.

    Parameters
    ----------
    optional : int
        How many of the first are left out where the context has no room for them.

    Raises
    ------
    RequestError
        The model does not take them.
    ContextFull
        They take more than the context holds.
    BackendError
        One is damaged.
    """
    model = loaded.model
    for part in media:
        if ("image" if part.kind == "video" else part.kind) not in model.takes:
            what = "images" if part.kind == "image" else part.kind
            why = "it has no tower for them" if model.takes else "it reads text alone"
            raise RequestError(400, f'"{loaded.stored.entry.name}" does not support {what}: {why}')
    found: list[Prepared] = []
    for part in media:
        found.append(model.prepare(part))
        # Before the next one is read, which takes time and memory.
        if (rows := sum(each.tokens for each, _ in found[optional:])) > model.num_ctx:
            raise ContextFull(
                f"{len(found)} of {len(media)} pictures and sounds take {rows} tokens, the context "
                f"holds {model.num_ctx}; send fewer or smaller ones, or load the model with a "
                "larger num_ctx",
                rows,
                model.num_ctx,
            )
    return found


def _render(
    loaded: Loaded, request: CompletionRequest, limit: int | None, think: bool | str | None
) -> Prompt:
    """Return the prompt of a conversation."""
    prompter = loaded.model.prompter
    kwargs = make_template_variables(loaded.defaults, request, think, get_template(loaded))
    given = prompter.check_messages(conversation([*(request.messages or ())]), PART_KINDS)
    shown = Illustrations(given)
    messages = shown.messages
    optional = len(shown.parts) - shown.count(messages[-1:]) if request.truncate else 0
    prepared = _prepare(loaded, shown.parts, optional)
    # Earlier messages may be dropped later; the last one must fit.
    texts = [each.get("content") for each in (messages[-1:] if request.truncate else messages)]
    require_short("".join(text for text in texts if isinstance(text, str)), loaded)
    begun = get_begun_answer(messages)
    if begun:
        # The template would close the begun answer, so its text is appended after rendering.
        messages = messages[:-1]
        # A begun answer has passed the point where the model could reason.
        kwargs.setdefault("enable_thinking", False)
    begun_tokens = prompter.tokenizer.encode(begun, add_special=False) if begun else []

    def render(messages: Sequence[Mapping[str, Any]]) -> Prompt:
        found = place_in_chat(
            prompter,
            shown,
            _place_system(messages, prompter.template),
            prepared,
            tools=[*request.tools] or None,
            chat_template_kwargs=kwargs,
        )
        return found.extend((), begun_tokens or _close_reasoning(found.tokens, loaded, think))

    if not request.truncate:
        return render(messages)
    try:
        # A negative limit stands for an answer of any length.
        room, most = loaded.model.num_ctx, -1 if limit is None else limit
        fitting = fit_conversation(messages, lambda some: render(some).tokens, room, most)
    except ContextFull:
        if not request.cut:
            raise
        return render(messages)
    return render(fitting.messages) if prepared else Prompt(fitting.tokens)


def _place_system(
    messages: Sequence[Mapping[str, Any]], template: ChatTemplate | None
) -> Sequence[Mapping[str, Any]]:
    """Return the messages in a form that the template renders completely."""
    return messages if template is None or template.places_system else place_system(messages)


def _close_reasoning(found: Sequence[int], loaded: Loaded, think: bool | str | None) -> list[int]:
    """Return tokens that close the reasoning opened by the template, if the request disables it."""
    prompter = loaded.model.prompter
    if think is not False or prompter.template is None:
        return []
    prompt = prompter.tokenizer.decode(drop_stand_ins(found[-_TAIL:]), skip_special=False)
    tag = find_closing_tag(prompt, prompter.template.source)
    return prompter.tokenizer.encode(tag, add_special=False, parse_special=True) if tag else []
