"""Linear algebra, as the array API's extension and ``mx.linalg`` have it: ``wx.linalg``.

Products, norms, powers, cross products, diagonals and traces run on the device. Factorisations,
inverses, determinants and solutions are computed by NumPy's LAPACK on the host, in float64, and
returned as float32 or complex64: they wait for the device, and a compiled function cannot use them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from wgpu_backend.array import manipulation, products
from wgpu_backend.array.base import wrap
from wgpu_backend.array.creation import asarray, eye
from wgpu_backend.array.elementwise import abs, conj, sqrt
from wgpu_backend.array.manipulation import diagonal as _diagonal
from wgpu_backend.array.operators import power
from wgpu_backend.array.promotion import as_node, common_shape, is_complex, to_floats
from wgpu_backend.array.reductions import Axis
from wgpu_backend.array.reductions import max as _max
from wgpu_backend.array.reductions import min as _min
from wgpu_backend.array.reductions import sum as _sum
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import BackendError, OptionError, ShapeError

if TYPE_CHECKING:
    from wgpu_backend.array.arrays import Array

__all__ = [
    "EigResult", "EighResult", "QRResult", "SVDResult", "SlogdetResult", "cholesky",
    "cholesky_inv", "cross", "det", "diagonal", "eig", "eigh", "eigvals", "eigvalsh", "inv",
    "matmul", "matrix_norm", "matrix_power", "matrix_rank", "matrix_transpose", "norm", "outer",
    "pinv", "qr", "slogdet", "solve", "solve_triangular", "svd", "svdvals", "tensordot", "trace",
    "tri_inv", "vecdot", "vector_norm",
]  # fmt: skip

matmul, outer, tensordot, vecdot = (
    products.matmul, products.outer, products.tensordot, products.vecdot,
)  # fmt: skip
matrix_transpose = manipulation.matrix_transpose


class EigResult(NamedTuple):
    """Eigenvalues in no order, and eigenvectors as columns."""

    eigenvalues: Array
    eigenvectors: Array


class EighResult(NamedTuple):
    """Eigenvalues in ascending order, and eigenvectors as columns."""

    eigenvalues: Array
    eigenvectors: Array


class QRResult(NamedTuple):
    """Orthonormal columns, and an upper triangle."""

    Q: Array
    R: Array


class SlogdetResult(NamedTuple):
    """Sign of a determinant, and the logarithm of its size."""

    sign: Array
    logabsdet: Array


class SVDResult(NamedTuple):
    """Left singular vectors as columns, singular values, and right ones as rows."""

    U: Array
    S: Array
    Vh: Array


# On the host.

# Any: functions are looked up by name.
_LAPACK: Any = np.linalg


def _matrices(name: str, x: Array, *, square: bool = False) -> Any:
    """Return a stack of matrices on the host, in double precision."""
    node = as_node(name, x)
    shape = node.spec.shape
    if len(shape) < 2 or (square and shape[-1] != shape[-2]):
        needed = "square matrices" if square else "matrices"
        raise ShapeError(f"{name}: {shape}, needs {needed} as the last two axes")
    return _double(x)


def _double(x: Array) -> Any:
    node = as_node("linalg", x)
    if is_complex(node):
        return x.numpy().astype(np.complex128)
    return wrap(to_floats(node)).numpy().astype(np.float64)


def _compute(name: str, x: Array, *operands: Any, by: str = "", **options: Any) -> Any:
    """Call a function of NumPy, and upload its results to the device of `x`."""
    try:
        with np.errstate(all="ignore"):
            found = getattr(_LAPACK, by or name)(*operands, **options)
    except np.linalg.LinAlgError as error:
        raise BackendError(f"{name}: {error}, of {x.shape}") from None
    return (
        [_single(p, x) for p in cast("tuple[Any, ...]", found)]
        if isinstance(found, tuple)
        else _single(found, x)
    )


def _single(values: Any, x: Array) -> Array:
    kind = {"c": np.complex64, "f": np.float32}.get(values.dtype.kind, np.int32)
    with np.errstate(all="ignore"):
        return asarray(np.asarray(values).astype(kind), device=x.session)


def cholesky(x: Array, /, upper: bool = False) -> Array:
    """Return the lower triangle whose product with its conjugate transpose is `x`, or the upper."""
    values = _matrices("cholesky", x, square=True)
    found = _compute("cholesky", x, values)
    return conj(matrix_transpose(found)) if upper else found


def cholesky_inv(x: Array, /, upper: bool = False) -> Array:
    """Invert the matrix that a triangle of `cholesky` represents."""
    values = _matrices("cholesky_inv", x, square=True)
    lower = np.triu(values).swapaxes(-1, -2).conj() if upper else np.tril(values)
    square = lower @ lower.swapaxes(-1, -2).conj()
    return _compute("cholesky_inv", x, square, by="inv")


def tri_inv(x: Array, /, upper: bool = False) -> Array:
    """Invert a triangle; the other triangle is ignored."""
    values = _matrices("tri_inv", x, square=True)
    triangle = np.triu(values) if upper else np.tril(values)
    return _compute("tri_inv", x, triangle, by="inv")


def det(x: Array, /) -> Array:
    """Compute determinants."""
    return _compute("det", x, _matrices("det", x, square=True))


def slogdet(x: Array, /) -> SlogdetResult:
    """Return signs and logarithms of determinants that may themselves be too large for the type."""
    values = _matrices("slogdet", x, square=True)
    return SlogdetResult(*_compute("slogdet", x, values))


def eig(x: Array, /) -> EigResult:
    """Return eigenvalues and eigenvectors, as columns, of any square matrices; complex64."""
    # Real matrices may have complex eigenvalues: the type must not depend on the values.
    values = _matrices("eig", x, square=True).astype(np.complex128)
    return EigResult(*_compute("eig", x, values))


def eigvals(x: Array, /) -> Array:
    """Return eigenvalues of any square matrices, complex64."""
    values = _matrices("eigvals", x, square=True).astype(np.complex128)
    return _compute("eigvals", x, values)


def eigh(x: Array, /, UPLO: str = "L") -> EighResult:  # noqa: N803
    """Return eigenvalues and eigenvectors of Hermitian matrices, read from one triangle."""
    values = _triangle("eigh", x, UPLO)
    return EighResult(*_compute("eigh", x, values, UPLO=UPLO))


def eigvalsh(x: Array, /, UPLO: str = "L") -> Array:  # noqa: N803
    """Return eigenvalues of Hermitian matrices in ascending order."""
    values = _triangle("eigvalsh", x, UPLO)
    return _compute("eigvalsh", x, values, UPLO=UPLO)


def _triangle(name: str, x: Array, side: str) -> Any:
    if side not in ("L", "U"):
        raise OptionError(f"{name}: UPLO is {side!r}, needs 'L' or 'U'")
    return _matrices(name, x, square=True)


def inv(x: Array, /) -> Array:
    """Invert square matrices."""
    return _compute("inv", x, _matrices("inv", x, square=True))


def pinv(x: Array, /, *, rtol: Any = None) -> Array:
    """Compute pseudo-inverses; singular values up to `rtol` times the largest count as 0."""
    values = _matrices("pinv", x)
    # NumPy's default is for float64, but values come from float32.
    cut = _tolerance(x) if rtol is None else np.asarray(rtol)
    return _compute("pinv", x, values, rcond=cut)


def _tolerance(x: Array) -> float:
    return max(x.shape[-2:]) * float(np.finfo(np.float32).eps)


def matrix_rank(x: Array, /, *, rtol: Any = None) -> Array:
    """Count singular values above `rtol` times the largest, int32."""
    sizes = np.linalg.svd(_matrices("matrix_rank", x), compute_uv=False)
    cut = np.asarray(_tolerance(x) if rtol is None else rtol)[..., None]
    # `initial`: matrices without values have rank 0.
    largest = sizes.max(axis=-1, keepdims=True, initial=0)
    return _single(np.count_nonzero(sizes > largest * cut, axis=-1), x)


def qr(x: Array, /, mode: str = "reduced") -> QRResult:
    """Factor into orthonormal columns and upper triangles; ``complete``: all columns."""
    if mode not in ("reduced", "complete"):
        raise OptionError(f"qr: mode is {mode!r}, needs 'reduced' or 'complete'")
    values = _matrices("qr", x)
    return QRResult(*_compute("qr", x, values, mode=mode))


def svd(x: Array, /, full_matrices: bool = True, compute_uv: bool = True) -> Any:
    """Return singular vectors, and singular values in descending order: an `SVDResult`."""
    if not compute_uv:
        return svdvals(x)
    values = _matrices("svd", x)
    return SVDResult(*_compute("svd", x, values, full_matrices=full_matrices))


def svdvals(x: Array, /) -> Array:
    """Return singular values in descending order."""
    values = _matrices("svdvals", x)
    return _compute("svdvals", x, values, by="svd", compute_uv=False)


def solve(x1: Array, x2: Array, /) -> Array:
    """Solve ``x1 @ y = x2``; `x2` may be one vector."""
    left = _matrices("solve", x1, square=True)
    return _solution("solve", x1, left, x2)


def solve_triangular(x1: Array, x2: Array, /, *, upper: bool = False) -> Array:
    """Solve ``x1 @ y = x2`` for triangles; the other triangle is ignored."""
    left = _matrices("solve_triangular", x1, square=True)
    return _solution("solve_triangular", x1, np.triu(left) if upper else np.tril(left), x2)


def _solution(name: str, x1: Array, left: Any, x2: Array) -> Array:
    _require_rows(name, x1, x2)
    right = _double(x2)
    if right.ndim > 1:
        return _compute(name, x1, left, right, by="solve")
    # From NumPy 2 on `solve` takes only a right side of one axis as a vector; a column is the same
    # in all versions.
    return _compute(name, x1, left, right[:, None], by="solve")[..., 0]


def _require_rows(name: str, x1: Array, x2: Array) -> None:
    rows = x2.shape[-2 if x2.ndim > 1 else -1 :][:1]
    if rows != x1.shape[-1:]:
        raise ShapeError(f"{name}: {x1.shape} and {x2.shape}, needs as many rows of both")
    if x2.ndim > 1:
        common_shape(name, [x1.shape[:-2], x2.shape[:-2]])


# On the device.


def cross(x1: Array, x2: Array, /, *, axis: int = -1) -> Array:
    """Compute cross products of vectors of three along an axis; other axes broadcast."""
    for x in (x1, x2):
        if x.shape[as_node("cross", x).spec.axis(axis, "cross")] != 3:
            raise ShapeError(f"cross: axis {axis} of {x.shape}, needs 3 values")
    (a, b, c), (u, v, w) = (manipulation.unstack(x, axis=axis) for x in (x1, x2))
    parts = [b * w - c * v, c * u - a * w, a * v - b * u]
    # Counted from the end: broadcasting may add leading axes.
    at = axis if axis < 0 else axis - len(x1.shape)
    return manipulation.moveaxis(manipulation.stack(parts, axis=-1), -1, at)


def diagonal(x: Array, /, *, offset: int = 0) -> Array:
    """Return diagonals of matrices; `wgpu_backend.array.diagonal` takes any axes."""
    return _diagonal(x, offset, -2, -1)


def trace(x: Array, /, *, offset: int = 0, dtype: Any = None) -> Array:
    """Sum the diagonals of matrices."""
    return _sum(diagonal(x, offset=offset), -1, dtype=dtype)


def matrix_power(x: Array, n: int, /) -> Array:
    """Multiply square matrices with themselves `n` times; below 0 their inverses."""
    node = as_node("matrix_power", x)
    shape = node.spec.shape
    if len(shape) < 2 or shape[-1] != shape[-2]:
        raise ShapeError(f"matrix_power: {shape}, needs square matrices as the last two axes")
    # Exponentiation by squaring: log2(n) products.
    base, left = (inv(x), -n) if n < 0 else (wrap(node), n)
    if not left:
        return manipulation.broadcast_to(eye(shape[-1], dtype=x.dtype, device=x.session), shape)
    found: Array | None = None
    while left:
        if left % 2:
            found = base if found is None else matmul(found, base)
        left //= 2
        base = matmul(base, base) if left else base
    assert found is not None
    return found


def vector_norm(x: Array, /, *, axis: Axis = None, keepdims: bool = False, ord: float = 2) -> Array:
    """Compute the length of vectors over axes, all by default.

    Parameters
    ----------
    x : (...), any numbers
    keepdims : bool
        Leave the axes in the shape, as 1.
    ord : float
        2 is Euclid's, infinity the largest size, 0 how many values are not 0; any other is the root
        of the sum of powers.
    """
    node = as_node("vector_norm", x)
    sizes = abs(x if is_complex(node) else wrap(to_floats(node)))
    if ord == math.inf:
        return _max(sizes, axis, keepdims)
    if ord == -math.inf:
        return _min(sizes, axis, keepdims)
    if ord == 0:
        return _sum((sizes != 0).astype(F32), axis, keepdims)
    if ord == 1:
        return _sum(sizes, axis, keepdims)
    if ord == 2:
        return sqrt(_sum(sizes * sizes, axis, keepdims))
    return power(_sum(power(sizes, float(ord)), axis, keepdims), 1 / ord)


def matrix_norm(x: Array, /, *, keepdims: bool = False, ord: Any = "fro") -> Array:
    """Compute the norm of matrices.

    Parameters
    ----------
    x : (..., n, m)
    keepdims : bool
        Leave the axes in the shape, as 1.
    ord : str or number
        ``fro``: of all values. ``nuc``, 2, -2: sum, largest and smallest of the singular values.
        1, -1: largest and smallest sum of a column; infinity and -infinity, of a row.
    """
    if as_node("matrix_norm", x).spec.shape[-2:] == () or x.ndim < 2:
        raise ShapeError(f"matrix_norm: {x.shape}, needs matrices as the last two axes")
    if ord == "fro":
        return vector_norm(x, axis=(-2, -1), keepdims=keepdims)
    folds: dict[Any, Callable[..., Array]] = {
        "nuc": _sum, 2: _max, -2: _min, 1: _max, -1: _min, math.inf: _max, -math.inf: _min,
    }  # fmt: skip
    if ord not in folds:
        raise OptionError(f"matrix_norm: ord is {ord!r}, needs one of 'fro', {[*folds]}")
    if ord in ("nuc", 2, -2):
        found = folds[ord](svdvals(x), -1)
    else:
        found = folds[ord](vector_norm(x, axis=-2 if ord in (1, -1) else -1, ord=1), -1)
    return found.reshape((*found.shape, 1, 1)) if keepdims else found


def norm(x: Array, /, ord: Any = None, axis: Axis = None, keepdims: bool = False) -> Array:
    """Compute `vector_norm` of one axis or all values, or `matrix_norm` of two axes.

    Parameters
    ----------
    x : (...)
    ord : str, number or None
        None is Euclid's length, or Frobenius' norm.
    axis : int, pair of int, or None
    """
    if ord is None:
        return vector_norm(x, axis=axis, keepdims=keepdims)
    given = tuple(axis) if isinstance(axis, tuple | list) else axis
    if given is None and x.ndim == 2:
        given = (0, 1)
    if given is None and x.ndim > 2:
        raise OptionError(f"norm: ord {ord!r} of {x.shape}, needs axis=, one axis or two")
    if not isinstance(given, tuple) or len(given) == 1:
        if isinstance(ord, str):
            raise OptionError(f"norm: ord {ord!r} of vectors, needs a number")
        return vector_norm(x, axis=given, keepdims=keepdims, ord=ord)
    found = matrix_norm(manipulation.moveaxis(x, given, (-2, -1)), ord=ord)
    if not keepdims:
        return found
    places = [as_node("norm", x).spec.axis(a, "norm") for a in given]
    return found.reshape(tuple(1 if a in places else n for a, n in enumerate(x.shape)))
