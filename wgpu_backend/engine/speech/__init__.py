"""Speech: models that turn sounds into text.

::

    from wgpu_backend.engine import speech

    with speech.load("whisper-tiny.en") as model:
        for segment in model.transcribe("talk.mp3").segments:
            print(segment.start, segment.text)

Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module as _import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wgpu_backend.engine.speech.formats import FORMATS, write
    from wgpu_backend.engine.speech.model import SpeechModel, load
    from wgpu_backend.engine.speech.transcription import Options, Segment, Transcription

_HOMES = {
    "FORMATS": "formats",
    "Options": "transcription",
    "Segment": "transcription",
    "SpeechModel": "model",
    "Transcription": "transcription",
    "load": "model",
    "write": "formats",
}
__all__ = ["FORMATS", "Options", "Segment", "SpeechModel", "Transcription", "load", "write"]


def __getattr__(name: str) -> Any:  # noqa: ANN401
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_import_module(f"{__name__}.{_HOMES[name]}"), name)
