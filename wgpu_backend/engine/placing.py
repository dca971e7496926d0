"""Plans for the devices of a machine: which layers of a model go where, before it is loaded."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from wgpu_backend.dtypes import F16, DType
from wgpu_backend.engine.sizes import ModelSizes, measure_model
from wgpu_backend.errors import DeviceError, OptionError, OutOfMemory, describe
from wgpu_backend.files.gguf.one_file import text_part
from wgpu_backend.files.gguf.reader import GGUFFile
from wgpu_backend.files.huggingface.folder import open_model_file
from wgpu_backend.graph.capabilities import HOST_FEATURE, DeviceInfo, Kind, Profile
from wgpu_backend.ml.backend import BackendMemory, BackendParams, DeviceMemory, make_executor
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.opening import OpenDevice, choose_device, open_placed
from wgpu_backend.ml.placement import (
    EMBEDDING,
    HOST,
    HOST_SPEED,
    DeviceBudget,
    DeviceUse,
    ModelNbytes,
    Placement,
    PlacementOptions,
    device_uses,
    step_seconds,
)
from wgpu_backend.ml.placement_arguments import parse_split
from wgpu_backend.ml.planner import plan_placement

# Bytes per second that a step reads where nothing was measured: typical cards of each kind. Only
# their ratios matter for a plan.
SPEEDS: dict[Kind, float] = {
    "discrete": 400e9,
    "integrated": 80e9,
    "virtual": 80e9,
    "unknown": 80e9,
    "software": HOST_SPEED,
    "cpu": HOST_SPEED,
}
# Bytes per second that kernels of a card read from the host's memory: sixteen lanes of PCIe 4.
BUS_SPEED = 20e9
_SHARES_MEMORY = ("integrated", "software", "cpu")
_NOT_GPUS = ("software", "cpu")


DeviceName = str | int | DeviceInfo


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The devices and the placement that a caller of `wgpu_backend.load` asks for.

    Parameters
    ----------
    devices : sequence of DeviceInfo
        Best first; those of this machine that a `Placement` names.
    placement : PlacementOptions, Placement or None
        None for the first device alone.
    """

    devices: Sequence[DeviceInfo]
    placement: PlacementOptions | Placement | None

    @staticmethod
    def check(
        device: DeviceName | None = None,
        devices: Sequence[DeviceName] | None = None,
        placement: PlacementOptions | Placement | None = None,
        elsewhere: Collection[str] = (),
        **layers: object,
    ) -> DeviceChoice:
        """Check the arguments of `wgpu_backend.load`.

        Parameters
        ----------
        elsewhere : collection of str
            Ids in a `Placement` that are devices of other machines.
        **layers : object
            Arguments of `PlacementOptions`; None for their defaults.

        Raises
        ------
        DeviceError
            A device does not exist, or is named twice.
        OptionError
            An argument is of the wrong kind, out of range, or contradicts another one.
        """
        # An empty split is no split, as in llama-cpp-python.
        split = parse_split(layers.get("tensor_split")) or None
        layers = {**layers, "tensor_split": split}
        given = [name for name, value in layers.items() if value is not None]
        if device is not None and devices is not None:
            raise OptionError("load: device is for one device, devices for several; give one")
        if placement is not None:
            if given:
                raise OptionError(f"load: placement has {' and '.join(given)}, too; give one")
            if not isinstance(placement, PlacementOptions | Placement):  # pyright: ignore[reportUnnecessaryIsInstance] of a caller
                raise OptionError(
                    f"placement: {describe(placement)}, needs PlacementOptions or a Placement"
                )
        elif given or devices is not None:
            placement = PlacementOptions(**{name: layers[name] for name in given})  # pyright: ignore[reportArgumentType] it checks them
        named = devices if device is None else [device]
        _require_use(elsewhere, placement)
        if isinstance(placement, Placement):
            given = None if named is None else find_devices(named)
            return _choose_placed(placement, given, elsewhere)
        found = find_devices(named)
        # With their free memory known, a model that fits no single GPU can be placed on several.
        if device is placement is None and found[0].kind not in _NOT_GPUS:
            known = found[0].free_memory is not None
            placement = PlacementOptions() if known else None
        return DeviceChoice(found, placement)


