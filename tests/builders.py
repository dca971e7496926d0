"""Tiny GGUF files for tests: whole models with random weights, and crafted bytes.

`tiny_model` writes a model that a loader accepts, in under 0.2 s. `Crafted` writes exactly the
bytes it is told to, sound or not, and shares no code with the reader.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import cast

import gguf
import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter

from tests.blocks import random_blocks
from wgpu_backend.dtypes import named
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.text.tokenizer import Tokenizer

MERGES = ["Ġ t", "h e", "Ġt he", "i n", "Ġ a", "o n", "e r", "Ġa n", "Ġan d", "r e"]
SPECIALS = ["<|begin|>", "<|end|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|{{ message.role }}|>{{ message.content }}"
    "{{ eos_token }}{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


class Newer(IntEnum):
    """Types that gguf-py does not know yet, which it writes as it writes its own."""

    Q2_0 = 42


gguf.GGML_QUANT_SIZES.setdefault(cast("GGMLQuantizationType", Newer.Q2_0), (64, 18))
WEIGHT_TYPES = (
    "f32",
    "f16",
    "bf16",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q4_k",
    "q5_k",
    "q6_k",
)


@dataclass(frozen=True, slots=True)
class Dims:
    """Sizes of a tiny model; K-quants need rows of 256, see `for_type`."""

    layers: int = 2
    width: int = 64
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    feed_forward: int = 96
    context: int = 128

    @classmethod
    def for_type(cls, dtype: str) -> Dims:
        """The smallest sizes whose rows are whole blocks of `dtype`."""
        wide = gguf.GGML_QUANT_SIZES[kind_of(dtype)][0] > 32
        return cls(width=256, head_dim=64, feed_forward=256) if wide else cls()


def tiny_model(
    path: Path,
    architecture: str = "llama",
    dtype: str = "f32",
    *,
    dims: Dims | None = None,
    tied: bool = False,
    seed: int = 0,
    rope_base: float = 10_000.0,
    extra: dict[str, float | str | None] | None = None,
    vectors: dict[str, np.ndarray] | None = None,
    tensors_per_part: int = 0,
) -> Path:
    """Write a llama, qwen2 or qwen3 model whose matrices are of `dtype`; norms and biases are f32.

    `extra` adds or replaces metadata by full key; None as its value leaves a key out. `vectors`
    are f32 tensors beside the model's own, such as biases, or in their place. With
    `tensors_per_part`, gguf-py splits the model into files of so many tensors.
    """
    dims = dims or Dims.for_type(dtype)
    writer = GGUFWriter(path, architecture, split_max_tensors=tensors_per_part)
    for key, value in (_hyper_parameters(architecture, dims, rope_base) | (extra or {})).items():
        _add_scalar(writer, key, value)
    add_tokenizer(writer, "qwen2" if architecture.startswith("qwen") else "gpt-2")
    rng = np.random.default_rng(seed)
    vectors = vectors or {}
    for name, shape in _tensor_shapes(architecture, dims, tied).items():
        if name not in vectors:
            _add_tensor(writer, rng, name, shape, dtype)
    for name, values in vectors.items():
        writer.add_tensor(name, values.astype("f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def dequantised(path: Path) -> dict[str, np.ndarray]:
    """Every weight of a file as f32: what the model computes with."""
    weights = {}
    with open_gguf(path) as file:
        for info in file.tensors.values():
            rows = np.frombuffer(file.data(info.name), np.uint8)
            if info.dtype.numpy is not None and info.dtype.name != "bf16":
                weights[info.name] = rows.view(info.dtype.numpy).astype("f4").reshape(info.shape)
            else:
                rows = rows.reshape(*info.shape[:-1], -1)
                kind = GGMLQuantizationType(info.dtype.ggml)
                weights[info.name] = gguf.dequantize(rows, kind).reshape(info.shape)
    return weights


def kind_of(dtype: str) -> GGMLQuantizationType:
    """gguf-py's type of that name."""
    name = dtype.upper()
    known = Newer[name] if name in Newer.__members__ else GGMLQuantizationType[name]
    return cast("GGMLQuantizationType", known)


