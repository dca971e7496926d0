import numpy as np
import pytest

from wgpu_backend.dtypes import BF16, F16, F32, I32, Q4_0
from wgpu_backend.errors import (
    BackendError,
    ContextError,
    DTypeError,
    OutOfMemory,
    ShapeError,
)
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor


@pytest.fixture
def context(executor):
    with Context(executor) as made:
        yield made


@pytest.mark.parametrize("bounds", [(0, 10, 1), (5, -3, -0.5), (0, 0, 1), (1, 2, 0.3), (3, 2, 1)])
def test_arange_has_the_values_of_numpy(context, bounds) -> None:
    # f32 multiples of the step, against NumPy's in f64.
    np.testing.assert_allclose(context.arange(*bounds).numpy(), np.arange(*bounds), atol=1e-6)


def test_arange_of_integers_is_exact(context) -> None:
    values = context.arange(-3, 300_000, 7, I32).numpy()

    assert values.dtype == np.int32
    np.testing.assert_array_equal(values, np.arange(-3, 300_000, 7))


def test_arange_refuses_what_it_cannot_make(context) -> None:
    with pytest.raises(ShapeError, match="steps of 0"):
        context.arange(0, 1, 0)
    with pytest.raises(DTypeError, match=r"0\.5.* in i32"):
        context.arange(0, 1, 0.5, I32)
    with pytest.raises(DTypeError, match="q4_0"):
        context.arange(0, 1, 1, Q4_0)


@pytest.mark.parametrize("dtype", [F32, F16, BF16])
@pytest.mark.parametrize("shape", [(1,), (3, 33), (257,)])
def test_random_normal_is_the_same_everywhere(context, shape, dtype) -> None:
    with Context(NumpyExecutor()) as reference:
        wanted = reference.random_normal(shape, F32, key=2**40 + 7, loc=1, scale=2).numpy()
    found = context.random_normal(shape, dtype, key=2**40 + 7, loc=1, scale=2).numpy()

    # Bits are equal; logarithm, root and sine differ by rounding, and then the dtype rounds.
    tolerance = {F32: 1e-5, F16: 2e-3, BF16: 2e-2}[dtype]
    np.testing.assert_allclose(found.astype(np.float32), wanted, rtol=tolerance, atol=tolerance)


def test_arange_of_integers_is_exact_beyond_what_floats_hold(context) -> None:
    start = 2**31 - 1000
    assert context.arange(start, start + 7, 3, I32).tolist() == [start, start + 3, start + 6]
    assert context.arange(-(2**31), 2**31, 2**32 - 1, I32).tolist() == [-(2**31), 2**31 - 1]
    assert context.arange(3e9, 0, 1, I32).tolist() == []


@pytest.mark.parametrize(
    ("bounds", "dtype", "what"),
    [
        ((0, float("inf"), 1), F32, "stop is inf, needs a finite number"),
        ((None, 1, 1), F32, "start is None, needs"),
        (("a", 1, 1), F32, "start is 'a', needs"),
        ((0, 4e9, 1e9), I32, "does not fit i32"),
        ((0, 1e6, 1e5), F16, "does not fit f16"),
        ((2**31, 2**31 + 1, 1), I32, "does not fit i32"),
    ],
)
def test_arange_names_what_does_not_fit(context, bounds, dtype, what) -> None:
    with pytest.raises(DTypeError, match=f"^arange: .*{what}"):
        context.arange(*bounds, dtype)


