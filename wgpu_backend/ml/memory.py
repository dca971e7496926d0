"""The memory of a backend: weights and caches by layer, working memory by device."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from wgpu_backend.graph.capabilities import DeviceInfo

_LAYER = re.compile(r"(?:blk|cache)\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of one device, in bytes.

    Parameters
    ----------
    weights : tuple of int
        Of each layer; the last entry is the output layer and what belongs to none.
    cache : tuple of int
        Of each layer.
    graph : int
        Intermediates, inputs and parameters of recorded graphs.
    """

    device_id: str
    name: str
    weights: tuple[int, ...] = ()
    cache: tuple[int, ...] = ()
    graph: int = 0

    @property
    def size(self) -> int:
        """All of it."""
        return sum(self.weights) + sum(self.cache) + self.graph


@dataclass(frozen=True, slots=True)
class BackendMemory:
    """The memory of a backend, in bytes.

    Parameters
    ----------
    input_weights : int
        The embedding, which is counted on its device too.
    cpu : DeviceMemory
        What the NumPy device holds; nothing when a GPU holds the model.
    """

    input_weights: int
    cpu: DeviceMemory
    gpus: tuple[DeviceMemory, ...] = ()

    @property
    def size(self) -> int:
        """All of it."""
        return self.cpu.size + sum(gpu.size for gpu in self.gpus)

    def __str__(self) -> str:
        rows = ["device                    weights      cache      graph   MiB"]
        for device in (self.cpu, *self.gpus):
            parts = (sum(device.weights), sum(device.cache), device.graph)
            cells = "".join(f"{nbytes / 2**20:11.1f}" for nbytes in parts)
            rows.append(f"{device.name[:22]:22}{cells}")
        return "\n".join(rows)


def by_layer(sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return bytes by layer, from the numbers in names; the last entry is the rest."""
    layers: dict[int, int] = {}
    rest = 0
    for name, nbytes in sizes.items():
        found = _LAYER.match(name)
        if found:
            layers[int(found[1])] = layers.get(int(found[1]), 0) + nbytes
        else:
            rest += nbytes
    count = max(layers, default=-1) + 1
    return (*(layers.get(i, 0) for i in range(count)), rest)


def backend_memory(
    info: DeviceInfo, weights: Mapping[str, int], cache: Mapping[str, int], graph: int
) -> BackendMemory:
    """Report the memory of a backend whose model lies on one device.

    Parameters
    ----------
    weights, cache : mapping of str to int
        Bytes by name.
    graph : int
        Bytes of recorded graphs.
    """
    device = DeviceMemory(info.id, info.name, by_layer(weights), by_layer(cache), graph)
    embedding = weights.get("token_embd.weight", 0)
    none = DeviceMemory("cpu", "NumPy")
    if info.kind == "cpu":
        return BackendMemory(embedding, device)
    return BackendMemory(embedding, none, (device,))
