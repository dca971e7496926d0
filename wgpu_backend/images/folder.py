"""A diffusers folder: the components of a pipeline, their settings and their tensors.

::

    model_index.json     {"_class_name": …, "unet": ["diffusers", "UNet2DConditionModel"], …}
    unet/config.json                            settings of a component
    unet/diffusion_pytorch_model.safetensors    its tensors, or an index and shards
    text_encoder/model.safetensors              the same, from transformers
    tokenizer/ scheduler/                       files of their own

Files are read on first use, and tensors some rows at a time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.errors import ModelError
from wgpu_backend.files.huggingface.json_files import read_json
from wgpu_backend.files.huggingface.safetensors import StoredTensor
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.values import Values, as_f32, raw_rows, read_values
from wgpu_backend.files.huggingface.weights import Weights

INDEX = "model_index.json"
T = TypeVar("T")
_STEMS = ("diffusion_pytorch_model", "model")
_SETTINGS = (
    "config.json", "scheduler_config.json", "preprocessor_config.json", "processor_config.json",
)  # fmt: skip
_INTEGERS = {"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U8": "u1", "BOOL": "?"}
# Names that a message lists.
_SHOWN = 3


class Component:
    """A part of a pipeline: a network with settings and tensors, or files of another kind.

    Parameters
    ----------
    name : str
        ``unet``, ``text_encoder_2``.
    class_name : str
        Class in model_index.json: ``UNet2DConditionModel``; empty if it names none.
    variant : str or None
        Variant of files such as ``model.fp16.safetensors``. None takes plain files, or the only
        variant if there are none.
    """

    def __init__(
        self, folder: Path, name: str, class_name: str = "", variant: str | None = None
    ) -> None:
        self.folder = folder
        self.name = name
        self.class_name = class_name
        self._variant = variant
        self._weights: Weights | None = None
        self._settings: Settings | None = None

    def __repr__(self) -> str:
        return f"Component({self.name!r}, {self.class_name})"

    @property
    def settings(self) -> Settings:
        """Return the keys of config.json, or of the file of a scheduler or processor.

        Raises
        ------
        ModelError
            There is no such file, or it is not JSON.
        """
        if self._settings is None:
            path = next(
                (self.folder / name for name in _SETTINGS if (self.folder / name).exists()),
                self.folder / _SETTINGS[0],
            )
            self._settings = Settings(str(path), read_json(path))
        return self._settings

    @property
    def tensors(self) -> Mapping[str, StoredTensor]:
        """Return the location of each tensor, by its published name.

        Raises
        ------
        ModelError
            No file has tensors, a shard is missing, or a file is damaged.
        """
        if self._weights is None:
            index, single = _weight_files(self.folder, self._variant)
            self._weights = Weights(self.folder, index=index, single=single)
        return self._weights.tensors

    def require(self, shapes: Mapping[str, Sequence[int]]) -> None:
        """Raise if tensors are missing or have other shapes.

        Raises
        ------
        ModelError
            Names the first that differs, with both shapes; or the missing ones.
        """
        missing = [name for name in shapes if name not in self.tensors]
        if missing:
            wanted = ", ".join(f"{name!r} {list(shapes[name])}" for name in missing[:_SHOWN])
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            raise ModelError(
                f"{self.folder}: {len(missing)} of {len(shapes)} tensors are missing: "
                f"{wanted}{more}; {len(self.tensors)} are there"
            )
        for name, shape in shapes.items():
            self._find(name, shape)

    def values(self, name: str, shape: Sequence[int] | None = None) -> Values:
        """Return the rows of a float tensor, to be read on demand.

        Raises
        ------
        ModelError
            There is no such tensor, or it has another shape or no floats.
        """
        return read_values(self._find(name, shape))

    def array(self, name: str, shape: Sequence[int] | None = None) -> NDArray[Any]:
        """Read a whole tensor: floats as f32, other types unchanged.

        Raises
        ------
        ModelError
            As `values`, except for integers.
        """
        tensor = self._find(name, shape)
        kind = _INTEGERS.get(tensor.kind)
        if kind is not None:
            size = int(np.prod(tensor.shape, dtype=np.int64))
            cols = tensor.shape[-1] if tensor.shape else 1
            return raw_rows(tensor, kind)(0, size // cols if cols else 0).reshape(tensor.shape)
        values = read_values(tensor)
        return as_f32(values.read(0, values.rows), values.dtype).reshape(tensor.shape)

    def choose(self, classes: Mapping[str, T]) -> T:
        """Look up the component's class in a table.

        Raises
        ------
        ModelError
            The table lacks the class; the message lists the known ones.
        """
        return _choose(str(self.folder), self.class_name, classes)

    def close(self) -> None:
        """Close the files; they are reopened on demand."""
        if self._weights is not None:
            self._weights.close()
            self._weights = None

    def _find(self, name: str, shape: Sequence[int] | None) -> StoredTensor:
        tensor = self.tensors.get(name)
        if tensor is None:
            # Published files name the same tensor in several ways, so the likely one helps.
            near = _nearest(name, self.tensors)
            hint = f"; {near!r} is there" if near else ""
            wanted = "" if shape is None else f" of shape {list(shape)}"
            raise ModelError(f"{self.folder}: tensor {name!r}{wanted} is missing{hint}")
        if shape is not None and tuple(shape) != tensor.shape:
            raise ModelError(
                f"{tensor.file.path}: tensor {name!r} has shape {list(tensor.shape)}, the settings "
                f"need {list(shape)}"
            )
        return tensor


class PipelineFolder:
    """A folder with model_index.json.

    Parameters
    ----------
    variant : str or None
        Variant of all components, see `Component`.

    Raises
    ------
    ModelError
        There is no such folder, or model_index.json is missing or damaged.
    """

    def __init__(self, path: str | Path, variant: str | None = None) -> None:
        self.path = Path(path)
        if not (self.path / INDEX).exists():
            kind = "has no" if self.path.is_dir() else "is not a folder, needs one with"
            raise ModelError(f"{self.path}: {kind} {INDEX}")
        self.index = Settings(str(self.path / INDEX), read_json(self.path / INDEX))
        self.class_name = self.index.text("_class_name")
        self.components = {
            name: Component(self.path / name, name, class_name, variant)
            for name, class_name in _components(self.index)
        }

    def __repr__(self) -> str:
        return f"PipelineFolder({str(self.path)!r}, {self.class_name})"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __contains__(self, name: str) -> bool:
        return name in self.components

    def __getitem__(self, name: str) -> Component:
        """Return the component of a name.

        Raises
        ------
        ModelError
            The pipeline has none, or its folder is missing.
        """
        found = self.components.get(name)
        if found is None:
            raise ModelError(
                f"{self.path}: no component {name!r}, {INDEX} has {', '.join(self.components)}"
            )
        if not found.folder.is_dir():
            raise ModelError(f"{found.folder}: no such folder; {INDEX} lists it")
        return found

    def choose(self, classes: Mapping[str, T]) -> T:
        """Look up the pipeline's class in a table; raises like `Component.choose`."""
        return _choose(str(self.path), self.class_name, classes)

    def close(self) -> None:
        """Close the files of all components; calling it again is harmless."""
        for component in self.components.values():
            component.close()


