"""Files of a text's cached keys and values, so that it need not be read again after a restart."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from wgpu_backend.engine.batching.engine import Engine
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.errors import StoreError
from wgpu_backend.llama.states import (
    Layout,
    SavedSequence,
    StateError,
    pack_state,
    unpack_state,
)
from wgpu_backend.nn.kvcache.paged import BLOCK


def save_slot(model: LanguageModel, engine: Engine, tokens: Sequence[int], path: Path) -> int:
    """Write the cached keys and values of tokens to a file.

    Returns
    -------
    int
        Tokens that it has.

    Raises
    ------
    StoreError
        They are no longer cached, or they are too few to be saved.
    """
    known, saved = engine.kept_prefix(tokens)
    if saved is None and len(tokens) <= BLOCK:
        raise StoreError(f"slot: it holds {len(tokens)} tokens, needs more than {BLOCK} to be kept")
    if saved is None:
        raise StoreError("slot: what it held was forgotten since, for others that needed the room")
    data = pack_state(_layout(model), [SavedSequence(0, saved)], known)
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return len(known)


def restore_slot(model: LanguageModel, engine: Engine, path: Path) -> list[int]:
    """Restore keys and values from a file, and return their tokens.

    Raises
    ------
    StoreError
        There is no such file, or it is damaged or of another model.
    """
    try:
        found, tokens = unpack_state(path.read_bytes(), _layout(model))
        if len(found) != 1 or not tokens or len(tokens) > model.num_ctx:
            raise StateError(f"state: {len(found)} sequences of {len(tokens)} tokens, needs one")
        model.cache.require_saved(found[0].saved)
        engine.take_prefix(tokens, found[0].saved)
    except FileNotFoundError:
        raise StoreError(f"slot: no file {path.name[:60]!r}") from None
    except (StateError, ValueError) as error:
        raise StoreError(f"slot: {path.name[:60]!r}: {error}") from None
    return tokens


def _layout(model: LanguageModel) -> Layout:
    file = model.backend.file.path
    facts = {
        "architecture": model.backend.config.architecture,
        "nbytes": Path(file).stat().st_size if Path(file).is_file() else 0,
        "vocabulary": model.vocabulary,
    }
    return Layout.from_cache(facts, model.cache)
