"""Arrays of tests lie on NumPy and on each profile of the adapter in turn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from wgpu_backend.array import devices
from wgpu_backend.array.session import Session
from wgpu_backend.ml.executor import Executor


@pytest.fixture
def session(executor: Executor) -> Iterator[Session]:
    """A session of its own over the shared device; new arrays lie there."""
    made = Session(executor)
    with devices.preferring(made):
        yield made
