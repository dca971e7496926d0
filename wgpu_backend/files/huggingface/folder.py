"""A Hugging Face folder, opened as a GGUF file is: keys, tensors, and their bytes when wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from gguf import size_label

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ModelError, Unclosed
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.gguf.file_bytes import Source
from wgpu_backend.files.gguf.header import Header, TensorInfo
from wgpu_backend.files.gguf.reader import GGUFFile
from wgpu_backend.files.gguf.writer import ALIGNMENT
from wgpu_backend.files.huggingface.choices import warn_of_unread
from wgpu_backend.files.huggingface.family import Family, family_of
from wgpu_backend.files.huggingface.json_files import read_json
from wgpu_backend.files.huggingface.modules import read_modules
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tensors import held_type, main_type, renamed
from wgpu_backend.files.huggingface.tokens import tokenizer_keys
from wgpu_backend.files.huggingface.values import Values, as_f32
from wgpu_backend.files.huggingface.weights import Weights
from wgpu_backend.files.quantize.mixes import mix_named

CONFIG = "config.json"
_VERSION, _QUANTISATION_VERSION = 3, 2


class Folder(GGUFFile):
    """An open folder: what `GGUFFile` has, made of the folder's files.

    Parameters
    ----------
    path : Path
        The folder.
    header : Header
        What a GGUF file of it would say.
    values : Mapping of str to Values
        The tensors.
    weights : sequence of Weights
        Closed with the folder.
    """

    def __init__(
        self, path: Path, header: Header, values: Mapping[str, Values], weights: Sequence[Weights]
    ) -> None:
        super().__init__(path, header, b"")
        self.values = values
        self._weights = weights
        self._open = True
        self.unclosed = Unclosed(f"folder {path}")

    @property
    def weight_files(self) -> list[Path]:
        """Files that the weights are in."""
        return [path for weights in self._weights for path in weights.paths]

    def source(self, name: str) -> Source:
        """Bytes of one tensor, made piece by piece; as `GGUFFile.source`."""
        if not self._open:
            raise ModelError(
                f"{self.path}: tensor {name!r} asked of a closed folder, open it again"
            )
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path}: no tensor {name!r} among the {len(self.tensors)}")
        return _Made(self.values[name], info)

    def rows_together(self, name: str) -> int:
        """How many rows of a tensor cost the same as one, as they are made together."""
        return self.values[name].step

    def close(self) -> None:
        """Let go of the files; a second call does nothing."""
        if self._open:
            self._open = False
            for weights in self._weights:
                weights.close()
        super().close()


class _Made:
    """Bytes of a tensor in the type that its info says: the one it has, or f32."""

    def __init__(self, values: Values, info: TensorInfo) -> None:
        self._values, self._info = values, info
        self.nbytes = info.nbytes

    def read_into(self, out: memoryview, offset: int) -> None:
        """Fill `out` with the bytes from `offset` on."""
        row_nbytes = self._info.dtype.nbytes(self._values.cols)
        first, end = offset // row_nbytes, -(-(offset + out.nbytes) // row_nbytes)
        rows = self._values.read(first, end)
        if self._info.dtype == F32:
            rows = as_f32(rows, self._values.dtype)
        made = np.ascontiguousarray(rows).reshape(-1).view(np.uint8).data
        start = offset - first * row_nbytes
        out[:] = made[start : start + out.nbytes]


def open_folder(path: str | PathLike[str]) -> Folder:
    """Open a folder with config.json, a tokenizer and safetensors.

    Weights have the types that they have in the folder, but for vectors and small tables, which
    are f32 in GGUF files.

    Raises
    ------
    ModelError
        A file is missing or damaged, config.json names a class that is not known, or what it says
        does not fit the tensors; nothing stays open.
    TokenizerError
        The tokenizer is of a kind that is not known.
    """
    path = Path(path)
    config = path / CONFIG
    settings = Settings(str(config), read_json(config))
    family = family_of(settings)
    keys = family.all_keys()  # before tensors are asked whether they fit what these say
    modules = read_modules(path)
    try:
        modules.weights.append(weights := Weights(path))
        values = renamed(weights, family) | modules.values
        header = _header(path, family, keys | modules.keys, values)
        warn_of_unread(family.settings, family.rope, family.harmless)
    except BaseException:
        modules.close()
        raise
    return Folder(path, header, values, modules.weights)


def _header(
    path: Path, family: Family, keys: Mapping[str, Value], values: Mapping[str, Values]
) -> Header:
    infos: dict[str, TensorInfo] = {}
    offset = 0
    for name, value in values.items():
        dtype = held_type(name, value)
        nbytes = value.rows * dtype.nbytes(value.cols)
        infos[name] = TensorInfo(name, dtype, value.shape, offset, nbytes)
        offset += nbytes
    return Header(_VERSION, ALIGNMENT, _metadata(path, family, keys, values), infos, {})


def _metadata(
    path: Path, family: Family, keys: Mapping[str, Value], values: Mapping[str, Values]
) -> dict[str, Value]:
    """Keys of a GGUF file of the folder."""
    made: dict[str, Value] = {
        "general.architecture": family.architecture,
        "general.type": "model",
        "general.name": path.resolve().name,
        "general.size_label": _size(values),
        "general.file_type": mix_named(str(main_type(values))).number,
        "general.quantization_version": _QUANTISATION_VERSION,
    }
    for key, value in keys.items():
        made[key if key.startswith("tokenizer.") else f"{family.architecture}.{key}"] = value
    return made | tokenizer_keys(path, family.settings)


def _size(values: Mapping[str, Values]) -> str:
    """How many parameters there are, for people: ``135M``, ``8x7B``."""
    shared, one_expert, counts = 0, 0, list[int]()
    for name, value in values.items():
        size = value.rows * value.cols
        if "_exps." in name and len(value.shape) > 2:
            counts.append(value.shape[0])
            one_expert += size // value.shape[0]
        else:
            shared += size
    experts = sum(counts) // len(counts) if counts else 0
    return size_label(shared, shared, one_expert, experts)
