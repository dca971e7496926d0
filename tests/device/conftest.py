from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.implementations import ON_DAWN
from wgpu_backend.device.adapters import Devices
from wgpu_backend.device.device import Device
from wgpu_backend.graph.capabilities import DeviceInfo


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out, on Dawn, the plain path through wgpu-py's methods, which it does not have."""
    if ON_DAWN:
        for item in items:
            params = getattr(getattr(item, "callspec", None), "params", {})
            plain = params.get("native") is False or params.get("fast") is False
            if plain or params.get("either") == "plain":
                item.add_marker(pytest.mark.skip(reason="Dawn is always called directly"))


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
