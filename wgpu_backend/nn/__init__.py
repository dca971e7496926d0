"""The blocks that models are made of, and the lookup of their weights."""

from wgpu_backend.nn.attention import Temperature, attend
from wgpu_backend.nn.classifier import Classifier
from wgpu_backend.nn.cross_attention import CrossAttention, CrossLayer
from wgpu_backend.nn.experts import Experts, Routing
from wgpu_backend.nn.latent_attention import LatentAttention
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
from wgpu_backend.nn.mlp import MLP, BoundedSwiglu, activated, gated
from wgpu_backend.nn.module import Module, populate, weight
from wgpu_backend.nn.recurrent import GatedDelta, Mamba, Mamba2, ShortConv
from wgpu_backend.nn.rope import RopeOptions, Rotary
from wgpu_backend.nn.self_attention import SelfAttention

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
