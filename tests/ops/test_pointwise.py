import numpy as np
import pytest

from tests.ops.operands import FLOATS, tensor
from wgpu_backend.dtypes import BF16, F16, F32, I8, I16, I32, I64, Q8_0, U8, U16, U32, U64
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context

OF_INTEGERS = {"neg": np.negative, "abs": np.abs, "sign": np.sign, "sqr": np.square}
INTEGERS = (I32, U32, I16, U16, I8, U8)
ROUNDING = {"floor": np.floor, "ceil": np.ceil, "trunc": np.trunc, "round": np.rint}


@pytest.mark.parametrize("name", ["sin", "cos"])
@pytest.mark.parametrize("largest", [1, 1e3, 1.5e6, 1e8, 1e20, 3e38])
def test_angles_of_any_size_are_reduced_exactly(any_executor, rng, name, largest):
    x = (rng.uniform(-1, 1, 4099) * largest).astype("f4")
    with Context(any_executor) as ctx:
        got = getattr(tensor(ctx, x), name)().numpy()
    want = getattr(np, name)(x.astype("f8"))
    assert np.abs(got - want).max() < 2.5e-7


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_angles_near_multiples_of_a_quarter_turn(any_executor, name):
    turns = np.concatenate([np.arange(-200, 200), 2.0 ** np.arange(8, 100)])
    x = (turns * (np.pi / 2)).astype("f4")
    with Context(any_executor) as ctx:
        got = getattr(tensor(ctx, x), name)().numpy()
    np.testing.assert_allclose(got, getattr(np, name)(x.astype("f8")), rtol=3e-6, atol=2e-9)


def test_softplus_neither_overflows_nor_cancels(any_executor):
    x = np.array([-80, -20, -17, -5, 5, 17, 89, 1e30], "f4")
    with Context(any_executor) as ctx:
        got = tensor(ctx, x).softplus().numpy()
    np.testing.assert_allclose(got, np.logaddexp(x.astype("f8"), 0), rtol=1e-6)


def test_clamp_keeps_nan(executor, check):
    x = np.array([np.nan, np.inf, -np.inf, 0.5], "f4")
    check(executor, lambda ctx: tensor(ctx, x).clamp(-1, 1), limit=0)


@pytest.mark.parametrize(("low", "high"), [(2, 1), (np.nan, 1)])
def test_clamp_refuses_bounds_in_the_wrong_order(full, low, high):
    with Context(full) as ctx, pytest.raises(ShapeError, match=rf"clamp: {low} to {high}, needs"):
        ctx.zeros(3).clamp(low, high)


@pytest.mark.parametrize("value", [0.1, -1e-3, np.inf, np.nan, 3.3e38])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_fill_rounds_to_the_type(executor, check, dtype, value):
    if dtype == F16 and value == 3.3e38:
        pytest.skip("f16 holds no such value")
    check(executor, lambda ctx: ctx.zeros(5, dtype=dtype).fill(value), limit=0)


def test_fill_leaves_its_operand_alone(executor, rng):
    x = rng.standard_normal(33, "f4")
    with Context(executor) as ctx:
        a = tensor(ctx, x).scale(factor=1)
        b = a.fill(3)
        np.testing.assert_array_equal((a + b).numpy(), x + 3)


def test_fill_does_not_compute_what_it_fills(executor):
    with Context(executor) as ctx:
        x = ctx.zeros(3, 4) + 1
        np.testing.assert_array_equal(x.fill(2).numpy(), np.full((3, 4), 2, "f4"))
        np.testing.assert_array_equal(x.cast(dtype=BF16).fill(2).numpy(), np.full((3, 4), 2, "f4"))


@pytest.mark.parametrize(("dtype", "value"), [(I32, 2**31), (I32, 0.5), (U32, -1)])
def test_fill_refuses_what_an_integer_cannot_hold(full, dtype, value):
    with Context(full) as ctx, pytest.raises(DTypeError, match=f"fill: {value} in .* {dtype}"):
        ctx.zeros(3, dtype=dtype).fill(value)


