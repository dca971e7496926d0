"""Attention of patches: heads in groups give the bits of all heads at once."""

import numpy as np
import pytest

from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.nn.vision.blocks import attend


def check_groups(executor, rng, patches, heads, cols, wanted):
    with Context(executor) as context:
        q, k, v = (
            context.from_numpy(rng.standard_normal((patches, heads, cols), "f4")) for _ in range(3)
        )
        y = attend(q, k, v)
        recorded = context.record(y)
        names = [node.call.op.name for node in recorded.scheduled if node.call]
        assert sum(name.startswith("scaled_attention") for name in names) == wanted
        [found] = recorded.run({}).wait()
        recorded.close()
        whole = q.reshape(1, *q.shape).scaled_dot_product_attention(
            k.reshape(1, *k.shape), v.reshape(1, *v.shape), scale=cols**-0.5
        )
        np.testing.assert_array_equal(found, whole.numpy().reshape(patches, -1))


CASES = [(40, 4, 8, 1), (64, 4, 8, 1), (65, 4, 8, 2), (130, 6, 4, 3), (200, 6, 4, 3), (90, 2, 4, 1)]


@pytest.mark.parametrize("case", CASES)
def test_groups_of_heads(rng, case):
    check_groups(NumpyExecutor(), rng, *case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", [(65, 4, 8, 2), (200, 6, 4, 3), (300, 4, 32, 2)])
def test_groups_of_heads_on_a_gpu(gpu, rng, case):
    check_groups(gpu, rng, *case)
