"""A Hugging Face checkpoint with the interface of a GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path

import numpy as np
from gguf import size_label

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import GGUFError, ModelError, Unclosed
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.gguf.file_bytes import Source
from wgpu_backend.files.gguf.header import Header, TensorInfo
from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf
from wgpu_backend.files.gguf.writer import ALIGNMENT
from wgpu_backend.files.huggingface.family import Family, find_family
from wgpu_backend.files.huggingface.json_files import read_json
from wgpu_backend.files.huggingface.modules import read_modules
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.shared_settings import warn_unread
from wgpu_backend.files.huggingface.tensors import main_type, rename_tensors, stored_type
from wgpu_backend.files.huggingface.tokens import tokenizer_keys
from wgpu_backend.files.huggingface.values import Values, as_f32
from wgpu_backend.files.huggingface.weights import Weights
from wgpu_backend.files.quantize.mixes import find_mix

CONFIG = "config.json"
_VERSION, _QUANTISATION_VERSION = 3, 2


class Folder(GGUFFile):
    """An open checkpoint with the interface of `GGUFFile`.

    Parameters
    ----------
    path : Path
        The folder.
    header : Header
        Header of an equivalent GGUF file.
    values : Mapping of str to Values
        The tensors.
    weights : sequence of Weights
        Open files, closed with the folder.
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
        """Return the files that contain the weights."""
        return [path for weights in self._weights for path in weights.paths]

    def source(self, name: str) -> Source:
        """Return the bytes of one tensor, made piece by piece, as `GGUFFile.source`."""
        if not self._open:
            raise ModelError(
                f"{self.path}: tensor {name!r} asked of a closed folder, open it again"
            )
        info = self.tensors.get(name)
        if info is None:
            raise ModelError(f"{self.path}: no tensor {name!r} among the {len(self.tensors)}")
        return _Made(self.values[name], info)

    def rows_together(self, name: str) -> int:
        """Return the number of rows of a tensor that are made together at the cost of one."""
        return self.values[name].step

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        if self._open:
            self._open = False
            for weights in self._weights:
                weights.close()
        super().close()


class _Made:
    """Bytes of a tensor in its info's type: the type in the folder, or f32."""

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

    Weights keep their types, except vectors and small tables, which are f32 in GGUF files.

    Raises
    ------
    ModelError
        A file is missing or damaged, config.json names an unknown class, or its settings do not fit
        the tensors; no file stays open.
    TokenizerError
        The tokenizer is of an unknown kind.
    """
    path = Path(path)
    config = path / CONFIG
    settings = Settings(str(config), read_json(config))
    family = find_family(settings)
    # Checked before the tensors, which are compared with these settings.
    keys = family.all_keys()
    modules = read_modules(path)
    try:
        modules.weights.append(weights := Weights(path))
        values = rename_tensors(weights, family) | modules.values
        header = _header(path, family, keys | modules.keys, values)
        warn_unread(family.settings, family.rope, family.harmless)
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
        dtype = stored_type(name, value)
        nbytes = value.rows * dtype.nbytes(value.cols)
        infos[name] = TensorInfo(name, dtype, value.shape, offset, nbytes)
        offset += nbytes
    return Header(_VERSION, ALIGNMENT, _metadata(path, family, keys, values), infos, {})


def _metadata(
    path: Path, family: Family, keys: Mapping[str, Value], values: Mapping[str, Values]
) -> dict[str, Value]:
    """Return the keys of an equivalent GGUF file."""
    made: dict[str, Value] = {
        "general.architecture": family.architecture,
        "general.type": "model",
        "general.name": path.resolve().name,
        "general.size_label": _size(values),
        "general.file_type": find_mix(str(main_type(values))).number,
        "general.quantization_version": _QUANTISATION_VERSION,
    }
    for key, value in keys.items():
        made[key if key.startswith("tokenizer.") else f"{family.architecture}.{key}"] = value
    return made | tokenizer_keys(path, family.settings)


def _size(values: Mapping[str, Values]) -> str:
    """Format the number of parameters: ``135M``, ``8x7B``."""
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


def open_model_file(path: str | Path, check_types: bool = True) -> GGUFFile:
    """Open a GGUF file or a checkpoint.

    Parameters
    ----------
    path : str or Path
        A file, or a folder with config.json.
    check_types : bool
        Reject tensors of types without a kernel here, as `open_gguf` does.

    Raises
    ------
    ModelError, TokenizerError
        As `open_gguf` and `open_folder`.
    """
    path = Path(path)
    try:
        is_folder = path.is_dir()
    except OSError:
        # The name may be too long, which opening reports.
        is_folder = False
    if not is_folder:
        return open_gguf(path, check_types)
    if not (path / CONFIG).exists():
        raise GGUFError(
            f"{path}: a directory without {CONFIG}, needs a GGUF file or a model's folder"
        )
    return open_folder(path)
