"""Requests of megabytes: refused, or cut, before seconds are spent on them."""

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")
from tests.builders import read_tokenizer
from tests.patience import seconds_of
from tests.server.serving import client_of
from wgpu_backend.engine.loading import bundled


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
def test_ten_megabytes_are_refused_unread(client, path, body):
    found = client.post(path, json={"model": "tale", **body})
    # A bound of its size, not a count: nothing was tokenized.
    words = ("has at least", "characters", "prompt is too long")
    bounded = any(word in found.text for word in words)
    assert (found.status_code, bounded) == (400, True)


def test_a_million_texts_are_refused_unread(client):
    found = client.post("/v1/embeddings", json={"model": "tale", "input": ["a"] * 10**6})
    assert found.status_code == 400
    assert "1000000 texts, needs at most 16384" in found.json()["error"]["message"]


@pytest.mark.slow
def test_of_ten_megabytes_that_may_be_cut_the_beginning_is_read(client):
    def embedded(text):
        return client.post("/api/embed", json={"model": "tale", "input": text}).json()["embeddings"]

    assert embedded(BIG) == embedded(BIG[:10_000])
    tokenizer = read_tokenizer(bundled())
    assert seconds_of(lambda: embedded(BIG), 3) < seconds_of(lambda: tokenizer.encode(BIG))
