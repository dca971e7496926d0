"""Routes that llama-cpp-python's server adds to OpenAI's: texts to tokens and back."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.server.api.llama_server.routes import detokenize_fields, tokenize_fields
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

    async def read_tokens(fields: Fields) -> list[int]:
        text = fields.get("input", str)
        if text is None:
            raise RequestError(400, "input is required")
        async with state.using(state.get_model_name(fields), "any") as loaded:
            asked = Fields({"content": text, "add_special": True})
            return await run_in_threadpool(tokenize_fields, asked, loaded)

    async def tokenize(_: Request, fields: Fields) -> Response:
        return JSONResponse({"tokens": await read_tokens(fields)})

    async def count(_: Request, fields: Fields) -> Response:
        return JSONResponse({"count": len(await read_tokens(fields))})

    async def detokenize(_: Request, fields: Fields) -> Response:
        async with state.using(state.get_model_name(fields), "any") as loaded:
            text = await run_in_threadpool(detokenize_fields, fields, loaded, skip_special=True)
        return JSONResponse({"text": text})

    api = "llama-cpp-python"
    return [
        Endpoint(api, "POST", "/extras/tokenize", "Tokens of a text", tokenize, _TOKENIZE),
        Endpoint(
            api, "POST", "/extras/tokenize/count", "Number of tokens of a text", count, _TOKENIZE
        ),
        Endpoint(api, "POST", "/extras/detokenize", "Text of tokens", detokenize, _DETOKENIZE),
    ]
