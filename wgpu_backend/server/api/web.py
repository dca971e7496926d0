"""The page at ``/``: a few files that load nothing from other servers."""

from __future__ import annotations

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.state import State

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
# No inline code, nothing from other servers, no embedding in frames.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
    "Vary": "Accept",
}


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints of the page, and of the text that Ollama's clients expect at ``/``."""
    page = files("wgpu_backend.server").joinpath("page")
    # Read once: the files do not change while the server runs.
    found = {each.name: each.read_bytes() for each in page.iterdir() if _get_media_type(each.name)}
    shown = "page" in state.settings.shows

    async def root(request: Request, _: Fields) -> Response:
        if shown and "text/html" in request.headers.get("accept", ""):
            return _send_file(found, "index.html")
        return PlainTextResponse("Ollama is running", headers={"Vary": "Accept"})

    async def file(request: Request, _: Fields) -> Response:
        state.require_shown("page")
        return _send_file(found, request.path_params["name"])

    return [
        Endpoint("Ollama", "GET", "/", "Health check; a page for browsers", root),
        Endpoint("page", "GET", "/page/{name}", "A file of the page", file),
    ]


def _get_media_type(name: str) -> str | None:
    return _TYPES.get(name.rpartition(".")[2])


def _send_file(found: dict[str, bytes], name: str) -> Response:
    if name not in found:
        raise RequestError(404, f"page: no file {name[:60]!r}")
    return Response(found[name], media_type=_get_media_type(name), headers=_HEADERS)
