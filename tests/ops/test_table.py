"""What holds for every op of the table, whatever its operands: five properties.

`--seed N` repeats the operands of a run, `--draws N` tries as many for each case.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import numpy as np
import pytest

import wgpu_backend.kernels
import wgpu_backend.ops
from tests.ops.operands import PLAIN, ROUNDED
from tests.ops.samples import (
    Sample,
    any_bits,
    as_type,
    bits_of,
    draw_axes,
    draw_extents,
    fill,
    names,
)
from tests.ops.table import EXEMPT, TABLE, Row
from wgpu_backend.dtypes import F32, DType
from wgpu_backend.errors import BackendError, ContextError, DTypeError, ShapeError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ml.testing.operands import values as blocks
from wgpu_backend.ml.testing.red_zones import run_in_red_zones
from wgpu_backend.ops.op import REGISTRY

ROOT = Path(__file__).parents[2]
KINDS = ("full", "baseline", "wide")
MANY = 70_000  # more than one dimension of a grid takes work groups, which is 65,535
LARGEST_NBYTES = 16 << 20  # of a result with as many rows


class Draws:
    """Operands drawn for a case, from the seed of the run and the name of the test."""

    def __init__(self, seed: int, count: int, name: str) -> None:
        self.seed, self.count = seed, count
        self.rng = np.random.default_rng([seed, zlib.crc32(name.encode())])

    def note(self, row: Row, sample: Sample) -> str:
        """Describe a sample that failed."""
        return f"{row.name} of {sample}; --seed {self.seed} draws it again"


@pytest.fixture
def draws(request: pytest.FixtureRequest) -> Draws:
    config = request.config
    return Draws(config.getoption("--seed"), config.getoption("--draws"), request.node.nodeid)


def narrow(rng: np.random.Generator, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Leave leading axes out, and make others 1."""
    kept = axes[int(rng.integers(0, len(axes) + 1)) :]
    return tuple(1 if rng.random() < 0.4 else n for n in kept)


def drawn(
    row: Row,
    rng: np.random.Generator,
    *,
    views: bool = False,
    dtype: DType | None = None,
    extents: dict[str, int] | None = None,
    axes: tuple[int, ...] | None = None,
) -> Sample:
    """Draw operands for a row."""
    extents = draw_extents(rng, row.operands, row.extents) if extents is None else extents
    axes = draw_axes(rng) if axes is None else axes
    dtype = row.takes[int(rng.integers(len(row.takes)))] if dtype is None else dtype
    arrays, dtypes, layouts = [], [], []
    for place, operand in enumerate(row.operands):
        own = narrow(rng, axes) if views and row.broadcasts and place and axes else axes
        shape = fill(operand.shape, extents, own)
        dtypes.append(operand.dtype or dtype)
        if operand.draw is any_bits:
            arrays.append(bits_of(rng, dtypes[-1], shape))
        elif dtypes[-1].quantised:
            arrays.append(blocks(rng, dtypes[-1], shape))
        else:
            arrays.append(as_type(np.asarray(operand.draw(rng, shape, extents)), dtypes[-1]))
        layouts.append(str(rng.choice(operand.views)) if views else "dense")
    return Sample(arrays, dtypes, layouts, row.options[int(rng.integers(len(row.options)))])


def build(row: Row, sample: Sample, ctx: Context) -> Tensor:
    return row.call(*sample.tensors(ctx), **sample.options)


def values(executor: Executor, row: Row, sample: Sample) -> np.ndarray:
    with Context(executor) as ctx:
        return build(row, sample, ctx).numpy()


def difference(got: np.ndarray, want: np.ndarray) -> float:
    """Sum of squared differences over that of the values; NaN where what is not finite differs.

    Where the values are small it is that over 1: a few tiny values may cancel.
    """
    if got.shape != want.shape or got.dtype != want.dtype:
        return float("nan")
    if got.dtype.kind != "f":
        return 0.0 if np.array_equal(got, want) else float("inf")
    a, b = got.astype("f8"), want.astype("f8")
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("nan")
    with np.errstate(invalid="ignore"):
        return float(np.sum((a[finite] - b[finite]) ** 2) / max(np.sum(b[finite] ** 2), 1.0))


def limit(row: Row, sample: Sample) -> float:
    """The largest error: where types are rounded, that of a few ties that went the other way."""
    types = [*sample.dtypes, sample.options.get("dtype")]
    return row.limit and max(row.limit, *(3 * ROUNDED.get(d, 0.0) for d in types))


