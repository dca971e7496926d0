"""Recurrent mixers: Mamba, Mamba 2, the gated delta rule, and a short convolution."""

from __future__ import annotations

from collections.abc import Callable

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.kvcache.layers import StateShape
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import Filter, Linear, fused_linear
from wgpu_backend.nn.module import Module, weight


class Mamba(Module):
    """A selective state space: each channel has its own step and decays (Gu & Dao 2023, §3.4).

    Steps, inputs and outputs of the scan are normalised where the file has weights for it, as in
    Jamba, or sets ``ssm.dt_b_c_rms``, as in Falcon Mamba.
    """

    expand: Linear = weight("ssm_in", "expanded", "width")
    conv: Filter = weight("ssm_conv1d", "inner", "taps")
    select: Linear = weight("ssm_x", "selected", "inner")
    step: Linear = weight("ssm_dt", "inner", "rank")
    decay: Tensor = weight("ssm_a", "inner", "states")
    skip: Tensor = weight("ssm_d", "inner")
    step_norm: Tensor | None = weight("ssm_dt_norm.weight", "rank")
    input_norm: Tensor | None = weight("ssm_b_norm.weight", "states")
    output_norm: Tensor | None = weight("ssm_c_norm.weight", "states")
    output: Linear = weight("ssm_out", "width", "inner")

    def __init__(self, config: LayerConfig) -> None:
        self.layer, self.width = config.index, config.width
        self.taps = config.uint("ssm.conv_kernel", at_least=2)
        self.inner = config.uint("ssm.inner_size", at_least=1)
        self.states = config.uint("ssm.state_size", at_least=1)
        self.rank = config.uint("ssm.time_step_rank", at_least=1)
        # `ssm_in` makes inputs and gates; `ssm_x` makes steps, inputs and outputs of the scan.
        self.expanded, self.selected = 2 * self.inner, self.rank + 2 * self.states
        normed = config.config.bool("ssm.dt_b_c_rms", False)
        self.is_normalised = normed or "ssm_dt_norm.weight" in config
        eps = config.float("attention.layer_norm_rms_epsilon")
        self.eps = config.float("ssm.dt_b_c_rms_epsilon", eps)

    @property
    def cached(self) -> StateShape:
        """Return the cached shapes: the convolution's last inputs, and each channel's state."""
        # A convolution reads the last values of the previous pass, one fewer than it has taps.
        return StateShape(conv=(self.taps - 1, self.inner), ssm=(1, self.states, self.inner))

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Scan: (tokens, width) to (tokens, inner), for `project`."""
        tokens = x.shape[0]
        x, gate = self.expand(x).chunk(-1, self.inner)
        conv, ssm = batch.state(self.layer, "conv"), batch.state(self.layer, "ssm")
        x = x.short_conv(self.conv.weight, conv.rows, conv.runs, self.conv.bias, silu=True)
        dt, b, c = self._select_parameters(x)
        # The kernel has Mamba 2's heads; here it is one head whose channels differ in their decays.
        y = x.reshape(tokens, 1, self.inner).selective_scan(
            self.step(dt).reshape(tokens, 1, self.inner),
            self.decay.reshape(1, self.inner, self.states),
            b.reshape(tokens, 1, self.states),
            c.reshape(tokens, 1, self.states),
            ssm.rows,
            ssm.runs,
        )
        return gate.swiglu(y.reshape(tokens, self.inner).add(x.mul(self.skip)))

    def _select_parameters(self, x: Tensor) -> tuple[Tensor, ...]:
        """Return low-rank steps, inputs and outputs of the scan for each token."""
        parts = self.select(x).chunk_sections(-1, self.rank, self.states, self.states)
        if not self.is_normalised:
            return tuple(parts)
        norms = (self.step_norm, self.input_norm, self.output_norm)
        return tuple(
            part.rms_norm(norm, eps=self.eps) for part, norm in zip(parts, norms, strict=True)
        )

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map the result of `forward` to (tokens, width), and add `residual`."""
        return self.output(y, residual)


