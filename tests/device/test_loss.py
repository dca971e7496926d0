"""A device that is lost, forked or misused must answer with our exceptions, never abort."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.device.kernels import double, floats, numbers, shader
from tests.implementations import ON_DAWN, wgpu_native_only
from tests.patience import PATIENCE
from wgpu_backend.device.buffers import Binding, Buffer
from wgpu_backend.device.device import Device
from wgpu_backend.device.pipelines import Pipeline
from wgpu_backend.device.program import Program
from wgpu_backend.errors import BackendError, DeviceError, DeviceLost  # noqa: F401  # `survives`
from wgpu_backend.graph.capabilities import DeviceInfo

pytestmark = pytest.mark.gpu


class Stage:
    """A device with one of everything on it."""

    def __init__(self, adapter: DeviceInfo, native: bool) -> None:
        self.device = Device.open(adapter, native=native)
        self.pipeline: Pipeline = self.device.pipeline(shader())
        self.a: Buffer = floats(self.device, 8)
        self.b: Buffer = floats(self.device, 8)
        steps = [double(self.pipeline, self.a, self.b)]
        self.program: Program = self.device.program(steps, reads=[Binding(self.b)])

    def prepared(self) -> Stage:
        """Itself, with the next replay's commands recorded."""
        for _ in range(2):
            self.program.replay().wait()
        assert self.program.prepared
        return self


ACTS: dict[str, Callable[[Stage], object]] = {
    "buffer": lambda s: s.device.buffer(4096, purpose="inputs"),
    "write": lambda s: s.device.write(s.a, bytes(32)),
    "read": lambda s: s.device.read(s.a),
    "clear": lambda s: s.device.clear(s.a),
    "pipeline": lambda s: s.device.pipeline(shader(shader().text.replace("2.0", "3.0"))),
    "trusted": lambda s: s.device.pipeline(shader(trusted=True)),
    "program": lambda s: s.device.program([double(s.pipeline, s.b, s.a)]),
    "replay": lambda s: s.program.replay(),
    "timed": lambda s: s.program.timed(),
    "wait": lambda s: s.device.wait(),
    "again": lambda s: s.program.replay().wait(),
}


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("act", ACTS)
def test_every_call_on_a_lost_device_says_so(adapter: DeviceInfo, act: str, native: bool):
    stage = Stage(adapter, native)
    stage.device.lose_for_test()
    for _ in range(2):
        with pytest.raises(DeviceLost, match="open a new one"):
            ACTS[act](stage)
        assert stage.device.lost
    stage.a.release()
    stage.device.trim()
    stage.device.close()
    assert stage.device.memory_report().count == 0


@pytest.mark.parametrize("native", [True, False])
def test_commands_recorded_before_the_device_was_lost_are_not_submitted(
    adapter: DeviceInfo, native: bool
):
    stage = Stage(adapter, native).prepared()
    stage.device.lose_for_test()
    for _ in range(2):
        with pytest.raises(DeviceLost, match="open a new one"):
            stage.program.replay()
    stage.program.close()
    stage.device.close()


@pytest.mark.parametrize("native", [True, False])
def test_a_result_under_way_when_the_device_is_lost(adapter: DeviceInfo, native: bool):
    stage = Stage(adapter, native)
    pending, read = stage.program.replay(), stage.program.replay()
    data = read.wait()
    stage.device.lose_for_test()
    try:
        # What had been computed may still be there; else the loss is told.
        assert numbers(pending.wait()[0])[1] == 2.0
    except DeviceLost:
        assert stage.device.lost
    assert numbers(data[0])[1] == 2.0
    stage.device.close()


def test_loss_is_not_printed(adapter: DeviceInfo, caplog: pytest.LogCaptureFixture):
    stage = Stage(adapter, native=True)
    with caplog.at_level("WARNING"):
        stage.device.lose_for_test()
        with pytest.raises(DeviceLost):
            stage.program.replay()
        stage.device.close()
    assert caplog.text == ""


def test_after_a_loss_a_new_device_works(adapter: DeviceInfo):
    with Stage(adapter, native=True).device as lost:
        lost.lose_for_test()
        with Device.open(adapter) as again:
            assert numbers(again.read(floats(again, 3))) == [0.0, 1.0, 2.0]


