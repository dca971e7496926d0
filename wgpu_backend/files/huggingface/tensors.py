"""Tensors of a folder as in a GGUF file: names, order, and joined parts."""

from __future__ import annotations

from collections.abc import Mapping

from wgpu_backend.dtypes import BF16, F16, F32, DType
from wgpu_backend.errors import ModelError
from wgpu_backend.files.huggingface.family import EXPERT_COUNTS, Family
from wgpu_backend.files.huggingface.shared_settings import layer_count
from wgpu_backend.files.huggingface.transforms import stack
from wgpu_backend.files.huggingface.values import Values
from wgpu_backend.files.huggingface.weights import Weights

# Matrices in f32, as in llama.cpp's converter: small ones whose errors affect all tokens.
_ALWAYS_F32 = (
    "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "position_embd.weight",
    "token_types.weight", "_norm.weight", "ssm_conv1d.weight",
)  # fmt: skip


def rename_tensors(weights: Weights, family: Family) -> dict[str, Values]:
    """Return the tensors of a folder under their names in GGUF files.

    Raises
    ------
    ModelError
        The family has no such tensor, one exists twice, a part or a layer is missing, or one has
        another shape than in the settings.
    """
    whole: dict[str, Values] = dict(family.extra())
    parts: dict[str, dict[int, Values]] = {}
    origin: dict[str, str] = {}
    for name, values in weights.values(family.settings, family.useful):
        where = weights.tensors.get(name) or weights.tensors[name + "_blocks"]
        try:
            made = family.rename(name, values)
        except ModelError as error:
            raise ModelError(f"{where.file.path}: tensor {name!r}: {error}") from None
        for gguf_name, part, changed in made:
            key = gguf_name if part is None else f"{gguf_name} {part}"
            if key in origin:
                raise ModelError(
                    f"{where.file.path}: tensors {origin[key]!r} and {name!r} are both {gguf_name}"
                )
            origin[key] = name
            if part is None:
                whole[gguf_name] = changed
            else:
                parts.setdefault(gguf_name, {})[part] = changed
    for name, numbered in parts.items():
        whole[name] = _together(weights, family, name, numbered)
    _require_layers(weights, family, whole)
    # The output is tied to the embedding except for its bias.
    if "output.bias" in whole and "output.weight" not in whole:
        whole["output.weight"] = whole["token_embd.weight"]
    return dict(sorted(whole.items(), key=lambda item: _order(item[0])))


def _together(weights: Weights, family: Family, name: str, parts: Mapping[int, Values]) -> Values:
    count = family.settings.uint(*EXPERT_COUNTS, default=len(parts))
    missing = next((number for number in range(count) if number not in parts), None)
    if missing is not None or len(parts) != count:
        which = "" if missing is None else f", number {missing} is missing"
        raise ModelError(
            f"{weights.folder}: {name}: {len(parts)} experts are there, config.json has {count}"
            f"{which}"
        )
    try:
        return stack([parts[number] for number in range(count)])
    except ModelError as error:
        raise ModelError(f"{weights.folder}: {name}: {error}") from None


def _require_layers(weights: Weights, family: Family, tensors: Mapping[str, Values]) -> None:
    """Check the number of layers against config.json; the models check each layer."""
    # A decoder's layers, where the file has an encoder as well.
    bare = [name.removeprefix("dec.") for name in tensors]
    there = {int(name.split(".")[1]) for name in bare if name.startswith("blk.")}
    count = layer_count(family.settings)
    if there != set(range(count)):
        lacking = sorted(set(range(count)) - there)
        which = f"; layer {lacking[0]} is missing" if lacking else ""
        raise ModelError(
            f"{weights.folder}: tensors are of {len(there)} layers, config.json has {count}{which}"
        )


def _order(name: str) -> tuple[int, int, str]:
    """Return a sort key: tensors around the layers first, then layer by layer."""
    parts = name.split(".")
    return (1, int(parts[1]), name) if parts[0] == "blk" else (0, 0, name)


def stored_type(name: str, values: Values) -> DType:
    """Return the type of a tensor in the folder's file: f32 for vectors and small tables."""
    lone = len(values.shape) <= 1 or not name.endswith(".weight")
    return F32 if lone or name.endswith(_ALWAYS_F32) else values.dtype


def main_type(tensors: Mapping[str, Values]) -> DType:
    """Return the type of most values."""
    counts = dict.fromkeys((F32, F16, BF16), 0)
    for name, values in tensors.items():
        dtype = stored_type(name, values)
        counts[dtype] = counts.get(dtype, 0) + values.rows * values.cols
    return max(counts, key=lambda dtype: counts[dtype])
