"""Names of models, ``host/namespace/model:tag``, as in Ollama."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from wgpu_backend.errors import StoreError

HOST = "registry.ollama.ai"
NAMESPACE = "library"
TAG = "latest"
# No part may begin with a dot or contain a separator, so no name can lead out of the store.
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}(?::\d{1,5})?")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,79}")
_SCHEMES = ("https://", "http://")


@dataclass(frozen=True, slots=True)
class ModelName:
    """A name with all its parts.

    Parameters
    ----------
    host : str
        Host of the registry; may end in a port.
    namespace, model, tag : str
        Further parts of the name.
    scheme : str
        Protocol of the registry, ``https`` or ``http``.
    """

    host: str
    namespace: str
    model: str
    tag: str
    scheme: str = "https"

    @classmethod
    def parse(cls, text: str) -> ModelName:
        """Parse a name; missing parts default to Ollama's library.

        Raises
        ------
        StoreError
            It is not a name: a part is empty, too long, or has an invalid character.
        """
        scheme, rest = "https", text
        for each in _SCHEMES:
            if text.lower().startswith(each):
                scheme, rest = each.removesuffix("://"), text[len(each) :]
        *before, last = rest.split("/")
        model, colon, tag = last.partition(":")
        if len(before) > 2:
            raise _wrong(text, f"has {len(before) + 1} parts, needs at most host/namespace/model")
        host = before[0] if len(before) == 2 else HOST
        namespace = before[-1] if before else NAMESPACE
        name = cls(host, namespace, model, tag if colon else TAG, scheme)
        name._check(text)
        return name

    def _check(self, text: str) -> None:
        if not _HOST.fullmatch(self.host):
            raise _wrong(text, f"host {self.host[:60]!r}")
        for what in ("namespace", "model", "tag"):
            part: str = getattr(self, what)
            if not _PART.fullmatch(part) or part.endswith("."):
                raise _wrong(text, f"{what} {part[:60]!r}")

    def __str__(self) -> str:
        """Return the shortest text that parses to the name."""
        short = f"{self.model}:{self.tag}"
        if self.host != HOST:
            return f"{self.host}/{self.namespace}/{short}"
        return short if self.namespace == NAMESPACE else f"{self.namespace}/{short}"

    @property
    def path(self) -> PurePosixPath:
        """Return the path of the model's manifest under ``manifests``."""
        # Windows does not allow a colon in file names; elsewhere this keeps it, as Ollama does.
        return PurePosixPath(self.host, self.namespace, self.model, self.tag)


def _wrong(text: str, what: str) -> StoreError:
    return StoreError(
        f"model name {text[:80]!r}: {what}; needs [host/][namespace/]model[:tag] "
        "of letters, digits and ._-"
    )
