import numpy as np
import pytest

from tests.ops.operands import FLOATS, ROUNDED, tensor
from wgpu_backend.dtypes import F16, F32, I8, I16, I32, I64, U8, U16, U32, U64
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context

INTEGERS = (I32, U32, I16, U16, I8, U8, I64, U64)


def apart_from_zero(rng, shape):
    """Random values that may be divided by."""
    return (rng.uniform(0.5, 2, shape) * rng.choice([-1, 1], shape)).astype("f4")


@pytest.mark.parametrize("b_type", FLOATS, ids=str)
@pytest.mark.parametrize("a_type", FLOATS, ids=str)
def test_the_result_has_the_type_of_the_first_operand(executor, check, rng, a_type, b_type):
    a, b = rng.standard_normal((3, 33), "f4"), rng.standard_normal((3, 33), "f4")
    check(
        executor,
        lambda ctx: tensor(ctx, a, a_type).mul(tensor(ctx, b, b_type)),
        limit=ROUNDED[a_type],
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_scale_keeps_the_type(executor, check, rng, dtype):
    x = rng.standard_normal((3, 33), "f4")
    check(executor, lambda ctx: tensor(ctx, x, dtype).scale(factor=3), limit=ROUNDED[dtype])


def test_operators_take_numbers(executor, check, rng):
    x = apart_from_zero(rng, (3, 33))
    check(executor, lambda ctx: -(2 * (tensor(ctx, x) - 1) / 3 + 0.5), limit=1e-13)


def test_infinities_and_nans_pass_through(executor, check):
    x = np.array([np.inf, -np.inf, np.nan, 1, -0.0], "f4")
    check(executor, lambda ctx: tensor(ctx, x) + tensor(ctx, x[::-1].copy()))


def test_more_than_65535_groups_reach_every_value(executor, check, rng):
    x = rng.standard_normal(8 * 4 * 65535 + 5, "f4")
    check(executor, lambda ctx: tensor(ctx, x).scale(factor=2) + tensor(ctx, x), limit=1e-13)


def test_a_chain_of_ops_in_place_gives_the_same(executor, check, rng):
    x, y = rng.standard_normal((3, 33), "f4"), rng.standard_normal((3, 33), "f4")

    def chain(ctx):
        a, b = tensor(ctx, x), tensor(ctx, y)
        c = (a + b) * a - b
        return (c.scale(factor=0.5) + c) * b

    check(executor, chain, limit=1e-13)


def test_more_than_four_axes_are_refused(full):
    with Context(full) as ctx, pytest.raises(ShapeError, match=r"mul: a .*5 axes, needs 0 to 4"):
        ctx.zeros(1, 1, 1, 1, 1) * 2


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("name", ["add", "sub", "mul", "maximum", "minimum"])
def test_integers_stay_integers_and_wrap_as_in_numpy(executor, rng, name, dtype):
    info = np.iinfo(dtype.numpy)
    op = {"add": np.add, "sub": np.subtract, "mul": np.multiply}.get(name) or getattr(np, name)
    for left, right in [((), ()), ((3,), ()), ((33,), (33,)), ((257, 3), (3,)), ((4, 8), (1, 8))]:
        a, b = (
            rng.integers(info.min, info.max, s, dtype.numpy, endpoint=True) for s in (left, right)
        )
        with Context(executor) as ctx, np.errstate(over="ignore"):
            got = getattr(ctx.from_numpy(a, dtype), name)(ctx.from_numpy(b, dtype))
            assert got.dtype == dtype
            np.testing.assert_array_equal(got.numpy(), op(a, b))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_powers_of_integers_are_exact_modulo_their_range(executor, rng, dtype):
    info = np.iinfo(dtype.numpy)
    a = rng.integers(info.min, info.max, (99, 7), dtype.numpy, endpoint=True)
    b = rng.integers(0, 41, 7, dtype.numpy)
    with Context(executor) as ctx, np.errstate(over="ignore"):
        got = ctx.from_numpy(a, dtype).power(ctx.from_numpy(b, dtype))
        assert got.dtype == dtype
        np.testing.assert_array_equal(got.numpy(), np.power(a, b))


def test_negative_powers_of_integers_are_zero_but_of_one(executor):
    with Context(executor) as ctx:
        base, power = (
            ctx.from_ints([1, -1, -1, 0, 2, -3, 5]),
            ctx.from_ints([-2, -2, -3] + [-1] * 4),
        )
        assert base.power(power).tolist() == [1, 1, -1, 0, 0, 0, 0]


def test_integers_beside_floats_are_refused(full):
    with Context(full) as ctx, pytest.raises(DTypeError, match="add: b is f32, needs i32; cast it"):
        ctx.zeros(3, dtype=I32) + ctx.zeros(3)


SPECIAL = np.array(
    [
        np.nan,
        np.inf,
        -np.inf,
        0,
        -0.0,
        1,
        -1,
        2,
        -2,
        3,
        -3,
        0.5,
        -0.5,
        15,
        16,
        -17,
        1e30,
        3e38,
        -3e38,
    ],
    "f4",
)


@pytest.mark.parametrize("name", ["maximum", "minimum", "power"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_special_values_give_what_they_give_in_numpy(executor, check, name, dtype):
    a, b = (v.reshape(-1).copy() for v in np.meshgrid(SPECIAL, SPECIAL))
    with Context(executor) as ctx, np.errstate(all="ignore"):
        x, y = (ctx.from_numpy(v).cast(dtype=dtype) for v in (a, b))
        got = getattr(x, name)(y).cast(dtype=F32).numpy()
        want = getattr(np, name)(x.numpy().astype("f8"), y.numpy().astype("f8"))
        want = ctx.from_numpy(want.astype("f4")).cast(dtype=dtype).cast(dtype=F32).numpy()
    # Of numbers, all are whole powers or roots of two, within some units of f32 or one of the type;
    # WGSL lets what is below normal numbers be zero.
    units = {"f32": 1e-6, "f16": 1e-3, "bf16": 1e-2}[dtype.name]
    np.testing.assert_allclose(got, want, rtol=units, atol=2.0**-126)


def test_powers_are_as_exact_as_their_size_allows(any_executor, rng):
    a = np.exp(rng.uniform(-20, 20, 20_000))
    a[::2] = 1 + rng.uniform(-0.01, 0.01, 10_000)
    a = a.astype("f4")
    b = (rng.uniform(-80, 80, a.size) / np.maximum(np.abs(np.log(a)), 1e-3)).astype("f4")
    want = a.astype("f8") ** b.astype("f8")
    shown = (want > 1e-37) & (want < 1e38)  # devices may flush what is smaller
    with Context(any_executor) as ctx:
        got = ctx.from_numpy(a).power(ctx.from_numpy(b)).numpy()
    # log2 is off by 2 units of f32, which the power multiplies; exp2 by 4 more in WGSL.
    size = np.abs(b * np.log2(a.astype("f8")))
    limit = (6 + 3 * size) * 2.0**-24 * want
    assert (np.abs(got - want) <= limit)[shown].all()


def test_whole_powers_are_products(executor, rng):
    x = rng.standard_normal(257).astype("f4")
    with Context(executor) as ctx:
        got = (ctx.from_numpy(x) ** 2).numpy()
    np.testing.assert_allclose(got, x * x, rtol=2e-7)


@pytest.mark.slow
# A work group takes up to 1,024 values.
@pytest.mark.parametrize("size", [1021, 1023, 1024, 1025, 2051, 70001])
def test_sizes_about_what_work_groups_take(executors, check, rng, size):
    x = rng.standard_normal(size, "f4")
    acts = (
        lambda x: x.sqr(),
        lambda x: x.add(x.neg()),
        lambda x: x.scale(factor=2.0, bias=1.0),
        lambda x: x.clamp(-1, 1),
        lambda x: x.fill(3.0),
        lambda x: x.cast(dtype=F16),
        lambda x: x.slice(0, 0, size, 2).contiguous(),
    )
    for kind in ("full", "wide"):
        for act in acts:
            check(executors(kind), lambda ctx, act=act: act(tensor(ctx, x)), limit=1e-8)
