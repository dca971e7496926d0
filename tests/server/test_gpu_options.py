"""Requests and commands that place layers: what is read, loaded again, and reported."""

from dataclasses import replace

import pytest

from tests.server.test_pool import named, run
from wgpu_backend.engine import placing
from wgpu_backend.engine.loading import bundled
from wgpu_backend.errors import DeviceLost, OutOfMemory
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.placement import PlacementOptions
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.core.state import make_gpu_options, read_gpu_options
from wgpu_backend.server.worker.estimate import place_spec_model
from wgpu_backend.server.worker.health import MOST_LOSSES, Health
from wgpu_backend.server.worker.messages import (
    GpuOptions,
    LoadSpec,
    apply_gpu_options,
    from_plain,
    to_plain,
)
from wgpu_backend.server.worker.remote import Workers


def read(**options):
    return read_gpu_options(Fields({"options": options}))


def test_options_of_a_request() -> None:
    assert read(num_gpu=3) == GpuOptions(3, None)
    assert read(num_gpu=0) == GpuOptions(0, None)
    assert read(num_gpu=3.0, main_gpu=1) == GpuOptions(3, 1)
    # Ollama's default; None lets any placement do.
    assert read(num_gpu=-1) is None
    assert read(num_ctx=64) is None
    assert make_gpu_options({"num_gpu": 2, "top_k": 3}) == GpuOptions(2, None)
    with pytest.raises(RequestError, match=r"options.num_gpu: 1.5, needs a whole number"):
        read(num_gpu=1.5)


def test_other_layers_load_the_model_again_and_no_option_takes_any() -> None:
    loads = []

    async def test(pool, machine):
        def open_model(*arguments):
            loads.append(arguments[2:])
            return machine(*arguments[:2])

        pool._open = open_model
        pool._measure = None
        for gpu in (None, GpuOptions(3), GpuOptions(3), None, GpuOptions(0)):
            async with pool.using(named("a"), gpu=gpu) as found:
                assert gpu is None or found.gpu == gpu

    run(test)
    assert loads == [(), (GpuOptions(3),), (GpuOptions(0),)]


def test_options_of_a_request_change_how_a_model_is_loaded() -> None:
    plain = LoadSpec("p", "vulkan:0")
    assert apply_gpu_options(plain, None, ["vulkan:0"]) == plain
    few = apply_gpu_options(plain, GpuOptions(3), ["vulkan:0"])
    assert few.arguments["device"] == "vulkan:0"
    assert few.placement == PlacementOptions(3, capped=True)
    main = apply_gpu_options(plain, GpuOptions(main_gpu=1), ["vulkan:0", "vulkan:1"])
    assert (main.arguments["device"], main.arguments["devices"]) == (None, ["vulkan:0", "vulkan:1"])
    assert (main.placement.main_gpu, main.placement.split_mode) == (1, "none")


def test_a_retired_device_leaves_the_placement() -> None:
    shares = PlacementOptions(tensor_split=(1.0, 2.0), capped=True)
    spec = LoadSpec("p", "a", devices=("a", "b"), placement=shares)
    assert apply_gpu_options(spec, None, ["a", "b"]) == spec
    left = apply_gpu_options(spec, None, ["a"])
    assert (left.devices, left.placement.tensor_split) == (("a",), ())


def test_a_model_is_planned_for_the_devices_that_are_left_or_does_not_fit_them(monkeypatch) -> None:
    infos = {
        name: DeviceInfo(name, name, kind="discrete", free_memory=free)
        for name, free in (("a", 8 << 30), ("b", (512 << 20) + 500_000))
    }
    monkeypatch.setattr(placing, "find_devices", lambda names: [infos[n] for n in names])
    everything = PlacementOptions("all", capped=True)
    both = LoadSpec(str(bundled()), "a", num_ctx=64, devices=("a", "b"), placement=everything)
    place_spec_model(apply_gpu_options(both, None, ["a", "b"]))
    place_spec_model(apply_gpu_options(both, None, ["a"]))
    needs = "does not fit with gpu_layers 'all': it needs .* of weights .*; free are b 512"
    with pytest.raises(OutOfMemory, match=needs):
        place_spec_model(apply_gpu_options(both, None, ["b"]))
    as_fits = replace(both, placement=PlacementOptions(capped=True))
    place_spec_model(apply_gpu_options(as_fits, None, ["b"]))


def test_a_spec_reaches_the_worker_as_it_is() -> None:
    spec = LoadSpec("p", "a", devices=("a", "b"), placement=PlacementOptions("all", (1.0, 2.0)))
    assert from_plain(LoadSpec, to_plain(spec)) == spec
    for flag in (None, False, True):
        far = replace(spec, placement=PlacementOptions(op_offload=flag, kv_offload=False))
        assert from_plain(LoadSpec, to_plain(far)) == far


def test_the_device_that_an_error_names_counts_as_lost() -> None:
    health = Health(["vulkan:1", "vulkan:10"])
    workers = Workers(health, lambda _, __, device: LoadSpec("p", device), 4, spare_seconds=None)
    spec = LoadSpec("p", "vulkan:1", devices=("vulkan:1", "vulkan:10"))
    for _ in range(MOST_LOSSES):
        workers._count_loss(spec.devices, DeviceLost("device vulkan:10 was lost"))
    assert health.left == ["vulkan:1"]


def test_a_device_that_is_gone_counts_and_not_those_that_are_there() -> None:
    health = Health(["vulkan:0", "vulkan:1"])
    workers = Workers(health, lambda _, __, device: LoadSpec("p", device), 4, spare_seconds=None)
    gone = "tiny: device vulkan:1: it is gone, there are vulkan:0 Card (discrete, Vulkan); cpu"
    for _ in range(MOST_LOSSES):
        workers._count_loss(("vulkan:0", "vulkan:1"), DeviceLost(gone))
    assert health.left == ["vulkan:0"]
