"""A progress bar on stderr, if it is a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from wgpu_backend.cli.console import harmless, is_terminal


@contextmanager
def bar(text: str) -> Generator[Callable[[float], None] | None]:
    """Show a progress bar while the block runs.

    Parameters
    ----------
    text : str
        Description of the work.

    Yields
    ------
    callable or None
        Takes the share that is done, 0 to 1; None if stderr is not a terminal.
    """
    if not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        # Rich would take brackets in a file's name for markup.
        task = progress.add_task(escape(harmless(text)), total=1.0)
        yield lambda share: progress.update(task, completed=share)
