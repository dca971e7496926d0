"""LoRA adapters and control vectors: changes to a model without loading it again.

A LoRA's keys and names are those that llama.cpp's `convert_lora_to_gguf` writes: for each changed
weight NAME, NAME.lora_a maps activations to the rank and NAME.lora_b maps the rank to results.
For embeddings, NAME.lora_a has a row for each token.

Control vectors are directions that are added to the hidden states after layers: Zou et al. 2023,
"Representation Engineering", §3.2. The keys and names in their GGUF files are those of llama.cpp's
`cvector-generator`: ``direction.N`` is added after layer N, counted from 0; layer 0 has none.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.device.interrupts import deliver, uninterrupted
from wgpu_backend.dtypes import BF16, F16, F32
from wgpu_backend.errors import GGUFError, ModelError, OptionError, describe
from wgpu_backend.files.gguf.reader import GGUFFile, TensorInfo, open_gguf
from wgpu_backend.graph.node import Storage
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ml.backend import Weight
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.nn.low_rank import LowRank
from wgpu_backend.nn.model import Model, model_class
from wgpu_backend.nn.module import modules

Directions = dict[int, NDArray[np.float32]]


def read_directions(
    given: Sequence[tuple[Path, float]], layers: tuple[int, int] | None, base: GGUFFile
) -> Directions:
    """Sum control vectors, each times its scale, by layer.

    Parameters
    ----------
    given : sequence of (Path, float)
        Files and scales.
    layers : pair of int or None
        First and last layer to steer; None for all in the files.
    base : GGUFFile
        The model's file.

    Raises
    ------
    GGUFError, ModelError
        A file is damaged, or is not a control vector for this model.
    OptionError
        The model does not have these layers.
    """
    count = base.config.uint("block_count", at_least=1)
    first, last = _range(layers, count)
    total: Directions = {}
    for path, scale in given:
        with open_gguf(path) as file:
            for layer, values in _read(file, base, count).items():
                if first <= layer <= last and scale:
                    total[layer] = total.get(layer, np.float32(0)) + np.float32(scale) * values
    return total


def _range(layers: tuple[int, int] | None, count: int) -> tuple[int, int]:
    # As in llama.cpp, the range may end at the number of layers, one past the last direction.
    first, last = layers or (1, count)
    if not 1 <= first <= last <= count:
        raise OptionError(
            f"control vectors: layers {first} to {last}, the model has {count}; needs a first one "
            f"of at least 1, and a last one from there to {count}"
        )
    return first, last


def _read(file: GGUFFile, base: GGUFFile, count: int) -> Directions:
    """Read and check the directions of one file."""
    if not file.tensors:
        raise ModelError(f"{file.path}: it has 0 tensors, a control vector has direction.1, …")
    width = base.config.uint("embedding_length", at_least=1)
    found: Directions = {}
    for name, info in file.tensors.items():
        kind, _, number = name.partition(".")
        if kind != "direction" or not (number.isascii() and number.isdecimal()):
            raise ModelError(
                f"{file.path}: tensor {name}: unexpected, a control vector has only direction.1, …"
            )
        layer = int(number)
        if not 0 < layer < count:
            raise ModelError(
                f"{file.path}: tensor {name}: the model {base.path} has {count} layers, needs a "
                f"number from 1 to {count - 1}"
            )
        if info.shape != (width,) or info.dtype != F32:
            raise ModelError(
                f"{file.path}: tensor {name} is {info.dtype} {info.shape}, the model {base.path} "
                f"needs f32 {(width,)}"
            )
        values = np.frombuffer(file.data(name), np.float32)
        if not np.isfinite(values).all():
            raise ModelError(f"{file.path}: tensor {name} has values that are NaN or infinite")
        found[layer] = found.get(layer, np.float32(0)) + values
    return found


Scaled = tuple[Path, float]
Given = str | PathLike[str] | tuple[str | PathLike[str], float]


def scaled_files(name: str, given: object) -> list[Scaled]:
    """Return files with scales from an argument of paths or (path, scale) pairs.

    Raises
    ------
    OptionError
        The argument is of another type, or a scale is not finite.
    """
    if isinstance(given, str | PathLike):
        return [(Path(cast("str", given)), 1.0)]
    if isinstance(given, bytes | Mapping) or not isinstance(given, Iterable):
        raise OptionError(f"{name}: {describe(cast('object', given))}, needs a list of files")
    return [
        _parse_scaled(f"{name}[{i}]", one) for i, one in enumerate(cast("Iterable[object]", given))
    ]


def _parse_scaled(name: str, given: object) -> Scaled:
    pair = cast("tuple[object, ...]", given) if isinstance(given, tuple) else (given, 1.0)
    if len(pair) != 2 or not isinstance(pair[0], str | PathLike):
        what = describe(cast("object", given))
        raise OptionError(f"{name}: {what}, needs a path, or a path and a scale")
    path, scale = cast("tuple[str, object]", pair)
    is_number = isinstance(scale, int | float) and not isinstance(scale, bool)
    if not is_number or not math.isfinite(cast("float", scale)):
        raise OptionError(f"{name}: scale {describe(scale)}, needs a finite number")
    return Path(path), float(cast("float", scale))


def require_fitting(
    base: GGUFFile,
    loras: Sequence[Scaled],
    control_vectors: Sequence[Scaled],
    layers: tuple[int, int] | None,
) -> None:
    """Check that adapter files fit a model by their headers, before weights are loaded.

    Raises
    ------
    GGUFError, ModelError, OptionError
        A file does not fit, or the model's architecture is unknown.
    """
    model_class(base.config)
    for path, _ in loras:
        with open_gguf(path) as file:
            check_lora(file, base)
    read_directions(control_vectors, layers, base)


class FileVersion(NamedTuple):
    """The identity of a file's content: path, size and time of the last change."""

    path: Path
    nbytes: int
    changed: int

    @classmethod
    def of(cls, path: Path) -> FileVersion:
        """Return the version of a file; zeros for a missing one, which opening it reports."""
        # One file under two paths, by a link or `..`, must not be loaded twice.
        whole = path.resolve()
        try:
            found = whole.stat()
        except OSError:
            return cls(whole, 0, 0)
        return cls(whole, found.st_size, found.st_mtime_ns)


