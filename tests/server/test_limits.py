"""Clients that take their time or go, at a real socket or without one, and what errors name."""

import asyncio
import json
import logging
import socket
import threading
import time

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the extra [serve] is not installed")
import uvicorn
from uvicorn.server import ServerState

from tests.patience import PATIENCE, until
from tests.server.local_model import LocalModel
from tests.server.serving import by_hand, client_of
from wgpu_backend.errors import ModelError
from wgpu_backend.files.store.store import Store
from wgpu_backend.server.api import embeddings
from wgpu_backend.server.api.ollama import models
from wgpu_backend.server.app import make_app
from wgpu_backend.server.core import connections
from wgpu_backend.server.core.access import LOCAL, AccessControl
from wgpu_backend.server.core.completion import Completion, CompletionOutput
from wgpu_backend.server.core.state import Settings
from wgpu_backend.text.output_parsers import Content


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    before, connections.HEADER_SECONDS = connections.HEADER_SECONDS, 0.3
    app = make_app(Settings(Store(tmp_path_factory.mktemp("store")), None, pause_seconds=0.3))
    config = uvicorn.Config(app, port=0, http=connections.TimelyProtocol, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield server.servers[0].sockets[0].getsockname()[1]
    server.should_exit = True
    thread.join()
    connections.HEADER_SECONDS = before


def told(port, *pieces: bytes) -> bytes:
    """What the server says until it closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        for piece in pieces:
            client.sendall(piece)
            time.sleep(0.05)
        found = b""
        while piece := client.recv(4096):
            found += piece
        return found


def test_headers_that_do_not_end_are_not_waited_for(port):
    assert told(port) == b""
    assert told(port, b"GET / HT") == b""
    whole = b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n"
    assert told(port, whole, b"GET /").count(b"HTTP/1.1 200 OK") == 1


def test_headers_have_an_end(port):
    assert b" 400 " in told(port, b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000)


def test_headers_that_come_at_once_have_an_end():
    sent = []

    async def send(message):
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"x", b"x" * 70_000)]
    scope = {"type": "http", "method": "GET", "path": "/", "headers": headers}
    asyncio.run(AccessControl(None, Settings(None, None), {})(scope, None, send))
    assert (sent[0]["status"], b"needs at most 65536" in sent[1]["body"]) == (431, True)


@pytest.mark.parametrize(
    ("target", "host", "status"),
    [
        ("http://localhost/api/version", "localhost", 200),
        ("HTTP://127.0.0.1:11434/api%2Fversion?a=b", "evil.example", 200),
        ("http://evil.example/api/version", "localhost", 403),
        ("http:///api/version", "localhost", 403),
        ("ftp://localhost/api/version", "localhost", 404),
    ],
)
def test_a_url_in_the_paths_place_is_checked_by_its_host(target, host, status):
    async def app(scope, _receive, send):
        found = 200 if scope["path"] == "/api/version" else 404
        await send({"type": "http.response.start", "status": found, "headers": []})

    path = target.partition("?")[0]
    scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode()}
    sent = []

    async def send(message):
        sent.append(message)

    guard = AccessControl(app, Settings(None, None, hosts=LOCAL), {})
    asyncio.run(guard({**scope, "headers": [(b"host", host.encode())]}, None, send))
    assert sent[0]["status"] == status


def test_a_url_in_the_paths_place_is_served(port):
    head = b"GET http://localhost/api/version HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    assert b" 200 OK" in told(port, head)


def test_a_body_that_does_not_come_is_not_waited_for(port):
    head = b"POST /api/show HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 9\r\n\r\n"
    found = told(port, head, b"{")
    assert b" 408 " in found
    assert b"nothing came for 0.3 seconds" in found


def test_a_client_that_goes_amid_its_body_is_no_error_of_the_servers(port, caplog):
    path = b"/api/blobs/sha256:" + b"0" * 64
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as client:
        client.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nx")
        time.sleep(0.05)
    figure = b'status="499"'
    ask = b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    assert until(lambda: figure in told(port, ask))
    assert "Traceback" not in caplog.text


@pytest.mark.skipif(not hasattr(socket, "TCP_NOTSENT_LOWAT"), reason="the system has no such bound")
def test_the_system_holds_little_for_a_client_that_does_not_read():
    """Else megabytes go there, and pieces that nobody reads are not joined."""

    async def accepted():
        config = uvicorn.Config(None, lifespan="off")
        made = connections.TimelyProtocol(config, ServerState(), {})
        with (
            socket.create_server(("127.0.0.1", 0)) as served,
            socket.create_connection(served.getsockname()),
        ):
            loop, taken = asyncio.get_running_loop(), served.accept()[0]
            transport, _ = await loop.connect_accepted_socket(lambda: made, taken)
            found = transport.get_extra_info("socket")
            bound = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT)
            transport.close()
            await asyncio.sleep(0)
            return bound

    assert asyncio.run(accepted()) == connections.UNSENT


def test_who_does_not_read_is_left():
    async def stuck(_message):
        await asyncio.sleep(2 * PATIENCE)

    async def app(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})

    scope = {"type": "http", "method": "GET", "path": "/", "headers": []}
    guard = AccessControl(app, Settings(None, None, pause_seconds=0.05), {})
    begin = time.monotonic()
    asyncio.run(guard(scope, None, stuck))
    assert time.monotonic() - begin < PATIENCE


def test_a_request_of_two_lengths_ends_its_connection(port):
    """RFC 9112, 6.1: it may be a request in the body of another."""
    head = b"POST /api/show HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
    chunked = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    found = told(port, head + chunked, b"GET /api/version HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert found.lower().count(b"connection: close") == found.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("begun", [False, True])
def test_what_a_shutdown_cuts_off_is_told_in_the_apis_words(begun):
    sent = []

    async def app(_scope, _receive, send):
        if begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.sleep(2 * PATIENCE)

    async def send(message):
        sent.append(message)

    async def cut():
        scope = {"type": "http", "method": "GET", "path": "/v1/x", "headers": []}
        task = asyncio.ensure_future(
            AccessControl(app, Settings(None, None), {})(scope, None, send)
        )
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cut())
    assert sent[0]["status"] == (200 if begun else 503)
    assert begun or json.loads(sent[1]["body"])["error"]["message"] == "the server is shutting down"


USER = {"role": "user", "content": "Hi"}
STREAMS = {
    "/api/generate": {"prompt": "Hi"},
    "/api/chat": {"messages": [USER]},
    "/v1/chat/completions": {"messages": [USER]},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/messages": {"messages": [USER], "max_tokens": 9},
    "/v1/responses": {"input": "Hi"},
    "/completion": {"prompt": "Hi"},
    "/api/create": {"from": "tale", "model": "made"},
}


@pytest.mark.parametrize("path", STREAMS)
@pytest.mark.parametrize("amid", [True, False])
def test_no_error_names_a_folder_of_the_server(tmp_path, monkeypatch, caplog, path, amid):
    """Neither before a stream begins nor in its middle; the log has it whole."""
    root = (tmp_path / "store").absolute()
    wrong = ModelError(f"{root / 'blobs' / 'sha256-12'}: damaged; {root}: is read-only")

    async def fails(answer):
        if amid:
            yield CompletionOutput(0, [Content("Hel")])
        raise wrong

    def create(store, name, wanted, folder, tell, **_):
        if amid:
            tell("reading")
        raise wrong

    monkeypatch.setattr(Completion, "__aiter__", fails)
    with client_of(root) as client, caplog.at_level(logging.INFO, "wgpu_backend.server"):
        monkeypatch.setattr(models, "create", create)
        found = client.post(path, json={"model": "tale", "stream": True, **STREAMS[path]})
    assert found.status_code == (200 if amid else 500)
    assert "sha256-12: damaged; store: is read-only" in found.text
    assert str(tmp_path) not in found.text
    assert str(wrong) in caplog.text


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_before_its_answer_is_logged(tmp_path, caplog, stream):
    """As nginx does: no status of an answer was sent, so the log has 499."""
    sent = []

    async def send(message):
        sent.append(message)

    gone = asyncio.Event()
    gone.set()
    with client_of(tmp_path) as client, caplog.at_level(logging.INFO, "wgpu_backend.server"):
        body = {"model": "tale", "prompt": "Hi", "stream": stream}
        by_hand(client, "/api/generate", body, send, gone)
    [told] = [each.getMessage() for each in caplog.records if each.name == "wgpu_backend.server"]
    assert "POST  /api/generate  499  tale" in told
    assert told.endswith("the client has gone")


def test_a_client_that_goes_amid_its_answer_is_logged(tmp_path, caplog):
    sent, gone = [], asyncio.Event()

    async def send(message):
        sent.append(message)
        if message.get("body"):
            gone.set()
            await asyncio.Event().wait()

    with client_of(tmp_path) as client, caplog.at_level(logging.INFO, "wgpu_backend.server"):
        by_hand(client, "/api/generate", {"model": "tale", "prompt": "Hi"}, send, gone)
    [told] = [each.getMessage() for each in caplog.records if each.name == "wgpu_backend.server"]
    assert "POST  /api/generate  200  tale" in told
    assert told.endswith("the client has gone")


TEXTS = ["a fox", "the dog", "a bird"]
GOERS = {
    "/api/embed": {"input": TEXTS},
    "/v1/embeddings": {"input": TEXTS},
    "/embedding": {"content": TEXTS},
    "/rerank": {"query": "a", "documents": TEXTS},
}


@pytest.mark.parametrize("path", GOERS)
def test_texts_of_a_client_that_has_gone_are_not_computed(tmp_path, monkeypatch, path):
    gone, computed, sent = asyncio.Event(), [], []
    monkeypatch.setattr(embeddings, "_BATCH_TOKENS", 1)

    async def send(message):
        sent.append(message["type"])

    with client_of(tmp_path) as client:

        def compute(texts):
            computed.extend(texts)
            client.portal.call(gone.set)
            # The server notices the disconnect while the first text is computed.
            client.portal.call(asyncio.sleep, 0.2)
            return np.zeros((len(texts), 4), "f4")

        def embed(_self, texts, pooling=None):
            return compute(texts)

        monkeypatch.setattr(LocalModel, "embed", embed, raising=False)
        monkeypatch.setattr(
            LocalModel, "rerank", lambda _, __, texts: compute(texts)[:, 0], raising=False
        )
        by_hand(client, path, {"model": "tale", **GOERS[path]}, send, gone)
    assert computed == TEXTS[:1]
