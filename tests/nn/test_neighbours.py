"""Tensors that are adjacent in memory, and those that are not."""

import numpy as np
import pytest

from tests.ops.test_experts import experts_of
from wgpu_backend import nn
from wgpu_backend.dtypes import F32
from wgpu_backend.ml.context import Context


@pytest.mark.parametrize("order", [(0, 1, 2), (1, 2, 0)], ids=str)
def test_columns_beside_each_other(executor, rng, order):
    wide = rng.standard_normal((5, 36), "f4")
    with Context(executor) as ctx:
        x = ctx.from_numpy(wide)
        parts = [x.slice(1, 12 * i, 12 * i + 12) for i in order]
        y = nn.beside(parts)
        assert (y.storage is x.storage) == (order == (0, 1, 2))
        np.testing.assert_array_equal(
            y.numpy(), np.hstack([wide[:, 12 * i :][:, :12] for i in order])
        )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)], ids=str)
def test_weights_below_each_other(executor, rng, order):
    values = rng.standard_normal((3, 8, 4), "f4")
    with Context(executor) as ctx:
        weights = experts_of(ctx, 3, 8, 4, F32, values.tobytes())
        parts = [weights.slice(0, i, i + 1).reshape(8, 4) for i in order]
        y = nn.below(ctx.zeros(1), parts)
        assert (y.storage is weights.storage) == (order == (0, 1, 2))
        got = ctx.zeros(24, 4).add(y).numpy()
    np.testing.assert_array_equal(got, values[list(order)].reshape(24, 4))