def agrees(executor: Executor, row: Row, sample: Sample, draws: Draws) -> None:
    """Compare a device with the NumPy reference."""
    with np.errstate(all="ignore"):
        want = values(NumpyExecutor(), row, sample)
    got = values(executor, row, sample)
    found, most = difference(got, want), limit(row, sample)
    assert found <= most, f"NMSE {found:.3g}, at most {most:.3g}: {draws.note(row, sample)}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", TABLE)
def test_results_are_those_of_the_reference(executors, draws, op, kind):
    row = TABLE[op]
    for _ in range(draws.count):
        agrees(executors(kind), row, drawn(row, draws.rng), draws)
    if draws.count > 1 and (sample := many(row, draws.rng)):
        agrees(executors(kind), row, sample, draws)
    if row.nonfinite:
        sample = drawn(row, draws.rng, dtype=F32)
        special = Sample(sample.arrays, sample.dtypes, ["nonfinite"], sample.options)
        agrees(executors(kind), row, special, draws)


def many(row: Row, rng: np.random.Generator) -> Sample | None:
    """Draw operands one extent of which is very large, if the result is not."""
    free = [name for name in names(row.operands) if name not in row.extents]
    extents = {name: min(row.extents.get(name, (3,))) for name in names(row.operands)}
    if free:
        extents[str(rng.choice(free))] = MANY
    elif not any(operand.shape == "..." for operand in row.operands):
        return None
    sample = drawn(row, rng, extents=extents, axes=(MANY, 3))
    with Context(NumpyExecutor()) as ctx:
        return sample if build(row, sample, ctx).spec.nbytes <= LARGEST_NBYTES else None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", TABLE)
def test_operands_may_be_views(executors, draws, op, kind):
    row = TABLE[op]
    for _ in range(draws.count):
        agrees(executors(kind), row, drawn(row, draws.rng, views=True), draws)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", TABLE)
def test_operands_may_be_empty(executors, draws, op, kind):
    row = TABLE[op]
    for sample in empty(row, draws.rng):
        want, got = (outcome(e, row, sample) for e in (NumpyExecutor(), executors(kind)))
        if isinstance(want, type):
            assert got is want is ShapeError, draws.note(row, sample)
        else:
            np.testing.assert_array_equal(got, want, err_msg=draws.note(row, sample))


def empty(row: Row, rng: np.random.Generator) -> Iterator[Sample]:
    """Each extent in turn is zero, but for those that indices need."""
    indexed = {getattr(operand.draw, "into", "") for operand in row.operands}
    for name in names(row.operands):
        if name in indexed:
            continue
        extents = draw_extents(rng, row.operands, row.extents) | {name: 0}
        yield drawn(row, rng, dtype=row.takes[0], extents=extents)
    if any("..." in operand.shape for operand in row.operands):
        for axes in ((0,), (3, 0)):
            yield drawn(row, rng, dtype=row.takes[0], axes=axes)


def outcome(executor: Executor, row: Row, sample: Sample) -> np.ndarray | type[BackendError]:
    """Values, or the kind of error where an op refuses."""
    try:
        with np.errstate(all="ignore"):
            return values(executor, row, sample)
    except BackendError as error:
        return type(error)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("op", TABLE)
def test_kernels_stay_inside_their_memory(executors, draws, op, kind):
    row, executor = TABLE[op], executors(kind)
    for _ in range(draws.count):
        sample = drawn(row, draws.rng, views=draws.rng.random() < 0.5)
        with Context(executor) as ctx:
            y = build(row, sample, ctx)
            node = y if y.launch is not None else y.source
            if node is None or node.launch is None:
                continue
            found = run_in_red_zones(executor, node)
            assert not found.strays, f"{found.strays}: {draws.note(row, sample)}"


def refusal(row: Row, sample: Sample) -> BackendError | None:
    """The error of an op, which is the same on every device: it is made with the graph."""
    with Context(NumpyExecutor()) as ctx, np.errstate(all="ignore"):
        try:
            build(row, sample, ctx)
        except BackendError as error:
            return error
    return None


def names_the_op(row: Row, error: BackendError | None) -> bool:
    return str(error).startswith(tuple(f"{name}: " for name in (row.name, *row.ops, *row.says)))


