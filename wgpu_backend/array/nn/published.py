"""Networks by the names of the classes that published files have them as."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from wgpu_backend.array.nn.module import Module

N = TypeVar("N", bound=type[Module])
NETWORKS: dict[str, type[Module]] = {}
"""By ``UNet2DConditionModel``, ``CLIPTextModel``; each is made of its settings."""


def published(*names: str) -> Callable[[N], N]:
    """Decorator: files call this network so."""

    def enter(network: N) -> N:
        NETWORKS.update(dict.fromkeys(names, network))
        return network

    return enter
