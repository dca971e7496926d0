"""Dawn as the WebGPU implementation: what differs from wgpu-native, and how a device is chosen."""

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from cffi import FFI

from tests.device.kernels import double, floats, numbers, shader
from wgpu_backend.device import adapters, dawn, native
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
        pytest.skip('needs the package wgpudawn: pip install ".[dawn]"')
    with Device.open(adapter, implementation="dawn") as opened:
        yield opened


def config(component, result, m, n, k, subgroup=32):
    sizes = {"min_subgroup_size": subgroup, "max_subgroup_size": 64}
    types = {"component_type": component, "result_component_type": result}
    return {**types, "m": m, "n": n, "k": k, **sizes}


def test_calls_are_made_without_the_types_of_wgpu_native_alone():
    ffi = FFI()
    kinds = ("CommandEncoder", "ComputePass", "CommandBuffer")
    ffi.cdef(
        "typedef void* WGPUCommandBuffer;"
        + "".join(f"typedef struct {{ int x; }} WGPU{kind}Descriptor;" for kind in kinds)
    )
    native.Native(SimpleNamespace(ffi=ffi, lib=None, libf=None))


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
        (
            "enable f16; var<private> checked_loops_over: bool; fn main() {}",
            "enable chromium_disable_uniformity_analysis; enable f16; var",
        ),
    ],
)
def test_features_are_enabled_on_the_first_line(text, first):
    found = dawn.enable(text)
    assert found.startswith(first)
    assert found.count("\n") == text.count("\n")
    assert found.count("enable f16;") <= 1


class ListedDevice:
    """An opened device with the features that were requested, on subgroups of some sizes."""

    def __init__(self, features, least=32, most=32):
        sizes = {"stackgroup_min_size": least, "stackgroup_max_size": most, "device": "card"}
        self.features, self.adapter = set(features), SimpleNamespace(info=sizes)


class ListedAdapter:
    """An adapter of wgpu-native that lists matrix units, and grants them or not."""

    features: ClassVar = {"shader-f16", native.MATRICES, "subgroup"}

    def __init__(self, *, grants):
        self.grants, self.requests = grants, []

    def request_device_sync(self, *, required_features, required_limits):
        self.requests.append(sorted(required_features))
        if native.MATRICES in required_features and not self.grants:
            raise RuntimeError("Request device failed (3): experimental features are not enabled")
        return ListedDevice(required_features)


@pytest.mark.parametrize("grants", [True, False])
def test_matrix_units_are_requested_of_wgpu_native_and_done_without(grants):
    adapter = ListedAdapter(grants=grants)
    opened = adapters.open_adapter(LISTED, adapter, "full")
    with_units = sorted(["shader-f16", native.MATRICES, "subgroup"])
    without = ["shader-f16", "subgroup"]
    assert adapter.requests == ([with_units] if grants else [with_units, without])
    unit = MatrixUnit(16, 16, 16, 32, "naga") if grants else None
    assert native.find_matrix_unit(opened, "Vulkan") == unit


def test_the_baseline_profile_requests_no_matrix_units():
    adapter = ListedAdapter(grants=True)
    adapters.open_adapter(LISTED, adapter, "baseline")
    assert adapter.requests == [[]]


def test_units_of_wgpu_native_need_subgroups_of_one_size():
    features = [native.MATRICES]
    assert native.find_matrix_unit(ListedDevice(features, 32, 64), "Vulkan") is None
    assert native.find_matrix_unit(ListedDevice([]), "Vulkan") is None
    assert native.find_matrix_unit(ListedDevice(features), "Metal") == MatrixUnit(
        8, 8, 8, 32, "naga"
    )


def test_naga_gets_its_dialect_on_the_first_line():
    plain = "fn main() { let a = subgroupAdd(1u); }"
    assert native.enable(plain) == plain
    text = "enable f16; alias A = coop_mat8x8<f16, A>;\n@workgroup_size(WG) @subgroup_size(SIZE)\n"
    assert native.enable(text) == (
        "enable wgpu_cooperative_matrix; enable f16; alias A = coop_mat8x8<f16, A>;\n"
        "@workgroup_size(WG)\n"
    )


def test_an_unknown_implementation_is_refused():
    with pytest.raises(DeviceError, match="'vulcan': unknown, needs auto, wgpu or dawn"):
        adapters.find_adapter(LISTED, "vulcan")


def test_the_environment_names_an_implementation(monkeypatch):
    monkeypatch.setenv("WGPU_BACKEND_IMPLEMENTATION", "metal")
    with pytest.raises(DeviceError, match="'metal': unknown, needs auto"):
        adapters.find_adapter(LISTED)


def test_dawn_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(dawn, "is_installed", lambda: False)
    with pytest.raises(DeviceError, match=r"not installed; `pip install .*\[dawn\]"):
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