@pytest.mark.parametrize("op", TABLE)
def test_other_types_are_refused(draws, op):
    row = TABLE[op]
    if all(operand.dtype for operand in row.operands):
        return
    for dtype in PLAIN:
        sample = drawn(row, draws.rng, dtype=dtype)
        error = refusal(row, sample)
        if dtype in row.takes:
            assert error is None, f"{error}: {draws.note(row, sample)}"
        else:
            assert isinstance(error, DTypeError), f"{error!r}: {draws.note(row, sample)}"
            assert names_the_op(row, error), error
            assert dtype.name in str(error), error


@pytest.mark.parametrize("op", TABLE)
def test_other_shapes_are_refused(draws, op):
    row = TABLE[op]
    for sample in misfits(row, draws.rng):
        error = refusal(row, sample)
        assert isinstance(error, ShapeError), f"{error!r}: {draws.note(row, sample)}"
        assert names_the_op(row, error), error


def misfits(row: Row, rng: np.random.Generator) -> Iterator[Sample]:
    """Operands of other extents than each other's, and of nine axes."""
    for name in names(row.operands):
        sharing = [i for i, o in enumerate(row.operands) if name in o.shape.split()]
        for place in sharing[1:]:
            yield misfit(row, rng, place, name)
    several = [i for i, operand in enumerate(row.operands) if operand.shape == "..."]
    if len(several) > 1:
        sample = drawn(row, rng, axes=(2, 3))
        other = drawn(row, rng, axes=(2, 4), dtype=sample.dtypes[several[1]])
        arrays = [*sample.arrays]
        arrays[several[1]] = other.arrays[several[1]]
        yield Sample(arrays, sample.dtypes, sample.layouts, sample.options)


def misfit(row: Row, rng: np.random.Generator, place: int, name: str) -> Sample:
    """One operand has one more of an extent than the others."""
    extents = draw_extents(rng, row.operands, row.extents)
    dtype = row.takes[int(rng.integers(len(row.takes)))]
    sample = drawn(row, rng, extents=extents, dtype=dtype)
    more = drawn(row, rng, extents=extents | {name: extents[name] + 2}, dtype=dtype)
    arrays = [*sample.arrays]
    arrays[place] = more.arrays[place]
    return Sample(arrays, sample.dtypes, sample.layouts, sample.options)


@pytest.mark.parametrize("op", TABLE)
def test_other_contexts_are_refused(draws, op):
    row = TABLE[op]
    sample = drawn(row, draws.rng)
    with Context(NumpyExecutor()) as ctx, Context(NumpyExecutor()) as other:
        here, there = sample.tensors(ctx), sample.tensors(other)
        if len(here) > 1:
            with pytest.raises(ContextError, match="tensors of two contexts; copy one over"):
                row.call(here[0], *there[1:], **sample.options)
    with pytest.raises(ContextError, match="context: it is closed; make a new one"):
        row.call(*here, **sample.options)


def ops_of(y: Tensor) -> set[str]:
    """Ops of a graph."""
    found: set[str] = set()
    left, seen = [y], set[int]()
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if node.call is not None:
            found.add(node.call.op.name)
        left += [*(node.launch.operands.values() if node.launch else ())]
        left += [node.source] if node.source is not None else []
    return found


def ops_tried() -> dict[str, set[str]]:
    """Ops in the graphs of each row: of the same operands in every run.

    Operands are drawn until they make all ops that the row lists.
    """
    rng = np.random.default_rng(0)
    found: dict[str, set[str]] = {title: set() for title in TABLE}
    for title, row in TABLE.items():
        for draw in range(30):
            if draw and set(row.ops) <= found[title]:
                break
            with Context(NumpyExecutor()) as ctx:
                found[title] |= ops_of(build(row, drawn(row, rng), ctx))
    return found


def test_every_op_has_a_row_or_a_test_elsewhere():
    for package in (wgpu_backend.ops, wgpu_backend.kernels):
        for module in walk_packages(package.__path__, f"{package.__name__}."):
            import_module(module.name)
    found = ops_tried()
    for title, row in TABLE.items():
        assert set(row.ops) <= found[title], title
    own = {name for name, op in REGISTRY.items() if op.__module__.startswith("wgpu_backend.")}
    # A family of kernels may be left out, with its ops and tests.
    exempt = {op: file for file, ops in EXEMPT.items() for op in ops if op in REGISTRY}
    assert own - set().union(*found.values()) == exempt.keys()
    assert all((ROOT / file).is_file() for file in exempt.values())