class Adapters:
    """The adapters and control vectors of one model.

    Files stay on the device after they are replaced, until `unload`.

    Attributes
    ----------
    loras, control_vectors : sequence of (Path, float)
        Files in use, with their scales.
    layers : pair of int or None
        First and last layer to steer; None for all.
    """

    def __init__(self, model: Model) -> None:
        self.loras: Sequence[Scaled] = ()
        self.control_vectors: Sequence[Scaled] = ()
        self.layers: tuple[int, int] | None = None
        self._model = model
        self._loaded: dict[FileVersion, Lora] = {}
        self._set: Sequence[FileVersion] = ()
        self._active: dict[FileVersion, float] = {}
        self._directions: Directions = {}
        # The control vectors, by layer.
        self._states: dict[int, Tensor] = {}

    @uninterrupted
    def set_loras(self, given: Sequence[Scaled]) -> bool:
        """Apply exactly these adapters; after an error none of the new ones is loaded.

        Returns
        -------
        bool
            Whether the model is another one now.
        """
        versions = self._versions(given)
        changed = self._activate(versions, [scale for _, scale in given])
        self.loras, self._set = tuple(given), versions
        return changed

    @property
    def scales(self) -> Sequence[float]:
        """The scales of the adapters in use, in their order."""
        return [scale for _, scale in self.loras]

    @uninterrupted
    def scale(self, scales: Sequence[float]) -> None:
        """Change the scales of the adapters in use; `loras` keeps the scales that were set.

        The KV cache is not cleared: the caller must keep track of the scales it was computed with.
        """
        self._activate(self._set, scales)

    def _activate(self, versions: Sequence[FileVersion], scales: Sequence[float]) -> bool:
        """Apply files with these scales; return whether the model changed."""
        summed: dict[FileVersion, float] = {}
        for version, scale in zip(versions, scales, strict=True):
            summed[version] = summed.get(version, 0.0) + scale
        # Sorted, so that the same files in another order are one variant and share its graphs.
        # A scale of 0 changes nothing, so its ops are left out.
        active = {version: scale for version, scale in sorted(summed.items()) if scale}
        changed = active != self._active
        if changed:
            for version, scale in active.items():
                self._loaded[version].rescale(scale)
            self._model.adapt(self._changes(active))
            self._active = active
            self._name_variant()
        return changed

    def _versions(self, given: Sequence[Scaled]) -> list[FileVersion]:
        """Load files that are not loaded yet, all or none, and return their versions."""
        versions: list[FileVersion] = []
        new: list[FileVersion] = []
        try:
            for path, _ in given:
                version = FileVersion.of(path)
                if version not in self._loaded:
                    self._loaded[version] = self._load(path)
                    new.append(version)
                versions.append(version)
        except BaseException:
            for version in new:
                self._loaded.pop(version).close()
            raise
        return versions

    def _load(self, path: Path) -> Lora:
        backend = self._model.backend
        lora = Lora(open_gguf(path), backend.file, backend.executor)
        unknown = sorted(lora.changes.keys() - self._model.adaptable().keys())
        if unknown:
            lora.close()
            raise ModelError(
                f"{path}: tensor {unknown[0]}.lora_a: {unknown[0]} is used by no product or "
                f"lookup of {backend.config.architecture!r} that an adapter could change"
            )
        return lora

    def _changes(self, active: Mapping[FileVersion, float]) -> dict[str, list[LowRank]]:
        """Collect the low-rank changes of each weight, by its name."""
        changes: dict[str, list[LowRank]] = {}
        for version in active:
            for name, change in self._loaded[version].changes.items():
                changes.setdefault(name, []).append(change)
        return changes

    @uninterrupted
    def set_control_vectors(
        self, given: Sequence[Scaled], layers: tuple[int, int] | None = None
    ) -> bool:
        """Apply exactly these control vectors; after an error the model is unchanged.

        Returns
        -------
        bool
            Whether the model is another one now.
        """
        model = self._model
        if given and not model.steerable:
            name = model.config.architecture
            raise model.fail(f"architecture {name!r} takes no control vectors")
        found = read_directions(given, layers, model.backend.file)
        # With equal sums the model is the same, and the values in the cache stay valid.
        changed = found.keys() != self._directions.keys() or any(
            (found[layer] != values).any() for layer, values in self._directions.items()
        )
        if changed:
            model.directions = {layer: self._write(layer, found[layer]) for layer in found}
            self._directions = found
            self._name_variant()
        self.control_vectors, self.layers = tuple(given), layers
        return changed

    def _write(self, layer: int, values: np.typing.NDArray[np.float32]) -> Tensor:
        """Write a layer's direction to its state, on the layer's device, and return that."""
        executor = self._model.backend.executor
        if layer not in self._states:
            spec = Spec.dense((len(values),), F32)
            self._states[layer] = leaf(spec, executor.state(spec, f"blk.{layer}.direction"))
        executor.write(self._states[layer], values.tobytes())
        return self._states[layer]

    def _name_variant(self) -> None:
        """Name the model's variant, so that each set of files and layers has graphs of its own."""
        layers = tuple(sorted(self._directions))
        variant = (tuple(self._active), layers) if self._active or layers else ()
        # Scales are data of the graphs, so they are not part of the name.
        # An encoder within the model has graphs of its own.
        for each in modules(self._model):
            if isinstance(each, Model):
                each.variant = variant

    def unload(self) -> None:
        """Release adapters that are not in use; graphs that need them must be gone."""
        for version in [each for each in self._loaded if each not in self._set]:
            self._loaded.pop(version).close()

    def close(self) -> None:
        """Release all adapters; safe to call again."""
        self._active, self._set = {}, ()
        self.unload()
        for state in self._states.values():
            self._model.backend.executor.free(state.storage)
        self._states.clear()


