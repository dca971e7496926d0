"""The placement of a model's layers on devices: plain data, planned before anything is loaded.

A pass goes through the devices in order, each with one range of layers. The embedding table is an
item before the first layer; the output head, with the last norm and sampling, is an item after the
last one. As in llama.cpp, `gpu_layers` counts from the end, and the output head is the last layer.

What no GPU has room for stays in the host's memory. A GPU reads it there over the bus and computes
with it, or the CPU does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from wgpu_backend.errors import DeviceError, OptionError
from wgpu_backend.ml.placement_arguments import GpuLayers, parse_flag, parse_layers, parse_split
from wgpu_backend.ops.sampling.host.options import whole_number

HOST = "cpu"
"""Id of the NumPy device, and the pool of memory that it shares with unified GPUs."""

RESERVE_NBYTES = 512 << 20
# Bytes per second that a step reads, where nothing was measured: NumPy on two channels of DDR5.
HOST_SPEED = 20e9
# Seconds that a hidden state takes from one device to the next, with both submits.
CROSSING_SECONDS = 100e-6
EMBEDDING = -1
"""The embedding table, among the layers of `Placement.host`."""
TABLE = "token_embd.weight"
_LAYER = re.compile(r"(?:^|\.)(?:blk|cache)\.(\d+)\.")
# Weights before the first layer; those without a layer that are not listed come after the last.
_BEFORE = ("token_embd", "token_types", "position_embd", "per_layer_", "altup_proj")
# Towers have layers of their own.
_TOWER = re.compile(r"(?:v|a|s|mm)\.")


def find_layer(label: str) -> int | None:
    """Return the layer of a weight or a state, by its name.

    Returns
    -------
    int or None
        `EMBEDDING` for weights before the first layer; None for what comes after the last.
    """
    found = None if _TOWER.match(label) else _LAYER.search(label)
    if found is not None:
        return int(found[1])
    return EMBEDDING if label.startswith(_BEFORE) else None


@dataclass(frozen=True, slots=True)
class LayerNbytes:
    """The memory of one repeating layer, of the embedding table or of the output head.

    Parameters
    ----------
    weights, cache : int
        Bytes of its weights, and of its keys, values and states for the whole context.
    read : int or None
        Bytes of weights that a step of one token reads: fewer than `weights` with experts. None for
        all.
    host_weights, host_cache : int or None
        Bytes on the NumPy device, which holds block formats as f32; None for the same.
    """

    weights: int = 0
    cache: int = 0
    read: int | None = None
    host_weights: int | None = None
    host_cache: int | None = None

    def weights_on(self, device: str) -> int:
        """Return the bytes of the layer's weights on a device."""
        return self.host_weights if device == HOST and self.host_weights else self.weights

    def cache_on(self, device: str) -> int:
        """Return the bytes of the layer's cache on a device."""
        return self.host_cache if device == HOST and self.host_cache else self.cache

    def size_on(self, device: str) -> int:
        """Return the bytes of the layer's weights and cache on a device."""
        return self.weights_on(device) + self.cache_on(device)

    def read_on(self, device: str) -> int:
        """Return the bytes that a step of one token reads on a device."""
        weights = self.weights_on(device)
        if self.read is not None and self.weights:
            weights = weights * self.read // self.weights
        return weights + self.cache_on(device)


