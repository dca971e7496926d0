"""Llama 4.

Meta 2025, "The Llama 4 herd": three of four layers attend within chunks of the context and have
RoPE. The fourth has full attention without positions, and scales queries by their position. Each
token has one expert, whose input is weighed by a sigmoid, and a shared one, in every layer or every
second one.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture

# Positions of a chunk, and of a step of the queries' temperature.
CHUNK = 8192
GROWTH = 0.1


@architecture("llama4")
class Llama4(Decoder):
    """Llama 4, with RoPE of adjacent pairs; the largest does not normalise queries and keys."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build Llama's layer with experts."""
        routing = nn.Routing.from_config(config, "sigmoid", normalised=False)
        if "ffn_gate_inp.weight" in config:
            mlp = nn.Experts(config, routing=routing, weighs_inputs=True)
        else:
            mlp = nn.MLP(config)
        return nn.Layer(config, self.attention(config), mlp)

    def attention(self, config: nn.LayerConfig) -> nn.SelfAttention:
        """Build attention over a chunk, or over all positions."""
        # The published `no_rope_layers`; files do not list them.
        if (config.index + 1) % 4 == 0:
            # The published code counts positions from 1 here.
            growth = self.config.float("attention.temperature_scale", GROWTH)
            step = self.config.uint("attention.temperature_length", CHUNK, at_least=1)
            temperature = nn.Temperature(growth, step, 1)
            return nn.SelfAttention(config, None, temperature=temperature)
        chunk = self.config.uint("attention.chunk_size", CHUNK)
        # `use_qk_norm` is false for Maverick alone, which llama.cpp's files do not say; it is the
        # one with 128 experts.
        usual = self.config.uint("expert_count", 0) != 128
        if not self.config.bool("attention.normalised", usual):
            return nn.SelfAttention(config, self.rope, chunk=chunk)
        return NormedAttention(config, self.rope, chunk=chunk)


class NormedAttention(nn.SelfAttention):
    """Attention whose queries and keys have unit mean square after their rotation."""

    def apply_positions(self, q: Tensor, k: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Rotate queries and keys, and normalise them without weights."""
        q, k = super().apply_positions(q, k, batch)
        return q.rms_norm(None, eps=self.eps), k.rms_norm(None, eps=self.eps)
