# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
"""The devices of a machine: one entry for each adapter, best first, the NumPy device last."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import overload

import wgpu

from wgpu_backend.device import dawn
from wgpu_backend.device.c_types import parse_c_types
from wgpu_backend.device.ending import not_at_end
from wgpu_backend.device.faults import TranslateErrors, divert_logs, quiet
from wgpu_backend.device.gpu_memory import add_memory
from wgpu_backend.device.memory import host_memory
from wgpu_backend.device.native import MATRICES, find_matrix_unit
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import (
    HOST_FEATURE,
    Capabilities,
    DeviceInfo,
    Kind,
    MatrixUnit,
    Profile,
)
from wgpu_backend.graph.html_tables import binary_size, html_table

_KINDS: dict[str, Kind] = {
    "DiscreteGPU": "discrete",
    "IntegratedGPU": "integrated",
    "CPU": "software",
}
_RANK: tuple[Kind, ...] = ("discrete", "integrated", "virtual", "unknown", "software", "cpu")
_APIS = ("Vulkan", "Metal", "D3D12", "D3D11", "OpenGL", "OpenGLES")
_VENDORS = {
    0x1002: "AMD",
    0x1010: "Imagination",
    0x106B: "Apple",
    0x10DE: "NVIDIA",
    0x1414: "Microsoft",
    0x13B5: "ARM",
    0x5143: "Qualcomm",
    0x8086: "Intel",
    0x10005: "Mesa",
}
IMPLEMENTATIONS = ("wgpu", "dawn")
# In llama.cpp, no device means the CPU.
_ALIASES = {"lavapipe": "llvmpipe", "none": "cpu"}
# As llama.cpp writes ids.
_PEER_ID = re.compile(r"(vulkan|metal)(\d+)")


def numpy_device() -> DeviceInfo:
    """Return the entry of the device that needs no GPU API."""
    memory = host_memory()
    total, free = memory or (None, None)
    return DeviceInfo("cpu", "NumPy", kind="cpu", api="NumPy", total_memory=total, free_memory=free)


def _info(adapter: wgpu.GPUAdapter, number: int, implementation: str) -> DeviceInfo:
    """Read one adapter."""
    info = adapter.info
    api = str(info["backend_type"])
    kind = _KINDS.get(str(info["adapter_type"]), "unknown")
    # A software rasteriser's memory is the host's; drivers tell what a GPU has, see `adapters`.
    total, free = (host_memory() if kind == "software" else None) or (None, None)
    if implementation == "dawn" and kind == "discrete":
        total = dawn.local_memory(adapter)
    vendor_id, device_id = int(info["vendor_id"]), int(info["device_id"])
    return DeviceInfo(
        id=f"{api.lower()}:{number}",
        name=str(info["device"]),
        vendor=_VENDORS.get(vendor_id, str(info["vendor"])),
        kind=kind,
        api=api,
        driver=" ".join(filter(None, (str(info["vendor"]), str(info["description"])))),
        pci_id=f"{vendor_id:04x}:{device_id:04x}" if 0 < vendor_id < 0x10000 else "",
        total_memory=total,
        free_memory=free,
        limits={str(k): int(v) for k, v in sorted(adapter.limits.items())},
        features=tuple(dawn.features(adapter)),
        implementations=(implementation,),
        matrix=dawn.find_matrix_unit(adapter) if implementation == "dawn" else None,
    )


def adapters(implementation: str = "wgpu") -> list[tuple[DeviceInfo, wgpu.GPUAdapter]]:
    """Return an implementation's adapters of all APIs, each with its `DeviceInfo`."""
    if implementation == "wgpu":
        parse_c_types()
    divert_logs()
    counts: dict[str, int] = {}
    found: list[tuple[DeviceInfo, wgpu.GPUAdapter]] = []
    with not_at_end("devices"), quiet():
        native = implementation == "wgpu"
        for adapter in wgpu.gpu.enumerate_adapters_sync() if native else dawn.adapters():
            api = str(adapter.info["backend_type"])
            found.append((_info(adapter, counts.get(api, 0), implementation), adapter))
            counts[api] = counts.get(api, 0) + 1
    infos = add_memory([info for info, _ in found])
    return [(info, adapter) for info, (_, adapter) in zip(infos, found, strict=True)]


