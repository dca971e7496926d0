"""Weights that are adjacent in memory, so that one product can take them together."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from wgpu_backend.files.gguf.reader import TensorInfo
from wgpu_backend.graph.spec import Spec

# Names, without block and suffix, of weights to lay side by side.
FusedWeights = Sequence[Sequence[str]]
# Weights lie side by side in whole groups of rows, as kernels take them and planes are laid out.
STACK_ROWS = 8


def fused_groups(
    tensors: Mapping[str, TensorInfo], fused_weights: FusedWeights, limit: int
) -> Iterator[list[TensorInfo]]:
    """Yield the file's tensors in order, with those of a stack in one list if they fit together.

    Tensors without elements are left out: no buffer may have 0 bytes.

    Parameters
    ----------
    fused_weights : sequence of sequence of str
        See `Backend.load`.
    limit : int
        Bytes that a stack may have at most: what one binding of the device shows.
    """
    seen: set[str] = set()
    for name in tensors:
        run: list[TensorInfo] = []
        for info in (
            tensors[n] for n in _fused_with(name, fused_weights) if n in tensors and n not in seen
        ):
            if not info.nbytes:
                continue
            if run and not _fits(run, info, limit):
                yield run
                run = []
            seen.add(info.name)
            run.append(info)
        if run:
            yield run


def fused_spec(infos: Sequence[TensorInfo]) -> Spec:
    """Return the spec of weights stacked along their first axis; one without axes stays alone."""
    first = infos[0]
    if not first.shape:
        return Spec.dense((), first.dtype)
    return Spec.dense((sum(info.shape[0] for info in infos), *first.shape[1:]), first.dtype)


def _fused_with(name: str, fused_weights: FusedWeights) -> Sequence[str]:
    """Return the names of the weights stacked with a weight, its own included."""
    stem, _, suffix = name.rpartition(".")
    block, _, own = stem.rpartition(".")
    for stack in fused_weights:
        if own in stack:
            return [f"{block}.{member}.{suffix}" for member in stack]
    return (name,)


def _fits(run: Sequence[TensorInfo], after: TensorInfo, limit: int) -> bool:
    first = run[0]
    alike = after.dtype == first.dtype and after.shape[1:] == first.shape[1:]
    # The rows of experts lie below each other. What comes last may have any number.
    rows = (math.prod(info.shape[:-1] or info.shape) for info in run)
    whole = all(count % STACK_ROWS == 0 for count in rows)
    # A stack in several bindings could not be read by the kernels that stacks are made for.
    return alike and whole and sum(i.nbytes for i in [*run, after]) <= limit
