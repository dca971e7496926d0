"""Accounts of device memory, as plain data that needs no device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

Purpose = Literal[
    "weights",
    "cache",
    "host weights",
    "host cache",
    "activations",
    "inputs",
    "params",
    "readback",
    "staging",
]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)
HOST_PURPOSES: tuple[Purpose, ...] = ("host weights", "host cache")
"""Purposes of buffers in the host's memory, which kernels read over the bus."""

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def format_bytes(nbytes: int) -> str:
    """Return a byte count for people: ``1.5 GiB``."""
    value = float(nbytes)
    for unit in _UNITS[:-1]:
        if abs(value) < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} {_UNITS[-1]}"


@dataclass(frozen=True, slots=True)
class PurposeUse:
    """The memory of all buffers of one purpose.

    Parameters
    ----------
    nbytes : int
        Bytes live now.
    count : int
        Buffers live now.
    peak_nbytes : int
        Most bytes that were ever live at once.
    """

    purpose: Purpose
    nbytes: int
    count: int
    peak_nbytes: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The device memory at one moment; ``str()`` is a table.

    Parameters
    ----------
    uses : tuple of PurposeUse
        One for each purpose that was ever used.
    pool_nbytes : int
        Bytes released but kept for reuse.
    peak_nbytes : int
        Most bytes that were ever live at once, all purposes together.
    """

    uses: tuple[PurposeUse, ...]
    pool_nbytes: int
    peak_nbytes: int

    @property
    def nbytes(self) -> int:
        """The bytes live now, all purposes together."""
        return sum(use.nbytes for use in self.uses)

    @property
    def count(self) -> int:
        """The buffers live now."""
        return sum(use.count for use in self.uses)

    def __str__(self) -> str:
        rows = [
            (str(u.purpose), str(u.count), format_bytes(u.nbytes), format_bytes(u.peak_nbytes))
            for u in self.uses
        ]
        rows.append(
            ("total", str(self.count), format_bytes(self.nbytes), format_bytes(self.peak_nbytes))
        )
        rows.append(("free in pool", "", format_bytes(self.pool_nbytes), ""))
        head = f"{'purpose':<13}{'buffers':>8}{'live':>12}{'peak':>12}"
        return "\n".join([head, *(f"{a:<13}{b:>8}{c:>12}{d:>12}" for a, b, c, d in rows)])


class Ledger:
    """The running totals by purpose; the caller holds the lock."""

    def __init__(self) -> None:
        self._live: dict[Purpose, int] = {}
        self._count: dict[Purpose, int] = {}
        self._peak: dict[Purpose, int] = {}
        self._total = 0
        self._total_peak = 0

    @property
    def nbytes(self) -> int:
        """The bytes live now."""
        return self._total

    @property
    def host_nbytes(self) -> int:
        """The bytes live now in the host's memory."""
        return sum(self._live.get(purpose, 0) for purpose in HOST_PURPOSES)

    def add(self, purpose: Purpose, nbytes: int) -> None:
        """Add a buffer."""
        self._live[purpose] = self._live.get(purpose, 0) + nbytes
        self._count[purpose] = self._count.get(purpose, 0) + 1
        self._peak[purpose] = max(self._peak.get(purpose, 0), self._live[purpose])
        self._total += nbytes
        self._total_peak = max(self._total_peak, self._total)

    def remove(self, purpose: Purpose, nbytes: int) -> None:
        """Remove a buffer."""
        self._live[purpose] -= nbytes
        self._count[purpose] -= 1
        self._total -= nbytes

    def report(self, pool_nbytes: int) -> MemoryReport:
        """Return the totals as plain data."""
        uses = tuple(
            PurposeUse(p, self._live[p], self._count[p], self._peak[p])
            for p in PURPOSES
            if p in self._live
        )
        return MemoryReport(uses, pool_nbytes, self._total_peak)


def host_memory() -> tuple[int, int] | None:
    """Return total and available bytes of the host, or None if the system does not report them.

    A software rasteriser allocates from it, lazily: asking for more than there is succeeds and
    kills the process at first use, so the device floor compares beforehand.
    """
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        return None
    values = {line.split(":")[0]: line.split()[1] for line in text.splitlines() if ":" in line}
    try:
        return int(values["MemTotal"]) * 1024, int(values["MemAvailable"]) * 1024
    except (KeyError, ValueError):
        return None


def budget(*, on_host: bool) -> Callable[[int], int | None]:
    """Return the limit of memory that a driver takes from the host, which allocates it lazily.

    Parameters
    ----------
    on_host : bool
        Whether it does; otherwise there is no limit.

    What was handed out may not have been touched yet and still counts as available, so the total
    stays below what was available at the start, too.
    """
    start = host_memory() if on_host else None

    def most(live_nbytes: int) -> int | None:
        now = host_memory() if start is not None else None
        if start is None or now is None:
            return None
        # Linux promises more memory than it has and then kills the process, so what is available
        # now counts.
        return min(start[1], live_nbytes + now[1])

    return most