@dataclass(frozen=True, slots=True)
class ModelNbytes:
    """The memory of a model, by layer.

    Parameters
    ----------
    layers : tuple of LayerNbytes
        The repeating layers, in order.
    embedding : LayerNbytes
        The embedding table, and other weights that come before the layers.
    output : LayerNbytes
        The output head and other weights that come after the layers.
    tied : LayerNbytes
        The embedding table where it is the head, too: a part of `embedding` and of `output` that a
        device with both stores once.
    compute : int
        Bytes of intermediates and inputs on each device that computes; layers take turns with them.
    logits : int
        Bytes of intermediates that the head adds on its device.
    staging : int
        Bytes of the slots into which a device with memory of its own copies weights of layers in
        the host's memory.
    """

    layers: tuple[LayerNbytes, ...]
    embedding: LayerNbytes = LayerNbytes()
    output: LayerNbytes = LayerNbytes()
    tied: LayerNbytes = LayerNbytes()
    compute: int = 0
    logits: int = 0
    staging: int = 0

    def size_on(self, device: str) -> int:
        """Return the bytes that one device needs for the whole model."""
        layers = sum(layer.size_on(device) for layer in self.layers)
        ends = self.output.size_on(device) + self.embedding_on(device, tied=True)
        return layers + ends + self.compute + self.logits

    def embedding_on(self, device: str, *, tied: bool) -> int:
        """Return the bytes that the embedding adds on a device, which may have a tied head."""
        shared = self.tied.weights_on(device) if tied else 0
        return self.embedding.weights_on(device) - shared


@dataclass(frozen=True, slots=True)
class DeviceBudget:
    """A device and the memory that it may use.

    Parameters
    ----------
    id : str
        Id as in `Devices`: ``vulkan:0``, ``cpu``.
    free_nbytes : int or None
        Free bytes; None where the platform does not report them, which counts as no limit.
    speed : float
        Bytes per second that a step reads from its memory.
    pool : str
        Devices of one pool share memory: ``cpu`` for unified memory and software adapters, the id
        of the adapter for several devices on one. Empty for memory of its own.
    total_nbytes : int or None
        Bytes of the device's memory, if known; for reports only.
    bus : float or None
        Bytes per second that a step reads from the host's memory; None if kernels cannot bind it.
    keeps_table : bool
        Whether a large embedding table that fits stays in the device's memory: it may be opened by
        a WebGPU implementation that is faster and cannot read the host's.
    """

    id: str
    free_nbytes: int | None = None
    speed: float = HOST_SPEED
    pool: str = ""
    total_nbytes: int | None = None
    bus: float | None = None
    keeps_table: bool = False

    @property
    def memory(self) -> str:
        """The pool of memory: that of the host, or the device's own."""
        return HOST if self.id == HOST else self.pool or self.id


