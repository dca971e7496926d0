"""A Hugging Face checkpoint with the interface of a GGUF file, and its sentence-transformers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, cast

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
from wgpu_backend.files.huggingface.json_files import parse_json, read_bytes, read_json
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.shared_settings import warn_unread
from wgpu_backend.files.huggingface.tensors import main_type, rename_tensors, stored_type
from wgpu_backend.files.huggingface.tokens import tokenizer_keys
from wgpu_backend.files.huggingface.values import Values, as_f32, read_values
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
                f"{self.path}: tensor {name!r} read from a closed folder, open it again"
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
    """The bytes of a tensor, converted on demand to the type of its `TensorInfo`."""

    def __init__(self, values: Values, info: TensorInfo) -> None:
        self._values, self._info = values, info
        self.nbytes = info.nbytes

    def read_into(self, out: memoryview, offset: int) -> None:
        """Fill `out` with the bytes from `offset` on."""
        row_nbytes = self._info.dtype.nbytes(self._values.cols)
        # Rows are made as a whole, and cut to the bytes that are asked for.
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
    return made | tokenizer_keys(path, family.tokenizer_settings)


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


# Modules of sentence-transformers after the model: modules.json and its folders.


_MODULES = "modules.json"
# Modes in the order of sentence-transformers' parts of a vector, by engine/pooling.py's names, and
# the keys that select them; releases differ in the spelling of the last one.
_POOLINGS: Mapping[str, tuple[str, ...]] = {
    "cls": ("pooling_mode_cls_token",),
    "max": ("pooling_mode_max_tokens",),
    "mean": ("pooling_mode_mean_tokens",),
    "mean_sqrt_len": ("pooling_mode_mean_sqrt_len_tokens",),
    "weightedmean": ("pooling_mode_weightedmean_tokens",),
    "last": ("pooling_mode_lasttoken", "pooling_mode_last_token"),
}
_SPELLINGS = {"lasttoken": "last", "last_token": "last", "mean_sqrt_len_tokens": "mean_sqrt_len"}
# Values of ``pooling_type``.
_NUMBERS = {"mean": 1, "cls": 2, "last": 3}
# Names in nn.mlp.ACTIVATIONS of PyTorch's classes; empty for the identity.
_ACTIVATIONS = {
    "Identity": "", "Tanh": "tanh", "ReLU": "relu", "GELU": "gelu_erf", "SiLU": "silu",
    "Sigmoid": "sigmoid",
}  # fmt: skip
# Dense layers are numbered by their places in EmbeddingGemma, as in llama.cpp.
_FIRST_DENSE, _MOST_DENSE = 2, 2


@dataclass(slots=True)
class Modules:
    """The keys and tensors that modules add to a model.

    Parameters
    ----------
    keys : dict of str to Value
        Keys without the architecture's prefix.
    values : dict of str to Values
        Tensors by their names in GGUF files.
    weights : list of Weights
        Open files, which the caller closes.
    """

    keys: dict[str, Value] = field(default_factory=dict[str, Value])
    values: dict[str, Values] = field(default_factory=dict[str, Values])
    weights: list[Weights] = field(default_factory=list[Weights])

    def close(self) -> None:
        """Close the files."""
        for weights in self.weights:
            weights.close()


def read_modules(path: Path) -> Modules:
    """Read the modules of a folder; empty if it has no modules.json.

    Raises
    ------
    ModelError
        A module is of an unknown kind or in an unsupported order, or a file is missing or damaged;
        no file stays open.
    """
    made = Modules()
    pooled = normalised = False
    try:
        for kind, folder in _list_modules(path / _MODULES):
            if kind == "Pooling" and not pooled:
                made.keys |= _pooling(folder)
                pooled = True
            elif kind == "Dense" and pooled and not normalised:
                _add_dense(made, folder)
            elif kind == "Normalize":
                normalised = True
            else:
                raise ModelError(
                    f"{path / _MODULES}: module {kind!r} of {folder}, needs Transformer, one "
                    "Pooling, then Dense, then Normalize"
                )
    except BaseException:
        made.close()
        raise
    return made


def _list_modules(modules: Path) -> Iterator[tuple[str, Path]]:
    """Yield kind and folder of each module after the model, except those without effect."""
    if not modules.exists():
        return
    wrapped: object = parse_json(b'{"modules":' + read_bytes(modules) + b"}", str(modules))[
        "modules"
    ]
    if not isinstance(wrapped, list):
        raise ModelError(f"{modules}: not a JSON list, needs a list of modules")
    for number, step in enumerate(cast("list[object]", wrapped)):
        if not isinstance(step, dict):
            raise ModelError(f"{modules}: module {number} is not a JSON object")
        settings = Settings(f"{modules}: module {number}", cast("dict[str, Any]", step))
        kind = settings.text("type").rsplit(".", 1)[-1]
        # The model itself is in the folder of modules.json, with an empty path.
        folder = Path(settings.text("path", default=""))
        if folder.is_absolute() or ".." in folder.parts:
            raise settings.error("path", f"is {str(folder)[:80]!r}, needs a folder of the model's")
        if kind not in ("Transformer", "Dropout"):
            yield kind, modules.parent / folder


def _pooling(folder: Path) -> dict[str, Value]:
    """Return the pooling key; several modes are concatenated."""
    config = folder / "config.json"
    settings = Settings(str(config), read_json(config))
    flags = (
        mode
        for mode, names in _POOLINGS.items()
        if any(settings.flag(name, default=False) for name in names)
    )
    modes = list(flags) or _read_modes(settings)
    unknown = [mode for mode in modes if mode not in _POOLINGS]
    if unknown or not modes:
        which = f"names {', '.join(map(repr, unknown))}" if unknown else "is missing"
        raise settings.error("pooling_mode", f"{which}, needs one of {', '.join(_POOLINGS)}")
    if len(modes) == 1 and modes[0] in _NUMBERS:
        # llama.cpp's key, where it can express the mode.
        return {"pooling_type": _NUMBERS[modes[0]]}
    return {"pooling": "+".join(sorted(modes, key=list(_POOLINGS).index))}


def _read_modes(settings: Settings) -> list[str]:
    """Return the modes of ``pooling_mode``, which is a name or a list of names."""
    value = settings.value("pooling_mode")
    names = settings.texts("pooling_mode") if isinstance(value, list) else []
    names = [settings.text("pooling_mode")] if isinstance(value, str) else names
    return [_SPELLINGS.get(name, name) for name in names]


def _add_dense(made: Modules, folder: Path) -> None:
    """Add a matrix, its bias and its activation.

    Raises
    ------
    ModelError
        There are too many, its activation is unknown, or a tensor has another shape than in its
        config.json.
    """
    config = folder / "config.json"
    settings = Settings(str(config), read_json(config))
    number = _FIRST_DENSE + len(made.weights)
    if len(made.weights) == _MOST_DENSE:
        raise ModelError(f"{config}: a third Dense module, at most {_MOST_DENSE} are known")
    shape = settings.uint("out_features"), settings.uint("in_features")
    activation = settings.text("activation_function", default="Tanh").rsplit(".", 1)[-1]
    if activation not in _ACTIVATIONS:
        known = ", ".join(_ACTIVATIONS)
        raise settings.error("activation_function", f"is {activation!r}, needs one of {known}")
    weights = Weights(folder)
    made.weights.append(weights)
    for name, tensor in weights.tensors.items():
        values, suffix = read_values(tensor), name.rsplit(".", 1)[-1]
        wanted = {"linear.weight": shape, "linear.bias": shape[:1]}.get(name)
        if values.shape != wanted:
            needs = "no such tensor" if wanted is None else f"shape {wanted}"
            raise ModelError(
                f"{tensor.file.path}: tensor {name!r} has shape {values.shape}, needs {needs}"
            )
        made.values[f"dense_{number}.{suffix}"] = values
    if f"dense_{number}.weight" not in made.values:
        raise ModelError(f"{folder}: its safetensors have no 'linear.weight'")
    made.keys |= {f"dense_{number}_feat_in": shape[1], f"dense_{number}_feat_out": shape[0]}
    if _ACTIVATIONS[activation]:
        made.keys[f"dense_{number}_activation"] = _ACTIVATIONS[activation]
