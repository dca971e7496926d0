"""Attention of prompts by matrix units: which launches take it, and its values."""

import dataclasses

import pytest

from tests.ops.test_attention import Case
from tests.ops.test_attention_options import CAUSAL, built, last_of
from wgpu_backend.dtypes import F16, F32, Q4_0, Q8_0
from wgpu_backend.graph.capabilities import Capabilities, MatrixUnit
from wgpu_backend.kernels import select
from wgpu_backend.kernels.gpu.attention_matrix import MatrixTile
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.attention.paged import paged_attention
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse, values_of

LIMIT = 5e-7  # eleven bits of queries, keys, values and weights; sums in f32
MATRIX, TILED = "kernels/gpu/attention_matrix", "kernels/gpu/attention_tiled"
NVIDIA = MatrixUnit(16, 16, 16, 32)
DEVICE = Capabilities(
    subgroups=True,
    f16=True,
    matrix=NVIDIA,
    max_workgroup_nbytes=48 << 10,
    max_workgroup_invocations=1024,
)


def prompt(rng, *, tokens=40, lengths=(70,), **how):
    """The last tokens of a few sequences."""
    return Case.random(rng, tokens=tokens, lengths=lengths, **how)


def launched(case, capabilities, dtype=F16, *, matrix=True):
    """The launch of an attention on a device."""
    with Context(NumpyExecutor()) as ctx:
        scores = case.scores(f16=True, matrix=matrix)
        node = paged_attention(*case.cached(ctx, dtype, dtype), scores=scores)
        return select(node.call.op, node.launch, capabilities)


@pytest.mark.parametrize(
    ("unit", "rows", "keys", "threads", "nbytes"),
    [
        (NVIDIA, 64, 64, 128, 48 << 10),
        (NVIDIA, 32, 32, 64, 32 << 10),
        (MatrixUnit(16, 16, 16, 64), 64, 64, 128, 48 << 10),
        (MatrixUnit(8, 16, 16, 16), 64, 64, 128, 48 << 10),
        (MatrixUnit(8, 8, 8, 32), 64, 64, 128, 48 << 10),
        (MatrixUnit(8, 8, 8, 8), 32, 32, 32, 32 << 10),
    ],
)
def test_tiles_are_whole_matrices_of_every_unit(rng, unit, rows, keys, threads, nbytes):
    device = dataclasses.replace(DEVICE, matrix=unit, max_workgroup_nbytes=nbytes)
    launch = launched(prompt(rng, cols=128), device)
    own = launch.choices
    assert (launch.shader, own["ROWS"], own["KEYS"], own["WG"]) == (MATRIX, rows, keys, threads)
    # Each subgroup has whole matrices of rows, and they are all rows.
    assert own["WG"] // unit.subgroup * own["RM"] * unit.m == rows
    assert own["KEY_TILES"] * unit.n == own["KEY_STEPS"] * unit.k == keys
    assert own["K_STEPS"] * unit.k == 128
    assert own["ROUNDS"] * own["FOURS"] * own["THREADS"] * 4 == 128
    tile = MatrixTile(rows, keys, 32, 32, unit)
    assert tile.nbytes <= nbytes
    assert own["PITCH"] * 4 >= 128 + 8


def test_what_it_does_not_take_falls_back_to_tiles(rng):
    def shader(device=DEVICE, dtype=F16, **how):
        return launched(prompt(rng, **how), device, dtype).shader

    assert shader() == shader(dtype=Q8_0) == MATRIX
    assert shader(cols=160) == TILED
    assert shader(dataclasses.replace(DEVICE, matrix=None)) == TILED
    # More rows than threads.
    assert shader(dataclasses.replace(DEVICE, matrix=MatrixUnit(16, 16, 16, 8))) == TILED
    assert launched(prompt(rng), DEVICE, matrix=False).shader == TILED
    assert shader(dtype=F32) == shader(tokens=4) == "ops/attention/attention"


def test_the_rule_of_units_comes_before_that_of_tiles(rng):
    case = prompt(rng, cols=64)
    executor = NumpyExecutor(DEVICE)

    def scores(exact):
        executor.rules = fusions(["attention_matrix", "attention_tiles"], exact=exact)
        with Context(executor) as ctx:
            y = paged_attention(*case.cached(ctx, F16, F16), scores=case.scores())
            recorded = ctx.record(y)
            found = [n.call.kwargs["scores"] for n, _ in recorded.plan.steps if "q" in _.operands]
            recorded.close()
        return found[-1]

    assert scores(exact=False).matrix
    assert not scores(exact=True).f16


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "dtype"),
    [
        ({"cols": 16}, F16),
        ({"cols": 64, "lengths": (300,)}, F16),
        ({"cols": 20, "v_cols": 36, "lengths": (33, 80), "tokens": 21}, F16),
        ({"cols": 32, "heads": 6, "tokens": 23}, Q8_0),
        ({"cols": 32, "heads": 2, "tokens": 70}, Q4_0),
    ],
    ids=str,
)
def test_a_prompt_is_right(units, rng, how, dtype):
    case = prompt(rng, **how)
    assert launched(case, units.capabilities, dtype).shader == MATRIX
    build = built(case, rng, f16=True, matrix=True, dtypes=(dtype, dtype))
    # Reference and device round the cache alike but for ties.
    limit = LIMIT if dtype == F16 else 1e-5
    assert nmse(values_of(units, build), values_of(NumpyExecutor(), build)) < limit


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("names", [*((name,) for name in CAUSAL), tuple(CAUSAL)], ids="-".join)
def test_options(units, rng, names, splits):
    case = prompt(rng, lengths=(33, 1, 140), heads=6, tokens=30, cols=16)
    how = {"f16": True, "matrix": True, "dtypes": (F16, F16)}
    build = built(case, rng, names, splits=splits, **how)
    assert nmse(values_of(units, build), values_of(NumpyExecutor(), build)) < LIMIT


@pytest.mark.gpu
@pytest.mark.slow
def test_pictures_see_what_is_behind_them_and_padding_nothing(units, rng):
    lengths = (70, 33)
    case = prompt(rng, lengths=lengths, tokens=99, cols=16)
    case.positions[[0, 5]] = -1
    scores, ends = case.scores(f16=True, matrix=True, causal=False), last_of(case, lengths)

    def build(ctx):
        operands = case.operands(ctx, F16, F16)
        return paged_attention(*operands, scores=scores, ends=ctx.from_numpy(ends))

    got = values_of(units, build)
    assert nmse(got, values_of(NumpyExecutor(), build)) < LIMIT
    assert not got[[0, 5]].any()