def test_arrays_keep_what_a_type_holds(context) -> None:
    types = {
        "u4": "u32", "i8": "i32", "u1": "i32", "i4": "i32", "?": "bool", "f2": "f32", "f8": "f32",
        "c8": "complex64",
    }  # fmt: skip
    made = {kind: context.from_numpy(np.ones(2, kind)) for kind in types}
    assert {kind: tensor.dtype.name for kind, tensor in made.items()} == types
    top = np.array([2**32 - 1], "u4")
    assert context.from_numpy(top).tolist() == [2**32 - 1]
    assert context.from_numpy([2**40], dtype="i64").tolist() == [2**40]


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda c: c.from_numpy([0, 3_000_000_000]), r"from_numpy: 3000000000 at \(1,\).* i32"),
        (lambda c: c.from_numpy(np.array([2**63], "u8")), "from_numpy: 9223372036854775808 at"),
        (lambda c: c.from_numpy([1e300]), r"from_numpy: 1e\+300 at"),
        (lambda c: c.from_numpy([-1], "u32"), "from_numpy: -1 at .* u32"),
        (lambda c: c.from_numpy([0.5], "i32"), "from_numpy: 0.5 at .* whole numbers"),
        (lambda c: c.from_numpy(["a"]), "from_numpy: .* needs numbers"),
        (lambda c: c.from_ints([2**31]), "from_ints: 2147483648 at"),
        (lambda c: c.from_ints([2**100]), "from_ints: "),
        (lambda c: c.from_floats([1e39]), r"from_floats: 1e\+39 at"),
        (lambda c: c.zeros(1, dtype=I32).from_ints([2**31]), "from_ints: 2147483648 at"),
        (lambda c: c.zeros(1, dtype=F16).from_floats([1e6]), "from_floats: 1000000.0 at .* f16"),
        (lambda c: c.zeros(1).fill(1e300), r"fill: 1e\+300 at \(\) does not fit f32"),
    ],
)
def test_values_that_do_not_fit_are_named(context, make, what) -> None:
    with pytest.raises(DTypeError, match=f"^{what}"):
        make(context)


def test_lists_of_several_lengths_are_no_tensor(context) -> None:
    with pytest.raises(ShapeError, match=r"from_numpy: \[\[1\], \[2, 3\]\] makes no array"):
        context.from_numpy([[1], [2, 3]])


def test_more_than_memory_holds_is_said_so(context) -> None:
    with pytest.raises((ShapeError, OutOfMemory)):
        context.zeros(1 << 32, 1 << 28)


def test_random_normal_has_its_moments_and_other_keys_give_other_numbers(context) -> None:
    a = context.random_normal((100_001,), key=1, loc=3, scale=0.5).numpy()
    b = context.random_normal((100_001,), key=2, loc=3, scale=0.5).numpy()

    # Five standard errors of 1e5 draws.
    assert abs(a.mean() - 3) < 5 * 0.5 / 316
    assert abs(a.std() - 0.5) < 5 * 0.5 / 447
    assert abs(np.corrcoef(a, b)[0, 1]) < 5 / 316


def test_threefry_is_that_of_its_paper() -> None:
    from wgpu_backend.ops.random.bits import threefry

    # Known answer of Random123 for counter and key zero.
    zero = np.zeros(1, np.uint32)
    a, b = threefry(np.zeros(2, np.uint32), zero, zero)
    assert (hex(a[0]), hex(b[0])) == ("0x6b200159", "0x99ba4efe")


def test_compute_with_notify_calls_once(context) -> None:
    calls = []
    tensor = context.arange(0, 5).scale(factor=2.0)
    context.compute_with_notify(lambda: calls.append(1), tensor)

    assert calls == [1]
    np.testing.assert_array_equal(tensor.numpy(), [0, 2, 4, 6, 8])


def test_reserve_tells_what_a_graph_needs(context) -> None:
    small = context.reserve(context.arange(0, 64).silu())
    large = context.reserve(context.arange(0, 1 << 20).silu())

    assert small < large
    assert 4 << 20 <= large <= 13 << 20


def test_layer_states_are_zero_and_writable(context) -> None:
    state = context.layer(3).zeros(4, 4)
    rows = context.from_floats(range(8), 2, 4)
    written = state.set_rows(rows, context.from_ints([2, 0]))
    context.compute(written)

    np.testing.assert_array_equal(state.numpy()[[0, 2]], [[4, 5, 6, 7], [0, 1, 2, 3]])


def test_batch_size_is_positive(context) -> None:
    context.set_batch_size(4)
    with pytest.raises(ShapeError, match="at least 1"):
        context.set_batch_size(0)