def _require_use(elsewhere: Collection[str], placement: object) -> None:
    """Refuse functions for devices that no layer is placed on."""
    places = list(placement.devices) if isinstance(placement, Placement) else []
    if unused := [name for name in elsewhere if name not in places]:
        raise OptionError(
            f"openers: functions for {unused}, placement names {places}; place layers there by a "
            "Placement, or leave them out"
        )


def _choose_placed(
    placement: Placement, given: Sequence[DeviceInfo] | None, elsewhere: Collection[str]
) -> DeviceChoice:
    """Find this machine's devices of a placement, which gets their ids for other names."""
    known = {info.id: info for info in given or ()}
    names = [name for name in placement.devices if name not in elsewhere]
    found = find_devices([known.get(name, name) for name in names]) if names else []
    missing = [info.id for info in found if info.id not in known]
    if given is not None and missing:
        raise OptionError(
            f"load: placement has layers on {missing}, the devices are {list(known)}; name these "
            "in the placement, or leave device and devices out"
        )
    ids = dict(zip(names, (info.id for info in found), strict=True))
    devices = tuple(ids.get(name, name) for name in placement.devices)
    return DeviceChoice(found, replace(placement, devices=devices))


@dataclass(frozen=True, slots=True)
class Placed:
    """The devices of a model that is to be loaded.

    Parameters
    ----------
    placement : Placement or None
        The device of each layer; None for the whole model on the first device.
    tied : bool
        Whether the embedding table is the output head, too.
    """

    devices: Sequence[DeviceInfo]
    placement: Placement | None = None
    tied: bool = False

    def open(
        self, params: BackendParams, openers: Mapping[str, OpenDevice] | None = None
    ) -> Executor:
        """Open the devices; see `open_placed`."""
        if self.placement is None:
            kind, info = choose_device(self.devices[0])
            return make_executor(kind, replace(params, device=info))
        known = {info.id: info for info in self.devices}
        return open_placed(self.placement, params, tied=self.tied, openers=openers, known=known)


def place_model(
    path: str | Path,
    wanted: DeviceChoice,
    num_ctx: int | None = None,
    num_parallel: int = 1,
    kv_dtype: DType = F16,
    *,
    profile: Profile = "full",
    implementation: str | None = None,
    mmproj: Path | None = None,
) -> Placed:
    """Choose the devices of a model's layers.

    Parameters
    ----------
    profile, implementation
        See `make_budget`.

    Raises
    ------
    OptionError, OutOfMemory, ModelError
        See `plan_model`.
    """
    if wanted.placement is None:
        return Placed(wanted.devices)
    with open_model_file(path) as opened:
        file = text_part(opened)
        if isinstance(wanted.placement, Placement):
            sizes = measure_model(file, num_ctx, num_parallel, kv_dtype, mmproj)
            return Placed(wanted.devices, _require_layers(wanted.placement, sizes), sizes.is_tied)
        plan = plan_model(
            file,
            wanted.devices,
            wanted.placement,
            num_ctx=num_ctx,
            num_parallel=num_parallel,
            kv_dtype=kv_dtype,
            profile=profile,
            implementation=implementation,
            mmproj=mmproj,
        )
    return Placed(plan.devices, plan.placement, plan.sizes.is_tied)


def _require_layers(placement: Placement, sizes: ModelSizes) -> Placement:
    layers = len(sizes.nbytes.layers)
    if len(placement.layers) != layers:
        raise OptionError(
            f"placement: it has {len(placement.layers)} layers, the model has {layers}"
        )
    return placement


def choose_gpus(infos: Iterable[DeviceInfo]) -> list[DeviceInfo]:
    """Return the GPUs that models use by default: integrated ones only if there are no others.

    They read weights from the host's memory, and not faster than other GPUs do by much.
    """
    gpus = [info for info in infos if info.kind not in _NOT_GPUS]
    return [info for info in gpus if info.kind != "integrated"] or gpus


