"""Tuning: the fastest kernels for products on a device, measured once and remembered.

Each kernel, format and class of columns is tuned (`ops.tiles.key`): its tile and, on hardware,
whether activations in eight bits, or in two such parts, are faster. Candidates run in turn, so that
a busy moment affects all equally. One with other results than the default is never chosen. Results
are stored by adapter, driver, profile and shaders.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import cast

import numpy as np

from wgpu_backend.dtypes import DType
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels import complete, select
from wgpu_backend.kernels.cases import ROUNDING_ERROR
from wgpu_backend.kernels.gpu.pairs import FORMATS as PAIRED
from wgpu_backend.kernels.gpu.pairs import IN_COLUMNS, f16_columns
from wgpu_backend.kernels.gpu.products import tiles_in_f16
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Array, Recorded
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.linear.activation_rounding import pays_in_q16, q8_pair, rounding_key
from wgpu_backend.ops.linear.attributes import Q8, Q8_PAIR, Q16, Prologue
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.q8 import FORMATS, q8_activations
from wgpu_backend.ops.linear.q16 import q16_activations
from wgpu_backend.ops.linear.tiles import FEW, candidates
from wgpu_backend.ops.op import fusions

# Squared error of a tile's result, relative to the default's. Only the order of sums differs.
LARGEST_ERROR = 1e-9
# Another tile has to stay below this share of the default's time. Less is noise.
GAIN = 0.97
# The same for activations in eight bits, which cost some accuracy.
ROUNDING_GAIN = 0.9


@dataclass(frozen=True, slots=True)
class Effort:
    """The sizes of the measured products, and the number of rounds.

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
    """A tile of a product, with its time.

    Parameters
    ----------
    key : str
        Kernel, format and class of columns, see `ops.tiles`.
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


@dataclass(frozen=True, slots=True)
class Compared:
    """A product with f32 activations compared with one with rounded ones, each with its best tiles.

    Parameters
    ----------
    key : str
        Format, class of columns and form, see `ops.rounding`.
    seconds, rounded_seconds : float
        The fastest of some rounds, with the rounding; infinite where that goes wrong.
    chosen : bool
        Whether it is the faster, and taken where the caller allows such rounding.
    """

    key: str
    seconds: float
    rounded_seconds: float
    chosen: bool


@dataclass(frozen=True, slots=True)
class Tuning:
    """All measurements, in the order of formats and columns."""

    tiles: Sequence[Measured]
    rounding: Sequence[Compared] = ()

    @property
    def winners(self) -> Mapping[str, Tile]:
        """The chosen tile of each kernel, format and class of columns."""
        return _winners(self.tiles)


_Product = Callable[[Node, Node], Node]


class _Asked(Mapping[str, Tile]):
    """A mapping without tiles that notes the last name looked up."""

    def __init__(self) -> None:
        self.last = ""

    def __getitem__(self, name: str) -> Tile:
        self.last = name
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


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
) -> Tuning:
    """Measure products with weights of some formats.

    Parameters
    ----------
    executor : WgpuExecutor
        Without fusion rules.
    progress : callable
        Called with the share that is done.

    Returns
    -------
    Tuning
        Every candidate of every tile, and on hardware whether rounding pays.
    """
    effort = effort or Effort()
    tiles: list[Measured] = []
    rounding: list[Compared] = []
    for number, dtype in enumerate(formats):
        spec = Spec.dense((effort.rows, effort.values), dtype)
        weight, rounded = _weight(executor, spec), _weight(executor, spec, rounded=True)
        try:
            cases = list(_cases(executor, weight, rounded, effort))
            for done, case in enumerate(cases):
                tiles += _measure(executor, case, effort.rounds)
                progress((number + (done + 1) / (len(cases) + 1)) / len(formats))
            rounding += _compare_rounding(executor, weight, effort, _winners(tiles))
            progress((number + 1) / len(formats))
        finally:
            executor.free(weight.storage)
            executor.free(rounded.storage)
    return Tuning(tiles, rounding)


def _winners(tiles: Iterable[Measured]) -> Mapping[str, Tile]:
    return {m.key: m.tile for m in tiles if m.chosen}


def _weight(executor: WgpuExecutor, spec: Spec, *, rounded: bool = False) -> Tensor:
    """Return a weight of random bytes, of which any two are a finite f16.

    Its layout may depend on whether products round activations.
    """
    # This mask clears a bit of the exponent, so that no f16 is NaN or infinite.
    data = np.random.default_rng(1).integers(0, 128, spec.nbytes, np.uint8) & np.uint8(0x3B)
    loading = executor.as_if(executor.capabilities)
    loading.rules = fusions(["linear_q8"], exact=False) if rounded else {}
    return leaf(spec, loading.weight(spec, memoryview(data.tobytes()), "weight", alone=True))


def _cases(
    executor: WgpuExecutor, weight: Tensor, rounded: Tensor, effort: Effort
) -> Iterator[_Case]:
    """Yield the products of a weight that leave a choice, by class of columns and kernel."""
    products: list[tuple[Tensor, _Product]] = [(weight, linear)]
    if weight.dtype in FORMATS:
        products.append((rounded, _multiply_q8))
    products.append((weight, _multiply_f16))
    if weight.dtype in PAIRED and tiles_in_f16(executor.capabilities):
        products.append((weight, _multiply_pairs))
    for n in effort.columns:
        x = np.random.default_rng(n).standard_normal((n, effort.values), np.float32)
        cases = (_case(executor, operand, x, make) for operand, make in products)
        # Without such arithmetic a product in f16 is the one in f32.
        yield from {case.key: case for case in cases if len(case.tiles) > 1}.values()


def _compare_rounding(
    executor: WgpuExecutor, weight: Tensor, effort: Effort, tiles: Mapping[str, Tile]
) -> Iterator[Compared]:
    """Measure whether activations in eight bits are faster, on devices where that is open."""
    nothing = frozenset[str]()
    # What a family settles is not measured.
    known = complete(replace(executor.capabilities, rounded=nothing, unrounded=nothing))
    settled = known.rounded | known.unrounded
    for n in effort.columns if weight.dtype in FORMATS else ():
        forms = _forms(weight.dtype, n, executor.capabilities)
        keys = {form: rounding_key(weight.dtype, n, form) for form in forms}
        if settled.issuperset(keys.values()):
            continue
        x = np.random.default_rng(n).standard_normal((n, effort.values), np.float32)
        with ExitStack() as stack:
            exact, *others = (
                _record_product(executor, stack, partial(_multiply, weight, x, product), tiles)
                for product in (linear, *forms.values())
            )
            wanted = exact.run({}).wait()[0]
            right = [_is_close(graph.run({}).wait()[0], wanted, ROUNDING_ERROR) for graph in others]
            times = [[_whole_seconds(g) for g in (exact, *others)] for _ in range(effort.rounds)]
        seconds, *rounded = (min(column) for column in zip(*times, strict=True))
        for key, other, ok in zip(keys.values(), rounded, right, strict=True):
            pays = ok and other < ROUNDING_GAIN * seconds
            yield Compared(key, seconds, other if ok else inf, pays)


def _multiply(weight: Tensor, x: Array, product: _Product, context: Context) -> Tensor:
    return cast("Tensor", product(weight, context.from_numpy(x)))


def _multiply_q8(weight: Node, x: Node) -> Node:
    return linear(weight, q8_activations(x), prologue=Q8)


def _multiply_q8_pair(weight: Node, x: Node) -> Node:
    return linear(weight, q8_pair(x), prologue=Q8_PAIR)


def _multiply_q16(weight: Node, x: Node) -> Node:
    return linear(weight, q16_activations(x), prologue=Q16)


def _forms(dtype: DType, columns: int, capabilities: Capabilities) -> Mapping[Prologue, _Product]:
    """Return a function for each form of rounded activations: 8 bits, and about 16 bits.

    The form with 8 bits is only used if a caller allows it.
    """
    # A former measurement must not decide which form is measured now.
    fresh = replace(capabilities, unrounded=frozenset[str]())
    in_q16 = pays_in_q16(dtype, columns, fresh)
    return {Q8: _multiply_q8, Q8_PAIR: _multiply_q16 if in_q16 else _multiply_q8_pair}


def _multiply_f16(weight: Node, x: Node) -> Node:
    return linear(weight, x, precision="f16")


def _multiply_pairs(weight: Node, x: Node) -> Node:
    return linear(weight, f16_columns(x), prologue=IN_COLUMNS, precision="f16")


def _case(executor: WgpuExecutor, weight: Tensor, x: Array, product: _Product) -> _Case:
    make = partial(_multiply, weight, x, product)
    with Context(executor) as context:
        launch = make(context).launch
        assert launch is not None
        asked = _Asked()
        default = select(linear, launch, replace(executor.capabilities, tuned=asked))
    # The name that the kernel looked up is the one it is tuned by.
    name = asked.last
    tiles = candidates(name, executor.capabilities)
    first = _find_tile(default) or tiles[:1]
    return _Case(name, tuple(dict.fromkeys((*first, *tiles))), make, weight.spec.nbytes)


def _find_tile(launch: Launch) -> tuple[Tile, ...]:
    """Return the tile that a hardware kernel uses for an untuned product, if it is one."""
    sizes = {name: n for name, n in launch.choices.items() if isinstance(n, int)}
    if "TILE_M" in sizes:
        return (Tile(sizes["TILE_M"], sizes["TILE_N"], sizes["WG"]),)
    if "W_ITEMS" in sizes:
        rows, columns = sizes["LANE_ROWS"] * sizes["ROWS"], sizes["WG"] // sizes["LANE_ROWS"]
        return (Tile(rows, columns * sizes["COLS"], sizes["WG"]),)
    if "SOURCES" in sizes and "SUMS" in sizes:
        columns = 1 if sizes["COLS"] == 1 else FEW
        return (Tile(sizes["SOURCES"], columns, sizes["WG"]),)
    return ()


def _measure(executor: WgpuExecutor, case: _Case, rounds: int) -> list[Measured]:
    """Measure the tiles of a case in turn."""
    with ExitStack() as stack:
        recorded = [
            _record_product(executor, stack, case.make, {case.key: tile}) for tile in case.tiles
        ]
        wanted, *others = [graph.run({}).wait()[0] for graph in recorded]
        right = [True, *(_is_close(values, wanted) for values in others)]
        # Tiles in turn, round by round: a busy moment or a change of clock then hits all of them.
        times = [[_seconds(graph) for graph in recorded] for _ in range(rounds)]
    # The minimum: other work on the machine only ever adds time.
    best = [min(column) for column in zip(*times, strict=True)]
    return _choose_tile(case, [s if ok else inf for s, ok in zip(best, right, strict=True)])


def _choose_tile(case: _Case, seconds: Sequence[float]) -> list[Measured]:
    """Choose the fastest tile if it is clearly faster than the default."""
    fastest = min(range(len(seconds)), key=seconds.__getitem__)
    winner = fastest if seconds[fastest] < GAIN * seconds[0] else 0
    return [
        Measured(case.key, tile, s, case.nbytes / s / 1e9, i == 0, i == winner)
        for i, (tile, s) in enumerate(zip(case.tiles, seconds, strict=True))
    ]


def _record_product(
    executor: WgpuExecutor,
    stack: ExitStack,
    make: Callable[[Context], Tensor],
    tiles: Mapping[str, Tile],
) -> Recorded:
    """Record a product with these tiles; the stack closes it."""
    known = executor.capabilities
    tried = executor.as_if(replace(known, tuned={**known.tuned, **tiles}))
    context = stack.enter_context(Context(tried))
    recorded = context.record(make(context))
    stack.callback(recorded.close)
    return recorded


def _seconds(graph: Recorded) -> float:
    """Return the time of the product, the last dispatch; activations are rounded before it."""
    return graph.timed()[-1][2]


def _whole_seconds(graph: Recorded) -> float:
    return sum(seconds for _, _, seconds in graph.timed())


def _is_close(values: Array, wanted: Array, largest: float = LARGEST_ERROR) -> bool:
    exact = wanted.astype(np.float64)
    difference = float(np.sum((values.astype(np.float64) - exact) ** 2))
    return difference <= largest * float(np.sum(exact**2))
