"""Blocks that models are made of, and how their fields find their weights."""

from wgpu_backend.nn.attention import attend
from wgpu_backend.nn.layers import Embedding, LayerNorm, Linear, RMSNorm, fused_linear
from wgpu_backend.nn.module import Module, populate, weight
from wgpu_backend.nn.rope import RopeOptions, Rotary

__all__ = [
    "Embedding",
    "LayerNorm",
    "Linear",
    "Module",
    "RMSNorm",
    "RopeOptions",
    "Rotary",
    "attend",
    "fused_linear",
    "populate",
    "weight",
]
