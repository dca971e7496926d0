"""llama-server's routes about LoRA adapters: their scales, listed and changed."""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.engine.batching.request import Request as EngineRequest
from wgpu_backend.server.api.llama_server.sampling import ADAPTER
from wgpu_backend.server.core.body import Fields, read_objects
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.state import State


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the models of a state."""

    async def list_adapters(request: Request, _: Fields) -> Response:
        fields = Fields(dict(request.query_params))
        if not (fields.has("model") or state.own_name):
            return JSONResponse([])
        async with state.using(state.get_model_name(fields), "any") as loaded:
            found = enumerate(loaded.loras)
            return JSONResponse([{"id": i, "path": p, "scale": scale} for i, (p, scale) in found])

    async def set_scales(request: Request, _: Fields) -> Response:
        given = await read_objects(request, ADAPTER)
        pairs = [(each.get("id", int), each.get("scale", float) or 0.0) for each in given]
        fields = Fields(dict(request.query_params))
        async with state.using(state.get_model_name(fields), "any") as loaded:
            own = [scale for _, scale in loaded.loras]
            # An engine's request checks the scales of a completion, so it checks these as well.
            scales = EngineRequest([0], lora=pairs).scales(own)
            if scales is not None:
                await run_in_threadpool(loaded.set_lora_scales, scales)
        return JSONResponse({"success": True})

    api, path = "llama-server", "/lora-adapters"
    return [
        Endpoint(api, "GET", path, "LoRA adapters (`?model=NAME`)", list_adapters),
        Endpoint(api, "POST", path, "Scale LoRA adapters (`?model=NAME`)", set_scales),
    ]
