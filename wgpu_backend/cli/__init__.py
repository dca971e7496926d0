"""The command line: `wgpu-backend …`.

::

    main ─ app ─ commands/           a file for each command: its options and its output
            ├ run ─ chat_model ─ chat, reply ─ repl, slash_commands     answers
            ├ serve/                                  a server; ps and stop ask one that runs
            ├ bench ─ benchmark, prediction           speed
            ├ op ─ op_check, op_bench ─ op_files      ops while they are written
            └ others need no module of their own
    options, parameters, names, loading, store        shared by commands

Commands import their dependencies when they run, so that help is fast. Only answers go to stdout;
notes, progress bars and errors go to stderr. Exit codes: 0; 1 if the work failed; 2 if the command
line is invalid; 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path
from tempfile import gettempdir

from wgpu_backend.cli.console import note
from wgpu_backend.cli.failures import BROKEN_PIPE, INTERRUPTED, Debugging, one_line, report


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line.

    Parameters
    ----------
    argv : sequence of str or None
        Arguments after the program's name; None for those of the process.

    Returns
    -------
    int
        Exit code.
    """
    from typer.main import get_command

    from wgpu_backend.cli.app import app

    debugging = Debugging()
    words = list(sys.argv[1:] if argv is None else argv)
    _open_what_is_closed()
    _tolerate_narrow_encodings()
    _name_a_runtime_folder()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _warn
            code: object = get_command(app).main(
                words, prog_name="wgpu-backend", standalone_mode=False, obj=debugging
            )
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _silence_stdout()
        return BROKEN_PIPE
    except Exception as error:
        # Without --debug a user never sees a traceback.
        return report(error, traceback=debugging.on)
    return code if isinstance(code, int) else 0


def _warn(message: Warning | str, *_: object) -> None:
    """Print a warning as a note, without its place in the package's sources."""
    note(one_line(str(message)))


def _open_what_is_closed() -> None:
    """Open the null device for streams that the caller closed (`>&-`); Python sets them to None."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115 stays


def _tolerate_narrow_encodings() -> None:
    """Replace characters that cannot be encoded or decoded by `?` instead of raising."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _name_a_runtime_folder() -> None:
    """Set XDG_RUNTIME_DIR if a container does not have it.

    Vulkan drivers look for a Wayland display, and libwayland prints an error each time if the
    variable is not an absolute path. With an existing folder it finds no display and is silent.
    """
    if sys.platform == "linux" and not Path(os.environ.get("XDG_RUNTIME_DIR", "")).is_absolute():
        os.environ["XDG_RUNTIME_DIR"] = gettempdir()


def _silence_stdout() -> None:
    """Discard buffered output, or Python would report the broken pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
