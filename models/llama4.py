"""Llama 4.

Meta 2025, "The Llama 4 herd": three of four layers see chunks of the context and rotate, the fourth
sees all, without positions, and its queries grow with theirs; one expert for a token, whose input
is weighed by a sigmoid, and one that all share, in every layer or every second one.
"""

from __future__ import annotations

from wgpu_backend import nn
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.model import architecture

CHUNK = 8192  # positions, of which the temperature of queries takes a step, too
GROWTH = 0.1


@architecture("llama4")
class Llama4(Decoder):
    """Neighbours are rotated; the largest does not normalise queries and keys."""

    rope_interleaved = True

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Llama's."""
        routing = nn.Routing.from_config(config, "sigmoid", normalised=False)
        if "ffn_gate_inp.weight" in config:
            mlp = nn.Experts(config, routing=routing, weighs_inputs=True)
        else:
            mlp = nn.MLP(config)
        return nn.Layer(config, self.attention(config), mlp)

    def attention(self, config: nn.LayerConfig) -> nn.SelfAttention:
        """Attention over a chunk, or over all."""
        if (config.index + 1) % 4 == 0:
            temperature = nn.Temperature(GROWTH, CHUNK, 1)
            return nn.SelfAttention(config, None, temperature=temperature)
        chunk = self.config.uint("attention.chunk_size", CHUNK)
        if self.config.uint("expert_count", 0) == 128:
            return nn.SelfAttention(config, self.rope, chunk=chunk)
        return NormedAttention(config, self.rope, chunk=chunk)


class NormedAttention(nn.SelfAttention):
    """Attention whose queries and keys have unit mean square, once rotated."""

    def apply_positions(self, q: Tensor, k: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Queries and keys, rotated and normalised without weights."""
        q, k = super().apply_positions(q, k, batch)
        return q.rms_norm(None, eps=self.eps), k.rms_norm(None, eps=self.eps)
