"""A network whose tensors are in a GGUF file, most of them quantised in blocks and kept so.

The folder of the component has its settings. Names are diffusers', or those in a network's
`originals`. A tensor may hold several parameters, split by rows; a row is a whole number of blocks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

import wgpu_backend.array as wx
from wgpu_backend.array import devices
from wgpu_backend.array.base import wrap
from wgpu_backend.array.nn import Embedding, Linear, Module, Slot
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.reader import GGUFFile, TensorInfo, open_gguf
from wgpu_backend.graph.spec import Spec
from wgpu_backend.images.folder import Component
from wgpu_backend.ops.host_values import dequantise

N = TypeVar("N", bound=Module)
# Names that a message lists.
_SHOWN = 3
_PREFIX = r"^(?:model\.diffusion_model\.|diffusion_model\.)"


class _Original(Protocol):
    """The interface of `wgpu_backend.models.images.original_names.Original`."""

    pattern: str
    parts: tuple[str, ...]
    turned: bool


@dataclass(frozen=True, slots=True)
class _Part:
    """A parameter that is one of several parts of a tensor."""

    tensor: str
    index: int
    of: tuple[str, ...]
    turned: bool


class GgufComponent(Component):
    """A component whose tensors are in a GGUF file.

    Parameters
    ----------
    component : Component
        Has the settings and the class.
    path : path
        GGUF file.
    """

    def __init__(self, component: Component, path: str | Path) -> None:
        super().__init__(component.folder, component.name, component.class_name)
        self._file = open_gguf(path)

    def fill(self, network: N) -> N:
        """Load a network's weights onto the default device.

        Raises
        ------
        ModelError
            Tensors are missing, unexpected, or have other shapes.
        """
        slots = {slot.path: slot for slot in network.slots()}
        parts = dict(_parts(self._file, getattr(network, "originals", ())))
        self._require(type(network).__name__, slots, parts)
        for path, slot in slots.items():
            slot.put(_read(self._file, parts[path], slot, slots))
        wx.keep(network)
        return network

    def reload(self, network: Module, slot: Slot) -> None:
        """Read one parameter again."""
        slots = {other.path: other for other in network.slots()}
        parts = dict(_parts(self._file, getattr(network, "originals", ())))
        slot.put(_read(self._file, parts[slot.path], slot, slots))
        wx.keep(slot.array)

    def _require(self, name: str, slots: dict[str, Slot], parts: dict[str, _Part]) -> None:
        missing = [path for path in slots if path not in parts]
        surplus = [parts[path].tensor for path in parts if path not in slots]
        if missing:
            others = f"; unknown are {_list_names(surplus)}" if surplus else ""
            raise ModelError(
                f"{self._file.path}: {len(missing)} of {len(slots)} parameters of {name} are "
                f"missing: {_list_names(missing)}{others}"
            )
        if surplus:
            raise ModelError(
                f"{self._file.path}: {len(surplus)} tensors are unknown to {name}: "
                f"{_list_names(surplus)}"
            )

    def close(self) -> None:
        """Close the files; calling it again is harmless."""
        super().close()
        self._file.close()


def _parts(file: GGUFFile, originals: Sequence[_Original]) -> Iterator[tuple[str, _Part]]:
    """Yield the names of parameters, and their places in the file."""
    for tensor in file.tensors:
        name = re.sub(_PREFIX, "", tensor)
        match, found = next(
            ((m, o) for o in originals if (m := re.fullmatch(o.pattern, name))), (None, None)
        )
        if match is None or found is None:
            yield name, _Part(tensor, 0, (name,), turned=False)
            continue
        of = tuple(match.expand(part) for part in found.parts)
        yield from ((path, _Part(tensor, i, of, found.turned)) for i, path in enumerate(of))


def _read(file: GGUFFile, part: _Part, slot: Slot, slots: dict[str, Slot]) -> wx.Array:
    """Read a parameter onto the device."""
    info = file.tensors[part.tensor]
    rows = [slots[path].array.shape[0] for path in part.of]
    shape = (sum(rows), *slot.array.shape[1:])
    if int(np.prod(info.shape)) != int(np.prod(shape)) or info.shape[-1] != shape[-1]:
        raise ModelError(
            f"{file.path}: tensor {part.tensor!r} has shape {list(info.shape)}, the settings need "
            f"{list(shape)}"
        )
    first = sum(rows[: part.index])
    data = np.frombuffer(file.data(part.tensor), np.uint8).reshape(shape[0], -1)
    own = data[first : first + rows[part.index]]
    if part.turned:
        own = np.concatenate(np.split(own, 2)[::-1])
    return _upload(info, np.ascontiguousarray(own), slot)


def _upload(info: TensorInfo, data: NDArray[np.uint8], slot: Slot) -> wx.Array:
    """Upload rows: quantised weights of products stay quantised, vectors become f32."""
    session, dtype = devices.session(), info.dtype
    spec = Spec.dense(slot.array.shape, dtype)
    if dtype.quantised and slot.name == "weight" and isinstance(slot.module, Linear | Embedding):
        return wrap(session.weight(data.reshape(-1).data, spec, info.name))
    if dtype.quantised or len(spec.shape) < 2:
        values = dequantise(dtype, data.tobytes(), spec)
        return wrap(session.upload(values.tobytes(), Spec.dense(spec.shape, F32)))
    return wrap(session.upload(data.tobytes(), spec))


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
