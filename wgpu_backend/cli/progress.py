"""A bar that shows how far work is, on stderr, where a person looks at it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from wgpu_backend.cli.console import harmless, is_terminal


@contextmanager
def bar(text: str) -> Generator[Callable[[float], None] | None]:
    """Show a bar while the block runs; it goes when the block ends.

    Parameters
    ----------
    text : str
        What is being done.

    Yields
    ------
    callable or None
        Takes the share that is done, 0 to 1; None where stderr is no terminal.
    """
    if not is_terminal(sys.stderr):
        yield None
        return
    from rich.console import Console
    from rich.markup import escape
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(escape(harmless(text)), total=1.0)
        yield lambda share: progress.update(task, completed=share)
