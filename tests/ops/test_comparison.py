import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, anything, bits, plain
from wgpu_backend.dtypes import BOOL, COMPLEX64, F16, F64, I8, I16, I32, I64, U8, U16, U32, U64
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context

RELATIONS = {
    "equal": np.equal,
    "not_equal": np.not_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
}
SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 0, -0.0, 1, -1, 3e38, -3e38, 2, 0.5], "f4")
BROADCASTS = [((3, 33), (33,)), ((3, 1), (1, 33)), ((), (5, 7)), ((2, 3, 1, 7), (5, 1))]


def pairs(values):
    """Each value beside each."""
    return [v.reshape(-1).copy() for v in np.meshgrid(values, values)]


@pytest.mark.parametrize("name", RELATIONS)
def test_relations_of_special_values_are_those_of_numpy(executor, name):
    a, b = pairs(SPECIAL)
    for dtype in FLOATS:
        with Context(executor) as ctx:
            x, y = (ctx.from_numpy(v).cast(dtype=dtype) for v in (a, b))
            got = getattr(x, name)(y)
            assert got.dtype == BOOL
            np.testing.assert_array_equal(got.numpy(), RELATIONS[name](x.numpy(), y.numpy()))


@pytest.mark.parametrize("dtype", [I32, U32, I16, U16, I8, U8, I64, U64], ids=str)
@pytest.mark.parametrize("name", RELATIONS)
def test_integers_compare_over_their_whole_range(executor, name, dtype):
    info = np.iinfo(dtype.numpy)
    a, b = pairs(np.array([info.min, info.min + 1, 0, 1, info.max - 1, info.max], dtype.numpy))
    with Context(executor) as ctx:
        got = getattr(ctx.from_numpy(a, dtype), name)(ctx.from_numpy(b, dtype)).numpy()
    np.testing.assert_array_equal(got, RELATIONS[name](a, b))


def test_where_moves_values_of_eight_bytes_as_they_are(gpu, rng):
    condition = rng.integers(0, 2, (3, 1, 9)) > 0
    for dtype in (I64, U64, F64, COMPLEX64):
        a, b = anything(rng, dtype, (5, 1)), anything(rng, dtype, (3, 5, 9))
        with Context(gpu) as ctx:
            given = ctx.from_numpy(condition), plain(ctx, a, dtype), plain(ctx, b, dtype)
            got = bits(given[0].where(*given[1:]))
        np.testing.assert_array_equal(got, np.where(condition, a, b))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_integers_of_two_words_may_be_views(executor, rng, layout):
    for left, right in [((3, 5, 9),) * 2, *BROADCASTS]:
        a, b = (rng.integers(-(2**63), 2**63, s) for s in (left, right))
        with Context(executor) as ctx, np.errstate(over="ignore"):
            x, y = LAYOUTS[layout](ctx, a, I64), LAYOUTS[layout](ctx, b, I64)
            np.testing.assert_array_equal(x.less(y).numpy(), a < b)
            np.testing.assert_array_equal((x * y - x + y).abs().numpy(), abs(a * b - a + b))


def test_where_chooses_among_nan_and_infinities(executor):
    a, b = pairs(SPECIAL)
    with Context(executor) as ctx:
        x, y = ctx.from_numpy(a), ctx.from_numpy(b)
        np.testing.assert_array_equal((x > y).where(x, y).numpy(), np.where(a > b, a, b))


def test_where_makes_constants_of_numbers(executor):
    with Context(executor) as ctx:
        x, ids = ctx.from_numpy([1.5, -2.5]), ctx.from_numpy([3, -4])
        assert (x > 0).where(x, 0).tolist() == [1.5, 0]
        assert (x > 0).where(0, x.cast(dtype=F16)).dtype == F16
        assert (ids > 0).where(ids, -1).dtype == I32
        assert (x > 0).where(1, 0.5).tolist() == [1, 0.5]
        assert (x > 0).where(1, 2).dtype == I32


def test_what_cannot_be_compared_is_refused(full):
    with Context(full) as ctx:
        x, ids, wide = ctx.zeros(3), ctx.zeros(3, dtype=I32), ctx.zeros(3, dtype=F64)
        with pytest.raises(DTypeError, match=r"less: b is i32, needs f32, f16, bf16; cast it"):
            x.less(ids)
        with pytest.raises(DTypeError, match=r"equal: a is f64, needs"):
            wide.equal(wide)
        with pytest.raises(DTypeError, match=r"logical_and: a is f32, needs bool"):
            x.logical_and(x)
        with pytest.raises(DTypeError, match=r"where: condition is f32, needs bool"):
            x.where(x, x)
        with pytest.raises(DTypeError, match=r"where: b is f32, needs i32"):
            ids.equal(0).where(ids, x)
        with pytest.raises(ShapeError, match=r"where: .* 3 against 2"):
            ids.equal(0).where(x, ctx.zeros(2))
