"""Image routes: OpenAI's, and Ollama's ``/api/generate`` for image models."""

from __future__ import annotations

import asyncio
import base64
import re
import time
from collections.abc import AsyncGenerator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from wgpu_backend.errors import OptionError
from wgpu_backend.images.bundled import PICTURES
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.image_queue import MAX_SIDE
from wgpu_backend.server.core.media import decode_base64
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.sse import encode_line, make_error_line, make_head
from wgpu_backend.server.core.state import State, cancel_when_gone, read_options, start_stream
from wgpu_backend.server.worker.image_messages import ImageResult

SIDE = Field((int,), "pixels of the image, for image models", least=1, most=MAX_SIDE)
STEPS = Field((int,), "steps of the image, for image models", least=0, most=10_000)
_SIZE = re.compile(r"([1-9]\d{0,4})x([1-9]\d{0,4})")
_COMMON = {
    "model": Field((str,), f"name of a model of pictures; `{PICTURES}` where it is missing"),
    "prompt": Field((str,), "description of the image", required=True),
    "n": Field((int,), "number of images; each has the next seed", least=1, most=10),
    "size": Field((str,), "WIDTHxHEIGHT in pixels, or auto"),
    "seed": Field((int,), "the same seed gives the same image", least=0, most=(1 << 63) - 1),
    "steps": STEPS,
    "guidance_scale": Field((float,), "how closely to follow the prompt", least=0, most=1000),
    "negative_prompt": Field((str,), "description of what to avoid"),
    "response_format": Field((str,), among=("b64_json",)),
    "output_format": Field((str,), among=("png",)),
    **schema.ignore_fields("user", "quality", "style", "moderation", "background"),
}
_EDIT = {
    **_COMMON,
    "image": Field(
        (str,), "image to start from, as base64 or a data: URL", required=True, is_file=True
    ),
    "mask": Field(
        (str,), "image as base64 or a data: URL; white or clear where to paint", is_file=True
    ),
    "strength": Field((float,), "how much of the image to change", least=0, most=1),
}
_RENAMED = {
    "n": "num_images_per_prompt",
    "seed": "seed",
    "guidance_scale": "guidance_scale",
    "negative_prompt": "negative_prompt",
    "strength": "strength",
}


def endpoints(state: State) -> list[Endpoint]:
    """Return OpenAI's image endpoints for the pipelines of a state."""

    async def make(request: Request, fields: Fields) -> Response:
        name, prompt = fields.text("model", PICTURES), fields.require("prompt")
        result = await cancel_when_gone(
            request, _generate(state, name, prompt, _read_options(fields))
        )
        data = [{"b64_json": base64.b64encode(png).decode()} for png in result.pngs]
        return JSONResponse({"created": int(time.time()), "data": data})

    path = "/v1/images"
    return [
        Endpoint("OpenAI", "POST", f"{path}/generations", "Images for a prompt", make, _COMMON),
        Endpoint(
            "OpenAI", "POST", f"{path}/edits", "Images for an image and a prompt", make, _EDIT
        ),
    ]


def _read_options(fields: Fields) -> dict[str, Any]:
    """Return the arguments of a pipeline for OpenAI's fields."""
    found = {own: fields.get(name, int, float, str) for name, own in _RENAMED.items()}
    size = fields.text("size", "auto")
    if size != "auto":
        found["width"], found["height"] = _parse_size(size)
    found["num_inference_steps"] = fields.get("steps", int) or None
    found["image"] = _decode_image("image", fields.text("image"))
    found["mask_image"] = _decode_mask(_decode_image("mask", fields.text("mask")))
    return {name: value for name, value in found.items() if value is not None}


def _parse_size(text: str) -> tuple[int, int]:
    parts = _SIZE.fullmatch(text)
    sides = (int(parts[1]), int(parts[2])) if parts else (0, 0)
    if not all(0 < side <= MAX_SIDE for side in sides):
        raise RequestError(400, f"size: {text[:40]!r}, needs WIDTHxHEIGHT of 1 to {MAX_SIDE}")
    return sides


def _decode_image(name: str, text: str) -> bytes | None:
    """Decode a picture in base64; pipelines report errors in its bytes."""
    return decode_base64(name, text) if text else None


def _decode_mask(given: bytes | None) -> object:
    """Return a mask that is white where to paint; OpenAI's masks are clear there."""
    # Imported late: most servers never edit images.
    from wgpu_backend.images.pictures import load_clear_mask

    if given is None:
        return None
    try:
        clear = load_clear_mask(given)
    except OptionError as error:
        raise RequestError(400, f"mask: {error}") from None
    return given if clear is None else clear


async def _generate(state: State, name: str, prompt: str, options: dict[str, Any]) -> ImageResult:
    async with state.image_queue.submit(name, prompt, options) as (_, made):
        return await asyncio.wrap_future(made)


# Ollama's.


async def answer_generate(state: State, request: Request, fields: Fields, name: str) -> Response:
    """Answer ``/api/generate`` of an image model."""
    prompt = fields.text("prompt")
    if not prompt:
        made = {"response": "", "done": True, "done_reason": "load"}
        return JSONResponse({**make_head(name), **made})
    options = _read_ollama_options(fields)
    if fields.switch("stream", default=True):
        lines = _stream_lines(state, name, prompt, options)
        return await start_stream(request, lines, "application/x-ndjson", make_error_line)
    begin = time.monotonic()
    result = await cancel_when_gone(request, _generate(state, name, prompt, options))
    return JSONResponse(_make_last_line(name, result, begin))


def _read_ollama_options(fields: Fields) -> dict[str, Any]:
    own = Fields(read_options(fields), where="options.")
    images = fields.texts("images")
    if len(images) > 1:
        raise RequestError(400, f"images: {len(images)} pictures, needs at most 1")
    found: dict[str, Any] = {
        "width": fields.get("width", int),
        "height": fields.get("height", int),
        "num_inference_steps": fields.get("steps", int) or None,
        "seed": own.get("seed", int),
        "image": _decode_image("images[0]", images[0]) if images else None,
    }
    return {name: value for name, value in found.items() if value is not None}


async def _stream_lines(
    state: State, name: str, prompt: str, options: dict[str, Any]
) -> AsyncGenerator[bytes]:
    """Yield a line for each step, and the picture."""
    begin = time.monotonic()
    async with state.image_queue.submit(name, prompt, options) as (queue, made):
        while (progress := await queue.get()) is not None:
            completed, total = progress
            yield encode_line(
                {**make_head(name), "completed": completed, "total": total, "done": False}
            )
        yield encode_line(_make_last_line(name, await asyncio.wrap_future(made), begin))


def _make_last_line(name: str, result: ImageResult, begin: float) -> dict[str, Any]:
    return {
        **make_head(name),
        "response": "",
        # This route makes one image.
        "image": base64.b64encode(result.pngs[0]).decode(),
        "completed": result.steps,
        "total": result.steps,
        "done": True,
        "done_reason": "stop",
        "total_duration": int((time.monotonic() - begin) * 1e9),
    }
