"""A few tries of each kind; `python -m tests.stress` makes thousands."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.builders import tiny_model
from tests.stress import BATCH, MOMENTS, tried
from wgpu_backend.ml.executor import Executor

COUNTS = {"interrupts": len(MOMENTS), "losses": 4, "exits": 2, "cycles": 3}


@pytest.mark.slow
@pytest.mark.parametrize("command", COUNTS)
def test_tries_at_random_moments_end_as_they_should(full: Executor, command: str, tmp_path: Path):
    assert command in BATCH
    outcomes = tried(command, COUNTS[command], tiny_model(tmp_path / "tiny.gguf"), seed=1)
    right = {"DeviceLost", "exit code as asked", "closed", *(f"{m} interrupted" for m in MOMENTS)}
    assert outcomes.ended.keys() <= right, outcomes.table()
    assert outcomes.ended.total() == COUNTS[command]