@dataclass(frozen=True, slots=True)
class PlacementOptions:
    """Options of a placement, checked when they are made.

    Parameters
    ----------
    gpu_layers : int, "all" or "auto"
        Layers from the end that GPUs take, where the output head counts as the last one; ``auto``
        for as many as fit, ``all`` for all or an error.
    tensor_split : sequence of float
        Shares of those layers by device, in the order of the devices; empty or None to fill the
        best device first.
    main_gpu : int or None
        Position of the GPU that is filled first and has the output head. With `tensor_split`, the
        order of the devices decides.
    split_mode : str
        ``layer``, or ``none`` to use the main GPU only.
    spread : bool
        Use all GPUs evenly instead of as few as possible.
    reserve_nbytes : int
        Bytes of each memory that stay free.
    capped : bool
        A number of `gpu_layers` above the model's means all, and devices without a share have none,
        as in llama.cpp and Ollama. A cache that GPUs could not read from the host's memory is in
        theirs. Otherwise these are errors.
    op_offload : bool or None
        Whether a GPU computes the layers that are left in the host's memory, which it reads over
        the bus. False has the CPU do it. None has a GPU do it that has memory of its own and can
        bind the host's.
    kv_offload : bool
        Keep keys, values and states in the memory of GPUs. Otherwise they are in the host's memory,
        which leaves room for more layers.

    Raises
    ------
    OptionError
        A share is negative, infinite or not a number, their sum is zero, or a value is of the
        wrong kind or out of range.
    """

    gpu_layers: GpuLayers = "auto"
    tensor_split: tuple[float, ...] = ()
    main_gpu: int | None = None
    split_mode: Literal["layer", "none"] = "layer"
    spread: bool = False
    reserve_nbytes: int = RESERVE_NBYTES
    capped: bool = False
    op_offload: bool | None = None
    kv_offload: bool = True

    def __post_init__(self) -> None:
        layers, main, computes = parse_layers(self.gpu_layers), self.main_gpu, self.op_offload
        if isinstance(layers, int) and layers < 0:
            raise OptionError(f"gpu_layers: {layers}, needs 0 or more, 'all' or 'auto'")
        reserve = whole_number("reserve_nbytes", self.reserve_nbytes)
        if reserve < 0:
            raise OptionError(f"reserve_nbytes: {reserve}, needs 0 or more")
        if self.split_mode not in ("layer", "none"):
            raise OptionError(
                f"split_mode: {self.split_mode!r}, needs 'layer' or 'none': a layer is never "
                "split between devices"
            )
        found = {
            "gpu_layers": layers,
            "tensor_split": parse_split(self.tensor_split),
            "main_gpu": None if main is None else whole_number("main_gpu", main),
            "reserve_nbytes": reserve,
            "spread": parse_flag("spread", self.spread),
            "capped": parse_flag("capped", self.capped),
            "op_offload": computes if computes is None else parse_flag("op_offload", computes),
            "kv_offload": parse_flag("kv_offload", self.kv_offload),
        }
        for name, value in found.items():
            object.__setattr__(self, name, value)
        shares = self.tensor_split
        if shares and not 0 < sum(shares) < math.inf:
            raise OptionError(
                f"tensor_split: the sum of {list(shares)} is {sum(shares)}, needs a finite sum "
                "above 0; leave it out to fill the best device first"
            )
        if self.split_mode == "none" and self.tensor_split:
            raise OptionError("tensor_split: split_mode 'none' uses one GPU; leave one of them out")


@dataclass(frozen=True, slots=True)
class HostMemory:
    """The weights and states of a model that one device reads from the host's memory.

    Parameters
    ----------
    layers : frozenset of int
        Layers with their weights and states, and `EMBEDDING`.
    caches : bool
        Whether the states of all layers are there.
    tied : bool
        Whether the device needs the embedding table for the output head, too, and so has it in its
        own memory.
    """

    layers: frozenset[int] = frozenset()
    caches: bool = False
    tied: bool = False

    def has_weight(self, label: str) -> bool:
        """Return whether a weight is in the host's memory, by its name."""
        layer = find_layer(label)
        return layer in self.layers and not (self.tied and label == TABLE)

    def has_state(self, label: str) -> bool:
        """Return whether a state is in the host's memory, by its name."""
        layer = find_layer(label)
        return layer in self.layers or (self.caches and layer is not None)


