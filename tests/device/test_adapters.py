from __future__ import annotations

import subprocess
import sys

import pytest

from wgpu_backend.device.adapters import DeviceList, Devices, describe, merge_apis
from wgpu_backend.device.device import Device
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import DeviceInfo, Kind


def entry(id: str, name: str, kind: Kind = "discrete", api: str = "Vulkan") -> DeviceInfo:
    vendor = "NVIDIA" if "RTX" in name else "Intel"
    return DeviceInfo(id, name, vendor=vendor, kind=kind, api=api)


LIST = DeviceList(
    [
        entry("vulkan:1", "GeForce RTX 4090"),
        entry("vulkan:2", "GeForce RTX 2070"),
        entry("vulkan:0", "UHD Graphics 620", "integrated"),
        entry("vulkan:3", "llvmpipe (LLVM 15)", "software"),
        entry("cpu", "NumPy", "cpu", "NumPy"),
    ]
)


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("vulkan:2", "vulkan:2"),
        ("0", "vulkan:1"),
        ("nvidia", "vulkan:1"),
        ("2070", "vulkan:2"),
        ("discrete", "vulkan:1"),
        ("Discrete:1", "vulkan:2"),
        ("integrated", "vulkan:0"),
        ("vulkan", "vulkan:1"),
        ("lavapipe", "vulkan:3"),
        ("Vulkan3", "vulkan:3"),
        ("none", "cpu"),
        ("llvmpipe", "vulkan:3"),
        ("software", "vulkan:3"),
        ("software:0", "vulkan:3"),
        ("cpu:0", "cpu"),
        ("cpu", "cpu"),
        ("numpy", "cpu"),
    ],
)
def test_a_device_is_found_as_people_name_it(text: str, id: str):
    assert LIST.find(text).id == id


@pytest.mark.parametrize("text", ["amd", "discrete:2", "9", "", "metal:0", "discrete:x"])
def test_an_unknown_device_is_refused_with_the_list(text: str):
    with pytest.raises(DeviceError, match=r"GeForce RTX 4090 \(discrete, Vulkan\).*cpu NumPy"):
        LIST.find(text)


def test_a_device_may_be_its_position_or_itself():
    assert LIST.find(2) is LIST[2]
    assert LIST.find(LIST[3]) is LIST[3]
    for strange in (1.5, True, None, b"cpu"):
        with pytest.raises(DeviceError, match="names no device, needs an id"):
            LIST.find(strange)


def test_one_card_seen_through_three_apis_is_listed_once():
    seen = [
        entry("opengl:0", "NVIDIA GeForce RTX 4090/PCIe/SSE2", api="OpenGL"),
        entry("d3d12:0", "NVIDIA GeForce RTX 4090", api="D3D12"),
        entry("vulkan:0", "NVIDIA GeForce RTX 4090"),
    ]
    assert [info.id for info in merge_apis(seen)] == ["vulkan:0"]


def test_two_equal_cards_stay_two():
    twins = [
        entry(f"{api.lower()}:{n}", "GeForce RTX 4090", api=api)
        for api in ("Vulkan", "D3D12")
        for n in (0, 1)
    ]
    assert [info.id for info in merge_apis(twins)] == ["vulkan:0", "vulkan:1"]


def test_a_card_that_only_a_lesser_api_sees_is_kept():
    seen = [entry("opengl:0", "Old Radeon", "unknown", "OpenGL"), entry("vulkan:0", "RTX")]
    assert [info.id for info in merge_apis(seen)] == ["vulkan:0", "opengl:0"]


def test_gpus_come_before_software():
    seen = [
        entry("vulkan:0", "llvmpipe", "software"),
        entry("opengl:0", "Radeon", "unknown", "OpenGL"),
    ]
    assert [info.id for info in merge_apis(seen)] == ["opengl:0", "vulkan:0"]


def test_the_numpy_device_is_always_last():
    assert Devices()[-1].kind == "cpu"
    assert sum(info.kind == "cpu" for info in Devices()) == 1


def test_a_kind_has_one_name_wherever_it_is_said():
    rasteriser, numpy = LIST[3], LIST[4]
    assert LIST.find(rasteriser.kind) is rasteriser
    assert LIST.find(numpy.kind) is numpy
    assert describe(rasteriser) == "vulkan:3 llvmpipe (LLVM 15) (software, Vulkan)"
    assert describe(numpy) == "cpu NumPy (cpu, NumPy)"


def test_the_numpy_device_is_not_opened():
    with pytest.raises(DeviceError, match="lavapipe"):
        Device.open("cpu")


@pytest.mark.gpu
def test_an_adapter_is_described(adapter: DeviceInfo):
    assert adapter.name
    assert adapter.api in ("Vulkan", "Metal", "D3D12", "OpenGL")
    assert adapter.limits["max-buffer-size"] >= 256 << 20
    assert adapter.features
    assert adapter.driver
    assert adapter.name == Devices().find(adapter.id).name


@pytest.mark.gpu
def test_a_device_that_is_gone_is_refused(adapter: DeviceInfo):
    with pytest.raises(DeviceError, match="is gone"):
        Device.open(DeviceInfo("vulkan:99", "Unplugged", kind="discrete", api="Vulkan"))


def test_threads_may_ask_for_devices_at_once():
    code = """
import threading
from wgpu_backend.device.adapters import Devices
def ask():
    for _ in range(8): Devices()
threads = [threading.Thread(target=ask) for _ in range(2)]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:1000]
