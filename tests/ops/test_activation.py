import numpy as np
import pytest

from tests.ops.operands import LAYOUTS, tensor
from wgpu_backend.errors import ShapeError
from wgpu_backend.ml.context import Context

UNARY = ("silu", "gelu", "gelu_erf", "quick_gelu", "relu", "tanh", "sigmoid")
GATED = ("swiglu", "geglu", "geglu_erf", "geglu_quick", "reglu")
# exp is good to 3 + 2|x| ulp in WGSL: at |x| = 10 that is 3e-6 of the value, squared 1e-11.
LIMIT = 1e-11


@pytest.mark.parametrize("name", UNARY)
def test_every_value_of_the_curve_is_close(executor, name):
    """NMSE hides small values: here each is within 1e-5 of itself, or of 1e-6."""
    x = np.concatenate([np.linspace(-12, 12, 4097), np.geomspace(1e-6, 1, 99)]).astype("f4")
    with Context(executor) as ctx:
        got = getattr(tensor(ctx, x), name)().numpy()

    from wgpu_backend.ops.reference import get_reference

    want = get_reference(name)(x.astype("f8"))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", UNARY)
def test_large_values_saturate(executor, check, name):
    x = np.array([-1e4, -1000, -200, -88, -44, 44, 88, 200, 1000, 1e4], "f4")
    check(executor, lambda ctx: getattr(tensor(ctx, x), name)(), limit=LIMIT)


@pytest.mark.parametrize("name", GATED)
def test_halves_of_one_tensor_gate_each_other(executor, check, rng, name):
    x = rng.standard_normal((7, 2 * 33), "f4")

    def gated(ctx):
        gate, up = tensor(ctx, x).chunk(-1, 33)
        return getattr(gate, name)(up)

    check(executor, gated, limit=LIMIT)


def test_more_than_four_axes_are_refused(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match="5 axes, needs 0 to 4"):
        ctx.zeros(1, 1, 1, 1, 2).tanh()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gate_and_up_may_lie_side_by_side(gpu, check, rng, layout):
    both = rng.uniform(-9, 9, (5, 2 * 33)).astype("f4")

    def gated(ctx):
        x = LAYOUTS[layout](ctx, both)
        return x.slice(1, 0, 66, 2).silu_alpha_limit(x.slice(1, 1, 66, 2), 1.702, 7.0)

    check(gpu, gated, limit=1e-12)


def test_silu_alpha_limit_bounds_gate_and_up(gpu):
    with Context(gpu) as ctx:
        x, up = ctx.from_floats([90, 1, 1, -90]), ctx.from_floats([0, 90, -90, 0])
        got = x.silu_alpha_limit(up, 1.0, 7.0).numpy()
    one = 1 / (1 + np.exp(-1))
    np.testing.assert_allclose(got, [7 / (1 + np.exp(-7)), 8 * one, -6 * one, 0], atol=1e-6)


def test_silu_alpha_limit_refuses_what_does_not_fit(full):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match=r"x is \(3,\), up is \(4,\)"):
            ctx.zeros(3).silu_alpha_limit(ctx.zeros(4), 1.702, 7.0)
        with pytest.raises(ShapeError, match=r"limit is 0\.0, needs more than 0"):
            ctx.zeros(3).silu_alpha_limit(ctx.zeros(3), 1.702, 0.0)
