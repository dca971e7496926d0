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
from wgpu_backend.array.nn.convolution import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from wgpu_backend.array.nn.linear import Embedding, Linear
from wgpu_backend.array.nn.module import Module, Slot
from wgpu_backend.array.nn.norms import BatchNorm, GroupNorm, InstanceNorm, LayerNorm, RMSNorm
from wgpu_backend.array.nn.pictures import Upsample, resized, timestep_embedding
from wgpu_backend.array.nn.pooling import (
    AvgPool1d,
    AvgPool2d,
    AvgPool3d,
    MaxPool1d,
    MaxPool2d,
    MaxPool3d,
)
from wgpu_backend.array.nn.published import NETWORKS, published
from wgpu_backend.array.nn.quantised import QuantizedEmbedding, QuantizedLinear, quantize
from wgpu_backend.array.nn.rectifiers import (
    CELU,
    ELU,
    GLU,
    SELU,
    HardShrink,
    Hardswish,
    HardTanh,
    LeakyReLU,
    LogSigmoid,
    LogSoftmax,
    Mish,
    PReLU,
    ReLU2,
    ReLU6,
    Softmax,
    Softmin,
    Softplus,
    Softshrink,
    Softsign,
    Step,
    celu,
    elu,
    glu,
    hard_shrink,
    hard_tanh,
    hardswish,
    leaky_relu,
    log_sigmoid,
    log_softmax,
    mish,
    prelu,
    relu6,
    relu_squared,
    selu,
    softmax,
    softmin,
    softplus,
    softshrink,
    softsign,
    step,
)

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "NETWORKS", "SELU", "AvgPool1d", "AvgPool2d", "AvgPool3d",
    "BatchNorm", "Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d",
    "ConvTranspose3d", "Dropout", "Dropout2d", "Dropout3d", "Embedding", "GroupNorm",
    "HardShrink", "HardTanh", "Hardswish", "Identity", "InstanceNorm", "LayerNorm", "LeakyReLU",
    "Linear", "LogSigmoid", "LogSoftmax", "MaxPool1d", "MaxPool2d", "MaxPool3d", "Mish", "Module",
    "MultiHeadAttention", "PReLU", "QuantizedEmbedding", "QuantizedLinear", "RMSNorm", "ReLU",
    "ReLU2", "ReLU6", "RoPE", "Sequential", "SiLU", "Sigmoid", "Slot", "Softmax", "Softmin",
    "Softplus", "Softshrink", "Softsign", "Step", "Tanh", "Upsample", "activation", "attend",
    "celu", "elu", "gelu", "gelu_approx", "gelu_fast_approx", "glu", "hard_shrink", "hard_tanh",
    "hardswish", "leaky_relu", "log_sigmoid", "log_softmax", "mish", "prelu", "published",
    "quantize", "relu", "relu6", "relu_squared", "resized", "rotated", "selu", "sigmoid", "silu",
    "softmax", "softmin", "softplus", "softshrink", "softsign", "step", "tanh",
    "timestep_embedding",
]  # fmt: skip
