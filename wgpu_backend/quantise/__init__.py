"""Quantisers: values in block formats, as llama.cpp's make them, in NumPy."""

from wgpu_backend.quantise.rows import WRITABLE, quantised, quantised_pieces, rounded_blocks

__all__ = ["WRITABLE", "quantised", "quantised_pieces", "rounded_blocks"]
