"""The activation of Gemma 3n's sparse layers, against its formula in f64."""

import numpy as np
import pytest

from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.models.gemma3n import sparse_gelu
from wgpu_backend.testing import nmse

SCALE = 1.6448536  # of a sparsity of 0.95


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def expected(x, less):
    x = x.astype("f8")
    deviation = x.std(-1, ddof=less, keepdims=True)
    return gelu(np.maximum(x - x.mean(-1, keepdims=True) - SCALE * deviation, 0))


@pytest.mark.parametrize("count", [37, 320])
def test_variances_are_divided_by_n_as_in_transformers(rng, count):
    x = rng.standard_normal((64, count), "f4")
    with Context(NumpyExecutor()) as ctx:
        found = sparse_gelu(SCALE)(ctx.from_numpy(x)).numpy()
    assert nmse(found, expected(x, 0)) < 1e-12
    # As in llama.cpp.
    assert nmse(found, expected(x, 1)) > 1e-7


def test_other_layers_keep_all_values(rng):
    x = rng.standard_normal((3, 5), "f4")
    with Context(NumpyExecutor()) as ctx:
        found = sparse_gelu(-np.inf)(ctx.from_numpy(x)).numpy()
    assert nmse(found, gelu(x.astype("f8"))) < 1e-12
