"""OpenAI's routes for speech: ``/v1/audio/transcriptions`` and ``/v1/audio/translations``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from wgpu_backend.engine.speech import FORMATS, Transcription, write
from wgpu_backend.engine.speech.formats import verbose
from wgpu_backend.engine.speech.tokens import find_code
from wgpu_backend.server.core import schema
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.media import decode_base64
from wgpu_backend.server.core.model_capabilities import takes_sound
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.sse import encode_data
from wgpu_backend.server.core.state import State, cancel_when_gone, start_stream
from wgpu_backend.server.worker.speech_messages import SpeechRequest

EVENTS = "text/event-stream"
_COMMON = {
    "file": Field((str,), "sound, as base64 or a data: URL", required=True, is_file=True),
    "model": schema.MODEL_OR_OWN,
    "prompt": Field((str,), "text before the sound: names and spellings"),
    "response_format": Field((str,), among=tuple(FORMATS)),
    "temperature": Field((float,), "0 tries 0, 0.2 … 1 in turn", least=0, most=1),
    "seed": Field((int,), "of temperatures above 0", least=0, most=(1 << 63) - 1),
    **schema.ignore_fields("user"),
}
_TRANSCRIPTION = {
    **_COMMON,
    "language": Field((str,), "code or English name; it is detected where it is missing"),
    "stream": schema.STREAM,
    "timestamp_granularities": Field((str, list), "segment; times of words are not known"),
    **schema.ignore_fields("chunking_strategy"),
    **schema.refuse_fields("no log-probabilities of tokens are returned here", "include"),
}


def endpoints(state: State) -> list[Endpoint]:
    """Return the endpoints for the speech models of a state."""

    async def transcribe(request: Request, fields: Fields) -> Response:
        granularities = set(fields.texts("timestamp_granularities"))
        if unknown := granularities - {"segment", ""}:
            name = min(unknown)[:40]
            raise RequestError(400, f"timestamp_granularities: {name!r}, only segment is supported")
        language = fields.text("language")
        options = {"language": find_code(language) if language else None}
        order = await _order(state, fields, {**options, "task": "transcribe"})
        if fields.switch("stream", default=False):
            return await start_stream(request, _stream(state, order), EVENTS, _error_event)
        return await _answer(state, request, fields, order)

    async def translate(request: Request, fields: Fields) -> Response:
        order = await _order(state, fields, {"task": "translate"})
        return await _answer(state, request, fields, order)

    path = "/v1/audio"
    return [
        Endpoint(
            "OpenAI",
            "POST",
            f"{path}/transcriptions",
            "Text of speech",
            transcribe,
            _TRANSCRIPTION,
            EVENTS,
        ),
        Endpoint("OpenAI", "POST", f"{path}/translations", "Speech in English", translate, _COMMON),
    ]


async def _order(state: State, fields: Fields, options: Mapping[str, Any]) -> SpeechRequest:
    """Return the transcription request to send to the speech process."""
    name = state.get_model_name(fields)
    stored = await run_in_threadpool(state.find, name)
    if not await run_in_threadpool(takes_sound, stored.path):
        raise RequestError(400, f"model '{name}' takes no sound; use a Whisper model")
    found = {**options, "prompt": fields.text("prompt"), "seed": fields.get("seed", int) or 0}
    if temperature := fields.get("temperature", float):
        found["temperatures"] = [temperature]
    sound = decode_base64("file", fields.require("file"))
    return SpeechRequest(name, str(stored.path), sound, found, state.settings.keep_seconds)


async def _answer(state: State, request: Request, fields: Fields, order: SpeechRequest) -> Response:
    found = await cancel_when_gone(request, _run(state, order))
    kind = fields.text("response_format", "json")
    usage = {"type": "duration", "seconds": round(found.duration)}
    if kind == "json":
        return JSONResponse({"text": found.text, "usage": usage})
    if kind == "verbose_json":
        return JSONResponse({**verbose(found), "usage": usage})
    return PlainTextResponse(write(found, kind))


async def _run(state: State, order: SpeechRequest) -> Transcription:
    async with state.speech_queue.wait(order) as (_, made):
        return await asyncio.wrap_future(made)


async def _stream(state: State, order: SpeechRequest) -> AsyncGenerator[bytes]:
    """Yield an event for each segment, and the whole text."""
    async with state.speech_queue.wait(order) as (queue, made):
        while (progress := await queue.get()) is not None:
            [segment] = progress
            yield encode_data({"type": "transcript.text.delta", "delta": segment.text})
        found: Transcription = await asyncio.wrap_future(made)
        usage = {"type": "duration", "seconds": round(found.duration)}
        yield encode_data({"type": "transcript.text.done", "text": found.text, "usage": usage})


def _error_event(status: int, message: str) -> bytes:
    """Return the last event of a stream that fails."""
    return encode_data({"error": {"message": message, "code": status}})