def find_devices(names: Iterable[DeviceName] | None) -> list[DeviceInfo]:
    """Return the named devices; for None those of `choose_gpus`, or the best device without a GPU.

    Raises
    ------
    DeviceError
        A device does not exist, or two names stand for one.
    """
    from wgpu_backend.device.adapters import Devices

    if names is None:
        known = Devices()
        return choose_gpus(known) or [known[0]]
    if isinstance(names, str):
        names = [name for name in names.split(",") if name.strip()]
    # A set has no order.
    if not isinstance(names, Iterable) or isinstance(names, bytes | bytearray | Set | Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] of a caller
        raise DeviceError(
            f"devices: {describe(cast('object', names))}, needs a list of names, best first"
        )
    found: dict[str, str | int] = {}
    infos: list[DeviceInfo] = []
    for name in names:
        info = name if isinstance(name, DeviceInfo) else Devices().find(name)
        shown = info.id if isinstance(name, DeviceInfo) else name
        if info.id in found:
            raise DeviceError(
                f"devices: {found[info.id]!r} and {shown!r} are one device, {info.id}; "
                "name each device once"
            )
        found[info.id] = shown
        infos.append(info)
    if not infos:
        raise DeviceError("devices: an empty list, needs at least one name")
    return infos


def make_budget(
    info: DeviceInfo, profile: Profile = "full", implementation: str | None = None
) -> DeviceBudget:
    """Return the memory that a device may use, and the speed that is assumed for it.

    Parameters
    ----------
    profile : str
        Profile that the device is opened with: ``baseline`` cannot read the host's memory.
    implementation : str or None
        The WebGPU implementation that is asked for: ``dawn`` cannot, either.
    """
    from wgpu_backend.device.adapters import requested_implementation
    from wgpu_backend.ml.calibration.implementations import has_choice

    adapter, speed = info.id.partition("#")[0], SPEEDS[info.kind]
    pool = HOST if info.kind in _SHARES_MEMORY else adapter
    bus, requested = None, requested_implementation(info, implementation)
    if profile == "full" and HOST_FEATURE in info.features and requested != "dawn":
        bus = min(speed, BUS_SPEED if pool != HOST else speed)
    keeps_table = requested == "auto" and has_choice(info)
    free, total = info.free_memory, info.total_memory
    return DeviceBudget(info.id, free, speed, pool, total, bus, keeps_table)


def choose_host(
    devices: Sequence[DeviceInfo],
    model: ModelNbytes,
    profile: Profile = "full",
    implementation: str | None = None,
) -> tuple[DeviceInfo, DeviceBudget]:
    """Return the device for layers that no GPU computes: NumPy, or a software adapter.

    With a GPU, an adapter is taken if `tune` measured both and a step of the model is predicted
    to take less time there.

    Parameters
    ----------
    devices : sequence of DeviceInfo
        Devices for the model's layers. If the NumPy device is one of them, it is the answer.
    profile, implementation
        See `make_budget`.
    """
    from wgpu_backend.device.adapters import Devices, numpy_device, requested_implementation
    from wgpu_backend.ml.calibration.host_speed import recall_speed

    numpy = next((info for info in devices if info.id == HOST), None) or numpy_device()
    best = numpy, make_budget(numpy)
    speed, listed = recall_speed(numpy), {info.id for info in devices}
    if speed is None or HOST in listed or all(info.kind in _NOT_GPUS for info in devices):
        return best
    best = numpy, replace(best[1], speed=speed)
    for info in Devices():
        wanted = requested_implementation(info, implementation)
        can_open = wanted == "auto" or wanted in info.implementations
        if info.kind != "software" or info.id in listed or not can_open:
            continue
        if (speed := recall_speed(info)) is not None:
            budget = replace(make_budget(info, profile, implementation), bus=None, speed=speed)
            best = min(best, (info, budget), key=lambda each: _read_seconds(model, each[1]))
    return best


