import numpy as np
import pytest

from tests.ops.operands import LAYOUTS, tensor
from wgpu_backend.dtypes import I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context


def triangle(rng, *shape, lower):
    """Well-conditioned triangles, with what must not be looked at in the other half."""
    a = rng.uniform(-0.3, 0.3, shape).astype("f4")
    a += 2 * np.eye(shape[-1], dtype="f4")
    half = np.tri(shape[-1]) if lower else np.tri(shape[-1]).T
    return np.where(half > 0, a, 1e9).astype("f4")


@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_tri_keeps_one_side(executor, rng, kind):
    x = rng.integers(1, 200, (3, 5, 9)).astype("f4")
    want = [np.triu(x), np.triu(x, 1), np.tril(x), np.tril(x, -1)][kind]
    with Context(executor) as ctx:
        got = LAYOUTS["permuted"](ctx, x).tri(kind).numpy()
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(
    "shape", [(1, 1), (3, 1), (1, 3), (33, 33), (257, 33), (2, 2, 5, 3), (0, 3)]
)
@pytest.mark.parametrize("kind", [0, 1, 2, 3])
def test_tri_of_odd_sizes(any_executor, check, rng, shape, kind):
    x = rng.standard_normal(shape).astype("f4")
    check(any_executor, lambda ctx: tensor(ctx, x).tri(kind), limit=0)


def test_tri_drops_nan(executor):
    with Context(executor) as ctx:
        got = tensor(ctx, np.full((2, 2), np.nan, "f4")).tri(3).numpy()
    np.testing.assert_array_equal(got, [[0, 0], [np.nan, 0]])


@pytest.mark.parametrize("unit_diagonal", [False, True])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize(("n", "k"), [(1, 1), (3, 5), (33, 3), (64, 65)])
def test_solutions_solve_the_equations(any_executor, rng, n, k, lower, left, unit_diagonal):
    a = triangle(rng, 2, n, n, lower=lower)
    b = rng.standard_normal((2, n, k) if left else (2, k, n)).astype("f4")
    with Context(any_executor) as ctx:
        x = tensor(ctx, a).solve_tri(tensor(ctx, b), lower, left, unit_diagonal).numpy()
    half = np.tril(a) if lower else np.triu(a)
    if unit_diagonal:
        half = half - half * np.eye(n) + np.eye(n)
    got = half.astype("f8") @ x if left else x @ half.astype("f8")
    np.testing.assert_allclose(got, b, atol=2e-4)


@pytest.mark.parametrize(
    ("left", "right"),
    [((9, 9), (2, 3, 9, 4)), ((2, 1, 9, 9), (3, 9, 4)), ((3, 9, 9), (9, 4))],
    ids=str,
)
def test_batches_of_equations_broadcast(executor, check, rng, left, right):
    a = rng.uniform(-0.3, 0.3, left).astype("f4") + 2 * np.eye(9, dtype="f4")
    b = rng.standard_normal(right).astype("f4")
    check(executor, lambda ctx: tensor(ctx, a).solve_tri(tensor(ctx, b)), limit=1e-11)


def test_a_zero_on_the_diagonal_gives_infinity(executor):
    with Context(executor) as ctx:
        got = ctx.zeros(1, 1).solve_tri(ctx.from_floats([1, -1], 1, 2)).numpy()
    np.testing.assert_array_equal(got, [[np.inf, -np.inf]])


def test_triangles_refuse(full):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match="tri: kind is 4, needs 0 to 3"):
            ctx.zeros(3, 3).tri(4)
        with pytest.raises(ShapeError, match=r"tri: x .* 1 axes, needs 2 to 4"):
            ctx.zeros(3).tri(0)
        with pytest.raises(ShapeError, match=r"diag: x .* 4 axes, needs 1 to 3"):
            ctx.zeros(1, 1, 1, 3).diag()
        with pytest.raises(ShapeError, match=r"a is \(2, 3\), b is \(3, 1\), needs a square"):
            ctx.zeros(2, 3).solve_tri(ctx.zeros(3, 1))
        with pytest.raises(ShapeError, match=r"a is \(3, 3\), b is \(3, 2\), .* columns of b"):
            ctx.zeros(3, 3).solve_tri(ctx.zeros(3, 2), left=False)
        with pytest.raises(ShapeError, match=r"solve_tri: \(2,\) and \(3,\) do not broadcast"):
            ctx.zeros(2, 3, 3).solve_tri(ctx.zeros(3, 3, 2))
        with pytest.raises(DTypeError, match="solve_tri: b is i32, needs f32"):
            ctx.zeros(3, 3).solve_tri(ctx.zeros(3, 2, dtype=I32))
