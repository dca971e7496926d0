"""A server whose models are in workers: one that dies is reported, loaded again, and used."""

import json
import os
import signal
import threading
import time
from contextlib import suppress

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.testclient import TestClient

from tests.builders import tiny_model
from wgpu_backend.errors import BackendError, DeviceLost, OptionError, WorkerLost
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create
from wgpu_backend.server import app as server_app
from wgpu_backend.server.core.endpoint import Endpoint
from wgpu_backend.server.core.schema import Field
from wgpu_backend.server.core.state import Settings, State
from wgpu_backend.server.worker.health import Health
from wgpu_backend.server.worker.messages import LoadSpec
from wgpu_backend.server.worker.remote import Workers

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs signals")
ASK = {"model": "tiny", "prompt": "the", "raw": True, "options": {"num_predict": 4, "seed": 1}}
ENDLESS = {**ASK, "options": {"num_predict": 10**6, "temperature": 0, "num_ctx": 64}}


class Served:
    """A server, what it has loaded, and its devices."""

    def __init__(self, root, monkeypatch, devices=("cpu",)):
        states = []

        def noted(settings):
            states.append(State(settings))
            return states[-1]

        monkeypatch.setattr(server_app, "State", noted)
        store = Store(root)
        path = tiny_model(root / "model.gguf")
        create(store, ModelName.parse("tiny"), Modelfile(str(path)), root)
        self.health = Health(devices)
        workers = Workers(
            self.health,
            lambda stored, num_ctx, _: LoadSpec(
                str(stored.path), "cpu", num_ctx=num_ctx or 64, num_parallel=2
            ),
            max_queue=8,
        )
        self.client = TestClient(
            server_app.make_app(Settings(store, workers)), raise_server_exceptions=False
        )
        [self.state] = states

    def ask(self, body=ASK, **more):
        return self.client.post("/api/generate", json={**body, **more})

    @property
    def pids(self):
        return [each.model.pid for each in self.state.pool.list_models() if not each.lost]

    def kill(self, answers, sent=signal.SIGKILL, ended=()):
        """End the worker as soon as it makes so many answers, one that was not ended before."""
        while True:
            with suppress(BackendError):  # lost, or replaced between two lines
                pids, busy = self.pids, self.answers >= answers
                if busy and pids and pids == self.pids and pids[0] not in ended:
                    os.kill(pids[0], sent)
                    return pids[0]
            time.sleep(0.01)

    @property
    def answers(self):
        """Answers of which there is text."""
        found = [each for each in self.state.pool.list_models() if not each.lost]
        slots = found[0].engine.status().slots if found else ()
        return sum(slot is not None and slot.completion_tokens > 4 for slot in slots)


def asked_and_killed(served, *asks, signals=(signal.SIGKILL,)):
    """What came of requests whose worker was ended meanwhile, as was each that came for it."""
    found = []
    threads = [threading.Thread(target=lambda ask=ask: found.append(ask())) for ask in asks]
    for thread in threads:
        thread.start()
    ended: list[int] = []
    for sent in signals:
        ended.append(served.kill(len(asks), sent, ended))
    for thread in threads:
        thread.join()
    return found


@pytest.mark.slow
def test_killed_workers_are_told_to_who_asked_and_replaced(tmp_path, monkeypatch, caplog):
    served = Served(tmp_path, monkeypatch, ("one", "two"))
    with served.client:
        assert served.ask(stream=False).status_code == 200
        first = served.pids
        [streamed] = asked_and_killed(served, lambda: served.ask(ENDLESS))
        last = json.loads(streamed.text.splitlines()[-1])
        assert last["status"] == 500
        assert "worker process ended by SIGKILL" in last["error"]
        assert len(streamed.text.splitlines()) > 1
        found = asked_and_killed(
            served,
            lambda: served.ask(ENDLESS, stream=False),
            lambda: served.ask({**ENDLESS, "prompt": "and the"}, stream=False),
            signals=(signal.SIGKILL, signal.SIGABRT),  # what was run again is not, once more
        )
        assert [each.status_code for each in found] == [500, 500]
        assert "ended by SIGABRT" in found[0].json()["error"]
        assert served.ask(stream=False).json()["eval_count"] == 4
        assert served.pids != first
        [running] = served.client.get("/api/ps").json()["models"]
        assert (running["name"], running["context_length"]) == ("tiny:latest", 64)
        # Nothing of it is on a GPU.
        assert (running["size_vram"], running["size"] > 300_000) == (0, True)
        assert "tokens_predicted_total" in served.client.get("/metrics").text
        # A crash is a loss of the device, a kill is none.
        for _ in range(2):
            assert served.health.choose() == "one"
            served.health.lost("one", DeviceLost("again"))
        assert served.health.choose() == "two"
    assert "one was lost 3 times within 60 s" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/api/generate", {**ASK, "stream": False}),
        ("/api/generate", ASK),
        (
            "/v1/completions",
            {"model": "tiny", "prompt": "the", "max_tokens": 4, "seed": 1, "stream": True},
        ),
        ("/completion", {"model": "tiny", "prompt": "the", "n_predict": 4, "stream": True}),
        ("/api/embed", {"model": "tiny", "input": ["the", "and"]}),
    ],
)
def test_requests_right_behind_a_kill_are_run_again(tmp_path, monkeypatch, path, body):
    served = Served(tmp_path, monkeypatch, ("one",))
    with served.client:
        first = served.client.post(path, json=body)
        assert first.status_code == 200
        os.kill(served.pids[0], signal.SIGKILL)
        again = served.client.post(path, json=body)
        assert again.status_code == 200
        assert "error" not in again.text


@pytest.mark.parametrize(
    ("error", "failures", "made", "status"),
    [
        (WorkerLost("gone"), 1, 2, 200),
        (DeviceLost("gone"), 1, 2, 200),
        (WorkerLost("gone"), 2, 2, 500),
        (WorkerLost("it hangs", hung=True), 1, 1, 500),
        (OptionError("wrong"), 1, 1, 500),
    ],
)
def test_a_request_of_which_nothing_was_sent_is_run_again_once(error, failures, made, status):
    calls = []

    async def answer(_, fields):
        calls.append(fields.text("name"))
        if len(calls) <= failures:
            raise error
        return JSONResponse(len(calls))

    endpoint = Endpoint("Ollama", "POST", "/x", "a test", answer, {"name": Field((str,))})
    client = TestClient(Starlette(routes=[endpoint.route()]), raise_server_exceptions=False)
    assert client.post("/x", json={"name": "a"}).status_code == status
    assert calls == ["a"] * made


def test_where_no_device_is_left_clients_are_to_come_again(tmp_path, monkeypatch):
    served = Served(tmp_path, monkeypatch)
    for _ in range(3):
        served.health.lost("cpu", DeviceLost("again"))
    with served.client:
        refused = served.ask()
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
    assert "no device is left: cpu was lost 3 times" in refused.json()["error"]


@pytest.mark.slow
def test_slots_of_a_worker_that_is_just_going_are_none(tmp_path, monkeypatch):
    served = Served(tmp_path, monkeypatch, ("one",))
    with served.client:
        assert served.ask(stream=False).status_code == 200
        [loaded] = served.state.pool.list_models()

        def status():
            raise WorkerLost("one: its worker process ended")

        monkeypatch.setattr(loaded.engine, "status", status)
        for path in ("/slots", "/metrics"):
            assert served.client.get(path).status_code == 200
        assert served.client.get("/slots").json() == []
