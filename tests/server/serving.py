"""A server without a socket, of the story model and of one that follows a script."""

import asyncio
import json
from pathlib import Path

from starlette.testclient import TestClient

import wgpu_backend as wb
from tests.server.local_model import LocalModel
from tests.server.scripted import scripted
from wgpu_backend.engine.loading import bundled
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create
from wgpu_backend.images.bundled import PICTURES, bundled_pictures
from wgpu_backend.server.app import make_app
from wgpu_backend.server.core.state import Settings


def by_hand(client: TestClient, path: str, body, send, gone=None) -> None:
    """Ask as a server of ASGI does: `send` gets messages; the client goes once `gone` is set."""

    async def ask():
        given = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

        async def receive():
            if given:
                return given.pop()
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        headers = [(b"host", b"testserver"), (b"content-type", b"application/json")]
        scope = {"type": "http", "method": "POST" if body else "GET", "path": path}
        await client.app({**scope, "query_string": b"", "headers": headers}, receive, send)

    client.portal.call(ask)


HOSTS = ("testserver", "localhost")


def opened(stored, num_ctx):
    more = {"mmproj": stored.projector, "num_ctx": num_ctx or 256, "num_parallel": 2}
    return wb.load(stored.path, device="cpu", **more)


def app_of(root: Path, hosts=HOSTS, opens=opened, wraps=None, **more):
    """A server of ``tale``, ``actor`` and the bundled model of pictures.

    `opens` makes a `LanguageModel`, or with `wraps` what that makes a server's model of.
    """
    wraps = wraps or (lambda model: LocalModel(model, more.get("max_queue", 512)))
    store = Store(root)
    wanted = Modelfile(str(bundled()), {"num_predict": 8}, system="")
    create(store, ModelName.parse("tale"), wanted, root)
    actor = Modelfile(str(scripted(root / "actor.gguf")), {}, system="")
    create(store, ModelName.parse("actor"), actor, root)
    pictures = {"pictures": {PICTURES: bundled_pictures()}, "picture_device": "cpu"}

    # Options of GPUs change nothing on the CPU.
    def local(stored, num_ctx, gpu=None):
        return wraps(opens(stored, num_ctx))

    return make_app(Settings(store, local, version="1", hosts=hosts, **{**pictures, **more}))


def client_of(root: Path, **more) -> TestClient:
    """Client of it, without a socket."""
    return TestClient(app_of(root, **more), raise_server_exceptions=False)


def lines(response):
    assert response.status_code == 200, response.text
    return [json.loads(line) for line in response.text.splitlines()]


def named_events(response):
    """Data of events that have a name, which is their type."""
    assert response.status_code == 200, response.text
    found = []
    for event in response.text.split("\n\n")[:-1]:
        name, data = event.splitlines()
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def events_of(response):
    """Data of events without a name, up to the last, which says that they are done."""
    assert response.status_code == 200, response.text
    found = [line.removeprefix("data: ") for line in response.text.splitlines() if line]
    assert found.pop() == "[DONE]"
    return [json.loads(event) for event in found]
