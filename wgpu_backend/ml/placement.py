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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from wgpu_backend.errors import DeviceError, OptionError, OutOfMemory
from wgpu_backend.graph.html_tables import binary_size

HOST = "cpu"
"""Id of the NumPy device, and the pool of memory that it shares with unified GPUs."""

RESERVE_NBYTES = 512 << 20
# Bytes per second that a step reads, where nothing was measured: NumPy on two channels of DDR5.
HOST_SPEED = 20e9
# Seconds that a hidden state takes from one device to the next, with both submits.
CROSSING_SECONDS = 100e-6
EMBEDDING = -1
"""The embedding table, among the layers of `Placement.host`."""
# A GPU looks up rows of a table of at least so many bytes in the host's memory, which takes a few
# kilobytes for each token. Smaller ones are no loss.
LARGE_TABLE_NBYTES = 256 << 20
TABLE = "token_embd.weight"
_LAYER = re.compile(r"(?:^|\.)(?:blk|cache)\.(\d+)\.")
# Weights before the first layer; those without a layer that are not listed come after the last.
_BEFORE = ("token_embd", "token_types", "position_embd", "per_layer_", "altup_proj")
# Towers have layers of their own.
_TOWER = re.compile(r"(?:v|a|s|mm)\.")

GpuLayers = int | Literal["all", "auto"]


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
        """Return the bytes of its weights on a device."""
        return self.host_weights if device == HOST and self.host_weights else self.weights

    def cache_on(self, device: str) -> int:
        """Return the bytes of its cache on a device."""
        return self.host_cache if device == HOST and self.host_cache else self.cache

    def size_on(self, device: str) -> int:
        """Return the bytes of its weights and cache on a device."""
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
        Shares of those layers by device, in the order of the devices; empty to fill the best
        device first.
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
        A number of `gpu_layers` above the model's means all, as in llama.cpp and Ollama, and a
        cache that GPUs could not read from the host's memory is in theirs. Otherwise both are
        errors.
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
        A share is negative, infinite or not a number, their sum is zero, or a value is out of
        range.
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
        layers = self.gpu_layers
        if isinstance(layers, str):
            if layers not in ("all", "auto"):
                raise OptionError(f"gpu_layers: {layers!r}, needs a number, 'all' or 'auto'")
        elif layers < 0:
            raise OptionError(f"gpu_layers: {layers}, needs 0 or more, 'all' or 'auto'")
        _require_shares(self.tensor_split)
        if self.split_mode not in ("layer", "none"):
            raise OptionError(
                f"split_mode: {self.split_mode!r}, needs 'layer' or 'none': a layer is never "
                "split between devices"
            )
        if self.split_mode == "none" and self.tensor_split:
            raise OptionError("tensor_split: split_mode 'none' uses one GPU; leave one of them out")
        if self.reserve_nbytes < 0:
            raise OptionError(f"reserve_nbytes: {self.reserve_nbytes}, needs 0 or more")


def _require_shares(shares: Sequence[float]) -> None:
    for share in shares:
        if not math.isfinite(share) or share < 0:
            raise OptionError(f"tensor_split: {share} among {list(shares)}, needs numbers from 0")
    if shares and not 0 < sum(shares) < math.inf:
        raise OptionError(
            f"tensor_split: the sum of {list(shares)} is {sum(shares)}, needs a finite sum above 0"
        )


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


def plan_placement(
    model: ModelNbytes,
    devices: Sequence[DeviceBudget],
    options: PlacementOptions | None = None,
    *,
    host: DeviceBudget | None = None,
) -> Placement:
    """Choose the device of each layer.

    Layers that no GPU takes are the first ones of the model, in the host's memory. The best device
    has the last layers. With ``auto``, a plan with more layers on GPUs is better; of several of
    these, the one that is predicted to be faster. The embedding table goes to the first device of
    the pass, or stays on the host where it would cost a layer its place, or is large.

    Parameters
    ----------
    devices : sequence of DeviceBudget
        Devices to use, best first; the NumPy device may be one of them.
    host : DeviceBudget or None
        The NumPy device, or a software adapter, for layers that fit on no GPU; None if there is
        none. If the NumPy device is an entry of `devices`, that replaces it.

    Returns
    -------
    Placement

    Raises
    ------
    DeviceError
        There is no device, or one is given twice.
    OptionError
        `gpu_layers` is more than the model has, or another option does not fit the devices.
    OutOfMemory
        No plan that the options allow fits.
    """
    return _Planner(model, devices, options or PlacementOptions(), host).plan()