def survives(code: str) -> str:
    """Run code in a process of its own, which must end normally; return what it printed."""
    lines = [
        "from tests.device.kernels import *",
        "from tests.device.test_loss import *",
        "from wgpu_backend.device.adapters import Devices",
        code,
        "print('survived')",
    ]
    command = [sys.executable, "-X", "faulthandler", "-c", "\n".join(lines)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.endswith("survived\n")
    return done.stdout


PATHS = (True,) if ON_DAWN else (True, False)  # Dawn is always called directly
LOSE_EVERYWHERE = (
    f"PATHS = {PATHS}"
    + """
import itertools
info = Devices()[0]
def rounds(native, when):
    stage = Stage(info, native)
    try:
        for number, act in enumerate([*ACTS.values(), *ACTS.values()]):
            if number == when:
                stage.device.lose_for_test()
            act(stage)
        assert when == 99
    except DeviceLost:
        print("lost")
    stage.device.close()
for native, when in itertools.product(PATHS, [*range(0, 20, 3), 99]):
    rounds(native, when)
"""
)


@pytest.mark.slow
def test_losing_the_device_at_any_point_ends_no_process():
    assert survives(LOSE_EVERYWHERE).count("lost") == 7 * len(PATHS)


LOSE_FROM_A_THREAD = (
    f"PATHS = {PATHS}"
    + """
import random, threading, time
rng = random.Random(1)
def lose(device, after):
    time.sleep(after)
    device.lose_for_test()
for native in PATHS * (16 // len(PATHS)):
    stage = Stage(Devices()[0], native)
    stage.program.replay().wait()
    begin = time.perf_counter()
    for act in ACTS.values(): act(stage)
    after = rng.uniform(0, 1.5 * (time.perf_counter() - begin))
    loser = threading.Thread(target=lose, args=(stage.device, after))
    loser.start()
    try:
        while True:
            pending = [stage.program.replay() for _ in range(3)]
            for each in pending: each.wait()
            for act in ACTS.values(): act(stage)
    except DeviceLost:
        print("lost")
    loser.join()
    stage.device.close()
"""
)


@pytest.mark.slow
def test_a_loss_from_another_thread_at_any_moment_ends_no_process():
    assert survives(LOSE_FROM_A_THREAD).count("lost") == 16


LOSE_WHAT_IS_MAPPED = """
from wgpu_backend.device.native import Native
poll = Native.poll
def then_lost(native, gpu, index=None):
    poll(native, gpu, index)
    native.destroy(gpu)
    poll(native, gpu)  # destroys the buffers of a lost device
stage = Stage(Devices()[0], True)
pending = stage.program.replay()
Native.poll = then_lost
try: pending.wait()
except DeviceLost: print("lost")
Native.poll = poll
stage.device.close()
"""


@pytest.mark.slow
@wgpu_native_only
def test_what_was_mapped_before_a_loss_is_not_touched_after_it():
    assert survives(LOSE_WHAT_IS_MAPPED).count("lost") == 1


ABORTING = {
    "replaying over a destroyed buffer": """
with Device.open() as d:
    a, b = d.buffer(64, purpose="weights"), floats(d, 16)
    program = d.program([double(d.pipeline(shader()), a, b)])
    a.release()  # weights are destroyed at once
    try: program.replay()
    except BackendError: print("refused")
""",
    "replaying what was recorded over a destroyed buffer": """
for native in (True, False):
    stage = Stage(Devices()[0], native).prepared()
    with stage.device:
        stage.a.release()
        stage.device.trim()
        try: stage.program.replay()
        except BackendError: print("refused")
""",
    "destroying a buffer with a write under way": """
with Device.open() as d:
    for _ in range(20):
        a = d.buffer(1 << 20, purpose="weights")
        d.write(a, bytes(1 << 20))
        a.release()
        d.wait()
""",
    "destroying buffers in use": """
with Device.open() as d:
    pipeline = d.pipeline(shader())
    for _ in range(20):
        a, b = d.buffer(1 << 20, purpose="weights"), d.buffer(1 << 20, purpose="cache")
        program = d.program([double(pipeline, a, b)] * 20)
        program.replay()
        a.release()
        b.release()
        program.close()
""",
    "replaying after close": """
d = Device.open()
a, b = floats(d, 16), floats(d, 16)
program = d.program([double(d.pipeline(shader()), a, b)], reads=[Binding(b)])
pending = program.replay()
d.close()
for act in (program.replay, program.timed, pending.wait, program.close, a.release, d.close):
    try: act()
    except BackendError: print("refused")
""",
    "dropping everything in any order": """
import gc
d = Device.open()
a, b = floats(d, 16), floats(d, 16)
program = d.program([double(d.pipeline(shader()), a, b)], reads=[Binding(b)])
pending = program.replay()
del d, a, b
gc.collect()
program.replay().wait()
del program
gc.collect()
pending.wait()
del pending
gc.collect()
""",
    "dropping a program with commands recorded": """
import gc
for native in (True, False):
    stage = Stage(Devices()[0], native).prepared()
    del stage.program
    gc.collect()
    stage.device.close()
    stage = Stage(Devices()[0], native).prepared()
    stage.device.close()
    del stage
    gc.collect()
    stage = Stage(Devices()[0], native).prepared()  # open at exit
""",
    "leaving a device open at exit": """
d = Device.open()
a, b = floats(d, 16), floats(d, 16)
program = d.program([double(d.pipeline(shader()), a, b)], reads=[Binding(b)])
pending = program.replay()
""",
    "what overflows the compiler": """
from tests.device.test_wgsl_bounds import FATAL, HUGE
with Device.open() as d:
    for made in [*FATAL.values(), *HUGE.values()]:
        try: d.pipeline(made)
        except BackendError: print("refused")
""",
}


@pytest.mark.parametrize("code", ABORTING.values(), ids=ABORTING)
@wgpu_native_only
def test_what_aborts_wgpu_does_not_abort_us(adapter: DeviceInfo, code: str):
    survives(code)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_is_told_to_spawn(adapter: DeviceInfo):
    code = """
import os
stage = Stage(Devices()[0], True)
child = os.fork()
if not child:
    told = 0
    for act in ACTS.values():
        try: act(stage)
        except DeviceError as error: told += "spawn" in str(error)
    stage.a.release()
    stage.device.close()
    os._exit(0 if told == len(ACTS) else 1)
assert os.waitpid(child, 0)[1] == 0
assert numbers(stage.program.replay().wait()[0])[1] == 2.0
"""
    survives(code)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_forked_child_ends_by_itself(adapter: DeviceInfo):
    code = """
import os, sys
stage = Stage(Devices()[0], True)
if not os.fork():
    sys.exit(7)  # through all of the interpreter's own end, where objects are released
assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
assert numbers(stage.program.replay().wait()[0])[1] == 2.0
"""
    survives(code)