class Mamba2(Module):
    """A state space dual: heads with one step and one decay each (Dao & Gu 2024, §7).

    Where the file has its weight, the gated result of the scan is normalised over each group of
    heads.

    Raises
    ------
    ModelError
        The heads do not divide the channels, or the groups do not divide the heads.
    """

    expand: Linear = weight("ssm_in", "expanded", "width")
    conv: Filter = weight("ssm_conv1d", "channels", "taps")
    step_bias: Tensor = weight("ssm_dt.bias", "heads")
    decay: Tensor = weight("ssm_a", "heads", 1)
    skip: Tensor = weight("ssm_d", "heads", 1)
    norm: Tensor | None = weight("ssm_norm.weight", "groups", "group")
    output: Linear = weight("ssm_out", "width", "inner")

    def __init__(self, config: LayerConfig) -> None:
        self.layer, self.width = config.index, config.width
        self.taps = config.uint("ssm.conv_kernel", at_least=2)
        self.inner = config.uint("ssm.inner_size", at_least=1)
        self.states = config.uint("ssm.state_size", at_least=1)
        self.heads = config.uint("ssm.time_step_rank", at_least=1)
        self.groups = config.uint("ssm.group_count", at_least=1)
        if self.inner % self.heads or self.heads % self.groups:
            raise config.fail(
                f"{self.inner} channels, {self.heads} heads in {self.groups} groups; needs "
                "multiples of each other"
            )
        self.head, self.group = self.inner // self.heads, self.inner // self.groups
        # Heads of a group share the scan's inputs and outputs, as grouped queries share keys.
        self.shared = self.groups * self.states
        # The convolution is of values, inputs and outputs of the scan alike.
        self.channels = self.inner + 2 * self.shared
        # In the order of the file's rows: gates, channels of the convolution, and a step per head.
        self.expanded = self.inner + self.channels + self.heads
        self.eps = config.float("attention.layer_norm_rms_epsilon")

    @property
    def cached(self) -> StateShape:
        """Return the cached shapes: the convolution's last inputs, and each head's state."""
        return StateShape(
            conv=(self.taps - 1, self.channels), ssm=(self.heads, self.states, self.head)
        )

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Scan: (tokens, width) to (tokens, inner), for `project`."""
        tokens = x.shape[0]
        gate, x, dt = self.expand(x).chunk_sections(-1, self.inner, self.channels, self.heads)
        conv, ssm = batch.state(self.layer, "conv"), batch.state(self.layer, "ssm")
        x = x.short_conv(self.conv.weight, conv.rows, conv.runs, self.conv.bias, silu=True)
        x, b, c = x.chunk_sections(-1, self.inner, self.shared, self.shared)
        x = x.reshape(tokens, self.heads, self.head)
        y = x.selective_scan(
            dt.add(self.step_bias).reshape(tokens, self.heads, 1),
            self.decay.reshape(self.heads, 1, 1),
            b.reshape(tokens, self.groups, self.states),
            c.reshape(tokens, self.groups, self.states),
            ssm.rows,
            ssm.runs,
        )
        y = y.add(x.mul(self.skip)).reshape(tokens, self.inner)
        # Mamba 2 gates before its norm; a gated delta net gates after it.
        return self._normalise(gate.swiglu(y))

    def _normalise(self, y: Tensor) -> Tensor:
        if self.norm is None:
            return y
        # With one group, norm and weights are one op; with more, weights differ by group.
        if self.groups == 1:
            return y.rms_norm(self.norm.reshape(-1), eps=self.eps)
        grouped = y.reshape(-1, self.groups, self.group)
        return grouped.rms_norm(eps=self.eps).mul(self.norm).reshape(-1, self.inner)

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map the result of `forward` to (tokens, width), and add `residual`."""
        return self.output(y, residual)


class GatedDelta(Module):
    """A gated delta net (Yang, Kautz & Hatamizadeh 2024, §3.3); value heads share keys.

    Betas and decays have separate weights, or a joint one, ``ssm_ba``, in which the rows of heads
    that share keys are adjacent.

    Parameters
    ----------
    tiled : bool
        Whether keys are assigned to heads round-robin; otherwise adjacent heads share a key.

    Raises
    ------
    ModelError
        The heads do not divide the values, or the key heads do not divide the heads.
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
        # Queries have as many heads as keys, and value heads share both.
        self.channels = self.inner + 2 * self.key_heads * self.keys
        self.eps = config.float("attention.layer_norm_rms_epsilon")

    def declare(self, has: Callable[[str], bool]) -> None:
        """Tag separate weights for betas and decays, or one joint weight."""
        if has("ssm_ba.weight"):
            self.both = weight("ssm_ba", "rates", "width")
            return
        self.beta = weight("ssm_beta", "heads", "width")
        self.alpha = weight("ssm_alpha", "heads", "width")

    @property
    def cached(self) -> StateShape:
        """Return the cached shapes: the convolution's last inputs, and each head's memory."""
        return StateShape(
            conv=(self.taps - 1, self.channels), memory=(self.heads, self.keys, self.head)
        )

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Update and read the memories: (tokens, width) to (tokens, inner), for `project`."""
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
            # The delta rule needs keys of unit length: with longer ones the memory can diverge.
            unit=self.eps,
            logits=True,
        )
        normed = y.rms_norm(self.norm, eps=self.eps).reshape(tokens, self.inner)
        return gate.swiglu(normed)

    def _project_inputs(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the input of the convolution, the gate, and each head's beta and decay."""
        if self.both is None:
            mixed, gate, beta, alpha = fused_linear(x, self.mixed, self.gate, self.beta, self.alpha)
            return mixed, gate, beta, alpha
        mixed, gate, both = fused_linear(x, self.mixed, self.gate, self.both)
        shared = self.heads // self.key_heads
        # Rows of the joint weight are grouped by key head: betas of its heads, then decays.
        beta, alpha = both.reshape(x.shape[0], self.key_heads, 2 * shared).chunk(-1, shared)
        return mixed, gate, beta, alpha

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map the result of `forward` to (tokens, width), and add `residual`."""
        return self.output(y, residual)


class ShortConv(Module):
    """``c * conv(b * x)`` of three projections (Liquid AI 2025, "LFM2 Technical Report", §2.1)."""

    expand: Linear = weight("shortconv.in_proj", "expanded", "width")
    conv: Filter = weight("shortconv.conv", "width", "taps")
    output: Linear = weight("shortconv.out_proj", "width", "width")

    def __init__(self, config: LayerConfig) -> None:
        self.layer, self.width = config.index, config.width
        self.taps = config.uint("shortconv.l_cache", at_least=2)
        self.expanded = 3 * self.width

    @property
    def cached(self) -> StateShape:
        """Return the cached shape: the convolution's last inputs."""
        return StateShape(conv=(self.taps - 1, self.width))

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Convolve (tokens, width) to the same shape, for `project`."""
        # The order of the published code: `B, C, x = in_proj(x).chunk(3)`.
        b, c, x = self.expand(x).chunk(-1, self.width)
        state = batch.state(self.layer, "conv")
        return b.mul(x).short_conv(self.conv.weight, state.rows, state.runs, self.conv.bias).mul(c)

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map the result of `forward` to (tokens, width), and add `residual`."""
        return self.output(y, residual)
