"""`wgpu-backend pull` and `push`: transfers of models, with a progress bar for each file."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from wgpu_backend.cli.completion import complete_stored
from wgpu_backend.cli.console import is_terminal, note
from wgpu_backend.cli.interrupts import Interrupts
from wgpu_backend.cli.options import Debug
from wgpu_backend.cli.store import find_signing_key, open_store
from wgpu_backend.errors import StoreError

if TYPE_CHECKING:
    from wgpu_backend.files.store.pull import Progress

STREAMS_VARIABLE = "OLLAMA_MAX_TRANSFER_STREAMS"
Insecure = Annotated[bool, typer.Option("--insecure", help="Allow a registry at http://.")]


def pull(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="Name at Ollama's registry, or hf.co/owner/repo:Q4_K_M."
        ),
    ],
    insecure: Insecure = False,
    debug: Debug = False,
) -> None:
    """Download a model into the store, resuming an earlier download."""
    from wgpu_backend.files.store.names import ModelName
    from wgpu_backend.files.store.pull import STREAMS, PullCancelled, Puller

    parsed = ModelName.parse(name)
    streams = os.environ.get(STREAMS_VARIABLE, "")
    with Interrupts() as interrupts, _show_bars() as report:
        puller = Puller(
            open_store(),
            insecure=insecure,
            # An invalid variable counts as not set.
            streams=max(1, int(streams)) if streams.isdecimal() else STREAMS,
            report=report,
            cancelled=lambda: interrupts.requested,
        )
        try:
            puller.pull(parsed)
        except PullCancelled:
            # The downloaded parts stay, so that the next pull resumes.
            raise KeyboardInterrupt from None


def offer_pull(name: str, *, insecure: bool) -> bool:
    """Ask whether to pull a missing model, and pull it.

    Returns
    -------
    bool
        True if the model was pulled; False without a terminal, or if the word is not a name.
    """
    from wgpu_backend.files.store.names import ModelName

    try:
        parsed = ModelName.parse(name)
    except StoreError:
        return False
    # A script must not wait for an answer to the question.
    if name.endswith(".gguf") or not (is_terminal(sys.stdin) and is_terminal(sys.stderr)):
        return False
    sys.stderr.write(f"{name} is not here; pull it from {parsed.host}? [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        return False
    pull(name, insecure=insecure)
    return True


def push(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="Destination: host/namespace/model:tag.",
            autocompletion=complete_stored,
        ),
    ],
    insecure: Insecure = False,
    debug: Debug = False,
) -> None:
    """Upload a model of the store to a registry."""
    from wgpu_backend.files.store.names import ModelName
    from wgpu_backend.files.store.push import PushCancelled, Pusher

    parsed = ModelName.parse(name)
    with Interrupts() as interrupts, _show_bars() as report:
        pusher = Pusher(
            open_store(),
            insecure=insecure,
            report=report,
            cancelled=lambda: interrupts.requested,
            key=find_signing_key(),
        )
        try:
            pusher.push(parsed)
        except PushCancelled:
            # The registry has the uploaded parts, which the next push does not send again.
            raise KeyboardInterrupt from None


@contextmanager
def _show_bars() -> Generator[Callable[[Progress], None]]:
    """Show a progress bar for each file on a terminal, else a line for each step."""
    if not is_terminal(sys.stderr):
        printed: list[str] = []

        def print_status(progress: Progress) -> None:
            if progress.status not in printed:
                printed.append(progress.status)
                note(progress.status)

        yield print_status
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    speed = (TransferSpeedColumn(), TimeRemainingColumn())
    with Bars(*columns, *speed, console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def update(progress: Progress) -> None:
            if not progress.digest:
                bars.console.print(progress.status)
                return
            if progress.digest not in tasks:
                tasks[progress.digest] = bars.add_task(progress.status, total=progress.total)
            bars.update(tasks[progress.digest], completed=progress.completed)

        yield update
