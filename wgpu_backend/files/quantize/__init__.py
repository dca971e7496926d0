"""Quantisers: values in block formats, and whole files, as llama.cpp's make them, in NumPy."""

from wgpu_backend.files.quantize.decoding import decoded
from wgpu_backend.files.quantize.rows import (
    WRITABLE,
    encode_blocks,
    quantised,
    quantised_pieces,
    round_to_blocks,
    rounded_blocks,
)

__all__ = [
    "WRITABLE",
    "decoded",
    "encode_blocks",
    "quantised",
    "quantised_pieces",
    "round_to_blocks",
    "rounded_blocks",
]
