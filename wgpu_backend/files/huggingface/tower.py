"""Towers in Hugging Face checkpoints, read as llama.cpp's mmproj files.

A tower family is a class with tables, in a file of `towers/`: names of tensors, and the settings of
config.json and of the processor as ``clip`` keys.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import import_module
from math import isqrt
from pathlib import Path
from pkgutil import iter_modules
from typing import ClassVar, TypeVar, cast

import numpy as np

from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.gguf.header import Header, TensorInfo
from wgpu_backend.files.gguf.parts import TOWER_ARCHITECTURE
from wgpu_backend.files.gguf.writer import ALIGNMENT
from wgpu_backend.files.huggingface.family import Names, split_suffix
from wgpu_backend.files.huggingface.folder import Folder
from wgpu_backend.files.huggingface.json_files import read_json
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tensors import stored_type
from wgpu_backend.files.huggingface.values import Rows, Values
from wgpu_backend.files.huggingface.weights import Weights

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_VERSION = 3
# Activations of config.json, by the names in nn.mlp.ACTIVATIONS.
_ACTIVATIONS = {
    "gelu_pytorch_tanh": "gelu", "gelu_new": "gelu", "gelu": "gelu_erf", "quick_gelu": "gelu_quick",
    "silu": "silu", "swish": "silu", "relu": "relu",
}  # fmt: skip


class TowerFamily:
    """The tower of a class of checkpoints.

    Parameters
    ----------
    settings : Settings
        config.json.
    processor : Settings
        The processor's settings, empty if there are none.

    Attributes
    ----------
    projector : str
        Value of ``clip.projector_type``.
    section : str
        ``vision`` or ``audio``: the prefix of keys, and of the section of config.json.
    roots : tuple of str
        Prefixes of the tower's tensors; the first that fits is removed.
    names : Names
        Names in mmproj files by names without the root, ``*`` for the number of a layer.
    video : Settings
        The settings of the processor of videos, empty if there are none.
    useless : str
        A regular expression of tensors that are not used.
    defaults : mapping of str to object
        Defaults of transformers for settings missing in the section.
    """

    projector: ClassVar[str]
    section: ClassVar[str] = "vision"
    roots: ClassVar[tuple[str, ...]] = (
        "model.vision_tower.vision_model.", "model.vision_tower.", "vision_tower.vision_model.",
        "vision_tower.", "model.multi_modal_projector.", "multi_modal_projector.",
    )  # fmt: skip
    names: ClassVar[Names]
    video: Settings = Settings("", {})
    useless: ClassVar[str] = r"position_ids$|inv_freq$"
    defaults: ClassVar[Mapping[str, object]] = {}

    def __init__(self, settings: Settings, processor: Settings) -> None:
        self.settings, self.processor = settings, processor
        own = settings.section(f"{self.section}_config")
        self.own = Settings(own.source, {**self.defaults, **own.values}, own.asked)

    def keys(self) -> dict[str, Value]:
        """Return the family's keys without ``clip.``; they override those that most have.

        Raises
        ------
        ModelError
            A setting is missing or of another type.
        """
        return {}

    def need(self, name: str, value: object) -> None:
        """Raise if a setting of config.json is not its default, the only supported value.

        Raises
        ------
        ModelError
            It has another value.
        """
        found = self.settings.value(name)
        if found not in (None, value):
            raise self.settings.error(name, f"is {found!r}, needs {value!r}")

    def extra(self) -> dict[str, Values]:
        """Return tensors that are computed from settings, by their names in mmproj files."""
        return {}

    @property
    def width(self) -> int:
        """Return the width of the language model."""
        text = self.settings.section("text_config")
        # Llama's and Mistral's in transformers, where config.json leaves it out.
        return (text if "hidden_size" in text else self.settings).uint("hidden_size", default=4096)

    def owns(self, name: str) -> bool:
        """Return whether a tensor belongs to the tower and is used."""
        return name.startswith(self.roots) and not re.search(self.useless, name)

    def rename(self, name: str, values: Values) -> dict[str, Values]:
        """Return the tensors that a tensor of the folder becomes.

        Raises
        ------
        ModelError
            The family has no such tensor, or it has another shape.
        """
        root = next(root for root in self.roots if name.startswith(root))
        bare = name.removeprefix(root)
        module, suffix = split_suffix(bare)
        numbers = _NUMBER.findall(module)
        # A name with its suffix stands for a tensor that is named otherwise in mmproj files.
        starred = _NUMBER.sub("*", bare)
        to, suffix = (
            (self.names[starred], "")
            if starred in self.names
            else (self.names.get(_NUMBER.sub("*", module)), suffix)
        )
        if to is None:
            raise ModelError(f"unexpected tensor for {type(self).__name__}")
        changes = {to: None} if isinstance(to, str) else to
        made: dict[str, Values] = {}
        for template, change in changes.items():
            changed = values if change is None else change(values, self.own)
            full = template
            for number in numbers:
                full = full.replace("*", number, 1)
            made[full + suffix] = changed
        return made

    def all_keys(self) -> dict[str, Value]:
        """Return all keys without ``clip.``."""
        made: dict[str, Value] = {
            f"has_{self.section}_encoder": True,
            f"{self.section}.projector_type": self.projector,
            f"{self.section}.projection_dim": self.width,
        }
        for key, names in _UINTS.items():
            if self.own.value(*names) is not None:
                made[f"{self.section}.{key}"] = self.own.uint(*names)
        if (eps := self.own.value("layer_norm_eps", "rms_norm_eps")) is not None:
            made[f"{self.section}.attention.layer_norm_epsilon"] = float(cast("float", eps))
        if self.own.value("hidden_act", "hidden_activation") is not None:
            made[f"{self.section}.feed_forward_activation"] = self._activation()
        for name in ("image_mean", "image_std"):
            if self.section == "vision" and self.processor.value(name) is not None:
                made[f"vision.{name}"] = np.array(self.processor.numbers(name), np.float64)
        return made | self.keys()

    def _activation(self) -> str:
        asked = self.own.text("hidden_act", "hidden_activation")
        if asked not in _ACTIVATIONS:
            raise self.own.error(
                "hidden_act", f"is {asked!r}, needs one of {', '.join(_ACTIVATIONS)}"
            )
        return _ACTIVATIONS[asked]


_UINTS = {
    "image_size": ("image_size",),
    "patch_size": ("patch_size",),
    "embedding_length": ("hidden_size", "embed_dim", "d_model"),
    "feed_forward_length": ("intermediate_size", "encoder_ffn_dim"),
    "block_count": ("num_hidden_layers", "depth", "encoder_layers"),
    "attention.head_count": ("num_attention_heads", "num_heads", "encoder_attention_heads"),
}


def as_matrix(x: Values, settings: Settings) -> Values:
    """View the kernels of a convolution over patches as rows: (outputs, values)."""
    outputs = x.shape[0]
    each = x.rows // outputs

    def read(begin: int, end: int) -> Rows:
        return x.read(begin * each, end * each).reshape(end - begin, -1)

    return Values((outputs, each * x.cols), x.dtype, read)


def colours_before(x: Values, settings: Settings) -> Values:
    """Order the values of patches as a convolution does: from (row, column, colour)."""

    def read(begin: int, end: int) -> Rows:
        rows = x.read(begin, end)
        side = isqrt(x.cols // 3)
        return rows.reshape(-1, side, side, 3).transpose(0, 3, 1, 2).reshape(rows.shape)

    return Values(x.shape, x.dtype, read, x.step)


def take_frame(x: Values, number: int) -> Values:
    """View one frame of a convolution over patches of two frames as rows: (outputs, values).

    Raises
    ------
    ModelError
        It has other axes than outputs, colours, two frames, rows and columns.
    """
    if len(x.shape) != 5 or x.shape[2] != 2:
        raise ModelError(f"of shape {x.shape}, needs (outputs, colours, 2, side, side)")
    outputs, colours, frames, height, width = x.shape
    each = colours * frames * height

    def read(begin: int, end: int) -> Rows:
        rows = x.read(begin * each, end * each)
        return rows.reshape(end - begin, colours, frames, -1)[:, :, number].reshape(end - begin, -1)

    return Values((outputs, colours * height * width), x.dtype, read)


F = TypeVar("F", bound=type[TowerFamily])
_FAMILIES: dict[str, list[type[TowerFamily]]] = {}


def tower_family(*class_names: str) -> Callable[[F], F]:
    """Register a family under class names of config.json's ``architectures``."""

    def register(made: F) -> F:
        for name in class_names:
            _FAMILIES.setdefault(name, []).append(made)
        return made

    return register


