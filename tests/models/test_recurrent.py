"""Models with recurrent layers against recorded logits of llama.cpp, in every way of asking."""

import numpy as np
import pytest

from tests.models.cases import recorded
from tests.models.recurrent_cases import TOKENS, recurrent
from tests.models.running import running
from wgpu_backend.errors import ModelError
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.testing import nmse

# Weights and states are f32 and all sums, too, so only their order differs: 2e-11 at most here.
LIMIT = 1e-9
NAMES = list(recurrent())


def assert_recorded(got, name):
    case = recurrent()[name]
    want = recorded("recurrent", name)
    assert want.shape == (len(case.rows), got.shape[1])
    assert nmse(got[list(case.rows)], want) <= LIMIT


def assert_all_ways(tmp_path, executor, name):
    """At once, in chunks, token by token, and beside another sequence that begins later."""
    case = recurrent()[name]
    with running(case.write(tmp_path / "model.gguf"), executor, 64) as model:
        for step in (TOKENS, 5, 1):
            assert_recorded(model.anew(case.tokens, step), name)
        model.cache.remove(0)
        first, others = model.ask(case.tokens[:4]), case.tokens[::-1]
        middle, _ = model.batch({0: case.tokens[4:7], 1: others[:6]})
        end, beside = model.batch({0: case.tokens[7:], 1: others[6:9]})
        assert_recorded(np.concatenate([first, middle, end]), name)
        assert nmse(beside, model.anew(others[:9])[6:]) <= LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_in_chunks_on_a_gpu(full, tmp_path, name):
    """Two chunks by the same graph, the second begun with the states of the first."""
    case = recurrent()[name]
    with running(case.write(tmp_path / "model.gguf"), full, 64) as model:
        assert_recorded(model.anew(case.tokens, 8), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_on_a_gpu(full, tmp_path, name):
    assert_all_ways(tmp_path, full, name)


@pytest.mark.parametrize("name", NAMES)
def test_every_architecture_in_numpy(tmp_path, name):
    assert_all_ways(tmp_path, NumpyExecutor(), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_default_limits_of_webgpu_do(executors, tmp_path, name):
    assert_all_ways(tmp_path, executors("baseline"), name)


@pytest.mark.parametrize("name", NAMES)
def test_a_copied_prefix_goes_on_as_its_own(tmp_path, name):
    case = recurrent()[name]
    with running(case.write(tmp_path / "model.gguf"), NumpyExecutor(), 64) as model:
        whole = model.anew(case.tokens)
        model.anew(case.tokens[:6])
        assert model.cache.copy_prefix(0, 1, 6) == 6
        model.ask(case.tokens[:5])  # the first goes another way
        again = model.ask(case.tokens[6:], sequence=1)
    assert nmse(again, whole[6:]) <= LIMIT


def changed(case, **keys):
    return type(case)(case.architecture, {**case.keys, **keys}, case.layers, others=case.others)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("mamba", {"ssm.inner_size": 66}, r"ssm_in.weight is \(128, 32\), .* require \(132, 32\)"),
        ("mamba2", {"ssm.group_count": 3}, "64 channels, 4 heads in 3 groups; needs multiples"),
        ("mamba2", {"ssm.conv_kernel": 1}, "ssm.conv_kernel is 1, needs at least 2"),
        ("qwen35", {"ssm.time_step_rank": 3}, "32 values, 3 heads, 2 key heads; needs mult"),
        ("kimi-linear", {"rope.dimension_count": 12}, "keys of 12 values, of which 12 are rotated"),
        ("rwkv6", {"wkv.head_size": 5}, "embedding_length is 32, needs a multiple of 5"),
    ],
)
def test_keys_that_do_not_fit_are_refused(tmp_path, name, keys, message):
    path = changed(recurrent()[name], **keys).write(tmp_path / "model.gguf")
    with pytest.raises(ModelError, match=message), running(path, NumpyExecutor(), 64):
        pass
