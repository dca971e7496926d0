"""Loading of a component's tensors into the parameters of a network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

import wgpu_backend.array as wx
from wgpu_backend.array import devices
from wgpu_backend.array.base import wrap
from wgpu_backend.array.nn import Module, Slot
from wgpu_backend.dtypes import BF16, F16, F32, DType
from wgpu_backend.errors import ModelError
from wgpu_backend.files.huggingface.safetensors import StoredTensor
from wgpu_backend.files.huggingface.values import as_f32, raw_rows, read_values
from wgpu_backend.graph.spec import Spec
from wgpu_backend.images.folder import Component
from wgpu_backend.images.gguf_component import GgufComponent

N = TypeVar("N", bound=Module)
_PLAIN: Mapping[str, tuple[DType, str]] = {
    "F32": (F32, "<f4"),
    "F16": (F16, "<f2"),
    "BF16": (BF16, "<u2"),
}
# Names that a message lists.
_SHOWN = 3


def load_network(component: Component, network: N) -> N:
    """Fill a network with a component's tensors, one at a time, in their stored types.

    Vectors and scalars become f32: they are small, and are added to f32 values. Axes are permuted
    to the order of the layers here (`Module.published_axes`). A network's `renamed` are pairs of a
    pattern and its replacement in the file's names; its `ignored` are patterns of unused tensors.

    Raises
    ------
    ModelError
        A tensor is missing, unexpected, or has another shape or type than its parameter.
    """
    names = _names(component, network)
    slots = list(network.slots())
    component.require(
        {names.get(s.path, s.path): _published_shape(s, s.array.shape) for s in slots}
    )
    _require_no_others(component, {names.get(s.path, s.path) for s in slots}, network)
    for slot in slots:
        slot.put(_read(component.tensors[names.get(slot.path, slot.path)], slot))
    wx.keep(network)
    return network


def reload_slot(component: Component, network: Module, slot: Slot) -> None:
    """Read one parameter of a network again."""
    if isinstance(component, GgufComponent):
        component.reload(network, slot)
        return
    name = _names(component, network).get(slot.path, slot.path)
    slot.put(_read(component.tensors[name], slot))
    wx.keep(slot.array)


def _names(component: Component, network: Module) -> dict[str, str]:
    """Return names in the file by names of parameters, where they differ."""
    changes: Sequence[tuple[str, str]] = getattr(network, "renamed", ())
    found: dict[str, str] = {}
    for name in component.tensors:
        for pattern, replacement in changes:
            changed, count = re.subn(pattern, replacement, name)
            if count:
                found[changed] = name
    return found


def _order(slot: Slot) -> tuple[int, ...]:
    """Return the file's axes in the order of the parameter."""
    return slot.module.published_axes.get(slot.name, tuple(range(slot.array.ndim)))


def _published_shape(slot: Slot, shape: Sequence[int]) -> list[int]:
    """Return the shape that a parameter has in a file."""
    found = [0] * len(shape)
    for place, axis in enumerate(_order(slot)):
        found[axis] = shape[place]
    return found


def _require_no_others(component: Component, wanted: set[str], network: Module) -> None:
    ignored: Iterable[str] = getattr(network, "ignored", ())
    left = [
        name
        for name in component.tensors
        if name not in wanted and not any(re.fullmatch(p, name) for p in ignored)
    ]
    if left:
        more = f" and {len(left) - _SHOWN} more" if len(left) > _SHOWN else ""
        raise ModelError(
            f"{component.folder}: {len(left)} tensors have no place in {type(network).__name__}: "
            f"{', '.join(map(repr, left[:_SHOWN]))}{more}"
        )


def _read(tensor: StoredTensor, slot: Slot) -> wx.Array:
    """Read a tensor onto the device, with the shape and axes of its parameter."""
    dtype, values = host_values(tensor)
    ordered = np.ascontiguousarray(values.reshape(tensor.shape).transpose(_order(slot)))
    if ordered.ndim < 2 and dtype != F32:
        dtype, ordered = F32, as_f32(ordered, dtype)
    session = devices.session()
    spec = Spec.dense(ordered.shape, dtype)
    return wrap(session.upload(ordered.tobytes(), spec))


def host_values(tensor: StoredTensor) -> tuple[DType, NDArray[np.generic]]:
    """Return type and values of a float tensor: bf16 as its bits, 8-bit floats as f16.

    Raises
    ------
    ModelError
        The tensor does not have floats.
    """
    rows = int(np.prod(tensor.shape[:-1], dtype=np.int64)) if tensor.shape else 1
    if tensor.kind in _PLAIN:
        dtype, kind = _PLAIN[tensor.kind]
        return dtype, raw_rows(tensor, kind)(0, rows)
    values = read_values(tensor)
    return values.dtype, values.read(0, values.rows)