def tower_families() -> dict[str, list[type[TowerFamily]]]:
    """Return the families of every class, found by listing the folder."""
    package = import_module(f"{__package__}.towers")
    for module in iter_modules(package.__path__):
        import_module(f"{package.__name__}.{module.name}")
    return _FAMILIES


def open_tower_folder(path: Path) -> Folder | None:
    """Open the towers of a checkpoint as an mmproj file; None if no tower is known.

    Raises
    ------
    ModelError
        A file is damaged, a setting is missing, or a tensor of a tower is unknown; no file stays
        open.
    """
    settings = Settings(str(path / "config.json"), read_json(path / "config.json"))
    known = tower_families()
    kinds = [kind for name in settings.texts("architectures") for kind in known.get(name, [])]
    if not kinds:
        return None
    families = [kind(settings, read_processor(path, kind.section)) for kind in kinds]
    for family in families:
        family.video = read_processor(path, "video")
    weights = Weights(path)
    try:
        values: dict[str, Values] = {}
        keys: dict[str, Value] = {"general.architecture": TOWER_ARCHITECTURE}
        for family in families:
            own = _tensors(weights, family)
            if own:
                values |= own | family.extra()
                keys |= {f"{TOWER_ARCHITECTURE}.{k}": v for k, v in family.all_keys().items()}
        if not values:
            weights.close()
            return None
        return Folder(path, _header(keys, values), values, [weights])
    except BaseException:
        weights.close()
        raise


