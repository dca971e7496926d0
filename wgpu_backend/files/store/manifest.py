"""Manifests, which list the blobs of a model."""

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
# Size of a manifest.
MAX_NBYTES = 4 << 20
_MAX_LAYERS = 10_000
_KNOWN = ("mediaType", "digest", "size")
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


def digest_hex(digest: object) -> str:
    """Return the hexadecimal part of a digest.

    Raises
    ------
    StoreError
        It is not a SHA-256 digest.
    """
    found = _DIGEST.fullmatch(digest) if isinstance(digest, str) else None
    if found is None:
        raise StoreError(f"digest {str(digest)[:80]!r}: needs sha256: and 64 hexadecimal digits")
    return found[1]


@dataclass(frozen=True, slots=True)
class Layer:
    """A blob and its role.

    Parameters
    ----------
    media_type : str
        Media type, which includes the kind.
    digest : str
        ``sha256:`` and 64 digits.
    size : int
        Number of bytes.
    more : mapping
        Further keys in the manifest, such as ``name``.
    """

    media_type: str
    digest: str
    size: int
    more: Mapping[str, object] = field(default_factory=dict[str, object], compare=False)

    @property
    def kind(self) -> str:
        """Return the layer's role in the model: ``model``, ``template``, ``params`` …."""
        return self.media_type.removeprefix(LAYER_TYPE)

    def json(self) -> dict[str, object]:
        """Return the layer's entry in a manifest."""
        known = {"mediaType": self.media_type, "digest": self.digest, "size": self.size}
        return {**known, **self.more}


@dataclass(frozen=True, slots=True)
class Manifest:
    """The blobs of a model.

    Parameters
    ----------
    config : Layer
        The config blob.
    layers : tuple of Layer
        All other blobs.
    read : bytes
        Bytes it was parsed from, which may have further keys; empty for a new one.
    """

    config: Layer
    layers: tuple[Layer, ...]
    read: bytes = field(default=b"", repr=False, compare=False)

    @property
    def blobs(self) -> tuple[Layer, ...]:
        """Return all blobs."""
        return (*self.layers, self.config)

    @property
    def size(self) -> int:
        """Return the bytes of all blobs."""
        return sum(layer.size for layer in self.blobs)

    def of_kind(self, kind: str) -> list[Layer]:
        """Return the layers of one kind, such as ``model``."""
        return [layer for layer in self.layers if layer.kind == kind]

    def encode(self) -> bytes:
        """Encode the manifest; the digest of these bytes is the model's.

        A parsed one keeps its bytes and so its digest; a new one is encoded as by Ollama.
        """
        value = {
            "schemaVersion": 2,
            "mediaType": MANIFEST_TYPE,
            "config": self.config.json(),
            "layers": [layer.json() for layer in self.layers],
        }
        return self.read or json.dumps(value, separators=(",", ":")).encode()


def parse_manifest(data: bytes, where: str) -> Manifest:
    """Parse a manifest.

    Parameters
    ----------
    data : bytes
        JSON of the manifest.
    where : str
        Its name in messages.

    Raises
    ------
    StoreError
        The manifest is damaged.
    """
    if len(data) > MAX_NBYTES:
        raise StoreError(f"{where}: {len(data)} bytes, a manifest has at most {MAX_NBYTES}")
    try:
        value: Any = json.loads(data)
        layers: Any = value["layers"]
        if not isinstance(layers, list) or len(cast("list[object]", layers)) > _MAX_LAYERS:
            raise StoreError(f"{where}: layers is not a list of at most {_MAX_LAYERS} entries")
        found = tuple(_layer(layer, where) for layer in cast("list[object]", layers))
        return Manifest(_layer(value["config"], where), found, data)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StoreError(f"{where}: not a manifest: {type(error).__name__}: {error}") from None


def _layer(value: object, where: str) -> Layer:
    given = cast("Mapping[str, object]", value if isinstance(value, Mapping) else {})
    kind, size = given.get("mediaType"), given.get("size")
    if not isinstance(kind, str) or not isinstance(size, int) or size < 0:
        raise StoreError(f"{where}: a layer has no media type or size")
    more = {key: given[key] for key in given if key not in _KNOWN}
    return Layer(kind, f"sha256:{digest_hex(given.get('digest'))}", size, more)
