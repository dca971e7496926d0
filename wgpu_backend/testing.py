"""Comparison of a device with NumPy, for tests of the package's ops and of custom ones.

::

    check_op(swish, "rows cols")                         the whole battery, on the best device
    check_op(gated, "n", "n", options={"alpha": 0.5})    two operands of one shape
    check_op(pick, "rows cols", "n:i32")                 an operand of i32: it holds 0, 1, 2 alone
    trial(swish, "rows cols", limit=1e-6)                in the op's file: how ``op check`` tries it

    check_graph(executor, lambda ctx: swish(ctx.from_numpy(x)))     one graph of one's own

`Trial` has all that one can say of how an op is tried.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import BF16, F16, F32, DType
from wgpu_backend.errors import BackendError, DTypeError, ShapeError
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ml.testing.cases import Trial as Trial
from wgpu_backend.ml.testing.cases import forget as forget
from wgpu_backend.ml.testing.cases import get_trials as get_trials
from wgpu_backend.ml.testing.cases import trial as trial
from wgpu_backend.ml.testing.operands import (
    OFFSET,
    STRIDED,
    Shapes,
    cases,
    many,
    operand,
    operand_dtype,
    values,
)
from wgpu_backend.ml.testing.red_zones import RedZoneResult, run_in_red_zones
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.op import Op, find
from wgpu_backend.ops.reference import get_reference

__all__ = ["Case", "Trial", "check_graph", "check_op", "forget", "nmse", "trial", "values_of"]

Array = NDArray[Any]
# Largest result of a case with very many rows.
LARGEST_NBYTES = 16 << 20
Build = Callable[[Context], Tensor]
# Results rounded to a type: where two devices round a tie-like value differently, the square of one
# step is 2⁻²⁰ (f16) or 2⁻¹⁴ (bf16) of the value's, in a few values of a thousand.
ROUNDED = {F32: 0.0, F16: 1e-8, BF16: 1e-6}


def values_of(executor: Executor, build: Build) -> Array:
    """Make a tensor in a context of its own and bring its values to the host.

    Parameters
    ----------
    build : callable
        From the context to the tensor.
    """
    with Context(executor) as context:
        return build(context).numpy()


def nmse(got: Array, want: Array) -> float:
    """Return the sum of squared differences over the sum of squares of `want`.

    Parameters
    ----------
    got, want : (...), any number type
        The values compared, and the reference.

    Returns
    -------
    float
        NaN where shapes, NaNs or infinities differ; 0 where everything agrees.
    """
    if got.shape != want.shape:
        return float("nan")
    # Memory may hold a signalling NaN, whose cast warns.
    with np.errstate(invalid="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("nan")
    # NaN where only one side has it.
    with np.errstate(invalid="ignore"):
        error = float(np.sum((a[finite] - b[finite]) ** 2))
    return error / (float(np.sum(b[finite] ** 2)) or 1.0)


def check_graph(where: Context | Executor, build: Build, *, limit: float = 1e-7) -> float:
    """Compare a device's results with those of the ops' NumPy references.

    Parameters
    ----------
    where : Context or Executor
        On the device under test.
    build : callable
        From a context to the tensor; called once on the device and once on NumPy.
    limit : float
        Largest `nmse` allowed; 0 asks for equal values.

    Returns
    -------
    float
        The `nmse` found.

    Raises
    ------
    AssertionError
        The results differ more; the message has the worst place and both values there.
    """
    executor = where.executor if isinstance(where, Context) else where
    got, want = values_of(executor, build), values_of(NumpyExecutor(), build)
    assert got.dtype == want.dtype, f"{executor.info.id} gives {got.dtype}, NumPy {want.dtype}"
    found = nmse(got, want)
    assert found <= limit, f"NMSE {found:.3g}, at most {limit:.3g}: {_worst(got, want)}"
    return found


def _worst(got: Array, want: Array) -> str:
    if got.shape != want.shape:
        return f"shape {got.shape}, NumPy has {want.shape}"
    with np.errstate(invalid="ignore"):
        apart = np.abs(got.astype(np.float64) - want.astype(np.float64))
    same = (got == want) | ((got != got) & (want != want))
    apart = np.where(same, 0.0, np.nan_to_num(apart, nan=np.inf))
    place = tuple(int(i) for i in np.unravel_index(np.argmax(apart), got.shape))
    differing = int(np.count_nonzero(apart))
    return f"{differing} of {got.size} differ; at {place} {got[place]}, NumPy has {want[place]}"


@dataclass(frozen=True, slots=True)
class Case:
    """One run of an op.

    Parameters
    ----------
    profile : str
        ``full`` or ``baseline``.
    layout : str
        How operands lay in memory, or what is special of them.
    error : float
        The `nmse` found; NaN where it failed otherwise, or there is no reference.
    problem : str
        What is wrong; empty where nothing is.
    refused : bool
        The op does not take operands of this type or these shapes, and says so.
    """

    op: str
    device: DeviceInfo
    profile: str
    dtype: str
    layout: str
    shapes: Shapes
    error: float = float("nan")
    problem: str = ""
    refused: bool = False

    def __str__(self) -> str:
        where = f"{self.device.id} {self.profile}, {self.dtype}, {self.layout}"
        return f"{self.op} of {' and '.join(map(str, self.shapes))} on {where}: {self.problem}"


def check_op(
    op: Op[Any],
    *shapes: str,
    executors: Mapping[str, Executor] | None = None,
    **how: Any,  # noqa: ANN401
) -> list[Case]:
    """Run the battery on an op: types, extents, layouts, NaN, profiles, red zones.

    Extents are odd, zero, and once more than 65,535, which is what one dimension of a grid takes.

    Parameters
    ----------
    op : Op
        Without a NumPy reference, only the red zones are checked.
    shapes, how
        See `Trial`; left out, what `trial` said of the op. ``"n:i32"`` is an operand of i32, whose
        values are 0, 1 and 2 alone: indices beyond need a `check_graph`.
    executors : mapping of str to Executor
        By profile; None opens the best device with each.

    Returns
    -------
    list of Case
        All of them; none has failed.

    Raises
    ------
    AssertionError
        A case failed, or every case was refused; the message has the first ten.
    """
    trials = [Trial(op, shapes, **how)] if shapes else get_trials(op)
    with ExitStack() as stack:
        if executors is None:
            executors = open_executors(stack)
        run = [case for t in trials for case in run_trial(t, executors)]
    failed = [case for case in run if case.problem and not case.refused]
    listed = "\n".join(filter(None, [*map(str, failed[:10]), find_hint(run)]))
    assert not failed, f"{len(failed)} of {len(run)} cases failed:\n{listed}"
    assert not all(case.refused for case in run), f"every case is refused: {run[0]}"
    return run


def open_executors(
    stack: ExitStack, device: str | DeviceInfo | None = None
) -> dict[str, WgpuExecutor]:
    """Open executors of a device by profile; the stack closes them."""
    made: dict[str, WgpuExecutor] = {}
    # A new op's own kernel is under test here, so the package's kernels need no self-test.
    for profile in ("full", "baseline"):
        executor = make_executor("wgpu", BackendParams(device, profile, self_test=False))
        stack.callback(executor.close)
        assert isinstance(executor, WgpuExecutor)
        made[profile] = executor
    return made


def run_trial(trial: Trial, executors: Mapping[str, Executor]) -> Iterator[Case]:
    """Run the cases of a trial; a case describes its error instead of raising it."""
    for profile, executor in executors.items():
        for dtype, shapes, layout in _list_cases(trial):
            yield _run(trial, executor, profile, dtype, layout, shapes)


def count_cases(trial: Trial, executors: Mapping[str, Executor]) -> int:
    """Return the number of cases that `run_trial` runs."""
    return len(executors) * sum(1 for _ in _list_cases(trial))


def _list_cases(trial: Trial) -> Iterator[tuple[DType, Shapes, str]]:
    """Yield type, shapes and layout of each case."""
    for dtype in trial.dtypes:
        for shapes, layout in cases(trial.shapes, trial.broadcast):
            if trial.nonfinite or layout != "nonfinite":
                yield dtype, shapes, layout
    for shapes in many(trial.shapes):
        if _fits(trial, shapes):
            yield trial.dtypes[0], shapes, "dense"


def find_hint(run: Sequence[Case]) -> str:
    """Return the likely mistake if the failed cases have one in common, else an empty text.

    Parameters
    ----------
    run : sequence of Case
        All of an op.
    """
    taken = [case for case in run if not case.refused]
    failed = {case.layout for case in taken if case.problem}
    passed = {case.layout for case in taken if not case.problem}
    if not failed or not failed <= OFFSET | STRIDED:
        return ""
    if failed & STRIDED:
        names = _operands(taken[0])
        listed = ", ".join(f'"{name}"' for name in names) + ("," if len(names) == 1 else "")
        used = " and ".join(f"{name}_strides" for name in names)
        return f"only strided operands fail: add dense=({listed}) or use {used}"
    if "shifted" in failed & passed:
        return ""
    return (
        "only operands that begin after the start of their buffer fail: add params.NAME_offset "
        "to the index of operand NAME"
    )


def _operands(case: Case) -> list[str]:
    return [*inspect.signature(find(case.op).record).parameters][: len(case.shapes)]


def _fits(trial: Trial, shapes: Shapes) -> bool:
    """Return whether the result of a large case is small enough; checked without a device."""
    build = _make_build(trial, trial.dtypes[0], "dense", shapes)
    try:
        with Context(NumpyExecutor()) as context:
            return build(context).spec.nbytes <= LARGEST_NBYTES
    # The error is reported when the case runs.
    except Exception:
        return True


def _run(
    trial: Trial,
    executor: Executor,
    profile: str,
    dtype: DType,
    layout: str,
    shapes: Shapes,
) -> Case:
    def case(error: float = float("nan"), problem: str = "", *, refused: bool = False) -> Case:
        info, name = executor.info, trial.op.name
        return Case(name, info, profile, dtype.name, layout, shapes, error, problem, refused)

    build = _make_build(trial, dtype, layout, shapes)
    limit = max(trial.limit, ROUNDED.get(dtype, 0.0))
    try:
        got, want, strays = _compute(trial.op, executor, build, limit)
    except (DTypeError, ShapeError) as error:
        return case(problem=str(error), refused=str(error).startswith(trial.op.name))
    except BackendError as error:
        return case(problem=str(error))
    # Whatever the op's own function does.
    except Exception as error:
        return case(problem=f"the op fails, {_describe_error(error)}")
    problems = dict.fromkeys((*strays, *_describe_difference(got, want, limit)))
    compared = nmse(got, want) if has_reference(trial.op) else float("nan")
    return case(compared, "; ".join(problems))


def _make_build(trial: Trial, dtype: DType, layout: str, shapes: Shapes) -> Build:
    """Return a function that calls the op with a case's operands, whose values are drawn once."""
    rng = np.random.default_rng(len(layout) + sum(map(sum, shapes)))
    types = [operand_dtype(shape, dtype) for shape in trial.shapes]
    given = [(values(rng, t, shape), t) for t, shape in zip(types, shapes, strict=True)]

    def build(context: Context) -> Tensor:
        operands = [operand(context, layout, array, t) for array, t in given]
        return cast("Tensor", trial.op(*operands, **trial.options))

    return build


