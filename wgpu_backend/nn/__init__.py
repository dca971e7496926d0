"""The blocks that models are made of, and the lookup of their weights."""

from wgpu_backend.nn.attention import (
    CrossAttention,
    CrossLayer,
    LatentAttention,
    SelfAttention,
    Temperature,
    attend,
)
from wgpu_backend.nn.layer import (
    DecoderLayer,
    FeedForward,
    FeedForwardLayer,
    Layer,
    Mixer,
    MixerLayer,
    ParallelLayer,
    PostNormLayer,
)
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import (
    Embedding,
    ExpertLinear,
    HeadLayerNorm,
    LayerNorm,
    Linear,
    Norm,
    PlainLayerNorm,
    RMSNorm,
    below,
    beside,
    fused_linear,
)
from wgpu_backend.nn.mlp import MLP, BoundedSwiglu, Classifier, Experts, Routing, activated, gated
from wgpu_backend.nn.module import Module, populate, weight
from wgpu_backend.nn.recurrent import GatedDelta, Mamba, Mamba2, ShortConv
from wgpu_backend.nn.rope import RopeOptions, Rotary

__all__ = [
    "MLP",
    "BoundedSwiglu",
    "Classifier",
    "CrossAttention",
    "CrossLayer",
    "DecoderLayer",
    "Embedding",
    "ExpertLinear",
    "Experts",
    "FeedForward",
    "FeedForwardLayer",
    "GatedDelta",
    "HeadLayerNorm",
    "LatentAttention",
    "Layer",
    "LayerConfig",
    "LayerNorm",
    "Linear",
    "Mamba",
    "Mamba2",
    "Mixer",
    "MixerLayer",
    "Module",
    "Norm",
    "ParallelLayer",
    "PlainLayerNorm",
    "PostNormLayer",
    "RMSNorm",
    "RopeOptions",
    "Rotary",
    "Routing",
    "SelfAttention",
    "ShortConv",
    "Temperature",
    "activated",
    "attend",
    "below",
    "beside",
    "fused_linear",
    "gated",
    "populate",
    "weight",
]
