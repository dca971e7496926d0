"""The user's store of models, which is Ollama's."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.parameters import PARAMETERS, Value
from wgpu_backend.errors import ModelNotFound, StoreError

if TYPE_CHECKING:
    from wgpu_backend.files.store.store import Store
    from wgpu_backend.files.store.stored import Stored

MODELS_VARIABLE = "OLLAMA_MODELS"
READ_ONLY_VARIABLE = "WGPU_BACKEND_READ_ONLY"


def open_store() -> Store:
    """Open the user's store, which is Ollama's."""
    from wgpu_backend.files.store.store import Store

    named = os.environ.get(MODELS_VARIABLE)
    root = Path(named) if named else Path.home() / ".ollama" / "models"
    # As in Ollama's variables, 0 and an empty text mean off.
    return Store(root, read_only=os.environ.get(READ_ONLY_VARIABLE, "0") not in ("", "0"))


def find_signing_key() -> Path | None:
    """Return the file of Ollama's key for registries; None for a user without a home."""
    try:
        return Path.home() / ".ollama" / "id_ed25519"
    except RuntimeError:
        return None


def find_stored(name: str) -> Stored | None:
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
    # Imported late: `run` looks up every word that may be a name, and most are not.
    from wgpu_backend.files.store.stored import open_stored

    return open_stored(open_store(), parsed)


def select_parameters(given: Mapping[str, object]) -> dict[str, Value]:
    """Return a stored model's parameters that are supported here."""
    found: dict[str, Value] = {}
    for name, value in given.items():
        # Modelfiles may have parameters of other engines, such as num_gpu.
        if name not in PARAMETERS:
            continue
        if PARAMETERS[name].kind == "texts":
            words = cast("list[str]", value) if isinstance(value, list) else [str(value)]
            found[name] = PARAMETERS[name].texts(words)
        else:
            found[name] = PARAMETERS[name].number(str(value))
    return found


def format_modelfile(name: str) -> str:
    """Return the Modelfile of a model in the store.

    Raises
    ------
    UsageError
        The store does not have the model.
    """
    from wgpu_backend.files.store.modelfile import write_modelfile

    return write_modelfile(_require_stored(name).modelfile)


def format_parameters(name: str) -> str:
    """Return the parameters of a model in the store, a line each; see `format_modelfile`."""
    lines: list[str] = []
    for key, value in _require_stored(name).parameters.items():
        values = cast("list[object]", value) if isinstance(value, list) else [value]
        lines += [f"{key:<30} {json.dumps(each)}\n" for each in values]
    return "".join(lines)


def format_system(name: str) -> str:
    """Return the system message of a model in the store; see `format_modelfile`."""
    return _require_stored(name).system + "\n"


def _require_stored(name: str) -> Stored:
    found = find_stored(name)
    if found is None:
        raise UsageError(f"{name}: the store has no such model; `list` shows its models")
    return found
