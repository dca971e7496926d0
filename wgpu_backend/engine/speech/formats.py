"""Formats of transcripts: text, JSON and subtitles."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from wgpu_backend.engine.speech.tokens import LANGUAGE_NAMES
from wgpu_backend.engine.speech.transcription import Transcription
from wgpu_backend.errors import OptionError


def write(found: Transcription, kind: str) -> str:
    """Return a transcript as text of one of `FORMATS`.

    Raises
    ------
    OptionError
        There is no such format.
    """
    if kind not in FORMATS:
        raise OptionError(f"format: {kind[:40]!r}, needs one of {', '.join(FORMATS)}")
    return FORMATS[kind](found)


def verbose(found: Transcription) -> dict[str, Any]:
    """Return a transcript as the object of OpenAI's ``verbose_json``."""
    return {
        "task": found.task,
        "language": LANGUAGE_NAMES.get(found.language, found.language),
        "duration": round(found.duration, 3),
        "text": found.text,
        "segments": [asdict(segment) for segment in found.segments],
    }


def _text(found: Transcription) -> str:
    return f"{found.text}\n"


def _json(found: Transcription) -> str:
    return json.dumps({"text": found.text}, ensure_ascii=False) + "\n"


def _verbose_json(found: Transcription) -> str:
    return json.dumps(verbose(found), ensure_ascii=False) + "\n"


def _srt(found: Transcription) -> str:
    """Return SubRip: for each segment a number, times with a comma, text and an empty line."""
    blocks = [
        f"{number}\n{time(s.start, ',')} --> {time(s.end, ',')}\n{_one_line(s.text)}\n"
        for number, s in enumerate(found.segments, 1)
    ]
    return "\n".join(blocks)


def _vtt(found: Transcription) -> str:
    """Return W3C's WebVTT: a header, then for each segment times with a point, and text."""
    blocks = [
        f"{time(s.start, '.')} --> {time(s.end, '.')}\n{_one_line(s.text)}\n"
        for s in found.segments
    ]
    return "\n".join(["WEBVTT\n", *blocks])


def _one_line(text: str) -> str:
    # An arrow would read as a line of times, and an empty line ends a subtitle.
    return " ".join(text.split()).replace("-->", "->")


def time(seconds: float, point: str) -> str:
    """Return hours, minutes, seconds and milliseconds: ``00:01:02.500``."""
    milliseconds = round(seconds * 1000)
    minutes, rest = divmod(milliseconds, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{point}{rest % 1000:03}"


FORMATS: Mapping[str, Callable[[Transcription], str]] = {
    "text": _text,
    "json": _json,
    "verbose_json": _verbose_json,
    "srt": _srt,
    "vtt": _vtt,
}
