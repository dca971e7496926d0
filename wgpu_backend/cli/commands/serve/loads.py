"""The models that `serve` offers, and the devices and options that it loads them with."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wgpu_backend.cli.failures import UsageError, brief
from wgpu_backend.cli.loading import find_device, find_devices
from wgpu_backend.cli.names import BUNDLED, STORY, exists
from wgpu_backend.cli.options import ModelSettings
from wgpu_backend.cli.parameters import MAX_CONTEXT
from wgpu_backend.errors import BackendError, OutOfMemory, StoreError

if TYPE_CHECKING:
    from wgpu_backend.files.store.stored import Stored
    from wgpu_backend.graph.capabilities import DeviceInfo
    from wgpu_backend.server.cluster.opener import ClusterOpener, MakeSpec
    from wgpu_backend.server.core.model_pool import Measure
    from wgpu_backend.server.core.state import Settings as ServerSettings
    from wgpu_backend.server.worker.estimate import MemoryEstimate
    from wgpu_backend.server.worker.messages import GpuOptions, LoadSpec
    from wgpu_backend.server.worker.remote import Workers


def list_devices(settings: ModelSettings) -> list[DeviceInfo]:
    """Return the devices for models, best first: the named one, or all adapters."""
    if settings.devices or settings.placement is not None:
        return find_devices(settings)
    best = find_device(settings)
    if settings.device is not None or best.kind == "cpu":
        return [best]
    from wgpu_backend.device.adapters import Devices

    # NumPy is for machines without an adapter.
    return [best, *(info for info in Devices() if info.kind != "cpu" and info.id != best.id)]


# A step of a picture takes longer than one of text, and sends no sign of life.
_PICTURE_HANGS = 4
# The limit of --num-parallel.
_MAX_PARALLEL = 32
# Longer numbers exceed every limit, and int() raises for thousands of digits.
_DIGITS = 20


def make_load_settings(
    settings: ModelSettings,
    devices: Sequence[DeviceInfo],
    parallel: int | None,
    engine: Mapping[str, Any],
    cluster: str | None = None,
    stages: int | None = None,
) -> dict[str, Any]:
    """Return the server's settings for loading: functions that open and measure a model.

    Parameters
    ----------
    parallel : int or None
        Parallel answers; None for the environment's value.
    engine : mapping
        Arguments of engines.
    cluster : str or None
        Address of a Ray cluster, on whose nodes models are opened instead of here.
    stages : int or None
        See `ClusterOpener`.

    Raises
    ------
    UsageError
        A variable of the environment is not a valid number, or no cluster answers.
    """
    for check in (_default_context, _default_parallel):
        # Invalid variables raise now, though each load reads them again.
        check()
    from wgpu_backend.server.worker.health import Health
    from wgpu_backend.server.worker.remote import Workers

    max_queue = read_number("OLLAMA_MAX_QUEUE", 512)
    hang_seconds = read_number("WGPU_BACKEND_HANG_SECONDS", 300)
    known = {info.id: info for info in devices}

    def make_spec(stored: Stored, num_ctx: int | None, device: str) -> LoadSpec:
        spec = replace(make_load_spec(stored, num_ctx, device, settings, parallel), engine=engine)
        spec = place_spec(spec, devices, settings)
        if not spec.num_ctx:
            spec = replace(spec, num_ctx=_choose_context(spec, known[device]))
        return _limit_context(spec, num_ctx)

    if stages is not None and cluster is None:
        raise UsageError("--stages: is for the nodes of --cluster, give that too")
    if cluster is not None:
        first = devices[0].id
        opener = _open_cluster(
            cluster,
            lambda stored, n: make_spec(stored, n, first),
            max_queue,
            settings.device,
            stages,
        )
        return {"open_model": opener, "max_queue": max_queue}
    workers = Workers(Health([*known]), make_spec, max_queue, hang_seconds)
    return {
        "open_model": workers,
        "measure": _make_measure(workers, known),
        "max_queue": max_queue,
        "picture_hang_seconds": _PICTURE_HANGS * hang_seconds,
        "max_loaded": read_number("OLLAMA_MAX_LOADED_MODELS", 0) or 3,
    }


def _open_cluster(
    address: str, make_spec: MakeSpec, max_queue: int, device: str | None, stages: int | None
) -> ClusterOpener:
    """Connect to a Ray cluster."""
    from wgpu_backend import __version__
    from wgpu_backend.cli.commands.serve.cluster import RayNodes
    from wgpu_backend.server.cluster.opener import ClusterOpener

    hang_seconds = read_number("WGPU_BACKEND_HANG_SECONDS", 300)
    nodes = RayNodes(address, spare=stages in (None, 1))
    return ClusterOpener(
        nodes, make_spec, __version__, max_queue, hang_seconds, device, stages,
        reserve=nodes.reserve, release=nodes.release,
    )  # fmt: skip


def _choose_context(spec: LoadSpec, info: DeviceInfo) -> int | None:
    """Choose the context size if none is given; errors in the file are reported by loading."""
    from wgpu_backend.server.worker.estimate import choose_context

    try:
        return choose_context(spec, info)
    except (BackendError, OSError):
        return None


def _make_measure(workers: Workers, known: Mapping[str, DeviceInfo]) -> Measure:
    """Make the function that estimates the memory of a model, and the available memory."""
    from wgpu_backend.server.worker.estimate import (
        estimate_memory,
        estimate_placed,
        place_spec_model,
    )

    def measure(
        stored: Stored, num_ctx: int | None, gpu: GpuOptions | None = None
    ) -> MemoryEstimate:
        spec = workers.spec(stored, num_ctx, gpu)
        if spec.placement is not None:
            # Options that contradict the model raise here, before another model is unloaded. What
            # that one frees may be enough, so a lack of memory is no error yet.
            with suppress(OutOfMemory):
                place_spec_model(spec)
            return estimate_placed(spec, [*known.values()])
        return estimate_memory(spec, known[spec.device])

    return measure


def place_spec(spec: LoadSpec, devices: Sequence[DeviceInfo], settings: ModelSettings) -> LoadSpec:
    """Return load options with the placement of layers on several devices.

    Without options of the command, a model is placed on all GPUs if their free memory is known.
    """
    if settings.devices or settings.placement is not None:
        ids = tuple(info.id for info in devices)
        return replace(spec, devices=ids, placement=settings.placement)
    from wgpu_backend.engine.placing import choose_gpus
    from wgpu_backend.ml.placement import PlacementOptions

    gpus = choose_gpus(devices)
    if settings.device is not None or not gpus or gpus[0].free_memory is None:
        return spec

    return replace(spec, devices=tuple(info.id for info in gpus), placement=PlacementOptions())


def make_load_spec(
    stored: Stored, num_ctx: int | None, device: str, settings: ModelSettings, parallel: int | None
) -> LoadSpec:
    """Make a worker's load options; the context is the request's, the command's or the default."""
    from wgpu_backend.ops.plugins import imported_files
    from wgpu_backend.server.worker.messages import LoadSpec

    adapters = settings.adapters
    loras = [*((path, 1.0) for path in stored.adapters), *adapters.loras]
    return LoadSpec(
        str(stored.path),
        device,
        profile=settings.profile,
        num_ctx=num_ctx or settings.num_ctx or _default_context(),
        num_parallel=parallel or _default_parallel(),
        kv_dtype=settings.kv,
        exact=settings.exact,
        coarse=settings.coarse,
        adapters=tuple((str(path), scale) for path, scale in loras),
        control_vectors=tuple((str(path), scale) for path, scale in adapters.control_vectors),
        control_layers=adapters.control_layers,
        imports=tuple(map(str, imported_files())),
        mmproj=None if stored.projector is None else str(stored.projector),
        warmup=settings.warmup,
    )


