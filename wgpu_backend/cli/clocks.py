"""Full clocks before a measurement: GPUs raise theirs only once they have had work for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from wgpu_backend.graph.capabilities import Capabilities

Result = TypeVar("Result")
# An H100 takes some 300 ms from its idle clock to the full one, which is 2.6 times as fast.
SECONDS = 0.5


def at_full_clock(act: Callable[[], Result], capabilities: Capabilities) -> Result:
    """Do something once, and on a GPU again until its clock is up; return what came last.

    Parameters
    ----------
    act : callable
    capabilities : Capabilities
        Of the device that it keeps busy.
    """
    begin = time.perf_counter()
    result = act()
    while not capabilities.software and time.perf_counter() - begin < SECONDS:
        result = act()
    return result
