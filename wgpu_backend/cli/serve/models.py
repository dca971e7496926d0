"""Models that `serve` offers in addition to the store, and per-model options."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.names import BUNDLED, STORY, exists
from wgpu_backend.errors import StoreError

if TYPE_CHECKING:
    from wgpu_backend.files.store.stored import Stored
    from wgpu_backend.server.core.state import Settings as ServerSettings


def story() -> Stored:
    """Return the bundled model as an entry of the store."""
    from wgpu_backend.files.store.files import sha256
    from wgpu_backend.files.store.manifest import CONFIG_TYPE, LAYER_TYPE, Layer, Manifest
    from wgpu_backend.files.store.names import ModelName
    from wgpu_backend.files.store.store import Entry
    from wgpu_backend.files.store.stored import Stored, file_details

    digest, facts = sha256(BUNDLED), BUNDLED.stat()
    layer = Layer(LAYER_TYPE + "model", f"sha256:{digest}", facts.st_size)
    manifest = Manifest(Layer(CONFIG_TYPE, f"sha256:{digest}", 0), (layer,))
    entry = Entry(ModelName.parse(STORY), manifest, digest, facts.st_mtime)
    return Stored(entry, BUNDLED, details=file_details(BUNDLED))


def pipelines(folders: Sequence[Path]) -> dict[str, Path]:
    """Return pipelines' folders by model name, including the bundled one.

    Raises
    ------
    UsageError
        A folder is not a pipeline, or two have the same name.
    """
    from wgpu_backend.images.bundled import PICTURES, bundled_pictures
    from wgpu_backend.images.folder import INDEX

    found = {PICTURES: bundled_pictures()}
    for folder in folders:
        if not exists(str(folder / INDEX)):
            raise UsageError(f"--pictures: {str(folder)[:200]!r}, needs a folder with {INDEX}")
        name = folder.absolute().name
        if name in found:
            raise UsageError(f"--pictures: {folder} has the name {name!r} as another; rename it")
        found[name] = folder.absolute()
    return found


def require_known(name: str, serving: ServerSettings) -> None:
    """Raise if the server would not find a model.

    Raises
    ------
    UsageError
        Neither the store nor the package has the model.
    """
    from wgpu_backend.files.store.names import ModelName

    try:
        if name not in serving.fixed:
            serving.store.entry(ModelName.parse(name))
    except StoreError as error:
        raise UsageError(f"--model: {error}") from None
