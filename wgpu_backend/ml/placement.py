"""The placement of a model's layers on devices: plain data, planned before anything is loaded.

A pass goes through the devices in order, each with one range of layers. The embedding table is an
item before the first layer; the output head, with the last norm and sampling, is an item after the
last one. As in llama.cpp, `gpu_layers` counts from the end, and the output head is the last layer.
"""

from __future__ import annotations

import math
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

GpuLayers = int | Literal["all", "auto"]


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
    """

    layers: tuple[LayerNbytes, ...]
    embedding: LayerNbytes = LayerNbytes()
    output: LayerNbytes = LayerNbytes()
    tied: LayerNbytes = LayerNbytes()
    compute: int = 0
    logits: int = 0

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
    """

    id: str
    free_nbytes: int | None = None
    speed: float = HOST_SPEED
    pool: str = ""
    total_nbytes: int | None = None

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
        A number of `gpu_layers` above the model's means all, as in llama.cpp and Ollama; otherwise
        it is an error.

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

    Raises
    ------
    DeviceError
        A device is named twice, or the positions do not have these properties.
    """

    devices: tuple[str, ...]
    layers: tuple[int, ...]
    embedding: int
    output: int

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
        """The layers that are not on the CPU, where the output head counts as one."""
        return sum(self.devices[at] != HOST for at in (*self.layers, self.output))

    def __str__(self) -> str:
        parts: list[str] = []
        for at, device in enumerate(self.devices):
            layers = self.layers_on(device)
            own = ["embedding"] if self.embedding == at else []
            own += [_range_text(layers)] if layers else []
            own += ["output"] if self.output == at else []
            parts.append(f"{device}: {', '.join(own)}")
        return "; ".join(parts)


def _range_text(layers: range) -> str:
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
    """

    id: str
    weights: tuple[int, ...]
    cache: tuple[int, ...]
    graph: int
    seconds: float
    computes: bool

    @property
    def size(self) -> int:
        """The bytes of weights, cache and graphs together."""
        return sum(self.weights) + sum(self.cache) + self.graph


