"""How long tests wait: machines that run them differ tenfold in speed, and are shared.

A test that waits for something waits `PATIENCE`, which only a hang reaches. Whether work grows
faster than its input is told by a ratio of two times, not by a time.
"""

import time
from collections.abc import Callable

PATIENCE = 300.0  # seconds, for what a quiet machine does in moments


def until(there: Callable[[], object]) -> bool:
    """Wait for something; whether it came."""
    end = time.monotonic() + PATIENCE
    while not there():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def seconds_of(work: Callable[[], object], tries: int = 1) -> float:
    """Processor seconds that some work takes, the least of several tries."""
    taken: list[float] = []
    for _ in range(tries):
        begin = time.process_time()
        work()
        taken.append(time.process_time() - begin)
    return min(taken)


def grows_linearly(small: Callable[[], object], tenfold: Callable[[], object]) -> bool:
    """Whether ten times the work takes about ten times as long; quadratic work takes a hundred.

    Disturbances make times longer, so the least of several tries has the last word.
    """
    for tries in (1, 3, 9):
        most = 40 * max(seconds_of(small, tries), 1e-3)
        if seconds_of(tenfold, tries) < most:
            return True
    return False
