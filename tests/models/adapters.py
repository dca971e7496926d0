"""LoRA adapters and control vectors with random values for the models of tests."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from wgpu_backend.files.gguf.reader import open_gguf

FIRST, SECOND = 0.5, -1.5  # scales of the two adapters of a case
STRENGTH = 0.7  # of its control vector
# Models of `tests.models.outlines`: products, fused ones and lookups; biases; experts; a shared
# embedding, which adapters of lookups would change for logits in one program and not in another.
CASES = ("llama", "mixtral", "qwen2moe", "gemma3", "bert")
UNCHANGED = ("position_embd", "token_types", "ffn_gate_inp_shexp", "attn_k_b", "attn_v_b")


def a_lora(
    path: Path,
    base: Path,
    *,
    only: tuple[str, ...] = ("",),
    rank: int = 4,
    seed: int = 1,
    dtype: type[np.floating[Any]] = np.float32,
    keys: dict[str, Any] | None = None,
    tensors: dict[str, np.ndarray | None] | None = None,
    unchanged: tuple[str, ...] = UNCHANGED,
) -> Path:
    """Write an adapter for the matrices of a model whose names have one of `only` in them.

    `keys` and `tensors` replace or add some; None leaves one out.
    """
    found = {
        "general.architecture": "",
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": 2.0 * rank,
    }
    values: dict[str, np.ndarray | None] = {}
    with open_gguf(base) as file:
        found["general.architecture"] = file.config.architecture
        tied = "output.weight" not in file.tensors and file.config.architecture != "bert"
        for name, info in file.tensors.items():
            if name.startswith("token_embd") and tied:
                continue
            if any(n in name for n in unchanged):
                continue
            if len(info.shape) > 1 and any(n in name for n in only):
                a, b = _pair(name, info.shape, rank, seed)
                values |= {f"{name}.lora_a": a.astype(dtype), f"{name}.lora_b": b.astype(dtype)}
    return _written(path, found | (keys or {}), values | (tensors or {}))


def _pair(name: str, shape: tuple[int, ...], rank: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    *experts, m, k = shape
    if name.endswith("token_embd.weight"):
        return rng.normal(0, 0.3, (m, rank)), rng.normal(0, 0.3, (k, rank))
    a = rng.normal(0, 0.3 * k**-0.5, (*experts, rank, k))
    return a, rng.normal(0, rank**-0.5, (*experts, m, rank))


def merged(base: Path, lora: Path, scale: float = 1.0) -> dict[str, np.ndarray]:
    """Weights of a model in f32, with what an adapter in f32 adds to them."""
    with open_gguf(base) as file:
        weights = {n: _values(file, n) for n in file.tensors}
    with open_gguf(lora) as file:
        alpha = file.config.float("adapter.lora.alpha")
        for name in weights:
            if f"{name}.lora_a" in file.tensors:
                a, b = (_values(file, f"{name}.lora_{part}") for part in "ab")
                factor = scale * alpha / b.shape[-1]
                change = a @ b.T if name.endswith("token_embd.weight") else b @ a
                weights[name] = weights[name] + factor * change
    return {name: values.astype("f4") for name, values in weights.items()}


def _values(file: Any, name: str) -> np.ndarray:
    return np.frombuffer(file.data(name), "f4").reshape(file.tensors[name].shape).astype("f8")


def a_control_vector(
    path: Path, base: Path, *, seed: int = 3, tensors: dict[str, np.ndarray | None] | None = None
) -> Path:
    """Write a control vector with a direction for every layer but the first."""
    with open_gguf(base) as file:
        layers = file.config.uint("block_count")
        width = file.config.uint("embedding_length")
    rng = np.random.default_rng(seed)
    values: dict[str, np.ndarray | None] = {
        f"direction.{i}": rng.normal(0, 0.5, width).astype("f4") for i in range(1, layers)
    }
    keys = {"general.architecture": "controlvector", "controlvector.layer_count": layers - 1}
    return _written(path, keys, values | (tensors or {}))


def _written(path: Path, keys: dict[str, Any], tensors: dict[str, np.ndarray | None]) -> Path:
    kept = {key: value for key, value in keys.items() if value is not None}
    writer = gguf.GGUFWriter(path, kept.pop("general.architecture"))
    kinds = {str: writer.add_string, float: writer.add_float32, int: writer.add_uint32}
    kinds |= {list: writer.add_array}
    for key, value in kept.items():
        kinds[type(value)](key, value)
    for name, values in tensors.items():
        if values is not None:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def files_of(case: str, base: Path, folder: Path) -> tuple[Path, Path, Path]:
    """Two adapters and a control vector of a case: the second of other weights and rank."""
    return (
        a_lora(folder / f"{case}-first.gguf", base),
        a_lora(folder / f"{case}-second.gguf", base, only=("attn", "down"), rank=3, seed=2),
        a_control_vector(folder / f"{case}-control.gguf", base),
    )
