"""Modules of sentence-transformers after the model: modules.json and its folders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.json_files import parse_json, read_bytes, read_json
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.values import Values, read_values
from wgpu_backend.files.huggingface.weights import Weights

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
        raise ModelError(f"{modules}: JSON of another kind, needs a list")
    for number, step in enumerate(cast("list[object]", wrapped)):
        if not isinstance(step, dict):
            raise ModelError(f"{modules}: module {number} is no object")
        settings = Settings(f"{modules}: module {number}", cast("dict[str, Any]", step))
        kind = settings.text("type").rsplit(".", 1)[-1]
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
        raise settings.error("pooling_mode", f"{which}, known are {', '.join(_POOLINGS)}")
    if len(modes) == 1 and modes[0] in _NUMBERS:
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
        raise settings.error("activation_function", f"is {activation!r}, known are {known}")
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
