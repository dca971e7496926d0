"""Pulling from a registry on this machine, which serves well or badly."""

import hashlib
import os
import sys
import threading
from pathlib import Path

import httpx2
import pytest
from filelock import FileLock
from gguf import GGUFReader

from tests.builders import tiny_model
from tests.files.store.killed import run_killed
from tests.files.store.registry import Registry
from tests.patience import PATIENCE
from wgpu_backend.errors import ModelNotFound, StoreError
from wgpu_backend.files.store import pull
from wgpu_backend.files.store.files import sha256
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.pull import Progress, PullCancelled, Puller
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import open_stored

CONTENT = os.urandom(300_001)


@pytest.fixture
def registry():
    with Registry(CONTENT, b'{"seed": 5}') as registry:
        yield registry


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "models")


def puller(store: Store, **more) -> Puller:
    given = {"insecure": True, "wait": lambda _: None, "part_sizes": (50_000, 100_000), **more}
    return Puller(store, **given)


def called_off(store: Store, name: ModelName) -> None:
    """A pull that was called off when it had 120,000 bytes."""
    seen: list[int] = []
    off = puller(
        store,
        streams=1,
        report=lambda p: seen.append(p.completed),
        cancelled=lambda: max(seen) >= 120_000,
    )
    with pytest.raises(PullCancelled):
        off.pull(name)


def test_a_model_is_pulled_in_parts_and_only_once(registry, store: Store):
    told: list[Progress] = []
    name = ModelName.parse(registry.name)
    puller(store, report=told.append).pull(name)
    found = open_stored(store, name)
    assert found.path.read_bytes() == CONTENT
    assert found.parameters == {"seed": 5}
    assert [told[0].status, told[-1].status] == ["pulling manifest", "success"]
    done = [p.completed for p in told if p.total == len(CONTENT) and "pulling" in p.status]
    assert done == sorted(done)
    assert done[-1] == len(CONTENT)
    assert sum("bytes=" in asked for asked in registry.asked) == 7 + 2
    count = len(registry.asked)
    puller(store).pull(name)
    assert len(registry.asked) == count
    left = [p.name for p in (store.root / "blobs").iterdir()]
    assert all(len(each) == 71 for each in left)
    assert str(found.entry.name) == registry.name.removeprefix("http://")


@pytest.mark.parametrize(
    "fault", ["no ranges", "cut once", "too long", "busy", "few bytes", "endless"]
)
def test_a_bad_server_is_borne(registry, store: Store, fault: str):
    registry.fault = fault
    puller(store).pull(ModelName.parse(registry.name))
    assert open_stored(store, ModelName.parse(registry.name)).path.read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("cut", "after 6 tries"),
        ("wrong range", "needs 206 from"),
        ("other bytes", "its SHA-256 is"),
        ("bomb", "a manifest of over 4194304 bytes"),
        ("private", "no such model, or not for everybody .HTTP status 403"),
    ],
)
def test_a_worse_one_is_told_and_leaves_no_model(registry, store: Store, fault: str, message: str):
    registry.fault = fault
    name = ModelName.parse(registry.name)
    with pytest.raises(StoreError, match=message):
        puller(store).pull(name)
    assert list(store.entries()) == []
    registry.fault = ""
    puller(store).pull(name)
    assert open_stored(store, name).path.read_bytes() == CONTENT


def test_a_pull_that_was_called_off_goes_on_where_it_stopped(registry, store: Store):
    name = ModelName.parse(registry.name)
    called_off(store, name)
    assert list(store.entries()) == []
    first = len(registry.asked)
    puller(store).pull(name)
    assert open_stored(store, name).path.read_bytes() == CONTENT
    again = [asked for asked in registry.asked[first:] if "bytes=0-" in asked]
    assert len(again) == 2  # the small blobs alone


def test_a_pull_whose_registry_stalls_is_called_off_at_once(registry, store: Store, monkeypatch):
    monkeypatch.setattr(pull, "STALL_SECONDS", 10 * PATIENCE)
    registry.fault, off = "stalls", threading.Event()
    waiting = puller(
        store, report=lambda p: p.completed and off.set(), cancelled=off.is_set, streams=2
    )
    monkeypatch.setattr(pull, "_REPORT_EVERY", 1)
    with pytest.raises(PullCancelled):
        waiting.pull(ModelName.parse(registry.name))


