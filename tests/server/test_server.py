"""The server's routes, with the story model on NumPy and no socket."""

import hashlib
import json
import threading

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")
import wgpu_backend as wb
from tests.builders import tiny_model
from tests.files.store.registry import Registry
from tests.models.adapters import a_lora
from tests.patience import until
from tests.server.serving import client_of, lines
from wgpu_backend.cli.commands.serve.loads import make_bundled_entry
from wgpu_backend.engine.loading import bundled
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.server.api.ollama.models import OLLAMA_VERSION
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.state import parse_keep_alive

NO_BLOB = f"sha256:{'1' * 64}"
FIXED = {"num_predict": 6, "seed": 1, "temperature": 0}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store")) as client:
        yield client


def events(response):
    assert response.status_code == 200, response.text
    found = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert found.pop() == "[DONE]"
    return [json.loads(event) for event in found]


def test_what_the_server_is(client):
    assert client.get("/").text == "Ollama is running"
    assert client.get("/api/version").json() == {"version": OLLAMA_VERSION, "wgpu_backend": "1"}
    assert client.get("/health").json() == {"status": "ok"}


def test_models_are_listed_and_shown(client):
    models = client.get("/api/tags").json()["models"]
    found = [(model["name"], model["details"]["family"]) for model in models]
    pictures = ("pictures", "pictures")
    assert sorted(found) == [("actor:latest", "llama"), pictures, ("tale:latest", "llama")]
    shown = client.post("/api/show", json={"model": "tale"}).json()
    assert shown["capabilities"][0] == "completion"
    assert "PARAMETER num_predict 8" in shown["modelfile"]
    assert shown["model_info"]["general.architecture"] == "llama"
    listed = client.get("/v1/models").json()["data"]
    assert sorted(each["id"] for each in listed) == ["actor:latest", "pictures", "tale:latest"]
    for name in ("tale", "pictures"):
        assert client.get(f"/v1/models/{name}").json()["id"] == name


def test_generate_gives_the_models_text_whole_and_streamed(client):
    body = {"model": "tale", "prompt": "Once", "raw": True, "options": FIXED}
    whole = client.post("/api/generate", json={**body, "stream": False}).json()
    with wb.load(device="cpu") as model:
        options = {"seed": 1, "temperature": 0}
        assert whole["response"] == model.generate("Once", raw=True, options=options, num_predict=6)
    assert (whole["done_reason"], whole["eval_count"]) == ("length", 6)
    streamed = lines(client.post("/api/generate", json=body))
    assert "".join(line["response"] for line in streamed) == whole["response"]
    assert [line["done"] for line in streamed] == [False] * (len(streamed) - 1) + [True]
    assert streamed[-1]["prompt_eval_count"] > 0


def test_parameters_of_the_modelfile_and_stop_texts(client):
    body = {"model": "tale", "prompt": "Once", "raw": True, "stream": False}
    made = client.post("/api/generate", json={**body, "options": {"temperature": 0}}).json()
    assert made["eval_count"] == 8
    word = made["response"].split()[2]
    cut = {"temperature": 0, "stop": [word]}
    found = client.post("/api/generate", json={**body, "options": cut}).json()
    assert (word in found["response"], found["done_reason"]) == (False, "stop")


def test_what_stands_between_two_texts(client):
    body = {"model": "actor", "prompt": "a", "suffix": "b", "stream": False, "options": FIXED}
    assert client.post("/api/generate", json=body).json()["response"] == "in between"


def test_variables_of_a_template(client):
    said = [{"role": "user", "content": "Hi"}]
    body = {"model": "actor", "messages": said, "chat_template_kwargs": {"enable_thinking": True}}
    message = client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Yes")
    taken = {**body, "chat_template_kwargs": {"tools": []}}
    assert client.post("/v1/chat/completions", json=taken).status_code == 400


