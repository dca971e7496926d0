"""Attention of patches: those of a run attend to each other."""

import numpy as np
import pytest

from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.nn.vision.blocks import attend
from wgpu_backend.testing import nmse


def check_runs(executor, rng, runs, heads, cols):
    with Context(executor) as context:
        q, k, v = (
            context.from_numpy(rng.standard_normal((sum(runs), heads, cols), "f4"))
            for _ in range(3)
        )
        found = attend(q, k, v, runs=runs).numpy()
        ends = np.cumsum(runs)
        for start, end in zip(ends - runs, ends, strict=True):
            own = [x.slice(0, int(start), int(end)).contiguous() for x in (q, k, v)]
            assert nmse(found[start:end], attend(*own).numpy()) < 1e-12


CASES = [((40,), 4, 8), ((5, 5, 5, 3), 4, 8), ((1, 7, 7, 2, 2), 6, 4)]


@pytest.mark.parametrize("case", CASES)
def test_runs_attend_to_themselves(rng, case):
    check_runs(NumpyExecutor(), rng, *case)


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES)
def test_runs_attend_to_themselves_on_a_gpu(gpu, rng, case):
    check_runs(gpu, rng, *case)
