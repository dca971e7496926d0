"""What was typed in chats before, in a file that only its user may read."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from prompt_toolkit.history import FileHistory, History, InMemoryHistory

from wgpu_backend.cli.console import remark
from wgpu_backend.cli.failures import message_of


def history_file() -> Path:
    """File in the folder for state, by the custom of the platform.

    Raises
    ------
    OSError
        The user has no home, as in some containers.
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    if named.is_absolute():  # as the specification has it, others are ignored
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
    """History of a chat: kept for the next one while `keeps` says so, or gone with this one.

    Says so where it should be kept and cannot be.
    """
    try:
        return _Kept(require_file() if keeps() else history_file(), keeps)
    except OSError as error:
        if keeps():
            remark(f"what you type is not kept for the next chat: {message_of(error)}")
        return InMemoryHistory()


def require_file() -> Path:
    """Make the file, unless it is there.

    Raises
    ------
    OSError
        It cannot be written.
    """
    return _private(history_file())


def _private(path: Path) -> Path:
    """Make a file that is there and belongs to its user alone."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600))
    path.chmod(0o600)  # one that was there may have been open to others
    return path


class _Kept(FileHistory):
    """History in a file; a disk that fills up in the middle of a chat ends no chat."""

    def __init__(self, path: Path, keeps: Callable[[], bool]) -> None:
        super().__init__(path)
        self._keeps = keeps

    def load_history_strings(self) -> Iterable[str]:
        return super().load_history_strings() if self._keeps() else ()

    def store_string(self, string: str) -> None:
        if not self._keeps():
            return
        try:
            super().store_string(string)
        except OSError:  # no place for a line on the screen while it is drawn
            return