def test_compare_with_tells_rounding_from_mistakes(context, tmp_path) -> None:
    save = pytest.importorskip("safetensors.numpy").save_file
    values = np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)
    save({"a": values, "b": values, "c": values}, tmp_path / "reference.safetensors")
    tensors = {
        "a": context.from_numpy(values + 1e-4),
        "b": context.from_numpy(values[::-1]),
        "c": context.from_numpy(values[:2]),
    }
    report = context.compare_with(tmp_path / "reference.safetensors", tensors, abort_on_error=False)

    assert [found.close for found in report] == [True, False, False]
    assert str(report[0]).startswith("ok")
    assert "(2, 5)" in str(report[2])
    assert "(3, 5)" in str(report[2])
    with pytest.raises(BackendError, match="BAD b"):
        context.compare_with(tmp_path / "reference.safetensors", tensors)
    with pytest.raises(BackendError, match="'d' among 3"):
        context.compare_with(tmp_path / "reference.safetensors", {"d": tensors["a"]})


def test_dump_shortens_long_tensors(context) -> None:
    long, short = context.arange(0, 2000), context.arange(0, 3).scale(factor=0.5)

    assert short.dump(precision=2) == "[0.00, 0.50, 1.00]"
    assert "..." in long.dump()
    assert "..." not in long.dump(threshold=3000)
    assert long.dump(edge_items=1, precision=0).startswith("[   0., ..., 1999.]")


def test_host_views_of_a_tensor(context) -> None:
    tensor = context.from_numpy([[1.5, 2.5], [3.5, 4.5]])

    np.testing.assert_array_equal(np.asarray(tensor), [[1.5, 2.5], [3.5, 4.5]])
    np.testing.assert_array_equal(np.from_dlpack(tensor), [[1.5, 2.5], [3.5, 4.5]])
    assert tensor.floats() == [1.5, 2.5, 3.5, 4.5]
    assert tensor.cast(dtype=F16).bytes() == np.array([1.5, 2.5, 3.5, 4.5], np.float16).tobytes()
    assert context.arange(0, 3, 1, I32).ints() == [0, 1, 2]
    assert "1.5" in tensor._repr_html_()
    assert "not computed" in tensor.silu()._repr_html_()


def test_tensors_take_new_values(context) -> None:
    state, constant = context.zeros(2, 3), context.from_floats([0] * 6, 2, 3)
    for tensor in (state, constant):
        tensor.from_floats([1, 2, 3, 4, 5, 6])
        np.testing.assert_array_equal(tensor.scale(factor=2.0).numpy(), [[2, 4, 6], [8, 10, 12]])
    half = context.zeros(4, dtype=F16).from_ints([1, 2, 3, 4])
    np.testing.assert_array_equal(half.numpy(), [1, 2, 3, 4])
    state[1].from_floats([7, 8, 9])
    np.testing.assert_array_equal(state.numpy(), [[1, 2, 3], [7, 8, 9]])


def test_values_that_do_not_fit_a_tensor_are_refused(context) -> None:
    with pytest.raises(ShapeError, match=r"8 bytes, a dense \(3,\) has 12"):
        context.zeros(3).from_floats([1, 2])
    with pytest.raises(ShapeError, match="dense"):
        context.zeros(2, 3).transpose().from_floats([0] * 6)
    with pytest.raises(ContextError, match="result of an op"):
        context.zeros(3).silu().from_floats([1, 2, 3])
    with pytest.raises(DTypeError, match="bf16"):
        context.zeros(3, dtype=BF16).from_floats([1, 2, 3])


def test_a_context_makes_no_more_nodes_than_it_was_made_for(executor) -> None:
    with Context(executor, max_nodes=2) as small:
        tensor = small.arange(0, 3).silu()
        assert small.max_graph_nodes() == 2
        with pytest.raises(ContextError, match="node 3, it was made for 2"):
            tensor.silu()


def test_a_view_may_have_more_values_than_its_storage(gpu):
    with Context(gpu) as ctx:
        x = ctx.from_floats([1, 2, 3]) + 1
        assert x.as_strided((500, 3), (0, 1)).numpy().sum() == 500 * 9
