"""Dawn as the WebGPU implementation: what differs from wgpu-native, and how a device is chosen."""

import numpy as np
import pytest

from tests.device.kernels import double, floats, numbers, shader
from wgpu_backend.device import adapters, dawn
from wgpu_backend.device.buffers import Binding
from wgpu_backend.device.device import Device
from wgpu_backend.device.wgsl.module import load
from wgpu_backend.errors import DeviceError, DeviceLost, ShaderError
from wgpu_backend.graph.capabilities import DeviceInfo, MatrixUnit
from wgpu_backend.graph.wgsl_source import Inline

LISTED = DeviceInfo("vulkan:0", "card", api="Vulkan", pci_id="1:2", implementations=("wgpu",))


@pytest.fixture
def on_dawn(adapter):
    if not dawn.is_installed():
        pytest.skip('needs the package wgpudawn: pip install "wgpu-backend[dawn]"')
    with Device.open(adapter, implementation="dawn") as opened:
        yield opened


def config(component, result, m, n, k, subgroup=32):
    sizes = {"min_subgroup_size": subgroup, "max_subgroup_size": 64}
    types = {"component_type": component, "result_component_type": result}
    return {**types, "m": m, "n": n, "k": k, **sizes}


def test_the_largest_matrix_with_sums_in_f32_is_taken():
    listed = [
        config("f16", "f16", 32, 32, 32),
        config("f16", "f32", 16, 8, 8),
        config("f16", "f32", 16, 16, 16, 16),
        config("i8", "i32", 32, 32, 32),
    ]
    assert dawn.pick_matrix_unit(listed) == MatrixUnit(16, 16, 16, 16)
    assert dawn.pick_matrix_unit(listed[:1]) is None
    assert dawn.pick_matrix_unit([config("f16", "f32", 16, 16, 24)]) is None


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("fn main() { let a = subgroupAdd(1u); }", "enable subgroups; fn"),
        ("enable f16; fn main() { let a = subgroupAdd(1u); }", "enable subgroups; enable f16;"),
        ("fn main() { let a = workgroup(1u); }", "fn"),
        ("enable f16; alias A = subgroup_matrix_left<f16, 8, 8>;", "enable f16; enable subgroups;"),
    ],
)
def test_features_are_enabled_on_the_first_line(text, first):
    found = dawn.enable(text)
    assert found.startswith(first)
    assert found.count("\n") == text.count("\n")
    assert found.count("enable f16;") <= 1


def test_an_unknown_implementation_is_refused():
    with pytest.raises(DeviceError, match="'vulcan': known are auto, wgpu and dawn"):
        adapters.find_adapter(LISTED, "vulcan")


def test_the_environment_names_an_implementation(monkeypatch):
    monkeypatch.setenv("WGPU_BACKEND_IMPLEMENTATION", "metal")
    with pytest.raises(DeviceError, match="'metal': known are"):
        adapters.find_adapter(LISTED)


def test_dawn_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(dawn, "is_installed", lambda: False)
    with pytest.raises(DeviceError, match=r"not installed; pip install .*\[dawn\]"):
        adapters.find_adapter(LISTED, "dawn")


@pytest.mark.gpu
def test_a_program_gives_the_same_on_both(on_dawn, adapter):
    results = []
    with Device.open(adapter, implementation="wgpu") as native:
        for device in (on_dawn, native):
            a, b = floats(device, 64), floats(device, 64)
            steps = [double(device.pipeline(shader()), a, b)]
            program = device.program(steps, reads=[Binding(b)])
            results.append(numbers(program.replay().wait()[0]))
            assert [step.seconds >= 0 for step in program.timed()] == [True]
    np.testing.assert_array_equal(*results)
    assert on_dawn.info.implementation == "dawn"
    assert on_dawn.info.id == adapter.id


@pytest.mark.gpu
def test_an_error_of_tint_points_at_the_line(on_dawn):
    text = "@group(0) @binding(0) var<storage, read_write> y: array<u32>;\n"
    text += "@compute @workgroup_size(8)\nfn main() {\n    y[0] = nothing;\n}\n"
    with pytest.raises(ShaderError, match=r"bad:4: unresolved value 'nothing'\n4 │     y\[0\]"):
        on_dawn.pipeline(load(Inline("bad", text)))


@pytest.mark.gpu
def test_a_lost_device_is_an_error_and_no_abort(on_dawn):
    a = floats(on_dawn, 8)
    on_dawn.lose_for_test()
    for act in (lambda: on_dawn.read(a), lambda: on_dawn.write(a, bytes(4)), on_dawn.wait):
        with pytest.raises(DeviceLost, match="open a new one"):
            act()


@pytest.mark.gpu
def test_dawn_has_no_path_without_direct_calls(on_dawn, adapter):
    with pytest.raises(DeviceError, match="needs direct calls, but native=False forbids them"):
        Device.open(adapter, implementation="dawn", native=False)