def test_who_waits_for_another_pull_can_be_called_off(registry, store: Store):
    asked = []
    with FileLock(store.root / ".locks" / f"sha256-{hashlib.sha256(CONTENT).hexdigest()}"):
        waiting = puller(store, cancelled=lambda: asked.append(1) or len(asked) > 2)
        with pytest.raises(PullCancelled):
            waiting.pull(ModelName.parse(registry.name))


def test_what_is_there_needs_no_room(registry, store: Store, monkeypatch):
    name = ModelName.parse(registry.name)
    called_off(store, name)

    class Usage:
        free = len(CONTENT) + 36 - 100_000

    monkeypatch.setattr("wgpu_backend.files.store.store.shutil.disk_usage", lambda _: Usage)
    puller(store).pull(name)


def test_no_redirect_leads_out_of_encryption(store: Store):
    request = httpx2.Request("GET", "http://elsewhere/blob")
    with pytest.raises(StoreError, match="http://elsewhere/blob: http is not encrypted"):
        puller(store, insecure=False)._require_allowed(request)


def test_what_is_not_there_or_not_allowed(registry, store: Store, monkeypatch):
    base = registry.name.removesuffix(":tag")
    with pytest.raises(ModelNotFound, match="no such model"):
        puller(store).pull(ModelName.parse(f"{base}:other"))
    with pytest.raises(StoreError, match="--insecure allows"):
        puller(store, insecure=False).pull(ModelName.parse(base))
    with pytest.raises(StoreError, match="read-only"):
        puller(Store(store.root, read_only=True)).pull(ModelName.parse(registry.name))
    with pytest.raises(StoreError, match="after 6 tries"):
        puller(store).pull(ModelName.parse("http://127.0.0.1:1/a/b"))

    class Usage:
        free = 1000

    monkeypatch.setattr("wgpu_backend.files.store.store.shutil.disk_usage", lambda _: Usage)
    with pytest.raises(StoreError, match="300036 bytes are needed, the disk has 1000"):
        puller(store).pull(ModelName.parse(registry.name))


def test_a_full_disk_keeps_what_is_there(registry, store: Store, monkeypatch):
    name = ModelName.parse(registry.name)
    real, written = Puller._write, []

    def write(self, file, part, chunk):
        if sum(written) > 120_000:
            raise OSError(28, "No space left on device")
        written.append(len(chunk))
        real(self, file, part, chunk)

    monkeypatch.setattr(Puller, "_write", write)
    with pytest.raises(OSError, match="No space left"):
        puller(store, streams=1).pull(name)
    assert list(store.entries()) == []
    monkeypatch.undo()
    puller(store).pull(name)
    assert open_stored(store, name).path.read_bytes() == CONTENT


