"""The planner of placements: which device takes which layer, by bytes and predicted time.

A plan is one range of items for each device, filled from the output head backwards. Plans with more
layers on GPUs are tried first; of several that fit, the one that is predicted to be the fastest is
taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from wgpu_backend.errors import DeviceError, OptionError, OutOfMemory
from wgpu_backend.graph.html_tables import binary_size
from wgpu_backend.ml.placement import (
    EMBEDDING,
    HOST,
    DeviceBudget,
    ModelNbytes,
    Placement,
    PlacementOptions,
    device_uses,
    step_seconds,
)

# A GPU looks up rows of a table of at least so many bytes in the host's memory, which takes a few
# kilobytes for each token. Smaller ones are no loss.
LARGE_TABLE_NBYTES = 256 << 20


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


def _fit_shares(shares: tuple[float, ...], devices: int) -> tuple[float, ...]:
    """Return shares with zeros for devices that have none, and without zeros beyond the last one.

    llama.cpp's arrays of shares have a place for each of 16 devices.
    """
    if not shares or any(shares[devices:]):
        return shares
    return (*shares[:devices], *[0.0] * (devices - len(shares)))


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
        if options.capped:
            options = replace(options, tensor_split=_fit_shares(options.tensor_split, len(ids)))
        if options.capped and ids == [HOST]:
            # Without a GPU, other programs ignore the number, and clients send their default GPU.
            options = replace(options, gpu_layers="auto", main_gpu=options.main_gpu or None)
        self._model, self._options = model, options
        self._listed = tuple(devices)
        self._host = next((d for d in devices if d.id == HOST), host)
        self._home = HOST if self._host is None else self._host.id
        self._gpus = self._order([d for d in devices if d.id != HOST])
        self._items = len(model.layers) + 2
        # Options of other programs are ignored if the devices do not support them.
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
            raise OptionError(
                f"main_gpu: {main}, there are {known}; needs the position of a GPU, or leave it out"
            )
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
                f"tensor_split: {len(shares)} shares for {len(self._listed)} devices: {names}; "
                "give one for each"
            )
        if not self._gpus and layers not in (0, "auto") and not options.capped:
            names = ", ".join(device.id for device in self._listed)
            raise OptionError(
                f"gpu_layers: {layers}, and there is no GPU among the devices: {names}; name one, "
                "or use 0 or 'auto'"
            )
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
                # A GPU that has only the table gains nothing over the host: a last resort.
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
        """Yield placements; with `hosted`, a GPU computes the items before `first`."""
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
        """Return the placement that fills all memories to one share, the least that suffices."""
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