class _Planner:
    """One search for a placement.

    Items are the embedding table, the layers, and the output head.
    """

    def __init__(
        self,
        model: ModelNbytes,
        devices: Sequence[DeviceBudget],
        options: PlacementOptions,
        host: DeviceBudget | None,
    ) -> None:
        ids = [device.id for device in devices]
        if not ids:
            raise DeviceError("devices: none, needs at least one")
        for name in ids:
            if ids.count(name) > 1:
                raise DeviceError(f"devices: {name} is there twice among {', '.join(ids)}")
        layers, most = options.gpu_layers, len(model.layers) + 1
        if options.capped and isinstance(layers, int) and layers > most:
            options = replace(options, gpu_layers=most)
        self._model, self._options = model, options
        self._listed = tuple(devices)
        self._host = next((d for d in devices if d.id == HOST), host)
        self._home = HOST if self._host is None else self._host.id
        self._gpus = self._order([d for d in devices if d.id != HOST])
        self._items = len(model.layers) + 2
        # Options of other programs hold as far as the devices can.
        can_read = all(gpu.bus is not None for gpu in self._gpus)
        self._caches_far = not options.kv_offload and can_read
        self._check()

    def _order(self, gpus: list[DeviceBudget]) -> list[DeviceBudget]:
        """Return the GPUs in the order in which they are filled."""
        main = self._options.main_gpu
        if main is None:
            return gpus[:1] if self._options.split_mode == "none" else gpus
        if not 0 <= main < len(gpus):
            known = ", ".join(f"{i} {gpu.id}" for i, gpu in enumerate(gpus)) or "none"
            raise OptionError(f"main_gpu: {main}, there are {known}")
        first = gpus[main]
        if self._options.split_mode == "none":
            return [first]
        return [first, *(gpu for gpu in gpus if gpu is not first)]

    def _check(self) -> None:
        options, most = self._options, len(self._model.layers) + 1
        layers, shares = options.gpu_layers, options.tensor_split
        if isinstance(layers, int) and layers > most:
            raise OptionError(
                f"gpu_layers: {layers}, the model has {most}: {most - 1} layers and the output "
                "head; use 'all'"
            )
        if shares and len(shares) != len(self._listed):
            names = ", ".join(device.id for device in self._listed)
            raise OptionError(
                f"tensor_split: {len(shares)} shares for {len(self._listed)} devices: {names}"
            )
        if not self._gpus and layers not in (0, "auto") and not options.capped:
            raise OptionError(f"gpu_layers: {layers}, and there is no GPU among the devices")
        self._check_bus()
        if shares and isinstance(layers, int) and self._shares_of_host():
            raise OptionError(
                f"gpu_layers: {layers}, and tensor_split gives the CPU a share; leave one out"
            )

    def _check_bus(self) -> None:
        """Refuse to use the host's memory with GPUs that cannot bind it."""
        options = self._options
        without = [gpu.id for gpu in self._gpus if gpu.bus is None]
        if options.gpu_layers == 0 or not without:
            return
        why = f"{', '.join(without)} cannot read the host's memory"
        if options.op_offload is True and len(without) == len(self._gpus):
            raise OptionError(f"op_offload: {why}; use False to leave layers to the CPU")
        if not options.kv_offload and not options.capped:
            raise OptionError(f"kv_offload: {why}; use True to keep the cache on the device")

    def _shares_of_host(self) -> float:
        shares = zip(self._listed, self._options.tensor_split, strict=True)
        return sum(share for device, share in shares if device.id == HOST)

    def plan(self) -> Placement:
        """Return the best placement.

        Raises
        ------
        OutOfMemory
            There is none.
        """
        only_table: list[Placement] = []
        for first in self._first_items():
            found = [p for p in self._candidates(first) if self._fits(p)]
            if first == 0:
                # A GPU with the table alone is no better than the host, but than nothing.
                only_table = [p for p in found if p.embedding not in (*p.layers, p.output)]
                found = [p for p in found if p not in only_table]
            elif first == 1:
                found = found or only_table
            if found:
                return self._host_table(min(found, key=self._seconds))
        raise OutOfMemory(self._shortage())

    def _may_host(self, device: str) -> bool:
        """Return whether a GPU may compute with layers in the host's memory."""
        wanted = self._options.op_offload
        gpu = next(gpu for gpu in self._gpus if gpu.id == device)
        if gpu.bus is None or wanted is False:
            return False
        return wanted is True or gpu.memory != HOST

    def _host_table(self, placement: Placement) -> Placement:
        """Return the placement with a large table in the host's memory, if that costs nothing."""
        first = placement.devices[placement.embedding]
        tied = placement.embedding == placement.output
        large = self._model.embedding_on(first, tied=tied) >= LARGE_TABLE_NBYTES
        if first == self._home or not large or not self._may_host(first):
            return placement
        gpu = next(gpu for gpu in self._gpus if gpu.id == first)
        if gpu.keeps_table and not placement.uses_host_memory:
            return placement
        found = replace(placement, host=placement.host | {EMBEDDING})
        return found if self._fits(found) else placement

    def _first_items(self) -> Iterator[int]:
        """Yield the first item that is not on the host, the best choice first."""
        layers = self._options.gpu_layers
        if not self._gpus:
            yield self._items
        elif isinstance(layers, int):
            first = self._items - layers
            # All layers: the embedding follows them if it fits.
            yield from (0, 1) if first == 1 else (first,)
        else:
            yield from (0, 1)
            # A split with a share for the CPU has a place for every layer.
            if layers == "auto" and not (self._options.tensor_split and self._shares_of_host()):
                yield from range(2, self._items + 1)

    def _candidates(self, first: int) -> Iterator[Placement]:
        if first and self._host is None:
            return
        if first == self._items:
            whole = Placement.single(self._home, len(self._model.layers))
            yield replace(whole, host_device=self._home)
            return
        wanted = self._options.op_offload
        if wanted is not False and first:
            yield from self._placements(first, hosted=True)
        if wanted is not True or not first:
            yield from self._placements(first, hosted=False)

    def _placements(self, first: int, *, hosted: bool) -> Iterator[Placement]:
        """Yield placements; with `hosted` a GPU computes with the items before `first`."""
        if self._options.tensor_split:
            found = self._finish(self._split(first), first, hosted=hosted)
            if found is not None:
                yield found
            return
        orders = [self._gpus]
        if not self._options.spread and self._options.main_gpu is None:
            orders = [[gpu] for gpu in self._gpus] + orders
        for order in orders:
            filled = self._fill(first, order, 1.0, hosted=hosted)
            if filled is not None:
                evened = self._options.spread
                yield self._evened(first, order, filled, hosted=hosted) if evened else filled

    def _evened(
        self, first: int, order: Sequence[DeviceBudget], full: Placement, *, hosted: bool
    ) -> Placement:
        """Return the placement with the smallest share of each memory that suffices."""
        low, high, best = 0.0, 1.0, full
        for _ in range(24):
            middle = (low + high) / 2
            found = self._fill(first, order, middle, hosted=hosted)
            if found is None:
                low = middle
            else:
                high, best = middle, found
        return best

    def _split(self, first: int) -> list[str]:
        """Return the devices of items, those from `first` by the shares of `tensor_split`."""
        shares = self._options.tensor_split
        total, start = math.fsum(shares), max(first, 1)
        used = [i for i, share in enumerate(shares) if share]
        homes: list[str] = [self._home] * start
        for item in range(start, self._items):
            done = (item - start) / (self._items - start)
            # Sums are rounded: the last one may be below 1.
            at = next((i for i in used if math.fsum(shares[: i + 1]) / total > done), used[-1])
            homes.append(self._listed[at].id)
        if not first:
            homes[0] = homes[1]
        return homes

    def _finish(self, homes: list[str], first: int, *, hosted: bool) -> Placement | None:
        """Return the placement of items whose devices are given.

        With `hosted` the items before `first` are in the host's memory, for the device of the
        first one; None if that may not compute with them.
        """
        caches = self._caches_far
        if not hosted:
            found = _from_homes(homes, self._home)
            return replace(found, host_caches=caches and found.devices != (self._home,))
        if homes[first] == self._home or not self._may_host(homes[first]):
            return None
        found = _from_homes([homes[first]] * first + homes[first:], self._home)
        return replace(found, host=frozenset(range(EMBEDDING, first - 1)), host_caches=caches)

    def _fill(
        self, first: int, order: Sequence[DeviceBudget], share: float, *, hosted: bool
    ) -> Placement | None:
        """Fill devices from the last item to `first`, each up to a share of its memory."""
        homes, pools = [self._home] * self._items, self._pools()
        # The host's part is the same in any order; GPUs with unified memory leave room for it.
        pools[HOST] = pools.get(HOST, math.inf) - self._host_nbytes(first, order, hosted=hosted)
        item = self._items - 1
        # Whichever device reads layers from the host needs slots for them. They count for the CPU's
        # plans, too, which would otherwise be preferred for a layer more.
        staging = any(self._may_host(gpu.id) for gpu in order) * self._model.staging * (first > 1)
        for device in order:
            limit, used = self._limit(device) * share - staging, 0
            if math.isinf(limit):
                limit = self._model.size_on(device.id) * share
            while item >= first:
                cost = self._cost(item, device.id, homes, computes=used > 0)
                if used + cost > limit or cost + staging > pools[device.memory]:
                    break
                used += cost
                pools[device.memory] -= cost
                homes[item] = device.id
                item -= 1
        return self._finish(homes, first, hosted=hosted) if item < first else None

    def _cost(self, item: int, device: str, homes: Sequence[str], *, computes: bool) -> int:
        """Return the bytes that an item adds on a device."""
        model = self._model
        if item == 0:
            return model.embedding_on(device, tied=homes[-1] == device)
        start = 0 if computes else model.compute
        if item == self._items - 1:
            return start + model.output.size_on(device) + model.logits
        layer = model.layers[item - 1]
        far = device != self._home and self._caches_far
        return start + (layer.weights_on(device) if far else layer.size_on(device))

    def _host_nbytes(self, first: int, order: Sequence[DeviceBudget], *, hosted: bool) -> int:
        """Return the bytes that the host has: of the items before `first`, and of caches."""
        layers = self._model.layers
        far = sum(x.cache for x in layers[max(first - 1, 0) :]) if self._caches_far else 0
        if hosted:
            # The only GPU has a tied table anyway.
            table = self._model.embedding_on("", tied=len(order) == 1)
            return far + table + sum(x.weights + x.cache for x in layers[: first - 1])
        homes: list[str] = [""] * self._items
        return far + sum(self._cost(i, self._home, homes, computes=i != 1) for i in range(first))

    def _limit(self, device: DeviceBudget) -> float:
        """Return the bytes that a device may use."""
        if device.free_nbytes is None:
            return math.inf
        return device.free_nbytes - self._options.reserve_nbytes

    def _budgets(self) -> list[DeviceBudget]:
        return [*self._gpus, *([] if self._host is None else [self._host])]

    def _pools(self) -> dict[str, float]:
        """Return the bytes of each memory: the host's own, or the most of its devices."""
        pools: dict[str, float] = {}
        for device in self._budgets():
            limit = self._limit(device)
            least = device is self._host and HOST in pools
            pools[device.memory] = limit if least else max(limit, pools.get(device.memory, limit))
        return pools

    def _fits(self, placement: Placement) -> bool:
        pools = self._pools()
        limits = {device.id: self._limit(device) for device in self._budgets()}
        memories = {device.id: device.memory for device in self._budgets()}
        for use in device_uses(self._model, placement):
            pools[memories[use.id]] -= use.size
            pools[HOST] = pools.get(HOST, 0) - use.host_size
            if use.size > limits[use.id]:
                return False
        return all(left >= 0 for left in pools.values())

    def _seconds(self, placement: Placement) -> float:
        return step_seconds(device_uses(self._model, placement, self._budgets()))

    def _shortage(self) -> str:
        model, options = self._model, self._options
        weights, on_host = (
            sum(x.weights_on(on) for x in (*model.layers, model.output))
            + model.embedding_on(on, tied=True)
            for on in ("", self._home)
        )
        parts = {
            f"weights ({binary_size(on_host)} on {self._home})": weights,
            "cache": sum(layer.cache for layer in model.layers),
            "compute buffers on each device": model.compute,
        }
        needs = ", ".join(f"{binary_size(nbytes)} of {what}" for what, nbytes in parts.items())
        has = ", ".join(
            f"{device.id} {binary_size(device.free_nbytes)}" for device in self._budgets()
        )
        limits = f" with gpu_layers {options.gpu_layers!r}" if options.gpu_layers != "auto" else ""
        return (
            f"placement: the model does not fit{limits}: it needs {needs}; free are {has}, of "
            f"which {binary_size(options.reserve_nbytes)} stay free on each; choose a smaller "
            "num_ctx, fewer gpu_layers, or a model of fewer bits"
        )


def _from_homes(homes: Sequence[str], host: str) -> Placement:
    """Return the placement of items whose devices are given: embedding, layers, output."""
    devices = list(dict.fromkeys(homes[1:]))
    if homes[0] not in devices:
        devices.insert(0, homes[0])
    at = [devices.index(home) for home in homes]
    return Placement(tuple(devices), tuple(at[1:-1]), at[0], at[-1], host_device=host)