def device_uses(
    model: ModelNbytes, placement: Placement, devices: Sequence[DeviceBudget] = ()
) -> tuple[DeviceUse, ...]:
    """Predict the memory and time of each device of a placement, in the order of the pass.

    Parameters
    ----------
    devices : sequence of DeviceBudget
        Where speeds are taken from.
    """
    speeds = {device.id: device.speed for device in devices}
    uses: list[DeviceUse] = []
    for at, device in enumerate(placement.devices):
        own = [
            layer if home == at else LayerNbytes()
            for layer, home in zip(model.layers, placement.layers, strict=True)
        ]
        head = at == placement.output
        rest = model.output.weights_on(device) if head else 0
        if at == placement.embedding:
            rest += model.embedding_on(device, tied=head)
        computes = head or at in placement.layers
        graph = computes * model.compute + head * model.logits
        read = sum(x.read_on(device) for x in own) + head * model.output.read_on(device)
        seconds = read / speeds.get(device, HOST_SPEED)
        weights = (*(x.weights_on(device) for x in own), rest)
        cache = tuple(x.cache_on(device) for x in own)
        uses.append(DeviceUse(device, weights, cache, graph, seconds, computes))
    return tuple(uses)


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

    Layers that no GPU takes are the first ones of the model, on the CPU. The best device has the
    last layers. With ``auto``, a plan with more layers on GPUs is better; of several of these, the
    one that is predicted to be faster. The embedding table goes to the first device of the pass,
    or stays on the host where it would cost a layer its place.

    Parameters
    ----------
    devices : sequence of DeviceBudget
        Devices to use, best first; the NumPy device may be one of them.
    host : DeviceBudget or None
        The NumPy device, for layers that fit on no GPU; None if there is none. An entry of
        `devices` with its id replaces it.

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
        self._gpus = self._order([d for d in devices if d.id != HOST])
        self._items = len(model.layers) + 2
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
        if shares and isinstance(layers, int) and self._shares_of_host():
            raise OptionError(
                f"gpu_layers: {layers}, and tensor_split gives the CPU a share; leave one out"
            )

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
                return min(found, key=self._seconds)
        raise OutOfMemory(self._shortage())

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
        host = self._host
        if first and host is None:
            return
        if self._options.tensor_split and first < self._items:
            yield self._split(first)
            return
        if first == self._items:
            yield Placement.single(HOST, len(self._model.layers))
            return
        orders = [self._gpus]
        if not self._options.spread and self._options.main_gpu is None:
            orders = [[gpu] for gpu in self._gpus] + orders
        for order in orders:
            filled = self._fill(first, order, 1.0)
            if filled is not None:
                yield self._evened(first, order, filled) if self._options.spread else filled

    def _evened(self, first: int, order: Sequence[DeviceBudget], full: Placement) -> Placement:
        """Return the placement with the smallest share of each memory that suffices."""
        low, high, best = 0.0, 1.0, full
        for _ in range(24):
            middle = (low + high) / 2
            found = self._fill(first, order, middle)
            if found is None:
                low = middle
            else:
                high, best = middle, found
        return best

    def _split(self, first: int) -> Placement:
        """Divide the items from `first` by the shares of `tensor_split`."""
        shares = self._options.tensor_split
        total, start = math.fsum(shares), max(first, 1)
        used = [i for i, share in enumerate(shares) if share]
        homes: list[str] = [HOST] * start
        for item in range(start, self._items):
            done = (item - start) / (self._items - start)
            # Sums are rounded: the last one may be below 1.
            at = next((i for i in used if math.fsum(shares[: i + 1]) / total > done), used[-1])
            homes.append(self._listed[at].id)
        if not first:
            homes[0] = homes[1]
        return _from_homes(homes)

    def _fill(self, first: int, order: Sequence[DeviceBudget], share: float) -> Placement | None:
        """Fill devices from the last item to `first`, each up to a share of its memory."""
        homes, pools = [HOST] * self._items, self._pools()
        # The host's part is the same in any order; GPUs with unified memory leave room for it.
        pools[HOST] = pools.get(HOST, math.inf) - self._host_nbytes(first)
        item = self._items - 1
        for device in order:
            limit, used = self._limit(device) * share, 0
            if math.isinf(limit):
                limit = self._model.size_on(device.id) * share
            while item >= first:
                cost = self._cost(item, device.id, homes, computes=used > 0)
                if used + cost > limit or cost > pools[device.memory]:
                    break
                used += cost
                pools[device.memory] -= cost
                homes[item] = device.id
                item -= 1
        return _from_homes(homes) if item < first else None

    def _cost(self, item: int, device: str, homes: Sequence[str], *, computes: bool) -> int:
        """Return the bytes that an item adds on a device."""
        model = self._model
        if item == 0:
            return model.embedding_on(device, tied=homes[-1] == device)
        start = 0 if computes else model.compute
        if item == self._items - 1:
            return start + model.output.size_on(device) + model.logits
        return start + model.layers[item - 1].size_on(device)

    def _host_nbytes(self, first: int) -> int:
        """Return the bytes that the items before `first` take on the host."""
        homes: list[str] = [""] * self._items
        return sum(self._cost(i, HOST, homes, computes=i != 1) for i in range(first))

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
            least = device.id == HOST and HOST in pools
            pools[device.memory] = limit if least else max(limit, pools.get(device.memory, limit))
        return pools

    def _fits(self, placement: Placement) -> bool:
        pools = self._pools()
        limits = {device.id: self._limit(device) for device in self._budgets()}
        memories = {device.id: device.memory for device in self._budgets()}
        for use in device_uses(self._model, placement):
            pools[memories[use.id]] -= use.size
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
            for on in ("", HOST)
        )
        parts = {
            f"weights ({binary_size(on_host)} on {HOST})": weights,
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


def _from_homes(homes: Sequence[str]) -> Placement:
    """Return the placement of items whose devices are given: embedding, layers, output."""
    devices = list(dict.fromkeys(homes[1:]))
    if homes[0] not in devices:
        devices.insert(0, homes[0])
    at = [devices.index(home) for home in homes]
    return Placement(tuple(devices), tuple(at[1:-1]), at[0], at[-1])
