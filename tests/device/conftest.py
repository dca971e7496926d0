from __future__ import annotations

from collections.abc import Iterator

import pytest

from wgpu_backend.device.adapters import Devices
from wgpu_backend.device.device import Device
from wgpu_backend.graph.capabilities import DeviceInfo


@pytest.fixture(scope="session")
def adapter() -> DeviceInfo:
    """The best adapter of this machine."""
    best = Devices()[0]
    if best.kind == "cpu":
        pytest.skip("no GPU adapter here: install a Vulkan driver, lavapipe for example")
    return best


@pytest.fixture(scope="session")
def device(adapter: DeviceInfo) -> Iterator[Device]:
    with Device.open(adapter) as opened:
        yield opened


@pytest.fixture(scope="session", params=["native", "plain"])
def either(request: pytest.FixtureRequest, adapter: DeviceInfo) -> Iterator[Device]:
    """A device with the fast path into the C library, then one without."""
    with Device.open(adapter, native=request.param == "native") as opened:
        yield opened


@pytest.fixture
def fresh(adapter: DeviceInfo) -> Iterator[Device]:
    """A device of one test's own, to count on or to break."""
    with Device.open(adapter) as opened:
        yield opened
