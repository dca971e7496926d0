"""Comparison of figures with a baseline.

The baseline has only the compared figures, a list per kernel. The key of a kernel is its family,
model, op, and types and shapes of operands, so graph and format are not needed; of several kernels
with one key the largest figures count. The baseline names the version of Mesa that it is from,
since versions compile differently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BASELINE = Path(__file__).with_name("baseline.json")
# How much more is still as good: the compiler's schedule changes with every line.
LIMITS = {"vgprs": 1.0, "lds": 1.0, "latency": 1.05, "inverse_throughput": 1.05, "code": 1.10}
NEVER = ("spills", "scratch")
KEY = ("family", "model", "op", "operands")
_VERSION = re.compile(r"Mesa (\d+\.\d+)")

Row = Mapping[str, Any]
Key = tuple[str, ...]
Figures = dict[str, float]


def figures(rows: Iterable[Row]) -> dict[Key, Figures]:
    """Return the compared figures by kernel."""
    found: dict[Key, Figures] = {}
    for row in rows:
        old = found.setdefault(tuple(row[name] for name in KEY), dict.fromkeys(LIMITS, 0))
        for name in LIMITS:
            old[name] = max(old[name], row[name])
    return found


@dataclass(frozen=True, slots=True)
class Baseline:
    """The figures of a version of Mesa, such as ``25.0``."""

    mesa: str
    kernels: Mapping[Key, Figures]


def version(driver: str) -> str:
    """Extract Mesa's version, without the patch level, from a driver's description."""
    found = _VERSION.search(driver)
    return found[1] if found else driver


def write(path: Path, driver: str, rows: Iterable[Row]) -> None:
    """Write a baseline, one line per kernel."""
    lines = [
        json.dumps([*key, *values.values()], ensure_ascii=False, separators=(",", ":"))
        for key, values in sorted(figures(rows).items())
    ]
    head = [json.dumps(version(driver)), json.dumps([*KEY, *LIMITS])]
    path.write_text("[" + ",\n".join([*head, *lines]) + "]\n", "utf-8")


def read(path: Path) -> Baseline:
    """Read a baseline written by `write`."""
    mesa, names, *rows = json.loads(path.read_text("utf-8"))
    return Baseline(mesa, figures(dict(zip(names, row, strict=True)) for row in rows))


def worse(rows: Iterable[Row], baseline: Mapping[Key, Figures]) -> list[str]:
    """List kernels that spill, or cost more than in the baseline.

    Spills and scratch are reported for any kernel, all else for those that the baseline has.
    """
    rows = list(rows)
    lines = [
        f"{_name(row)}: {name} is {row[name]}, needs 0"
        for row in rows
        for name in NEVER
        if row[name]
    ]
    for key, now in figures(rows).items():
        before = baseline.get(key)
        if before is not None:
            growth = "; ".join(_growth(before, now))
            lines += [f"{' '.join(key)}: {growth}"] if growth else []
    return list(dict.fromkeys(lines))


def _growth(before: Figures, now: Figures) -> Iterable[str]:
    for name, most in LIMITS.items():
        if now[name] > most * before[name]:
            yield f"{name} {before[name]:g} → {now[name]:g}, may be {most * before[name]:g}"


def _name(row: Row) -> str:
    return " ".join(str(row[name]) for name in ("family", "model", "format", "graph", "op"))


def unknown(rows: Iterable[Row], baseline: Mapping[Key, Figures]) -> int:
    """Count the kernels that the baseline does not have."""
    return len(figures(rows).keys() - baseline.keys())
