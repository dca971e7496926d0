"""Models on this machine, in Ollama's layout, and how they come there.

`names` checks names, `store` has manifests and blobs, `modelfile` reads and writes Modelfiles,
`stored` makes and opens models, `pull` brings them from registries.
"""

from __future__ import annotations

from wgpu_backend.model_store.modelfile import Modelfile, parse_modelfile, write_modelfile
from wgpu_backend.model_store.names import ModelName
from wgpu_backend.model_store.pull import Progress, PullCancelled, Puller
from wgpu_backend.model_store.store import Entry, Store
from wgpu_backend.model_store.stored import Stored, create, details, open_stored

__all__ = [
    "Entry",
    "ModelName",
    "Modelfile",
    "Progress",
    "PullCancelled",
    "Puller",
    "Store",
    "Stored",
    "create",
    "details",
    "open_stored",
    "parse_modelfile",
    "write_modelfile",
]
