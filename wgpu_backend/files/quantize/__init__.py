"""Quantisers: values in block formats, and whole files, as llama.cpp's make them, in NumPy."""

from wgpu_backend.files.quantize.decoding import decoded
from wgpu_backend.files.quantize.rows import WRITABLE, quantised, quantised_pieces, rounded_blocks

__all__ = ["WRITABLE", "decoded", "quantised", "quantised_pieces", "rounded_blocks"]
