"""Bodies of forms with files (``multipart/form-data``), as the fields that JSON would have."""

from __future__ import annotations

import base64
from typing import Any

from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import Request

from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.schema import Form
from wgpu_backend.text.output_parsers.calls import decode_json

MEDIA_TYPE = "multipart/form-data"
_MAX_PARTS = 64


def is_multipart(request: Request, form: Form) -> bool:
    """Return whether a request uploads files that a form takes."""
    kind, _, _ = request.headers.get("content-type", "").partition(";")
    takes_files = any(field.is_file for field in form.values())
    return takes_files and kind.strip().lower() == MEDIA_TYPE


async def read_multipart(request: Request, form: Form) -> dict[str, Any]:
    """Return values by name: files in base64, texts converted to the type of their field.

    Raises
    ------
    RequestError
        The body is damaged, or has a name twice.
    """
    values: dict[str, Any] = {}
    try:
        async with request.form(max_files=_MAX_PARTS, max_fields=_MAX_PARTS) as parts:
            for part, value in parts.multi_items():
                # Some clients append this to names of lists.
                name = part.removesuffix("[]")
                if name in values:
                    raise RequestError(400, f"{name[:60]}: given twice, needs one")
                values[name] = await _value(form, name, value)
    except HTTPException as error:
        raise RequestError(400, f"body: {error.detail}") from None
    return values


async def _value(form: Form, name: str, value: UploadFile | str) -> object:
    if isinstance(value, UploadFile):
        return base64.b64encode(await value.read()).decode()
    # Parts of a form have no types; JSON in them is decoded for other fields.
    if name not in form or str in form[name].kinds:
        return value
    try:
        return decode_json(value)
    except ValueError:
        return value