@dataclass(frozen=True, slots=True)
class Placement:
    """The device of each layer of a model.

    Parameters
    ----------
    devices : tuple of str
        Ids of the devices that have a part of the model, in the order of a pass; none twice.
    layers : tuple of int
        For each repeating layer a position in `devices`: contiguous ranges that never go back.
    embedding : int
        Where the embedding table is.
    output : int
        Where the output head, the last norm and sampling are: the last device.
    host : frozenset of int
        Layers whose weights and states are in the host's memory, where their device reads them over
        the bus; `EMBEDDING` for the embedding table.
    host_caches : bool
        Whether keys, values and states of all layers are in the host's memory.
    host_device : str
        Id of the device for layers that no GPU computes: the NumPy device, or a software adapter.

    Raises
    ------
    DeviceError
        A device is named twice, or the positions do not have these properties.
    """

    devices: tuple[str, ...]
    layers: tuple[int, ...]
    embedding: int
    output: int
    host: frozenset[int] = frozenset()
    host_caches: bool = False
    host_device: str = HOST

    def __post_init__(self) -> None:
        names: object = self.devices
        if isinstance(names, str) or not all(isinstance(name, str) for name in self.devices):  # pyright: ignore[reportUnnecessaryIsInstance] of a caller
            raise DeviceError(f"placement: devices {names!r}, needs a tuple of ids")
        if not self.devices or len(set(self.devices)) < len(self.devices):
            raise DeviceError(f"placement: devices {list(self.devices)}, needs each device once")
        last = len(self.devices) - 1
        order = (self.embedding, *self.layers, self.output)
        # The table may be on any device: rows of it are copied to the first layer.
        if not all(0 <= at <= last for at in order) or list(order[1:]) != sorted(order[1:]):
            raise DeviceError(
                f"placement: layers {list(self.layers)}, embedding {self.embedding} and output "
                f"{self.output} on {len(self.devices)} devices: needs contiguous ranges in order"
            )
        if self.output != last:
            raise DeviceError(f"placement: output on device {self.output}, needs the last, {last}")
        for layer in self.host:
            if not EMBEDDING <= layer < len(self.layers):
                raise DeviceError(
                    f"placement: layer {layer} in host memory, needs 0 to {len(self.layers) - 1}, "
                    f"or {EMBEDDING} for the embedding"
                )
            if self.devices[self.layers[layer] if layer >= 0 else self.embedding] == HOST:
                raise DeviceError(
                    f"placement: layer {layer} is on {HOST}, needs a GPU to be in host memory"
                )

    @staticmethod
    def single(device: str, layers: int) -> Placement:
        """Return the placement of a whole model on one device."""
        return Placement((device,), (0,) * layers, 0, 0)

    def device(self, layer: int) -> str:
        """Return the id of the device that has a repeating layer."""
        return self.devices[self.layers[layer]]

    def layers_on(self, device: str) -> range:
        """Return the repeating layers of a device; an empty range if it has none."""
        if device not in self.devices:
            return range(0)
        at = self.devices.index(device)
        start = sum(home < at for home in self.layers)
        return range(start, start + self.layers.count(at))

    @property
    def gpu_layers(self) -> int:
        """The layers in the memory of GPUs, where the output head counts as one."""
        # Devices of other nodes have the node after an @.
        kinds = [name.partition("@")[0] for name in self.devices]
        hosts = (HOST, self.host_device)
        on_gpus = sum(kinds[at] not in hosts for at in (*self.layers, self.output))
        return on_gpus - len(self.host - {EMBEDDING})

    @property
    def uses_host_memory(self) -> bool:
        """Whether a device reads the host's memory."""
        return bool(self.host) or self.host_caches

    def host_memory(self, device: int, *, tied: bool = False) -> HostMemory:
        """Return what a device reads from the host's memory.

        Parameters
        ----------
        tied : bool
            Whether the embedding table is the output head, too.
        """
        homes = {EMBEDDING: self.embedding, **dict(enumerate(self.layers))}
        layers = frozenset(layer for layer in self.host if homes[layer] == device)
        caches = self.host_caches and self.devices[device] not in (HOST, self.host_device)
        return HostMemory(layers, caches, tied=tied and device == self.output)

    def __str__(self) -> str:
        parts: list[str] = []
        for at, device in enumerate(self.devices):
            layers = self.layers_on(device)
            own = (
                ["embedding" + _place_text(EMBEDDING in self.host)] if self.embedding == at else []
            )
            for on_host in (True, False):
                found = [layer for layer in layers if (layer in self.host) == on_host]
                own += [_range_text(found) + _place_text(on_host)] if found else []
            own += ["output"] if self.output == at else []
            parts.append(f"{device}: {', '.join(own)}")
        return "; ".join([*parts, *(["caches in host memory"] if self.host_caches else [])])


def _place_text(on_host: bool) -> str:
    return " in host memory" if on_host else ""


