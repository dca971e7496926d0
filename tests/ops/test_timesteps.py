"""Embeddings of time steps, and outer products."""

import numpy as np
import pytest

from tests.ops.operands import FLOATS, tensor
from wgpu_backend.dtypes import I32
from wgpu_backend.errors import DTypeError, OptionError, ShapeError
from wgpu_backend.ml.context import Context

# Polynomials of the sine are off by 2⁻²² at most, beside values near 1.
LIMIT = 1e-12
HOW = [(4,), (33, True, 0.0), (320, True, 0.0), (257, False, 1.0, 1000.0, 7.5), (1,), (2, True, 0)]


@pytest.mark.parametrize("how", HOW, ids=str)
def test_embeddings_agree_with_numpy(any_executor, check, rng, how):
    t = np.append(rng.uniform(0, 1200, 30), [0, 1, 999, 1000]).astype("f4")
    check(any_executor, lambda ctx: tensor(ctx, t).timestep_embedding(*how), limit=LIMIT)


def test_embeddings_are_those_of_the_paper(full):
    with Context(full) as ctx:
        got = tensor(ctx, np.array([3.0], "f4")).timestep_embedding(7, True, 0, 2.0, 100).numpy()
    angles = 2 * 3 * 100.0 ** (-np.arange(3) / 3)
    np.testing.assert_allclose(got[0], [*np.cos(angles), *np.sin(angles), 0], atol=1e-6)


@pytest.mark.parametrize(
    ("left", "right"),
    [((3,), (5,)), ((33, 3), (33, 5)), ((1, 64), (1, 257)), ((2, 1, 7, 4), (3, 7, 8))],
    ids=str,
)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_outer_products_are_summed(executor, rng, left, right, dtype):
    a, b = rng.standard_normal(left, "f4"), rng.standard_normal(right, "f4")
    with Context(executor) as ctx:
        x, y = tensor(ctx, a, dtype), tensor(ctx, b, dtype)
        got = x.out_prod(y).numpy()
        a, b = (n.cast(dtype="f32").numpy() for n in (x, y))
    a, b = np.atleast_2d(a), np.atleast_2d(b)
    np.testing.assert_allclose(got, np.swapaxes(a, -1, -2) @ b, rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_refused(full):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match=r"t is .* needs 1 to 1"):
            ctx.zeros(2, 2).timestep_embedding(4)
        with pytest.raises(ShapeError, match="dim is 0, needs 1 or more"):
            ctx.zeros(2).timestep_embedding(0)
        with pytest.raises(DTypeError, match="timestep_embedding: t is i32"):
            ctx.zeros(2, dtype=I32).timestep_embedding(4)
        with pytest.raises(OptionError, match=r"shift 1.0 of 1 frequencies"):
            ctx.zeros(2).timestep_embedding(2)
        with pytest.raises(OptionError, match="period -1"):
            ctx.zeros(2).timestep_embedding(8, max_period=-1)
        with pytest.raises(ShapeError, match=r"out_prod: .* a has 3 rows, b has 4"):
            ctx.zeros(3, 2).out_prod(ctx.zeros(4, 2))
