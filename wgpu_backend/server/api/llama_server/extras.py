"""Routes that llama-cpp-python's server adds to OpenAI's: texts to tokens and back."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.server.api.llama_server.routes import detokenized, tokenized
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.state import State

_TOKENIZE = {"model": schema.MODEL_OR_OWN, "input": Field((str,), "the text")}
_DETOKENIZE = {"model": schema.MODEL_OR_OWN, "tokens": Field((list,), required=True)}


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the models of a state."""

    async def tokens_of(fields: Fields) -> list[int]:
        text = fields.get("input", str)
        if text is None:
            raise RequestError(400, "input is required")
        async with state.using(state.named(fields), "any") as loaded:
            asked = Fields({"content": text, "add_special": True})
            return await run_in_threadpool(tokenized, asked, loaded)

    async def tokenize(_: Request, fields: Fields) -> Response:
        return JSONResponse({"tokens": await tokens_of(fields)})

    async def count(_: Request, fields: Fields) -> Response:
        return JSONResponse({"count": len(await tokens_of(fields))})

    async def detokenize(_: Request, fields: Fields) -> Response:
        async with state.using(state.named(fields), "any") as loaded:
            text = await run_in_threadpool(detokenized, fields, loaded, skip_special=True)
        return JSONResponse({"text": text})

    api = "llama-cpp-python"
    return [
        Endpoint(api, "POST", "/extras/tokenize", "Tokens of a text", tokenize, _TOKENIZE),
        Endpoint(api, "POST", "/extras/tokenize/count", "How many", count, _TOKENIZE),
        Endpoint(api, "POST", "/extras/detokenize", "Text of tokens", detokenize, _DETOKENIZE),
    ]
