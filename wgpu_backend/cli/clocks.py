"""Warm-up before measurements: GPUs raise their clocks only after some time of work."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from wgpu_backend.graph.capabilities import Capabilities

Result = TypeVar("Result")
# An H100 needs about 300 ms from its idle clock to the full one, which is 2.6 times as fast.
SECONDS = 0.5


def run_at_full_clock(act: Callable[[], Result], capabilities: Capabilities) -> Result:
    """Run a function once, and on a GPU repeatedly until its clock is up; return the last result.

    Parameters
    ----------
    capabilities : Capabilities
        Capabilities of the device that the function uses.
    """
    begin = time.perf_counter()
    result = act()
    while not capabilities.software and time.perf_counter() - begin < SECONDS:
        result = act()
    return result
