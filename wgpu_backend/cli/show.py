"""`wgpu-backend show`: the facts and contents of a model."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import cast

import numpy as np

from wgpu_backend.cli.console import (
    answer,
    human_bytes,
    human_count,
    print_facts,
    print_table,
)
from wgpu_backend.cli.failures import UsageError, one_line
from wgpu_backend.cli.library import parameters_of, stored, system_of, text_of_modelfile
from wgpu_backend.cli.names import exists, model_path
from wgpu_backend.files.gguf.config import Config, Value
from wgpu_backend.files.gguf.reader import GGUFFile
from wgpu_backend.files.huggingface.folder import Folder, open_model_file
from wgpu_backend.files.quantize.mixes import file_type

TEMPLATE = "tokenizer.chat_template"
_SHORT = 64  # longest list that is printed
_LONG = 65_536  # longest text that is printed, in characters


def print_model(name: str, parts: Sequence[str] = (), *, as_json: bool = False) -> None:
    """Print the facts of a model, or one part of it.

    Parameters
    ----------
    name : str
        Model.
    parts : sequence of str
        At most one of ``tensors``, ``template``, ``modelfile``, ``parameters``, ``system``,
        ``license``, and ``verbose`` for everything; in JSON, ``tensors`` besides the others.

    Raises
    ------
    UsageError
        Several parts are given, or the store does not have the model.
    """
    if len(parts) > 1:
        both = " and ".join(f"--{each}" for each in parts)
        raise UsageError(f"show: {both}, needs one at most")
    part = parts[0] if parts else ""
    if part in _OF_STORED:
        answer(_OF_STORED[part](name))
        return
    with open_model_file(model_path(name), check_types=False) as file:
        if as_json:
            answer(json.dumps(described(file, tensors=part == "tensors"), indent=2) + "\n")
        else:
            _IN_FILES[part](file)
    if not part and not as_json:
        _print_stored(name)


def _print_template(file: GGUFFile) -> None:
    answer(template_of(file.config) + "\n")


def _print_facts(file: GGUFFile) -> None:
    print_facts(facts(file))


def _print_stored(name: str) -> None:
    """Print the store's parameters and system message of a model."""
    found = None if exists(name) else stored(name)
    if found is None:
        return
    if found.parameters:
        answer("\nparameters\n" + parameters_of(name))
    if found.system:
        answer(f"\nsystem\n{found.system}\n")


def _print_everything(file: GGUFFile) -> None:
    _print_facts(file)
    answer("\n")
    keys = file.config.metadata.items()
    print_facts((key, _written(value)) for key, value in keys if key != TEMPLATE)
    answer("\n")
    print_tensors(file)


def _written(value: Value) -> str:
    """Format a value of a key in a line; only the length for a long one."""
    short = _short(value)
    if short is not None:
        return one_line(str(short))
    unit = "characters" if isinstance(value, str) else "values"
    return f"{len(cast('Sequence[object]', value)):,} {unit}"


def license_of(name: str) -> str:
    """Return the license of a model, from the store or its file.

    Raises
    ------
    UsageError
        The model does not exist.
    """
    found = None if exists(name) else stored(name)
    if found is not None and found.license:
        return found.license
    with open_model_file(model_path(name), check_types=False) as file:
        return file.config.string("general.license", "") or "none"


_OF_STORED: dict[str, Callable[[str], str]] = {
    "modelfile": text_of_modelfile,
    "parameters": parameters_of,
    "system": system_of,
    "license": lambda name: license_of(name) + "\n",
}


def facts(file: GGUFFile) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a model's main facts."""
    config = file.config
    if "general.name" in config:
        yield "name", config.string("general.name")
    yield "architecture", config.architecture
    yield "parameters", human_count(parameters(file))
    yield "quantisation", quantisation(file)
    for label, key in (
        ("context length", "context_length"),
        ("embedding length", "embedding_length"),
        ("layers", "block_count"),
        ("heads", "attention.head_count"),
        ("KV heads", "attention.head_count_kv"),
    ):
        if key in config:
            yield label, _number(config, key)
    yield "tokenizer", _tokenizer(config)
    text = template_of(config)
    yield "chat template", f"{len(text)} characters (--template)" if text else "none"
    yield "tensors", tensor_summary(file)
    if isinstance(file, Folder):
        yield "folder", f"{human_bytes(file_nbytes(file))}, {_files(len(file.weight_files))}"
    else:
        parts = f" in {len(file.paths)} parts" if len(file.paths) > 1 else ""
        yield "file", f"{human_bytes(file_nbytes(file))}{parts}, GGUF version {file.version}"
    if "general.license" in config:
        yield "license", config.string("general.license")


