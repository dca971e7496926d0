"""`/save`: a conversation as a model of the store, which `/load` and `run` go on with."""

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
    """Make a model of what was chosen and said in a chat.

    Returns
    -------
    str
        Its name, whole.

    Raises
    ------
    StoreError
        It is no name, the store is read-only, or the disk is full; or the model is a folder.
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
    """Parameters that were set, without those that are set to nothing."""
    values = chat.parameters()
    return {
        name: values[name] for name in sorted(chat.chosen) if values[name] not in ("random", "none")
    }
