"""What is at ``/`` and beside the page, without a browser."""

import re

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")
from tests.server.serving import client_of
from wgpu_backend.server.api import web

HTML = {"Accept": "text/html,application/xhtml+xml"}


def test_clients_and_browsers_get_what_they_look_for(tmp_path):
    with client_of(tmp_path, api_keys=("key",)) as client:
        assert client.get("/").text == "Ollama is running"
        assert client.head("/").status_code == 200
        page = client.get("/", headers=HTML)
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "unsafe" not in page.headers["content-security-policy"]
        assert "default-src 'none'" in page.headers["content-security-policy"]
        named = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
        assert "/page/page.js" in named
        for name in named:
            found = client.get(name)
            assert (found.status_code, found.headers["x-content-type-options"]) == (200, "nosniff")
        assert client.get("/page/none.js").status_code == 404
        assert client.get("/page/..%2Ffront.py").status_code == 404
        assert client.get("/inspect/machine").status_code == 401


def test_the_page_asks_nobody_else_and_has_nothing_inline():
    page = web.files("wgpu_backend.server").joinpath("page")
    texts = {each.name: each.read_text("utf-8") for each in page.iterdir()}
    for name, text in texts.items():
        assert not re.search(r"(src|href)=.(https?:)?//|@import|url\(|eval\(|innerHTML", text), name
        assert len(text.splitlines()) < 200, name
    assert not re.search(r"\sstyle=|\son\w+=|<script>", texts["index.html"])


def test_looks_into_a_model(tmp_path):
    with client_of(tmp_path) as client:
        body = {"model": "tale", "prompt": "Once upon a time", "layer": 1}
        found = client.post("/inspect/attention", json=body).json()
        assert "".join(found["tokens"]).endswith("Once upon a time")
        count = len(found["tokens"])
        assert {len(row) for head in found["weights"] for row in head} == {count}
        assert sum(found["weights"][0][-1]) == pytest.approx(1, abs=1e-2)
        passes = client.post("/inspect/graph", json={"model": "tale", "tokens": 8}).json()["passes"]
        assert [each["name"] for each in passes] == ["decode step at 8", "prompt of 8 tokens"]
        [running] = client.get("/inspect/machine").json()["models"]
        assert running["device"]["id"] == "cpu"
        assert running["memory"]["weights"] > 0
        assert len(running["engine"]["slots"]) == 2
        wrong = client.post("/inspect/attention", json={**body, "layer": 99})
        assert (wrong.status_code, "layer: 99" in wrong.json()["error"]) == (400, True)
        long = client.post("/inspect/attention", json={**body, "prompt": "a fox " * 99})
        assert (long.status_code, "needs 1 to 128" in long.json()["error"]) == (400, True)


def test_the_page_may_call_its_own_server_and_no_other_may(tmp_path):
    def status(client, origin, host, **headers):
        given = {"Origin": origin, "Host": host, **headers}
        return client.get("/api/tags", headers=given).status_code

    with client_of(tmp_path, hosts=()) as client:
        assert status(client, "http://10.0.0.5:11434", "10.0.0.5:11434") == 200
        assert status(client, "http://[::7]:80", "[::7]:80") == 200
        assert status(client, "http://10.0.0.6:11434", "10.0.0.5:11434") == 403
        assert status(client, "http://evil.example", "evil.example") == 403  # a name of its own
    with client_of(tmp_path, hosts=(), api_keys=("key",)) as client:
        key = {"X-Api-Key": "key"}
        assert status(client, "https://models.example", "models.example", **key) == 200
        assert status(client, "https://models.example", "models.example") == 401
