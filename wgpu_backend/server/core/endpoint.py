"""Endpoints: a method, a path, the fields it takes, and its handler."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from wgpu_backend.errors import DeviceLost, WorkerLost
from wgpu_backend.server.core.body import Fields, read_fields
from wgpu_backend.server.core.schema import Form

_LOG = logging.getLogger("wgpu_backend.server")
Answers = Callable[[Request, Fields], Awaitable[Response]]
"""A handler: it answers a request with the given fields."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A method and a path, from which the route and the OpenAPI document are made.

    Parameters
    ----------
    api : str
        The API of the path, which sets the shape of errors: ``Ollama``, ``OpenAI``, ``Anthropic``,
        ``Jina``, ``llama-server``, ``llama-cpp-python``, ``page`` or ``others``.
    about : str
        Summary for the OpenAPI document, one line.
    form : mapping of str to Field or None
        Fields of its body; None if it has no body, or the handler reads it.
    streams : str
        Media type of a streamed answer; empty if it cannot stream.
    """

    api: str
    method: str
    path: str
    about: str
    answer: Answers
    form: Form | None = None
    streams: str = ""

    def route(self) -> Route:
        """Return Starlette's route; a request whose worker dies is run once more."""

        async def serve(request: Request) -> Response:
            fields = Fields({}) if self.form is None else await read_fields(request, self.form)
            try:
                return await self.answer(request, fields)
            except (WorkerLost, DeviceLost) as error:
                # No byte of an answer was sent yet, so the request can run again.
                # Without a form the handler reads the body, perhaps as a stream, which works once.
                if self.form is None or (isinstance(error, WorkerLost) and error.hung):
                    raise
                _LOG.warning("%s %s: run again, as %s", self.method, self.path, error)
            return await self.answer(request, fields)

        return Route(self.path, serve, methods=[self.method])
