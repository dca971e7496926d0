"""Linear algebra against NumPy's in float64."""

import math
from typing import Any

import numpy as np
import pytest

import wgpu_backend.array as wx
from wgpu_backend.errors import BackendError, ContextError, OptionError, ShapeError

pytestmark = pytest.mark.usefixtures("session")


@pytest.fixture(params=["f4", "c8"])
def matrices(request: pytest.FixtureRequest, rng: np.random.Generator) -> Any:
    """A stack (2, 4, 4) of matrices that are far from singular."""
    values = rng.standard_normal((2, 4, 4)) + 3 * np.eye(4)
    if request.param == "c8":
        values = values + 1j * rng.standard_normal((2, 4, 4))
    return values.astype(request.param)


def same(ours: Any, theirs: Any) -> None:
    wanted = np.asarray(theirs)
    assert ours.shape == wanted.shape
    assert ours.numpy().dtype == {"c": "c8", "f": "f4", "i": "i4"}[wanted.dtype.kind]
    scale = max(1.0, float(np.abs(wanted).max(initial=0)))
    np.testing.assert_allclose(ours.numpy(), wanted, rtol=1e-5, atol=1e-5 * scale)


def wide(values: Any) -> Any:
    return values.astype("c16" if values.dtype.kind == "c" else "f8")


@pytest.mark.parametrize("name", ["det", "inv", "pinv", "matrix_rank"])
def test_what_numpy_makes_of_matrices(matrices, name):
    same(getattr(wx.linalg, name)(wx.array(matrices)), getattr(np.linalg, name)(wide(matrices)))


def test_singular_values_and_determinants(matrices):
    x, w = wx.array(matrices), wide(matrices)
    same(wx.linalg.svdvals(x), np.linalg.svdvals(w))
    sign, size = wx.linalg.slogdet(x)
    same(sign, np.linalg.slogdet(w)[0])
    same(size, np.linalg.slogdet(w)[1])


def test_factors_make_their_matrix(matrices):
    x, w = wx.array(matrices[:, :, :3]), wide(matrices[:, :, :3])
    for found in (wx.linalg.svd(x, full_matrices=False),):
        same(found.U @ (found.S[..., None] * found.Vh), w)
    assert wx.linalg.svd(x).U.shape == (2, 4, 4)
    found = wx.linalg.qr(x)
    same(found.Q @ found.R, w)
    assert wx.linalg.qr(x, mode="complete").Q.shape == (2, 4, 4)
    square = wx.array(matrices)
    positive = square @ wx.conj(wx.matrix_transpose(square))
    lower = wx.linalg.cholesky(positive)
    same(lower, np.linalg.cholesky(positive.numpy()))
    same(wx.linalg.cholesky(positive, upper=True), np.conj(lower.numpy().swapaxes(-1, -2)))
    same(wx.linalg.cholesky_inv(lower), np.linalg.inv(positive.numpy()))
    same(wx.linalg.tri_inv(lower), np.linalg.inv(lower.numpy()))


def test_eigenvalues(matrices):
    x, w = wx.array(matrices), wide(matrices)
    hermitian = x + wx.conj(wx.matrix_transpose(x))
    values, vectors = wx.linalg.eigh(hermitian)
    same(values, np.linalg.eigvalsh(w + w.swapaxes(-1, -2).conj()))
    same(wx.linalg.eigvalsh(hermitian, UPLO="U"), values.numpy())
    same(hermitian @ vectors, vectors.numpy() * values.numpy()[:, None])
    found = wx.linalg.eig(x)
    values, vectors = found
    assert found.eigenvalues is values
    same(x @ vectors, (vectors * values[:, None]).numpy())
    assert wx.linalg.eigvals(x).dtype == wx.complex64


def test_solutions(matrices):
    x, w = wx.array(matrices), wide(matrices)
    same(wx.linalg.solve(x, x[0, :, :2]), np.linalg.solve(w, w[0, :, :2]))
    same(wx.linalg.solve(x, x[0, 0]), np.linalg.solve(w, w[0, 0][:, None])[..., 0])
    same(wx.linalg.solve_triangular(x, x[1]), np.linalg.solve(np.tril(w), w[1]))
    upper = wx.linalg.solve_triangular(x, x[1], upper=True)
    same(upper, np.linalg.solve(np.triu(w), w[1]))


