"""Error bodies, in the shape that each API's clients read."""

from __future__ import annotations

from typing import Any

from wgpu_backend.errors import ContextFull, ModelNotFound
from wgpu_backend.server.core.request import RequestError, get_client_message, get_http_status
from wgpu_backend.server.core.request_log import get_record

_KINDS = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error",
    404: "not_found_error", 405: "invalid_request_error", 413: "request_too_large",
    501: "not_supported_error", 503: "overloaded_error",
}  # fmt: skip
_LLAMA_KINDS = {**_KINDS, 413: "invalid_request_error", 503: "unavailable_error"}


def get_api(path: str) -> str:
    """Return the API of a path without an endpoint."""
    if path.startswith("/slots/"):
        return "llama-server"
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return "Anthropic"
    return "OpenAI" if path.startswith("/v1/") else "Ollama"


def describe_error(error: Exception) -> tuple[int, str]:
    """Return the status of an error and its message for the client; the log keeps all of it."""
    message, record = get_client_message(error), get_record()
    record.reason = message
    return get_http_status(error), record.clean(message)


def make_error_body(
    api: str, status: int, message: str, error: Exception | None = None
) -> dict[str, Any]:
    """Return the body of an error, in the shape of an API.

    Parameters
    ----------
    api : str
        As `Endpoint.api`.
    status : int
        Of HTTP.
    error : Exception or None
        What it was, where an API has more to say of some.
    """
    full = isinstance(error, ContextFull) and error.tokens is not None
    if isinstance(error, ContextFull) and full:
        message = _word_full_context(api, message, error)
    kind = _KINDS.get(status, "api_error")
    match api:
        case "Anthropic":
            details = error.details if isinstance(error, RequestError) else None
            extra = {"details": {**details}} if details else {}
            return {"type": "error", "error": {"type": kind, "message": message, **extra}}
        case "OpenAI" | "Jina" | "llama-cpp-python":
            more = (error.details if isinstance(error, RequestError) else None) or {}
            code = "model_not_found" if isinstance(error, ModelNotFound) else more.get("code")
            # OpenAI's code, by which agents know that they have to shorten the conversation.
            code = "context_length_exceeded" if full else code
            return {
                "error": {
                    "message": message,
                    "type": kind,
                    "param": more.get("param"),
                    "code": code,
                }
            }
        case "llama-server":
            kind = _LLAMA_KINDS.get(status, "server_error")
            found: dict[str, Any] = {"code": status, "message": message, "type": kind}
            if isinstance(error, ContextFull) and full:
                found |= {"type": "exceed_context_size_error", "n_ctx": error.room}
                found |= {"n_prompt_tokens": error.tokens}
            return {"error": found}
        case _:
            return {"error": message}


def _word_full_context(api: str, message: str, error: ContextFull) -> str:
    """Return a message in an API's own words, by which clients know that they have to shorten."""
    match api:
        case "Anthropic":
            _, mark, remedy = message.partition("; ")
            return f"prompt is too long: {error.tokens} tokens > {error.room} maximum{mark}{remedy}"
        case "OpenAI":
            return f"Input tokens exceed the configured limit of {error.room} tokens: {message}"
        case "llama-server":
            return f"the request exceeds the available context size: {message}"
        case _:
            return message