def _components(index: Settings) -> Iterable[tuple[str, str]]:
    """Yield names and classes; unused components are null."""
    for name, value in index.values.items():
        if name.startswith("_") or not isinstance(value, list):
            continue
        pair = cast("list[object]", value)
        # A name must not lead out of the folder.
        if len(pair) != 2 or Path(name).name != name or name == "..":
            raise index.error(name, f"is {str(pair)[:60]}, needs a library and a class")
        if isinstance(pair[1], str):
            yield name, pair[1]


def _weight_files(folder: Path, variant: str | None) -> tuple[str, str]:
    """Return the names of an index and of a single file; one exists if any weights do."""
    for stem in _STEMS:
        for kind in (variant,) if variant else (None, *_variants(folder, stem)):
            infix = f".{kind}" if kind else ""
            names = f"{stem}.safetensors.index{infix}.json", f"{stem}{infix}.safetensors"
            if any((folder / name).exists() for name in names):
                return names
    if variant and folder.is_dir():
        there = ", ".join(sorted(p.name for p in folder.glob("*.safetensors"))) or "none"
        raise ModelError(f"{folder}: no safetensors of variant {variant!r}, there are {there}")
    return f"{_STEMS[0]}.safetensors.index.json", f"{_STEMS[0]}.safetensors"


def _variants(folder: Path, stem: str) -> list[str]:
    """Return the variants of a folder's files, such as fp16."""
    single = {p.name.removeprefix(stem + ".") for p in folder.glob(f"{stem}.*.safetensors")}
    sharded = {
        p.name.removeprefix(f"{stem}.safetensors.index.").removesuffix(".json") + ".safetensors"
        for p in folder.glob(f"{stem}.safetensors.index.*.json")
    }
    found = {name.removesuffix(".safetensors") for name in single | sharded}
    return sorted(name for name in found if "-of-" not in name)


def _choose(source: str, class_name: str, classes: Mapping[str, T]) -> T:
    if class_name not in classes:
        raise ModelError(
            f"{source}: class {class_name!r} is unknown, needs one of {', '.join(classes)}"
        )
    return classes[class_name]


def _nearest(name: str, others: Iterable[str]) -> str | None:
    """Return a tensor whose name differs in its prefix only."""
    end = name.rpartition(".")[0].rpartition(".")[2] + "." + name.rpartition(".")[2]
    return next((other for other in others if other.endswith(end)), None)
