"""LoRA adapters in GGUF files: checked against the model, and loaded on its device.

The keys and names are those that llama.cpp's `convert_lora_to_gguf` writes: for each changed
weight NAME, NAME.lora_a maps activations to the rank and NAME.lora_b maps the rank to results.
For embeddings, NAME.lora_a has a row for each token.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from wgpu_backend.device.interrupts import deliver
from wgpu_backend.dtypes import BF16, F16, F32
from wgpu_backend.errors import GGUFError, ModelError
from wgpu_backend.files.gguf.reader import GGUFFile, TensorInfo
from wgpu_backend.graph.node import Storage
from wgpu_backend.graph.spec import Shape, Spec
from wgpu_backend.ml.backend import Weight
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.nn.low_rank import LowRank

_LOG = logging.getLogger("wgpu_backend.engine")
ENDS = A, B = ".lora_a", ".lora_b"
EMBEDDING = "token_embd.weight"  # also Gemma's embedding of each layer
# Weights with a matrix for each head; a pair may have one matrix for all heads instead.
HEADS = ("attn_k_b.weight", "attn_v_b.weight")
ALPHA, INVOCATION = "adapter.lora.alpha", "adapter.alora.invocation_tokens"


@dataclass(frozen=True, slots=True)
class Pair:
    """The two low-rank factors of one weight."""

    a: TensorInfo
    b: TensorInfo
    rank: int


def checked(file: GGUFFile, base: GGUFFile) -> dict[str, Pair]:
    """Return the pairs of a file by the name of their weight, checked against a model's file.

    Raises
    ------
    ModelError
        The file is not a LoRA adapter, is for another architecture, or a tensor does not fit.
    """
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
            raise ModelError(f"{file.path}: tensor {name}{has} is there, {name}{needs} is missing")
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
            pairs = checked(file, base)
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
        except GGUFError:  # it names the file already
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