def _limit_context(spec: LoadSpec, requested: int | None) -> LoadSpec:
    """Limit a default context to the model's table of position embeddings.

    The command's or the environment's default is for all models, so a model with fewer positions
    must not be refused.
    """
    if requested is not None or spec.num_ctx is None:
        return spec
    from wgpu_backend.files.huggingface.folder import open_model_file

    with suppress(BackendError, OSError), open_model_file(spec.path) as file:
        # Models with learned positions have a row for each.
        if (table := file.tensors.get("position_embd.weight")) is not None:
            return replace(spec, num_ctx=min(spec.num_ctx, table.shape[0]))
    # Loading reports errors of the file.
    return spec


def _default_context() -> int | None:
    return read_number("OLLAMA_CONTEXT_LENGTH", 0, MAX_CONTEXT) or None


def _default_parallel() -> int:
    return read_number("OLLAMA_NUM_PARALLEL", 0, _MAX_PARALLEL) or 4


def read_number(variable: str, default: int, most: int = 1 << 30) -> int:
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


def make_bundled_entry(name: str = STORY) -> Stored:
    """Return a bundled model as an entry of the store."""
    from wgpu_backend.files.store.files import sha256
    from wgpu_backend.files.store.manifest import CONFIG_TYPE, LAYER_TYPE, Layer, Manifest
    from wgpu_backend.files.store.names import ModelName
    from wgpu_backend.files.store.store import Entry
    from wgpu_backend.files.store.stored import Stored, file_details

    # The bundled file has no manifest in a store, and the APIs list a digest.
    path = BUNDLED[name]
    digest, facts = sha256(path), path.stat()
    layer = Layer(LAYER_TYPE + "model", f"sha256:{digest}", facts.st_size)
    manifest = Manifest(Layer(CONFIG_TYPE, f"sha256:{digest}", 0), (layer,))
    entry = Entry(ModelName.parse(name), manifest, digest, facts.st_mtime)
    return Stored(entry, path, details=file_details(path))


def find_pipelines(folders: Sequence[Path]) -> dict[str, Path]:
    """Return pipelines' folders by model name, including the bundled one.

    Raises
    ------
    UsageError
        A folder is not a pipeline, or two have the same name.
    """
    from wgpu_backend.images.bundled import PICTURES, bundled_pictures
    from wgpu_backend.images.folder import INDEX

    found = {PICTURES: bundled_pictures()}
    for folder in folders:
        if not exists(str(folder / INDEX)):
            raise UsageError(f"--pictures: {str(folder)[:200]!r}, needs a folder with {INDEX}")
        name = folder.absolute().name
        if name in found:
            raise UsageError(
                f"--pictures: {folder}: another folder has the name {name!r}; rename one"
            )
        found[name] = folder.absolute()
    return found


def require_known(name: str, serving: ServerSettings) -> None:
    """Raise if the server would not find a model.

    Raises
    ------
    UsageError
        Neither the store nor the package has the model.
    """
    from wgpu_backend.files.store.names import ModelName

    try:
        if name not in serving.fixed:
            serving.store.entry(ModelName.parse(name))
    except StoreError as error:
        raise UsageError(f"--model: {error}") from None
