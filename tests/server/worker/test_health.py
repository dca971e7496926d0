"""Devices that are lost repeatedly are no longer used."""

import pytest

from wgpu_backend.errors import BackendError, DeviceLost, NoDeviceLeft, OutOfMemory
from wgpu_backend.server.worker import remote
from wgpu_backend.server.worker.health import Health
from wgpu_backend.server.worker.messages import LoadSpec
from wgpu_backend.server.worker.remote import Workers

LOST = DeviceLost("gone")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_three_losses_within_a_minute_lead_to_the_next_device(caplog):
    health = Health(["a", "b"], clock := Clock())
    for at in (0, 30):
        clock.now = at
        health.lost("a", LOST)
        assert health.choose() == "a"
    clock.now = 59.9
    health.lost("a", LOST)
    assert health.choose() == "b"
    assert "a was lost 3 times within 60 s, last: gone; using b" in caplog.text


def test_losses_far_apart_are_forgiven():
    health = Health(["a"], clock := Clock())
    for at in range(0, 310, 31):
        clock.now = at
        health.lost("a", LOST)
    assert health.choose() == "a"


def test_where_none_is_left_that_is_told():
    health = Health(["a"], Clock())
    for _ in range(4):
        health.lost("a", LOST)
    with pytest.raises(NoDeviceLeft, match="no device is left: a was lost 3 times"):
        health.choose()


class Named:
    entry = type("Named", (), {"name": "tale"})


def workers_on(*devices):
    return Workers(
        Health(devices), lambda _, __, device: LoadSpec("p", device), 4, spare_seconds=None
    )


def test_loading_goes_on_to_the_next_device_and_ends(monkeypatch: pytest.MonkeyPatch):
    tried = []

    def open_worker(name, spec, max_queue, lost, started, hang_seconds, start):
        tried.append(spec.device)
        if spec.device == "b":
            return name
        raise LOST

    monkeypatch.setattr(remote, "open_worker", open_worker)
    assert workers_on("a", "b")(Named(), None) == "tale"
    assert tried == ["a", "a", "a", "b"]
    with pytest.raises((DeviceLost, NoDeviceLeft)):
        workers_on("a")(Named(), None)


def test_an_error_of_the_model_is_no_loss(monkeypatch: pytest.MonkeyPatch):
    def open_worker(*_):
        raise BackendError("no such file")

    monkeypatch.setattr(remote, "open_worker", open_worker)
    workers = workers_on("a")
    for _ in range(5):
        with pytest.raises(BackendError, match="no such file"):
            workers(Named(), None)
    assert workers.health.choose() == "a"


def test_what_does_not_fit_the_devices_that_are_left_is_told_why(monkeypatch: pytest.MonkeyPatch):
    tried = []

    def open_worker(name, spec, *_):
        tried.append(spec.device)
        raise LOST if spec.device == "a" else OutOfMemory("it does not fit", "a table")

    monkeypatch.setattr(remote, "open_worker", open_worker)
    why = "it does not fit; the devices are fewer than at the start: a was lost 3 times within 60 s"
    with pytest.raises(OutOfMemory, match=why) as caught:
        workers_on("a", "b")(Named(), None)
    assert (caught.value.report, tried) == ("a table", ["a", "a", "a", "b"])
    with pytest.raises(OutOfMemory, match=r"it does not fit$"):
        workers_on("b")(Named(), None)
