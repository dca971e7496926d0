"""The largest of rows by ranks, and the draw after them in the same dispatch."""

import numpy as np
import pytest

from tests.ops.fused import ran
from tests.ops.test_sampling import INF, NAN, ROWS, sorted_ids, top_k
from wgpu_backend.dtypes import I32, U32
from wgpu_backend.errors import DeviceError, ShapeError
from wgpu_backend.kernels import select
from wgpu_backend.kernels.gpu.sampling import top_k_sample_into
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.sampling.host import SamplingOptions, make_sampling_params
from wgpu_backend.ops.sampling.sampling import sample_into, top_k_of_parts

pytestmark = pytest.mark.gpu
OPTIONS = [
    SamplingOptions(),
    SamplingOptions(temperature=2.0, top_k=256),
    SamplingOptions(temperature=1.3, top_k=256, top_p=0.7),
    SamplingOptions(temperature=1.5, top_k=20, min_p=0.1),
    SamplingOptions(temperature=0.8, top_k=50, top_p=0.9, min_p=0.02),
    SamplingOptions(top_k=1),
]


@pytest.fixture
def wide(executors):
    return executors("wide")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        *((kind, (3, 257)) for kind in ROWS),
        *(pytest.param(kind, (1, 9001), marks=pytest.mark.slow) for kind in ("ties", "clusters")),
    ],
    ids=str,
)
def test_top_k_is_the_head_of_a_sort(wide, rng, shape, kind):
    values = ROWS[kind](rng, shape).astype(np.float32)
    for k in (1, 256):
        np.testing.assert_array_equal(sorted_ids(values, k), top_k(wide, values, k))


def test_parts_that_fit_no_registers_take_the_portable_kernel(wide):
    with Context(wide) as ctx:
        x = ctx.zeros(1, 40_000)
        for part, shader in ((16_384, "kernels/gpu/top_k"), (20_000, "")):
            node = top_k_of_parts(x, k=3, part=part)
            assert select(node.call.op, node.launch, wide.capabilities).shader == shader


def chosen(executor, values, k, ids):
    """Tokens of rows with all options and many draws, each row in its own place."""
    rng = np.random.default_rng(1)
    params = np.stack([make_sampling_params(o).array() for o in OPTIONS for _ in range(12)])
    params[:, 0] = np.minimum(params[:, 0], k)
    count = len(params)
    draws = np.stack([rng.integers(0, 2**32, count), np.arange(count)], axis=1)
    with Context(executor) as ctx:
        kept = ctx.zeros(count, dtype=I32)
        tokens = top_k_sample_into(
            kept,
            ctx.from_numpy(np.tile(np.float32(values), (count, 1))),
            ctx.from_numpy(np.tile(np.int32(ids), (count, 1))),
            ctx.from_numpy(params),
            ctx.from_numpy(draws.astype(np.uint32), U32),
            k=k,
        )
        return tokens.numpy()


@pytest.mark.slow
@pytest.mark.parametrize(("cols", "length", "k"), [(9, 9, 9), (500, 300, 64), (5000, 2048, 256)])
def test_the_token_is_that_of_the_reference(wide, rng, cols, length, k):
    values = rng.normal(size=cols).astype(np.float32) * 3
    values[rng.integers(0, cols, cols // 9)] = -INF
    ids = rng.permutation(cols)[:length]
    got, want = (chosen(e, values, k, ids) for e in (wide, NumpyExecutor()))
    np.testing.assert_array_equal(got, want)
    assert len(set(got)) > 1


@pytest.mark.slow
@pytest.mark.parametrize("value", [NAN, INF])
def test_logits_that_are_not_numbers_give_no_token(wide, value):
    assert set(chosen(wide, [1, value, 2, 3], 4, [0, 1, 2, 3])) == {-1}


@pytest.mark.slow
def test_two_dispatches_choose_a_token(wide, rng, monkeypatch):
    values = rng.normal(size=(2, 20_000)).astype(np.float32)
    params = np.tile(make_sampling_params(SamplingOptions(temperature=1.5)).array(), (2, 1))

    def build(ctx):
        x = ctx.from_numpy(values)
        draws = ctx.from_numpy(np.array([[1 << 31, 0], [1 << 30, 1]], np.uint32), U32)
        kept = ctx.zeros(2, dtype=I32)
        return [sample_into(kept, x, x.top_k(k=40), ctx.from_numpy(params), draws)]

    fused, got = ran(wide, monkeypatch, ["top_k_sample_into"], build)
    _, want = ran(wide, monkeypatch, [], build)
    assert fused[-2:] == ["top_k_of_parts", "top_k_sample_into"]
    np.testing.assert_array_equal(got[0], want[0])


def test_too_many_candidates_are_refused(rasteriser, wide):
    with Context(wide) as ctx:
        rest = (ctx.zeros(1, 8), ctx.zeros(1, 2, dtype=U32))
        with pytest.raises(ShapeError, match=r"top_k_sample_into: k is 300, needs 1 to 256"):
            top_k_sample_into(
                ctx.zeros(1, dtype=I32), ctx.zeros(1, 9), ctx.zeros(1, 9, dtype=I32), *rest, k=300
            )
    with Context(rasteriser) as ctx:
        rest = (ctx.zeros(1, 8), ctx.zeros(1, 2, dtype=U32))
        y = top_k_sample_into(
            ctx.zeros(1, dtype=I32), ctx.zeros(1, 9), ctx.zeros(1, 9, dtype=I32), *rest, k=3
        )
        with pytest.raises(DeviceError, match=r"use top_k_of_ids and sample_into"):
            y.numpy()
