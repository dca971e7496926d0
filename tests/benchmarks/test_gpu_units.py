"""Kernels with matrix units before AMD's compiler, and a denoising step made of them."""

import math

import pytest

from benchmarks.gpu_costs import denoising, units
from benchmarks.gpu_costs.tools import Missing

PARAMETERS = 859_520_964  # of the UNet's published file
# What the count leaves out: projections of the time for each residual block, its embedding, and the
# first and last convolution. Biases and norms are less than a thousandth.
BLOCK_OUTPUTS = 20_160
OF_TIME = 1280 * (BLOCK_OUTPUTS + 320 + 1280)
AT_THE_ENDS = 2 * 4 * 320 * 9


def weights(kind, sizes):
    if kind == "conv":
        _, _, channels, outputs, extent = sizes
        return channels * outputs * extent**2
    return math.prod(sizes[1:]) if kind == "product" else 0


def test_layers_have_the_weights_of_the_published_unet():
    count = sum(n * weights(*layer) for layer, n in denoising.layers().items())
    assert count + OF_TIME + AT_THE_ENDS == pytest.approx(PARAMETERS, rel=1e-3)


def test_costs_with_units_are_of_whole_tiles():
    costs = {"product f16": 16, "convolution f16": 8, "attention plain, 40 columns": 35}
    assert denoising.with_units(("product", (77, 768, 320)), costs) == 128 * 384 * 768 / 16
    assert denoising.with_units(("conv", (8, 2, 64, 100, 3)), costs) == 128 * 128 * 576 / 8
    assert denoising.with_units(("attention", (65, 77, 40)), costs) == 128 * 128 * 8 * 35
    assert denoising.with_units(("attention", (64, 64, 160)), costs) is None


def test_every_kernel_with_units_is_composed():
    found = {each.name: each for each in units.kernels()}
    assert {
        "product q4_k",
        "experts q6_k, 64 pairs",
        "convolution f16",
        "attention plain, 160 columns",
    } <= {*found}
    assert all("enable wgpu_cooperative_matrix;" in each.text for each in found.values())
    assert found["convolution f16"].threads == 128
    # The uniform buffer is one of each kernel's bindings.
    assert all(sum(uniform for _, uniform in each.bindings) == 1 for each in found.values())


def test_without_the_translator_it_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(units, "NAGA", tmp_path / "naga")
    with pytest.raises(Missing, match=r"\.ci/naga\.py build/naga"):
        units.collected("navi31", tmp_path)
