"""Stores: models made, copied, removed, and what is left when a process is killed."""

import hashlib
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFWriter

from tests.builders import tiny_model
from tests.files.store.killed import run_killed
from wgpu_backend.engine.loading import bundled
from wgpu_backend.errors import GGUFError, ModelNotFound, StoreError
from wgpu_backend.files.store import store as store_module
from wgpu_backend.files.store import stored
from wgpu_backend.files.store.manifest import Manifest
from wgpu_backend.files.store.modelfile import Modelfile, parse_modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store, prune
from wgpu_backend.files.store.stored import create, open_stored

NAME = ModelName.parse("story")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "models")
    wanted = Modelfile(str(bundled()), {"seed": 3}, system="Tell.", messages=[("user", "Hi")])
    create(store, NAME, wanted, tmp_path)
    return store


def files(store: Store) -> set[str]:
    return {
        str(p.relative_to(store.root))
        for p in store.root.rglob("*")
        if p.is_file() and "lock" not in str(p.relative_to(store.root))
    }


def test_a_model_is_made_and_found(store: Store):
    found = open_stored(store, NAME)
    assert found.path.read_bytes() == bundled().read_bytes()
    assert found.parameters == {"seed": 3}
    assert found.system == "Tell."
    assert found.messages == ({"role": "user", "content": "Hi"},)
    assert found.details["family"] == "llama"
    assert [str(entry.name) for entry in store.entries()] == ["story:latest"]
    assert all(len(name) == 71 for name in (p.name for p in (store.root / "blobs").iterdir()))


def test_a_model_is_made_of_another(store: Store, tmp_path: Path):
    other = ModelName.parse("me/loud:1")
    create(store, other, Modelfile("story", {"top_k": 5}, system="Shout."), tmp_path)
    found = open_stored(store, other)
    assert found.parameters == {"seed": 3, "top_k": 5}
    assert found.system == "Shout."
    assert found.path == open_stored(store, NAME).path
    assert open_stored(store, NAME).system == "Tell."