def test_logprobs(client):
    body = {"model": "tale", "prompt": "Once", "raw": True, "options": FIXED, "stream": False}
    made = client.post("/api/generate", json={**body, "logprobs": True, "top_logprobs": 2}).json()
    assert len(made["logprobs"]) == 6
    first = made["logprobs"][0]
    assert first["top_logprobs"][0]["token"] == first["token"]
    assert bytes(first["bytes"]).decode() == first["token"]


def test_a_model_is_loaded_listed_and_unloaded(client):
    empty = client.post("/api/generate", json={"model": "tale", "keep_alive": "1h"}).json()
    assert empty["done_reason"] == "load"
    running = {each["name"] for each in client.get("/api/ps").json()["models"]}
    assert "tale:latest" in running
    body = {"model": "tale", "messages": [], "keep_alive": 0}
    assert client.post("/api/chat", json=body).json()["done_reason"] == "unload"
    left = {each["name"] for each in client.get("/api/ps").json()["models"]}
    assert left == running - {"tale:latest"}


def test_completions_of_openai(client):
    body = {"model": "tale", "prompt": "Once", "max_tokens": 5, "temperature": 0, "n": 2}
    whole = client.post("/v1/completions", json=body).json()
    assert [c["index"] for c in whole["choices"]] == [0, 1]
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 10
    streamed = events(
        client.post(
            "/v1/completions",
            json={**body, "n": 1, "stream": True, "stream_options": {"include_usage": True}},
        )
    )
    text = "".join(e["choices"][0]["text"] for e in streamed if e["choices"])
    assert text == whole["choices"][0]["text"]
    assert streamed[-1]["usage"]["completion_tokens"] == 5


def test_embeddings_of_both(client):
    ours = client.post("/api/embed", json={"model": "tale", "input": ["a fox", "a bear"]}).json()
    assert len(ours["embeddings"]) == 2
    body = {"model": "tale", "input": "a fox", "encoding_format": "float"}
    [theirs] = client.post("/v1/embeddings", json=body).json()["data"]
    assert theirs["embedding"] == pytest.approx(ours["embeddings"][0])
    ids = client.post("/tokenize", json={"model": "tale", "content": "a fox"}).json()["tokens"]
    for tokens in (ids, [ids]):
        [same] = client.post("/v1/embeddings", json={**body, "input": tokens}).json()["data"]
        assert same == theirs
    short = client.post("/api/embed", json={"model": "tale", "input": "a fox", "dimensions": 4})
    assert sum(x * x for x in short.json()["embeddings"][0]) == pytest.approx(1, abs=1e-5)
    old = client.post("/api/embeddings", json={"model": "tale", "prompt": "a fox"}).json()
    assert old["embedding"] == pytest.approx(ours["embeddings"][0])


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/api/generate", {}, 400, "model is required"),
        ("/api/generate", {"model": "no", "prompt": "a"}, 404, "model 'no' not found"),
        ("/api/generate", {"model": "../x", "prompt": "a"}, 400, "model name"),
        ("/api/generate", {"model": "tale", "prompt": 5}, 400, "prompt: '5', needs a string"),
        (
            "/api/generate",
            {"model": "tale", "prompt": "a", "options": {"num_predict": "x"}},
            400,
            "num_predict: 'x', needs a whole number",
        ),
        ("/api/chat", {"model": "tale", "messages": [], "tools": 5}, 400, "tools: '5', needs"),
        (
            "/api/generate",
            {"model": "tale", "prompt": "a", "options": {"presence_penalty": 700}},
            400,
            "presence_penalty: 700, needs",
        ),
        (
            "/api/generate",
            {"model": "tale", "prompt": "a", "format": "yaml"},
            400,
            "format: 'yaml'",
        ),
        ("/api/generate", {"model": "tale", "prompt": "a", "suffix": "b"}, 400, "infill"),
        ("/v1/embeddings", {"model": "tale", "input": [[9999]]}, 400, "tokens: '9999'"),
        ("/v1/embeddings", {"model": "tale", "input": [{}]}, 400, "input: {}, needs"),
        ("/api/generate", {"model": "tale", "prompt": "a", "keep_alive": "x"}, 400, "keep_alive"),
        (
            "/api/generate",
            {"model": "tale", "prompt": "a " * 999, "raw": True, "truncate": False},
            400,
            "256",
        ),
        ("/api/chat", {"model": "tale", "messages": [5]}, 400, "messages[0]"),
        (
            "/api/chat",
            {"model": "tale", "messages": [{"role": "user"}], "think": True},
            400,
            "think",
        ),
        ("/api/push", {"model": "no"}, 404, "not found"),
        ("/api/show", {"model": "no"}, 404, "not found"),
        ("/api/copy", {"source": "no", "destination": "b"}, 404, "not found"),
        ("/api/create", {"model": "a", "from": "/etc/passwd"}, 400, "model name"),
        ("/api/create", {"model": "a", "files": {"x": "sha256:../.."}}, 400, "digest"),
        (
            "/api/create",
            {"model": "a", "from": "tale", "adapters": {"x": NO_BLOB}},
            400,
            f"blob {NO_BLOB} not found",
        ),
        ("/v1/completions", {"model": "tale", "prompt": "a", "n": 0}, 400, "n: 0"),
        ("/v1/completions", {"model": "tale", "prompt": [{}]}, 400, "'None', needs a string"),
        ("/v1/completions", {"model": "tale", "prompt": [9999]}, 400, "tokens: '9999'"),
        (
            "/api/generate",
            {"model": "tale", "prompt": "a", "context": [-1]},
            400,
            "tokens: '-1', needs whole numbers below 2048",
        ),
        ("/v1/chat/completions", {"model": "tale", "messages": []}, 400, "messages"),
        ("/v1/embeddings", {"model": "tale", "input": "a " * 999}, 400, "the context holds"),
        (
            "/v1/rerank",
            {"model": "tale", "query": "a", "documents": ["b"]},
            400,
            '"tale" does not support rerank',
        ),
    ],
)
def test_what_is_wrong_is_told(client, path, body, status, message):
    found = client.post(path, json=body)
    error = found.json()["error"]
    told = error["message"] if path.startswith("/v1/") else error
    assert (found.status_code, message in told) == (status, True), found.text


