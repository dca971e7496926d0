"""Logits against recorded ones of llama.cpp, which `tests/data/make_logits.py` makes."""

import numpy as np
import pytest

from tests.builders import tiny_model
from tests.models.cases import ARCHITECTURES, LONG, Case, by_context, recorded, types, variants
from tests.models.running import running
from tests.shares import rare, rare_on
from wgpu_backend.dtypes import F16, F32
from wgpu_backend.engine.loading import load
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.testing import nmse

# Weights are dequantised exactly and all sums are f32, so only their order differs: 4e-12 at most
# here. An f16 cache rounds keys and values, which costs up to 1e-6.
LIMITS = {F32: 1e-10, F16: 2e-6}
TYPES = [(a, dtype) for a in ARCHITECTURES for dtype in types(a)]
SOME = [("llama", "q4_k"), ("qwen2", "q8_0"), ("qwen3", "q6_k"), ("llama", "f16")]


def assert_recorded(got: np.ndarray, file: str, name: str, limit: float) -> None:
    want = recorded(file, name)
    assert got.shape == want.shape
    assert nmse(got, want) <= limit


def assert_all_ways(tmp_path, executor, case: Case, file: str, name: str, steps=(256, 7, 32, 1)):
    """Prefill in one batch, in chunks and token by token, with both types of cache."""
    path = case.write(tmp_path / "model.gguf")
    for dtype, limit in LIMITS.items():
        with running(path, executor, case.length, dtype) as model:
            for step in steps:
                got = model.anew(case.tokens, step)[list(case.rows)]
                assert_recorded(got, file, name, limit)


@pytest.mark.parametrize(("architecture", "dtype"), SOME)
def test_weight_types_in_chunks_on_a_gpu(full, tmp_path, architecture, dtype):
    case = types(architecture)[dtype]
    path = case.write(tmp_path / "model.gguf")
    with running(path, full, case.length, F16) as model:
        got = model.anew(case.tokens, 7)[list(case.rows)]
    assert_recorded(got, architecture, dtype, LIMITS[F16])


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "dtype"), TYPES)
def test_every_weight_type_on_a_gpu(full, tmp_path, architecture, dtype):
    assert_all_ways(tmp_path, full, types(architecture)[dtype], architecture, dtype)


@pytest.mark.parametrize(("architecture", "dtype"), TYPES)
def test_every_weight_type_in_numpy(tmp_path, architecture, dtype):
    case = types(architecture)[dtype]
    assert_all_ways(tmp_path, NumpyExecutor(), case, architecture, dtype, (256, 7))


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "dtype"), SOME)
def test_the_default_limits_of_webgpu_do(executors, tmp_path, architecture, dtype):
    case = types(architecture)[dtype]
    assert_all_ways(tmp_path, executors("baseline"), case, architecture, dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [*SOME[:2], *(pytest.param(*case, marks=rare) for case in SOME[2:])],
)
def test_kernels_for_hardware(executors, tmp_path, architecture, dtype):
    # Two of their kernels, tiles and vectors: each takes a software device seconds to compile.
    case = types(architecture)[dtype]
    assert_all_ways(tmp_path, executors("wide"), case, architecture, dtype, (256, 1))


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "dtype"), SOME)
def test_any_driver_gives_the_same(full, tmp_path, architecture, dtype):
    assert_all_ways(tmp_path, full, types(architecture)[dtype], architecture, dtype, (256, 7))


@pytest.mark.slow
@pytest.mark.parametrize("name", variants())
def test_what_else_a_file_may_say(full, tmp_path, name):
    assert_all_ways(tmp_path, full, variants()[name], "variants", name, (256, 1))


@pytest.mark.parametrize("name", variants())
def test_what_else_a_file_may_say_in_numpy(tmp_path, name):
    assert_all_ways(tmp_path, NumpyExecutor(), variants()[name], "variants", name, (256,))


@pytest.mark.slow
@rare_on("wide")
@pytest.mark.parametrize("dtype", LIMITS, ids=str)
def test_long_contexts_split_attention(any_gpu, tmp_path, dtype):
    path, tokens = LONG.write(tmp_path / "model.gguf"), LONG.tokens
    with running(path, any_gpu, LONG.length, dtype) as model:
        got = np.concatenate([model.ask(tokens[:704]), model.ask(tokens[704:], 1)])
        ops = {op for made in model.runner._passes.values() for op, _, _ in made.recorded.timed()}
    assert "attention_merge" in ops
    assert_recorded(got[list(LONG.rows)], "long", "llama-long", LIMITS[dtype])


@pytest.mark.parametrize(("num_ctx", "factors"), [(64, "short"), (65, "long")])
def test_longrope_goes_by_the_context_that_was_asked_for(tmp_path, num_ctx, factors):
    both = by_context("llama", 64).options
    one = {"rope_freqs.weight": both["vectors"][f"rope_factors_{factors}.weight"]}
    plain = {**both["extra"], "llama.rope.scaling.type": "linear"}
    paths = [
        tiny_model(tmp_path / "longrope.gguf", **both),
        tiny_model(tmp_path / "plain.gguf", extra=plain, vectors=one),
    ]
    rows = []
    for path in paths:
        with load(path, device="cpu", num_ctx=num_ctx, kv_dtype="f32") as model:
            rows.append(model.logits(list(range(40))))
    np.testing.assert_array_equal(*rows)
