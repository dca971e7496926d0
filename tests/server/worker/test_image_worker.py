"""Images made by a worker process: as in this process; a crash of the worker is an error."""

import io
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import closing

import numpy as np
import pytest
from PIL import Image

from tests.patience import PATIENCE
from tests.server.worker import losing
from tests.server.worker.test_worker import gone, signals
from wgpu_backend import images
from wgpu_backend.errors import BackendError, DeviceLost, NoDeviceLeft, OptionError, WorkerLost
from wgpu_backend.images.bundled import bundled_pictures
from wgpu_backend.server.worker import image_worker
from wgpu_backend.server.worker.channel import Exit
from wgpu_backend.server.worker.image_messages import ImageRequest
from wgpu_backend.server.worker.image_worker import ImageWorker

ENDLESS = 10_000  # steps


def order(steps=1, folder=None, **more):
    options = {"num_inference_steps": steps, "guidance_scale": 1.0, "seed": 5, **more}
    return ImageRequest("pictures", str(folder or bundled_pictures()), "a red circle", options)


class Begun:
    """An order that goes on in a thread, of which a step was told."""

    def __init__(self, worker, wanted):
        self._worker = worker
        self._wanted = wanted
        self._first = threading.Event()
        self._left = threading.Event()
        self._error = None
        self._thread = threading.Thread(target=self._paint, daemon=True)
        self._thread.start()
        assert self._first.wait(PATIENCE)

    def _paint(self):
        try:
            self._worker.generate(self._wanted, lambda *_: self._first.set(), self._left)
        except BackendError as error:
            self._error = error

    def cancel(self):
        self._left.set()
        self._worker.cancel(self._wanted)

    @property
    def error(self):
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self._error


def made(worker, wanted):
    """Pictures, and what was told of their steps."""
    told = []
    found = worker.generate(wanted, lambda *step: told.append(step), threading.Event())
    return [Image.open(io.BytesIO(png)) for png in found.pngs], told


@pytest.fixture(scope="module")
def worker():
    worker = ImageWorker("cpu")
    assert worker.pid is None
    yield worker
    pid = worker.pid
    worker.close()
    worker.close()
    assert pid is None or gone(pid)
    with pytest.raises(BackendError, match="the server is shutting down"):
        made(worker, order())


@pytest.mark.slow
def test_the_same_pictures_as_in_this_process_begun_with_any_picture(worker):
    begun = np.random.default_rng(1).random((64, 64, 3), np.float32)
    mask = Image.new("L", (64, 64))
    mask.paste(255, (0, 0, 40, 64))
    options = {"image": begun, "mask_image": mask, "num_images_per_prompt": 2}
    found, told = made(worker, order(2, **options))
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    with images.load(device="cpu") as pipeline:
        here = pipeline.generate("a red circle", **order(2, **options).options)
    for ours, theirs in zip(here.images, found, strict=True):
        assert ours.tobytes() == theirs.tobytes()
    assert found[1].text == {
        "prompt": "a red circle", "model": "pictures", "steps": "2", "seed": "6",
    }  # fmt: skip


@pytest.mark.slow
def test_another_folder_takes_the_place_of_the_one_before(worker, tmp_path):
    other = shutil.copytree(bundled_pictures(), tmp_path / "other")
    [first], _ = made(worker, order())
    pid = worker.pid
    assert made(worker, order(folder=other))[0][0].tobytes() == first.tobytes()
    shutil.rmtree(other)
    made(worker, order())
    with pytest.raises(BackendError, match="other"):
        made(worker, order(folder=other))  # its files were closed, so they are looked for
    assert worker.pid == pid


def test_what_is_asked_for_wrongly_is_told_and_the_process_stays(worker):
    made(worker, order())
    pid = worker.pid
    with pytest.raises(OptionError, match="needs multiples of 64"):
        made(worker, order(width=100, height=100))
    with pytest.raises(OptionError, match="generate: got an unexpected keyword argument 'teapot'"):
        made(worker, order(teapot=1))
    made(worker, order())
    assert worker.pid == pid


@pytest.mark.slow
def test_one_who_leaves_ends_the_work_before_or_while_it_is_done(worker):
    under_way = Begun(worker, order(ENDLESS))
    under_way.cancel()
    assert "the client has gone" in str(under_way.error)
    left = threading.Event()
    left.set()
    with pytest.raises(BackendError, match="the client has gone"):
        worker.generate(order(ENDLESS), lambda *_: None, left)
    made(worker, order())


@pytest.mark.slow
@signals
@pytest.mark.parametrize(
    ("sent", "counts"), [("SIGKILL", 0), pytest.param("SIGABRT", 1, marks=pytest.mark.slow)]
)
def test_a_process_that_dies_fails_its_order_and_the_next_has_another(
    worker, sent, counts, monkeypatch
):
    lost = []
    monkeypatch.setattr(worker._health, "lost", lambda *which: lost.append(which))
    under_way = Begun(worker, order(ENDLESS))
    pid = worker.pid
    os.kill(pid, getattr(signal, sent))
    told = f"pictures: its worker process ended by {sent}; send the request again"
    assert isinstance(under_way.error, WorkerLost)
    assert str(under_way.error) == told
    assert lost == [("cpu", under_way.error)] * counts
    assert gone(pid)
    assert len(made(worker, order())[0]) == 1
    assert worker.pid != pid


