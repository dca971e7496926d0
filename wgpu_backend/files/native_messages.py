"""A filter of the lines that C libraries print to standard error."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from threading import RLock

# Two threads that exchange the file at once would restore each other's.
_LOCK = RLock()


@contextmanager
def discard_messages(pattern: re.Pattern[bytes]) -> Generator[None]:
    """Discard what matches a pattern; print everything else at the end.

    Standard error belongs to the process, so lines of other threads come later, too.
    """
    with _LOCK:
        if sys.stderr is not None:
            sys.stderr.flush()
        try:
            kept = os.dup(2)
        # A process without standard error, such as pythonw.
        except OSError:
            yield
            return
        with tempfile.TemporaryFile() as printed:
            os.dup2(printed.fileno(), 2)
            try:
                yield
            finally:
                os.dup2(kept, 2)
                os.close(kept)
                printed.seek(0)
                if rest := pattern.sub(b"", printed.read()):
                    os.write(2, rest)
