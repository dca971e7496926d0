"""Health of devices: a device that is lost too often is not used again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from wgpu_backend.errors import BackendError, NoDeviceLeft

_LOG = logging.getLogger("wgpu_backend.worker")
MOST_LOSSES = 3
WITHIN_SECONDS = 60.0


class Health:
    """A counter of device losses: three within a minute retire a device for good.

    Parameters
    ----------
    devices : sequence of str
        Ids, in order of preference.
    clock : callable
        Monotonic seconds.
    """

    def __init__(self, devices: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._left = list(devices)
        self._clock = clock
        self._losses: dict[str, list[float]] = {}
        self._causes: list[str] = []
        self._lock = threading.Lock()

    @property
    def most_tries(self) -> int:
        """Losses after which no device is left, if they come fast enough."""
        return MOST_LOSSES * len(self._left)

    @property
    def left(self) -> list[str]:
        """The devices that were not lost too often, in order of preference."""
        with self._lock:
            return [*self._left]

    @property
    def causes(self) -> str:
        """The reasons why devices are not used any more, as text; empty without any."""
        with self._lock:
            return ", ".join(self._causes)

    def choose(self) -> str:
        """Return the id of the device to use.

        Raises
        ------
        NoDeviceLeft
            All are bad.
        """
        with self._lock:
            if not self._left:
                why = ", ".join(self._causes) or "there is none"
                raise NoDeviceLeft(f"no device is left: {why}; start the server again")
            return self._left[0]

    def lost(self, device: str, error: BackendError) -> None:
        """Count a loss; after too many, the next device is used from now on."""
        with self._lock:
            now = self._clock()
            # Only losses in quick succession count: most devices work again after one.
            recent = [t for t in self._losses.get(device, []) if now - t < WITHIN_SECONDS]
            self._losses[device] = [*recent, now]
            if len(recent) + 1 < MOST_LOSSES or device not in self._left:
                return
            self._left.remove(device)
            cause = f"{device} was lost {MOST_LOSSES} times within {WITHIN_SECONDS:g} s"
            self._causes.append(cause)
            rest = f"using {self._left[0]}" if self._left else "no other is left"
        _LOG.warning("%s, last: %s; %s", cause, error, rest)
