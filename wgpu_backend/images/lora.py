"""Adapters of low rank: Hu et al. 2021, "LoRA", §4.1; read from safetensors and merged.

==========  =========================================================  ====================
names       an example                                                 scale
==========  =========================================================  ====================
kohya's     ``lora_unet_mid_block_attentions_0_proj_in.lora_down…``    alpha / rank
peft's      ``transformer.blocks.0.attn.to_q.lora_A.weight``           1, or alpha / rank
diffusers'  ``unet.mid_block.attentions.0.proj_in.lora.down.weight``   1, or alpha / rank
==========  =========================================================  ====================

Alpha is a tensor, or stands in the header (`lora_strength`). Everything is compared with the
networks before anything is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import wgpu_backend.array as wx
from wgpu_backend.array.nn import Linear, Module, Slot
from wgpu_backend.errors import ModelError
from wgpu_backend.files.huggingface.safetensors import (
    StoredTensor,
    open_safetensors,
    read_metadata,
)
from wgpu_backend.files.huggingface.values import as_f32
from wgpu_backend.images.lora_names import diffusers_name
from wgpu_backend.images.lora_strength import Strengths
from wgpu_backend.images.weights import host_values

F32s = NDArray[np.float32]
_SHOWN = 3  # names in a message
_DENOISERS = ("unet", "transformer")
_PREFIXES = {
    "lora_unet": _DENOISERS,
    "lora_transformer": _DENOISERS,
    "lora_te": ("text_encoder",),
    "lora_te1": ("text_encoder",),
    "lora_te2": ("text_encoder_2",),
    "lora_te3": ("text_encoder_3",),
    "unet": _DENOISERS,
    "transformer": _DENOISERS,
    "diffusion_model": _DENOISERS,
    "base_model.model": _DENOISERS,
    "text_encoder": ("text_encoder",),
    "text_encoder_2": ("text_encoder_2",),
    "text_encoder_3": ("text_encoder_3",),
}
# What names end in, and what it says: the matrix that is multiplied first, the other, the scale.
_ENDS = (
    (r"(.*)\.(?:lora_down|lora_A|lora\.down)(?:\.default)?\.weight", "down"),
    (r"(.*)\.(?:lora_up|lora_B|lora\.up)(?:\.default)?\.weight", "up"),
    (r"(.*)\.alpha", "alpha"),
)


@dataclass(frozen=True, slots=True)
class Change:
    """What is added to one weight: ``scale · up @ down``.

    Parameters
    ----------
    network : str
        The component.
    slot : Slot
        The weight.
    down : (rank, inputs)
    up : (outputs, rank)
    scale : float
        Alpha by rank, or by its root.
    """

    network: str
    slot: Slot
    down: F32s
    up: F32s
    scale: float


def read_changes(path: str | Path, networks: Mapping[str, Module]) -> list[Change]:
    """Changes that a file asks for.

    Parameters
    ----------
    path : path
        Safetensors.
    networks : Mapping
        By the names of components.

    Raises
    ------
    ModelError
        The file is damaged, has names that are not known, or is for another model.
    """
    file, tensors = open_safetensors(Path(path))
    with closing(file):
        groups = _grouped(path, tensors)
        places = {name: _places(network) for name, network in networks.items()}
        found = [_found(path, key, places) for key in groups]
        lost = [key for key, place in zip(groups, found, strict=True) if place is None]
        if lost:
            raise ModelError(
                f"{path}: {len(lost)} of {len(groups)} changes have no place in this model: "
                f"{_listed(lost)}"
            )
        pairs = zip(groups.items(), found, strict=True)
        strengths = Strengths.of(path, read_metadata(file))
        return [_change(strengths, key, parts, place) for (key, parts), place in pairs if place]


def apply_changes(changes: Iterable[Change], scale: float) -> None:
    """Add changes to weights, on the device; what is added is rounded to the weight's type.

    A weight in blocks stays as it is: its layer adds what the change makes of its input.
    """
    for change in changes:
        slot = change.slot
        up, down = wx.array(change.up), wx.array(change.down * np.float32(scale * change.scale))
        if slot.array.dtype.quantised and isinstance(slot.module, Linear):
            slot.module.add_low_rank(down, up)
            continue
        added = _ordered(slot, wx.matmul(up, down))
        made = (slot.array.astype("f32") + added).astype(slot.array.dtype)
        wx.eval(made)
        wx.keep(made)
        slot.put(made)


def _ordered(slot: Slot, added: wx.Array) -> wx.Array:
    """A product in the shape of its weight, whose axes files have in another order."""
    shape = slot.array.shape
    order = slot.module.published_axes.get(slot.name)
    if order is None:
        return added.reshape(shape)
    published = [0] * len(shape)
    for place, axis in enumerate(order):
        published[axis] = shape[place]
    return wx.permute_dims(added.reshape(tuple(published)), order)


def _grouped(
    path: str | Path, tensors: Mapping[str, StoredTensor]
) -> dict[str, dict[str, StoredTensor]]:
    """Tensors by the module that they change."""
    groups: dict[str, dict[str, StoredTensor]] = {}
    unknown: list[str] = []
    for name, tensor in tensors.items():
        for pattern, part in _ENDS:
            match = re.fullmatch(pattern, name)
            if match:
                groups.setdefault(match[1], {})[part] = tensor
                break
        else:
            unknown.append(name)
    if unknown or not groups:
        raise ModelError(
            f"{path}: {len(unknown)} of {len(tensors)} tensors are of no known adapter"
            + (f": {_listed(unknown)}" if unknown else "")
        )
    for key, parts in groups.items():
        missing = {"down", "up"} - parts.keys()
        if missing:
            raise ModelError(f"{path}: {key!r} has no {' and no '.join(sorted(missing))} matrix")
    return groups


def _places(network: Module) -> dict[str, Slot]:
    """Weights by the names of their modules, with dots and with underscores."""
    found: dict[str, Slot] = {}
    for slot in network.slots():
        if slot.name == "weight" and slot.array.ndim > 1:
            module = slot.path.rpartition(".")[0]
            found[module] = found[module.replace(".", "_")] = slot
    return found


def _found(
    path: str | Path, key: str, places: Mapping[str, Mapping[str, Slot]]
) -> tuple[str, Slot] | None:
    """Component and weight of a key."""
    for prefix, module in _split(key):
        for component in _PREFIXES[prefix]:
            slots = places.get(component, {})
            slot = slots.get(module) or slots.get(diffusers_name(module))
            if slot is not None:
                return component, slot
    return None


def _split(key: str) -> Iterator[tuple[str, str]]:
    """Ways to take a key apart into a prefix and a module, the longest prefix first."""
    for prefix in sorted(_PREFIXES, key=len, reverse=True):
        for separator in ("_", "."):
            if key.startswith(prefix + separator):
                yield prefix, key[len(prefix) + 1 :]


def _change(
    strengths: Strengths, key: str, parts: Mapping[str, StoredTensor], place: tuple[str, Slot]
) -> Change:
    path, (component, slot) = strengths.path, place
    down, up = (_matrix(parts[name]) for name in ("down", "up"))
    rank = down.shape[0]
    wanted = (slot.array.shape[0], slot.array.size // slot.array.shape[0])
    if up.shape[1] != rank or (up.shape[0], down.shape[1]) != wanted:
        raise ModelError(
            f"{path}: {key!r} is {list(up.shape)} times {list(down.shape)}, the weight "
            f"{slot.path!r} of {component} is {list(wanted)}"
        )
    if not isinstance(slot.module, Linear) and parts["down"].shape[2:] not in (
        (), _window(slot),
    ):  # fmt: skip
        raise ModelError(
            f"{path}: {key!r} is for windows of {list(parts['down'].shape[2:])}, the weight "
            f"{slot.path!r} of {component} has {list(_window(slot))}"
        )
    if "alpha" in parts:
        scale = float(_values(parts["alpha"]).reshape(-1)[0]) / rank
    else:
        scale = strengths.of_module(component, slot.path.rpartition(".")[0], rank)
    return Change(component, slot, down, up, scale)


def _window(slot: Slot) -> tuple[int, ...]:
    """Sides of a convolution's window."""
    return slot.array.shape[1:-1]


def _matrix(tensor: StoredTensor) -> F32s:
    """A matrix; windows of convolutions count as columns."""
    values = _values(tensor)
    return values.reshape(tensor.shape[0], -1) if len(tensor.shape) > 1 else values.reshape(1, -1)


def _values(tensor: StoredTensor) -> F32s:
    dtype, values = host_values(tensor)
    return as_f32(values, dtype)


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
