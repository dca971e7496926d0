"""What went wrong, in one line and an exit code."""

from __future__ import annotations

import re
import sys
import traceback as traces
from dataclasses import dataclass
from pathlib import Path

from wgpu_backend.cli.console import answer, note
from wgpu_backend.errors import (
    BackendError,
    OptionError,
    OutOfMemory,
    PluginError,
)

FAILED = 1
USAGE = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells count
_NAMES: dict[str, str] = {}  # by path, see `show_as`
_LONG = re.compile(r"(\S{120})\S{80,}(\S{40})")
BROKEN_PIPE = 1  # as typer has it where a command runs into it


@dataclass(slots=True)
class Debugging:
    """Whether `--debug` was given: errors then come with their traceback."""

    on: bool = False


class UsageError(Exception):
    """The command line names something that cannot be used: a file, a device, a token."""


def report(error: Exception, *, traceback: bool = False) -> int:
    """Say on stderr what went wrong.

    Parameters
    ----------
    error : Exception
    traceback : bool
        Say where, too.

    Returns
    -------
    int
        Exit code.
    """
    from typer.exceptions import TyperException

    if traceback:
        sys.stderr.write("".join(traces.format_exception(error)))
    if isinstance(error, TyperException):
        if type(error).__name__ == "NoArgsIsHelpError":  # typer does not export it
            answer(error.format_message() + "\n")
            return USAGE
        said = one_line(error.format_message()).replace("Value error, ", "").rstrip(".")
        if said:  # nothing to say where help was asked for by giving no command
            note(said)
        return error.exit_code
    # What is wrong with a user's own program comes with the line it is in, and a mark below.
    note(str(error) if isinstance(error, PluginError) else one_line(message_of(error)))
    if traceback and isinstance(error, OutOfMemory) and error.report:
        sys.stderr.write(f"{error.report}\n")
    return USAGE if isinstance(error, UsageError | OptionError) else FAILED


def message_of(error: Exception) -> str:
    """Sentence for an error; one that nobody foresaw is called what it is.

    What a file of the user's own has to do with comes with the file's line, unless it says so
    itself, or is about what was asked for or the device.
    """
    from wgpu_backend.ops.plugins import mistake_of

    mistake = None if isinstance(error, UsageError) else mistake_of(error)
    if mistake:
        return mistake
    if isinstance(error, BackendError | UsageError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"out of memory: {error}" if str(error) else "out of memory"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return f"internal error: {type(error).__name__}: {error}; --debug shows where"


def show_as(path: Path, name: str) -> None:
    """Have messages name a model as the user did, and not by the blob that holds it."""
    _NAMES[str(path)] = name


def brief(text: str, most: int = 60) -> str:
    """Text that a user typed, in quotes; only its beginning where it is long."""
    return repr(text if len(text) <= most else f"{text[:most]}…")


def one_line(text: str) -> str:
    """Fold a text into one line; a word that is longer than any screen loses its middle."""
    for path, name in _NAMES.items():
        text = text.replace(path, name)
    return " ".join(_LONG.sub(lambda word: f"{word[1]}…{word[2]}", text).split())
