"""Layers of networks, as MLX's ``nn`` has them: ``import wgpu_backend.array.nn as nn``.

A `Module` has its parameters and parts as attributes; `load_weights` takes arrays by their paths.
Weights keep the type they are stored in; layers compute in float32 and give float32.
"""

from wgpu_backend.array.nn.activations import (
    GELU,
    ReLU,
    Sigmoid,
    SiLU,
    Tanh,
    gelu,
    gelu_approx,
    gelu_fast_approx,
    relu,
    sigmoid,
    silu,
    tanh,
)
from wgpu_backend.array.nn.attention import MultiHeadAttention, RoPE, attend, rotated
from wgpu_backend.array.nn.containers import Dropout, Dropout2d, Dropout3d, Identity, Sequential
from wgpu_backend.array.nn.convolution import Conv1d, Conv2d, Conv3d, ConvTranspose2d
from wgpu_backend.array.nn.linear import Embedding, Linear
from wgpu_backend.array.nn.module import Module, Slot
from wgpu_backend.array.nn.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm

__all__ = [
    "GELU", "BatchNorm", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "Dropout", "Dropout2d",
    "Dropout3d", "Embedding", "GroupNorm", "Identity", "InstanceNorm", "LayerNorm", "Linear",
    "Module", "MultiHeadAttention", "RMSNorm", "ReLU", "RoPE", "Sequential", "SiLU", "Sigmoid",
    "Slot", "Tanh", "attend", "gelu", "gelu_approx", "gelu_fast_approx", "relu", "rotated",
    "sigmoid", "silu", "tanh",
]  # fmt: skip
