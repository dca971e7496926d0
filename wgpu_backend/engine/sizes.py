"""The memory of a model by layer, from its header: no weight is read and no device opened.

The model is made over an executor without memory, so that caches and graphs are those of loading.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from wgpu_backend.dtypes import F16, F32, DType
from wgpu_backend.engine.language_model import (
    LONG_SEQUENCES,
    choose_context,
    count_positions,
)
from wgpu_backend.engine.runner import HIDDEN, SHORTEST, Head, Runner, bucket
from wgpu_backend.engine.towers import find_cols
from wgpu_backend.errors import BackendError
from wgpu_backend.files.gguf.reader import GGUFFile, TensorInfo
from wgpu_backend.files.tower_files import open_tower
from wgpu_backend.graph.capabilities import Capabilities, DeviceInfo
from wgpu_backend.graph.fusion import Rule
from wgpu_backend.graph.node import Node, Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.placement import TABLE, LayerNbytes, ModelNbytes
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor, DryRunGraph
from wgpu_backend.ml.wgpu.staging import SLOTS
from wgpu_backend.nn.batch import BatchShape
from wgpu_backend.nn.model import Model, model_class
from wgpu_backend.nn.tower import known_kinds, tower_class
from wgpu_backend.ops.op import fusions

# A model is measured as for a GPU without limits.
_CAPABILITIES = Capabilities(
    fused=True, max_binding_nbytes=1 << 40, max_buffer_nbytes=1 << 40, max_groups=1 << 30
)
_LAYER = re.compile(r"(?:dec\.)?blk\.(\d+)\.")
_CACHE = re.compile(r"cache\.(\d+)\.")
# Weights used before the first layer: tables, what is done with their rows, and whole encoders.
_FIRST = ("token_embd", "position_embd", "token_types", "per_layer_", "altup_proj", "enc.")


def _rules() -> Mapping[str, Sequence[Rule]]:
    return fusions(exact=False, coarse=False)


@dataclass(frozen=True, slots=True)
class _Imaginary:
    """A GPU that graphs are recorded for."""

    info: DeviceInfo = field(default_factory=lambda: DeviceInfo("none", "none", kind="discrete"))
    capabilities: Capabilities = _CAPABILITIES
    rules: Mapping[str, Sequence[Rule]] = field(default_factory=_rules)

    def reserve_weight(self, spec: Spec, label: str) -> Storage:
        """Return storage without memory."""
        return Storage(spec.nbytes, "weight", label)


class _Measuring(DryRunExecutor):
    """An executor that adds up the bytes of states by label, on a GPU and with NumPy."""

    def __init__(self) -> None:
        super().__init__(_Imaginary(), lambda _: None)
        self.states: dict[str, tuple[int, int]] = {}

    def state(self, spec: Spec, label: str, *, zeroed: bool = True) -> Storage:
        """Count a state."""
        on_gpu, on_host = self.states.get(label, (0, 0))
        wide = F32 if spec.dtype.quantised else spec.dtype
        self.states[label] = on_gpu + spec.nbytes, on_host + wide.nbytes(spec.size)
        return super().state(spec, label, zeroed=zeroed)

    def record(
        self,
        outputs: Sequence[Node],
        *,
        shared: bool = True,
        times: int = 1,
        read: bool = True,
        unread: Sequence[Node] = (),
    ) -> DryRunGraph:
        """Plan the memory of a graph."""
        return self.plan(outputs, times, unread)


# A picture and a sound that towers are measured for: others take more or less.
PICTURE = (1024, 1024, 3)
SAMPLES = 30 * 16_000


@dataclass(frozen=True, slots=True)
class TowerSizes:
    """The memory of a model's towers.

    Parameters
    ----------
    weights : int
        Bytes of weights.
    host_weights : int
        The same on the NumPy device, in f32.
    graph : int
        Bytes of intermediates and inputs for a picture of `PICTURE` pixels or a sound of `SAMPLES`.
    """

    weights: int = 0
    host_weights: int = 0
    graph: int = 0


def measure_towers(file: GGUFFile, mmproj: Path | None = None) -> TowerSizes:
    """Measure the towers of a language model without loading them.

    Parameters
    ----------
    file : GGUFFile
        The language model's.
    mmproj : Path or None
        See `open_tower`.

    Returns
    -------
    TowerSizes
        Zeros if there are none, or if they cannot be read: the first picture reports that.
    """
    try:
        opened = open_tower(file, mmproj)
        if opened is None:
            return TowerSizes()
        with opened:
            return _measure_towers(opened)
    except (BackendError, OSError):
        return TowerSizes()


def _measure_towers(file: GGUFFile) -> TowerSizes:
    executor = _Measuring()
    backend = Backend(file, executor)
    backend.load()
    graph = 0
    for modality, kind in known_kinds(file.config).items():
        tower = tower_class(file.config, modality, kind)(backend)
        given = np.zeros(PICTURE, np.uint8) if modality == "image" else np.zeros(SAMPLES, "f4")
        media = tower.prepare(given)
        with Context(executor) as context:
            inputs = {n: context.input(n, a.shape, a.dtype) for n, a in media.arrays.items()}
            plan = executor.plan([tower.encode(context, inputs)]).plan
        graph = max(graph, plan.peak_nbytes + sum(a.nbytes for a in media.arrays.values()))
    found = _layer_nbytes(file.tensors.values())
    return TowerSizes(found.weights, found.host_weights or 0, graph)


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """The memory of a model for a context.

    Parameters
    ----------
    num_ctx : int
        Positions of the context.
    """

    nbytes: ModelNbytes
    num_ctx: int

    @property
    def is_tied(self) -> bool:
        """Return whether the embedding table is the output head, too."""
        return self.nbytes.tied.weights > 0


def measure_model(
    file: GGUFFile,
    num_ctx: int | None = None,
    num_parallel: int = 1,
    kv_dtype: DType = F16,
    mmproj: Path | None = None,
) -> ModelSizes:
    """Measure a model and its towers without loading it.

    Parameters
    ----------
    num_ctx, num_parallel, kv_dtype, mmproj
        As for `wgpu_backend.load`.

    Raises
    ------
    ModelError
        The architecture is unknown, or a weight or a key is missing.
    ContextFull
        The model does not have so many positions.
    DTypeError, ShapeError
        Keys or values cannot have that type.
    """
    executor = _Measuring()
    kind = model_class(file.config)
    backend = Backend(file, executor)
    backend.load(fused_weights=kind.fused_weights)
    model = kind(backend)
    positions = choose_context(model, num_ctx)
    model.fit_context(positions)
    sequences = max(LONG_SEQUENCES, num_parallel)
    total = count_positions(positions, num_parallel)
    cache = model.make_cache(executor, sequences, total, kv_dtype)
    layers = len(model.cache_layers())
    states = [*executor.states.items()]
    runner = Runner(model, cache)
    compute, head = _measure_graphs(model, runner, positions, num_parallel)
    runner.close()
    cache.close()
    used = [info for info in file.tensors.values() if info.nbytes]
    by_layer = [[i for i in used if _layer(i.name) == n] for n in range(layers)]
    first = [info for info in used if info.name.startswith(_FIRST)]
    named = {id(info) for group in (*by_layer, first) for info in group}
    last = [info for info in used if id(info) not in named]
    tied = [i for i in first if i.name == TABLE and "output.weight" not in file.tensors]
    tied = tied if model.has_logits else []
    share = _read_share(file)
    takes = model.shared_cols or find_cols(model)
    towers = measure_towers(file, mmproj) if takes else TowerSizes()
    found = ModelNbytes(
        tuple(
            _layer_nbytes(infos, share, [nbytes for name, nbytes in states if _cached(name) == n])
            for n, infos in enumerate(by_layer)
        ),
        _layer_nbytes(first),
        _add_towers(_layer_nbytes([*last, *tied]), towers),
        _layer_nbytes(tied),
        compute,
        # Towers are on the head's device. Their intermediates stay while other graphs run.
        head + towers.graph,
        max((SLOTS * _staged_nbytes(infos) for infos in by_layer), default=0),
    )
    return ModelSizes(found, positions)


def _add_towers(output: LayerNbytes, towers: TowerSizes) -> LayerNbytes:
    """Add the weights of towers to those of the output head; a step of a token reads none."""
    return replace(
        output,
        weights=output.weights + towers.weights,
        read=output.weights if output.read is None else output.read,
        host_weights=(output.host_weights or 0) + towers.host_weights,
    )


def _staged_nbytes(infos: Sequence[TensorInfo]) -> int:
    """Return the most bytes of a layer's weights that a product of many rows takes at once."""
    # Gate and up lie side by side. Experts are read where they are.
    return 2 * max((info.nbytes for info in infos if "_exps." not in info.name), default=0)


