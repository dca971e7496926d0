"""Pushing to a registry on this machine, which takes it well or badly."""

import hashlib
import json
import os
from pathlib import Path

import httpx2
import pytest

from tests.files.store.registry import Registry
from wgpu_backend.errors import ModelNotFound, StoreError
from wgpu_backend.files.store.manifest import CONFIG_TYPE, Manifest
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.pull import Progress, Puller
from wgpu_backend.files.store.push import PushCancelled, Pusher
from wgpu_backend.files.store.store import Store

CONTENT = os.urandom(250_001)
PART = 100_000


@pytest.fixture
def registry():
    with Registry() as registry:
        registry.blobs.clear()
        yield registry


@pytest.fixture
def name(registry) -> ModelName:
    return ModelName.parse(registry.name)


@pytest.fixture
def store(tmp_path: Path, name: ModelName) -> Store:
    store = Store(tmp_path / "models")
    layers = (store.add_bytes("model", CONTENT), store.add_bytes("params", b'{"seed": 5}'))
    store.put(name, Manifest(store.add_bytes(CONFIG_TYPE, b"{}"), layers))
    return store


def pusher(store: Store, **more) -> Pusher:
    return Pusher(store, **{"insecure": True, "wait": lambda _: None, "part": PART, **more})


def whole(registry, store: Store, name: ModelName) -> bool:
    """Whether the registry has all blobs and the manifest, byte for byte."""
    manifest = store.entry(name).manifest
    taken = registry.taken["/v2/me/model/manifests/tag"]
    blobs = {layer.digest for layer in manifest.blobs}
    return taken == manifest.encode() and blobs == set(registry.blobs)


def test_a_model_is_pushed_in_chunks_and_only_once(registry, store: Store, name):
    told: list[Progress] = []
    pusher(store, report=told.append).push(name)
    assert whole(registry, store, name)
    assert [told[0].status, told[-1].status] == ["retrieving manifest", "success"]
    done = [p.completed for p in told if p.total == len(CONTENT)]
    assert done == sorted(done)
    assert done[-1] == len(CONTENT)
    assert registry.asked[:3] == ["PATCH 0-99999", "PATCH 100000-199999", "PATCH 200000-250000"]
    count = len(registry.asked)
    pusher(store).push(name)
    assert len(registry.asked) == count
    assert list((store.root / ".uploads").iterdir()) == []


def test_what_was_pushed_is_pulled(registry, store: Store, name, tmp_path: Path):
    pusher(store).push(name)
    registry.manifest = registry.taken["/v2/me/model/manifests/tag"]
    other = Store(tmp_path / "other")
    found = Puller(other, insecure=True).pull(name)
    assert other.blob(found.manifest.layers[0].digest).read_bytes() == CONTENT


@pytest.mark.parametrize("fault", ["cut once", "busy"])
def test_a_bad_server_is_borne(registry, store: Store, name, fault: str):
    registry.fault = fault
    pusher(store).push(name)
    assert whole(registry, store, name)
    again = "PATCH 50000-149999" if fault == "cut once" else "PATCH 0-99999"
    assert registry.asked[1] == again


def test_chunks_go_to_a_storage_where_the_registry_says(registry, store: Store, name):
    registry.fault = "storage"
    pusher(store).push(name)
    assert whole(registry, store, name)
    parts = [CONTENT[i : i + PART] for i in range(0, len(CONTENT), PART)]
    sums = b"".join(hashlib.md5(part).digest() for part in parts)
    assert registry.etags[0] == f"{hashlib.md5(sums).hexdigest()}-3"


def test_a_push_that_was_called_off_goes_on(registry, store: Store, name):
    told: list[Progress] = []

    def begun() -> bool:
        return bool(told) and told[-1].completed > PART

    with pytest.raises(PushCancelled):
        pusher(store, report=told.append, cancelled=begun).push(name)
    sent = len(registry.uploads["0"])
    assert PART <= sent < len(CONTENT)
    registry.asked.clear()
    pusher(store).push(name)
    assert whole(registry, store, name)
    assert registry.asked[0].startswith(f"PATCH {sent}-")


def test_an_upload_that_the_registry_forgot_begins_anew(registry, store: Store, name):
    told: list[Progress] = []
    with pytest.raises(PushCancelled):
        pusher(store, cancelled=lambda: len(told) > 3, report=told.append).push(name)
    registry.uploads.clear()
    registry.uploads["other"] = b""
    pusher(store).push(name)
    assert whole(registry, store, name)


def test_what_goes_wrong_is_told(registry, store: Store, name):
    with pytest.raises(ModelNotFound, match="not found"):
        pusher(store).push(ModelName.parse(f"{registry.name}x"))
    with pytest.raises(StoreError, match="http is not encrypted; --insecure allows it"):
        pusher(store, insecure=False).push(name)
    registry.fault = "no account"
    with pytest.raises(StoreError, match=r"rejects the upload: HTTP status 401 \(who are you\)"):
        pusher(store).push(name)
    assert registry.taken == {}
    registry.server.server_close()
    waited: list[float] = []
    registry.server.shutdown()
    with pytest.raises(StoreError, match="after 6 tries"):
        pusher(store, wait=waited.append).push(name)
    assert waited == [1, 2, 4, 8, 16]


def test_other_bytes_are_refused_by_the_registry(registry, store: Store, name):
    layer = store.entry(name).manifest.layers[0]
    store.blob(layer.digest).write_bytes(bytes(len(CONTENT)))
    with pytest.raises(StoreError, match=r"HTTP status 400 \(other bytes\)"):
        pusher(store).push(name)
    assert "/v2/me/model/manifests/tag" not in registry.taken
    assert json.loads(store.entry(name).manifest.encode())["schemaVersion"] == 2


def test_a_registry_without_encryption_is_told_at_once(store: Store, name):
    def reset(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")

    waits: list[float] = []
    client = httpx2.Client(transport=httpx2.MockTransport(reset))
    layer = store.entry(name).manifest.blobs[0]
    with client, pytest.raises(StoreError, match=r"push --insecure http://"):
        pusher(store, wait=waits.append)._blob(client, name, layer)
    assert waits == []