def described(file: GGUFFile, *, tensors: bool) -> dict[str, object]:
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
            "parameter_size": human_count(parameters(file)),
            "quantization_level": file_type(file),
        },
        "parameters": parameters(file),
        "bits_per_weight": 8 * nbytes / max(parameters(file), 1),
        "size": file_nbytes(file),
        "template": template_of(config),
        "model_info": {key: _short(value) for key, value in config.metadata.items()},
    }
    if tensors:
        found["tensors"] = [
            {"name": i.name, "type": i.dtype.name.upper(), "shape": i.shape}
            for i in file.tensors.values()
        ]
    return found


def _short(value: Value) -> object:
    """Return a value of a key; None for a long one such as the tokens, as in Ollama."""
    plain = cast("object", value.tolist() if isinstance(value, np.ndarray) else value)
    if isinstance(plain, list):
        values = cast("list[object]", plain)
        return None if len(values) > _SHORT else [_finite(each) for each in values]
    if isinstance(plain, str) and len(plain) > _LONG:
        return None
    return _finite(plain)


def _finite(value: object) -> object:
    """Return a value, as text if it is an infinity or NaN, which JSON lacks."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def parameters(file: GGUFFile) -> int:
    """Count the weights of a model."""
    return sum(math.prod(info.shape) for info in file.tensors.values())


def weight_nbytes(file: GGUFFile) -> int:
    """Return the bytes of all weights in the file."""
    return sum(info.nbytes for info in file.tensors.values())


def file_nbytes(file: GGUFFile) -> int:
    """Return the bytes of all parts of a GGUF file, or of all weight files of a checkpoint."""
    paths = file.weight_files if isinstance(file, Folder) else file.paths
    return sum(path.stat().st_size for path in paths)


def _files(count: int) -> str:
    return f"{count} safetensors file{'s' if count > 1 else ''}"


def quantisation(file: GGUFFile) -> str:
    """Return the quantisation of a model and its bits per weight."""
    if not file.tensors:
        return "no tensors"
    bits = 8 * weight_nbytes(file) / max(parameters(file), 1)
    return f"{file_type(file)}, {bits:.2f} bits per weight"


def tensor_summary(file: GGUFFile) -> str:
    """Count the tensors of each type."""
    counts = Counter(info.dtype.name for info in file.tensors.values())
    kinds = ", ".join(f"{n} {name.upper()}" for name, n in counts.most_common())
    return f"{len(file.tensors)} ({kinds})" if kinds else "0"


def template_of(config: Config) -> str:
    """Return the chat template of a model; empty if it has none."""
    return config.string(TEMPLATE, "")


def print_tensors(file: GGUFFile) -> None:
    """Print a line for each tensor."""
    rows = [
        (i.name, i.dtype.name.upper(), " × ".join(map(str, i.shape)), human_bytes(i.nbytes))
        for i in file.tensors.values()
    ]
    print_table(("tensor", "type", "shape", "size"), rows, right=("shape", "size"))


_IN_FILES: dict[str, Callable[[GGUFFile], None]] = {
    "": _print_facts,
    "tensors": print_tensors,
    "template": _print_template,
    "verbose": _print_everything,
}


def _number(config: Config, key: str) -> str:
    """Format a value that may be one for all layers or one for each."""
    value = config.metadata[f"{config.architecture}.{key}"]
    return str(value) if isinstance(value, int | float | str) else "by layer"


def _tokenizer(config: Config) -> str:
    model = config.string("tokenizer.ggml.model", "none")
    pre = config.string("tokenizer.ggml.pre", "")
    tokens = len(config.strings("tokenizer.ggml.tokens", []))
    return f"{model}{f' ({pre})' if pre else ''}, {tokens:,} tokens"