def _measure_graphs(model: Model, runner: Runner, positions: int, outputs: int) -> tuple[int, int]:
    """Return the bytes of intermediates of a prompt's pass, and what its logits add."""
    tokens = bucket(min(runner.chunk, positions))
    outputs = bucket(outputs) if model.causal else tokens
    reach = runner.cache.reach(bucket(positions, SHORTEST), tokens)
    shape = BatchShape(tokens, min(outputs, tokens), 1, reach)
    compute = runner.recorded(shape, HIDDEN).plan.peak_nbytes
    if not model.has_logits:
        return compute, 0
    head = Head("logits", lambda _, hidden: [model.logits(hidden)])
    return compute, max(0, runner.recorded(shape, head).plan.peak_nbytes - compute)


def _layer(name: str) -> int | None:
    found = _LAYER.match(name)
    return int(found[1]) if found else None


def _cached(label: str) -> int | None:
    found = _CACHE.match(label)
    return int(found[1]) if found else None


def _read_share(file: GGUFFile) -> float:
    """Return the share of its experts that a token uses."""
    experts = file.config.uint("expert_count", 0)
    return file.config.uint("expert_used_count", experts) / experts if experts else 1.0


def _layer_nbytes(
    infos: Iterable[TensorInfo], share: float = 1.0, states: Iterable[tuple[int, int]] = ()
) -> LayerNbytes:
    weights = read = on_host = 0
    for info in infos:
        weights += info.nbytes
        read += int(info.nbytes * (share if "_exps." in info.name else 1.0))
        on_host += F32.nbytes(math.prod(info.shape))
    cache = [*states]
    return LayerNbytes(
        weights,
        sum(nbytes for nbytes, _ in cache),
        read if read < weights else None,
        on_host,
        sum(nbytes for _, nbytes in cache),
    )
