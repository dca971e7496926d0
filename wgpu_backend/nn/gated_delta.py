"""Mixer that remembers by the gated delta rule."""

from __future__ import annotations

from collections.abc import Callable

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.kvcache.layers import StateShape
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import Filter, Linear, fused_linear
from wgpu_backend.nn.module import Module, weight


class GatedDelta(Module):
    """Gated delta net (Yang, Kautz & Hatamizadeh 2024, §3.3), heads of values sharing keys.

    Betas and decays have weights of their own, or one together, ``ssm_ba``, in which those of the
    heads that share keys are neighbours.

    Parameters
    ----------
    config : LayerConfig
    tiled : bool
        Whether keys are dealt to heads in turn; otherwise neighbours share one.

    Raises
    ------
    ModelError
        Heads do not divide the values, or key heads not value heads.
    """

    mixed: Linear = weight("attn_qkv", "channels", "width")
    gate: Linear = weight("attn_gate", "inner", "width")
    conv: Filter = weight("ssm_conv1d", "channels", "taps")
    both: Linear | None = None
    beta: Linear
    alpha: Linear
    step_bias: Tensor = weight("ssm_dt.bias", "heads")
    decay: Tensor = weight("ssm_a", "heads")
    norm: Tensor = weight("ssm_norm.weight", "head")
    output: Linear = weight("ssm_out", "width", "inner")

    def __init__(self, config: LayerConfig, *, tiled: bool = False) -> None:
        self.layer, self.width, self.tiled = config.index, config.width, tiled
        self.taps = config.uint("ssm.conv_kernel", at_least=2)
        self.inner = config.uint("ssm.inner_size", at_least=1)
        self.heads = config.uint("ssm.time_step_rank", at_least=1)
        self.key_heads = config.uint("ssm.group_count", at_least=1)
        self.keys = config.uint("ssm.state_size", at_least=1)
        if self.inner % self.heads or self.heads % self.key_heads:
            raise config.fail(
                f"{self.inner} values, {self.heads} heads, {self.key_heads} key heads; needs "
                "multiples of each other"
            )
        self.head, self.rates = self.inner // self.heads, 2 * self.heads
        self.channels = self.inner + 2 * self.key_heads * self.keys
        self.eps = config.float("attention.layer_norm_rms_epsilon")

    def declare(self, has: Callable[[str], bool]) -> None:
        """Betas and decays have weights of their own, or one together."""
        if has("ssm_ba.weight"):
            self.both = weight("ssm_ba", "rates", "width")
            return
        self.beta = weight("ssm_beta", "heads", "width")
        self.alpha = weight("ssm_alpha", "heads", "width")

    @property
    def cached(self) -> StateShape:
        """Last values of the convolution, and what each head remembers."""
        return StateShape(
            conv=(self.taps - 1, self.channels), memory=(self.heads, self.keys, self.head)
        )

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Write and read memories: (tokens, width) to (tokens, inner), for `project`."""
        tokens, keys = x.shape[0], self.key_heads * self.keys
        conv, memory = batch.state(self.layer, "conv"), batch.state(self.layer, "memory")
        mixed, gate, beta, alpha = self._project_inputs(x)
        qkv = mixed.short_conv(self.conv.weight, conv.rows, conv.runs, self.conv.bias, silu=True)
        qk, v = qkv.chunk_sections(-1, 2 * keys, self.inner)
        q, k = qk.reshape(tokens, 2 * self.key_heads, self.keys).chunk(1, self.key_heads)
        y = q.gated_delta(
            k,
            v.reshape(tokens, self.heads, self.head),
            alpha.reshape(tokens, self.heads, 1),
            beta,
            memory.rows,
            memory.runs,
            self.decay.reshape(self.heads, 1),
            self.step_bias.reshape(self.heads, 1),
            scale=self.keys**-0.5,
            tiled=self.tiled,
            unit=self.eps,
            logits=True,
        )
        normed = y.rms_norm(self.norm, eps=self.eps).reshape(tokens, self.inner)
        return gate.swiglu(normed)

    def _project_inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Before the convolution, the gate, and what becomes beta and decay of each head."""
        if self.both is None:
            mixed, gate, beta, alpha = fused_linear(x, self.mixed, self.gate, self.beta, self.alpha)
            return mixed, gate, beta, alpha
        mixed, gate, both = fused_linear(x, self.mixed, self.gate, self.both)
        shared = self.heads // self.key_heads
        beta, alpha = both.reshape(x.shape[0], self.key_heads, 2 * shared).chunk(-1, shared)
        return mixed, gate, beta, alpha

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map what `forward` gives to (tokens, width), and add `residual`."""
        return self.output(y, residual)
