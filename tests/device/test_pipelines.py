from __future__ import annotations

import dataclasses
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.device.kernels import ADD_PARAM, DOUBLE, body, double, floats, numbers, shader
from tests.implementations import wgpu_native_only
from tests.patience import PATIENCE
from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding
from wgpu_backend.device.device import Device
from wgpu_backend.device.wgsl.module import BindingDecl
from wgpu_backend.errors import DeviceError, ShaderError

pytestmark = pytest.mark.gpu


def test_a_shader_is_compiled_once(fresh: Device):
    first = fresh.pipeline(shader())
    assert first is fresh.pipeline(shader())
    assert fresh.counters.pipelines == 1
    assert first is not fresh.pipeline(shader(trusted=True))
    assert fresh.counters.pipelines == 2


def test_threads_that_want_one_shader_compile_it_once(fresh: Device):
    broken = shader(DOUBLE.replace("a[id.x] * 2.0", "missing"))
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: fresh.pipeline(shader()), range(8)))
        failed = [pool.submit(fresh.pipeline, broken) for _ in range(8)]
    assert len(found) == fresh.counters.pipelines == 1
    assert {type(job.exception()) for job in failed} == {ShaderError}


@pytest.fixture
def held(monkeypatch) -> tuple[threading.Event, threading.Event]:
    """Compiling waits: set when it begins, and to be set for it to go on."""
    compiling, free = threading.Event(), threading.Event()

    def bounds(*_: object) -> None:
        compiling.set()
        assert free.wait(PATIENCE)

    monkeypatch.setattr("wgpu_backend.device.pipelines.check_bounds", bounds)
    return compiling, free


def test_the_device_is_free_while_a_shader_compiles(fresh: Device, held):
    compiling, free = held
    with ThreadPoolExecutor(1) as pool:
        job = pool.submit(fresh.pipeline, shader())
        assert compiling.wait(PATIENCE)
        a = floats(fresh, 3)
        assert numbers(fresh.read(a)) == [0.0, 1.0, 2.0]
        free.set()
        assert job.result() is fresh.pipeline(shader())


def test_closing_waits_for_what_compiles(fresh: Device, held):
    compiling, free = held
    with ThreadPoolExecutor(2) as pool:
        compiled = pool.submit(fresh.pipeline, shader())
        assert compiling.wait(PATIENCE)
        closed = pool.submit(fresh.close)
        while not fresh._pipelines._settled:
            time.sleep(0.001)
        with pytest.raises(DeviceError, match="double: the device is closing"):
            fresh.pipeline(shader(trusted=True))
        assert not closed.done()
        free.set()
        assert compiled.result().label == "double"
        closed.result()
    with pytest.raises(DeviceError, match="closed"):
        fresh.pipeline(shader())


@pytest.mark.parametrize("trusted", [False, True])
def test_a_shader_computes(either: Device, trusted: bool):
    pipeline = either.pipeline(shader(trusted=trusted))
    a, b = floats(either, 11), floats(either, 11)
    either.program([double(pipeline, a, b)]).replay()
    assert [2.0 * n for n in range(11)] == numbers(either.read(b))


def test_uniform_parameters_arrive(either: Device):
    bindings = (BindingDecl("params", 0, "uniform"), BindingDecl("b", 1, "read_write"))
    pipeline = either.pipeline(shader(ADD_PARAM, bindings, label="add"))
    params, b = either.buffer(4, purpose="params"), floats(either, 5)
    either.write(params, np.float32(10).tobytes())
    program = either.program([Dispatch(pipeline, (Binding(params), Binding(b)), (1, 1, 1))])
    program.replay()
    either.write(params, np.float32(100).tobytes())
    program.replay()
    assert numbers(either.read(b)) == [110.0, 111.0, 112.0, 113.0, 114.0]


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize(
    ("good", "bad", "says", "under"),
    [
        ("a[id.x] * 2.0", "a[id.x] * ;", "expected expression", ";"),
        ("a[id.x] * 2.0", "a[id.x] * missing", "missing", "missing"),
        ("a[id.x] * 2.0", "1u", "u32", "b[id.x]"),
    ],
)
@wgpu_native_only
def test_a_compile_error_points_at_the_file(
    either: Device, good: str, bad: str, says: str, under: str, trusted: bool
):
    broken = shader(DOUBLE.replace(good, bad), trusted=trusted)
    with pytest.raises(ShaderError) as caught:
        either.pipeline(broken)
    headline, line, caret = str(caught.value).splitlines()
    assert headline.startswith("double: shaders/double.wgsl:17: ")  # the 7th line, from line 11
    assert says in headline
    assert f"b[id.x] = {bad}" in line
    assert line[caret.index("^") :].startswith(under)


def test_an_error_found_late_points_at_the_function(device: Device):
    with pytest.raises(ShaderError, match=r"made: shaders/made.wgsl:11: .*return") as caught:
        device.pipeline(body("a[0] = f(2);", "fn f(x: i32) -> i32 { if (x > 1) { return 1; } }"))
    assert "fn f(x: i32)" in str(caught.value)


def test_a_line_without_an_origin_still_gives_its_number(device: Device):
    broken = dataclasses.replace(shader(DOUBLE.replace("2.0", "(")), origins=())
    with pytest.raises(ShaderError, match="double: line 7: "):
        device.pipeline(broken)


@wgpu_native_only
def test_a_binding_the_shader_has_but_does_not_declare_is_refused(device: Device):
    with pytest.raises(ShaderError, match="binding: 1"):
        device.pipeline(shader(bindings=(BindingDecl("a", 0, "read"),)))


def test_read_only_storage_is_really_read_only(device: Device):
    bindings = (BindingDecl("a", 0, "read"), BindingDecl("b", 1, "read"))
    with pytest.raises(ShaderError):
        device.pipeline(shader(bindings=bindings))


def test_a_missing_entry_point_is_refused(device: Device):
    with pytest.raises(ShaderError, match="mean"):
        device.pipeline(dataclasses.replace(shader(), entry="mean"))


def test_a_work_group_too_large_is_refused(device: Device):
    with pytest.raises(ShaderError):
        device.pipeline(shader(DOUBLE.replace("workgroup_size(8)", "workgroup_size(70000)")))


def test_after_an_error_the_device_goes_on(device: Device):
    with pytest.raises(ShaderError):
        device.pipeline(shader("nonsense"))
    a, b = floats(device, 3), floats(device, 3)
    device.program([double(device.pipeline(shader()), a, b)]).replay()
    assert numbers(device.read(b)) == [0.0, 2.0, 4.0]
