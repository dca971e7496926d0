import numpy as np
import pytest

from tests.ops.operands import FLOATS, LAYOUTS, tensor, weight, weight_bytes
from wgpu_backend.dtypes import F16, F32, I32, Q4_0
from wgpu_backend.errors import DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.testing import nmse

ROUNDED = 1e-6  # activations rounded to f16 or to 16 bits
SHAPES = [
    ((5, 9), (9, 4)),
    ((9,), (9, 4)),
    ((5, 9), (9,)),
    ((9,), (9,)),
    ((3, 5, 9), (9, 4)),
    ((5, 9), (3, 9, 4)),
    ((3, 5, 9), (3, 9, 4)),
    ((3, 1, 5, 9), (2, 9, 4)),
    ((2, 5, 9), (3, 1, 9, 4)),
    ((9,), (3, 2, 9, 4)),
    ((3, 2, 5, 9), (9,)),
    ((1, 1), (1, 1)),
    ((33, 64), (64, 65)),
    ((2, 33, 64), (64, 65)),
    ((257, 33), (33, 3)),
    ((0, 9), (9, 4)),
]


@pytest.mark.parametrize(("left", "right"), SHAPES, ids=str)
def test_products_are_those_of_numpy(any_gpu, rng, left, right):
    a, b = rng.standard_normal(left, "f4"), rng.standard_normal(right, "f4")
    with Context(any_gpu) as ctx:
        got = tensor(ctx, a).matmul(tensor(ctx, b)).numpy()
        same = (tensor(ctx, a) @ tensor(ctx, b)).numpy()
    want = np.matmul(a, b)
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=2e-5)
    np.testing.assert_array_equal(got, same)


@pytest.mark.parametrize("b_type", FLOATS, ids=str)
@pytest.mark.parametrize("a_type", FLOATS, ids=str)
def test_operands_of_two_types(gpu, check, rng, a_type, b_type):
    a, b = rng.standard_normal((9, 32), "f4"), rng.standard_normal((32, 5), "f4")
    of = LAYOUTS["permuted"]
    check(gpu, lambda ctx: of(ctx, a, a_type).matmul(of(ctx, b, b_type)), limit=1e-10)


def test_a_block_matrix_may_stand_transposed(gpu, check, rng):
    data, a = weight_bytes(rng, 9, 64, Q4_0), rng.standard_normal((5, 64), "f4")
    check(
        gpu,
        lambda ctx: tensor(ctx, a) @ ctx.from_bytes(Q4_0, data, 9, 64).transpose(),
        limit=1e-10,
    )


@pytest.mark.parametrize("rows", [8, 7])
def test_a_weight_with_inputs_as_rows_is_copied_for_many_rows(rng, rows):
    a, b = rng.standard_normal((rows, 64), "f4"), rng.standard_normal((64, 40), "f4")
    executor = NumpyExecutor()
    matrix = weight(executor, *b.shape, F32, b.tobytes())
    with Context(executor) as ctx:
        y = tensor(ctx, a).matmul(matrix)
        recorded = ctx.record(y)
        ops = [node.call.op.name for node, _ in recorded.plan.steps]
        recorded.close()
        np.testing.assert_allclose(y.numpy(), a @ b, atol=2e-5)
    assert ops == (["contiguous", "linear"] if rows == 8 else ["matmul_strided"])


def test_full_precision_is_what_every_product_has(gpu, rng):
    a, x = rng.standard_normal((5, 64), "f4"), rng.standard_normal((3, 64), "f4")
    with Context(gpu) as ctx:
        got = tensor(ctx, a).mulmat_full_prec(tensor(ctx, x)).numpy()
        np.testing.assert_array_equal(got, tensor(ctx, a).mulmat(tensor(ctx, x)).numpy())


def test_what_does_not_fit_is_refused(full):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match="rows of a have 8 values, columns of b have 9"):
            ctx.zeros(5, 8).matmul(ctx.zeros(9, 4))
        with pytest.raises(ShapeError, match=r"matmul: \(2,\) and \(3,\) do not broadcast"):
            ctx.zeros(2, 5, 9).matmul(ctx.zeros(3, 9, 4))
        with pytest.raises(ShapeError, match=r"matmul: b is \(\) with 0 axes, needs 1 to 4"):
            ctx.zeros(9).matmul(ctx.zeros())
        with pytest.raises(DTypeError, match="i32, needs"):
            ctx.zeros(5, 9).matmul(ctx.zeros(9, 4, dtype=I32))


@pytest.mark.parametrize("dtype", [F16, F32], ids=str)
def test_long_rows_are_filled_to_whole_groups(any_executor, rng, dtype):
    """As the 4,304 and 3,420 values of SigLIP's and Qwen2.5-VL's towers are."""
    values = rng.standard_normal((40, 300)).astype("f2" if dtype == F16 else "f4")
    x = rng.standard_normal((2, 16, 300), "f4")
    addend = rng.standard_normal(40, "f4")
    with Context(any_executor) as ctx:
        weight = ctx.weight(dtype, values.tobytes(), 40, 300)
        recorded = ctx.record(weight.linear(tensor(ctx, x), tensor(ctx, addend)))
        names = {node.call.op.name for node in recorded.scheduled if node.call is not None}
        [got] = recorded.run({}).wait()
        few = ctx.record(weight.linear(tensor(ctx, x[0, :2]), None))
        recorded.close()
    want = x.astype("f8") @ values.astype("f8").T + addend
    assert nmse(got, want) < ROUNDED
    assert "matmul_strided" not in names
    assert "linear" in names
    assert "matmul_strided" in {node.call.op.name for node in few.scheduled if node.call}
