"""Manifests: which blobs a model is made of."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from wgpu_backend.errors import StoreError

MANIFEST_TYPE = "application/vnd.docker.distribution.manifest.v2+json"
CONFIG_TYPE = "application/vnd.docker.container.image.v1+json"
LAYER_TYPE = "application/vnd.ollama.image."
MAX_NBYTES = 4 << 20  # of a manifest
_MAX_LAYERS = 10_000
_KNOWN = ("mediaType", "digest", "size")
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


def digest_hex(digest: object) -> str:
    """Hexadecimal part of a digest.

    Raises
    ------
    StoreError
        It is no SHA-256.
    """
    found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if found is None:
        raise StoreError(f"digest {str(digest)[:80]!r}: needs sha256: and 64 hexadecimal digits")
    return found[1]


@dataclass(frozen=True, slots=True)
class Layer:
    """A blob and what it is.

    Parameters
    ----------
    digest : str
        ``sha256:`` and 64 digits.
    size : int
        Bytes.
    more : mapping
        What else its manifest says of it, such as ``name``.
    """

    media_type: str
    digest: str
    size: int
    more: Mapping[str, object] = field(default_factory=dict[str, object], compare=False)

    @property
    def kind(self) -> str:
        """What of a model it is: ``model``, ``template``, ``params`` …."""
        return self.media_type.removeprefix(LAYER_TYPE)

    def json(self) -> dict[str, object]:
        """As manifests have it."""
        known = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        return {**known, **self.more}


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a model is made of.

    Parameters
    ----------
    read : bytes
        What it was read of, which has more than is known here; empty where it is new.
    """

    config: Layer
    layers: tuple[Layer, ...]
    read: bytes = field(default=b"", repr=False, compare=False)

    @property
    def blobs(self) -> tuple[Layer, ...]:
        """All blobs."""
        return (*self.layers, self.config)

    @property
    def size(self) -> int:
        """Bytes of all blobs."""
        return sum(layer.size for layer in self.blobs)

    def of_kind(self, kind: str) -> list[Layer]:
        """Layers of one kind, such as ``model``."""
        return [layer for layer in self.layers if layer.kind == kind]

    def encode(self) -> bytes:
        """As a file has it; the digest of these bytes is the model's.

        One that was read stays as it was, and so does its digest; a new one is as Ollama writes it.
        """
        value = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": self.config.json(),
            "layers": [layer.json() for layer in self.layers],
        }
        return self.read or json.dumps(value, separators=(",", ":")).encode()


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Read a manifest.

    Parameters
    ----------
    where : str
        What messages call it.

    Raises
    ------
    StoreError
        It is damaged.
    """
    if len(data) > MAX_NBYTES:
        raise StoreError(f"{where}: {len(data)} bytes, a manifest has at most {MAX_NBYTES}")
    try:
        value: Any = json.loads(data)
        layers: Any = value["layers"]
        if not isinstance(layers, list) or len(cast("list[object]", layers)) > _MAX_LAYERS:
            raise StoreError(f"{where}: layers is no list of at most {_MAX_LAYERS}")
        found = tuple(_layer(layer, where) for layer in cast("list[object]", layers))
        return Manifest(_layer(value["config"], where), found, data)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{where}: no manifest: {type(error).__name__}: {error}") from None


def _layer(value: object, where: str) -> Layer:
    given = cast("Mapping[str, object]", value if isinstance(value, Mapping) else {})
    kind, size = given.get("mediaType"), given.get("size")
    if not isinstance(kind, str) or not isinstance(size, int) or size < 0:
        raise StoreError(f"{where}: a layer has no media type or size")
    more = {key: given[key] for key in given if key not in _KNOWN}
    return Layer(kind, f"sha256:{digest_hex(given.get('digest'))}", size, more)
