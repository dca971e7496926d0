"""The OpenAPI document of a server, made of its endpoints."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.errors import make_error_body
from wgpu_backend.server.core.multipart import MEDIA_TYPE
from wgpu_backend.server.core.schema import make_schema

# Starlette's parameters may have a converter, such as {name:path}, which OpenAPI does not know.
_PARAMETER = re.compile(r"\{(\w+)(?::\w+)?\}")
_JSON = "application/json"
_FAILURES = {
    "4XX": "Error of the request",
    "503": "Too many requests are waiting; retry after Retry-After seconds",
}


def make_document(endpoints: Sequence[Endpoint], version: str, *, strict: bool) -> dict[str, Any]:
    """Describe endpoints in OpenAPI 3.1.

    Parameters
    ----------
    version : str
        Of the server.
    strict : bool
        Whether it refuses fields that it does not know.

    Returns
    -------
    dict
        Plain data.
    """
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        path = _PARAMETER.sub(r"{\1}", endpoint.path)
        paths.setdefault(path, {})[endpoint.method.lower()] = _describe_operation(
            endpoint, strict=strict
        )
    return {
        "openapi": "3.1.0",
        "info": {"title": "wgpu-backend", "version": version or "0"},
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
            }
        },
    }


def _describe_operation(endpoint: Endpoint, *, strict: bool) -> dict[str, Any]:
    found: dict[str, Any] = {
        "tags": [endpoint.api],
        "summary": endpoint.about,
        "operationId": re.sub(r"\W+", "_", f"{endpoint.method}{endpoint.path}").lower().strip("_"),
        # The empty one is for servers without keys.
        "security": [{}, {"bearer": []}, {"header": []}],
        "responses": _describe_responses(endpoint),
    }
    names = _PARAMETER.findall(endpoint.path)
    if names:
        text = {"in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        found["parameters"] = [{"name": name, **text} for name in names]
    if endpoint.form is not None:
        schema = make_schema(endpoint.form, closed=strict)
        content = {_JSON: {"schema": schema}}
        if any(field.is_file for field in endpoint.form.values()):
            content[MEDIA_TYPE] = {"schema": schema}
        found["requestBody"] = {"required": True, "content": content}
    return found


def _describe_responses(endpoint: Endpoint) -> dict[str, Any]:
    kinds = [_JSON, endpoint.streams] if endpoint.streams else [_JSON]
    failed = {
        "content": {_JSON: {"example": make_error_body(endpoint.api, 400, "model is required")}}
    }
    return {
        "2XX": {"description": endpoint.about, "content": {kind: {} for kind in kinds}},
        **{code: {"description": about, **failed} for code, about in _FAILURES.items()},
    }
