"""The facts of a model file: its sizes, types, template and license."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import cast

import numpy as np

from wgpu_backend.cli.console import human_bytes, human_count
from wgpu_backend.cli.names import exists, find_model
from wgpu_backend.cli.store import find_stored
from wgpu_backend.files.gguf.config import Config, Value
from wgpu_backend.files.gguf.reader import GGUFFile
from wgpu_backend.files.huggingface.folder import Folder, open_model_file
from wgpu_backend.files.quantize.mixes import file_type

TEMPLATE = "tokenizer.chat_template"
# A vocabulary has a hundred thousand tokens; Ollama prints no list either.
_MAX_VALUES = 64
# Chat templates are shorter; what is longer is data in a text.
_MAX_CHARACTERS = 65_536


def list_facts(file: GGUFFile) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a model's main facts."""
    config = file.config
    if "general.name" in config:
        yield "name", config.string("general.name")
    yield "architecture", config.architecture
    yield "parameters", human_count(count_parameters(file))
    yield "quantisation", describe_quantisation(file)
    for label, key in (
        ("context length", "context_length"),
        ("embedding length", "embedding_length"),
        ("layers", "block_count"),
        ("heads", "attention.head_count"),
        ("KV heads", "attention.head_count_kv"),
    ):
        if key in config:
            yield label, _format_number(config, key)
    yield "tokenizer", _describe_tokenizer(config)
    text = read_template(config)
    yield "chat template", f"{len(text)} characters (--template)" if text else "none"
    yield "tensors", summarise_tensors(file)
    if isinstance(file, Folder):
        yield "folder", f"{human_bytes(file_nbytes(file))}, {_count_files(len(file.weight_files))}"
    else:
        parts = f" in {len(file.paths)} parts" if len(file.paths) > 1 else ""
        yield "file", f"{human_bytes(file_nbytes(file))}{parts}, GGUF version {file.version}"
    if "general.license" in config:
        yield "license", config.string("general.license")


def list_tower_facts(file: GGUFFile) -> Iterator[tuple[str, str]]:
    """Yield the names and values of the main facts of an mmproj file."""
    config = file.config
    yield "architecture", config.architecture
    yield "parameters", human_count(count_parameters(file))
    yield "quantisation", describe_quantisation(file)
    for part in ("vision", "audio"):
        for label, key in (
            ("kind", "projector_type"),
            ("layers", "block_count"),
            ("embedding length", "embedding_length"),
            ("dimensions", "projection_dim"),
        ):
            if f"{part}.{key}" in config:
                yield f"{part} {label}", _format_number(config, f"{part}.{key}")
    if "projector_type" in config:
        yield "kind", config.string("projector_type")
    yield "file", human_bytes(file_nbytes(file))


def describe_file(file: GGUFFile, *, tensors: bool) -> dict[str, object]:
    """Describe a file, in the form of Ollama's `/api/show`.

    Parameters
    ----------
    tensors : bool
        Include the name, type and shape of each tensor.
    """
    config, nbytes = file.config, weight_nbytes(file)
    found: dict[str, object] = {
        "details": {
            "format": "safetensors" if isinstance(file, Folder) else "gguf",
            "family": config.architecture,
            "parameter_size": human_count(count_parameters(file)),
            "quantization_level": file_type(file),
        },
        "parameters": count_parameters(file),
        "bits_per_weight": 8 * nbytes / max(count_parameters(file), 1),
        "size": file_nbytes(file),
        "template": read_template(config),
        "model_info": {key: shorten_value(value) for key, value in config.metadata.items()},
    }
    if tensors:
        found["tensors"] = [
            {"name": i.name, "type": i.dtype.name.upper(), "shape": i.shape}
            for i in file.tensors.values()
        ]
    return found


def shorten_value(value: Value) -> object:
    """Return a value of a key; None for a long one such as the tokens, as in Ollama."""
    plain = cast("object", value.tolist() if isinstance(value, np.ndarray) else value)
    if isinstance(plain, list):
        values = cast("list[object]", plain)
        return None if len(values) > _MAX_VALUES else [_replace_infinity(each) for each in values]
    if isinstance(plain, str) and len(plain) > _MAX_CHARACTERS:
        return None
    return _replace_infinity(plain)


def _replace_infinity(value: object) -> object:
    """Return a value, as text if it is an infinity or NaN, which JSON lacks."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def count_parameters(file: GGUFFile) -> int:
    """Count the weights of a model."""
    return sum(math.prod(info.shape) for info in file.tensors.values())


def weight_nbytes(file: GGUFFile) -> int:
    """Return the bytes of all weights in the file."""
    return sum(info.nbytes for info in file.tensors.values())


def file_nbytes(file: GGUFFile) -> int:
    """Return the bytes of all parts of a GGUF file, or of all weight files of a checkpoint."""
    paths = file.weight_files if isinstance(file, Folder) else file.paths
    return sum(path.stat().st_size for path in paths)


def _count_files(count: int) -> str:
    return f"{count} safetensors file{'s' if count > 1 else ''}"


def describe_quantisation(file: GGUFFile) -> str:
    """Return the quantisation of a model and its bits per weight."""
    if not file.tensors:
        return "no tensors"
    bits = 8 * weight_nbytes(file) / max(count_parameters(file), 1)
    return f"{file_type(file)}, {bits:.2f} bits per weight"


def summarise_tensors(file: GGUFFile) -> str:
    """Count the tensors of each type."""
    counts = Counter(info.dtype.name for info in file.tensors.values())
    kinds = ", ".join(f"{n} {name.upper()}" for name, n in counts.most_common())
    return f"{len(file.tensors)} ({kinds})" if kinds else "0"


def read_template(config: Config) -> str:
    """Return the chat template of a model; empty if it has none."""
    return config.string(TEMPLATE, "")


def _format_number(config: Config, key: str) -> str:
    """Format a value that may be one for all layers or one for each."""
    value = config.metadata[f"{config.architecture}.{key}"]
    return str(value) if isinstance(value, int | float | str) else "by layer"


def _describe_tokenizer(config: Config) -> str:
    model = config.string("tokenizer.ggml.model", "none")
    pre = config.string("tokenizer.ggml.pre", "")
    tokens = len(config.strings("tokenizer.ggml.tokens", []))
    return f"{model}{f' ({pre})' if pre else ''}, {tokens:,} tokens"


def find_license(name: str) -> str:
    """Return the license of a model, from the store or its file.

    Raises
    ------
    UsageError
        The model does not exist.
    """
    found = None if exists(name) else find_stored(name)
    if found is not None and found.license:
        return found.license
    with open_model_file(find_model(name), check_types=False) as file:
        return file.config.string("general.license", "") or "none"
