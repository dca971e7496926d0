"""Quantisers: values in block formats, and whole files, as llama.cpp's make them, in NumPy."""

from wgpu_backend.files.quantize.decoding import decode_blocks
from wgpu_backend.files.quantize.rows import (
    WRITABLE,
    encode_blocks,
    quantize_pieces,
    quantize_rows,
    round_blocks,
    round_to_blocks,
)

__all__ = [
    "WRITABLE",
    "decode_blocks",
    "encode_blocks",
    "quantize_pieces",
    "quantize_rows",
    "round_blocks",
    "round_to_blocks",
]
