"""Operators, views and indexing of a Tensor are those of NumPy, on NumPy and on the adapter."""

import inspect
import pydoc

import numpy as np
import pytest

from wgpu_backend import Context, ShapeError, Tensor
from wgpu_backend.dtypes import F16
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
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_those_of_numpy(context: Context, rng, name):
    a, b = rng.standard_normal((3, 5), "f4"), rng.uniform(1, 2, (3, 5)).astype("f4")
    made = OPERATORS[name](context.from_numpy(a), context.from_numpy(b))
    # Division is good to 2.5 ulp in WGSL.
    np.testing.assert_allclose(made.numpy(), OPERATORS[name](a, b), rtol=1e-6, atol=1e-6)


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
]


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
    shown = pydoc.plain(pydoc.render_doc(Tensor.add))
    assert "add(self, b: 'Tensor') -> 'Tensor'\n    Sum of two tensors" in shown
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
