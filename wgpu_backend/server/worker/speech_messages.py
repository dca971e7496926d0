"""Requests for speech, on their way to the process that serves them, and its results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wgpu_backend.engine.speech import Segment, Transcription
from wgpu_backend.server.worker.frames import Message
from wgpu_backend.server.worker.image_worker import Job, Kind
from wgpu_backend.server.worker.messages import parse_error

Plain = dict[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class SpeechRequest:
    """A sound to transcribe.

    Parameters
    ----------
    name : str
        Name of the model, as in the request.
    path : str
        Its file or folder.
    sound : bytes
        Bytes of a sound file.
    options : mapping
        Arguments of `Options`.
    keep_seconds : float
        How long the model stays after the request; negative for ever.
    """

    name: str
    path: str
    sound: bytes
    options: Mapping[str, Any]
    keep_seconds: float


def _to_plain(order: SpeechRequest) -> tuple[Plain, bytes]:
    plain = {"name": order.name, "path": order.path, "options": dict(order.options)}
    return {**plain, "keep": order.keep_seconds}, order.sound


def _handle(asked: Job, what: str, message: Message, raw: bytes) -> None:
    """Handle a message about a request."""
    match what:
        case "begun":
            asked.begun = True
        case "segment":
            asked.report(Segment(**message["segment"]))
        case "finished":
            found: Plain = message["found"]
            found["segments"] = [Segment(**each) for each in found["segments"]]
            asked.found.set_result(Transcription(**found))
        case _:
            asked.found.set_exception(parse_error(message["error"]))


SPEECH = Kind("speech", "speech_process", _to_plain, _handle)
