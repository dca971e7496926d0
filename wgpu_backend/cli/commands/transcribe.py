"""`wgpu-backend transcribe`: speech to text or subtitles."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wgpu_backend.cli.console import harmless, is_terminal, log_as_notes, print_text
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.names import find_model, require_writable, save
from wgpu_backend.cli.options import Debug, Device, Model, ModelSettings
from wgpu_backend.cli.progress import bar

if TYPE_CHECKING:
    from wgpu_backend.engine.speech import Segment


class Format(StrEnum):
    """The formats of a transcript."""

    TEXT = "text"
    JSON = "json"
    SRT = "srt"
    VTT = "vtt"
    VERBOSE_JSON = "verbose_json"


class Task(StrEnum):
    """The tasks of a speech model."""

    TRANSCRIBE = "transcribe"
    TRANSLATE = "translate"


def transcribe(
    model: Model,
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="WAV, or with the extra `audio` FLAC, MP3 or Ogg; - for stdin."
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="FILE", dir_okay=False, help="File to write instead of stdout."
        ),
    ] = None,
    format: Annotated[
        Format,
        typer.Option(
            "--format", metavar="NAME", help="Format: text, json, srt, vtt, verbose_json."
        ),
    ] = Format.TEXT,
    language: Annotated[
        str | None,
        typer.Option(
            "--language", metavar="NAME", help="Code or English name. Default: it is detected."
        ),
    ] = None,
    task: Annotated[
        Task,
        typer.Option("--task", metavar="NAME", help="Task: transcribe, or translate into English."),
    ] = Task.TRANSCRIBE,
    timestamps: Annotated[
        bool, typer.Option("--timestamps", help="Write times before each line of text.")
    ] = False,
    prompt: Annotated[
        str, typer.Option("--prompt", metavar="TEXT", help="Names and spellings to expect.")
    ] = "",
    device: Device = None,
    debug: Debug = False,
) -> None:
    """Transcribe a sound file as text or as subtitles."""
    from wgpu_backend.cli.loading import find_device
    from wgpu_backend.engine.speech import Options, load, write
    from wgpu_backend.files.media.sounds import load_sound

    if timestamps and format is not Format.TEXT:
        raise UsageError(f"--timestamps: only for --format text, got --format {format.value}")
    options = Options(language=language, task=task.value, prompt=prompt)
    path = find_model(model)
    target = None if out is None else require_writable(out)
    # Read before the model is loaded, so that a bad file is reported at once.
    samples = load_sound(sys.stdin.buffer.read() if file == "-" else file)
    log_as_notes()
    with load(path, device=find_device(ModelSettings(device))) as opened, bar(file) as move:
        seconds = len(samples) / 16_000
        lines: list[str] = []
        # A terminal shows each line when it is complete, instead of a bar.
        shows = format is Format.TEXT and target is None and not is_terminal(sys.stderr)

        def add(segment: Segment) -> None:
            lines.append(_line(segment, timestamps=timestamps))
            if shows:
                print_text(lines[-1])
            if move is not None:
                move(min(segment.end / seconds, 1.0))

        found = opened.transcribe(samples, options, on_segment=add)
    text = "".join(lines) if format is Format.TEXT else write(found, format.value)
    if target is not None:
        save(target, lambda stream: stream.write(text.encode()))
    elif not shows:
        print_text(text)


def _line(segment: Segment, *, timestamps: bool) -> str:
    text = harmless(" ".join(segment.text.split()))
    if not timestamps:
        return f"{text}\n"
    from wgpu_backend.engine.speech.formats import time

    return f"[{time(segment.start, '.')} --> {time(segment.end, '.')}] {text}\n"
