"""The models in the store, for the commands."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, cast

from wgpu_backend.cli.console import answer, human_bytes, note, print_table
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.parameters import PARAMETERS, Value
from wgpu_backend.errors import ModelNotFound, StoreError

if TYPE_CHECKING:
    from wgpu_backend.files.store.store import Store
    from wgpu_backend.files.store.stored import Stored

MODELS_VARIABLE = "OLLAMA_MODELS"
READ_ONLY_VARIABLE = "WGPU_BACKEND_READ_ONLY"
_SHORT = 12  # digits of a digest to print


def open_store() -> Store:
    """Open the user's store, which is Ollama's."""
    from wgpu_backend.files.store.store import Store

    named = os.environ.get(MODELS_VARIABLE)
    root = Path(named) if named else Path.home() / ".ollama" / "models"
    return Store(root, read_only=os.environ.get(READ_ONLY_VARIABLE, "0") not in ("", "0"))


def signing_key() -> Path | None:
    """Return the file of Ollama's key for registries; None for a user without a home."""
    try:
        return Path.home() / ".ollama" / "id_ed25519"
    except RuntimeError:
        return None


def stored(name: str) -> Stored | None:
    """Return a model in the store; None if the name is unknown or invalid.

    Raises
    ------
    StoreError
        The model is damaged.
    """
    from wgpu_backend.files.store.names import ModelName

    try:
        parsed = ModelName.parse(name)
    except StoreError:
        return None
    try:
        open_store().entry(parsed)
    except ModelNotFound:
        return None
    from wgpu_backend.files.store.stored import open_stored

    return open_stored(open_store(), parsed)


def known_parameters(given: Mapping[str, object]) -> dict[str, Value]:
    """Return a stored model's parameters that are supported here."""
    found: dict[str, Value] = {}
    for name, value in given.items():
        if name not in PARAMETERS:
            continue
        if PARAMETERS[name].kind == "texts":
            words = cast("list[str]", value) if isinstance(value, list) else [str(value)]
            found[name] = PARAMETERS[name].texts(words)
        else:
            found[name] = PARAMETERS[name].number(str(value))
    return found


def text_of_modelfile(name: str) -> str:
    """Return the Modelfile of a model in the store.

    Raises
    ------
    UsageError
        The store does not have the model.
    """
    from wgpu_backend.files.store.modelfile import write_modelfile

    return write_modelfile(_of_store(name).modelfile)


def parameters_of(name: str) -> str:
    """Return the parameters of a model in the store, a line each; see `text_of_modelfile`."""
    lines: list[str] = []
    for key, value in _of_store(name).parameters.items():
        values = cast("list[object]", value) if isinstance(value, list) else [value]
        lines += [f"{key:<30} {json.dumps(each)}\n" for each in values]
    return "".join(lines)


def system_of(name: str) -> str:
    """Return the system message of a model in the store; see `text_of_modelfile`."""
    return _of_store(name).system + "\n"


def _of_store(name: str) -> Stored:
    found = stored(name)
    if found is None:
        raise UsageError(f"{name}: the store has no such model; `list` shows those there are")
    return found


def print_list(*, as_json: bool) -> None:
    """Print the models in the store."""
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
        answer(json.dumps(found, indent=2) + "\n")
        return
    if not entries:
        note(f"{store.root} has no models; `pull` brings one")
    rows = [
        (
            str(entry.name),
            entry.digest[:_SHORT],
            human_bytes(entry.manifest.size),
            datetime.fromtimestamp(entry.modified, UTC).strftime("%Y-%m-%d %H:%M"),
        )
        for entry in entries
    ]
    if rows:
        print_table(("name", "id", "size", "modified"), rows, right=("size",))


def copy_model(source: str, destination: str) -> None:
    """Give a model a second name."""
    from wgpu_backend.files.store.names import ModelName

    open_store().copy(ModelName.parse(source), ModelName.parse(destination))
    note(f"copied {source} to {destination}")


def remove_models(names: Sequence[str]) -> None:
    """Remove models from the store."""
    from wgpu_backend.files.store.names import ModelName

    for name in names:
        open_store().remove(ModelName.parse(name))
        note(f"removed {name}")
