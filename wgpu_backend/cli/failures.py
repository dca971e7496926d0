"""Error reports: one line and an exit code."""

from __future__ import annotations

import re
import sys
import traceback as traces
from dataclasses import dataclass
from pathlib import Path

from wgpu_backend.cli.console import note, print_text
from wgpu_backend.errors import (
    BackendError,
    OptionError,
    OutOfMemory,
    PluginError,
)

FAILED = 1
USAGE = 2
# 128 + SIGINT, as shells count.
INTERRUPTED = 130
# Names of models by path, see `show_as`.
_NAMES: dict[str, str] = {}
# Words of 240 characters or more, such as a prompt given as a file: the middle is cut.
_LONG = re.compile(r"(\S{120})\S{80,}(\S{40})")
# The code that typer uses.
BROKEN_PIPE = 1


@dataclass(slots=True)
class Debugging:
    """The state of `--debug`, which adds tracebacks to errors."""

    on: bool = False


class UsageError(Exception):
    """The command line is invalid: it names an unusable file, device or token."""


def report(error: Exception, *, traceback: bool = False) -> int:
    """Print an error on stderr.

    Parameters
    ----------
    traceback : bool
        Print the traceback as well.

    Returns
    -------
    int
        Exit code.
    """
    from typer.exceptions import TyperException

    if traceback:
        sys.stderr.write("".join(traces.format_exception(error)))
    if isinstance(error, TyperException):
        if type(error).__name__ == "NoArgsIsHelpError":
            # Typer does not export the class.
            print_text(error.format_message() + "\n")
            return USAGE
        message = one_line(error.format_message()).replace("Value error, ", "").rstrip(".")
        if message:
            # The message is empty if typer printed the help because no command was given.
            note(message)
        return error.exit_code
    # Errors in a user's plugin span lines: the source line, and a mark below it.
    note(str(error) if isinstance(error, PluginError) else one_line(describe_error(error)))
    # The report lists what occupies the device's memory: many lines, so only with --debug.
    if traceback and isinstance(error, OutOfMemory) and error.report:
        sys.stderr.write(f"{error.report}\n")
    return USAGE if isinstance(error, UsageError | OptionError) else FAILED


def describe_error(error: Exception) -> str:
    """Return a one-line message for an error; unexpected errors keep their type name.

    Errors raised in a user's file include its line number, unless the message already has it or
    is about an option or the device.
    """
    from wgpu_backend.ops.plugins import describe_mistake

    mistake = None if isinstance(error, UsageError) else describe_mistake(error)
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
    """Make messages use the user's name of a model, instead of the path of its blob."""
    _NAMES[str(path)] = name


def brief(text: str, most: int = 60) -> str:
    """Quote a user's input, shortened if it is long."""
    return repr(text if len(text) <= most else f"{text[:most]}…")


def one_line(text: str) -> str:
    """Fold a text into one line, and shorten very long words in the middle."""
    for path, name in _NAMES.items():
        # The path of a blob is a digest, which does not help the user.
        text = text.replace(path, name)
    return " ".join(_LONG.sub(lambda word: f"{word[1]}…{word[2]}", text).split())
