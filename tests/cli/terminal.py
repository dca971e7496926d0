"""A command on a pseudo-terminal, typed at and read from as a person would."""

from __future__ import annotations

import os
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Self

from tests.patience import PATIENCE

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "wgpu_backend"]
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07|\r")


def environment(**more: str) -> dict[str, str]:
    """The environment of this process without what would colour or steer the command."""
    dropped = ("WGPU_BACKEND_DEVICE", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    quiet = {"PYTHONPATH": str(ROOT), "WGPU_BACKEND_NO_HISTORY": "1"}
    return {**kept, **quiet, **more}


class Terminal:
    """A running command; what it wrote is in `text`, without escape sequences."""

    def __init__(self, *words: str, columns: int = 100, **more: str) -> None:
        self._ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, (40, columns))
        self.process = subprocess.Popen(
            [*COMMAND, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment(TERM="xterm", PROMPT_TOOLKIT_NO_CPR="1", **more),
            # The terminal has to control the process, or Ctrl-C is no signal.
            preexec_fn=_take_terminal,
            start_new_session=True,
        )
        os.close(theirs)
        self._raw = b""
        self._seen = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)

    @property
    def text(self) -> str:
        return ESCAPES.sub("", self._raw.decode(errors="replace"))

    def resize(self, columns: int) -> None:
        """Change the width of the window; the kernel sends SIGWINCH."""
        termios.tcsetwinsize(self._ours, (40, columns))

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def line(self, text: str) -> None:
        """Type a line when the prompt is there."""
        self.expect(">>> ")
        self.type(text + "\r")

    def expect(self, pattern: str, seconds: float = PATIENCE) -> str:
        """Wait for a pattern in what has come since the last one; return all up to its end."""
        end = time.monotonic() + seconds
        while True:
            found = re.compile(pattern).search(self.text, self._seen)
            if found:
                before = self.text[self._seen : found.end()]
                self._seen = found.end()
                return before
            if not self._read(end - time.monotonic()):
                raise AssertionError(f"no {pattern!r} in {self.text[self._seen :]!r}")

    def leave(self, seconds: float = PATIENCE) -> int:
        """Wait for the end of the command; return its exit code."""
        end = time.monotonic() + seconds
        while self._read(end - time.monotonic()):
            pass
        return self.process.wait(PATIENCE)

    def _read(self, seconds: float) -> bool:
        ready, _, _ = select.select([self._ours], [], [], max(seconds, 0))
        try:
            data = os.read(self._ours, 65536) if ready else b""
        except OSError:  # Linux says so when the other end is closed
            data = b""
        self._raw += data
        return bool(data)


def _take_terminal() -> None:
    import fcntl

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
