"""Operators, views and indexing of a Tensor are those of NumPy, on NumPy and on the adapter."""

import inspect
import pydoc
from functools import partial

import numpy as np
import pytest

from wgpu_backend import BackendError, Context, DTypeError, ShapeError, Tensor
from wgpu_backend.dtypes import BF16, F16, I32
from wgpu_backend.ml.numpy_executor import NumpyExecutor


@pytest.fixture(params=["cpu", pytest.param("wgpu", marks=pytest.mark.gpu)])
def context(request: pytest.FixtureRequest):
    gpu = request.param == "wgpu"
    executor = request.getfixturevalue("full") if gpu else NumpyExecutor()
    with Context(executor) as opened:
        yield opened


OPERATORS = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "a / b": lambda a, b: a / b,
    "-a": lambda a, b: -a,
    "a + 2": lambda a, b: a + 2,
    "2 + a": lambda a, b: 2 + a,
    "a - 0.5": lambda a, b: a - 0.5,
    "3 * a": lambda a, b: 3 * a,
    "a / 4": lambda a, b: a / 4,
    "a + b[0]": lambda a, b: a + b[0],
    "(a + b) * (a - b) / b": lambda a, b: (a + b) * (a - b) / b,
    "b ** a": lambda a, b: b**a,
    "a ** 3": lambda a, b: a**3,
    "2 ** a": lambda a, b: 2**a,
    "abs(a)": lambda a, b: abs(a),
    "2 - a": lambda a, b: 2 - a,
    "1 / b": lambda a, b: 1 / b,
    "a + array": lambda a, b: a + ROW,
    "array - a": lambda a, b: ROW - a,
    "a + list": lambda a, b: a + LIST,
    "np.float32(2) * a": lambda a, b: np.float32(2) * a,
    "a @ matrix": lambda a, b: a @ SQUARE,
    "matrix @ a": lambda a, b: SQUARE[:2, :3] @ a,
    "a == b": lambda a, b: a == b,
    "a != 1": lambda a, b: a != 1,
    "a < b": lambda a, b: a < b,
    "0 <= a": lambda a, b: a >= 0,
    "a > row": lambda a, b: a > ROW,
    "row >= a": lambda a, b: a <= ROW,
    "(a > 0) & ~(b > 1.5)": lambda a, b: (a > 0) & ~(b > 1.5),
    "(a > 0) | (b > 1.5) ^ (a < 1)": lambda a, b: (a > 0) | (b > 1.5) ^ (a < 1),
    "a.T": lambda a, b: a.T,
}
ROW = np.arange(5, dtype="f4")
LIST = list(ROW)
SQUARE = np.arange(25, dtype="f4").reshape(5, 5)


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_those_of_numpy(context: Context, rng, name):
    a, b = rng.standard_normal((3, 5), "f4"), rng.uniform(1, 2, (3, 5)).astype("f4")
    made = OPERATORS[name](context.from_numpy(a), context.from_numpy(b))
    # Division is good to 2.5 ulp in WGSL.
    wanted = OPERATORS[name](a, b)
    assert (made.shape, made.numpy().dtype) == (wanted.shape, wanted.dtype)
    np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-6, atol=1e-6)


def test_numbers_take_the_type_of_the_tensor_beside_them(context: Context):
    ids, half = context.from_numpy([1, 2, 3]), context.zeros(3, dtype="f16")
    assert [(ids + 2).dtype, (5 - ids).dtype, (ids * [2, 3, 4]).dtype, (-ids).dtype] == [I32] * 4
    assert [(half + 2.5).dtype, (2 / (half + 1)).dtype, (half**2).dtype] == [F16] * 3
    assert (5 - ids).tolist() == [4, 3, 2]
    assert (context.zeros() + 1).shape == ()


DAY = np.datetime64("2020-01-01")
WRONG = [None, "two", object(), {1: 2}, [1, "a"], [[1], [2, 3]], 1j, DAY, [None]]