def test_a_blob_that_is_no_model_is_told_without_the_servers_folders(client):
    digest = f"sha256:{hashlib.sha256(b'GGUF').hexdigest()}"
    assert client.post(f"/api/blobs/{digest}", content=b"GGUF").status_code == 201
    body = {"model": "a", "files": {"a.gguf": digest}, "stream": False}
    found = client.post("/api/create", json=body)
    assert (found.status_code, "/" in found.json()["error"]) == (400, False), found.text


def test_a_blob_that_the_disk_has_no_room_for_is_not_awaited(client, monkeypatch):
    monkeypatch.setattr("wgpu_backend.server.api.ollama.models.free_bytes", lambda _: 2)
    found = client.post(f"/api/blobs/{NO_BLOB}", content=b"xxx")
    told = {"error": "blob: 3 bytes, the disk has 2 free"}
    assert (found.status_code, found.json()) == (507, told)


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"null", b"[" * 100_000])
def test_what_is_no_json_object_is_told(client, body):
    assert client.post("/api/chat", content=body).status_code == 400


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "a/../b", "/etc/passwd", "a\\b", "\0", "\ud800"]
)
def test_names_are_no_paths(client, name):
    bodies = {
        "/api/show": {"model": name},
        "/api/generate": {"model": name, "prompt": "a"},
        "/api/copy": {"source": "tale", "destination": name},
    }
    for path, body in bodies.items():
        found = client.post(path, content=json.dumps(body).encode())
        assert found.status_code in (400, 404), path
    for digest in ("sha256:..", "sha256:" + "g" * 64, "..%2f..%2fetc%2fpasswd"):
        assert client.post(f"/api/blobs/{digest}", content=b"x").status_code in (400, 404, 405)


