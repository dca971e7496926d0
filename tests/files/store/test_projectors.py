"""Models of a store with a tower: two FROM lines, an mmproj file's blob, and what shows of it."""

import hashlib
import json

import pytest

from wgpu_backend.engine.loading import bundled
from wgpu_backend.errors import StoreError
from wgpu_backend.files.store.modelfile import Modelfile, parse_modelfile, write_modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create, open_stored

MODEL, TOWER = bundled("eyes"), bundled("eyes").with_name("eyes-mmproj.gguf")
SEER = ModelName.parse("seer")


@pytest.fixture
def folder(tmp_path):
    """Names that do not say which of them is the tower."""
    (tmp_path / "a.gguf").write_bytes(MODEL.read_bytes())
    (tmp_path / "b.gguf").write_bytes(TOWER.read_bytes())
    (tmp_path / "story.gguf").write_bytes(bundled().read_bytes())
    return tmp_path


def made(folder, text):
    store = Store(folder / "models")
    create(store, SEER, parse_modelfile(text), folder)
    return open_stored(store, SEER)


@pytest.mark.parametrize("text", ["FROM a.gguf\nFROM ./b.gguf", "FROM b.gguf\nFROM ./a.gguf"])
def test_a_second_from_is_the_tower_in_any_order(folder, text):
    found = made(folder, text)
    assert found.path.read_bytes() == MODEL.read_bytes()
    assert found.projector.read_bytes() == TOWER.read_bytes()
    assert found.details["families"] == ["llama", "clip"]


def test_the_modelfile_of_a_model_makes_it_again(folder):
    found = made(folder, "FROM a.gguf\nFROM b.gguf\nPARAMETER top_k 5")
    text = write_modelfile(found.modelfile)
    lines = [f"FROM {found.path}", f"FROM {found.projector}", "PARAMETER top_k 5"]
    assert text.splitlines() == lines
    again = made(folder, text)
    assert (again.path, again.projector) == (found.path, found.projector)


def test_a_tower_replaces_that_of_a_stored_model(folder):
    plain = made(folder, "FROM a.gguf")
    assert plain.projector is None
    with_tower = made(folder, "FROM seer\nFROM b.gguf")
    assert with_tower.projector.read_bytes() == TOWER.read_bytes()
    kinds = [layer.kind for layer in with_tower.entry.manifest.layers]
    assert kinds.count("projector") == kinds.count("model") == 1
    twice = made(folder, "FROM seer\nFROM b.gguf")
    assert [layer.kind for layer in twice.entry.manifest.layers].count("projector") == 1


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("FROM a.gguf\nFROM story.gguf", "FROM a.gguf, FROM story.gguf: neither is a tower"),
        ("FROM a.gguf\nFROM nothing.gguf", "neither is a tower"),
        ("FROM a.gguf\nFROM b.gguf\nFROM b.gguf", "line 3: a third FROM"),
        (
            "FROM story.gguf\nFROM b.gguf",
            "FROM b.gguf: its rows have 96 columns, the embeddings of the model 192; needs",
        ),
    ],
)
def test_what_is_no_model_with_its_tower_is_refused(folder, text, why):
    with pytest.raises(StoreError, match=why) as caught:
        made(folder, text)
    assert "\n" not in str(caught.value)
    assert [*Store(folder / "models").entries()] == []


def test_a_split_file_has_lines_of_its_own():
    text = "FROM m-00002-of-00002.gguf\nFROM m-00001-of-00002.gguf\nFROM b.gguf"
    found = parse_modelfile(text)
    assert (found.base, found.projector) == ("m-00001-of-00002.gguf", "b.gguf")
    assert parse_modelfile(write_modelfile(Modelfile("x", projector="y"))).projector == "y"


class TestTheApi:
    """`POST /api/create` with uploaded blobs."""

    pytest.importorskip("starlette", reason="the extra [serve] is not installed")

    @pytest.fixture
    def client(self, tmp_path):
        from tests.server.serving import client_of

        with client_of(tmp_path / "served") as client:
            yield client

    @staticmethod
    def upload(client, path):
        digest = "sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()
        assert client.post(f"/api/blobs/{digest}", content=path.read_bytes()).status_code in (
            200,
            201,
        )
        return digest

    def test_files_may_have_a_tower(self, client):
        digests = {"x.gguf": self.upload(client, TOWER), "y.gguf": self.upload(client, MODEL)}
        asked = {"model": "seer", "files": digests, "stream": False}
        found = client.post("/api/create", json=asked)
        assert (found.status_code, found.json()) == (200, {"status": "success"}), found.text
        shown = client.post("/api/show", json={"model": "seer"}).json()
        assert shown["capabilities"] == ["completion", "vision"]
        assert shown["projector_info"]["general.architecture"] == "clip"
        assert shown["projector_info"]["clip.vision.projection_dim"] == 96
        assert shown["modelfile"].count("FROM ") == 2
        assert shown["details"]["families"] == ["llama", "clip"]
        json.dumps(shown)

    def test_a_tower_is_added_to_a_model(self, client):
        model, tower = self.upload(client, MODEL), self.upload(client, TOWER)
        for asked in (
            {"model": "blind", "files": {"y.gguf": model}},
            {"model": "seer", "from": "blind", "files": {"x.gguf": tower}},
        ):
            assert client.post("/api/create", json={**asked, "stream": False}).status_code == 200
        shown = client.post("/api/show", json={"model": "seer"}).json()
        assert shown["capabilities"] == ["completion", "vision"]

    @pytest.mark.parametrize(
        ("asked", "why"),
        [
            ({"files": {"x.gguf": "T"}}, "files: an mmproj file alone, needs its model in"),
            ({"files": {"x.gguf": "T", "z.gguf": "T", "y.gguf": "M"}}, "at most one mmproj file"),
            ({"files": {"y.gguf": "M", "z.gguf": "M"}}, "files: 2 files, needs one of GGUF"),
            (
                {"from": "tale", "files": {"x.gguf": "T"}},
                "FROM x.gguf: its rows have 96 columns, the embeddings of the model 192",
            ),
        ],
    )
    def test_what_does_not_fit_is_a_400(self, client, asked, why):
        digests = {"T": self.upload(client, TOWER), "M": self.upload(client, MODEL)}
        files = {name: digests[kind] for name, kind in asked["files"].items()}
        body = {**asked, "files": files, "model": "new", "stream": False}
        found = client.post("/api/create", json=body)
        assert (found.status_code, why in found.json()["error"]) == (400, True), found.text