_LOG = logging.getLogger("wgpu_backend.engine")
ENDS = A, B = ".lora_a", ".lora_b"
# Also Gemma's embedding of each layer.
EMBEDDING = "token_embd.weight"
# Weights with a matrix for each head; a pair may have one matrix for all heads instead.
HEADS = ("attn_k_b.weight", "attn_v_b.weight")
ALPHA, INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"


@dataclass(frozen=True, slots=True)
class Pair:
    """The two low-rank factors of one weight."""

    a: TensorInfo
    b: TensorInfo
    rank: int


def check_lora(file: GGUFFile, base: GGUFFile) -> dict[str, Pair]:
    """Return the pairs of a file by the name of their weight, checked against a model's file.

    Raises
    ------
    ModelError
        The file is not a LoRA adapter, is for another architecture, or a tensor does not fit.
    """
    # Keys first: a model given as an adapter is then reported as one, not by its first tensor.
    _require_keys(file, base)
    names = [name for name in file.tensors if name.endswith(ENDS)]
    _require_known(file)
    pairs = {
        name: _pair(file, base, name)
        for name in dict.fromkeys(name.rpartition(".")[0] for name in names)
    }
    if not pairs:
        raise ModelError(f"{file.path}: none of its {len(file.tensors)} tensors ends in {A}")
    return pairs


