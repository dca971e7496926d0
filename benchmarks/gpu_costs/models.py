"""Models with sizes but without weights: files with a hole instead of the weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

CONTEXT = 32768
ALIGNMENT = 32
EPS, ROPE_BASE = 1e-5, 500_000.0


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of a model of the Llama architecture."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    vocabulary: int


SIZES = {
    "8b": Sizes(32, 4096, 32, 8, 128, 14336, 128256),
    "1b": Sizes(16, 2048, 32, 8, 64, 8192, 128256),
    "0.5b": Sizes(24, 896, 14, 2, 64, 4864, 151936),
    "tiny": Sizes(1, 256, 4, 2, 64, 512, 512),  # for tests
}
# What llama.cpp takes where rows are no whole blocks of a format.
INSTEAD = {"q4_k": "q5_0", "q6_k": "q8_0"}
FORMATS = ("q4_0", "q4_k_m", "q6_k", "q8_0", "f16")


@dataclass(frozen=True, slots=True)
class Weight:
    """The name, shape and format of a weight."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes in a file."""
        block, size = gguf.GGML_QUANT_SIZES[self.kind]
        return math.prod(self.shape) // block * size

    @property
    def kind(self) -> gguf.GGMLQuantizationType:
        """Return the format's name in files."""
        return gguf.GGMLQuantizationType[self.dtype.upper()]


def weights(sizes: Sizes, format: str) -> Iterator[Weight]:
    """List the weights of a model, in the order of the file.

    Parameters
    ----------
    sizes : Sizes
    format : str
        A format of weights, or ``q4_k_m``: Q4_K with some weights in Q6_K, as llama.cpp mixes it.
    """
    mixed = format == "q4_k_m"
    base, better = ("q4_k", "q6_k") if mixed else (format, format)
    yield _weight("token_embd.weight", sizes.vocabulary, sizes.hidden, base)
    for layer in range(sizes.layers):
        some = better if _gets_more_bits(layer, sizes.layers) else base
        yield from _layer(sizes, f"blk.{layer}.", base, some)
    yield Weight("output_norm.weight", (sizes.hidden,), "f32")
    yield _weight("output.weight", sizes.vocabulary, sizes.hidden, better)


def _weight(name: str, rows: int, cols: int, dtype: str) -> Weight:
    whole = cols % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[dtype.upper()]][0] == 0
    return Weight(name, (rows, cols), dtype if whole else INSTEAD[dtype])


def _gets_more_bits(layer: int, layers: int) -> bool:
    eighth = layers // 8
    return layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2


def _layer(sizes: Sizes, prefix: str, base: str, better: str) -> Iterator[Weight]:
    hidden, q, kv = sizes.hidden, sizes.heads * sizes.head, sizes.kv_heads * sizes.head
    yield Weight(prefix + "attn_norm.weight", (hidden,), "f32")
    yield Weight(prefix + "ffn_norm.weight", (hidden,), "f32")
    yield _weight(prefix + "attn_q.weight", q, hidden, base)
    yield _weight(prefix + "attn_k.weight", kv, hidden, base)
    yield _weight(prefix + "attn_v.weight", kv, hidden, better)
    yield _weight(prefix + "attn_output.weight", hidden, q, base)
    yield _weight(prefix + "ffn_gate.weight", sizes.inner, hidden, base)
    yield _weight(prefix + "ffn_up.weight", sizes.inner, hidden, base)
    yield _weight(prefix + "ffn_down.weight", hidden, sizes.inner, better)


def sparse_gguf(path: Path, sizes: Sizes, format: str, *, tokenizer: str = "") -> Path:
    """Write a model's file whose weights are a hole, which takes no disk space.

    Parameters
    ----------
    path : Path
    sizes : Sizes
    format : str
        See `weights`.
    tokenizer : str
        Kind of tokenizer, if any: llama.cpp requires a key even if there is none. ``gpt2`` has a
        token for each byte, and numbered ones.
    """
    writer = gguf.GGUFWriter(path, "llama")
    if tokenizer:
        writer.add_tokenizer_model(tokenizer)
    if tokenizer == "gpt2":
        _add_tokens(writer, sizes.vocabulary)
    _add_sizes(writer, sizes)
    total = 0
    for weight in weights(sizes, format):
        _add(writer, weight)
        total += -(-weight.nbytes // ALIGNMENT) * ALIGNMENT
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        header = file.seek(0, 2)
        file.truncate(-(-header // ALIGNMENT) * ALIGNMENT + total + ALIGNMENT)
    return path


def _add_tokens(writer: gguf.GGUFWriter, count: int) -> None:
    """Add the characters that stand for bytes in byte-level BPE, a merge of two, and numbers."""
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = (chr(256 + i) for i in range(256 - len(shown)))
    tokens = [chr(b) if b in shown else next(hidden) for b in range(256)]
    tokens += ["th", *(f"<{i}>" for i in range(257, count))]
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_types([gguf.TokenType.NORMAL] * count)
    writer.add_token_merges(["t h"])
    writer.add_eos_token_id(count - 1)


def _add_sizes(writer: gguf.GGUFWriter, sizes: Sizes) -> None:
    writer.add_block_count(sizes.layers)
    writer.add_embedding_length(sizes.hidden)
    writer.add_head_count(sizes.heads)
    writer.add_head_count_kv(sizes.kv_heads)
    writer.add_key_length(sizes.head)
    writer.add_value_length(sizes.head)
    writer.add_rope_dimension_count(sizes.head)
    writer.add_rope_freq_base(ROPE_BASE)
    writer.add_feed_forward_length(sizes.inner)
    writer.add_layer_norm_rms_eps(EPS)
    writer.add_context_length(CONTEXT)
    writer.add_vocab_size(sizes.vocabulary)


def _add(writer: gguf.GGUFWriter, weight: Weight) -> None:
    if weight.dtype in ("f32", "f16"):
        plain = np.dtype(np.float32 if weight.dtype == "f32" else np.float16)
        writer.add_tensor_info(weight.name, weight.shape, plain, weight.nbytes)
        return
    block, size = gguf.GGML_QUANT_SIZES[weight.kind]
    rows = (*weight.shape[:-1], weight.shape[-1] // block * size)
    writer.add_tensor_info(weight.name, rows, np.dtype(np.uint8), weight.nbytes, weight.kind)
