"""No thread is inside the graphics library when the interpreter ends."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.patience import PATIENCE
from wgpu_backend.graph.capabilities import DeviceInfo

pytestmark = pytest.mark.gpu

HEAD = """
import atexit, sys, threading, time
from tests.device.test_loss import *
from wgpu_backend.device.adapters import Devices

def daemon(act):
    threading.Thread(target=act, daemon=True).start()
"""


def ended(code: str) -> subprocess.CompletedProcess[str]:
    """What became of a process of its own."""
    command = [sys.executable, "-c", HEAD + code]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


AT_WORK = {
    "replays": "long.replay().wait()",
    "compiles": "stage.device.pipeline(shader(shader().text.replace('2.0', f'{next(number)}.0')))",
    "opens devices": "Device.open(Devices()[0]).close()",
}
GOES_ON = """
import itertools, random
number, done = itertools.count(3), threading.Event()
stage = Stage(Devices()[0], True)
big = [stage.device.buffer(1 << 20, purpose="inputs") for _ in range(2)]
steps = [double(stage.pipeline, *big), double(stage.pipeline, *big[::-1])] * 20
long = stage.device.program(steps, reads=[Binding(stage.b)])
def go_on():
    while True:
        {act}
        done.set()
daemon(go_on)
daemon(go_on)
done.wait(PATIENCE)
time.sleep(random.uniform(0, 0.02))
sys.exit(7)
"""


@pytest.mark.slow
@pytest.mark.parametrize("act", AT_WORK)
def test_a_daemon_thread_at_work_does_not_abort_the_end(adapter: DeviceInfo, act: str):
    done = ended(GOES_ON.format(act=AT_WORK[act]))
    assert done.returncode == 7, done.stderr[-2000:]


@pytest.mark.slow
def test_devices_are_closed_before_the_end(adapter: DeviceInfo):
    done = ended("""
atexit.register(lambda: print(stage.device.closed))  # called before the one of the package
stage = Stage(Devices()[0], True)
class Late:
    # What it needs is its own, as globals may be gone before it.
    def __del__(self, device=stage.device, say=print): say(device.closed)
late = Late()
""")
    assert (done.stdout.split(), done.returncode) == (["False", "True"], 0), done.stderr[-2000:]


@pytest.mark.slow
def test_what_comes_after_the_end_is_refused(adapter: DeviceInfo):
    code = """
import atexit
def late():
    for act in (lambda: stage.program.replay(), lambda: Device.open(), Devices):
        try: act()
        except DeviceError as error: print(error)
atexit.register(late)
"""
    command = [sys.executable, "-c", code + HEAD + "stage = Stage(Devices()[0], True)"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.stdout.count("the interpreter is ending") == 3, done.stdout + done.stderr
    assert done.returncode == 0


@pytest.mark.slow
def test_other_threads_are_waited_for(adapter: DeviceInfo):
    done = ended("""
stage = Stage(Devices()[0], True)
def work():
    time.sleep(0.2)
    print(numbers(stage.program.replay().wait()[0])[1])
threading.Thread(target=work).start()
""")
    assert done.stdout.split() == ["2.0"]
    assert done.returncode == 0