def vocabulary() -> list[str]:
    """256 byte tokens, the merged ones, the specials: in id order."""
    return [*byte_alphabet(), *(merge.replace(" ", "") for merge in MERGES), *SPECIALS]


def byte_alphabet() -> list[str]:
    """Printable stand-ins of the 256 bytes, as GPT-2's byte-level vocabularies write them."""
    keep = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    moved = iter(range(0x100, 0x200))
    return [chr(byte) if byte in keep else chr(next(moved)) for byte in range(256)]


def _hyper_parameters(architecture: str, dims: Dims, rope_base: float) -> dict[str, float | str]:
    parameters: dict[str, float | str] = {
        "context_length": dims.context,
        "embedding_length": dims.width,
        "block_count": dims.layers,
        "feed_forward_length": dims.feed_forward,
        "attention.head_count": dims.heads,
        "attention.head_count_kv": dims.kv_heads,
        "attention.key_length": dims.head_dim,
        "attention.value_length": dims.head_dim,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": dims.head_dim,
        "rope.freq_base": rope_base,
        "vocab_size": len(vocabulary()),
    }
    return {f"{architecture}.{key}": value for key, value in parameters.items()}


def _add_scalar(writer: GGUFWriter, key: str, value: float | str | None) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif value is not None:
        writer.add_string(key, value)


