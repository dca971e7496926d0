"""Options of the parts, and their timing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

Figures = dict[str, float | int | str]


@dataclass(frozen=True, slots=True)
class Given:
    """The options of the command line.

    Parameters
    ----------
    model, device : str
        Empty for the bundled model, and for the best device.
    repeats, tokens, clients, requests : int
    peer : str
        Path of llama-server.
    """

    model: str
    device: str
    repeats: int
    tokens: int
    clients: int
    requests: int
    peer: str


def seconds(act: Callable[[], object]) -> float:
    """Measure the seconds of a call."""
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def in_turns(repeats: int, *acts: Callable[[], object]) -> list[float]:
    """Return the median seconds of each, in turns after one that does not count."""
    for act in acts:
        act()
    turns = [[seconds(act) for act in acts] for _ in range(repeats)]
    return [median(each) for each in zip(*turns, strict=True)]


def percentile(values: list[float], share: float) -> float:
    """Return the value that so large a share does not exceed."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