@pytest.mark.parametrize("order", [2, 1, 0, 3, 0.5, math.inf, -math.inf])
def test_norms_of_vectors(matrices, order):
    x, w = wx.array(matrices), wide(matrices)
    for axis in (None, 1, (0, 2)):
        for keepdims in (False, True):
            options = {"axis": axis, "keepdims": keepdims, "ord": order}
            theirs = np.linalg.vector_norm(w, **options).astype("f8")
            same(wx.linalg.vector_norm(x, **options), theirs)


@pytest.mark.parametrize("order", ["fro", "nuc", 1, -1, 2, -2, math.inf, -math.inf])
def test_norms_of_matrices(matrices, order):
    x, w = wx.array(matrices), wide(matrices)
    for keepdims in (False, True):
        theirs = np.linalg.matrix_norm(w, ord=order, keepdims=keepdims)
        same(wx.linalg.matrix_norm(x, ord=order, keepdims=keepdims), theirs)
        same(
            wx.linalg.norm(x, order, axis=(0, 2), keepdims=keepdims),
            np.linalg.norm(w, order, axis=(0, 2), keepdims=keepdims),
        )
    same(wx.linalg.norm(x), np.linalg.norm(w))
    same(wx.linalg.norm(x[0], 1), np.linalg.norm(w[0], 1))


def test_powers_crosses_diagonals_and_traces(matrices):
    x, w = wx.array(matrices), wide(matrices)
    for n in (0, 1, 5, -2):
        same(wx.linalg.matrix_power(x, n), np.linalg.matrix_power(w, n))
    same(wx.linalg.cross(x[..., :3], x[0, 0, :3]), np.linalg.cross(w[..., :3], w[0, 0, :3]))
    same(wx.linalg.cross(x[:, :3], x[:, 1:], axis=1), np.linalg.cross(w[:, :3], w[:, 1:], axis=1))
    same(wx.linalg.diagonal(x, offset=1), np.linalg.diagonal(w, offset=1))
    same(wx.linalg.trace(x, offset=-1), np.linalg.trace(w, offset=-1))


def test_whole_numbers_and_halves_are_floats():
    assert wx.linalg.det(wx.array([[2, 1], [1, 3]])).item() == pytest.approx(5)
    half = wx.array([[2.0, 0], [0, 4]], dtype=wx.float16)
    assert wx.linalg.inv(half).tolist() == [[0.5, 0], [0, 0.25]]


def test_what_makes_no_sense_is_refused():
    x = wx.ones((2, 3))
    for function in (wx.linalg.inv, wx.linalg.det, wx.linalg.cholesky, wx.linalg.eigh):
        with pytest.raises(ShapeError, match="square"):
            function(x)
    with pytest.raises(BackendError, match="inv: Singular"):
        wx.linalg.inv(wx.zeros((2, 2)))
    with pytest.raises(ShapeError, match="rows"):
        wx.linalg.solve(wx.eye(2), wx.ones(3))
    with pytest.raises(OptionError, match="ord"):
        wx.linalg.matrix_norm(x, ord=5)
    with pytest.raises(ShapeError, match="3 values"):
        wx.linalg.cross(wx.ones(2), wx.ones(2))


def test_a_compiled_function_cannot_read_its_arguments():
    for function in (wx.linalg.inv, lambda x: x[x > 0], lambda x: x * x.sum().item()):
        with pytest.raises(ContextError, match="reads values"):
            wx.compile(function)(wx.eye(2))
    outside = wx.array([2.0])
    assert wx.compile(lambda x: x * outside.item())(wx.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("name", ["grad", "value_and_grad", "vjp", "jvp"])
def test_there_are_no_gradients(name):
    with pytest.raises(AttributeError, match="no gradients"):
        getattr(wx, name)
    assert not hasattr(wx, "no_such_name")