def _tensors(weights: Weights, family: TowerFamily) -> dict[str, Values]:
    made: dict[str, Values] = {}
    for name, values in weights.values(family.settings, family.owns):
        try:
            made |= family.rename(name, values)
        except ModelError as error:
            where = weights.tensors[name].file.path
            raise ModelError(f"{where}: tensor {name!r}: {error}") from None
    return made


def _header(keys: Mapping[str, Value], values: Mapping[str, Values]) -> Header:
    infos: dict[str, TensorInfo] = {}
    offset = 0
    for name, value in values.items():
        dtype = stored_type(name, value)
        nbytes = value.rows * dtype.nbytes(value.cols)
        infos[name] = TensorInfo(name, dtype, value.shape, offset, nbytes)
        offset += nbytes
    return Header(_VERSION, ALIGNMENT, keys, infos, {})


_PROCESSORS = {
    "video": ("video_preprocessor_config.json", "video_processor"),
    "vision": ("preprocessor_config.json", "image_processor"),
    "audio": ("preprocessor_config.json", "feature_extractor"),
}


def read_processor(path: Path, section: str) -> Settings:
    """Return the settings of a processor, from its own file or the section of the joint one."""
    name, part = _PROCESSORS[section]
    joint = path / "processor_config.json"
    if joint.exists():
        found = Settings(str(joint), read_json(joint)).section(part)
        if found.values:
            return found
    alone = path / name
    if section == "video" and not alone.exists():
        # As transformers reads older folders.
        return read_processor(path, "vision")
    return Settings(str(alone), read_json(alone) if alone.exists() else {})
