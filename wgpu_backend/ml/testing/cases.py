"""Descriptions of the cases in which `wgpu_backend.testing` tries an op."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wgpu_backend.dtypes import DType
from wgpu_backend.errors import BackendError
from wgpu_backend.ml.testing.operands import FLOATS
from wgpu_backend.ops.op import REGISTRY, Op
from wgpu_backend.ops.reference import REFERENCES


@dataclass(frozen=True, slots=True)
class Trial:
    """The operand shapes, types and options to try an op with.

    Parameters
    ----------
    shapes : tuple of str
        Shape of each operand, its extents named or given: ``"rows cols"``, ``"n 64"``. A name
        stands for many extents, 0 among them, the same in every operand. ``"n:i32"`` is an operand
        of that type, which holds 0, 1 and 2, ``"rows cols:q4_k"`` one in blocks, whose rows are
        whole; the others take each of `dtypes`.
    options : mapping
        Keyword arguments of the op.
    dtypes : sequence of DType
        A type that the op refuses with a DTypeError counts as refused, not as failed.
    broadcast : bool
        Operands are also tried with extents of 1 and without their leading axes.
    nonfinite : bool
        Operands are also tried with NaN and infinities among their values. Say no where WGSL
        leaves open what comes of them, as of the maximum of a number and NaN.
    limit : float
        Largest `nmse` allowed, in addition to the error of rounding the result to its type.
    """

    op: Op[Any]
    shapes: tuple[str, ...]
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    dtypes: Sequence[DType] = FLOATS
    broadcast: bool = False
    nonfinite: bool = True
    limit: float = 1e-7


_TRIALS: dict[str, list[Trial]] = {}


def trial(op: Op[Any], *shapes: str, **how: Any) -> Trial:  # noqa: ANN401
    """Register how `check_op` and ``wgpu-backend op check`` try an op; see `Trial`.

    Raises
    ------
    BackendError
        The op does not take the options, or needs others.
    """
    made = Trial(op, shapes, **how)
    _check_options(made)
    _TRIALS.setdefault(op.name, []).append(made)
    return made


def _check_options(trial: Trial) -> None:
    parameters = [*inspect.signature(trial.op.record).parameters.values()][len(trial.shapes) :]
    known, given = {p.name for p in parameters}, set(trial.options)
    needed = {p.name for p in parameters if p.default is p.empty}
    if not needed <= given <= known:
        raise BackendError(
            f"trial of {trial.op.name}: options are {sorted(given)}, the op takes {sorted(known)} "
            f"and needs {sorted(needed)}"
        )


def get_trials(op: Op[Any]) -> list[Trial]:
    """Return the trials of an op; by default one with matrices, if the op needs no options.

    Raises
    ------
    BackendError
        The op needs options, which only its author can choose.
    """
    if op.name in _TRIALS:
        return _TRIALS[op.name]
    parameters = inspect.signature(op.record).parameters.values()
    needed = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
    if needed:
        raise BackendError(
            f"op {op.name}: it needs {', '.join(needed)}, so register a trial: "
            f'wgpu_backend.testing.trial({op.name}, "rows cols", '
            f'options={{"{needed[0]}": …}})'
        )
    operands = [p for p in parameters if p.kind is not p.KEYWORD_ONLY and p.default is p.empty]
    return [Trial(op, ("rows cols",) * len(operands))]


def forget(op: Op[Any]) -> None:
    """Remove an op, its reference and its trials, so that its file can be imported again."""
    REGISTRY.pop(op.name, None)
    REFERENCES.pop(op.name, None)
    _TRIALS.pop(op.name, None)
