"""Processes that are killed while they change files."""

import signal
import subprocess
import sys

COUNTED = """
import os, signal, sys
from pathlib import Path
left = [int(sys.argv.pop())]
def counted(real):
    def call(*args, **kw):
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1
        return real(*args, **kw)
    return call
os.fsync = counted(os.fsync)
Path.replace = counted(Path.replace)
Path.unlink = counted(Path.unlink)
"""


def run_killed(script: str, *words: str, after: int) -> None:
    """Run a script that is killed behind so many flushes, renames, removals or `counted` calls."""
    command = [sys.executable, "-c", COUNTED + script, *words, str(after)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
