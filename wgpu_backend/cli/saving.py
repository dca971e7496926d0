"""`/save`: a conversation as a model in the store, which `/load` and `run` continue."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from wgpu_backend.cli.chat import Chat
from wgpu_backend.cli.library import open_store
from wgpu_backend.cli.names import BUNDLED, STORY, exists
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.stored import create


def save_chat(chat: Chat, name: str) -> str:
    """Save a chat's model, parameters and messages as a model in the store.

    Returns
    -------
    str
        The complete name.

    Raises
    ------
    StoreError
        The name is invalid, the store is read-only, the disk is full, or the model is a folder.
    """
    file = BUNDLED if chat.source == STORY else Path(chat.source)
    is_file = chat.source == STORY or exists(chat.source)
    wanted = Modelfile(
        str(file.absolute()) if is_file else chat.source,
        _chosen(chat),
        system=chat.system or (None if is_file else ""),
        messages=[(str(each["role"]), str(each["content"])) for each in chat.messages],
    )
    parsed = ModelName.parse(name)
    create(open_store(), parsed, wanted, Path())
    return str(parsed)


def _chosen(chat: Chat) -> dict[str, Any]:
    """Return the parameters that the user set, without empty ones."""
    values = chat.parameters()
    return {
        name: values[name] for name in sorted(chat.chosen) if values[name] not in ("random", "none")
    }