def _range_text(layers: Sequence[int]) -> str:
    first, last = layers[0], layers[-1]
    return f"layer {first}" if first == last else f"layers {first}-{last}"


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The predicted memory of one device of a placement, in bytes, and its part of a step.

    Parameters
    ----------
    weights, cache : tuple of int
        Of each layer, 0 for layers elsewhere; the last entry is the output head and the embedding.
    graph : int
        Intermediates and inputs.
    seconds : float
        Predicted time of its part of a step of one token.
    computes : bool
        Whether it has layers or the output head; otherwise it looks up embeddings only.
    host_weights, host_cache : tuple of int
        As `weights` and `cache`, of what it reads from the host's memory; they have the entries of
        these layers then.
    host_seconds : float
        The part of `seconds` that it reads there.
    """

    id: str
    weights: tuple[int, ...]
    cache: tuple[int, ...]
    graph: int
    seconds: float
    computes: bool
    host_weights: tuple[int, ...] = ()
    host_cache: tuple[int, ...] = ()
    host_seconds: float = 0.0

    @property
    def size(self) -> int:
        """The bytes of weights, cache and graphs together, in the device's memory."""
        return sum(self.weights) + sum(self.cache) + self.graph

    @property
    def host_size(self) -> int:
        """The bytes that it reads from the host's memory."""
        return sum(self.host_weights) + sum(self.host_cache)


def device_uses(
    model: ModelNbytes, placement: Placement, devices: Sequence[DeviceBudget] = ()
) -> tuple[DeviceUse, ...]:
    """Predict the memory and time of each device of a placement, in the order of the pass.

    Parameters
    ----------
    devices : sequence of DeviceBudget
        Where speeds are taken from.
    """
    budgets = {device.id: device for device in devices}
    return tuple(
        _device_use(model, placement, at, budgets.get(device, DeviceBudget(device)))
        for at, device in enumerate(placement.devices)
    )


def _device_use(
    model: ModelNbytes, placement: Placement, at: int, budget: DeviceBudget
) -> DeviceUse:
    """Predict the memory and time of the device at a position."""
    device = budget.id
    own = [
        layer if home == at else LayerNbytes()
        for layer, home in zip(model.layers, placement.layers, strict=True)
    ]
    head = at == placement.output
    rest = model.output.weights_on(device) if head else 0
    table = model.embedding_on(device, tied=head) if at == placement.embedding else 0
    computes = head or at in placement.layers
    there = placement.host_memory(at)
    weights = [x.weights_on(device) for x in own]
    cache = [x.cache_on(device) for x in own]
    on_host = [layer in there.layers for layer in range(len(own))]
    cached = [there.caches or each for each in on_host]
    read = [x.read_on(device) - nbytes for x, nbytes in zip(own, cache, strict=True)]
    far = _sum_where(read, on_host) + _sum_where(cache, cached)
    near = sum(read) + sum(cache) - far + head * model.output.read_on(device)
    on_bus = far / (budget.bus or budget.speed)
    table_far = EMBEDDING in there.layers
    return DeviceUse(
        device,
        (*_keep_where(weights, on_host, keep=False), rest + (0 if table_far else table)),
        tuple(_keep_where(cache, cached, keep=False)),
        computes * model.compute + head * model.logits + any(on_host) * model.staging,
        near / budget.speed + on_bus,
        computes,
        (*_keep_where(weights, on_host), table if table_far else 0),
        tuple(_keep_where(cache, cached)),
        on_bus,
    )


def _keep_where(nbytes: Sequence[int], chosen: Sequence[bool], *, keep: bool = True) -> list[int]:
    """Return the numbers where `chosen` is `keep`, and zeros elsewhere."""
    return [n if each == keep else 0 for n, each in zip(nbytes, chosen, strict=True)]


def _sum_where(nbytes: Sequence[int], chosen: Sequence[bool]) -> int:
    return sum(_keep_where(nbytes, chosen))


def step_seconds(uses: Sequence[DeviceUse]) -> float:
    """Return the predicted time of a step of one token, with what crosses between devices."""
    crossings = sum(use.computes for use in uses) - 1
    return sum(use.seconds for use in uses) + crossings * CROSSING_SECONDS
