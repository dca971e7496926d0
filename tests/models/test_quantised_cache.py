"""A cache in blocks: its logits are near those of a cache in f32, however the tokens are given."""

import numpy as np
import pytest

from tests.builders import Dims, tiny_model
from tests.models.running import running
from wgpu_backend.dtypes import F32, Q4_0, Q8_0
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.testing import nmse

# Each value of q8_0 is off by up to 1/254 of the block's largest, of q4_0 by 1/16.
LIMITS = {Q8_0: 1e-3, Q4_0: 5e-2}
DIMS = {"even": Dims(head_dim=32), "odd": Dims(head_dim=96, heads=3, kv_heads=1)}


@pytest.fixture(scope="module", params=DIMS)
def path(tmp_path_factory, request):
    """Models whose positions take an even and an odd number of blocks."""
    dims, path = DIMS[request.param], tmp_path_factory.mktemp("model") / "model.gguf"
    return tiny_model(path, "qwen3", "q8_0", dims=dims)


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(1).integers(0, 256, 60).tolist()


@pytest.fixture(scope="module")
def exact(path, tokens):
    with running(path, NumpyExecutor(), 96, F32) as model:
        return model.anew(tokens)


@pytest.mark.parametrize("dtype", [Q8_0, Q4_0], ids=str)
def test_logits_in_numpy_are_near_those_of_an_exact_cache(path, tokens, exact, dtype):
    with running(path, NumpyExecutor(), 96, dtype) as model:
        assert 0 < nmse(model.anew(tokens), exact) <= LIMITS[dtype]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [Q8_0, Q4_0], ids=str)
def test_logits_are_near_those_of_an_exact_cache(executor, path, tokens, exact, dtype):
    with running(path, executor, 96, dtype) as model:
        whole = model.anew(tokens)
        assert nmse(whole, exact) <= LIMITS[dtype]
        assert nmse(whole, exact) > 0
        stepwise = model.anew(tokens, step=7)
        assert nmse(stepwise, whole) <= LIMITS[dtype]


def test_a_shared_prefix_in_blocks_is_as_good_as_its_own(executor, path, tokens):
    with running(path, executor, 160, Q8_0) as model:
        whole = model.ask(tokens)
        model.cache.copy_prefix(0, 1, 40)
        again = model.ask(tokens[40:], sequence=1)
        assert nmse(again, whole[40:]) <= LIMITS[Q8_0]
