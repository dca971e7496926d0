"""Which tiles of this family's products are tuned, and what that changes."""

import dataclasses

import pytest

from tests.kernels.products import shader_of_a_product
from tests.rasterisers import as_rasteriser
from wgpu_backend.dtypes import F16, Q4_0
from wgpu_backend.graph.capabilities import Tile
from wgpu_backend.kernels import complete
from wgpu_backend.kernels.rasteriser.capabilities import shuffles
from wgpu_backend.ml.calibration.tuning import Effort, tune
from wgpu_backend.ops.linear.activation_rounding import products_in
from wgpu_backend.ops.linear.attributes import Q8, Q8_PAIR
from wgpu_backend.ops.linear.tiles import key

TINY = Effort(rows=40, values=256, columns=(1, 9), rounds=1)


def test_what_lies_in_textures_is_measured_there(shuffling):
    found = {m.key for m in tune(shuffling, [Q4_0, F16], TINY).tiles}
    assert {
        "matmul_q8_texture q4_0 many",
        "matmul_shuffled q4_0 one",
        "matmul_texture f16 one",
    } <= found
    assert not {name for name in found if name.startswith(("matmul_q8 ", "matmul_shuffled f16"))}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "baseline"])
def test_kernels_of_lanes_are_measured_and_rounding_is_no_question(executors, kind):
    executor = as_rasteriser(executors(kind))
    found = tune(executor, [Q4_0], TINY)
    lanes = "matmul_shuffled" if shuffles(executor.capabilities) else "matmul"
    assert lanes in {m.key.split(" ")[0] for m in found.tiles}
    assert not found.rounding


def test_a_measured_tile_changes_the_kernel(shuffling):
    untuned = dataclasses.replace(shuffling.capabilities, tuned={})
    assert shader_of_a_product(shuffling.as_if(untuned)).count("SOURCES=2") == 1
    measured = dataclasses.replace(untuned, tuned={key("matmul_shuffled", Q4_0, 1): Tile(4, 1, 8)})
    assert shader_of_a_product(shuffling.as_if(measured)).count("SOURCES=4") == 1


def test_eight_bits_are_faster_two_parts_are_not_and_tiles_of_experts_are_small(full):
    if not full.capabilities.software:
        pytest.skip(f"needs a rasteriser, not {full.info.name}")
    found = full.capabilities
    assert found.rounded == products_in(Q8)
    assert found.unrounded == products_in(Q8_PAIR)
    assert found.expert_tiles[0] == (4, 3)
    hardware = dataclasses.replace(full.device.capabilities, software=False)
    assert complete(hardware) == hardware
