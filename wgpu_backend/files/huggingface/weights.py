"""The tensors of a folder, from one safetensors file or the shards of an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import cast

import numpy as np

from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.file_bytes import FileBytes
from wgpu_backend.files.huggingface.json_files import read_json
from wgpu_backend.files.huggingface.safetensors import StoredTensor, open_safetensors
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.values import (
    Values,
    apply_scales,
    as_f32,
    packed_mxfp4,
    read_values,
)

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_SCALES = (".weight_scale_inv", ".weight_scale")
# Scales of activations, which are not rounded to 8-bit floats here.
_UNUSED = (".input_scale", ".k_scale", ".v_scale", ".activation_scale", ".output_scale")
_METHODS = ("fp8", "mxfp4", "compressed-tensors", "fbgemm_fp8")


class Weights:
    """Tensors of a folder by name, and the files they are in.

    Parameters
    ----------
    folder : Path
        The folder of the checkpoint.
    index, single : str
        Names of the file that lists shards, and of the file with all tensors if there is no list.

    Raises
    ------
    ModelError
        A shard is missing or damaged, or a tensor is in two; no file stays open.
    """

    def __init__(self, folder: Path, *, index: str = INDEX, single: str = SINGLE) -> None:
        self.folder = folder
        self._index = folder / index
        self._files: list[FileBytes] = []
        self.tensors: dict[str, StoredTensor] = {}
        try:
            shards, expected = _shards(self._index, single)
            for shard in shards:
                self._open(shard)
            for name, shard in expected.items():
                self._require_in(name, shard)
        except BaseException:
            self.close()
            raise

    @property
    def paths(self) -> list[Path]:
        """Return the files that contain the tensors."""
        return [file.path for file in self._files]

    def _open(self, path: Path) -> None:
        file, tensors = open_safetensors(path)
        self._files.append(file)
        for name, tensor in tensors.items():
            other = self.tensors.get(name)
            if other is not None:
                raise ModelError(f"{path}: tensor {name!r} is in {other.file.path.name}, too")
            self.tensors[name] = tensor

    def _require_in(self, name: str, shard: str) -> None:
        found = self.tensors.get(name)
        # A stale shard of another download would have the wrong values.
        if found is None or found.file.path.name != shard:
            where = "in no shard" if found is None else f"in {found.file.path.name}"
            raise ModelError(
                f"{self._index}: tensor {name!r} is {where}, the index places it in {shard}"
            )

    def values(
        self, settings: Settings, useful: Callable[[str], bool]
    ) -> Iterator[tuple[str, Values]]:
        """Yield names and values of the useful tensors, with parts combined.

        Raises
        ------
        ModelError
            A tensor cannot be read, or parts do not belong together.
        """
        block = _block(settings)
        for name, tensor in self.tensors.items():
            if name.endswith((*_SCALES, *_UNUSED, "_scales")) or not useful(name):
                continue
            if name.endswith("_blocks"):
                whole = name.removesuffix("_blocks")
                yield whole, packed_mxfp4(tensor, self._other(name, whole + "_scales"))
            else:
                yield name, self._read_scaled(tensor, block)

    def _read_scaled(self, tensor: StoredTensor, block: tuple[int, int]) -> Values:
        values = read_values(tensor)
        names = (tensor.name.removesuffix(".weight") + suffix for suffix in _SCALES)
        scales = next((self.tensors[name] for name in names if name in self.tensors), None)
        if scales is None:
            return values
        made = read_values(scales)
        factors = as_f32(made.read(0, made.rows), made.dtype).reshape(made.shape)
        try:
            return apply_scales(values, np.asarray(factors), block)
        except ModelError as error:
            raise ModelError(f"{tensor.file.path}: tensor {tensor.name!r}: {error}") from None

    def _other(self, name: str, wanted: str) -> StoredTensor:
        found = self.tensors.get(wanted)
        if found is None:
            raise ModelError(f"{self.tensors[name].file.path}: tensor {name!r} lacks {wanted!r}")
        return found

    def close(self) -> None:
        """Close the files; a second call does nothing."""
        for file in self._files:
            file.close()


def _shards(index: Path, single: str) -> tuple[list[Path], Mapping[str, str]]:
    """Return the files with tensors, and the file of each tensor if there is an index."""
    folder = index.parent
    if not index.exists():
        return [_single(folder, index.name, single)], {}
    weight_map: object = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise ModelError(f"{index}: key 'weight_map' is missing, needs tensors and their files")
    expected = cast("dict[str, object]", weight_map)
    for name, shard in expected.items():
        # An index must not lead out of its folder.
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise ModelError(
                f"{index}: tensor {name!r}: file {str(shard)[:80]!r} is not a file name"
            )
    named = cast("dict[str, str]", expected)
    shards = sorted({*named.values()})
    for shard in shards:
        if not (folder / shard).exists():
            there = sum((folder / other).exists() for other in shards)
            raise ModelError(
                f"{folder / shard}: no such file; {there} of the {len(shards)} shards that "
                f"{index.name} lists are there"
            )
    return [folder / shard for shard in shards], named


def _single(folder: Path, index: str, single: str) -> Path:
    """Return the only file with tensors."""
    files = sorted(folder.glob("*.safetensors"))
    if folder / single in files or len(files) == 1:
        return folder / single if folder / single in files else files[0]
    if files:
        raise ModelError(f"{folder}: {len(files)} safetensors files and no {index}")
    pickled = next(folder.glob("*.bin"), None)
    hint = "" if pickled is None else f"; {pickled.name} holds Python objects, which are not read"
    raise ModelError(f"{folder}: no {single} and no {index}{hint}")


def _block(settings: Settings) -> tuple[int, int]:
    """Return rows and columns that share a scale, for models of 8-bit floats."""
    quantised = settings.section("quantization_config")
    method = quantised.text("quant_method", default="fp8")
    if method not in _METHODS:
        raise quantised.error("quant_method", f"is {method!r}, needs one of {', '.join(_METHODS)}")
    height, width = quantised.uints("weight_block_size", default=[128, 128])[:2]
    return max(height, 1), max(width, 1)
