"""The spare worker process: it is used once, has finished its imports, and ends with its server."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.builders import tiny_model
from tests.patience import PATIENCE, until
from tests.server.worker.test_worker import asked, gone, signals
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create, open_stored
from wgpu_backend.server.worker.health import Health
from wgpu_backend.server.worker.messages import LoadSpec
from wgpu_backend.server.worker.remote import Workers
from wgpu_backend.server.worker.spare import Spare, Spares

Q = asked([1, 2, 3], max_tokens=3)


def spec_of(stored, _num_ctx, device):
    return LoadSpec(str(stored.path), device, num_ctx=64, num_parallel=2)


@pytest.fixture
def stored(tmp_path):
    path, store, name = tiny_model(tmp_path / "m.gguf"), Store(tmp_path), ModelName.parse("tiny")
    create(store, name, Modelfile(str(path)), tmp_path)
    return open_stored(store, name)


@pytest.fixture
def workers():
    made = Workers(Health(["cpu"]), spec_of, 4, spare_seconds=0.01)
    yield made
    made.close()
    made.close()


@pytest.mark.slow
def test_the_next_model_is_in_the_process_that_waited(workers, stored):
    first = workers(stored, None)
    assert until(lambda: workers.spares.pid)
    waiting = workers.spares.pid
    first.close()
    second = workers(stored, None)
    assert second.pid == waiting
    assert len(second.engine.submit(Q).result(PATIENCE).choices[0].tokens) == 3
    assert until(lambda: workers.spares.pid not in (None, waiting))
    last = workers.spares.pid
    second.close()
    workers.close()
    assert gone(last)
    workers.spares.prepare()
    time.sleep(0.05)
    assert workers.spares.pid is None


@pytest.mark.slow
@signals
def test_one_that_was_killed_is_passed_over(workers, stored):
    workers(stored, None).close()
    assert until(lambda: workers.spares.pid)
    waiting = workers.spares.pid
    os.kill(waiting, 9)
    assert until(lambda: workers.spares.pid is None)
    again = workers(stored, None)
    assert again.pid != waiting
    again.close()


@signals
def test_the_end_of_one_that_was_taken_is_told_to_who_has_it():
    spare, ends = Spare(), []
    channel = spare.hand_over(lambda *_: None, ends.append)
    os.kill(channel.pid, 9)
    assert until(lambda: ends)
    assert str(ends[0]) == "ended by SIGKILL"
    assert spare.hand_over(print, print) is None
    spare.close()


def test_without_any_a_process_is_started():
    spares = Spares(None)
    spares.prepare()
    assert spares.pid is None
    spares.close()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_it_opens_no_device_and_ends_with_a_server_that_is_killed():
    code = """
from wgpu_backend.server.worker.spare import Spare
import time
spare = Spare()
print(spare.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as server:
        pid = int(server.stdout.readline())
        maps = Path(f"/proc/{pid}/maps")
        assert until(lambda: "libwgpu_native" in maps.read_text())
        time.sleep(0.2)
        mapped = maps.read_text()
        opened = {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}
        server.kill()
    assert "libvulkan" not in mapped
    assert not any(each.startswith("/dev/dri") for each in opened)
    assert gone(pid, orphan=True)
