"""Mixers that scan a state space: Mamba and Mamba 2."""

from __future__ import annotations

from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.kvcache.layers import StateShape
from wgpu_backend.nn.layer_config import LayerConfig
from wgpu_backend.nn.layers import Filter, Linear
from wgpu_backend.nn.module import Module, weight


class Mamba(Module):
    """Selective state space: every channel has its own step and decays (Gu & Dao 2023, §3.4).

    Steps, inputs and outputs of the scan go through norms where the file has their weights, as in
    Jamba, or its ``ssm.dt_b_c_rms`` says so, as in Falcon Mamba.

    Parameters
    ----------
    config : LayerConfig
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
        self.expanded, self.selected = 2 * self.inner, self.rank + 2 * self.states
        normed = config.config.bool("ssm.dt_b_c_rms", False)
        self.is_normalised = normed or "ssm_dt_norm.weight" in config
        eps = config.float("attention.layer_norm_rms_epsilon")
        self.eps = config.float("ssm.dt_b_c_rms_epsilon", eps)

    @property
    def cached(self) -> StateShape:
        """Last values of the convolution, and the states of all channels."""
        return StateShape(conv=(self.taps - 1, self.inner), ssm=(1, self.states, self.inner))

    def forward(self, x: Tensor, batch: Batch) -> Tensor:
        """Scan: (tokens, width) to (tokens, inner), for `project`."""
        tokens = x.shape[0]
        x, gate = self.expand(x).chunk(-1, self.inner)
        conv, ssm = batch.state(self.layer, "conv"), batch.state(self.layer, "ssm")
        x = x.short_conv(self.conv.weight, conv.rows, conv.runs, self.conv.bias, silu=True)
        dt, b, c = self._select_parameters(x)
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
        """Low-rank steps, inputs and outputs of the scan, by the token."""
        parts = self.select(x).chunk_sections(-1, self.rank, self.states, self.states)
        if not self.is_normalised:
            return tuple(parts)
        norms = (self.step_norm, self.input_norm, self.output_norm)
        return tuple(
            part.rms_norm(norm, eps=self.eps) for part, norm in zip(parts, norms, strict=True)
        )

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map what `forward` gives to (tokens, width), and add `residual`."""
        return self.output(y, residual)


class Mamba2(Module):
    """State space dual: heads with one step and one decay each (Dao & Gu 2024, §7).

    What comes of the scan goes through a norm over each group of heads, behind the gate, where the
    file has its weight.

    Parameters
    ----------
    config : LayerConfig

    Raises
    ------
    ModelError
        Heads do not divide the channels, or groups do not divide the heads.
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
        self.shared = self.groups * self.states
        self.channels = self.inner + 2 * self.shared
        self.expanded = self.inner + self.channels + self.heads
        self.eps = config.float("attention.layer_norm_rms_epsilon")

    @property
    def cached(self) -> StateShape:
        """Last values of the convolution, and the states of all heads."""
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
        return self._normalise(gate.swiglu(y))

    def _normalise(self, y: Tensor) -> Tensor:
        if self.norm is None:
            return y
        if self.groups == 1:
            return y.rms_norm(self.norm.reshape(-1), eps=self.eps)
        grouped = y.reshape(-1, self.groups, self.group)
        return grouped.rms_norm(eps=self.eps).mul(self.norm).reshape(-1, self.inner)

    def project(self, y: Tensor, residual: Tensor | None = None) -> Tensor:
        """Map what `forward` gives to (tokens, width), and add `residual`."""
        return self.output(y, residual)
