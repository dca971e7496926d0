"""The measured speed of what computes on the CPU, and its file."""

from dataclasses import replace

import pytest

from wgpu_backend.device.adapters import numpy_device
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.calibration import host_speed
from wgpu_backend.ml.calibration.host_speed import measure_speed, recall_speed, remember_speed
from wgpu_backend.ml.calibration.implementations import Sizes

SMALL = Sizes(width=256, layers=2, rounds=2)
SOFT = DeviceInfo("vulkan:1", "Soft", kind="software", api="Vulkan", driver="one 1.0")


def test_bytes_count_as_the_device_stores_them(monkeypatch):
    """Two weights of 256 x 256 in f32, by a clock on which each run takes two seconds."""
    ticks = iter(range(0, 100, 2))
    monkeypatch.setattr(host_speed.time, "perf_counter", lambda: next(ticks))
    assert measure_speed(numpy_device(), SMALL) == 2 * 256 * 256 * 4 / 2


@pytest.mark.gpu
def test_an_adapter_reads_blocks_of_four_bits(full, monkeypatch):
    ticks = iter(range(0, 1000, 2))
    monkeypatch.setattr(host_speed.time, "perf_counter", lambda: next(ticks))
    assert measure_speed(full.info, SMALL, self_test=False) % (256 * 256 // 32 * 18) == 0


def test_speeds_are_kept_by_driver(tmp_path):
    path = tmp_path / "speeds.json"
    assert recall_speed(SOFT, path) is None
    remember_speed(SOFT, 3e9, path)
    remember_speed(numpy_device(), 2e9, path)
    assert (recall_speed(SOFT, path), recall_speed(numpy_device(), path)) == (3e9, 2e9)
    assert recall_speed(replace(SOFT, id="vulkan:3"), path) == 3e9
    assert recall_speed(replace(SOFT, driver="one 2.0"), path) is None


@pytest.mark.parametrize("value", ["fast", -1.0, 0.0, None, [1.0], float("inf"), float("nan")])
def test_a_damaged_file_has_no_speed(tmp_path, value):
    path = tmp_path / "speeds.json"
    remember_speed(SOFT, value, path)
    assert recall_speed(SOFT, path) is None
