"""Rows of an embedding for tokens that stay on the device."""

import numpy as np
import pytest

from tests.ops.operands import weight_bytes
from wgpu_backend.dtypes import F16, F32, Q4_0, Q8_0
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.op import fusions
from wgpu_backend.ops.sampling.sampling import reference, resolve_tokens
from wgpu_backend.ops.sampling.token_slots import rows_of_tokens
from wgpu_backend.testing import check_graph

IDS = [3, reference(1), 0, reference(0)]


def embedding(context, rng, dtype):
    if dtype.quantised:
        return context.from_bytes(dtype, weight_bytes(rng, 9, 64, dtype), 9, 64)
    return context.from_numpy(rng.standard_normal((9, 64)), dtype)


@pytest.mark.parametrize("dtype", [F32, F16, Q4_0, Q8_0], ids=str)
def test_references_stand_for_what_is_kept(gpu, rng, dtype):
    seed = int(rng.integers(1 << 30))

    def build(context):
        weight = embedding(context, np.random.default_rng(seed), dtype)
        return rows_of_tokens(weight, context.from_ints(IDS), context.from_ints([7, 5, 1]))

    check_graph(gpu, build, limit=0)
    with Context(gpu) as context:
        weight = embedding(context, np.random.default_rng(seed), dtype)
        want = weight.rows(context.from_ints([3, 5, 0, 7])).numpy()
        np.testing.assert_array_equal(build(context).numpy(), want)


def test_the_fetch_goes_into_the_gather(full, rng, monkeypatch):
    monkeypatch.setattr(full, "rules", fusions(["rows_of_tokens"], exact=True))
    with Context(full) as context:
        weight = embedding(context, rng, Q8_0)
        token_slots, ids = (
            context.zeros(4).cast(dtype=context.from_ints([1]).dtype),
            context.from_ints(IDS),
        )
        recorded = context.record(weight.rows(resolve_tokens(ids, token_slots)))
        names = [node.call.op.name for node, _ in recorded.plan.steps]
        recorded.close()
    assert names[-1] == "rows_of_tokens"
    assert "resolve_tokens" not in names