def _read_seconds(model: ModelNbytes, budget: DeviceBudget) -> float:
    """Return the time of reading a model's layers once."""
    return sum(layer.read_on(budget.id) for layer in model.layers) / budget.speed


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of a model on devices.

    Parameters
    ----------
    sizes : ModelSizes
        The model's memory and context.
    devices : tuple of DeviceInfo
        The devices that it may use; the one for layers that no GPU takes last, if not among them.
    options : PlacementOptions
        What was asked for.
    placement : Placement
        The device of each layer.
    budgets : tuple of DeviceBudget
        Of the devices, in their order.
    """

    sizes: ModelSizes
    devices: tuple[DeviceInfo, ...]
    options: PlacementOptions
    placement: Placement
    budgets: tuple[DeviceBudget, ...]

    @property
    def uses(self) -> tuple[DeviceUse, ...]:
        """The predicted memory of each device that has a part of the model."""
        return device_uses(self.sizes.nbytes, self.placement, self.budgets)

    @property
    def step_seconds(self) -> float:
        """The predicted time of a step of one token, from typical speeds of the devices' kinds."""
        return step_seconds(self.uses)

    def seconds_otherwise(self) -> float | None:
        """Return the predicted step time if the CPU computed layers in host memory, or the reverse.

        Of layers in the host's memory, that is. None if there are none, or that is not possible.
        """
        layers = bool(self.placement.host - {EMBEDDING})
        on_cpu = self.placement.layers_on(self.placement.host_device)
        if not layers and not (on_cpu and self.placement.gpu_layers):
            return None
        options = replace(self.options, op_offload=not layers)
        host = next(each for each in self.budgets if each.id == self.placement.host_device)
        try:
            other = plan_placement(self.sizes.nbytes, self.budgets, options, host=host)
        except (OptionError, OutOfMemory):
            return None
        return step_seconds(device_uses(self.sizes.nbytes, other, self.budgets))

    def memory(self) -> BackendMemory:
        """Return the predicted memory in the form of `Backend.backend_memory`."""
        names = {info.id: info.name for info in self.devices}
        found = {
            use.id: DeviceMemory(use.id, names[use.id], use.weights, (*use.cache, 0), use.graph)
            for use in self.uses
        }
        home = self.placement.devices[self.placement.embedding]
        cpu = found.pop(HOST, None) or DeviceMemory(HOST, "NumPy")
        if self.placement.host_device in found:
            cpu = cpu.add(found.pop(self.placement.host_device))
        for use in self.uses:
            if use.host_size:
                cpu = cpu.add(DeviceMemory("", "", use.host_weights, (*use.host_cache, 0)))
        embedding = self.sizes.nbytes.embedding.weights_on(home)
        return BackendMemory(embedding, cpu, tuple(found.values()))


def plan_model(
    file: GGUFFile,
    devices: Sequence[DeviceInfo],
    options: PlacementOptions | None = None,
    *,
    num_ctx: int | None = None,
    num_parallel: int = 1,
    kv_dtype: DType = F16,
    profile: Profile = "full",
    implementation: str | None = None,
    mmproj: Path | None = None,
) -> Plan:
    """Plan where the layers of a model go.

    Parameters
    ----------
    devices : sequence of DeviceInfo
        Devices to use, best first; layers that fit on none go to the NumPy device.
    num_ctx, num_parallel, kv_dtype, mmproj
        As for `wgpu_backend.load`.
    profile, implementation
        See `make_budget`.

    Raises
    ------
    DeviceError, OptionError, OutOfMemory
        See `plan_placement`.
    ModelError, ContextFull, DTypeError, ShapeError
        See `measure_model`.
    """
    options = options or PlacementOptions()
    sizes = measure_model(file, num_ctx, num_parallel, kv_dtype, mmproj)
    budgets = [make_budget(info, profile, implementation) for info in devices]
    host, budget = choose_host(devices, sizes.nbytes, profile, implementation)
    placement = plan_placement(sizes.nbytes, budgets, options, host=budget)
    known = {info.id: info for info in (*devices, host)}
    if len(known) > len(budgets):
        budgets.append(budget)
    return Plan(sizes, tuple(known.values()), options, placement, tuple(budgets))
