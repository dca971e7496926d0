"""Batches for tests of recurrent ops: runs of several sequences, and states in slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from wgpu_backend.dtypes import F32, I32
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.testing import nmse


@dataclass
class Run:
    """Tokens of a sequence, the slot its state begins from, and the slot that takes the last."""

    tokens: int
    source: int = -1
    target: int = -1


def runs_of(runs: Sequence[Run], sequences: int = 0) -> np.ndarray:
    """Runs as ops take them, padded to so many sequences."""
    table, first = [], 0
    for run in runs:
        table.append((first, run.tokens, run.source, run.target))
        first += run.tokens
    table += [(first, 0, -1, -1)] * (sequences - len(runs))
    return np.array(table, "i4")


BATCHES = {
    "a token": [Run(1, 2, 2)],
    "a first token": [Run(1, -1, 1)],
    "many tokens": [Run(37, 0, 3)],
    "several": [Run(5, 1, 1), Run(1, -1, 3), Run(9, 2, 2)],
    "a token each": [Run(1, 3, 4), Run(1, 0, 0), Run(1, -1, 1)],
    "one source": [Run(4, 0, 2), Run(3, 0, 3)],
    "nothing saved": [Run(6, 1)],
    "slots beyond": [Run(3, 99, 6), Run(2, -5, -7)],
}
SLOTS = 6


def size_of(runs: Sequence[Run]) -> int:
    """Tokens of a batch."""
    return sum(run.tokens for run in runs)


@contextmanager
def held(executor: Executor, values: np.ndarray) -> Iterator[Tensor]:
    """A state that an executor holds."""
    spec = Spec.dense(values.shape, F32)
    storage = executor.state(spec, "state")
    node = leaf(spec, storage)
    executor.write(node, values.astype("f4").tobytes())
    try:
        yield node
    finally:
        executor.free(storage)


Build = Callable[[Context, Tensor, Tensor], Tensor]


def run_on(
    executor: Executor, build: Build, state: np.ndarray, runs: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Result and state afterwards."""
    with held(executor, state) as node, Context(executor) as ctx:
        y = build(ctx, node, ctx.from_numpy(runs, I32)).numpy()
        return y, executor.read(node)


def check_both(
    executor: Executor, build: Build, state: np.ndarray, runs: np.ndarray, *, limit: float
) -> np.ndarray:
    """Compare result and state with NumPy's; result."""
    got = run_on(executor, build, state, runs)
    want = run_on(NumpyExecutor(), build, state, runs)
    for mine, theirs in zip(got, want, strict=True):
        assert nmse(mine, theirs) <= limit
    return got[0]
