"""Qwen3: Llama with a norm on every query and key head, and rotation of halves.

Yang et al. 2025, "Qwen3 Technical Report", §2. The norms are where the file has them, and needed.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.model import architecture
from wgpu_backend.models.llama import Layer as LlamaLayer
from wgpu_backend.models.llama import Llama, SelfAttention
from wgpu_backend.nn import weight


class NormedAttention(SelfAttention):
    """Attention whose head norms must be there."""

    query_norm: nn.RMSNorm = weight("attn_q_norm")
    key_norm: nn.RMSNorm = weight("attn_k_norm")


class Layer(LlamaLayer):
    """Llama's block around that attention."""

    attention: NormedAttention = weight("")


@architecture("qwen3")
class Qwen3(Llama):
    """Qwen3."""

    rope_interleaved = False

    layers: list[Layer] = weight("blk")
