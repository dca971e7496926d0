"""The server put together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from wgpu_backend.errors import BackendError
from wgpu_backend.server import library, ollama, openai
from wgpu_backend.server.guard import Guard
from wgpu_backend.server.metrics import metrics_text
from wgpu_backend.server.serving_state import Settings, State
from wgpu_backend.server.wanted import RETRY_SECONDS, RequestError, message_of, status_of

# What routes raise on purpose; Starlette logs others as its own, and raises them once more.
_FORESEEN: tuple[type[Exception], ...] = (BackendError, RequestError, OSError)
_KINDS = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error"}


def make_app(settings: Settings) -> ASGIApp:
    """Application of ASGI for a server.

    Parameters
    ----------
    settings : Settings

    Returns
    -------
    callable
    """
    state = State(settings)

    @asynccontextmanager
    async def living(_: Starlette) -> AsyncGenerator[None]:
        expiring = asyncio.create_task(state.pool.expire())
        try:
            yield
        finally:
            expiring.cancel()
            with suppress(asyncio.CancelledError):
                await expiring
            await state.pool.close()

    async def health(_: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def metrics(_: Request) -> Response:
        text = await run_in_threadpool(metrics_text, state.pool.loaded(), statuses)
        return PlainTextResponse(text, media_type="text/plain; version=0.0.4")

    statuses: Counter[int] = Counter()

    async def failed(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else status_of(error)
        statuses[status] += 1
        told = str(error.detail) if isinstance(error, HTTPException) else message_of(error)
        headers = {"Retry-After": str(RETRY_SECONDS)} if status == 503 else None
        if not request.url.path.startswith("/v1/"):
            return JSONResponse({"error": told}, status, headers)
        kind = _KINDS.get(status, "api_error")
        body = {"message": told, "type": kind, "param": None, "code": None}
        return JSONResponse({"error": body}, status, headers)

    routes = [
        *library.routes(state),
        *ollama.routes(state),
        *openai.routes(state),
        Route("/health", health),
        Route("/metrics", metrics),
    ]
    app = Starlette(routes=routes, lifespan=living, exception_handlers={HTTPException: failed})
    for kind in _FORESEEN:
        app.add_exception_handler(kind, failed)
    app.add_exception_handler(Exception, failed)
    return Guard(app, settings)
