"""Quantisation of values and files to block formats in NumPy, bit for bit as in llama.cpp."""

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