@pytest.mark.slow
@signals
def test_one_that_died_idle_or_unseen_is_replaced_without_an_error(worker):
    made(worker, order())
    os.kill(worker.pid, signal.SIGKILL)
    made(worker, order())  # at once: mostly nobody has seen the end yet
    pid = worker.pid
    os.kill(pid, signal.SIGSTOP)  # takes nothing in, as one that is just ending
    os.waitpid(pid, os.WUNTRACED)  # a busy machine stops its threads one after another
    ending = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
    ending.start()
    assert len(made(worker, order())[0]) == 1
    assert worker.pid != pid


def test_one_that_cannot_start_is_told_and_not_tried_for_ever(monkeypatch):
    monkeypatch.setattr(sys, "path", [])
    with closing(ImageWorker("cpu")) as worker:
        for _ in range(2):
            with pytest.raises(WorkerLost, match="its worker process ended with code 1"):
                made(worker, order())


def test_after_three_crashes_within_a_minute_there_is_no_device():
    with closing(ImageWorker("cpu")) as worker:
        for _ in range(3):
            worker._lost(WorkerLost("again"))
        with pytest.raises(NoDeviceLeft, match="cpu was lost 3 times within 60 s"):
            made(worker, order())
        assert worker.pid is None


@pytest.mark.slow
def test_its_end_does_not_wait_for_the_picture():
    worker = ImageWorker("cpu")
    under_way = Begun(worker, order(ENDLESS))
    pid, begin = worker.pid, time.monotonic()
    worker.close()
    assert time.monotonic() - begin < PATIENCE
    assert isinstance(under_way.error, BackendError)
    assert gone(pid)


class Silent:
    """A process that takes an order, and is not heard of again."""

    pid = 1

    def __init__(self, told, ended, _program):
        self._told, self._ended = told, ended

    def post(self, message, _raw=b""):
        threading.Thread(target=self.answer, args=(message["id"],)).start()

    def answer(self, number):
        self._told({"type": "begun", "id": number}, b"")

    def kill(self):
        self._ended(Exit(-9))


def test_one_that_hangs_is_ended_and_told(monkeypatch):
    monkeypatch.setattr(image_worker, "Channel", Silent)
    worker = ImageWorker("cpu", hang_seconds=0.2)
    for _ in range(3):
        with pytest.raises(
            WorkerLost, match=r"reported nothing for 0\.2 s and was ended; send the req"
        ):
            made(worker, order())
        assert worker.pid is None
    with pytest.raises(NoDeviceLeft, match="cpu was lost 3 times within 60 s"):
        made(worker, order())


@pytest.mark.slow
def test_one_that_tells_of_its_steps_is_left_alone(monkeypatch):
    class Slow(Silent):
        def answer(self, number):
            for done in range(30):
                time.sleep(0.1)
                self._told({"type": "step", "id": number, "done": done + 1, "all": 30}, b"")
            self._told({"type": "finished", "id": number, "steps": 30}, b"")

    monkeypatch.setattr(image_worker, "Channel", Slow)
    assert made(ImageWorker("cpu", hang_seconds=2), order())[1][-1] == (30, 30)


@pytest.mark.slow
@signals
def test_it_does_not_outlive_a_server_that_is_killed():
    code = """
from tests.server.worker.test_image_worker import *
worker = ImageWorker("cpu")
Begun(worker, order(ENDLESS))
print(worker.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as server:
        pid = int(server.stdout.readline())
        server.kill()
    assert gone(pid, orphan=sys.platform == "linux")


@pytest.mark.slow
@signals
@pytest.mark.gpu
def test_a_lost_device_is_told_and_the_next_order_has_a_new_one(full, monkeypatch):
    monkeypatch.setattr(image_worker, "imported_files", lambda: [losing.__file__])
    with closing(ImageWorker(full.info.id)) as worker:
        under_way = Begun(worker, order(ENDLESS))
        pid = worker.pid
        os.kill(pid, signal.SIGUSR1)
        assert isinstance(under_way.error, DeviceLost)
        assert "pictures: the device was lost (" in str(under_way.error)
        assert "; send the request again" in str(under_way.error)
        assert gone(pid)
        assert len(made(worker, order())[0]) == 1


@pytest.mark.slow
def test_a_server_imports_no_pipelines():
    code = (
        "import sys, wgpu_backend.server.app, wgpu_backend.server.worker.remote\n"
        "print([name for name in sys.modules if name.split('.')[0] == 'PIL' "
        "or name.startswith(('wgpu_backend.images.pipelines', 'wgpu_backend.array'))])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    assert found.stdout.strip() == "[]"
