"""LoRA adapters (Hu et al. 2021, "LoRA", §4.1), read from safetensors and merged.

==========  =========================================================  ====================
names       an example                                                 scale
==========  =========================================================  ====================
kohya's     ``lora_unet_mid_block_attentions_0_proj_in.lora_down…``    alpha / rank
peft's      ``transformer.blocks.0.attn.to_q.lora_A.weight``           1, or alpha / rank
diffusers'  ``unet.mid_block.attentions.0.proj_in.lora.down.weight``   1, or alpha / rank
==========  =========================================================  ====================

Alpha is a tensor, or is in the header (`Strengths`). All tensors are checked against the networks
before any weight is changed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

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
from wgpu_backend.images.weights import host_values

F32s = NDArray[np.float32]
# Names that a message lists.
_SHOWN = 3
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
# Ends of names, for the matrix that is multiplied first, the other one, and the scale.
_ENDS = (
    (r"(.*)\.(?:lora_down|lora_A|lora\.down)(?:\.default)?\.weight", "down"),
    (r"(.*)\.(?:lora_up|lora_B|lora\.up)(?:\.default)?\.weight", "up"),
    (r"(.*)\.alpha", "alpha"),
)


@dataclass(frozen=True, slots=True)
class Change:
    """An update of one weight: ``scale · up @ down``.

    Parameters
    ----------
    network : str
        Name of the component.
    slot : Slot
        Place of the weight.
    down : (rank, inputs)
    up : (outputs, rank)
    scale : float
        Alpha divided by the rank, or by its root.
    """

    network: str
    slot: Slot
    down: F32s
    up: F32s
    scale: float


def read_changes(path: str | Path, networks: Mapping[str, Module]) -> list[Change]:
    """Read the weight updates of a file.

    Parameters
    ----------
    path : path
        Safetensors file.
    networks : Mapping
        Networks by the names of components.

    Raises
    ------
    ModelError
        The file is damaged, has unknown names, or is for another model.
    """
    file, tensors = open_safetensors(Path(path))
    with closing(file):
        groups = _group_by_module(path, tensors)
        places = {name: _places(network) for name, network in networks.items()}
        found = [_find_slot(path, key, places) for key in groups]
        lost = [key for key, place in zip(groups, found, strict=True) if place is None]
        if lost:
            raise ModelError(
                f"{path}: {len(lost)} of {len(groups)} changes fit no weight of this model: "
                f"{_list_names(lost)}"
            )
        pairs = zip(groups.items(), found, strict=True)
        strengths = Strengths.of(path, read_metadata(file))
        return [_change(strengths, key, parts, place) for (key, parts), place in pairs if place]


def apply_changes(changes: Iterable[Change], scale: float) -> None:
    """Add updates to weights, on the device, rounded to each weight's type.

    A quantised weight is not changed: its layer adds the low-rank product instead.
    """
    for change in changes:
        slot = change.slot
        # The low-rank product of a quantised layer has no factor, so one matrix takes it.
        up, down = wx.array(change.up), wx.array(change.down * np.float32(scale * change.scale))
        if slot.array.dtype.quantised and isinstance(slot.module, Linear):
            slot.module.add_low_rank(down, up)
            continue
        added = _reorder(slot, wx.matmul(up, down))
        # The sum in f32 rounds once; in f16 a small change would be rounded before it counts.
        made = (slot.array.astype("f32") + added).astype(slot.array.dtype)
        wx.eval(made)
        wx.keep(made)
        slot.put(made)


def _reorder(slot: Slot, added: wx.Array) -> wx.Array:
    """Permute a product to the shape of its weight; files have another order of axes."""
    shape = slot.array.shape
    order = slot.module.published_axes.get(slot.name)
    if order is None:
        return added.reshape(shape)
    published = [0] * len(shape)
    for place, axis in enumerate(order):
        published[axis] = shape[place]
    return wx.permute_dims(added.reshape(tuple(published)), order)


def _group_by_module(
    path: str | Path, tensors: Mapping[str, StoredTensor]
) -> dict[str, dict[str, StoredTensor]]:
    """Group tensors by the module that they change."""
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
            f"{path}: {len(unknown)} of {len(tensors)} tensors belong to no known adapter"
            + (f": {_list_names(unknown)}" if unknown else "")
        )
    for key, parts in groups.items():
        missing = {"down", "up"} - parts.keys()
        if missing:
            raise ModelError(f"{path}: {key!r} has no {' and no '.join(sorted(missing))} matrix")
    return groups


def _places(network: Module) -> dict[str, Slot]:
    """Return the weights by module name, spelled with dots and also with underscores."""
    found: dict[str, Slot] = {}
    for slot in network.slots():
        if slot.name == "weight" and slot.array.ndim > 1:
            module = slot.path.rpartition(".")[0]
            found[module] = found[module.replace(".", "_")] = slot
    return found


def _find_slot(
    path: str | Path, key: str, places: Mapping[str, Mapping[str, Slot]]
) -> tuple[str, Slot] | None:
    """Find the component and weight of a key."""
    for prefix, module in _split(key):
        for component in _PREFIXES[prefix]:
            slots = places.get(component, {})
            slot = slots.get(module) or slots.get(diffusers_name(module))
            if slot is not None:
                return component, slot
    return None


def _split(key: str) -> Iterator[tuple[str, str]]:
    """Yield splits of a key into prefix and module, the longest prefix first."""
    # `text_encoder` with its separator also begins the names of `text_encoder_2`.
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
            f"{slot.path!r} of {component} needs {list(wanted)}"
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
        scale = strengths.scale_for(component, slot.path.rpartition(".")[0], rank)
    return Change(component, slot, down, up, scale)


def _window(slot: Slot) -> tuple[int, ...]:
    """Return the sides of a convolution's window."""
    return slot.array.shape[1:-1]


