"""Tensors of a component as the parameters of a network."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

import wgpu_backend.array as wx
from wgpu_backend.array import devices
from wgpu_backend.array.core import wrap
from wgpu_backend.array.nn import Module, Slot
from wgpu_backend.dtypes import BF16, F16, F32, DType
from wgpu_backend.errors import ModelError
from wgpu_backend.files.huggingface.safetensors import StoredTensor
from wgpu_backend.files.huggingface.values import as_f32, raw_rows, stored
from wgpu_backend.graph.spec import Spec
from wgpu_backend.images.folder import Component
from wgpu_backend.images.gguf_component import GgufComponent

N = TypeVar("N", bound=Module)
_PLAIN: Mapping[str, tuple[DType, str]] = {
    "F32": (F32, "<f4"),
    "F16": (F16, "<f2"),
    "BF16": (BF16, "<u2"),
}
_SHOWN = 3  # names in a message


def load_network(component: Component, network: N) -> N:
    """Fill a network with a component's tensors, one at a time; they stay in their type.

    Vectors and numbers become f32: they are small, and added to what is f32. Axes are brought
    into the order that layers here have (`Module.published_axes`). A network's `renamed` are
    pairs of a pattern and what replaces it in names that files have; its `ignored` are patterns of
    tensors that nobody needs.

    Raises
    ------
    ModelError
        A tensor is missing, has another shape or type than its parameter, or has no place.
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
    """Read one parameter of a network anew."""
    if isinstance(component, GgufComponent):
        component.reload(network, slot)
        return
    name = _names(component, network).get(slot.path, slot.path)
    slot.put(_read(component.tensors[name], slot))
    wx.keep(slot.array)


def _names(component: Component, network: Module) -> dict[str, str]:
    """Names in the file by those of parameters, where they are not the same."""
    changes: Sequence[tuple[str, str]] = getattr(network, "renamed", ())
    found: dict[str, str] = {}
    for name in component.tensors:
        for pattern, replacement in changes:
            changed, count = re.subn(pattern, replacement, name)
            if count:
                found[changed] = name
    return found


def _order(slot: Slot) -> tuple[int, ...]:
    """Axes of a file in the order of the parameter."""
    return slot.module.published_axes.get(slot.name, tuple(range(slot.array.ndim)))


def _published_shape(slot: Slot, shape: Sequence[int]) -> list[int]:
    """Shape that a parameter has in a file."""
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
    """A tensor as its parameter, on the device."""
    dtype, values = host_values(tensor)
    ordered = np.ascontiguousarray(values.reshape(tensor.shape).transpose(_order(slot)))
    if ordered.ndim < 2 and dtype != F32:
        dtype, ordered = F32, as_f32(ordered, dtype)
    session = devices.session()
    spec = Spec.dense(ordered.shape, dtype)
    return wrap(session.upload(ordered.tobytes(), spec))


def host_values(tensor: StoredTensor) -> tuple[DType, NDArray[np.generic]]:
    """Type and values of a tensor of floats, bf16 as its bits; floats of eight bits become f16.

    Raises
    ------
    ModelError
        They are no floats.
    """
    rows = int(np.prod(tensor.shape[:-1], dtype=np.int64)) if tensor.shape else 1
    if tensor.kind in _PLAIN:
        dtype, kind = _PLAIN[tensor.kind]
        return dtype, raw_rows(tensor, kind)(0, rows)
    values = stored(tensor)
    return values.dtype, values.read(0, values.rows)
