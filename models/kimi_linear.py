"""Kimi Linear.

Delta attention with a decay for each channel, and latent attention in every fourth layer: Kimi Team
2025, "Kimi Linear: An Expressive, Efficient Attention Architecture", §3 and §4. Latent attention is
DeepSeek-AI 2024, "DeepSeek-V2", §2.1, without positions.
"""

from __future__ import annotations

from collections.abc import Sequence

from wgpu_backend import nn
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.kvcache.layers import StateShape
from wgpu_backend.nn.model import architecture


class DeltaAttention(nn.Module):
    """Kimi delta attention (§3.1): the gated delta rule with a decay for every channel."""

    query: nn.Linear = nn.weight("attn_q", "inner", "width")
    key: nn.Linear = nn.weight("attn_k", "inner", "width")
    value: nn.Linear = nn.weight("attn_v", "inner", "width")
    query_conv: Tensor = nn.weight("ssm_conv1d_q.weight")
    key_conv: Tensor = nn.weight("ssm_conv1d_k.weight")
    value_conv: Tensor = nn.weight("ssm_conv1d_v.weight")
    beta: nn.Linear = nn.weight("ssm_beta", "heads", "width")
    decay: Tensor = nn.weight("ssm_a")
    step_bias: Tensor = nn.weight("ssm_dt.bias", "inner")
    forget_down: nn.Linear = nn.weight("ssm_f_a", "head", "width")
    forget_up: nn.Linear = nn.weight("ssm_f_b", "inner", "head")
    gate_down: nn.Linear = nn.weight("ssm_g_a", "head", "width")
    gate_up: nn.Linear = nn.weight("ssm_g_b", "inner", "head")
    norm: Tensor = nn.weight("ssm_norm.weight", "head")
    output: nn.Linear = nn.weight("attn_output", "width", "inner")

    def __init__(self, config: nn.LayerConfig) -> None:
        self.layer, self.width = config.index, config.width
        self.taps = config.uint("ssm.conv_kernel", at_least=2)
        self.heads = config.uint("attention.head_count", at_least=1)
        self.head = config.uint("kda.head_dim", at_least=1)
        self.inner = self.heads * self.head
        self.eps = config.float("attention.layer_norm_rms_epsilon")

    @property
    def cached(self) -> StateShape:
        """Return the states: last values of the convolutions, and each head's memory."""
        return StateShape(
            conv=(self.taps - 1, 3 * self.inner), memory=(self.heads, self.head, self.head)
        )

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Update and read the memories: (tokens, width) to (tokens, inner), for `project`."""
        tokens, memory = x.shape[0], batch.state(self.layer, "memory")
        # One dispatch for the six matrices that have one input.
        by_head = (tokens, self.heads, self.head)
        inputs = (self.query, self.key, self.value, self.forget_down, self.gate_down, self.beta)
        *projected, forget, gate, beta = nn.fused_linear(x, *inputs)
        q, k, v = (y.reshape(*by_head) for y in self._convolve(projected, batch))
        y = q.gated_delta(
            k,
            v,
            self.forget_up(forget).reshape(*by_head),
            beta,
            memory.rows,
            memory.runs,
            self.decay.reshape(self.heads, 1),
            self.step_bias.reshape(self.heads, self.head),
            scale=self.head**-0.5,
            unit=self.eps,
            logits=True,
        )
        gate = self.gate_up(gate).sigmoid()
        return y.rms_norm(self.norm, eps=self.eps).reshape(tokens, self.inner).mul(gate)

    def _convolve(self, projected: Sequence[Tensor], batch: Batch) -> list[Tensor]:
        """Return queries, keys and values after their convolutions, run as one of all channels."""
        state = batch.state(self.layer, "conv")
        weights = (self.query_conv, self.key_conv, self.value_conv)
        # The convolution is of each channel alone, so that channels of all three can stand in one
        # matrix.
        x = nn.beside(projected)
        kernels = nn.below(x, [w.reshape(self.inner, self.taps) for w in weights])
        return x.short_conv(kernels, state.rows, state.runs, silu=True).chunk(-1, self.inner)

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map the result of `forward` to (tokens, width), and add `residual`."""
        return self.output(y, residual)


@architecture("kimi-linear")
class KimiLinear(Decoder):
    """Kimi Linear: layers without KV heads have delta attention; the leading ones are dense."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer of delta or latent attention, with a feed-forward network or experts."""
        attends = config.uint("attention.head_count_kv")
        # Delta attention encodes the order of tokens, so that latent attention has no
        # rotation.
        mixer = nn.LatentAttention(config, None) if attends else DeltaAttention(config)
        return nn.Layer(config, mixer, self._feed_forward(config))

    def _feed_forward(self, config: nn.LayerConfig) -> nn.FeedForward:
        if "ffn_gate_inp.weight" not in config:
            return nn.MLP(config)
        return nn.Experts(config, routing=nn.Routing.from_config(config, "sigmoid"))
