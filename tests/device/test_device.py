from __future__ import annotations

import numpy as np
import pytest

from tests.device.kernels import floats, shader
from tests.implementations import wgpu_native_only
from wgpu_backend.device.adapters import BASELINE_LIMITS
from wgpu_backend.device.device import CHUNK_NBYTES, Device
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import DeviceInfo

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("nbytes", [1, 2, 3, 4, 5, 255, 256, 257, 4099, 1 << 20])
def test_bytes_come_back_as_written(either: Device, nbytes: int):
    data = np.random.default_rng(nbytes).bytes(nbytes)
    buffer = either.buffer(nbytes, purpose="inputs")
    either.write(buffer, data)
    assert data == either.read(buffer)
    buffer.release()


def test_more_than_a_chunk_comes_back_as_written(either: Device):
    data = np.random.default_rng(0).bytes(2 * CHUNK_NBYTES + 5)
    buffer = either.buffer(len(data), purpose="weights")
    either.write(buffer, data)
    assert data == either.read(buffer)
    buffer.release()


def test_a_part_is_written_and_read(either: Device):
    buffer = either.buffer(32, purpose="inputs")
    either.write(buffer, bytes(range(32)))
    either.write(buffer, b"\xff" * 8, 12)
    expected = bytes(range(12)) + b"\xff" * 8 + bytes(range(20, 32))
    assert expected == either.read(buffer)
    assert expected[8:23] == either.read(buffer, 8, 15)
    buffer.release()


def test_an_odd_write_zeroes_up_to_the_next_word(either: Device):
    buffer = either.buffer(8, purpose="inputs")
    either.write(buffer, b"\xff" * 8)
    either.write(buffer, b"\x01\x02\x03")
    assert either.read(buffer) == b"\x01\x02\x03\x00\xff\xff\xff\xff"
    buffer.release()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.int64, np.uint8])
def test_arrays_of_any_type_and_stride_are_written(device: Device, dtype: type[np.generic]):
    array = np.arange(24).reshape(4, 6).astype(dtype)[::2, ::3].T
    buffer = device.buffer(array.nbytes, purpose="inputs")
    device.write(buffer, array)
    assert array.tobytes() == device.read(buffer)
    buffer.release()


def test_a_strided_view_is_written(device: Device):
    buffer = device.buffer(4, purpose="inputs")
    device.write(buffer, memoryview(b"a.b.c.d.")[::2])
    assert device.read(buffer) == b"abcd"
    buffer.release()


def test_nothing_is_written_and_read(device: Device):
    buffer = device.buffer(4, purpose="inputs")
    device.write(buffer, np.empty(0, np.float32))
    assert device.read(buffer, 0, 0) == b""
    buffer.release()


def test_clear_zeroes_what_it_is_told(either: Device):
    buffer = floats(either, 4, start=1)
    either.clear(buffer, 4, 8)
    assert np.frombuffer(either.read(buffer), np.float32).tolist() == [1, 0, 0, 4]
    either.clear(buffer)
    assert bytes(16) == either.read(buffer)
    buffer.release()


@wgpu_native_only
def test_the_full_profile_has_what_the_adapter_has(device: Device, adapter: DeviceInfo):
    limits = adapter.limits
    assert limits["max-storage-buffer-binding-size"] == device.capabilities.max_binding_nbytes
    assert limits["max-buffer-size"] == device.capabilities.max_buffer_nbytes
    assert ("subgroup" in adapter.features) == device.capabilities.subgroups
    assert ("shader-f16" in adapter.features) == device.capabilities.f16
    assert ("shader-int64" in adapter.features) == device.capabilities.int64
    assert (adapter.kind == "software") == device.capabilities.software


def test_the_baseline_profile_has_what_every_device_has(adapter: DeviceInfo):
    with Device.open(adapter, profile="baseline") as baseline:
        found = baseline.capabilities
        assert not any((found.subgroups, found.f16, found.int64, found.timestamps))
        assert BASELINE_LIMITS["max-storage-buffer-binding-size"] == found.max_binding_nbytes
        assert BASELINE_LIMITS["max-buffer-size"] == found.max_buffer_nbytes
        assert found.max_storage_bindings == 8
        assert found.max_workgroup_nbytes == 16384
        assert found.max_workgroup_invocations == 256
        assert found.binding_alignment == 256


def test_an_unknown_profile_is_refused(adapter: DeviceInfo):
    with pytest.raises(DeviceError, match="needs full or baseline"):
        Device.open(adapter, profile="middling")  # pyright: ignore[reportArgumentType]


def test_closing_twice_is_harmless_and_a_closed_device_says_so(adapter: DeviceInfo):
    opened = Device.open(adapter)
    buffer = opened.buffer(16, purpose="inputs")
    opened.close()
    opened.close()
    assert opened.closed
    assert not buffer.alive
    buffer.release()
    for act in (
        lambda: opened.buffer(4, purpose="inputs"),
        lambda: opened.write(buffer, b"1234"),
        lambda: opened.read(buffer),
        lambda: opened.clear(buffer),
        lambda: opened.pipeline(shader()),
        lambda: opened.program([]),
        opened.wait,
    ):
        with pytest.raises(DeviceError, match="the device is closed"):
            act()


@pytest.mark.parametrize("offset", [1, 2, 3, 30])
def test_a_misaligned_offset_is_refused(device: Device, offset: int):
    buffer = device.buffer(64, purpose="inputs")
    with pytest.raises(DeviceError, match="a multiple of 4 is needed"):
        device.write(buffer, b"1234", offset)
    with pytest.raises(DeviceError, match="a multiple of 4 is needed"):
        device.read(buffer, offset, 4)
    buffer.release()


@pytest.mark.parametrize(("offset", "nbytes"), [(0, 65), (64, 4), (60, 8), (-4, 4), (68, None)])
def test_a_range_outside_the_buffer_is_refused(device: Device, offset: int, nbytes: int | None):
    buffer = device.buffer(64, purpose="inputs")
    with pytest.raises(DeviceError):
        device.read(buffer, offset, nbytes)
    with pytest.raises(DeviceError):
        device.clear(buffer, offset, nbytes)
    if nbytes is not None:
        with pytest.raises(DeviceError):
            device.write(buffer, bytes(nbytes), offset)
    buffer.release()


def test_a_buffer_of_another_device_is_refused(device: Device, fresh: Device):
    foreign = fresh.buffer(16, purpose="inputs")
    with pytest.raises(DeviceError, match="of another device"):
        device.write(foreign, b"1234")
