"""Views of models and the machine for the page: graphs, attention weights, memory."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.errors import ModelError
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.metrics import get_engine_status
from wgpu_backend.server.core.model_pool import Loaded
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.state import State

# Default prompt length of the graph.
_PROMPT = 128
_ATTENTION = {
    "model": schema.MODEL,
    "prompt": Field((str,), "a text, without a template", required=True),
    "layer": Field((int,), "counted from 0", least=0),
}
_GRAPH = {
    "model": schema.MODEL,
    "tokens": Field((int,), "tokens of the prompt", least=1, most=1 << 16),
}


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the models of a state."""

    async def machine(_: Request, __: Fields) -> Response:
        found = [
            await run_in_threadpool(_describe_model, each) for each in state.pool.list_models()
        ]
        return JSONResponse({"version": state.settings.version, "models": found})

    async def attention(_: Request, fields: Fields) -> Response:
        async with state.using(fields.require("model"), "any") as loaded:
            found = await run_in_threadpool(
                _compute_attention, loaded, fields.text("prompt"), fields.get("layer", int) or 0
            )
            return JSONResponse(found)

    async def graph(_: Request, fields: Fields) -> Response:
        prompt = fields.get("tokens", int) or _PROMPT
        async with state.using(fields.require("model"), "any") as loaded:
            found = await run_in_threadpool(_inspect, loaded, "graphs", {"prompt": prompt})
            return JSONResponse(found)

    return [
        Endpoint("page", "GET", "/inspect/machine", "Devices, memory and slots", machine),
        Endpoint(
            "page",
            "POST",
            "/inspect/attention",
            "Attention weights of a text in a layer",
            attention,
            _ATTENTION,
        ),
        Endpoint(
            "page",
            "POST",
            "/inspect/graph",
            "Graphs of a prompt and of a decode step, before and after fusion",
            graph,
            _GRAPH,
        ),
    ]


def _describe_model(each: Loaded) -> dict[str, Any]:
    device = each.model.device
    found: dict[str, Any] = {
        "name": str(each.stored.entry.name),
        "device": {
            "id": device.id,
            "name": device.name,
            "kind": device.kind,
            "api": device.api,
            "driver": device.driver,
            "total_memory": device.total_memory,
        },
        "memory": each.model.inspect("memory", {}),
        "context_length": each.model.num_ctx,
        "load_seconds": each.load_seconds,
        "seconds_left": each.seconds_left,
    }
    status = get_engine_status(each)
    if status is not None:
        found["engine"] = asdict(status)
    return found


def _inspect(loaded: Loaded, what: str, given: dict[str, Any]) -> dict[str, Any]:
    """Inspect a model.

    Raises
    ------
    RequestError
        The model does not support this view.
    """
    try:
        return loaded.model.inspect(what, given)
    except ModelError as error:
        raise RequestError(400, str(error)) from None


def _compute_attention(loaded: Loaded, text: str, layer: int) -> dict[str, Any]:
    model = loaded.model
    ids = model.prompter.raw(text)
    tokens = [model.tokenizer.decode([each], skip_special=False) for each in ids]
    found = _inspect(loaded, "attention", {"tokens": ids, "layer": layer})
    return {"tokens": tokens, "layer": layer, **found}