@pytest.mark.parametrize("other", WRONG, ids=lambda other: type(other).__name__)
@pytest.mark.parametrize(
    "op", ["__add__", "__rsub__", "__mul__", "__pow__", "__lt__", "__matmul__"]
)
def test_what_is_no_number_is_one_clear_error(context: Context, op, other):
    with pytest.raises(BackendError) as caught:
        getattr(context.zeros(2, 2), op)(other)
    assert "\n" not in str(caught.value)


def test_wrong_operands_are_named(context: Context):
    x, ids = context.zeros(3), context.zeros(3, dtype=I32)
    with pytest.raises(DTypeError, match="add: b is None, needs a tensor, a number or an array"):
        x + None
    with pytest.raises(DTypeError, match="mulmat: x is 3, needs a tensor; from_numpy makes one"):
        x.mulmat(3)
    with pytest.raises(
        DTypeError, match=r"add: b is 2.5 with a tensor of i32, needs integers; cast"
    ):
        ids + 2.5
    with pytest.raises(DTypeError, match=r"add: b: 3000000000 at \(\) does not fit i32"):
        ids + 3_000_000_000
    with pytest.raises(DTypeError, match=r"mul: b: 1e\+300 at \(\) does not fit f32"):
        x * 1e300


OPERATIONS = [name for name, value in vars(Tensor).items() if type(value).__name__ == "Method"]


def failure(call) -> str:
    """What a call with wrong operands fails of inside; nothing where it is refused."""
    try:
        call()
    except BackendError:
        return ""
    except TypeError as error:  # Python's own word on arguments that are missing, or too many
        return "" if "argument" in str(error) else repr(error)
    except Exception as error:
        return repr(error)
    return ""


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_method_fails_inside_of_wrong_operands(name):
    with Context(NumpyExecutor()) as context:
        method = getattr(context.zeros(2, 4), name)
        calls = [partial(method, *[w] * n) for w in ("two", object(), None) for n in (1, 2, 3)]
        assert [f for f in map(failure, calls) if f] == []


def test_equality_is_by_value_and_hashing_by_identity(context: Context):
    a, b = context.from_numpy([1.0, 2.0]), context.from_numpy([1.0, 3.0])
    assert (a == b).tolist() == [True, False]
    assert len({a, b, a}) == 2
    assert (a == None) is False  # noqa: E711
    assert a != "a"
    assert [x is b for x in (a, b)] == [False, True]
    context.forward(a + 1, b)
    context.compute(a + 2, b)


def test_only_one_value_is_true_or_a_number(context: Context):
    x = context.from_numpy([[2.5]])
    assert (bool(x), float(x), int(x), x.item()) == (True, 2.5, 2, 2.5)
    assert not context.zeros(1)
    assert (context.zeros(2, 3).ndim, context.arange(0, 3).tolist()) == (2, [0, 1, 2])
    for ask in (bool, float, int, lambda t: t.item()):
        with pytest.raises(ShapeError, match=r"\(2,\) has 2 values, needs 1; .*numpy\(\)"):
            ask(context.zeros(2))


def test_a_cross_entropy_finishes_on_the_device(context: Context, rng):
    scores, labels = rng.standard_normal((33, 257), "f4") * 4, rng.integers(0, 257, 33)
    x, y = context.from_numpy(scores), context.from_numpy(labels)

    shifted = x - x.max(-1, keep_dims=True)
    log_softmax = shifted - shifted.exp().sum(-1, keep_dims=True).log()
    loss = -log_softmax.take_along_axis(y.reshape(33, 1), axis=-1).mean()

    wide = scores.astype("f8") - scores.max(-1, keepdims=True)
    wanted = (np.log(np.exp(wide).sum(-1)) - wide[np.arange(33), labels]).mean()
    assert abs(loss.item() - wanted) < 1e-6 * wanted  # sums of f32
    right = np.float32(np.mean(scores.argmax(-1) == labels))
    assert (x.argmax() == y).where(1.0, 0.0).mean().item() == right


@pytest.mark.parametrize("shapes", [((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5))], ids=str)
def test_matmul_is_that_of_numpy(context: Context, rng, shapes):
    a, b = (rng.standard_normal(shape, "f4") for shape in shapes)
    made = context.from_numpy(a) @ context.from_numpy(b)
    np.testing.assert_allclose(made.numpy(), a @ b, rtol=1e-5, atol=1e-6)


