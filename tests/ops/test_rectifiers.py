"""Activations of straight pieces, and those that end in exponentials."""

import numpy as np
import pytest

from tests.ops.operands import tensor
from wgpu_backend.dtypes import I32
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.reference import get_reference

# Each with the numbers it is told, if any.
OPS = {
    "relu6": {}, "relu_squared": {}, "hardsigmoid": {}, "hardswish": {}, "selu": {}, "softsign": {},
    "mish": {}, "log_sigmoid": {}, "elu": {"alpha": 0.7}, "celu": {"alpha": 1.3},
    "leaky_relu": {"negative_slope": 0.2}, "hard_shrink": {"lambd": 0.6},
    "softshrink": {"lambd": 0.6}, "step": {"threshold": -0.4}, "hardtanh": {"low": -0.5, "high": 2},
}  # fmt: skip
WITH_NUMBERS = [name for name, told in OPS.items() if told]


@pytest.mark.parametrize("name", OPS)
def test_every_value_of_the_curve_is_close(executor, rng, name):
    small = np.geomspace(1e-6, 1, 99)
    x = np.concatenate([rng.uniform(-30, 30, 2000), small, -small, [1e4, -1e4]]).astype("f4")
    with Context(executor) as ctx:
        got = getattr(tensor(ctx, x), name)(**OPS[name]).numpy()
    want = get_reference(name)(x.astype("f8"), **OPS[name])
    # Products of functions that are each some units of f32 off.
    np.testing.assert_allclose(got, want, rtol=2e-6, atol=1e-7)


def test_they_have_numbers_of_their_own(executor):
    x = np.linspace(-3, 3, 33).astype("f4")
    with Context(executor) as ctx:
        for name in WITH_NUMBERS:
            got = getattr(tensor(ctx, x), name)().numpy()
            np.testing.assert_allclose(got, get_reference(name)(x), rtol=1e-6, atol=1e-7)


def test_a_chain_knows_their_numbers(full, rng):
    x = rng.uniform(-2, 2, 33).astype("f4")
    with Context(full) as ctx:
        got = tensor(ctx, x).elu(alpha=0.5).leaky_relu(0.1).hardtanh(-0.3, 0.8).mish().numpy()
    want = get_reference("leaky_relu")(get_reference("elu")(x, 0.5), 0.1)
    want = get_reference("mish")(np.clip(want, np.float32(-0.3), np.float32(0.8)))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-7)


def test_what_does_not_fit_is_refused(full):
    with Context(full) as ctx:
        x = ctx.zeros(3)
        with pytest.raises(ShapeError, match="celu: alpha is 0, needs another"):
            x.celu(alpha=0)
        with pytest.raises(ShapeError, match="softshrink: lambd is -1, needs 0 or more"):
            x.softshrink(-1)
        with pytest.raises(ShapeError, match="elu: alpha is inf, needs a finite number"):
            x.elu(alpha=np.inf)
        with pytest.raises(ShapeError, match="hardtanh: 2 to 1, needs the smaller"):
            x.hardtanh(2, 1)
        with pytest.raises(DTypeError, match="step: threshold is 'a', needs a number"):
            x.step("a")
        with pytest.raises(DTypeError, match="selu: x is i32, needs f32"):
            ctx.zeros(3, dtype=I32).selu()
        with pytest.raises(ShapeError, match=r"prelu: .* 3 against 2"):
            x.prelu(ctx.zeros(2))
