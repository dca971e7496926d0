"""Convolutions as products of tiles, on whatever device there is."""

import dataclasses

import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, tensor
from tests.shares import rare
from wgpu_backend.dtypes import F16
from wgpu_backend.kernels.gpu.products import CONV_TILED, conv_tiled
from wgpu_backend.ml.context import Context

# Sums in f32 on both sides, in another order.
LIMIT = 1e-10
CASES = [
    (16, 32, ((1, 1), (1, 1), (1, 1))),
    (33, 96, ((2, 1), ((0, 1), (1, 0)), (1, 1))),
    (130, 64, ((1, 3), (2, 4), (2, 3))),
]


@pytest.fixture
def wide(executors):
    return executors("wide")


@pytest.mark.slow
@pytest.mark.parametrize(("outputs", "channels", "how"), CASES, ids=str)
def test_tiles_convolve(wide, check, rng, outputs, channels, how):
    x = rng.standard_normal((2, 9, 11, channels), "f4")
    w = rng.standard_normal((outputs, 3, 2, channels), "f4")

    def convolved(ctx):
        return tensor(ctx, x).conv2d(tensor(ctx, w), *how)

    check(wide, convolved, limit=LIMIT)
    assert shader_of(wide, convolved) == CONV_TILED


@pytest.mark.slow
def test_tiles_of_threads_with_few_registers_convolve(wide, check, rng):
    device = wide.as_if(dataclasses.replace(wide.capabilities, few_registers=True))
    x, w = rng.standard_normal((2, 5, 7, 64), "f4"), rng.standard_normal((40, 2, 2, 64), "f4")
    check(device, lambda ctx: tensor(ctx, x).conv2d(tensor(ctx, w)), limit=LIMIT)


def shader_of(executor, build):
    with Context(executor) as ctx:
        node = build(ctx)
        while node.launch is None:
            node = node.source
        made = conv_tiled(node.launch, executor.capabilities)
        return made and made.shader


@pytest.mark.parametrize(
    ("layout", "dtype"), list(zip(("permuted", "sliced", "shifted"), FLOATS, strict=True)), ids=str
)
@pytest.mark.slow
def test_operands_may_be_views_of_every_type(wide, check, rng, layout, dtype):
    x, w = rng.standard_normal((1, 5, 6, 32), "f4"), rng.standard_normal((20, 2, 3, 32), "f4")
    check(
        wide,
        lambda ctx: LAYOUTS[layout](ctx, x, dtype).conv2d(tensor(ctx, w, dtype)),
        limit=LIMIT,
    )


def test_volumes_convolve(wide, check, rng):
    x, w = rng.standard_normal((2, 4, 5, 6, 64), "f4"), rng.standard_normal((24, 2, 3, 2, 64), "f4")
    check(
        wide,
        lambda ctx: tensor(ctx, x).conv3d(tensor(ctx, w), (2, 1, 1), (1, 0, 2), (1, 2, 1)),
        limit=LIMIT,
    )


@rare  # compiled in ten seconds
@pytest.mark.parametrize("size", [40, 90])
def test_many_pixels_take_larger_tiles(wide, check, rng, size):
    x, w = (
        rng.standard_normal((1, size, size, 32), "f4"),
        rng.standard_normal((192, 1, 1, 32), "f4"),
    )
    check(wide, lambda ctx: tensor(ctx, x).conv2d(tensor(ctx, w, F16)), limit=LIMIT)


OTHERS = {
    "few outputs": (4, 32, {}),
    "odd channels": (16, 36, {}),
    "groups": (32, 32, {"groups": 2}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_makes_no_tiles_is_left_to_other_kernels(wide, check, rng, name):
    outputs, channels, how = OTHERS[name]
    groups = how.get("groups", 1)
    x = rng.standard_normal((1, 5, 6, channels * groups), "f4")
    w = rng.standard_normal((outputs, 2, 2, channels), "f4")

    def convolved(ctx):
        return tensor(ctx, x).conv2d(tensor(ctx, w), **how)

    assert shader_of(wide, convolved) is None
    check(wide, convolved, limit=LIMIT)


def test_transposed_ones_are_left_to_other_kernels(wide):
    w = np.ones((16, 2, 2, 32), "f4")
    assert (
        shader_of(wide, lambda ctx: ctx.zeros(1, 4, 4, 32).conv_transpose2d(tensor(ctx, w))) is None
    )


def test_what_lies_beyond_the_border_is_not_read(wide, rng):
    x, w = np.full((1, 6, 6, 32), np.nan, "f4"), rng.standard_normal((16, 3, 3, 32), "f4")
    x[:, 2:4, 2:4] = 1
    with Context(wide) as ctx:
        window = tensor(ctx, x).slice(1, 2, 4).slice(2, 2, 4)
        assert np.isfinite(window.conv2d(tensor(ctx, w), (1, 1), (1, 1)).numpy()).all()
