"""The server put together."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, ExceptionHandler

from wgpu_backend.errors import BackendError
from wgpu_backend.server.api import images, inspector, rerank, web
from wgpu_backend.server.api.anthropic import routes as anthropic
from wgpu_backend.server.api.llama_server import adapters, extras, slots
from wgpu_backend.server.api.llama_server import completion as llama_server_completion
from wgpu_backend.server.api.llama_server import routes as llama_server
from wgpu_backend.server.api.ollama import models
from wgpu_backend.server.api.ollama import routes as ollama
from wgpu_backend.server.api.openai import audio, responses
from wgpu_backend.server.api.openai import routes as openai
from wgpu_backend.server.core.access import AccessControl
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.errors import describe_error, get_api, make_error_body
from wgpu_backend.server.core.metrics import format_metrics
from wgpu_backend.server.core.openapi import make_document
from wgpu_backend.server.core.request import RETRY_SECONDS, RequestError
from wgpu_backend.server.core.request_log import GONE, Recorder
from wgpu_backend.server.core.state import Settings, State

_LOG = logging.getLogger("wgpu_backend.server")
# Errors that become answers; Starlette would log all others, and raise them again.
_FORESEEN: tuple[type[Exception], ...] = (
    BackendError, RequestError, OSError, HTTPException, ClientDisconnect, Exception,
)  # fmt: skip


def make_app(settings: Settings) -> ASGIApp:
    """Create the ASGI application of a server."""
    state = State(settings)
    statuses: Counter[int] = Counter()
    table = endpoints(state, statuses)
    table.append(_make_openapi_endpoint(table, settings))
    # Errors that come before a handler also have the shape of their API.
    apis = {each.path: each.api for each in table if each.api != "others"}

    @asynccontextmanager
    async def lifespan_context(_: Starlette) -> AsyncGenerator[None]:
        expiring = asyncio.create_task(state.pool.expire())
        try:
            if settings.preload:
                await _preload(state)
            yield
        finally:
            expiring.cancel()
            with suppress(asyncio.CancelledError):
                await expiring
            # Workers end after the last request, which the shutdown has waited for.
            await state.pool.close()
            await state.image_queue.close()
            await state.speech_queue.close()

    app = Starlette(routes=[endpoint.route() for endpoint in table], lifespan=lifespan_context)
    for kind in _FORESEEN:
        app.add_exception_handler(kind, _make_error_handler(apis, statuses))
    controlled = AccessControl(app, settings, apis)
    return Recorder(
        controlled,
        strict=settings.strict,
        debug=settings.debug,
        private=_list_private_folders(settings),
        remote=settings.remote,
    )


def _list_private_folders(settings: Settings) -> list[Path]:
    """Return the folders of this machine that errors may name: of models, slots and pictures."""
    root, slots_ = settings.store.root, settings.slot_folder
    files = [*(each.path for each in settings.fixed.values()), *settings.pictures.values()]
    return [root / "blobs", root, *(file.parent for file in files), *([slots_] if slots_ else [])]


async def _preload(state: State) -> None:
    """Load the server's own model; a failure is logged, and requests for it report it again."""
    name = state.settings.default_model
    try:
        async with state.using(name, None, -1):
            pass
    except (BackendError, RequestError, OSError) as error:
        _LOG.error("%s: not loaded: %s", name, error)


def endpoints(state: State, statuses: Mapping[int, int]) -> list[Endpoint]:
    """Return all endpoints of a server.

    Parameters
    ----------
    statuses : mapping of int to int
        Count of each error status that was sent.
    """
    return [
        *web.endpoints(state),
        *models.endpoints(state),
        *ollama.endpoints(state),
        *openai.endpoints(state),
        *images.endpoints(state),
        *audio.endpoints(state),
        *responses.endpoints(state),
        *anthropic.endpoints(state),
        *rerank.endpoints(state),
        *llama_server_completion.endpoints(state),
        *llama_server.endpoints(state),
        *adapters.endpoints(state),
        *slots.endpoints(state),
        *extras.endpoints(state),
        *inspector.endpoints(state),
        *_make_status_endpoints(state, statuses),
    ]


def _make_status_endpoints(state: State, statuses: Mapping[int, int]) -> list[Endpoint]:
    started = int(time.time())

    async def health(_: Request, __: Fields) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(_: Request, __: Fields) -> Response:
        state.require_shown("metrics")
        text = await run_in_threadpool(format_metrics, state.pool.list_models(), statuses)
        headers = {"Process-Start-Time-Unix": str(started)}
        return PlainTextResponse(text, headers=headers, media_type="text/plain; version=0.0.4")

    return [
        *(
            Endpoint("others", "GET", path, "Health check", health)
            for path in ("/health", "/v1/health")
        ),
        Endpoint("others", "GET", "/metrics", "Metrics for Prometheus", metrics),
    ]


def _make_openapi_endpoint(table: list[Endpoint], settings: Settings) -> Endpoint:
    async def describe(_: Request, __: Fields) -> Response:
        return JSONResponse(make_document(table, settings.version, strict=settings.strict))

    return Endpoint("others", "GET", "/openapi.json", "This document, in OpenAPI 3.1", describe)


def _make_error_handler(apis: Mapping[str, str], statuses: Counter[int]) -> ExceptionHandler:
    async def handle_error(request: Request, error: Exception) -> Response:
        headers: dict[str, str] = {}
        # The client went away within its body; the status is for the log.
        if isinstance(error, ClientDisconnect):
            error = RequestError(499, GONE)
        if isinstance(error, HTTPException):
            headers = dict(error.headers or {})
            error = RequestError(error.status_code, str(error.detail))
        status, message = describe_error(error)
        if status == 503:
            headers["Retry-After"] = str(RETRY_SECONDS)
        statuses[status] += 1
        path = request.url.path
        body = make_error_body(apis.get(path) or get_api(path), status, message, error)
        # In ASCII: a message may quote half of a surrogate pair, which UTF-8 cannot encode.
        return Response(json.dumps(body), status, headers, media_type="application/json")

    return handle_error
