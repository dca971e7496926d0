"""Errors as each API's clients read them."""

from __future__ import annotations

from typing import Any

_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 413: "request_too_large", 501: "not_supported_error",
    503: "overloaded_error",
}  # fmt: skip
_LLAMA_KINDS = {**_KINDS, 413: "invalid_request_error", 503: "unavailable_error"}


def api_of(path: str) -> str:
    """The API that a path which no endpoint has would be of."""
    return "OpenAI" if path.startswith("/v1/") else "Ollama"


def error_body(api: str, status: int, told: str) -> dict[str, Any]:
    """Object that tells of an error.

    Parameters
    ----------
    api : str
        As `Endpoint.api`.
    status : int
        Of HTTP.
    told : str
    """
    kind = _KINDS.get(status, "api_error")
    match api:
        case "Anthropic":
            return {"type": "error", "error": {"type": kind, "message": told}}
        case "OpenAI" | "Jina":
            return {"error": {"message": told, "type": kind, "param": None, "code": None}}
        case "llama-server":
            kind = _LLAMA_KINDS.get(status, "server_error")
            return {"error": {"code": status, "message": told, "type": kind}}
        case _:
            return {"error": told}
