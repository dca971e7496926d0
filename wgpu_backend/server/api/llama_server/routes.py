"""llama-server's own routes about a model: tokens, templates, vectors, slots, properties."""

from __future__ import annotations

from typing import Any, cast

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.engine.arguments import conversation
from wgpu_backend.engine.media import MARKER
from wgpu_backend.errors import TemplateError
from wgpu_backend.server.api.embeddings import compute_embeddings
from wgpu_backend.server.api.llama_server.prompts import check_token, tokenize_mixed
from wgpu_backend.server.api.llama_server.sampling import DEFAULTS
from wgpu_backend.server.api.openai.messages import get_begun_answer
from wgpu_backend.server.api.openai.schema import CHAT, make_chat_request
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.completion import tokenize_conversation
from wgpu_backend.server.core.defaults import find_closing_tag, make_template_variables
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.model_pool import Loaded
from wgpu_backend.server.core.request import CompletionRequest, RequestError
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.state import State
from wgpu_backend.text.tokenizer import Tokenizer

# Most characters or tokens that one request may convert.
_MOST = 1 << 20
_TOKENIZE = {
    "model": schema.MODEL_OR_OWN,
    "content": Field((str, list), "a text, or a list of texts and tokens"),
    "prompt": Field((str,), "vLLM's name for content; special tokens are added by default"),
    "messages": Field((list,), "a conversation, whose prompt is tokenized, in place of content"),
    "tools": schema.TOOLS,
    "chat_template_kwargs": CHAT["chat_template_kwargs"],
    "add_generation_prompt": Field((bool,), "of messages; false is refused"),
    "add_special": Field((bool,), "add the tokens that begin and end a text"),
    "add_special_tokens": Field((bool,), "vLLM's name for add_special"),
    "parse_special": Field((bool,), "parse control tokens in the text; default true"),
    "with_pieces": Field((bool,), "return the text of each token as well"),
}
_DETOKENIZE = {"model": schema.MODEL_OR_OWN, "tokens": Field((list,), required=True)}
_EMBEDDING = {
    **schema.ignore_fields("encoding_format", "embd_normalize"),
    "model": schema.MODEL_OR_OWN,
    "content": Field((str, list, dict), "a text, its tokens, or a list of such"),
    "input": Field((str, list, dict), "another name for content"),
}


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the models of a state."""

    async def tokenize(_: Request, fields: Fields) -> Response:
        async with state.using(state.get_model_name(fields), "any") as loaded:
            if fields.get("messages", list) is None:
                ids = await run_in_threadpool(tokenize_fields, fields, loaded)
            else:
                ids = await tokenize_conversation(loaded, _read_conversation(fields))
            found = await run_in_threadpool(_format_tokens, fields, loaded, ids)
            room = loaded.model.num_ctx
        names = ("prompt", "messages")
        of_vllm = {"max_model_len": room} if any(map(fields.has, names)) else {}
        return JSONResponse({"tokens": found, "count": len(found), **of_vllm})

    async def detokenize(_: Request, fields: Fields) -> Response:
        async with state.using(state.get_model_name(fields), "any") as loaded:
            text = await run_in_threadpool(detokenize_fields, fields, loaded, skip_special=False)
        # vLLM's clients read `prompt`.
        return JSONResponse({"content": text, "prompt": text})

    async def template(_: Request, fields: Fields) -> Response:
        async with state.using(state.get_model_name(fields), "any") as loaded:
            found = await run_in_threadpool(_render, fields, loaded)
        return JSONResponse({"prompt": found})

    async def embed(request: Request, fields: Fields) -> Response:
        kinds = (str, list, dict)
        found = (fields.get(name, *kinds) for name in ("content", "input"))
        given = next((each for each in found if each is not None), None)
        if given is None or given == []:
            raise RequestError(400, "content is required")
        found = await compute_embeddings(
            request, state, fields, given, truncate=False, of_tokens=True
        )
        alone = state.settings.pooling != "none"
        data = [
            {"index": i, "embedding": [each] if alone else each}
            for i, each in enumerate(found.vectors)
        ]
        return JSONResponse(data)

    async def props(request: Request, _: Fields) -> Response:
        fields = Fields(dict(request.query_params))
        async with state.using(state.get_model_name(fields), "any") as loaded:
            alias = state.get_alias(loaded.stored) or str(loaded.stored.entry.name)
            return JSONResponse(_make_properties(loaded, alias, state.settings.version))

    async def tokenizer_info(request: Request, _: Fields) -> Response:
        fields = Fields(dict(request.query_params))
        async with state.using(state.get_model_name(fields), "any") as loaded:
            return JSONResponse(_make_tokenizer_info(loaded))

    api = "llama-server"
    return [
        Endpoint(api, "POST", "/tokenize", "Tokens of a text", tokenize, _TOKENIZE),
        Endpoint(api, "POST", "/detokenize", "Text of tokens", detokenize, _DETOKENIZE),
        Endpoint(api, "POST", "/apply-template", "A conversation as text", template, CHAT),
        *(
            Endpoint(api, "POST", path, "Vectors of texts", embed, _EMBEDDING)
            for path in ("/embedding", "/embeddings")
        ),
        Endpoint(api, "GET", "/props", "Properties of a model (`?model=NAME`)", props),
        Endpoint("vLLM", "GET", "/tokenizer_info", "Special tokens by their roles", tokenizer_info),
    ]


def _read_conversation(fields: Fields) -> CompletionRequest:
    """Build the request whose prompt is tokenized, of vLLM's and llama-server's fields."""
    if fields.has("content") or fields.has("prompt"):
        raise RequestError(400, "messages: content or prompt is there as well, needs one of them")
    if not fields.switch("add_generation_prompt", default=True):
        raise RequestError(
            400, "add_generation_prompt: false, needs true; /apply-template takes false"
        )
    return make_chat_request(fields)


def tokenize_fields(fields: Fields, loaded: Loaded) -> list[int]:
    """Return the tokens of a text.

    Raises
    ------
    RequestError
        The text is too long.
    """
    tokenizer, prompt = loaded.model.tokenizer, fields.get("prompt", str)
    content = fields.get("content", str, list) if prompt is None else prompt
    content = content or ""
    items = [content] if isinstance(content, str) else cast("list[object]", content)
    size = sum(len(each) if isinstance(each, str) else 1 for each in items)
    if size > _MOST:
        raise RequestError(400, f"content: {size} characters, needs at most {_MOST}")
    return tokenize_mixed(
        items,
        tokenizer,
        add_special=fields.switch(
            "add_special", default=fields.switch("add_special_tokens", default=prompt is not None)
        ),
        parse_special=fields.switch("parse_special", default=True),
    )


def _format_tokens(fields: Fields, loaded: Loaded, ids: list[int]) -> list[Any]:
    """Return tokens, with the bytes of each on request."""
    tokenizer = loaded.model.tokenizer
    if not fields.switch("with_pieces", default=False):
        return cast("list[Any]", ids)
    return [{"id": token, "piece": _format_piece(tokenizer.token_bytes(token))} for token in ids]


def detokenize_fields(fields: Fields, loaded: Loaded, *, skip_special: bool) -> str:
    """Return the text of tokens, with or without control tokens.

    Raises
    ------
    RequestError
        There are too many tokens, or the vocabulary lacks one.
    """
    tokenizer, tokens = loaded.model.tokenizer, fields.get("tokens", list)
    if len(tokens) > _MOST:
        raise RequestError(400, f"tokens: {len(tokens)}, needs at most {_MOST}")
    ids = [check_token(each, tokenizer) for each in tokens]
    return tokenizer.decode(ids, skip_special=skip_special)


def _format_piece(piece: bytes) -> str | list[int]:
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return [*piece]


def _render(fields: Fields, loaded: Loaded) -> str:
    prompter = loaded.model.prompter
    if prompter.template is None:
        raise TemplateError("the model's file has no chat template")
    kwargs: dict[str, Any] = fields.get("chat_template_kwargs", dict) or {}
    own = ("messages", "tools", "add_generation_prompt")
    if taken := [name for name in own if name in kwargs]:
        raise RequestError(
            400, f"chat_template_kwargs: has {taken[0]}, pass it as a field of the request"
        )
    request = make_chat_request(fields)
    messages = prompter.check_messages(conversation([*(request.messages or ())]))
    asks = fields.switch("add_generation_prompt", default=True)
    begun = get_begun_answer(messages) if asks else ""
    source, tools = prompter.template.source, [*request.tools] or None
    think = loaded.defaults.choose_thinking(request.think)
    variables = make_template_variables(loaded.defaults, request, think, source)
    if begun:
        messages = messages[:-1]
        variables.setdefault("enable_thinking", False)
    found = prompter.template.render(messages, add_generation_prompt=asks, tools=tools, **variables)
    silent = asks and not begun and variables.get("enable_thinking") is False
    return found + begun + (find_closing_tag(found, source) if silent else "")


def _spell(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.token_text(token)


def _make_tokenizer_info(loaded: Loaded) -> dict[str, Any]:
    """Return vLLM's facts about a tokenizer, as far as a GGUF file has them."""
    tokenizer, template = loaded.model.tokenizer, loaded.model.prompter.template
    roles = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
    ids = {**tokenizer.special_ids, "bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
    named = {role: ids.get(role) for role in roles}
    return {
        "tokenizer_class": type(tokenizer).__name__,
        "add_bos_token": tokenizer.add_bos,
        **{
            f"{role}_token": None if i is None else _spell(tokenizer, i)
            for role, i in named.items()
        },
        "chat_template": None if template is None else template.source,
    }


def _make_properties(loaded: Loaded, alias: str, version: str) -> dict[str, Any]:
    model, template = loaded.model, loaded.model.prompter.template
    params = {**DEFAULTS, **loaded.stored.parameters, **loaded.defaults.sampling}
    return {
        "default_generation_settings": {"n_ctx": model.num_ctx, "params": params},
        "total_slots": model.num_parallel,
        "n_gpu_layers": model.gpu_layers,
        "placement": model.placement,
        "model_alias": alias,
        "model_path": loaded.stored.path.name,
        "bos_token": _spell(model.tokenizer, model.tokenizer.bos_id),
        "eos_token": _spell(model.tokenizer, model.tokenizer.eos_id),
        "chat_template": "" if template is None else template.source,
        "modalities": {"vision": "image" in model.takes, "audio": "audio" in model.takes},
        "media_marker": MARKER,
        "build_info": f"wgpu-backend {version}",
        "is_sleeping": False,
    }