INDICES = [
    np.s_[0],
    np.s_[-1],
    np.s_[1:],
    np.s_[:-1],
    np.s_[::2],
    np.s_[1:3, ::3],
    np.s_[:, -2],
    np.s_[2, 3, 4],
    np.s_[:, 1, 1:4],
    np.s_[3:1],
    np.s_[1:100],
    np.s_[-3:-1, :, -1],
    np.s_[..., 0],
    np.s_[0, ...],
    np.s_[...],
    np.s_[1, ..., 2:4],
    np.s_[None],
    np.s_[:, None, 1],
    np.s_[..., None],
    np.s_[1, None, ..., None, 2],
    np.s_[np.int64(2), np.int32(1) :],
    np.s_[0, 0, 0, ...],
]
REFUSED = [
    (np.s_[::0], ShapeError, "step 0, needs at least 1"),
    (np.s_[::-1], ShapeError, "step -1, needs at least 1; take_axes"),
    (np.s_[..., ...], ShapeError, r"2 of \.\.\., needs at most one"),
    ([0, 1], DTypeError, r"\[0, 1\], needs integers.* rows.*take_along_axis.*where"),
    (np.array([0, 1]), DTypeError, r"array\(\[0, 1\]\), needs integers"),
    (True, DTypeError, "True, needs integers"),
    (1.0, DTypeError, "1.0, needs integers"),
    ("a", DTypeError, "'a', needs integers"),
    (np.s_["a":], DTypeError, "needs whole numbers or nothing between colons"),
]


@pytest.mark.parametrize(("index", "error", "what"), REFUSED, ids=lambda v: str(v)[:20])
def test_other_indices_are_refused_with_what_to_take_instead(context: Context, index, error, what):
    with pytest.raises(error, match=f"^index: .*{what}"):
        context.zeros(4, 5, 6)[index]


def test_tensors_are_no_indices(context: Context):
    x = context.zeros(4, 5)
    with pytest.raises(DTypeError, match=r"index: Tensor\(\(4, 5\), bool.*condition\.where"):
        x[x > 0]


def test_shapes_and_orders_may_come_as_one_sequence(context: Context):
    x = context.zeros((2, 3, 4))
    made = [x.reshape((4, -1)), x.reshape([2, 12]), x.permute((2, 0, 1)), x.transpose([1, 0, 2])]
    assert [t.shape for t in made] == [(4, 6), (2, 12), (4, 2, 3), (3, 2, 4)]
    assert context.empty(np.int64(2), 3).shape == context.zeros([2, 3]).shape == (2, 3)
    assert context.from_floats(range(6), (2, 3)).shape == (2, 3)
    assert x.pad((1, 0, 0)).shape == (3, 3, 4)
    assert x.repeat_4d((1, 2, 6, 4)).shape == (1, 2, 6, 4)
    assert [t.shape for t in x.chunk_sections(2, (1, 3))] == [(2, 3, 1), (2, 3, 3)]


