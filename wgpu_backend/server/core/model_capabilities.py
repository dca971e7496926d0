"""Capabilities of models, in Ollama's words, read from their files."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from wgpu_backend.engine.speech.tokens import ARCHITECTURES
from wgpu_backend.errors import BackendError, ModelError
from wgpu_backend.files.gguf.one_file import own_tower, text_part
from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf
from wgpu_backend.files.store.store import Entry, Store
from wgpu_backend.files.tower_files import open_tower
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import Model, model_class
from wgpu_backend.nn.tower import known_kinds
from wgpu_backend.text.output_parsers import calls_tools, thinks
from wgpu_backend.text.tokenizer.special import plays_roles

TRANSCRIPTION = "transcription"
_SENSES = {"image": "vision", "audio": "audio"}
_INFILLING = ("fim_pre", "fim_suf", "fim_mid")


def read_capabilities(file: GGUFFile, projector: Path | None = None) -> list[str]:
    """Return the capabilities of a model: ``completion`` or ``embedding`` first.

    Parameters
    ----------
    projector : Path or None
        The file of its tower; None to look in the model's file and next to it.

    A speech model has ``transcription`` alone, which is not one of Ollama's words.
    """
    if file.config.architecture in ARCHITECTURES:
        return [TRANSCRIPTION]
    template = file.config.string("tokenizer.chat_template", "")
    encodes = "pooling_type" in file.config or "pooling" in file.config
    can = ["embedding"] if encodes else ["completion"]
    can += ["tools"] if calls_tools(template) else []
    can += ["thinking"] if thinks(template) else []
    infills = not encodes and plays_roles(file.metadata, _INFILLING)
    can += ["insert"] if infills else []
    return [*can, *_read_senses(file, projector)]


def _read_senses(whole: GGUFFile, projector: Path | None) -> list[str]:
    """Return ``vision`` and ``audio`` where the model has towers."""
    try:
        file = text_part(whole)
        kind = model_class(file.config)
        takes = issubclass(kind, Decoder) or kind.shared_cols is not Model.shared_cols
        tower = open_tower(file, projector) if takes else None
        if tower is None:
            return []
        kinds = known_kinds(tower.config)
        # The tower of one file shares that file, which the caller closes.
        if own_tower(file) is None:
            tower.close()
    # A damaged tower is reported when it is used; the model answers texts without it.
    except (ModelError, OSError):
        return []
    return [_SENSES[modality] for modality in kinds]


def takes_sound(path: Path) -> bool:
    """Return whether a blob is a speech model; False if it is damaged."""
    try:
        return TRANSCRIPTION in read_blob_capabilities(path)
    except (ModelError, OSError):
        return False


def find_files(store: Store, entry: Entry) -> tuple[Path | None, Path | None]:
    """Return the blobs of a model and of its tower in a store; None for each that it lacks."""
    models, towers = (
        [store.blob(layer.digest) for layer in entry.manifest.of_kind(kind)]
        for kind in ("model", "projector")
    )
    return models[0] if models else None, towers[0] if towers else None


def list_capabilities(path: Path | None, projector: Path | None) -> list[str]:
    """Return the capabilities of a model; none if its file is missing or damaged."""
    try:
        return [] if path is None else [*read_blob_capabilities(path, projector)]
    except (BackendError, OSError):
        return []


@lru_cache(maxsize=1024)
def read_blob_capabilities(path: Path, projector: Path | None = None) -> tuple[str, ...]:
    """Return the capabilities of a blob, which never changes and so is read once.

    Raises
    ------
    GGUFError
        The blob is damaged.
    """
    with open_gguf(path, check_types=False) as file:
        return tuple(read_capabilities(file, projector))
