"""Memory of cards as their drivers report it: files of amdgpu, and a library like NVIDIA's."""

import sys
from dataclasses import replace

import pytest

from wgpu_backend.device import gpu_memory
from wgpu_backend.device.dawn import pick_local_heap
from wgpu_backend.device.gpu_memory import (
    CardMemory,
    add_memory,
    amd_cards,
    current_memory,
    nvidia_cards,
)
from wgpu_backend.graph.capabilities import DeviceInfo

GIB = 1 << 30
RTX = "10de:2684"


class FakeNvml:
    """Cards as (bus, device's number, total, free); no memory where total is None."""

    def __init__(self, *cards, counts=0):
        self.cards, self.counts = cards, counts

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.cards)
        return self.counts

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = index.value + 100
        return 0

    def nvmlDeviceGetPciInfo_v3(self, handle, info):
        bus, number, *_ = self.cards[handle.value - 100]
        info._obj.bus, info._obj.pci_device_id = bus, number << 16 | 0x10DE
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, memory):
        _, _, total, free = self.cards[handle.value - 100]
        if total is None:
            return 3  # not supported
        memory._obj.total, memory._obj.free, memory._obj.used = total, free, total - free
        return 0


def test_nvidia_reports_each_card_and_some_no_memory():
    nvml = FakeNvml((0x41, 0x2684, 24 * GIB, 20 * GIB), (1, 0x2504, None, None), (1, 1, 5, 4))
    assert list(nvidia_cards(nvml)) == [
        CardMemory(RTX, "0000:41:00.0", 24 * GIB, 20 * GIB),
        CardMemory("10de:0001", "0000:01:00.0", 5, 4),
    ]
    assert list(nvidia_cards(FakeNvml((1, 1, 5, 4), counts=9))) == []


def test_structures_are_those_of_the_header():
    """Offsets that follow from the order of fields in nvml.h."""
    assert gpu_memory._PciInfo.pci_device_id.offset == 28
    assert (gpu_memory._PciInfo.bus_id.offset, gpu_memory.ctypes.sizeof(gpu_memory._PciInfo)) == (
        36,
        68,
    )
    assert gpu_memory.ctypes.sizeof(gpu_memory._Memory) == 24


def card_folder(drm, name, slot, **files):
    device = drm.parent / "devices" / slot
    device.mkdir(parents=True)
    for file, text in files.items():
        (device / file).write_text(f"{text}\n", encoding="ascii")
    (drm / name).mkdir(parents=True)
    (drm / name / "device").symlink_to(device)


@pytest.mark.skipif(sys.platform == "win32", reason="needs symbolic links")
def test_amd_reports_memory_in_files(tmp_path):
    drm = tmp_path / "drm"
    radeon = {"vendor": "0x1002", "device": "0x744c"}
    used = {"mem_info_vram_total": 24 * GIB, "mem_info_vram_used": GIB}
    card_folder(drm, "card1", "0000:03:00.0", **radeon, **used)
    # Connectors, render nodes, other drivers, and files that hold something else.
    (drm / "card1-DP-1").mkdir()
    (drm / "renderD128").mkdir()
    card_folder(drm, "card0", "0000:00:02.0", vendor="0x8086", device="0x9a49")
    broken = {"mem_info_vram_total": "much", "mem_info_vram_used": ""}
    card_folder(drm, "card2", "0000:04:00.0", **radeon, **broken)
    assert list(amd_cards(drm)) == [
        CardMemory("1002:744c", "0000:03:00.0", 24 * GIB, 23 * GIB),
    ]
    assert list(amd_cards(tmp_path / "none")) == []


def adapter(name, pci_id=RTX, kind="discrete", api="Vulkan"):
    return DeviceInfo(name, name, kind=kind, api=api, pci_id=pci_id)


# In no order, as NVML and files give them one after the other.
CARDS = [
    CardMemory(RTX, "0000:41:00.0", 24, 5),
    CardMemory(RTX, "0000:01:00.0", 24, 20),
    CardMemory("1002:744c", "0000:03:00.0", 16, 12),
]


def memories(infos, cards=CARDS):
    return [(i.total_memory, i.free_memory, i.pci_slot) for i in add_memory(infos, cards)]


def test_equal_cards_are_told_apart_by_their_slots():
    infos = [adapter("vulkan:0"), adapter("vulkan:1", "1002:744c"), adapter("vulkan:2")]
    wanted = [(24, 20, "0000:01:00.0"), (16, 12, "0000:03:00.0"), (24, 5, "0000:41:00.0")]
    assert memories(infos) == wanted
    # Each API lists all of them.
    both = [*infos, adapter("d3d12:0", api="D3D12"), adapter("d3d12:1", api="D3D12")]
    assert memories(both) == [*wanted, wanted[0], wanted[2]]


def test_where_a_driver_hides_one_of_equal_cards_the_fullest_counts():
    assert memories([adapter("vulkan:0")]) == [(24, 5, "")]


def test_what_has_no_memory_of_its_own_or_is_not_known_stays_so():
    infos = [
        adapter("vulkan:0", "8086:9a49"),
        adapter("vulkan:1", "1002:744c", kind="integrated"),
        adapter("vulkan:2", "", kind="software"),
    ]
    assert memories(infos) == [(None, None, "")] * 3
    assert memories([adapter("vulkan:0")], []) == [(None, None, "")]
    heap = replace(adapter("vulkan:0"), total_memory=7)
    assert memories([heap], []) == [(7, None, "")]


def test_free_memory_is_read_anew(monkeypatch):
    infos = add_memory([adapter("vulkan:0"), adapter("vulkan:1")], CARDS)
    now = [replace(card, free=card.free - 1) for card in CARDS]
    monkeypatch.setattr(gpu_memory, "read_cards", lambda: now)
    assert [current_memory(info) for info in infos] == [(24, 19), (24, 4)]
    hidden = add_memory([adapter("vulkan:0")], CARDS)
    assert [current_memory(info) for info in hidden] == [(24, 4)]
    now.clear()
    assert current_memory(infos[0]) == (24, None)
    assert current_memory(replace(adapter("vulkan:0"), total_memory=7)) == (7, None)
    monkeypatch.setattr(gpu_memory, "host_memory", lambda: (9, 8))
    assert current_memory(adapter("vulkan:0", kind="software")) == (9, 8)


def test_the_largest_heap_of_the_device_is_its_memory():
    """As a card with resizable and one with a small window list them, in Dawn's words."""
    own, window = (
        {"size": 8 * GIB, "properties": ["device-local"]},
        ["device-local", "host-visible"],
    )
    heaps = [own, {"size": 16 * GIB, "properties": ["host-visible"]}]
    assert pick_local_heap([*heaps, {"size": GIB >> 2, "properties": window}]) == 8 * GIB
    assert pick_local_heap(heaps[1:]) is None
    assert pick_local_heap(()) is None