def test_strangers_are_refused(client, tmp_path):
    def status(**headers: str) -> int:
        return client.get("/api/tags", headers=headers).status_code

    assert status() == 200
    assert status(host="evil.example") == 403
    assert status(host="localhost:11434") == 200
    assert status(origin="https://evil.example") == 403
    with client_of(tmp_path, api_keys=("key",), origins=("http://localhost",), max_body=100) as own:
        assert own.get("/api/tags").status_code == 401
        assert own.get("/health").status_code == 200
        key = {"Authorization": "Bearer key"}
        origin = {**key, "Origin": "http://localhost:3000"}
        found = own.get("/api/tags", headers=origin)
        assert found.headers["access-control-allow-origin"] == "http://localhost:3000"
        assert own.options("/api/chat", headers={"Origin": "http://localhost"}).status_code == 200
        assert own.post("/api/show", content=b" " * 101, headers=key).status_code == 413
        chunks = (b" " * 60 for _ in range(3))
        assert own.post("/api/show", content=chunks, headers=key).status_code == 413


def test_a_page_may_send_the_headers_it_names(client, tmp_path):
    with client_of(tmp_path, origins=("http://localhost",)) as own:
        asks = {"Origin": "http://localhost", "Access-Control-Request-Headers": "x-stainless-os"}
        found = own.options("/v1/messages", headers=asks)
        assert found.headers["access-control-allow-headers"] == "x-stainless-os"
        stranger = own.options("/v1/messages", headers={**asks, "Origin": "null"})
        assert "access-control-allow-origin" not in stranger.headers


