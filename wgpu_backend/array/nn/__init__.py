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
    activation,
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
from wgpu_backend.array.nn.pictures import Upsample, resized, timestep_embedding
from wgpu_backend.array.nn.published import NETWORKS, published
from wgpu_backend.array.nn.quantised import QuantizedEmbedding, QuantizedLinear, quantize

__all__ = [
    "GELU", "NETWORKS", "BatchNorm", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "Dropout",
    "Dropout2d", "Dropout3d", "Embedding", "GroupNorm", "Identity", "InstanceNorm", "LayerNorm",
    "Linear", "Module", "MultiHeadAttention", "QuantizedEmbedding", "QuantizedLinear", "RMSNorm",
    "ReLU", "RoPE", "Sequential", "SiLU", "Sigmoid", "Slot", "Tanh", "Upsample", "activation",
    "attend", "gelu", "gelu_approx", "gelu_fast_approx", "published", "quantize", "relu", "resized",
    "rotated", "sigmoid", "silu", "tanh", "timestep_embedding",
]  # fmt: skip
