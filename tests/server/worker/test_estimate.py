"""The estimate of a model's memory before it is loaded."""

from dataclasses import replace

import pytest

from tests.builders import Dims, tiny_model
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.placement import PlacementOptions
from wgpu_backend.server.worker import estimate
from wgpu_backend.server.worker.messages import LoadSpec

GPU = DeviceInfo("vulkan:0", "a GPU", kind="discrete")
MIB = 1 << 20
# Keys and values of a position: layers x (keys and values) x heads x values of a head x f16.
DIMS = Dims.for_type("f32")


@pytest.fixture
def spec(tmp_path):
    path = tiny_model(tmp_path / "a.gguf", extra={"llama.context_length": 100_000})
    return LoadSpec(str(path), GPU.id, num_parallel=4)


def each(spec):
    """Bytes of a position of the cache."""
    one = estimate.estimate_nbytes(replace(spec, num_ctx=1))
    return estimate.estimate_nbytes(replace(spec, num_ctx=2)) - one


def memory_for(spec, positions):
    """Memory half of which, behind the weights, is so many positions."""
    weights = estimate.estimate_nbytes(replace(spec, num_ctx=1)) - each(spec)
    return weights + 2 * positions * each(spec)


@pytest.mark.parametrize(
    ("positions", "wanted"),
    [(100_000, 100_000), (99_999, 65_536), (32_768, 32_768), (32_767, 16_384), (4096, None)],
)
def test_a_context_that_nobody_chose_follows_model_and_memory(spec, positions, wanted):
    info = replace(GPU, total_memory=memory_for(spec, positions))
    assert estimate.choose_context(spec, info) == wanted


def test_it_is_what_loading_chooses_where_memory_is_not_told_or_the_model_knows_no_more(
    spec, tmp_path
):
    assert estimate.choose_context(spec, replace(GPU, total_memory=None)) is None
    assert estimate.choose_context(spec, replace(GPU, total_memory=1)) is None
    short = tiny_model(tmp_path / "b.gguf", extra={"llama.context_length": 4096})
    rich = replace(GPU, total_memory=1 << 40)
    assert estimate.choose_context(replace(spec, path=str(short)), rich) is None
    assert estimate.choose_context(spec, rich) == 100_000
    endless = tiny_model(tmp_path / "c.gguf", extra={"llama.context_length": 10_000_000})
    assert estimate.choose_context(replace(spec, path=str(endless)), rich) == 262_144


def test_it_is_what_a_binding_shows(spec, monkeypatch):
    rich = replace(GPU, total_memory=1 << 40)
    layers = DIMS.layers
    monkeypatch.setattr(estimate, "_SURE_LAYER", 20_000 * each(spec) // layers)
    assert estimate.choose_context(replace(spec, profile="baseline"), rich) == 16_384
    assert estimate.choose_context(spec, replace(rich, kind="unknown")) == 16_384


def test_a_plan_s_reserve_is_not_for_the_cache(spec):
    info = replace(GPU, total_memory=memory_for(spec, 32_768) + MIB)
    for reserve, wanted in ((MIB, 32_768), (MIB + 2 * each(spec), 16_384)):
        planned = replace(spec, placement=PlacementOptions(reserve_nbytes=reserve))
        assert estimate.choose_context(planned, info) == wanted


def test_models_whose_layers_are_placed_make_room_on_gpus_that_report_memory(spec, monkeypatch):
    free = {"vulkan:0": 3 << 30, "vulkan:1": 2 << 30, "vulkan:2": None, "cpu": 1 << 40}
    monkeypatch.setattr(estimate, "current_memory", lambda info: (None, free[info.id]))
    kinds = {"cpu": "cpu"}
    infos = [DeviceInfo(name, name, kind=kinds.get(name, "discrete")) for name in free]

    def room(*devices, layers="auto"):
        options = PlacementOptions(layers, reserve_nbytes=1 << 30)
        found = estimate.estimate_placed(replace(spec, devices=devices, placement=options), infos)
        assert found.needed == estimate.estimate_nbytes(spec)
        return found.free

    assert room("vulkan:0", "vulkan:1", "cpu") == 3 << 30
    assert room("vulkan:0") == room() == 2 << 30
    # Whatever is free, so many layers go there; of one GPU nothing is known.
    assert room("vulkan:0", layers=2) is None
    assert room("vulkan:0", "vulkan:2") is None
    assert room("cpu") is None