def test_block_formats_are_refused(full):
    with Context(full) as ctx, pytest.raises(DTypeError, match="fill: x is q8_0, needs f32"):
        ctx.state((32,), Q8_0).fill(0)


def test_the_logarithm_is_as_exact_near_one_as_elsewhere(any_executor, rng):
    x = np.concatenate([np.exp(rng.uniform(-80, 80, 4000)), 1 + rng.uniform(-1e-2, 1e-2, 4000)])
    x = np.append(x, np.float32(2.0) ** np.arange(-126, 128)).astype("f4")
    with Context(any_executor) as ctx:
        got = ctx.from_numpy(x).log().numpy()
    want = np.log(x.astype("f8"))
    # NumPy's own is within 1 unit in the last place; ours divides, which WGSL has within 2.5.
    assert (np.abs(got - want) <= 4 * np.spacing(np.abs(want).astype("f4"))).all()


@pytest.mark.parametrize("dtype", [*INTEGERS, I64, U64], ids=str)
@pytest.mark.parametrize("name", [*OF_INTEGERS, "clamp"])
def test_functions_of_integers_wrap_as_in_numpy(executor, rng, name, dtype):
    info = np.iinfo(dtype.numpy)
    x = rng.integers(info.min, info.max, (33, 9), dtype.numpy, endpoint=True)
    x[0, :4] = info.min, info.min + 1, 1, info.max
    with Context(executor) as ctx, np.errstate(over="ignore"):
        view = ctx.from_numpy(x, dtype).transpose()
        if name != "clamp":
            got = getattr(view, name)()
            np.testing.assert_array_equal(got.numpy(), OF_INTEGERS[name](x.T))
            return
        if dtype in (I64, U64):
            with pytest.raises(DTypeError, match=f"clamp: x is {dtype}, needs"):
                view.clamp(0, 1)
            return
        for low, high in [(-3, 70), (-np.inf, 2**40), (2, np.inf), (info.max, 2**33)]:
            got = view.clamp(low, high)
            assert got.dtype == dtype
            np.testing.assert_array_equal(got.numpy(), np.clip(x.T.astype("f8"), low, high))


def test_clamp_refuses_fractions_beside_integers(full):
    with (
        Context(full) as ctx,
        pytest.raises(DTypeError, match=r"clamp: 0\.5 bounds .* of i16, need"),
    ):
        ctx.zeros(3, dtype=I16).clamp(0.5, 7)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("name", ROUNDING)
def test_whole_numbers_are_those_of_numpy_with_their_signs(executor, rng, name, dtype):
    ends = [np.inf, -np.inf, np.nan, 0, -0.0, 0.5, -0.5, 1.5, -2.5, 0.4, -0.9, 2**23 - 0.5, -3e38]
    x = np.append(ends, rng.uniform(-99, 99, (34,))).astype("f4")
    with Context(executor) as ctx:
        given = ctx.from_numpy(x).cast(dtype=dtype)
        got, want = getattr(given, name)(), ROUNDING[name](given.cast(dtype=F32).numpy())
        assert got.dtype == dtype
        got = got.cast(dtype=F32).numpy()
        # 8388607.5 is no bf16, and above the largest f16.
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(np.signbit(got), np.signbit(want))


def test_a_chain_of_functions_in_place_gives_the_same(executor, check, rng):
    x = rng.uniform(0.5, 2, (3, 33)).astype("f4")
    check(
        executor,
        lambda ctx: tensor(ctx, x).sqrt().exp().neg().clamp(-3, 0).sin().sqr(),
        limit=1e-12,
    )


def test_functions_keep_the_type(executor):
    with Context(executor) as ctx:
        for dtype in (F32, F16, BF16):
            assert ctx.zeros(3, dtype=dtype).cos().dtype == dtype