def _add_dawn(infos: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Mark wgpu-native's adapters that Dawn opens as well, and add those that only Dawn has."""
    left = [info for info, _ in adapters("dawn")] if dawn.is_installed() else []
    result: list[DeviceInfo] = []
    for info in infos:
        same = next((other for other in left if _is_one(info, other)), None)
        if same is not None:
            left.remove(same)
            total = info.total_memory or same.total_memory
            info = replace(
                info, implementations=IMPLEMENTATIONS, matrix=same.matrix, total_memory=total
            )
        result.append(info)
    return [*result, *left]


def _is_one(a: DeviceInfo, b: DeviceInfo) -> bool:
    """Return whether entries of two implementations are one adapter through one API."""
    return (a.api, a.pci_id, a.name) == (b.api, b.pci_id, b.name)


def requested_implementation(info: DeviceInfo, implementation: str | None) -> str:
    """Return the implementation that a caller, an opened device or the environment names."""
    variable = "WGPU_BACKEND_IMPLEMENTATION"
    return implementation or info.implementation or os.environ.get(variable) or "auto"


def find_adapter(
    info: DeviceInfo, implementation: str | None = None
) -> tuple[DeviceInfo, wgpu.GPUAdapter]:
    """Return an adapter as an implementation sees it.

    Parameters
    ----------
    implementation : str or None
        ``wgpu``, ``dawn``, or ``auto``. None for that of `info` if it comes from an opened device,
        else for ``WGPU_BACKEND_IMPLEMENTATION`` of the environment, else ``auto``.

    Raises
    ------
    DeviceError
        The implementation is unknown, not installed, or does not have the adapter.
    """
    name = requested_implementation(info, implementation)
    subject = f"device {info.id}: implementation {name!r}"
    if name not in (*IMPLEMENTATIONS, "auto"):
        raise DeviceError(f"{subject}: unknown, needs auto, {' or '.join(IMPLEMENTATIONS)}")
    if name == "dawn" and not dawn.is_installed():
        raise DeviceError(f'{subject}: not installed; `pip install ".[dawn]"` in the checkout')
    if name == "auto":
        name = info.implementations[0] if info.implementations else "wgpu"
    seen = adapters(name)
    # Each implementation numbers the adapters that it has.
    base = split_copy(info.id)[0]
    own = [(other, adapter) for other, adapter in seen if other.id == base and name == "wgpu"]
    same = own or [(other, adapter) for other, adapter in seen if _is_one(info, other)]
    found = same[0] if same else None
    if found is None:
        listing = "; ".join(describe(other) for other, _ in seen) or "none"
        raise DeviceError(f"device {info.id}: {info.name} is gone; {name} has {listing}")
    opened = replace(
        found[0], id=info.id, implementations=info.implementations, implementation=name
    )
    return opened, found[1]


def _api_rank(info: DeviceInfo) -> int:
    return _APIS.index(info.api) if info.api in _APIS else len(_APIS)


def _is_same_adapter(a: DeviceInfo, b: DeviceInfo) -> bool:
    """Return whether two entries look like one adapter through two APIs."""
    one, two = a.name.casefold(), b.name.casefold()
    return a.api != b.api and (one in two or two in one)


def merge_apis(infos: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Keep each adapter once, through the best of its APIs, best adapter first.

    Two equal cards show up twice in each API: the second of one API is folded with the second of
    the other.
    """
    kept: list[DeviceInfo] = []
    taken: dict[str, set[str]] = {}
    for info in sorted(infos, key=_api_rank):
        seen = taken.setdefault(info.api, set())
        twin = next((k for k in kept if _is_same_adapter(k, info) and k.id not in seen), None)
        if twin is None:
            kept.append(info)
        else:
            seen.add(twin.id)
    return sorted(kept, key=lambda info: (_RANK.index(info.kind), _api_rank(info)))


def describe(info: DeviceInfo) -> str:
    """Describe a device in one line: ``vulkan:0 NVIDIA H200 (discrete, Vulkan)``."""
    return f"{info.id} {info.name} ({info.kind}, {info.api})"


class DeviceList(Sequence[DeviceInfo]):
    """The devices of this machine, best first."""

    def __init__(self, infos: Sequence[DeviceInfo]) -> None:
        self._infos = tuple(infos)

    @overload
    def __getitem__(self, index: int) -> DeviceInfo: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[DeviceInfo]: ...
    def __getitem__(self, index: int | slice) -> DeviceInfo | Sequence[DeviceInfo]:
        return self._infos[index]

    def __len__(self) -> int:
        return len(self._infos)

    def __repr__(self) -> str:
        return f"Devices({'; '.join(describe(info) for info in self._infos)})"

    def _repr_html_(self) -> str:
        rows = [
            (i.id, i.name, i.kind, i.api, i.driver, binary_size(i.total_memory))
            for i in self._infos
        ]
        return html_table(rows, ("id", "name", "kind", "API", "driver", "memory"))

    def find(self, text: str | int | DeviceInfo) -> DeviceInfo:
        """Find a device by a name as people write it.

        Parameters
        ----------
        text : str, int or DeviceInfo
            An id (``vulkan:0``, ``cpu`` for NumPy), a position in this list (``1``, as a text or a
            number), a kind with or without a number (``discrete``, ``discrete:1``, ``software``),
            an API (``metal``), or a part of the name, the vendor or the driver (``nvidia``,
            ``lavapipe``). llama.cpp's ``Vulkan0`` and ``none`` stand for ``vulkan:0`` and ``cpu``.
            ``#1`` after any of these is a second device on the same adapter.

        Returns
        -------
        DeviceInfo
            The best device that fits.

        Raises
        ------
        DeviceError
            No device fits; the message lists all devices.
        """
        if isinstance(text, DeviceInfo):
            return text
        wanted, copy = split_copy(_search_text(text).strip().casefold())
        wanted = _PEER_ID.sub(r"\1:\2", _ALIASES.get(wanted, wanted))
        for candidates in (self._by_id(wanted), self._by_kind(wanted), self._by_words(wanted)):
            if candidates:
                best = candidates[0]
                return replace(best, id=best.id + copy) if copy else best
        listing = "; ".join(describe(info) for info in self._infos)
        raise DeviceError(f"device {text!r}: no such device, there are {listing}")

    def _by_id(self, wanted: str) -> list[DeviceInfo]:
        if wanted.isdecimal():
            return list(self._infos[int(wanted) : int(wanted) + 1])
        return [info for info in self._infos if info.id == wanted]

    def _by_kind(self, wanted: str) -> list[DeviceInfo]:
        kind, _, number = wanted.partition(":")
        matching = [i for i in self._infos if kind in (i.kind, i.api.casefold())]
        if not number:
            return matching
        return matching[int(number) : int(number) + 1] if number.isdecimal() else []

    def _by_words(self, wanted: str) -> list[DeviceInfo]:
        def words(info: DeviceInfo) -> str:
            return f"{info.name}\n{info.vendor}\n{info.driver}".casefold()

        letters = any(letter.isalnum() for letter in wanted)
        if not letters or (wanted.isdecimal() and len(wanted) < 3):
            # A number alone is a position. As words it would match half of all names.
            return []
        return [info for info in self._infos if wanted in words(info)]


def split_copy(text: str) -> tuple[str, str]:
    """Split ``vulkan:0#1`` into the adapter's id, and the number of a further device on it."""
    name, mark, number = text.partition("#")
    if not mark or not number.isdecimal() or not int(number):
        return text, ""
    return name, f"#{int(number)}"


def _search_text(text: object) -> str:
    """Return the text by which to search for a device: a name, or its position."""
    if isinstance(text, bool) or not isinstance(text, str | int):
        raise DeviceError(
            f"device {text!r}: a {type(text).__name__} names no device, needs an id, a kind, "
            "a part of a name, a position, or a DeviceInfo"
        )
    return str(text)


# One thread at a time: unused adapters are released before another thread lists them.
@not_at_end("devices")
def Devices() -> DeviceList:
    """List the devices of this machine, best first.

    Discrete GPUs come before integrated ones, a rasteriser (kind ``software``) after every
    GPU, and the NumPy device (id and kind ``cpu``) last. An adapter that two APIs show is
    listed once.
    """
    return DeviceList([*_add_dawn(merge_apis([info for info, _ in adapters()])), numpy_device()])


def find_device(which: str | DeviceInfo | None) -> DeviceInfo:
    """Return the device of a name, see ``Devices().find``; the best one for None."""
    if isinstance(which, DeviceInfo):
        return which
    return Devices()[0] if which is None else Devices().find(which)


# Features that kernels, timings or uploads use where they are.
USEFUL_FEATURES = (
    "shader-f16",
    "subgroup",
    "subgroup-barrier",
    "immediates",
    "shader-int64",
    "shader-float32-atomic",
    "timestamp-query",
    "timestamp-query-inside-encoders",
    "timestamp-query-inside-passes",
    HOST_FEATURE,
)
# The limits that every WebGPU implementation has, from the specification's table; those that
# concern textures and vertices do not matter here.
BASELINE_LIMITS = {
    "max-bind-groups": 4,
    "max-bindings-per-bind-group": 1000,
    "max-dynamic-uniform-buffers-per-pipeline-layout": 8,
    "max-dynamic-storage-buffers-per-pipeline-layout": 4,
    "max-storage-buffers-per-shader-stage": 8,
    "max-uniform-buffers-per-shader-stage": 12,
    "max-uniform-buffer-binding-size": 64 << 10,
    "max-storage-buffer-binding-size": 128 << 20,
    "min-uniform-buffer-offset-alignment": 256,
    "min-storage-buffer-offset-alignment": 256,
    "max-buffer-size": 256 << 20,
    "max-compute-workgroup-storage-size": 16384,
    "max-compute-invocations-per-workgroup": 256,
    "max-compute-workgroup-size-x": 256,
    "max-compute-workgroup-size-y": 256,
    "max-compute-workgroup-size-z": 64,
    "max-compute-workgroups-per-dimension": 65535,
    "max-immediate-size": 0,
}


def open_adapter(info: DeviceInfo, adapter: wgpu.GPUAdapter, profile: Profile) -> wgpu.GPUDevice:
    """Open an adapter with the features and limits of a profile.

    Returns
    -------
    wgpu.GPUDevice

    Raises
    ------
    DeviceError
        The profile is unknown, or the driver refuses.
    """
    if profile not in ("full", "baseline"):
        raise DeviceError(f"device {info.id}: profile {profile!r}, needs full or baseline")
    full = profile == "full"
    features = [f for f in USEFUL_FEATURES if f in adapter.features] if full else []
    limits: dict[str, int | None] = {**(info.limits if full else BASELINE_LIMITS)}
    with TranslateErrors(f"device {info.id}", str):
        if info.implementation == "dawn":
            wanted = {name: int(value or 0) for name, value in limits.items()}
            return dawn.request_device(adapter, wanted, full=full)
        if MATRICES in adapter.features and "shader-f16" in features:
            try:
                return adapter.request_device_sync(
                    required_features=[*features, MATRICES], required_limits=limits
                )
            except RuntimeError:
                # Listed and refused, see `native.MATRICES`.
                pass
        return adapter.request_device_sync(required_features=features, required_limits=limits)


def read_capabilities(info: DeviceInfo, gpu: wgpu.GPUDevice) -> Capabilities:
    """Read the capabilities that kernels may use from an opened device."""
    limits: dict[str, int] = gpu.limits
    alignment = max(
        limits["min-storage-buffer-offset-alignment"],
        limits["min-uniform-buffer-offset-alignment"],
    )
    return Capabilities(
        software=info.kind == "software",
        subgroups=not {"subgroup", "subgroups"}.isdisjoint(gpu.features),
        f16="shader-f16" in gpu.features,
        fused=info.kind != "software",
        compiles_long_kernels=info.kind != "software",
        int64="shader-int64" in gpu.features,
        few_registers=info.vendor == "Intel" and info.kind != "software",
        integer_dot=has_integer_dot(info),
        timestamps="timestamp-query" in gpu.features,
        max_binding_nbytes=limits["max-storage-buffer-binding-size"],
        max_uniform_nbytes=limits["max-uniform-buffer-binding-size"],
        max_buffer_nbytes=limits["max-buffer-size"],
        max_storage_bindings=limits["max-storage-buffers-per-shader-stage"],
        max_workgroup_nbytes=limits["max-compute-workgroup-storage-size"],
        max_workgroup_invocations=limits["max-compute-invocations-per-workgroup"],
        max_groups=limits["max-compute-workgroups-per-dimension"],
        binding_alignment=alignment,
        matrix=_matrix_unit(info, gpu),
    )


def _matrix_unit(info: DeviceInfo, gpu: wgpu.GPUDevice) -> MatrixUnit | None:
    """Return the matrix unit that kernels may use; the baseline profile has no features."""
    if "shader-f16" not in gpu.features:
        return None
    return info.matrix if info.implementation == "dawn" else find_matrix_unit(gpu, info.api)


# Names of GPUs that Vulkan drivers serve but that have no such instruction: AMD's GCN but for Vega
# 20, and RDNA 1; NVIDIA's Kepler and Maxwell; Intel's before generation 12.
_WITHOUT = re.compile(
    r"RADV (?:TAHITI|PITCAIRN|VERDE|OLAND|HAINAN|BONAIRE|KAVERI|KABINI|HAWAII|TONGA|ICELAND"
    r"|CARRIZO|FIJI|STONEY|POLARIS\d*|VEGAM|VEGA10|VEGA12|RAVEN\d?|RENOIR|NAVI10)\b"
    r"|Radeon.* (?:R[579]|HD|RX (?:Vega|[45]\d0|5[567]00)|Vega)\b"
    r"|GTX [789]\d\d|GT [67]\d\d|Quadro [KM]\d|Tesla [KM]\d"
    r"|(?<!U)HD Graphics|UHD Graphics P?6\d\d|Iris.* (?:Plus|Pro|6\d\d)"
)


def has_integer_dot(info: DeviceInfo) -> bool:
    """Return whether ``dot4I8Packed`` is one instruction of a device, as far as can be known.

    WGSL has it everywhere. wgpu hands it to Vulkan drivers as it is, which is one instruction on
    GPUs since about 2017 (NVIDIA's since Pascal, AMD's since RDNA 2, Intel's since generation 12);
    for older ones, known by their names here, drivers write it out as sixteen or more. On Metal,
    and on D3D12 with the compiler that wgpu takes by default, wgpu itself does. So the answer is
    yes for discrete and integrated devices through Vulkan of other names. What
    `wgpu-backend tune` measured outranks it, see `ops.rounding.is_faster`.
    """
    hardware = info.kind in ("discrete", "integrated") and info.api == "Vulkan"
    return hardware and _WITHOUT.search(info.name) is None