def test_an_adapter_may_be_in_the_home_folder(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    adapter(tmp_path / "own.gguf", "llama")
    store = Store(tmp_path / "models")
    create(store, NAME, Modelfile(str(bundled()), adapters=["~/own.gguf"]), tmp_path / "elsewhere")
    assert len(open_stored(store, NAME).adapters) == 1


def adapter(path: Path, architecture: str, kind: str = "adapter") -> str:
    writer = GGUFWriter(path, architecture)
    writer.add_type(kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return str(path)


def test_an_adapter_of_another_architecture_is_refused(store: Store, tmp_path: Path):
    wrong = {
        adapter(tmp_path / "other.gguf", "qwen3"): "of architecture 'qwen3', the model is 'llama'",
        adapter(tmp_path / "whole.gguf", "llama", "model"): "'general.type' is 'model', needs",
    }
    for path, message in wrong.items():
        for base in ("story", str(bundled())):
            with pytest.raises(StoreError, match=message):
                create(store, ModelName.parse("new"), Modelfile(base, adapters=[path]), tmp_path)
    assert [str(each) for each in store.names()] == ["story:latest"]


@pytest.mark.skipif(os.name == "nt", reason="needs pipes with names")
def test_a_pipe_among_manifests_or_blobs_is_no_file(store: Store, caplog):
    os.mkfifo(store.root / "manifests/registry.ollama.ai/library/story/piped")
    [entry] = store.entries()
    assert (str(entry.name), "is not a regular file" in caplog.text) == ("story:latest", True)
    with pytest.raises(StoreError, match="story/piped: cannot be read: is not a regular file"):
        open_stored(store, ModelName.parse("story:piped"))
    config = store.blob(entry.manifest.config.digest)
    config.unlink()
    os.mkfifo(config)
    assert not store.has(entry.manifest.config)
    with pytest.raises(StoreError, match="is missing or incomplete"):
        open_stored(store, NAME)
    with pytest.raises(StoreError, match="cannot be read"):
        create(store, ModelName.parse("new"), Modelfile("story"), store.root)


@pytest.mark.parametrize("damage", [b"{", b"[1]", b"\xff\xfe", b"[" * 100_000])
@pytest.mark.parametrize("kind", ["config", "params"])
def test_damaged_json_of_a_model_is_named_without_the_stores_folder(
    store: Store, damage: bytes, kind: str
):
    manifest = store.entry(NAME).manifest
    [old] = [manifest.config] if kind == "config" else manifest.of_kind("params")
    new = store.add_bytes(old.media_type, damage)
    layers = tuple(new if layer is old else layer for layer in manifest.layers)
    store.put(NAME, Manifest(new if kind == "config" else manifest.config, layers))
    with pytest.raises(StoreError, match=f"blob {new.digest}: {kind}: ") as caught:
        create(store, ModelName.parse("new"), Modelfile("story", {"top_k": 1}), store.root)
    assert str(store.root) not in str(caught.value)


def test_a_blob_that_another_change_let_go_is_made_again(store: Store, monkeypatch):
    put, gone = Store.put, []

    def late(store: Store, name: ModelName, manifest: Manifest):
        if len(gone) < 3:
            gone.append(store.blob(manifest.layers[-1].digest))
            gone[-1].unlink()
        return put(store, name, manifest)

    monkeypatch.setattr(Store, "put", late)
    name = ModelName.parse("new")
    create(store, name, Modelfile(str(bundled()), {"top_k": 5}), store.root)
    assert (len(gone), open_stored(store, name).parameters) == (3, {"top_k": 5})


def test_many_make_one_name_at_once(store: Store):
    name = ModelName.parse("same")

    def make(number: int):
        create(store, name, Modelfile("story", {"top_k": number % 3}, system="Be."), store.root)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(make, range(60)))
    assert open_stored(store, name).parameters["top_k"] in (0, 1, 2)


def test_a_model_is_copied_and_removed_and_its_blobs_go_last(store: Store):
    copy = ModelName.parse("copy")
    store.copy(NAME, copy)
    before = files(store)
    store.remove(NAME)
    assert files(store) == before - {"manifests/registry.ollama.ai/library/story/latest"}
    assert open_stored(store, copy).system == "Tell."
    store.remove(copy)
    assert files(store) == set()
    for gone in (NAME, copy):
        with pytest.raises(ModelNotFound, match="not found"):
            store.remove(gone)
        with pytest.raises(ModelNotFound, match="not found"):
            store.entry(gone)


def test_a_model_that_is_made_anew_lets_its_blobs_go(store: Store, tmp_path: Path):
    count = len(files(store))
    create(store, NAME, Modelfile(str(bundled()), {"seed": 4}, system="Sing."), tmp_path)
    assert len(files(store)) == count - 1  # no messages
    assert open_stored(store, NAME).system == "Sing."


def test_ollamas_own_store_is_read(tmp_path: Path):
    def blob(data: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(data).hexdigest()
        (tmp_path / "blobs" / f"sha256-{digest}").write_bytes(data)
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    (tmp_path / "blobs").mkdir()
    path = tmp_path / "manifests/registry.ollama.ai/library/tiny/1b"
    path.parent.mkdir(parents=True)
    base = "application/vnd.ollama.image."
    config = {"model_format": "gguf", "model_family": "llama", "model_families": ["llama"]}
    manifest = {
        "schemaVersion": 2,
        "config": blob(
            json.dumps(config).encode(), "application/vnd.docker.container.image.v1+json"
        ),
        "layers": [
            blob(bundled().read_bytes(), base + "model"),
            blob(b"{{ .Prompt }}", base + "template"),
            blob(b'{"stop": ["x"]}', base + "params"),
        ],
    }
    path.write_text(json.dumps(manifest))
    store = Store(tmp_path, read_only=True)
    found = open_stored(store, ModelName.parse("tiny:1b"))
    assert (found.template, found.parameters) == ("{{ .Prompt }}", {"stop": ["x"]})
    with pytest.raises(StoreError, match="read-only"):
        store.remove(found.entry.name)
    with pytest.raises(StoreError, match="read-only"):
        create(store, NAME, Modelfile("tiny:1b"), tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["blobs", "manifests"]


def test_what_a_manifest_says_besides_is_kept(store: Store, tmp_path: Path):
    path = store.root / "manifests/registry.ollama.ai/library/story/latest"
    written = json.loads(path.read_bytes())
    written |= {"annotations": {"made": "elsewhere"}}
    written["layers"][0]["name"] = "a.gguf"
    path.write_text(json.dumps(written, indent=2))
    copy, made = ModelName.parse("copy"), ModelName.parse("made")
    store.copy(NAME, copy)
    assert store.entry(copy).digest == store.entry(NAME).digest
    entry = create(store, made, Modelfile("copy", system="New."), tmp_path)
    assert json.loads(entry.manifest.encode())["layers"][0]["name"] == "a.gguf"
    assert b'"mediaType":"' in entry.manifest.encode()


def test_damage_is_told(store: Store, tmp_path: Path):
    model = open_stored(store, NAME).path
    os.truncate(model, 100)
    with pytest.raises(StoreError, match=r"story:latest: blob sha256:.* is missing or incomplete"):
        open_stored(store, NAME)
    (store.root / "manifests/registry.ollama.ai/library/story/latest").write_text("{")
    with pytest.raises(StoreError, match="not a manifest"):
        open_stored(store, NAME)
    assert list(store.entries()) == []


@pytest.mark.parametrize("wrong", [[{"role": "user"}], ["x"], [{"role": 1, "content": "x"}]])
def test_messages_of_a_wrong_shape_are_told(store: Store, wrong):
    layers = [each for each in store.entry(NAME).manifest.layers if each.kind != "messages"]
    layers.append(store.add_bytes("messages", json.dumps(wrong).encode()))
    store.put(NAME, Manifest(store.entry(NAME).manifest.config, tuple(layers)))
    with pytest.raises(
        StoreError, match=r"messages of the model: \[0\] needs strings for role, content"
    ):
        open_stored(store, NAME)


def test_what_cannot_be_made_leaves_nothing(tmp_path: Path):
    store = Store(tmp_path / "models")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF")
    with pytest.raises(GGUFError):
        create(store, NAME, Modelfile("bad.gguf"), tmp_path)
    with pytest.raises(ModelNotFound, match="toaster"):
        create(store, NAME, Modelfile("toaster"), tmp_path)
    with pytest.raises(StoreError, match="a folder"):
        create(store, NAME, Modelfile("."), tmp_path)
    assert not store.root.exists() or files(store) == set()


def test_a_full_disk_is_told_before_and_loses_nothing(store: Store, tmp_path: Path, monkeypatch):
    before = files(store)
    usage = shutil_usage(1000)
    monkeypatch.setattr("wgpu_backend.files.store.store.shutil.disk_usage", usage)
    with pytest.raises(StoreError, match=r"bytes are needed, the disk has 1000 free"):
        create(store, ModelName.parse("b"), Modelfile(str(bundled())), tmp_path)
    monkeypatch.undo()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("wgpu_backend.files.store.files.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        create(store, ModelName.parse("b"), Modelfile(str(bundled()), system="new"), tmp_path)
    assert files(store) == before
    assert open_stored(store, NAME).system == "Tell."


def shutil_usage(free: int):
    class Usage:
        def __init__(self, _: object) -> None:
            self.free = free

    return Usage


KILLED = """
from wgpu_backend.files.store.modelfile import Modelfile, parse_modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create
store = Store(Path(sys.argv[1]))
create(store, ModelName.parse("story"), Modelfile(sys.argv[2], system="New."), Path("."))
store.remove(ModelName.parse("story"))
"""


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGKILL")
@pytest.mark.parametrize("after", [0, 1, 4, 7, 10, 12, 14])
def test_a_process_that_is_killed_leaves_whole_models(store: Store, tmp_path: Path, after: int):
    tiny = tmp_path / "tiny.gguf"
    tiny.write_bytes(bundled().read_bytes())
    run_killed(KILLED, str(store.root), str(tiny), after=after)
    for entry in store.entries():
        assert open_stored(store, entry.name).system in ("Tell.", "New.")
    create(store, NAME, Modelfile(str(tiny), system="Again."), tmp_path)
    assert open_stored(store, NAME).system == "Again."


def test_what_a_killed_process_left_goes_in_an_hour(store: Store, tmp_path: Path):
    old, new = (store.root / "blobs" / f".new-{name}" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    create(store, ModelName.parse("other"), Modelfile(str(bundled()), system="Short."), tmp_path)
    assert not old.exists()
    assert new.exists()  # somebody may be writing it


def test_numbers_of_weights_are_written_as_ollama_does():
    found = [stored._count(each) for each in (7_241_732_096, 134_515_008, 8 * 10**9, 33_300, 12)]
    assert found == ["7.2B", "134.52M", "8B", "33K", "12"]


@pytest.mark.skipif(sys.platform == "win32", reason="files have no modes")
def test_other_users_may_read_what_they_may_read_of_any_file(store: Store, tmp_path: Path):
    (tmp_path / "plain").touch()
    mode = (tmp_path / "plain").stat().st_mode
    assert {(store.root / name).stat().st_mode for name in files(store)} == {mode}


def test_a_manifest_that_cannot_be_read_hides_no_other(store: Store, monkeypatch, caplog):
    store.copy(NAME, ModelName.parse("other"))
    read = store_module.read_file

    def refused(path: Path, most: int):
        if path.parent.name == "story":
            raise PermissionError(13, "Permission denied")
        return read(path, most)

    monkeypatch.setattr(store_module, "read_file", refused)
    assert [str(entry.name) for entry in store.entries()] == ["other:latest"]
    assert "story:latest is left out" in caplog.text
    with pytest.raises(StoreError, match="cannot be read: Permission denied"):
        open_stored(store, NAME)


@pytest.mark.parametrize("base", ["one", "every"])
def test_the_parts_of_a_split_file_become_one_blob(store: Store, tmp_path: Path, base):
    tiny_model(tmp_path / "one.gguf")
    tiny_model(tmp_path / "m.gguf", tensors_per_part=9)
    names = [f"m-0000{n}-of-00003.gguf" for n in (3, 1, 2)]
    lines = names if base == "every" else names[1:2]
    create(store, NAME, parse_modelfile("\n".join(f"FROM {n}" for n in lines)), tmp_path)
    found, want = open_stored(store, NAME), GGUFReader(tmp_path / "one.gguf")
    made = GGUFReader(found.path)
    assert not any(key.startswith("split.") for key in made.fields)
    assert [t.name for t in want.tensors] == [t.name for t in made.tensors]
    for ours, theirs in zip(made.tensors, want.tensors, strict=True):
        assert theirs.data.tobytes() == ours.data.tobytes()
    assert {key: field.contents() for key, field in want.fields.items() if "." in key[5:]} == {
        key: field.contents() for key, field in made.fields.items() if "." in key[5:]
    }
    Path(tmp_path / names[0]).unlink()
    with pytest.raises(GGUFError, match=r"missing in its folder: m-00003-of-00003.gguf"):
        create(store, NAME, Modelfile(names[1]), tmp_path)


def not_allowed(root, *, onerror, **_):
    onerror(PermissionError(13, "Permission denied", str(root)))
    return iter(())


def in_two_hours(monkeypatch):
    now = time.time()
    monkeypatch.setattr("wgpu_backend.files.store.store.time.time", lambda: now + 7200)


def test_blobs_of_no_model_go_and_no_others(store: Store, monkeypatch):
    before = files(store)
    foreign = store.root / "manifests/other.example/me/model/tag"
    foreign.parent.mkdir(parents=True)
    kept = store.add_bytes("license", b"another registry's")
    foreign.write_bytes(store.entry(NAME).manifest.encode())
    manifest = json.loads(foreign.read_bytes())
    manifest["layers"].append({**kept.json(), "digest": kept.digest.replace(":", "-")})
    foreign.write_text(json.dumps(manifest))
    store.add_bytes("license", b"of no model")
    partial = store.root / "blobs" / f"sha256-{'0' * 64}-partial"
    partial.touch()
    whole = files(store)
    assert (prune(store), files(store)) == (0, whole)  # they are young
    in_two_hours(monkeypatch)
    assert prune(store) == 1
    ours = {str(foreign.relative_to(store.root)), str(partial.relative_to(store.root))}
    assert files(store) == before | ours | {str(store.blob(kept.digest).relative_to(store.root))}


@pytest.mark.parametrize("doubt", ["damaged", "unreadable", "none", "folder", "coming"])
def test_in_doubt_no_blob_goes(store: Store, monkeypatch, doubt):
    store.add_bytes("license", b"of no model")
    in_two_hours(monkeypatch)
    manifest = store.root / "manifests/registry.ollama.ai/library/story/latest"
    if doubt == "damaged":
        (manifest.parent / "other").write_bytes(manifest.read_bytes()[:100])
    elif doubt == "unreadable":
        monkeypatch.setattr("wgpu_backend.files.store.store.os.walk", not_allowed)
    elif doubt == "none":
        manifest.unlink()
    elif doubt == "folder":
        (store.root / "manifests-v2").mkdir()
    else:
        partial = store.root / "blobs" / f"sha256-{'0' * 64}-partial"
        partial.touch()
        os.utime(partial, (time.time(), time.time()))
    before = files(store)
    with suppress(StoreError):
        assert prune(store) == 0
    assert files(store) == before


def test_a_read_only_store_keeps_all(store: Store):
    with pytest.raises(StoreError, match="read-only"):
        prune(Store(store.root, read_only=True))


@pytest.mark.parametrize(
    ("base", "said"),
    [
        ("./nosuch", "FROM ./nosuch: no such file, and not a valid name of a model"),
        ("nosuch.gguf", "FROM nosuch.gguf: no such file, and no model of that name"),
        ("empty", "FROM empty: a folder without config.json; needs a GGUF file"),
    ],
)
def test_what_a_modelfile_begins_with_is_told_by_its_own_word(store: Store, tmp_path, base, said):
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match=said):
        create(store, ModelName.parse("new"), parse_modelfile(f"FROM {base}"), tmp_path)
