"""Caches of models that lose positions from the middle of a sequence."""

import pytest

from tests.models.outlines import TOKENS, outlines, written
from tests.models.running import running
from tests.models.shifting import shifted_error
from wgpu_backend.dtypes import F16, F32, Q8_0
from wgpu_backend.errors import ContextError
from wgpu_backend.ml.numpy_executor import NumpyExecutor

TOLD = TOKENS * 5
# Halves and neighbours, part of a head, windows beside other bases, factors, latents, a norm of
# rotated keys, ALiBi.
MOVABLE = ("llama", "phi2", "gemma3", "phi3-longrope", "deepseek3", "minicpm3", "hunyuan-moe")
MOVABLE += ("bloom",)
FIXED = ("gpt2", "llama4")


@pytest.fixture
def path(tmp_path, name):
    return written(tmp_path / f"{name}.gguf", outlines()[name])


@pytest.mark.parametrize("name", MOVABLE)
def test_what_follows_a_shift_sees_what_is_left_where_it_is_now(path, name):
    with running(path, NumpyExecutor(), 192) as model:
        assert shifted_error(model, TOLD, (21, 60), TOKENS[:7]) <= 1e-10


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [(F32, 1e-10), (F16, 1e-6), (Q8_0, 1e-3)], ids=str)
@pytest.mark.parametrize("name", ["gemma3"])
def test_a_device_shifts_caches_of_every_type(full, path, name, dtype, limit):
    with running(path, full, 192, dtype) as model:
        assert shifted_error(model, TOLD, (21, 60), TOKENS[:7]) <= limit


@pytest.mark.parametrize("name", FIXED)
def test_learned_positions_and_chunks_cannot_move(path, name):
    with running(path, NumpyExecutor(), 192) as model:
        model.anew(TOLD)
        assert not model.cache.can_shift(0, 21, 60)
        with pytest.raises(ContextError, match="cannot remove positions 21 to 60 of 100"):
            model.cache.shift(0, 21, 60)
        assert model.cache.length(0) == 100