def _matrix(tensor: StoredTensor) -> F32s:
    """Return a matrix; windows of convolutions become columns."""
    values = _values(tensor)
    return values.reshape(tensor.shape[0], -1) if len(tensor.shape) > 1 else values.reshape(1, -1)


def _values(tensor: StoredTensor) -> F32s:
    dtype, values = host_values(tensor)
    return as_f32(values, dtype)


def _list_names(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more


_RESNET = {
    "in_layers_2": "conv1",
    "emb_layers_1": "time_emb_proj",
    "out_layers_3": "conv2",
    "skip_connection": "conv_shortcut",
}
_OTHERS = {
    "time_embed_0": "time_embedding_linear_1",
    "time_embed_2": "time_embedding_linear_2",
    "label_emb_0_0": "add_embedding_linear_1",
    "label_emb_0_2": "add_embedding_linear_2",
    "input_blocks_0_0": "conv_in",
    "out_2": "conv_out",
}
_MIDDLE = ("resnets_0", "attentions_0", "resnets_1")


def diffusers_name(module: str) -> str:
    """Return diffusers' name of a module, with underscores; unchanged if it has no other."""
    if module in _OTHERS:
        return _OTHERS[module]
    match = re.fullmatch(r"(input|output)_blocks_(\d+)_(\d)_(.*)", module)
    if match:
        way, block, part, rest = match[1], int(match[2]), int(match[3]), match[4]
        # Input block 0 is the first convolution, so that levels begin at 1.
        return _level_name(way, block - (way == "input"), part, rest)
    match = re.fullmatch(r"middle_block_([012])_(.*)", module)
    if match:
        return f"mid_block_{_MIDDLE[int(match[1])]}_{_RESNET.get(match[2], match[2])}"
    return module


def _level_name(way: str, number: int, part: int, rest: str) -> str:
    # A level has three blocks: down two layers and a halving, up three layers.
    level, layer = divmod(number, 3)
    side = "down" if way == "input" else "up"
    if rest == "op":
        return f"{side}_blocks_{level}_downsamplers_0_conv"
    if rest == "conv":
        return f"{side}_blocks_{level}_upsamplers_0_conv"
    kind = "attentions" if part else "resnets"
    return f"{side}_blocks_{level}_{kind}_{layer}_{_RESNET.get(rest, rest)}"


_KEY = "lora_adapter_metadata"
# The default of peft's configuration.
_ALPHA = 8
_NAMES = ("lora_alpha", "alpha_pattern", "use_rslora")
# A pattern is a regular expression from an untrusted file, so its matching time is bounded.
_MAX_PATTERN, _MAX_REPEATS = 400, 3


@dataclass(frozen=True, slots=True)
class Strengths:
    """The adapter settings in a file's header, as diffusers 0.34 and later write them.

    Parameters
    ----------
    path : path
        Name of the file, for messages.
    settings : mapping
        The JSON object; empty if there is none.
    """

    path: str | Path
    settings: Mapping[str, object]

    @classmethod
    def of(cls, path: str | Path, metadata: Mapping[str, str]) -> Strengths:
        """Read the settings from a header.

        Raises
        ------
        ModelError
            The settings are not a JSON object.
        """
        try:
            found: Any = json.loads(metadata.get(_KEY) or "{}")
        except (ValueError, RecursionError) as error:
            raise ModelError(f"{path}: {_KEY}: {error}") from None
        if not isinstance(found, dict):
            raise ModelError(f"{path}: {_KEY} is {type(found).__name__}, needs a JSON object")
        return cls(path, cast("dict[str, object]", found))

    def scale_for(self, component: str, module: str, rank: int) -> float:
        """Return the factor of a module's update.

        Parameters
        ----------
        component : str
            ``unet``, ``transformer``, ``text_encoder`` …
        module : str
            Name of the module in the component, with dots.

        Raises
        ------
        ModelError
            A value has the wrong type.
        """
        settings = self._get_settings(component)
        if not settings:
            return 1.0
        alpha = settings.get("lora_alpha", _ALPHA)
        patterns: object = settings.get("alpha_pattern") or dict[str, object]()
        if not isinstance(patterns, Mapping):
            raise self._wrong(component, "alpha_pattern", patterns, "a JSON object")
        for pattern, own in cast("Mapping[str, object]", patterns).items():
            if self._fits(component, pattern, module):
                alpha = own
                break
        if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not _is_finite(alpha):
            raise self._wrong(component, "lora_alpha", alpha, "a number")
        stabilised = settings.get("use_rslora") or False
        if not isinstance(stabilised, bool):
            raise self._wrong(component, "use_rslora", stabilised, "true or false")
        return float(alpha) / (math.sqrt(rank) if stabilised else rank)

    def _get_settings(self, component: str) -> dict[str, object]:
        """Return the settings of a component, or those without a component's name."""
        prefixed = {name: f"{component}." + name for name in _NAMES}
        if any(key.startswith(f"{component}.") for key in self.settings):
            return {"of": component} | {
                name: self.settings[key] for name, key in prefixed.items() if key in self.settings
            }
        return {name: self.settings[name] for name in _NAMES if name in self.settings}

    def _fits(self, component: str, pattern: str, module: str) -> bool:
        """Return whether a pattern matches a module's name, or its end after a dot; as in peft."""
        if module == pattern or module.endswith(f".{pattern}"):
            return True
        # Compared above; as an expression, its dots would match any character.
        if re.fullmatch(r"[\w.\-]*", pattern):
            return False
        repeats = len(re.findall(r"(?<!\\)[*+{]", pattern))
        needed = f"at most {_MAX_REPEATS} repeats, none of a group, in {_MAX_PATTERN} characters"
        if len(pattern) > _MAX_PATTERN or repeats > _MAX_REPEATS or re.search(r"\)[*+{]", pattern):
            raise self._wrong(component, "alpha_pattern", pattern[:80], needed)
        try:
            return re.match(rf"(.*\.)?({pattern})$", module) is not None
        except re.error as error:
            raise self._wrong(
                component, "alpha_pattern", pattern, f"an expression: {error}"
            ) from None

    def _wrong(self, component: str, name: str, value: object, needed: str) -> ModelError:
        return ModelError(
            f"{self.path}: {_KEY}: {component}.{name} is {str(value)[:80]!r}, needs {needed}"
        )


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False
