# ruff: noqa: ANN401 - arrays of two libraries, alike in what is called
"""Comparison of one function of both libraries on random cases."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx  # pyright: ignore[reportMissingImports]
import numpy as np

import wgpu_backend.array as wx
from benchmarks.array_against_mlx.cases import CASES
from benchmarks.array_against_mlx.draw import FLOATS, INTEGERS, Both, Draw
from benchmarks.array_against_mlx.functions import function_of, host_of

NAMES = {
    d.name: n
    for n, d in ((n, getattr(wx, n)) for n in (*FLOATS, *INTEGERS, "int64", "uint64", "bool"))
}
UNITS = {"f32": 2.0**-23, "f16": 2.0**-10, "bf16": 2.0**-7}


@dataclass
class Found:
    """The results of a function's cases."""

    cases: int = 0
    worst: float = 0.0
    problems: list[str] = field(default_factory=list)


def side(value: Any, ours: bool) -> Any:
    """Return the operands of one library."""
    if isinstance(value, Both):
        return value.ours if ours else value.theirs
    if isinstance(value, list | tuple):
        return type(value)(side(v, ours) for v in value)
    if isinstance(value, dict):
        return {k: side(v, ours) for k, v in value.items()}
    return value


def outputs(value: Any) -> Iterator[Any]:
    """List the arrays of a result."""
    if isinstance(value, list | tuple):
        for v in value:
            yield from outputs(v)
    else:
        yield value


def compare(name: str, ours: Any, theirs: Any, found: Found) -> None:
    """Record the difference of two results."""
    a, b = host_of(ours), host_of(theirs)
    if isinstance(theirs, mx.array):
        own = NAMES.get(ours.dtype.name, ours.dtype.name)
        other = str(theirs.dtype).removeprefix("mlx.core.").removesuffix("_")
        if own != other:
            found.problems.append(f"type {own}, MLX {other}")
    if a.shape != b.shape:
        found.problems.append(f"shape {a.shape}, MLX {b.shape}")
        return
    if name in ("partition", "argpartition", "topk"):
        a, b = np.sort(a.reshape(-1)), np.sort(b.reshape(-1))
    x, y = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isnan(x), np.isnan(y)):
        found.problems.append("NaN in other places")
    with np.errstate(invalid="ignore"):
        error = np.abs(x - y) / np.maximum(1, np.abs(y))
    error = np.where(x == y, 0, np.nan_to_num(error)) / UNITS.get(str(ours.dtype), 1.0)
    found.worst = max(found.worst, float(error.max(initial=0)))


def run(name: str, cases: int, seed: int) -> Found:
    """Run and compare one function on random cases."""
    found = Found()
    for number in range(cases):
        d = Draw(np.random.default_rng([seed, number, sum(map(ord, name))]))
        args, options = CASES[name](d)
        results: list[Any] = []
        for module, ours in ((wx, True), (mx, False)):
            try:
                result = function_of(name, module)(*side(args, ours), **side(options, ours))
                module.eval([x for x in outputs(result) if hasattr(x, "dtype")])
                results.append(result)
            except Exception as error:  # shown in the table
                results.append(error)
        mine, other = results
        if isinstance(other, Exception):
            continue  # what MLX refuses is not compared
        found.cases += 1
        if isinstance(mine, Exception):
            found.problems.append(f"{type(mine).__name__}: {mine}"[:100])
            continue
        for a, b in zip(outputs(mine), outputs(other), strict=True):
            compare(name, a, b, found)
    return found
