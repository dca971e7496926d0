"""Requests of megabytes: refused, or cut, before seconds are spent on them."""

import time

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")
from tests.server.serving import client_of


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store")) as client:
        yield client


BIG = "once upon a time " * 600_000


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {"prompt": BIG, "raw": True}),
        ("/api/chat", {"messages": [{"role": "user", "content": BIG}]}),
        ("/v1/completions", {"prompt": BIG}),
        ("/v1/messages", {"messages": [{"role": "user", "content": BIG}], "max_tokens": 1}),
        ("/completion", {"prompt": BIG}),
        ("/tokenize", {"content": BIG}),
        ("/v1/embeddings", {"input": BIG}),
        ("/api/chat", {"messages": [{"role": "user", "content": "🦙" * (10 << 18)}]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": BIG[: 4 << 20]}]}),
        ("/v1/rerank", {"query": "a", "documents": ["b", BIG]}),
    ],
)
def test_ten_megabytes_are_refused_at_once(client, path, body):
    begin = time.monotonic()
    found = client.post(path, json={"model": "tale", **body})
    assert (found.status_code, "characters" in found.text) == (400, True)
    assert time.monotonic() - begin < 5


def test_a_million_texts_are_refused_at_once(client):
    found = client.post("/v1/embeddings", json={"model": "tale", "input": ["a"] * 10**6})
    assert found.status_code == 400
    assert "1000000 texts, needs at most 16384" in found.json()["error"]["message"]


def test_of_ten_megabytes_that_may_be_cut_the_beginning_is_read(client):
    begin = time.monotonic()
    found = [
        client.post("/api/embed", json={"model": "tale", "input": text}).json()["embeddings"]
        for text in (BIG, BIG[:10_000])
    ]
    assert found[0] == found[1]
    assert time.monotonic() - begin < 5
