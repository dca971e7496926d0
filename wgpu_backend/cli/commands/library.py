"""`wgpu-backend list`, `cp` and `rm`: the models in the store."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import typer

from wgpu_backend.cli.completion import complete_stored
from wgpu_backend.cli.console import human_bytes, note, print_table, print_text
from wgpu_backend.cli.options import Debug, Json, StoredName
from wgpu_backend.cli.store import open_store

# As many digits as `ollama list` prints.
_ID_DIGITS = 12


def list_(as_json: Json = False, debug: Debug = False) -> None:
    """List the models of the store, the newest first."""
    from wgpu_backend.files.store.stored import details

    store = open_store()
    entries = list(store.entries())
    if as_json:
        found = [
            {
                "name": str(entry.name),
                "digest": entry.digest,
                "size": entry.manifest.size,
                "modified_at": datetime.fromtimestamp(entry.modified, UTC).isoformat(),
                "details": details(store, entry),
            }
            for entry in entries
        ]
        print_text(json.dumps(found, indent=2) + "\n")
        return
    if not entries:
        note(f"{store.root} has no models; `pull` downloads one")
        return
    rows = [
        (
            str(entry.name),
            entry.digest[:_ID_DIGITS],
            human_bytes(entry.manifest.size),
            datetime.fromtimestamp(entry.modified, UTC).strftime("%Y-%m-%d %H:%M"),
        )
        for entry in entries
    ]
    print_table(("name", "id", "size", "modified"), rows, right=("size",))


def cp(
    source: StoredName,
    destination: Annotated[str, typer.Argument(metavar="NEW", help="New name.")],
    debug: Debug = False,
) -> None:
    """Give a model of the store a second name."""
    from wgpu_backend.files.store.names import ModelName

    open_store().copy(ModelName.parse(source), ModelName.parse(destination))
    note(f"copied {source} to {destination}")


def rm(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Models to remove.", autocompletion=complete_stored),
    ],
    debug: Debug = False,
) -> None:
    """Remove models from the store."""
    from wgpu_backend.files.store.names import ModelName

    for name in names:
        open_store().remove(ModelName.parse(name))
        note(f"removed {name}")