def _require_keys(file: GGUFFile, base: GGUFFile) -> None:
    for key, wanted in (("general.type", "adapter"), ("adapter.type", "lora")):
        found = file.config.string(key, "")
        if found != wanted:
            raise ModelError(f"{file.path}: key {key!r} is {found!r}, needs {wanted!r}")
    own, needed = file.config.architecture, base.config.architecture
    if own != needed:
        raise ModelError(
            f"{file.path}: an adapter of architecture {own!r}, the model {base.path} is {needed!r}"
        )
    if ALPHA not in file.config:
        raise ModelError(f"{file.path}: key {ALPHA!r} is missing, a LoRA adapter needs it")
    file.config.float(ALPHA)
    if INVOCATION in file.config:
        raise ModelError(
            f"{file.path}: key {INVOCATION!r} makes it an activated LoRA (aLoRA), which changes "
            "only what comes after these tokens; needs one for all tokens"
        )


def _require_known(file: GGUFFile) -> None:
    """Refuse tensors that are not part of a LoRA; norms, which some tools add, are ignored."""
    others = [name for name in file.tensors if not name.endswith(ENDS)]
    norms = [name for name in others if name.endswith("_norm.weight")]
    for name in others:
        if name not in norms:
            raise ModelError(f"{file.path}: tensor {name} ends in neither {A} nor {B}")
    if norms:
        _LOG.warning("%s: %d norms in it are not used, %s first", file.path, len(norms), norms[0])


def _pair(file: GGUFFile, base: GGUFFile, name: str) -> Pair:
    for has, needs in ((A, B), (B, A)):
        if name + needs not in file.tensors:
            raise ModelError(
                f"{file.path}: tensor {name}{has} is in the file, {name}{needs} is missing"
            )
    weight = base.tensors.get(name)
    if weight is None:
        raise ModelError(f"{file.path}: tensor {name}{A}: the model {base.path} has no {name}")
    a, b = file.tensors[name + A], file.tensors[name + B]
    for info in (a, b):
        if info.dtype not in (F32, F16, BF16) and not info.dtype.quantised:
            raise ModelError(f"{file.path}: tensor {info.name} is {info.dtype}, needs floats")
    return _fitting(file, base, weight, a, b)