KILLED = """
from wgpu_backend.files.store import pull
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
pull.Puller._write = counted(pull.Puller._write)
pull._SAVED_EVERY = 1
made = pull.Puller(Store(Path(sys.argv[1])), insecure=True, streams=1, part_sizes=(50_000, 10**5))
made.pull(ModelName.parse(sys.argv[2]))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("after", [3, 30, 60, 80, 95, 110])
def test_a_pull_that_is_killed_leaves_no_half_file_and_goes_on(registry, store: Store, after: int):
    run_killed(KILLED, str(store.root), registry.name, after=after)
    for path in (store.root / "blobs").glob("sha256-*"):
        assert "partial" in path.name or path.name == f"sha256-{sha256(path)}"
    for entry in store.entries():
        assert open_stored(store, entry.name).path.read_bytes() == CONTENT
    before = registry.served
    name = ModelName.parse(registry.name)
    puller(store).pull(name)
    assert open_stored(store, name).path.read_bytes() == CONTENT
    assert not list((store.root / "blobs").glob("*-partial*"))
    asked_again = registry.served - before
    assert asked_again <= len(CONTENT) + 36 - (100_000 if after >= 60 else 0)


def split_of(tmp_path: Path, folder: str = "Q4_0/") -> dict[str, bytes]:
    """Files of a repository with a split model and others, by name."""
    made = tmp_path / "made"
    made.mkdir()
    tiny_model(made / "Tiny-tag.gguf", tensors_per_part=9)
    found = {folder + path.name: path.read_bytes() for path in sorted(made.iterdir())}
    others = {f"mmproj-tag-0000{n}-of-00002.gguf": b"other" for n in (1, 2)}
    return {"README.md": b"words", **others, **found, "Tiny-Q8_0-00001-of-00002.gguf": b"half"}


def test_parts_of_a_split_file_become_one_model(registry, store: Store, tmp_path: Path):
    registry.fault, registry.files = "split", split_of(tmp_path)
    name, seen = ModelName.parse(registry.name), list[Progress]()
    puller(store, report=seen.append).pull(name)
    found = open_stored(store, name)
    tiny_model(tmp_path / "one.gguf")
    want, made = GGUFReader(tmp_path / "one.gguf"), GGUFReader(found.path)
    assert {t.name: t.data.tobytes() for t in want.tensors} == {
        t.name: t.data.tobytes() for t in made.tensors
    }
    assert found.details["family"] == "llama"
    assert seen[-1].status == "success"
    assert "merging 3 parts" in [each.status for each in seen]
    assert len(list((store.root / "blobs").iterdir())) == 2  # the model and its config
    count = len(registry.asked)
    puller(store).pull(name)
    assert len(registry.asked) == count


def test_parts_whose_digests_nobody_tells_are_pulled(registry, store: Store, tmp_path: Path):
    registry.fault, registry.files, registry.digests_told = "split", split_of(tmp_path), False
    name = ModelName.parse(registry.name)
    puller(store).pull(name)
    assert len(GGUFReader(open_stored(store, name).path).tensors) == 21


def test_a_changed_part_is_refused(registry, store: Store, tmp_path: Path, monkeypatch):
    registry.fault, registry.files = "split", split_of(tmp_path)
    listed = pull.list_files

    def changed(*given):
        found = listed(*given)
        registry.files["Q4_0/Tiny-tag-00002-of-00003.gguf"] = bytes(found[4].size)
        return found

    monkeypatch.setattr(pull, "list_files", changed)
    with pytest.raises(StoreError, match="its SHA-256 is"):
        puller(store).pull(ModelName.parse(registry.name))


def test_parts_that_the_hub_does_not_have_are_named(registry, store: Store, tmp_path: Path):
    registry.fault, registry.files = "split", split_of(tmp_path)
    del registry.files["Q4_0/Tiny-tag-00002-of-00003.gguf"]
    with pytest.raises(ModelNotFound, match=r"has no Q4_0/Tiny-tag-00002-of-00003.gguf$"):
        puller(store).pull(ModelName.parse(registry.name))


def test_a_tag_that_no_file_has_is_not_found(registry, store: Store):
    registry.fault, registry.files = "split", {"Tiny-Q8_0-00001-of-00001.gguf": b"x"}
    with pytest.raises(ModelNotFound, match="has no such model"):
        puller(store).pull(ModelName.parse(registry.name))


@pytest.mark.parametrize(
    ("tag", "want"),
    [
        ("Q4_K_M", "m-Q4_K_M"), ("q8_0", "Q8_0/m-Q8_0"), ("latest", "m-Q4_K_M"),
        ("UD-Q8_K_XL", "UD-Q8_K_XL/m-UD-Q8_K_XL"), ("BF16", "BF16/m"),
        ("Q4", ""), ("Q8_K_XL.gguf", ""),
    ],
)  # fmt: skip
def test_tags_name_files_as_on_the_hub(tag: str, want: str):
    stems = ["m-UD-Q4_K_M", "m-Q4_K_M", "Q8_0/m-Q8_0", "UD-Q8_K_XL/m-UD-Q8_K_XL", "BF16/m"]
    files = [pull.HubFile(f"{stem}-00001-of-00001.gguf", 1, "") for stem in stems]
    found = pull.find_parts(files, ModelName.parse(f"hf.co/a/b:{tag}"))
    assert [f"{want}-00001-of-00001.gguf"] * bool(want) == [file.path for file in found]


def test_a_registry_without_tls_is_told_at_once_with_the_remedy(store):
    def reset(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1006)")

    made, waits = puller(store, insecure=False, wait=lambda seconds: waits.append(seconds)), []
    client = httpx2.Client(transport=httpx2.MockTransport(reset))
    with client, pytest.raises(StoreError, match=r"pull --insecure http://example\.org/me/m:1"):
        made._manifest(client, ModelName.parse("example.org/me/m:1"))
    assert waits == []


def test_a_registry_that_does_not_answer_is_told_before_each_new_try(store):
    def refuse(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("connection refused")

    told = []
    made = puller(store, report=lambda progress: told.append(progress.status))
    client = httpx2.Client(transport=httpx2.MockTransport(refuse))
    with client, pytest.raises(StoreError, match="after 6 tries"):
        made._manifest(client, ModelName.parse("example.org/me/m:1"))
    assert told == ["example.org: connection refused; trying again"] * 5