def test_who_waits_in_vain_is_told_when_to_come_again(tmp_path):
    with client_of(tmp_path, max_queue=1) as own:
        body = {"model": "tale", "prompt": "Once", "stream": False, "raw": True, "options": FIXED}
        own.post("/api/generate", json=body)
        found = []
        threads = [
            threading.Thread(target=lambda: found.append(own.post("/api/generate", json=body)))
            for _ in range(16)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {each.status_code for each in found} == {200, 503}
        refused = [each for each in found if each.status_code == 503]
        assert {each.headers["retry-after"] for each in refused} == {"1"}


def test_keys_are_taken_as_clients_send_them(tmp_path):
    with client_of(tmp_path, api_keys=("key",)) as own:
        for headers in ({"Authorization": "bearer key"}, {"X-Api-Key": "key"}):
            assert own.get("/api/tags", headers=headers).status_code == 200
        for headers in ({}, {"Authorization": "key"}, {"Authorization": "Basic key"}):
            found = own.get("/v1/models", headers=headers)
            assert (found.status_code, found.headers["www-authenticate"]) == (401, "Bearer")
            assert found.json()["error"]["type"] == "authentication_error"


@pytest.mark.parametrize("given", ["clé".encode(), "clé".encode("latin-1"), "ключ".encode()])
def test_keys_may_have_any_letters(tmp_path, given):
    with client_of(tmp_path, api_keys=("clé", "ключ")) as own:
        assert own.get("/api/tags", headers={b"X-Api-Key": given}).status_code == 200
        assert own.get("/api/tags", headers={b"X-Api-Key": given[:-1]}).status_code == 401


def test_a_model_is_made_of_one_that_is_none_of_the_store(tmp_path):
    client = client_of(tmp_path, fixed={"story": make_bundled_entry()})
    made = client.post("/api/create", json={"model": "own", "from": "story:latest"})
    assert lines(made)[-1] == {"status": "success"}
    shown = client.post("/api/show", json={"model": "own"}).json()
    assert shown["details"]["family"] == "llama"


@pytest.mark.parametrize("given", [{"files": "wrong"}, {"adapters": "wrong", "from": "tale"}])
def test_a_model_is_made_of_no_blob_that_is_not_there(client, given):
    wrong = "sha256:" + "0" * 64
    body = {name: {"a": wrong} if value == "wrong" else value for name, value in given.items()}
    made = client.post("/api/create", json={"model": "new", **body})
    assert (made.status_code, made.json()) == (400, {"error": f"blob {wrong} not found"})


def test_a_model_is_made_of_something(client):
    made = client.post("/api/create", json={"model": "new"})
    assert made.status_code == 400
    assert made.json() == {"error": "neither 'from' or 'files' was specified"}


@pytest.mark.parametrize("exists", [True, False])
def test_a_name_is_never_looked_for_among_files(tmp_path, monkeypatch, exists):
    client = client_of(tmp_path)
    (tmp_path / "x").mkdir()
    if exists:
        (tmp_path / "x" / "y").write_bytes(bundled().read_bytes())
    monkeypatch.chdir(tmp_path)
    for base in ("x/y", f"{tmp_path}/x/y", "~/x/y"):
        made = client.post("/api/create", json={"model": "new", "from": base, "stream": False})
        assert made.status_code in (400, 404)
        assert client.post("/api/show", json={"model": "new"}).status_code == 404


def test_a_model_is_made_of_the_parts_of_a_split_file(client, tmp_path):
    tiny_model(tmp_path / "m.gguf", tensors_per_part=9)
    files = {}
    for path in sorted(tmp_path.glob("m-*"), reverse=True):
        data = path.read_bytes()
        files[path.name] = f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert client.post(f"/api/blobs/{files[path.name]}", content=data).status_code == 201
    body = {"model": "parts", "stream": False}
    some = dict(list(files.items())[:2])
    refused = client.post("/api/create", json={**body, "files": some})
    assert refused.status_code == 400
    assert "part 2 of 3 by its keys, needs part 1" in refused.json()["error"]
    names = {"a.gguf": files.popitem()[1], **files}
    refused = client.post("/api/create", json={**body, "files": names})
    assert "needs one of GGUF or all parts of a split one" in refused.json()["error"]
    names = {"m-00001-of-00003.gguf": names.pop("a.gguf"), **names}
    made = client.post("/api/create", json={**body, "files": names})
    assert made.json() == {"status": "success"}
    shown = client.post("/api/show", json={"model": "parts"}).json()
    assert len(shown["tensors"]) == 21
    assert client.request("DELETE", "/api/delete", json={"model": "parts"}).status_code == 200


def test_models_are_made_copied_pulled_and_deleted(client):
    data = bundled().read_bytes()
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert client.head(f"/api/blobs/{digest}").status_code == 200
    wrong = "sha256:" + "0" * 64
    assert client.head(f"/api/blobs/{wrong}").status_code == 404
    assert client.post(f"/api/blobs/{wrong}", content=b"x").status_code == 400
    assert client.post(f"/api/blobs/{digest}", content=b"unread").status_code == 200
    other = f"sha256:{hashlib.sha256(b'other').hexdigest()}"
    assert client.post(f"/api/blobs/{other}", content=b"other").status_code == 201
    made = client.post("/api/create", json={"model": "new", "files": {"a.gguf": digest}})
    assert lines(made)[-1] == {"status": "success"}
    copied = client.post("/api/copy", json={"source": "new", "destination": "newer"})
    assert copied.status_code == 200
    with Registry(data) as registry:
        body = {"model": registry.name, "insecure": True}
        told = lines(client.post("/api/pull", json=body))
        assert told[-1] == {"status": "success"}
        refused = client.post("/api/pull", json={"model": registry.name})
        assert refused.status_code == 400
        assert "http is not encrypted" in refused.json()["error"]
        gone = registry.name.removeprefix("http://")
        registry.blobs.clear()
        pushed = lines(client.post("/api/push", json=body))
        assert pushed[-1] == {"status": "success"}
        assert {"status", "digest", "total", "completed"} == set(pushed[1])
        assert digest in registry.blobs
    for name in ("new", "newer", gone):
        assert client.request("DELETE", "/api/delete", json={"model": name}).status_code == 200
    assert client.request("DELETE", "/api/delete", json={"model": "new"}).status_code == 404


def test_eight_clients_at_once_get_what_one_gets(client):
    body = {"model": "tale", "prompt": "Once", "raw": True, "options": FIXED, "stream": False}
    alone = client.post("/api/generate", json=body).json()["response"]
    found = []

    def ask() -> None:
        found.append(client.post("/api/generate", json=body).json().get("response"))

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [alone] * 8


def test_figures_are_there(client):
    client.post("/api/generate", json={"model": "tale", "prompt": "a", "options": FIXED})
    text = client.get("/metrics").text
    assert 'tokens_predicted_total{model="tale:latest"}' in text
    assert "# TYPE requests_processing gauge" in text


def test_a_model_goes_when_its_time_is_over(tmp_path):
    with client_of(tmp_path) as client:
        body = {"model": "tale", "prompt": "a", "raw": True, "options": FIXED, "keep_alive": "1ms"}
        assert lines(client.post("/api/generate", json=body))
        assert until(lambda: not client.get("/api/ps").json()["models"])


@pytest.mark.parametrize(
    ("given", "seconds"),
    [(5, 5), ("5m", 300), ("1h30m", 5400), ("-1m", -60), (-1, -1), ("10", 10), ("1.5s", 1.5)],
)
def test_durations(given, seconds):
    assert parse_keep_alive(given) == seconds


@pytest.mark.parametrize("given", ["", "m", "5x", "5m5", "s5", True, "inf", "nan", "1e400", 1e400])
def test_what_is_no_duration(given):
    with pytest.raises(RequestError, match="keep_alive"):
        parse_keep_alive(given)


@pytest.mark.parametrize("ignored", [False, True])
def test_an_answer_may_go_on_behind_its_end(client, ignored):
    said = [{"role": "user", "content": "hi"}]
    body = {"model": "actor", "messages": said, "max_tokens": 9, "ignore_eos": ignored}
    made = client.post("/v1/chat/completions", json={**body, "temperature": 0}).json()
    assert (made["usage"]["completion_tokens"] == 9) == ignored
    assert made["choices"][0]["finish_reason"] == ("length" if ignored else "stop")


def test_errors_of_damaged_files_have_the_models_name(tmp_path):
    """A blob's own name is 64 digits, which say nothing to who asked."""
    with client_of(tmp_path) as client:
        store = Store(tmp_path)
        [layer] = store.entry(ModelName.parse("actor")).manifest.of_kind("model")
        with store.blob(layer.digest).open("r+b") as file:
            file.write(b"XXXX")
        for path, more in (("/api/show", {}), ("/api/generate", {"prompt": "Hi"})):
            found = client.post(path, json={"model": "actor", **more})
            assert found.json()["error"].startswith("actor: header: starts with b'XXXX'")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"keys": {"adapter.type": "dora"}}, "key 'adapter.type' is 'dora', needs 'lora'"),
        ({"rank": 8, "tensors": {"blk.0.attn_q.weight.lora_b": None}}, "lora_b is missing"),
        (
            {"tensors": {"blk.9.attn_q.weight.lora_a": np.zeros((4, 8), "f4")}},
            "blk.9.attn_q.weight.lora_b is missing",
        ),
        (
            {"tensors": {"blk.0.attn_q.weight.lora_a": np.zeros((4, 8), "f4")}},
            "lora_a is (4, 8), blk.0.attn_q.weight of the model is",
        ),
    ],
)
def test_an_adapter_that_does_not_fit_is_told_when_a_model_is_made(tmp_path, changes, said):
    lora = a_lora(tmp_path / "lora.gguf", bundled(), only=("attn_q",), **changes).read_bytes()
    digest = f"sha256:{hashlib.sha256(lora).hexdigest()}"
    with client_of(tmp_path / "store") as client:
        assert client.post(f"/api/blobs/{digest}", content=lora).status_code == 201
        body = {"model": "made", "from": "tale", "adapters": {"mine.gguf": digest}}
        told = lines(client.post("/api/create", json=body))
        assert "made" not in client.get("/api/tags").text
    assert told[-1]["error"].startswith("ADAPTER mine.gguf: ")
    assert said in told[-1]["error"]
