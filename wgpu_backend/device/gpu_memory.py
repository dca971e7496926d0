"""The memory of graphics cards, which WebGPU does not report: from their drivers.

NVIDIA's library NVML knows it on Linux and Windows, and the driver amdgpu on Linux, in files. Both
say which PCI device a card is; WebGPU says which model of card an adapter is. Equal cards are kept
apart by their order, which is that of their PCI slots in both.
"""

from __future__ import annotations

import ctypes
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from wgpu_backend.device.memory import host_memory
from wgpu_backend.graph.capabilities import DeviceInfo

_DRM = Path("/sys/class/drm")
_CARD = re.compile(r"card\d+")
_NVML = (
    ("nvml.dll",)
    if sys.platform == "win32"
    else ("libnvidia-ml.so.1", "/usr/lib/wsl/lib/libnvidia-ml.so.1")
)
_ON_HOST = ("software", "cpu")
# Their memory is the host's, and what a driver says is the part that the firmware set aside.
_SHARING = (*_ON_HOST, "integrated")


@dataclass(frozen=True, slots=True)
class CardMemory:
    """The memory of one card.

    Parameters
    ----------
    pci_id : str
        Vendor and device: ``10de:2684``.
    slot : str
        PCI address: ``0000:01:00.0``.
    total, free : int
        Bytes.
    """

    pci_id: str
    slot: str
    total: int
    free: int


class _PciInfo(ctypes.Structure):
    """``nvmlPciInfo_t`` of NVML's header."""

    _fields_ = (
        ("legacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pci_device_id", ctypes.c_uint),
        ("pci_subsystem_id", ctypes.c_uint),
        ("bus_id", ctypes.c_char * 32),
    )


class _Memory(ctypes.Structure):
    """``nvmlMemory_t`` of NVML's header, in bytes."""

    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


@cache
def _load_nvml() -> Any:  # noqa: ANN401
    """Return NVML, ready for calls; None without NVIDIA's driver."""
    for name in _NVML:
        try:
            library: Any = ctypes.CDLL(name)
            return library if library.nvmlInit_v2() == 0 else None
        # AttributeError: a library of that name that is something else.
        except (OSError, AttributeError):
            continue
    return None


def nvidia_cards(nvml: Any) -> Iterator[CardMemory]:  # noqa: ANN401
    """Yield the cards that NVML lists, without those that do not report memory.

    Parameters
    ----------
    nvml : object
        The library; its functions return 0 where they succeed.
    """
    count = ctypes.c_uint()
    if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return
    for index in range(count.value):
        handle, pci, memory = ctypes.c_void_p(), _PciInfo(), _Memory()
        failed = (
            nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
            or nvml.nvmlDeviceGetPciInfo_v3(handle, ctypes.byref(pci))
            or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
        )
        if not failed:
            vendor, device = pci.pci_device_id & 0xFFFF, pci.pci_device_id >> 16
            slot = f"{pci.domain:04x}:{pci.bus:02x}:{pci.device:02x}.0"
            yield CardMemory(f"{vendor:04x}:{device:04x}", slot, memory.total, memory.free)


def amd_cards(drm: Path = _DRM) -> Iterator[CardMemory]:
    """Yield the cards of the driver amdgpu; others have no such files.

    Parameters
    ----------
    drm : Path
        The kernel's folder of graphics devices.
    """
    try:
        cards = [path for path in drm.iterdir() if _CARD.fullmatch(path.name)]
    except OSError:
        return
    for card in cards:
        device = card / "device"
        try:
            total, used = (_read(device / f"mem_info_vram_{name}") for name in ("total", "used"))
            vendor, model = (_read(device / name) for name in ("vendor", "device"))
            slot = device.resolve().name
        except (OSError, ValueError):
            continue
        yield CardMemory(f"{vendor:04x}:{model:04x}", slot, total, max(0, total - used))


def _read(path: Path) -> int:
    """Return the number in a file: decimal, or hexadecimal after 0x."""
    return int(path.read_text(encoding="ascii"), 0)


def read_cards() -> list[CardMemory]:
    """Return the cards whose drivers report their memory."""
    nvml = _load_nvml()
    return [*(nvidia_cards(nvml) if nvml is not None else ()), *amd_cards()]


def add_memory(
    infos: Sequence[DeviceInfo], cards: Iterable[CardMemory] | None = None
) -> list[DeviceInfo]:
    """Return an implementation's adapters with the memory of their cards.

    Where a driver hides some of several equal cards, each counts as the one with the least free
    memory.

    Parameters
    ----------
    cards : iterable of CardMemory or None
        None to ask the drivers.
    """
    mine = [info for info in infos if info.pci_id and info.kind not in _SHARING]
    found = sorted(cards if cards is not None else read_cards() if mine else (), key=_slot)
    return [_with_memory(info, mine, found) if info in mine else info for info in infos]


def _slot(card: CardMemory) -> str:
    return card.slot


def _with_memory(
    info: DeviceInfo, infos: Sequence[DeviceInfo], cards: Sequence[CardMemory]
) -> DeviceInfo:
    equal = [card for card in cards if card.pci_id == info.pci_id]
    same = [other.id for other in infos if (other.api, other.pci_id) == (info.api, info.pci_id)]
    if not equal:
        return info
    is_known = len(equal) == len(same)
    card = equal[same.index(info.id)] if is_known else min(equal, key=lambda each: each.free)
    slot = card.slot if is_known else ""
    return replace(info, total_memory=card.total, free_memory=card.free, pci_slot=slot)


def current_memory(info: DeviceInfo) -> tuple[int | None, int | None]:
    """Return the total bytes of a device and those that are free now; None if not reported."""
    if info.kind in _ON_HOST:
        return host_memory() or (info.total_memory, None)
    if info.free_memory is None:
        return info.total_memory, None
    equal = [card for card in read_cards() if card.pci_id == info.pci_id]
    equal = [card for card in equal if card.slot == info.pci_slot] or equal
    least = min(equal, key=lambda card: card.free, default=None)
    return (info.total_memory, None) if least is None else (least.total, least.free)
