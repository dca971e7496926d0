"""Check the memory accesses of kernels: lines that 32 lanes touch, cycles of banks.

A GPU fetches lines of 128 bytes, so 32 lanes that read 16 bytes each need four of them if
neighbours read neighbouring words, and 32 if the words are far apart. Workgroup memory has 32 banks
of four bytes; lanes whose words lie in one bank wait for each other, unless it is the same word.
Accesses of 8 and 16 bytes are served by halves and quarters of the lanes. The compiler's estimates
include neither.

Addresses are computed, not recorded: `nir_run.Run` evaluates the index expressions of one work
group with the launch's own parameters. The first iterations of a loop stand for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.gpu_costs.nir import Program
from benchmarks.gpu_costs.nir_memory import Access
from benchmarks.gpu_costs.nir_run import Run, Setting, Trips

LANES, CACHE_LINE_NBYTES, BANKS, BANK_NBYTES = 32, 128, 32, 4
ITERATIONS = 8  # of each loop that are looked at

Addresses = NDArray[np.int64]


def lines(addresses: Addresses, nbytes: int) -> int:
    """Count the lines of memory that accesses of some lanes touch together."""
    first, last = addresses // CACHE_LINE_NBYTES, (addresses + nbytes - 1) // CACHE_LINE_NBYTES
    return len(set(first.tolist()) | set(last.tolist()))


def cycles(addresses: Addresses, nbytes: int) -> int:
    """Count the cycles of the banks of workgroup memory for accesses of up to 32 lanes."""
    words = max(nbytes // BANK_NBYTES, 1)
    together = max(LANES // words, 1)
    return sum(
        _one_pass(addresses[at : at + together] // BANK_NBYTES, words)
        for at in range(0, len(addresses), together)
    )


def _one_pass(first: Addresses, words: int) -> int:
    """Return the most distinct words in one bank."""
    every = np.unique((first[:, None] + np.arange(words)).ravel())
    return int(np.bincount(every % BANKS, minlength=BANKS).max()) if every.size else 0


def least_lines(addresses: Addresses, nbytes: int) -> int:
    """Count the lines that as many different bytes need if they are contiguous."""
    return -(-len(set(addresses.tolist())) * nbytes // CACHE_LINE_NBYTES)


def least_cycles(addresses: Addresses, nbytes: int) -> int:
    """Count the cycles without conflicts."""
    words = max(nbytes // BANK_NBYTES, 1)
    return -(-len(addresses) // max(LANES // words, 1))


@dataclass(slots=True)
class _Seen:
    op: str
    memory: str
    nbytes: int
    loop: int | None
    times: int = 0
    looked: int = 0
    took: int = 0
    least: int = 0


@dataclass(slots=True)
class Lint:
    """A collector of the accesses of one kernel.

    Parameters
    ----------
    names : dict of int to str
        Bindings.
    """

    names: dict[int, str]
    _seen: dict[int, _Seen] = field(default_factory=dict[int, _Seen])

    def note(self, access: Access) -> None:
        """Count one run of a load or store."""
        if access.number not in self._seen:
            self._seen[access.number] = self._new(access)
        seen = self._seen[access.number]
        seen.times += 1
        if access.addresses is not None:
            self._look(seen, access, access.addresses)

    def _new(self, access: Access) -> _Seen:
        memory = "workgroup" if access.binding is None else self.names.get(access.binding, "?")
        return _Seen(access.op, memory, access.nbytes, access.loop)

    def _look(self, seen: _Seen, access: Access, addresses: Addresses) -> None:
        shared = access.binding is None
        measure, least = (cycles, least_cycles) if shared else (lines, least_lines)
        for at in range(0, len(addresses), LANES):
            some = addresses[at : at + LANES][access.active[at : at + LANES]]
            # Two words of one instruction that lie apart are two accesses of half the size.
            nbytes = access.nbytes // 2 if "2_amd" in access.op else access.nbytes
            if some.size:
                seen.looked += 1
                seen.took += measure(some, nbytes)
                seen.least += least(some, nbytes)

    def look(self, program: Program, setting: Setting, trips: Trips) -> list[dict[str, Any]]:
        """Run a kernel's index arithmetic and report the findings.

        Parameters
        ----------
        program : Program
        setting : Setting
        trips : Trips
            Of whole loops.
        """
        some = Run(program, setting, self.note, ITERATIONS).run()
        for seen in self._seen.values():
            if seen.loop is not None:
                all_, looked_at = trips.entered[seen.loop].max(), some.entered[seen.loop].max()
                seen.times = round(seen.times * int(all_) / max(int(looked_at), 1))
        return self.findings()

    def findings(self) -> list[dict[str, Any]]:
        """List each access: ``memory``, ``op``, ``nbytes`` a lane, ``times``, ``took``, ``least``.

        ``took`` and ``least`` are means over 32 lanes: lines, or cycles where the memory is the
        work group's; None where addresses depend on what lies in memory.
        """
        return [
            {
                "memory": seen.memory,
                "op": seen.op.removeprefix("@").removesuffix("_amd"),
                "nbytes": seen.nbytes,
                "times": seen.times,
                "took": seen.took / seen.looked if seen.looked else None,
                "least": seen.least / seen.looked if seen.looked else None,
            }
            for seen in self._seen.values()
        ]