def _compute(
    op: Op[Any], executor: Executor, build: Build, limit: float
) -> tuple[Array, Array, tuple[str, ...]]:
    """Return the values of a device, those of the reference, and the faults in red zones."""
    reference = cache(lambda: _run_reference(build)) if has_reference(op) else None
    guarded = _run_in_red_zones(
        executor, build, reference, limit
    )  # first: a loop without end is found there
    got = values_of(executor, build)
    want = got if reference is None else reference()
    if guarded is None:
        return got, want, ()
    apart = _describe_difference(guarded.values, want, limit)
    if apart != _describe_difference(got, want, limit):
        apart = tuple(f"between red zones: {said}" for said in apart)
    return got, want, (*guarded.strays, *apart)


def _run_reference(build: Build) -> Array:
    try:
        return values_of(NumpyExecutor(), build)
    except BackendError:
        raise
    except Exception as error:
        raise BackendError(f"its reference fails, {_describe_error(error)}") from error


def _describe_error(error: Exception) -> str:
    """Describe an unexpected error, with the line that raised it."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({frame.filename}:{frame.lineno}: {frame.line})"


def _run_in_red_zones(
    executor: Executor, build: Build, want: Callable[[], Array] | None, limit: float
) -> RedZoneResult | None:
    def expected(values: Array) -> bool:
        return want is None or not _describe_difference(values, want(), limit)

    if not isinstance(executor, WgpuExecutor):
        return None
    with Context(executor) as context:
        return run_in_red_zones(executor, build(context), expected)


def has_reference(op: Op[Any]) -> bool:
    """Return whether an op has a NumPy reference."""
    try:
        get_reference(op.name)
    except BackendError:
        return False
    return True


def _describe_difference(got: Array, want: Array, limit: float) -> tuple[str, ...]:
    if got.dtype != want.dtype:
        return (f"{got.dtype}, NumPy has {want.dtype}",)
    found = nmse(got, want)
    if found <= limit:
        return ()
    return (f"NMSE {found:.3g}, at most {limit:.3g}: {_worst(got, want)}",)
