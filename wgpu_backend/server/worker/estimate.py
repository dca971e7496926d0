"""An estimate of a model's memory, made before it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wgpu_backend.device.gpu_memory import current_memory
from wgpu_backend.dtypes import named
from wgpu_backend.engine.language_model import DEFAULT_CONTEXT
from wgpu_backend.engine.placing import DeviceChoice, place_model
from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.files.huggingface.folder import open_model_file
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.server.worker.messages import NGRAM, LoadSpec

# The largest default context, in positions.
MOST_CONTEXT = 1 << 18
# Bytes of a layer's keys and values that fit into one binding on every device of this kind.
_MOST_LAYER = {"discrete": 1 << 30, "integrated": 256 << 20, "cpu": 1 << 40}
_SURE_LAYER = 128 << 20
# Memory of the interpreter, kernels and intermediates.
_WORKING_NBYTES = 192 << 20


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The memory that a model needs, and that its device has, in bytes.

    Parameters
    ----------
    free : int or None
        Free bytes of its device; None if the platform does not report them.
    total : int or None
        Bytes of the device.
    """

    needed: int
    free: int | None = None
    total: int | None = None


def estimate_memory(spec: LoadSpec, info: DeviceInfo) -> MemoryEstimate:
    """Estimate the memory that a model needs on a device, and that the device has.

    Raises
    ------
    GGUFError
        The file is damaged.
    """
    total, free = current_memory(info)
    return MemoryEstimate(estimate_nbytes(spec), free, total)


def estimate_placed(spec: LoadSpec, infos: Sequence[DeviceInfo]) -> MemoryEstimate:
    """Estimate the memory of a model whose layers are placed, and what is free on its GPUs.

    Free memory counts if as many layers as fit are to be on GPUs, and all of them report it: other
    models are then unloaded before layers go to the host's memory.

    Raises
    ------
    GGUFError
        The file is damaged.
    """
    needed, options = estimate_nbytes(spec), spec.placement
    mine = [info for info in infos if info.id in (spec.devices or (spec.device,))]
    free = [current_memory(info)[1] for info in mine if info.kind not in ("software", "cpu")]
    if options is None or options.gpu_layers != "auto" or not free:
        return MemoryEstimate(needed)
    known = [max(0, each - options.reserve_nbytes) for each in free if each is not None]
    return MemoryEstimate(needed, sum(known) if len(known) == len(free) else None)


def place_spec_model(spec: LoadSpec) -> None:
    """Plan the devices of a model's layers as loading does.

    Raises
    ------
    OptionError, DeviceError, OutOfMemory
        See `engine.placing.place_model`.
    """
    where = spec.arguments
    wanted = DeviceChoice.check(where["device"], where["devices"], spec.placement)
    place_model(
        spec.path,
        wanted,
        spec.num_ctx,
        spec.num_parallel,
        named(spec.kv_dtype),
        profile="baseline" if spec.profile == "baseline" else "full",
        mmproj=None if spec.mmproj is None else Path(spec.mmproj),
    )


def choose_context(spec: LoadSpec, info: DeviceInfo) -> int | None:
    """Return the default context length: the model's own, as far as memory allows.

    The cache takes at most half of the memory that the weights leave, and a plan's reserve. It
    should be large: coding agents send thousands of tokens before their first request.

    Parameters
    ----------
    info : DeviceInfo
        Device that the model is loaded on.

    Returns
    -------
    int or None
        None for the default of loading.
    """
    room = estimate_memory(spec, info)
    memory = room.total if room.free is None else room.free
    with open_model_file(spec.path) as file:
        own = min(file.config.uint("context_length", 0), MOST_CONTEXT)
        each = _estimate_cache(file.config, replace(spec, num_ctx=1))
        layers = max(1, file.config.uint("block_count", 1))
        weights = room.needed - _estimate_cache(file.config, spec)
    if memory is None or own <= DEFAULT_CONTEXT or not each:
        return None
    most = _SURE_LAYER
    if spec.profile == "full":
        most = _MOST_LAYER.get(info.kind, most)
    # A longer one would have the plan put layers into the host's memory.
    reserve = spec.placement.reserve_nbytes if spec.placement is not None else 0
    fitting = min((memory - weights - reserve) // 2 // each, most * layers // each)
    if fitting >= own:
        return own
    size = 1 << max(0, fitting).bit_length() >> 1
    return size if size > DEFAULT_CONTEXT else None


def estimate_nbytes(spec: LoadSpec) -> int:
    """Estimate the bytes of weights, caches and working memory of a worker."""
    draft = spec.engine.get("draft")
    paths = [spec.path] if draft in (None, NGRAM) else [spec.path, draft]
    whole = sum(_estimate_file(path, spec) for path in paths)
    return whole + _estimate_tower(spec.mmproj) + _WORKING_NBYTES


def _estimate_tower(path: str | None) -> int:
    """Return the bytes of the weights of a tower with a file of its own."""
    if path is None or Path(path).is_dir():
        return 0
    with open_gguf(Path(path)) as file:
        return sum(info.nbytes for info in file.tensors.values())


def _estimate_file(path: str, spec: LoadSpec) -> int:
    """Return the bytes of the weights and the cache of a file."""
    with open_model_file(path) as file:
        weights = sum(info.nbytes for info in file.tensors.values())
        return weights + _estimate_cache(file.config, spec)


def _estimate_cache(config: Config, spec: LoadSpec) -> int:
    """Return the bytes of keys and values: an upper bound, as if no layer had a window."""
    own = min(config.uint("context_length", DEFAULT_CONTEXT), DEFAULT_CONTEXT)
    positions = (spec.num_ctx or own) * spec.num_parallel
    try:
        values = _values_per_position(config)
    except ModelError:
        # Loading reports the error in the file's keys.
        return 0
    dtype = named(spec.kv_dtype)
    return positions * values * dtype.block_nbytes // dtype.block


def _values_per_position(config: Config) -> int:
    layers = config.uint("block_count")
    # Multi-head latent attention: all heads share one latent per position.
    if "attention.kv_lora_rank" in config:
        rotated = config.uint("rope.dimension_count", 0)
        return layers * (config.uint("attention.kv_lora_rank") + rotated)
    heads = config.uint_per_layer("attention.head_count", layers, 0)
    own = config.uint("embedding_length") // max(heads, default=1) if any(heads) else 0
    key = config.uint("attention.key_length", own)
    value = config.uint("attention.value_length", own)
    if "attention.head_count_kv" in config:
        # Grouped-query attention: fewer KV heads than query heads.
        heads = config.uint_per_layer("attention.head_count_kv", layers)
    return sum(heads) * (key + value)
