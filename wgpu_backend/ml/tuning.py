"""Which tiles of products are the fastest on a device: measured once, remembered, then used.

A product's kernel, a format and a class of columns are tuned together (`ops.tiles.key`). Candidates
take turns, so that a busy moment hits all alike, and one that computes something else than the
default does is never chosen. What is remembered hangs on adapter, driver, profile and shaders.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import cast

import numpy as np

from wgpu_backend.device_info import Capabilities, Tile
from wgpu_backend.dtypes import DType
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Array, Recorded
from wgpu_backend.ml.self_test import cache_folder, device_key
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.ml.wgpu_executor import WgpuExecutor
from wgpu_backend.ops.matmul import mulmat, select_mulmat
from wgpu_backend.ops.q8 import FORMATS, mulmat_q8, q8_activations, select_q8
from wgpu_backend.ops.tiles import candidates, key

LARGEST_ERROR = 1e-9  # squared, of what a tile computes beside what the default does
GAIN = 0.97  # of the default's time that another tile has to stay below; less is noise
DEVICES_KEPT = 64  # in the file


@dataclass(frozen=True, slots=True)
class Effort:
    """How large the products are that are measured, and how often.

    Parameters
    ----------
    rows, values : int
        Of the weight: rows, and values of each, a multiple of 256.
    columns : tuple of int
        One number for each class of `ops.tiles`.
    rounds : int
        Of which the fastest counts.
    """

    rows: int = 4096
    values: int = 1024
    columns: tuple[int, ...] = (1, 4, 64)
    rounds: int = 6


@dataclass(frozen=True, slots=True)
class Measured:
    """One tile of a product.

    Parameters
    ----------
    key : str
        Kernel, format and class of columns, see `ops.tiles`.
    tile : Tile
    seconds : float
        The fastest of some rounds; infinite where it computed something else than the default.
    gbytes : float
        10⁹ bytes of weights read a second.
    default, chosen : bool
        Whether it is what is taken without tuning, and with.
    """

    key: str
    tile: Tile
    seconds: float
    gbytes: float
    default: bool
    chosen: bool


_Select = Callable[[Launch, Capabilities], Launch]
_Product = Callable[[Node, Node], Node]


@dataclass(frozen=True, slots=True)
class _Case:
    """A product whose kernel leaves a choice."""

    key: str
    tiles: Sequence[Tile]
    make: Callable[[Context], Tensor]
    nbytes: int


def tune(
    executor: WgpuExecutor,
    formats: Sequence[DType],
    effort: Effort | None = None,
    progress: Callable[[float], None] = lambda share: None,
) -> list[Measured]:
    """Measure the tiles of products with weights of some formats.

    Parameters
    ----------
    executor : WgpuExecutor
        Without fusion rules.
    formats : sequence of DType
    effort : Effort or None
    progress : callable
        Told the share that is done.

    Returns
    -------
    list of Measured
        Every candidate, in the order of formats and columns.
    """
    effort = effort or Effort()
    found: list[Measured] = []
    for number, dtype in enumerate(formats):
        weight = _weight(executor, Spec.dense((effort.rows, effort.values), dtype))
        try:
            cases = list(_cases(executor, weight, effort))
            for done, case in enumerate(cases):
                found += _measure(executor, case, effort.rounds)
                progress((number + (done + 1) / len(cases)) / len(formats))
        finally:
            executor.free(weight.storage)
    return found


def _weight(executor: WgpuExecutor, spec: Spec) -> Tensor:
    """Random bytes, of which any two are a finite f16; what they are worth does not matter."""
    data = np.random.default_rng(1).integers(0, 128, spec.nbytes, np.uint8) & np.uint8(0x3B)
    return leaf(spec, executor.weight(spec, memoryview(data.tobytes()), "weight", alone=True))


def _cases(executor: WgpuExecutor, weight: Tensor, effort: Effort) -> Iterator[_Case]:
    """Products of a weight that leave a choice, by class of columns and kernel."""
    products: list[tuple[_Select, _Product]] = [(select_mulmat, mulmat)]
    if weight.dtype in FORMATS:
        products.append((select_q8, _rounded))
    for n in effort.columns:
        x = np.random.default_rng(n).standard_normal((n, effort.values), np.float32)
        for select, make in products:
            case = _case(executor, weight, x, select, make)
            if len(case.tiles) > 1:
                yield case


def _rounded(weight: Node, x: Node) -> Node:
    return mulmat_q8(weight, q8_activations(x))


def _case(
    executor: WgpuExecutor, weight: Tensor, x: Array, select: _Select, product: _Product
) -> _Case:
    def make(context: Context) -> Tensor:
        return cast("Tensor", product(weight, context.from_numpy(x)))

    with Context(executor) as context:
        launch = make(context).launch
        assert launch is not None
        shader = str(select(launch, executor.capabilities).shader)
    name = key(shader, weight.dtype, len(x))
    return _Case(name, candidates(name, executor.capabilities), make, weight.spec.nbytes)


def _measure(executor: WgpuExecutor, case: _Case, rounds: int) -> list[Measured]:
    """Let the tiles of a case take turns."""
    with Context(executor) as context, ExitStack() as stack:
        recorded = [_recorded(executor, context, case, tile) for tile in case.tiles]
        for graph in recorded:
            stack.callback(graph.close)
        wanted, *others = [graph.run({}).wait()[0] for graph in recorded]
        right = [True, *(_alike(values, wanted) for values in others)]
        times = [[_seconds(graph) for graph in recorded] for _ in range(rounds)]
    best = [min(column) for column in zip(*times, strict=True)]
    return _judged(case, [s if ok else inf for s, ok in zip(best, right, strict=True)])


def _judged(case: _Case, seconds: Sequence[float]) -> list[Measured]:
    """The fastest tile is chosen if it is clearly faster than the default."""
    fastest = min(range(len(seconds)), key=seconds.__getitem__)
    winner = fastest if seconds[fastest] < GAIN * seconds[0] else 0
    return [
        Measured(case.key, tile, s, case.nbytes / s / 1e9, i == 0, i == winner)
        for i, (tile, s) in enumerate(zip(case.tiles, seconds, strict=True))
    ]


def _recorded(executor: WgpuExecutor, context: Context, case: _Case, tile: Tile) -> Recorded:
    """The product of a case as it is with a tile."""
    device = executor.device
    before = device.capabilities
    device.capabilities = replace(before, tuned={**before.tuned, case.key: tile})
    try:
        return context.record(case.make(context))
    finally:
        device.capabilities = before


def _seconds(graph: Recorded) -> float:
    """Time of the product, which is the last dispatch; activations are rounded before it."""
    return graph.timed()[-1][2]


def _alike(values: Array, wanted: Array) -> bool:
    exact = wanted.astype(np.float64)
    difference = float(np.sum((values.astype(np.float64) - exact) ** 2))
    return difference <= LARGEST_ERROR * float(np.sum(exact**2))


def remember(
    executor: WgpuExecutor, profile: str, found: Iterable[Measured], cache: Path | None = None
) -> Path:
    """Write what was chosen to the file that opened devices read.

    Parameters
    ----------
    executor : WgpuExecutor
    profile : str
    found : iterable of Measured
        Keys that are not among them keep what is remembered of them.
    cache : Path or None
        None for a file in the user's cache folder.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    OSError
        It cannot be written.
    """
    path = cache or cache_folder() / "tuned.json"
    everything = _read(path)
    name = device_key(executor, profile)
    kept = everything.pop(name, {})
    chosen = {m.key: [m.tile.rows, m.tile.columns, m.tile.threads] for m in found if m.chosen}
    everything[name] = {**(kept if isinstance(kept, dict) else {}), **chosen}
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    latest = dict([*everything.items()][-DEVICES_KEPT:])
    part.write_text(json.dumps(latest), encoding="utf-8")
    part.replace(path)
    return path


def use_tuned(executor: WgpuExecutor, profile: str, cache: Path | None = None) -> None:
    """Let an executor's device use what is remembered of it; damage and strangers are ignored."""
    path = cache or cache_folder() / "tuned.json"
    if not path.exists():
        return
    known = _read(path).get(device_key(executor, profile))
    if isinstance(known, dict):
        device = executor.device
        tuned = dict(_valid(executor, cast("Mapping[str, object]", known)))
        device.capabilities = replace(device.capabilities, tuned=tuned)


def _valid(executor: WgpuExecutor, known: Mapping[str, object]) -> Iterator[tuple[str, Tile]]:
    """Entries that name a tile which the device can take."""
    for name, sizes in known.items():
        for tile in candidates(name, executor.capabilities):
            if sizes == [tile.rows, tile.columns, tile.threads]:
                yield name, tile


def _read(path: Path) -> dict[str, object]:
    with suppress(OSError, ValueError):
        found: object = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return cast("dict[str, object]", found)
    return {}
