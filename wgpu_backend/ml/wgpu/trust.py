"""Trust in fusion rules: each is tested on the device before a graph first uses it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection

from wgpu_backend.device.interrupts import wait_until

# Returns the wrong ones of names of rules and ops; the second argument reports the progress.
Test = Callable[[Collection[str], Callable[[float], None] | None], Collection[str]]


class Trust:
    """The verdicts on the rules of a device, found when graphs need them.

    A rasteriser takes a minute or two to compile the kernels of all rules, of which a model uses
    few.

    Parameters
    ----------
    test : callable
        Called with names of rules and ops. Returns those that compute wrong values; names without
        a test are right.
    """

    def __init__(self, test: Test) -> None:
        self._test = test
        self._tested: set[str] = set()
        self._wrong: set[str] = set()
        self._noted: set[str] = set()
        self._lock = threading.Lock()

    def note(self, names: Collection[str]) -> Collection[str]:
        """Remember names for `test_noted`; return those that are known to be wrong."""
        self._noted |= set(names)
        return self._wrong

    def test_noted(self, progress: Callable[[float], None] | None = None) -> None:
        """Test the rules that a dry run noted."""
        noted, self._noted = self._noted, set[str]()
        self.find_wrong(noted, progress)

    def find_wrong(
        self, names: Collection[str], progress: Callable[[float], None] | None = None
    ) -> Collection[str]:
        """Return the names that are known to be wrong, after a test of new ones."""
        if not self._tested.issuperset(names):
            # Another thread may be testing the same.
            wait_until(lambda pause: self._lock.acquire(timeout=pause))
            try:
                new = set(names) - self._tested
                self._wrong |= set(self._test(new, progress)) if new else set()
                self._tested |= new
            finally:
                self._lock.release()
        return self._wrong
