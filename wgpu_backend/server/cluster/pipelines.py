"""Shares of a model's layers for the nodes of a pipeline, one range of layers a node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wgpu_backend.errors import OptionError, OutOfMemory
from wgpu_backend.graph.html_tables import binary_size
from wgpu_backend.ml.placement import HOST, RESERVE_NBYTES, ModelNbytes, Placement

_HALVINGS = 40


@dataclass(frozen=True, slots=True)
class StageBudget:
    """The device of a stage and the memory that it may use.

    Parameters
    ----------
    id : str
        Its id in the placement.
    free_nbytes : int or None
        Free bytes; None where the platform does not report them.
    is_host : bool
        It is the NumPy device, which has weights as f32.
    """

    id: str
    free_nbytes: int | None = None
    is_host: bool = False


def share_layers(
    model: ModelNbytes, stages: Sequence[StageBudget], reserve_nbytes: int = RESERVE_NBYTES
) -> Placement:
    """Share layers over stages, so that all have the same part of their memory in use.

    The first stage has the embedding table too, and the last the output head. If the memory of one
    is not known, all get the same number of bytes.

    Parameters
    ----------
    reserve_nbytes : int
        Bytes of each memory that stay free.

    Raises
    ------
    OptionError
        There are more stages than layers.
    OutOfMemory
        The layers do not fit; the message names the stage that lacks most.
    """
    count = len(model.layers)
    if len(stages) > count:
        raise OptionError(
            f"stages: {len(stages)}, the model has {count} layers; needs 1 to {count}"
        )
    known = all(each.free_nbytes is not None for each in stages)
    room = [
        max(1, (each.free_nbytes or 0) - reserve_nbytes - model.compute) if known else 1
        for each in stages
    ]
    # The least share of their memory for which the layers of all stages fit.
    low, high = 0.0, float(max(sum(_sizes(model, _device(each))) for each in stages) + 1)
    # A search by halves: the more memory each stage may use, the more layers fit.
    for _ in range(_HALVINGS + int(high).bit_length()):
        middle = (low + high) / 2
        if _fill(model, stages, [middle * each for each in room]) is None:
            low = middle
        else:
            high = middle
    counts = _fill(model, stages, [high * each for each in room])
    assert counts is not None
    layers = tuple(at for at, each in enumerate(counts) for _ in range(each))
    placement = Placement(tuple(each.id for each in stages), layers, 0, len(stages) - 1)
    if known and high > 1:
        used = _used(model, stages, counts)
        at = max(range(len(stages)), key=lambda i: used[i] / room[i])
        raise OutOfMemory(
            f"stages: {stages[at].id} needs {binary_size(used[at])} for {counts[at]} of {count} "
            f"layers, {binary_size(room[at])} of its memory can be used; add nodes, or make "
            "num_ctx smaller"
        )
    return placement


def _device(stage: StageBudget) -> str:
    return HOST if stage.is_host else ""


def _sizes(model: ModelNbytes, device: str) -> list[int]:
    """Return the bytes of embedding table, each layer and output head on a device, in order."""
    ends = model.embedding.size_on(device), model.output.size_on(device) + model.logits
    return [ends[0], *(layer.size_on(device) for layer in model.layers), ends[1]]


def _fill(
    model: ModelNbytes, stages: Sequence[StageBudget], room: Sequence[float]
) -> list[int] | None:
    """Return how many layers each stage has if each takes as many as fit; None if some are left."""
    counts: list[int] = []
    first, last = 1, len(model.layers) + 1
    for at, stage in enumerate(stages):
        sizes = _sizes(model, _device(stage))
        left = len(stages) - 1 - at
        # The table lies with the first layers and the head with the last ones.
        used = (sizes[0] if at == 0 else 0) + (sizes[-1] if left == 0 else 0)
        end = first
        # Each stage after this one needs a layer, too.
        while end < last - left and used + sizes[end] <= room[at]:
            used += sizes[end]
            end += 1
        if end == first:
            return None
        counts.append(end - first)
        first = end
    return counts if first == last else None


def _used(model: ModelNbytes, stages: Sequence[StageBudget], counts: Sequence[int]) -> list[int]:
    found: list[int] = []
    first = 1
    for at, (stage, count) in enumerate(zip(stages, counts, strict=True)):
        sizes = _sizes(model, _device(stage))
        ends = (sizes[0] if at == 0 else 0) + (sizes[-1] if at == len(stages) - 1 else 0)
        found.append(ends + sum(sizes[first : first + count]))
        first += count
    return found
