"""Tiny random towers in files, and the rows that they make of a picture."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from tests.data.tower_weights import make_weights
from tests.files.huggingface.folders import safetensors
from wgpu_backend.files.gguf.parts import tower_part
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.files.huggingface.tower import open_tower_folder
from wgpu_backend.ml.backend import Backend, BackendParams, make_executor
from wgpu_backend.nn.tower import Media, Tower, projector_kinds, tower_class

Weights = dict[str, np.ndarray]


def write_mmproj(path: Path, keys: Mapping[str, Any], weights: Weights) -> Path:
    """Write an mmproj file; keys without ``clip.`` as llama.cpp's converter names them."""
    writer = GGUFWriter(path, "clip")
    for key, value in {"has_vision_encoder": True, **keys}.items():
        name = f"clip.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    for name, values in weights.items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def random_weights(shapes: Mapping[str, Sequence[int]], seed: int = 0) -> Weights:
    """Return weights whose products keep the size of states; norms are near 1, biases small."""
    rng = np.random.default_rng(seed)
    made: Weights = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape, np.float32)
        if len(shape) > 1:
            made[name] = values * np.float32(np.prod(shape[1:]) ** -0.5)
        else:
            made[name] = values * np.float32(0.1) + np.float32(name.endswith("weight"))
    return made


def layer_shapes(count: int, width: int, inner: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a plain vision transformer's layers, with biases."""
    one = {
        "ln1": (width,),
        "ln2": (width,),
        **{f"attn_{part}": (width, width) for part in ("q", "k", "v", "out")},
        "ffn_up": (inner, width),
        "ffn_down": (width, inner),
    }
    return {
        name: shape
        for i in range(count)
        for part, whole in one.items()
        for name, shape in (
            (f"v.blk.{i}.{part}.weight", whole),
            (f"v.blk.{i}.{part}.bias", whole[:1]),
        )
    }


def open_tower(path: Path, device: str) -> tuple[Tower, Backend]:
    """Load the tower of an mmproj file; closing the backend releases it."""
    file = tower_part(open_gguf(path))
    try:
        backend = Backend(file, make_executor(device, BackendParams(exact=True)))
    except BaseException:
        file.close()
        raise
    try:
        backend.load()
        [(modality, kind)] = projector_kinds(backend.config).items()
        return tower_class(backend.config, modality, kind)(backend), backend
    except BaseException:
        file.close()
        backend.close()
        raise


def rows(tower: Tower, media: Media) -> np.ndarray:
    """Return what a tower makes of a prepared picture."""
    with tower.backend.new_context() as context:
        tensors = {name: context.from_numpy(array) for name, array in media.arrays.items()}
        return tower.encode(context, tensors).numpy()


# The formulas of transformers, in f64.


def layer_norm(x: np.ndarray, weights: Weights, name: str, eps: float) -> np.ndarray:
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weight


def linear(x: np.ndarray, weights: Weights, name: str) -> np.ndarray:
    matrix = weights[f"{name}.weight"]
    y = x @ matrix.reshape(len(matrix), -1).T
    return y + weights.get(f"{name}.bias", 0.0)


def tanh_gelu(x: np.ndarray) -> np.ndarray:
    return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x: np.ndarray) -> np.ndarray:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, heads: int) -> np.ndarray:
    """Attend over all patches: (patches, width) each."""
    q, k, v = (x.reshape(len(x), heads, -1).swapaxes(0, 1) for x in (q, k, v))
    scores = softmax(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]))
    return (scores @ v).swapaxes(0, 1).reshape(q.shape[1], -1)


def open_recorded(
    folder: Path, facts: Mapping[str, Any], name: str, device: str, *, video: bool = False
) -> tuple[Tower, Backend]:
    """Open the tower of a recorded model from a folder with its settings and weights."""
    own = facts[name]
    (folder / "config.json").write_text(json.dumps(own["config"]))
    for kind in ("preprocessor", *(["video_preprocessor"] if video else [])):
        (folder / f"{kind}_config.json").write_text(json.dumps(own["processor"]))
    weights = make_weights({key: tuple(shape) for key, shape in own["shapes"].items()})
    (folder / "model.safetensors").write_bytes(safetensors(weights))
    file = open_tower_folder(folder)
    assert file is not None
    backend = Backend(file, make_executor(device, BackendParams(exact=True)))
    backend.load()
    [(modality, kind)] = projector_kinds(backend.config).items()
    return tower_class(backend.config, modality, kind)(backend), backend