SHAPES = [(2.0, 3), (True, 2), ("2",), (None,), (-1, 2), (1 << 32, 1 << 32), ((2, 3), 4)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("make", ["zeros", "empty", "reshape", "input", "random_normal", "bytes"])
def test_what_is_no_shape_is_refused_everywhere(context: Context, shape, make):
    makers = {
        "zeros": lambda: context.zeros(*shape),
        "empty": lambda: context.layer(0).empty(*shape),
        "reshape": lambda: context.zeros(3).reshape(*shape),
        "input": lambda: context.input("x", shape),
        "random_normal": lambda: context.random_normal(shape),
        "bytes": lambda: context.from_bytes("f32", b"", *shape),
    }
    with pytest.raises(ShapeError, match=r"whole numbers|negative|63 bits|fit|values"):
        makers[make]()


def test_element_types_are_named_everywhere(context: Context):
    x = context.zeros(2, dtype="f16")
    assert x.dtype == context.zeros(2, dtype=np.float16).dtype == F16
    assert x.cast(dtype="i32").dtype == context.arange(0, 3, dtype="int32").dtype == I32
    assert context.from_numpy([1], dtype="u8").dtype == context.from_bytes("u8", b"1", 1).dtype
    assert context.random_normal((2,), "bf16").dtype == BF16
    with pytest.raises(DTypeError, match="dtype 'f17': unknown, needs one of"):
        x.cast(dtype="f17")
    with pytest.raises(DTypeError, match="dtype 16: needs a name"):
        context.zeros(2, dtype=16)


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_is_that_of_numpy(context: Context, index):
    a = np.arange(4 * 5 * 6, dtype="f4").reshape(4, 5, 6)
    view = context.from_numpy(a)[index]
    assert view.shape == a[index].shape
    np.testing.assert_array_equal(view.numpy(), a[index])
    np.testing.assert_array_equal((view + 1).numpy(), a[index] + 1)


def test_views_of_views_are_those_of_numpy(context: Context):
    a = np.arange(4 * 5 * 6, dtype="f4").reshape(4, 5, 6)
    x = context.from_numpy(a)
    made = x.permute(2, 0, 1)[1::2, 1:].reshape(3, -1).transpose()
    np.testing.assert_array_equal(made.numpy(), a.transpose(2, 0, 1)[1::2, 1:].reshape(3, -1).T)
    assert [row.numpy().tolist() for row in x[0]] == a[0].tolist()
    assert len(x) == 4


@pytest.mark.parametrize("index", [4, -5, (0, 5), (0, 0, 0, 0)], ids=str)
def test_indices_outside_are_refused(context: Context, index):
    with pytest.raises(ShapeError, match="index: "):
        context.zeros(4, 5, 6)[index]


def test_chunks_are_views_that_add_up(context: Context):
    a = np.arange(14, dtype="f4").reshape(2, 7)
    x = context.from_numpy(a)
    assert [c.numpy().tolist() for c in x.chunk(1, 3)] == [
        a[:, i : i + 3].tolist() for i in (0, 3, 6)
    ]
    first, second = x.chunk_sections(-1, 2, 5)
    np.testing.assert_array_equal(first.concat(second, axis=1).numpy(), a)
    with pytest.raises(ShapeError, match="sections add up to 6, axis 1 has 7 values"):
        x.chunk_sections(1, 2, 4)


def test_a_tensor_tells_what_it_is(context: Context):
    x = context.zeros(2, 3, dtype=F16)
    assert (x.shape, x.strides, x.size, x.dtype) == ((2, 3), (3, 1), 6, F16)
    assert (x.dim(-1), x.stride(0)) == (3, 3)
    assert x.context is context
    assert repr(x.transpose()).startswith("Tensor((3, 2), f16")
    with pytest.raises(ShapeError, match="dim: axis 2"):
        x.dim(2)


def test_an_op_shows_itself_as_a_method_of_a_tensor():
    assert inspect.isfunction(Tensor.add)
    assert str(inspect.signature(Tensor.add)).startswith("(self, b: 'Tensor'")
    assert Tensor.add.__qualname__ == "Tensor.add"
    assert Tensor.add.__module__ == Tensor.__module__
    # Python 3.14 shows annotations without quotes.
    shown = pydoc.plain(pydoc.render_doc(Tensor.add)).replace("'Tensor'", "Tensor")
    assert "add(self, b: Tensor) -> Tensor\n    Return the sum of two tensors" in shown
    assert shown.rstrip().endswith("The tensor itself is `a`.")


def test_a_bound_op_shows_what_it_takes_beside_the_tensor():
    with Context(NumpyExecutor()) as context:
        x = context.from_numpy([1.0])
        assert list(inspect.signature(x.clamp).parameters) == ["low", "high"]
        assert inspect.signature(x.sum).parameters["keep_dims"].default is False
        assert x.add.__self__ is x


def test_every_method_of_a_tensor_is_documented_and_has_its_own_signature():
    for name, found in vars(Tensor).items():
        if inspect.isfunction(found) and not name.startswith("_"):
            assert found.__doc__, name
            assert next(iter(inspect.signature(found).parameters)) == "self", name
            assert "args" not in inspect.signature(found).parameters, name
