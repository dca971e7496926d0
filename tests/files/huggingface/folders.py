"""Tiny Hugging Face folders, written byte by byte: no torch, and no reader's code."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

KINDS = {"float32": "F32", "float16": "F16", "uint16": "BF16", "uint8": "U8", "int64": "I64"}
ALPHABET = [chr(33 + i) for i in range(94)] + [chr(161 + i) for i in range(12)]
MERGES = ["t h", "th e", "i n", "Ġ t", "Ġ a"]
VOCABULARY = ["<s>", "</s>", *ALPHABET, "Ġ", *(merge.replace(" ", "") for merge in MERGES)]
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": len(VOCABULARY),
}
TOKENIZER: dict[str, Any] = {
    "added_tokens": [
        {"id": 0, "content": "<s>", "special": True},
        {"id": 1, "content": "</s>", "special": True},
    ],
    "pre_tokenizer": {"type": "ByteLevel", "use_regex": True},
    "model": {
        "type": "BPE",
        "vocab": {text: number for number, text in enumerate(VOCABULARY)},
        "merges": MERGES,
    },
}


def safetensors(tensors: Mapping[str, np.ndarray], kinds: Mapping[str, str] | None = None) -> bytes:
    """A sound file; `kinds` names types that NumPy does not have."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, values in tensors.items():
        raw = np.ascontiguousarray(values).tobytes()
        kind = (kinds or {}).get(name, KINDS[values.dtype.name])
        offsets = [len(data), len(data) + len(raw)]
        header[name] = {"dtype": kind, "shape": list(values.shape), "data_offsets": offsets}
        data += raw
    return crafted(header, data)


def crafted(header: object, data: bytes = b"") -> bytes:
    """A file with exactly this header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def llama_tensors(config: Mapping[str, Any] = LLAMA, seed: int = 0) -> dict[str, np.ndarray]:
    """Random weights under the names that folders have."""
    rng = np.random.default_rng(seed)
    width, inner = config["hidden_size"], config["intermediate_size"]
    size = width // config["num_attention_heads"]
    kv = size * config["num_key_value_heads"]
    shapes = {
        "model.embed_tokens.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
        "lm_head.weight": (config["vocab_size"], width),
    }
    for i in range(config["num_hidden_layers"]):
        for name, shape in {
            "input_layernorm": (width,),
            "self_attn.q_proj": (width, width),
            "self_attn.k_proj": (kv, width),
            "self_attn.v_proj": (kv, width),
            "self_attn.o_proj": (width, width),
            "post_attention_layernorm": (width,),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
        }.items():
            shapes[f"model.layers.{i}.{name}.weight"] = shape
    return {
        name: (rng.standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)
        if len(shape) > 1
        else rng.uniform(0.5, 1.5, shape).astype(np.float32)
        for name, shape in shapes.items()
    }


def write_folder(
    path: Path,
    tensors: Mapping[str, np.ndarray] | None = None,
    config: Mapping[str, Any] | None = None,
    *,
    tokenizer: Mapping[str, Any] | None = None,
    shards: int = 1,
) -> Path:
    """A folder of a model, a llama if not told otherwise."""
    path.mkdir(exist_ok=True)
    tensors = llama_tensors() if tensors is None else tensors
    (path / "config.json").write_text(json.dumps({**LLAMA, **(config or {})}))
    (path / "tokenizer.json").write_text(json.dumps(tokenizer or TOKENIZER))
    if shards == 1:
        (path / "model.safetensors").write_bytes(safetensors(tensors))
        return path
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        part = {
            key: values for i, (key, values) in enumerate(tensors.items()) if i % shards == shard
        }
        (path / name).write_bytes(safetensors(part))
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path
