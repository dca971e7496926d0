"""Compare a device with NumPy: all that a test of an op needs, the package's or one's own.

::

    executor = make_executor("wgpu", BackendParams())
    check_op(executor, lambda ctx: swish(ctx.from_numpy(x)))
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import Tensor

Array = NDArray[Any]
Build = Callable[[Context], Tensor]


def values_of(executor: Executor, build: Build) -> Array:
    """Make a tensor in a context of its own and bring its values to the host.

    Parameters
    ----------
    executor : Executor
    build : callable
        From the context to the tensor.
    """
    with Context(executor) as context:
        return build(context).numpy()


def nmse(got: Array, want: Array) -> float:
    """Sum of squared differences over the sum of squares of `want`.

    Parameters
    ----------
    got, want : (...), any number type

    Returns
    -------
    float
        NaN where shapes, NaNs or infinities differ; 0 where everything agrees.
    """
    if got.shape != want.shape:
        return float("nan")
    a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("nan")
    error = float(np.sum((a[finite] - b[finite]) ** 2))
    return error / (float(np.sum(b[finite] ** 2)) or 1.0)


def check_op(executor: Executor, build: Build, *, limit: float = 1e-7) -> float:
    """Compare what a device computes with what the ops' NumPy twins compute.

    Parameters
    ----------
    executor : Executor
        Device under test.
    build : callable
        From a context to the tensor; called once on the device and once on NumPy.
    limit : float
        Largest `nmse` allowed; 0 asks for equal values.

    Returns
    -------
    float
        The `nmse` found.

    Raises
    ------
    AssertionError
        The results differ more; the message has the worst place and both values there.
    """
    got, want = values_of(executor, build), values_of(NumpyExecutor(), build)
    assert got.dtype == want.dtype, f"{executor.info.id} gives {got.dtype}, NumPy {want.dtype}"
    found = nmse(got, want)
    assert found <= limit, f"NMSE {found:.3g}, at most {limit:.3g}: {_worst(got, want)}"
    return found


def _worst(got: Array, want: Array) -> str:
    if got.shape != want.shape:
        return f"shape {got.shape}, NumPy has {want.shape}"
    with np.errstate(invalid="ignore"):
        apart = np.abs(got.astype(np.float64) - want.astype(np.float64))
    apart = np.where(got == want, 0.0, np.nan_to_num(apart, nan=np.inf))
    place = tuple(int(i) for i in np.unravel_index(np.argmax(apart), got.shape))
    differing = int(np.count_nonzero(apart))
    return f"{differing} of {got.size} differ; at {place} {got[place]}, NumPy has {want[place]}"