def add_tokenizer(writer: GGUFWriter, pre: str, *, marks: bool = False) -> None:
    """GPT-2's alphabet and a few merges; with `marks` around every text, as RoBERTa has them."""
    tokens = vocabulary()
    types = [gguf.TokenType.NORMAL] * (len(tokens) - len(SPECIALS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([*types, *[gguf.TokenType.CONTROL] * len(SPECIALS)])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(tokens.index("<|begin|>"))
    writer.add_eos_token_id(tokens.index("<|end|>"))
    writer.add_add_bos_token(marks)
    if marks:
        writer.add_add_eos_token(True)
    writer.add_chat_template(CHAT_TEMPLATE)


def _tensor_shapes(architecture: str, dims: Dims, tied: bool) -> dict[str, tuple[int, ...]]:
    """Names and row-major shapes, in the order of a converted file."""
    width, vocab = dims.width, len(vocabulary())
    queries, keys = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
    layer: dict[str, tuple[int, ...]] = {
        "attn_norm.weight": (width,),
        "attn_q.weight": (queries, width),
        "attn_k.weight": (keys, width),
        "attn_v.weight": (keys, width),
        "attn_output.weight": (width, queries),
        "ffn_norm.weight": (width,),
        "ffn_gate.weight": (dims.feed_forward, width),
        "ffn_up.weight": (dims.feed_forward, width),
        "ffn_down.weight": (width, dims.feed_forward),
    }
    if architecture == "qwen2":
        layer |= {"attn_q.bias": (queries,), "attn_k.bias": (keys,), "attn_v.bias": (keys,)}
    if architecture == "qwen3":
        layer |= {"attn_q_norm.weight": (dims.head_dim,), "attn_k_norm.weight": (dims.head_dim,)}
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (vocab, width)}
    for index in range(dims.layers):
        shapes |= {f"blk.{index}.{name}": shape for name, shape in layer.items()}
    shapes["output_norm.weight"] = (width,)
    if not tied:
        shapes["output.weight"] = (vocab, width)
    return shapes


def _add_tensor(
    writer: GGUFWriter, rng: np.random.Generator, name: str, shape: tuple[int, ...], dtype: str
) -> None:
    if len(shape) == 1:
        mean = 1.0 if name.endswith("norm.weight") else 0.0
        writer.add_tensor(name, rng.normal(mean, 0.1, shape).astype("f4"))
        return
    std = 1.0 if name == "token_embd.weight" else shape[-1] ** -0.5
    kind = kind_of(dtype)
    writer.add_tensor(name, quantised(rng, shape, dtype, std), raw_dtype=kind)


def quantised(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, std: float
) -> np.ndarray:
    """Random rows of any weight type, with a standard deviation of about `std`."""
    if dtype not in WEIGHT_TYPES:
        kind = named(dtype)
        blocks = random_blocks(rng, kind, math.prod(shape) // kind.block, std)
        return blocks.reshape(*shape[:-1], -1)
    if dtype.endswith("_k"):
        return _random_k_blocks(rng, shape, dtype, std)
    weights = (rng.standard_normal(shape, "f4") * np.float32(std)).astype("f4")
    return gguf.quantize(weights, kind_of(dtype))


def _random_k_blocks(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, std: float
) -> np.ndarray:
    """Random bits under finite f16 scales: gguf-py reads K-quants but cannot make them.

    w = d·sc·q − dmin·m for q4_k and q5_k with 6-bit sc and m, w = d·sc·(q − 32) for q6_k; the
    divisors are the spread of the bits. d stays a normal f16, which GPUs may demand.
    """
    block, nbytes = gguf.GGML_QUANT_SIZES[kind_of(dtype)]
    blocks = rng.integers(0, 256, (*shape[:-1], shape[-1] // block, nbytes), np.uint8)
    if dtype == "q6_k":
        blocks[..., 192:208] = rng.integers(-32, 33, blocks[..., 192:208].shape).astype("u1")
        blocks[..., 208:210] = _f16_bytes(std / 345)
    else:
        top, spread = (15, 270) if dtype == "q4_k" else (31, 560)
        blocks[..., 0:2] = _f16_bytes(std / spread)
        blocks[..., 2:4] = _f16_bytes(std / spread * top / 2)
    return blocks.reshape(*shape[:-1], -1)


def _f16_bytes(value: float) -> np.ndarray:
    return np.array([value], "<f2").view("u1")


@dataclass
class Crafted:
    """A GGUF file as its raw parts; change a part to damage it, then `encode` it.

    `keys` and `tensors` are encoded entries (see `key` and `tensor`); the counts follow from them
    unless they are set.
    """

    magic: bytes = b"GGUF"
    version: int = 3
    n_tensors: int | None = None
    n_keys: int | None = None
    keys: list[bytes] = field(default_factory=list)
    tensors: list[bytes] = field(default_factory=list)
    alignment: int = 32
    data: bytes = b""

    def encode(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        header = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_keys)
        header += b"".join(self.keys) + b"".join(self.tensors)
        padding = -len(header) % self.alignment if self.tensors else 0
        return header + bytes(padding) + self.data


def text(value: str | bytes, length: int | None = None) -> bytes:
    """A string of the format; `length` is a lie about its bytes."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw) if length is None else length) + raw


def key(name: str | bytes, kind: int, payload: bytes) -> bytes:
    """One key and its value, encoded."""
    return text(name) + struct.pack("<I", kind) + payload


def array(kind: int, count: int, payload: bytes) -> bytes:
    """Payload of an array value, type 9."""
    return struct.pack("<IQ", kind, count) + payload


def tensor(
    name: str | bytes, ne: tuple[int, ...], kind: int, offset: int, n_dims: int | None = None
) -> bytes:
    """One tensor info; `ne` is in file order, the contiguous dimension first."""
    dims = struct.pack(f"<I{len(ne)}Q", len(ne) if n_dims is None else n_dims, *ne)
    return text(name) + dims + struct.pack("<IQ", kind, offset)


def read_tokenizer(path: Path | str, kind: type[Tokenizer] = Tokenizer) -> Tokenizer:
    """The tokenizer of a GGUF file."""
    with open_gguf(path) as file:
        return kind.of_file(file)
