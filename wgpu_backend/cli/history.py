"""The input history of chats, in a file that only its user may read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from wgpu_backend.cli.console import remark
from wgpu_backend.cli.failures import describe_error


def history_file() -> Path:
    """Return the history file, in the platform's folder for state.

    Raises
    ------
    OSError
        The user has no home folder, as in some containers.
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():
        # The XDG specification has relative paths ignored.
        return named / "wgpu-backend" / "history"
    try:
        home = Path.home()
    except RuntimeError:
        raise FileNotFoundError(2, "no home folder to keep it in; set XDG_STATE_HOME") from None
    states = {
        "win32": home / "AppData" / "Local",
        "darwin": home / "Library" / "Application Support",
    }
    return states.get(sys.platform, home / ".local" / "state") / "wgpu-backend" / "history"


def open_history(keeps: Callable[[], bool]) -> History:
    """Open the history of a chat: in a file while `keeps` returns True, else in memory.

    Prints a note if the file cannot be written.
    """
    try:
        return _SwitchedHistory(make_history_file() if keeps() else history_file(), keeps)
    except OSError as error:
        if keeps():
            remark(f"the input history is not stored: {describe_error(error)}")
        return InMemoryHistory()


def make_history_file() -> Path:
    """Make the history file, unless it exists.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    return _make_private(history_file())


def _make_private(path: Path) -> Path:
    """Make a file that only its user can read and write."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Private from the start: with chmod alone, others could open the file before.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
    # The mode above applies to a new file only: an existing one may be readable for others.
    path.chmod(0o600)
    return path


class _SwitchedHistory(FileHistory):
    """A history in a file that ignores write errors, so that a full disk does not end a chat."""

    def __init__(self, path: Path, keeps: Callable[[], bool]) -> None:
        super().__init__(path)
        self._keeps = keeps

    def load_history_strings(self) -> Iterable[str]:
        # Checked for each call, since /set history and /set nohistory switch it during the chat.
        return super().load_history_strings() if self._keeps() else ()

    def store_string(self, string: str) -> None:
        if not self._keeps():
            return
        try:
            super().store_string(string)
        except OSError:
            # A note would disturb the prompt that is being drawn.
            return
