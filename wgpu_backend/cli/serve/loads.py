"""The devices and load options of the workers of `serve`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from wgpu_backend.cli.failures import UsageError, brief
from wgpu_backend.cli.loading import find_device
from wgpu_backend.cli.options import Settings
from wgpu_backend.cli.parameters import MAX_CONTEXT
from wgpu_backend.errors import BackendError

if TYPE_CHECKING:
    from wgpu_backend.files.store.stored import Stored
    from wgpu_backend.graph.capabilities import DeviceInfo
    from wgpu_backend.server.core.model_pool import Measure
    from wgpu_backend.server.worker.estimate import MemoryEstimate
    from wgpu_backend.server.worker.messages import LoadSpec
    from wgpu_backend.server.worker.opening import Workers


def devices_of(settings: Settings) -> list[DeviceInfo]:
    """Return the devices for models, best first: the named one, or all adapters."""
    best = find_device(settings)
    if settings.device is not None or best.kind == "cpu":
        return [best]
    from wgpu_backend.device.adapters import Devices

    return [best, *(info for info in Devices() if info.kind != "cpu" and info.id != best.id)]


# A step of a picture takes longer than one of text, and sends no sign of life.
_PICTURE_HANGS = 4
_MAX_PARALLEL = 32  # as --num-parallel
_DIGITS = 20  # longer numbers exceed every limit


def loads(
    settings: Settings,
    devices: Sequence[DeviceInfo],
    parallel: int | None,
    engine: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the server's settings for loading: functions that open and measure a model.

    Parameters
    ----------
    parallel : int or None
        Parallel answers; None for the environment's value.
    engine : mapping
        Arguments of engines.

    Raises
    ------
    UsageError
        A variable of the environment is not a valid number.
    """
    for check in (_context, _parallel):  # early, though each load reads them again
        check()
    from wgpu_backend.server.worker.health import Health
    from wgpu_backend.server.worker.opening import Workers

    max_queue = whole("OLLAMA_MAX_QUEUE", 512)
    hang_seconds = whole("WGPU_BACKEND_HANG_SECONDS", 300)
    known = {info.id: info for info in devices}

    def spec_of(stored: Stored, num_ctx: int | None, device: str) -> LoadSpec:
        made = replace(spec(stored, num_ctx, device, settings, parallel), engine=engine)
        if not made.num_ctx:
            made = replace(made, num_ctx=_own_context(made, known[device]))
        return _known(made, num_ctx)

    workers = Workers(Health([*known]), spec_of, max_queue, hang_seconds)
    return {
        "open_model": workers,
        "measure": _measure(workers, known),
        "max_queue": max_queue,
        "picture_hang_seconds": _PICTURE_HANGS * hang_seconds,
        "max_loaded": whole("OLLAMA_MAX_LOADED_MODELS", 0) or 3,
    }


def _own_context(spec: LoadSpec, info: DeviceInfo) -> int | None:
    """Choose the context size if none is given; errors in the file are reported by loading."""
    from wgpu_backend.server.worker.estimate import choose_context

    try:
        return choose_context(spec, info)
    except (BackendError, OSError):
        return None


def _measure(workers: Workers, known: Mapping[str, DeviceInfo]) -> Measure:
    """Make the function that estimates the memory of a model, and the available memory."""
    from wgpu_backend.server.worker.estimate import estimate_memory

    def measure(stored: Stored, num_ctx: int | None) -> MemoryEstimate:
        spec = workers.spec(stored, num_ctx)
        return estimate_memory(spec, known[spec.device])

    return measure


def spec(
    stored: Stored, num_ctx: int | None, device: str, settings: Settings, parallel: int | None
) -> LoadSpec:
    """Make a worker's load options; the context is the request's, the command's or the default."""
    from wgpu_backend.ops.plugins import imported_files
    from wgpu_backend.server.worker.messages import LoadSpec

    changes = settings.changes
    adapters = [*((path, 1.0) for path in stored.adapters), *changes.adapters]
    return LoadSpec(
        str(stored.path),
        device,
        profile=settings.profile,
        num_ctx=num_ctx or settings.num_ctx or _context(),
        num_parallel=parallel or _parallel(),
        kv_dtype=settings.kv,
        exact=settings.exact,
        coarse=settings.coarse,
        adapters=tuple((str(path), scale) for path, scale in adapters),
        control_vectors=tuple((str(path), scale) for path, scale in changes.control_vectors),
        control_layers=changes.control_layers,
        imports=tuple(map(str, imported_files())),
    )


def _known(made: LoadSpec, asked: int | None) -> LoadSpec:
    """Limit a default context to the model's table of position embeddings.

    The command's or the environment's default is for all models, so a model with fewer positions
    must not be refused.
    """
    if asked is not None or made.num_ctx is None:
        return made
    from wgpu_backend.files.huggingface.folder import open_model_file

    with suppress(BackendError, OSError), open_model_file(made.path) as file:
        if (table := file.tensors.get("position_embd.weight")) is not None:
            return replace(made, num_ctx=min(made.num_ctx, table.shape[0]))
    return made  # loading reports errors of the file


def _context() -> int | None:
    return whole("OLLAMA_CONTEXT_LENGTH", 0, MAX_CONTEXT) or None


def _parallel() -> int:
    return whole("OLLAMA_NUM_PARALLEL", 0, _MAX_PARALLEL) or 4


def whole(variable: str, default: int, most: int = 1 << 30) -> int:
    """Read a whole number from the environment.

    Raises
    ------
    UsageError
        It is not a whole number, or above `most`.
    """
    text = os.environ.get(variable, "").strip() or str(default)
    if not text.isdecimal() or len(text) > _DIGITS or int(text) > most:
        raise UsageError(f"{variable}: {brief(text)}, needs a whole number from 0 to {most}")
    return int(text)