def _fitting(
    file: GGUFFile, base: GGUFFile, weight: TensorInfo, a: TensorInfo, b: TensorInfo
) -> Pair:
    """Make a pair whose shapes match a weight."""
    if len(weight.shape) < 2:
        raise ModelError(f"{file.path}: tensor {a.name}: {weight.name} is not a matrix")
    *experts, m, k = weight.shape
    embeds = weight.name.endswith(EMBEDDING)
    # Files may leave out leading axes of size 1.
    a, b = (replace(i, shape=_pad(i.shape, len(weight.shape))) for i in (a, b))
    rank, rank_b = a.shape[-1 if embeds else -2], b.shape[-1]
    wanted_a = (m, rank) if embeds else (*experts, rank, k)
    wanted_b = (*experts, k if embeds else m, rank_b)
    for info, wanted in ((a, wanted_a), (b, wanted_b)):
        shared = weight.name.endswith(HEADS) and info.shape == (1, *wanted[1:])
        if info.shape != wanted and not shared:
            raise ModelError(
                f"{file.path}: tensor {info.name} is {info.shape}, {weight.name} of {base.path} is "
                f"{weight.shape}, so it needs {wanted}"
            )
    if rank != rank_b or not rank:
        raise ModelError(
            f"{file.path}: tensor {a.name} has rank {rank}, {b.name} has rank {rank_b}"
        )
    return Pair(a, b, rank)


def _pad(shape: Shape, rank: int) -> Shape:
    return (1,) * (rank - len(shape)) + shape


class Lora:
    """A LoRA adapter on a model's device.

    Parameters
    ----------
    file : GGUFFile
        Stays open until the adapter closes it.
    base : GGUFFile
        The model's file.
    executor : Executor
        The model's executor.

    Attributes
    ----------
    changes : mapping of str to LowRank
        Low-rank changes by the name of the weight.

    Raises
    ------
    ModelError
        The adapter does not fit the model, or has NaN or infinite values.
    OutOfMemory
        The adapter does not fit on the device; nothing of it stays there.
    """

    def __init__(self, file: GGUFFile, base: GGUFFile, executor: Executor) -> None:
        self._file = file
        self._executor = executor
        self._storages: list[Storage] = []
        self._scales: dict[int, Tensor] = {}
        self.changes: dict[str, LowRank] = {}
        try:
            pairs = check_lora(file, base)
            self._alpha = file.config.float(ALPHA)
            for name, pair in pairs.items():
                deliver()
                a, b = self._weight(pair.a), self._weight(pair.b)
                self.changes[name] = LowRank(a, b, self._scale(pair.rank))
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> Path:
        """Path of the adapter's file."""
        return self._file.path

    def _weight(self, info: TensorInfo) -> Tensor:
        spec = Spec.dense(info.shape, info.dtype)
        data = [self._file.source(info.name)]
        try:
            storage = self._executor.weight(spec, data, info.name, alone=True)
        except GGUFError:
            # The message names the file already.
            raise
        except ModelError as error:
            raise ModelError(f"{self.path}: {error}") from None
        self._storages.append(storage)
        return Weight(spec, storage, self._executor)

    def _scale(self, rank: int) -> Tensor:
        """Return the state with the factor of a rank, so that a new scale needs no new graph."""
        if rank not in self._scales:
            spec = Spec.dense((1,), F32)
            storage = self._executor.state(spec, "scales of adapters")
            self._storages.append(storage)
            self._scales[rank] = leaf(spec, storage)
        return self._scales[rank]

    def rescale(self, scale: float) -> None:
        """Set the factor to scale * alpha / rank; as in llama.cpp, an alpha of 0 means the rank."""
        for rank, tensor in self._scales.items():
            factor = scale * self._alpha / rank if self._alpha else scale
            self._executor.write(tensor, np.float32(factor).tobytes())

    def close(self) -> None:
        """Release the adapter's memory and its file; safe to call again."""
        for storage in self._storages:
            self._executor.free(storage)
        self._storages.clear()
        self.changes.clear()
        self._file.close()
