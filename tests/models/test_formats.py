"""Models whose matrices, the embedding too, are of each block format: a device against NumPy."""

import numpy as np
import pytest

from tests.blocks import FORMATS, sampled
from tests.builders import WEIGHT_TYPES, tiny_model
from tests.models.running import running
from wgpu_backend.dtypes import Q8_1
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.testing import nmse

# The others have recorded logits; gguf-py writes Q8_1 with blocks of 40 bytes, which nobody reads.
OTHERS = [d for d in FORMATS if d.name not in WEIGHT_TYPES and d != Q8_1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", sampled(OTHERS), ids=str)
def test_a_model_in_every_other_format(full, tmp_path, dtype):
    path = tiny_model(tmp_path / "model.gguf", dtype=dtype.name)
    tokens = np.arange(1, 12)
    found = []
    for executor in (full, NumpyExecutor()):
        with running(path, executor) as model:
            found.append(model.ask(tokens, 8))
    assert np.isfinite(found[1]).all()
    # Sums of f32 in another order; 1e-12 here.
    assert nmse(*found) <= 1e-10
