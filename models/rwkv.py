"""RWKV 6 and 7.

Recurrent networks that mix each token with the one before it: Peng et al. 2024, "Eagle and Finch:
RWKV with Matrix-Valued States and Dynamic Recurrence", §4.2; Peng et al. 2025, "RWKV-7 Goose with
Expressive Dynamic State Evolution", §4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import numpy as np

from wgpu_backend import nn
from wgpu_backend.dtypes import I32
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.nn.decoder import Decoder
from wgpu_backend.nn.kvcache.layers import StateShape
from wgpu_backend.nn.model import architecture

# Epsilon of the norm over heads, which files do not store.
# 1e-5 times the square of the published `head_size_divisor`, 8.
_GROUP_EPS = 64e-5
# -exp(-1/2): RWKV-7's largest decay is exp of this.
_DECAY = -0.606531
Activation = Callable[[Tensor], Tensor]


def token_shift(x: Tensor, layer: int, name: str, batch: Batch) -> Tensor:
    """Return the difference of the preceding token to each token: (tokens, width)."""
    state = batch.state(layer, name)
    return x.token_shift(state.rows, state.runs).sub(x)


class ChannelMix(nn.Module):
    """A squared ReLU of a token and the preceding one, with a gate in RWKV-6."""

    key: nn.Linear = nn.weight("channel_mix_key", "inner", "width")
    value: nn.Linear = nn.weight("channel_mix_value", "width", "inner")
    receptance: nn.Linear | None = nn.weight("channel_mix_receptance", "width", "width")
    key_mix: Tensor = nn.weight("channel_mix_lerp_k.weight", "width")
    receptance_mix: Tensor | None = nn.weight("channel_mix_lerp_r.weight", "width")

    def __init__(self, config: nn.LayerConfig) -> None:
        self.width = config.width
        self.inner = config.uint("feed_forward_length", at_least=1)

    def forward(self, x: Tensor, shift: Tensor) -> Tensor:
        """Map rows, and their differences to the preceding ones, to (rows, width)."""
        y = self.value(self.key(x.add(shift.mul(self.key_mix))).relu().sqr())
        if self.receptance is None or self.receptance_mix is None:
            return y
        return self.receptance(x.add(shift.mul(self.receptance_mix))).sigmoid().mul(y)


class TimeMix(nn.Module):
    """The common part of both generations: receptance, keys, values, and a norm over heads."""

    receptance: nn.Linear = nn.weight("time_mix_receptance", "width", "width")
    key: nn.Linear = nn.weight("time_mix_key", "width", "width")
    value: nn.Linear = nn.weight("time_mix_value", "width", "width")
    norm: nn.Linear = nn.weight("time_mix_ln")
    output: nn.Linear = nn.weight("time_mix_output", "width", "width")

    def __init__(self, config: nn.LayerConfig) -> None:
        self.layer, self.width = config.index, config.width
        self.head = config.uint("wkv.head_size", at_least=1)
        if self.width % self.head:
            raise config.fail(f"embedding_length is {self.width}, needs a multiple of {self.head}")
        self.heads = self.width // self.head

    def by_head(self, x: Tensor) -> Tensor:
        """Reshape (tokens, width) to (tokens, heads, head)."""
        return x.reshape(-1, self.heads, self.head)

    def normalise(self, y: Tensor) -> Tensor:
        """Map (tokens, heads, head) to (tokens, width), each head with mean 0 and variance 1."""
        rows = y.layer_norm(None, eps=_GROUP_EPS).reshape(-1, self.width).mul(self.norm.weight)
        return rows if self.norm.bias is None else rows.add(self.norm.bias)


class TimeMix6(TimeMix):
    """A time mix whose token shift and decays depend on the token (§4.2)."""

    gate: nn.Linear = nn.weight("time_mix_gate", "width", "width")
    mix: Tensor = nn.weight("time_mix_lerp_x.weight", "width")
    mixes: Tensor = nn.weight("time_mix_lerp_fused.weight")
    mix_down: nn.Linear = nn.weight("time_mix_w1")
    mix_up: Tensor = nn.weight("time_mix_w2.weight")
    decay: Tensor = nn.weight("time_mix_decay.weight", "width")
    decay_down: nn.Linear = nn.weight("time_mix_decay_w1")
    decay_up: nn.Linear = nn.weight("time_mix_decay_w2")
    bonus: Tensor = nn.weight("time_mix_first.weight", "heads", "head")

    def forward(self, x: Tensor, shift: Tensor, batch: Batch) -> Tensor:
        """Map (tokens, width) to the same shape, for `output`."""
        w, k, v, r, g = self._mix(x, shift)
        rate = self.decay_up(self.decay_down(w).tanh()).add(self.decay)
        state = batch.state(self.layer, "wkv")
        y = self.by_head(self.receptance(r)).gated_linear(
            self.by_head(self.key(k)),
            self.by_head(self.value(v)),
            # The kernel takes the logarithm of the decay, -exp(rate).
            self.by_head(rate.exp().neg()),
            state.rows,
            state.runs,
            self.bonus,
        )
        return self.gate(g).swiglu(self.normalise(y))

    def _mix(self, x: Tensor, shift: Tensor) -> list[Tensor]:
        """Return five mixtures of each token with the preceding one."""
        tokens = x.shape[0]
        # One product for the five low-rank projections, whose second matrices are chosen by number
        # as experts are.
        low = self.mix_down(x.add(shift.mul(self.mix))).tanh().reshape(tokens, 5, -1)
        five = x.context.from_numpy(np.tile(np.arange(5), (tokens, 1)), I32)
        share = self.mix_up.mulmat_id(low, five).add(self.mixes.reshape(5, self.width))
        rows = (tokens, 1, self.width)
        mixed = x.reshape(*rows).add(shift.reshape(*rows).mul(share))
        return [part.reshape(tokens, self.width) for part in mixed.chunk(1, 1)]


class LowRank(nn.Module):
    """``up(activation(down(x))) + bias``; the three weights are numbered after one name."""

    down: nn.Linear
    up: nn.Linear
    bias: Tensor | None = None

    def __init__(self, name: str, *, biased: bool = True) -> None:
        self.down, self.up = nn.weight(f"{name}1"), nn.weight(f"{name}2")
        if biased:
            self.bias = nn.weight(f"{name}0.weight", needed=True)

    def __call__(self, x: Tensor, activation: Activation | None = None) -> Tensor:
        """Map (tokens, width) to the same shape."""
        low = self.down(x)
        y = self.up(low if activation is None else activation(low))
        return y if self.bias is None else y.add(self.bias)


@dataclass(slots=True)
class FirstValues:
    """The first layer's values in a pass, (tokens, width), which other layers mix with theirs."""

    rows: Tensor | None = None


class TimeMix7(TimeMix):
    """A time mix with removal keys and learning rates that depend on the token (§4)."""

    mixes: Tensor = nn.weight("time_mix_lerp_fused.weight")
    removal: Tensor = nn.weight("time_mix_k_k.weight", "width")
    replacement: Tensor = nn.weight("time_mix_k_a.weight", "width")
    bonus: Tensor = nn.weight("time_mix_r_k.weight", "width")

    def __init__(self, config: nn.LayerConfig) -> None:
        super().__init__(config)
        self.decay, self.rate = LowRank("time_mix_w"), LowRank("time_mix_a")
        self.first_share, self.gate = LowRank("time_mix_v"), LowRank("time_mix_g", biased=False)

    def forward(self, x: Tensor, shift: Tensor, batch: Batch, first: FirstValues) -> Tensor:
        """Map (tokens, width) to the same shape, for `output`."""
        r, w, k, v, a, g = self._mix(x, shift)
        decay = self.decay(w, lambda low: low.tanh()).sigmoid().scale(factor=_DECAY)
        r, k, own = self.receptance(r), self.key(k), self.value(v)
        # The first layer has no earlier values to mix with, though files have weights for it.
        if first.rows is None:
            first.rows = own
        else:
            own = own.add(first.rows.sub(own).mul(self.first_share(v).sigmoid()))
        rate, state = self.rate(a).sigmoid(), batch.state(self.layer, "wkv")
        # Before `k` is changed below: removal keys are made of the plain ones. The published code
        # calls torch's `normalize`, whose default is this epsilon.
        removed = self.by_head(k.mul(self.removal)).l2_norm(eps=1e-12)
        k = k.add(k.mul(rate - 1.0).mul(self.replacement))
        heads = (1, x.shape[0], self.heads, self.head)
        delta = (
            removed.neg().reshape(*heads).stack(0, removed.mul(self.by_head(rate)).reshape(*heads))
        )
        y = self.by_head(r).wkv7(
            self.by_head(k), self.by_head(own), self.by_head(decay), delta, state.rows, state.runs
        )
        # A token's term for itself is added after the norm over heads (§4).
        kept = self.by_head(r.mul(k).mul(self.bonus)).sum_rows().mul(self.by_head(own))
        y = self.normalise(y).add(kept.reshape(-1, self.width))
        return y.mul(self.gate(g, lambda low: low.sigmoid()))

    def _mix(self, x: Tensor, shift: Tensor) -> list[Tensor]:
        """Return six mixtures of each token with the preceding one."""
        rows = (x.shape[0], 1, self.width)
        shares = self.mixes.reshape(6, self.width)
        mixed = x.reshape(*rows).add(shift.reshape(*rows).mul(shares))
        return [part.reshape(-1, self.width) for part in mixed.chunk(1, 1)]


class RwkvLayer(nn.DecoderLayer):
    """A pre-norm layer of time mix and channel mix with residuals."""

    time_norm: nn.Norm
    channel_norm: nn.Norm

    def __init__(self, config: nn.LayerConfig, time: TimeMix6 | TimeMix7) -> None:
        self.index, self.width, self.last = config.index, config.width, config.last
        self.time, self.channel = time, ChannelMix(config)
        self.time_norm, self.channel_norm = config.norm("attn_norm"), config.norm("attn_norm_2")

    @property
    def cached(self) -> StateShape:
        """Return the states: the last token of both mixes, and the states of all heads."""
        heads, head = self.time.heads, self.time.head
        row = (1, self.width)
        return StateShape(time=row, channel=row, wkv=(heads, head, head))

    def forward(self, x: Tensor, batch: Batch, first: FirstValues | None = None) -> Tensor:
        """Map (tokens, width) to the same shape; RWKV-7 needs the first layer's values."""
        normed = self.time_norm(x)
        shift = token_shift(normed, self.index, "time", batch)
        if isinstance(self.time, TimeMix7):
            y = self.time.forward(normed, shift, batch, first or FirstValues())
        else:
            y = self.time.forward(normed, shift, batch)
        x = self.time.output(y, x)
        normed = self.channel_norm(x)
        shift = token_shift(normed, self.index, "channel", batch)
        # After the second token shift, whose state is the last token's row, output or not.
        if self.last:
            x, normed, shift = (batch.select_outputs(rows) for rows in (x, normed, shift))
        return x.add(self.channel.forward(normed, shift))


class Rwkv(Decoder):
    """RWKV, with normalised embeddings, and layers that pass on the first one's values."""

    steerable = True
    norm = nn.LayerNorm
    # Checkpoints have it as `ln0` of the first layer; files keep it with the embeddings.
    embedding_norm: nn.Norm

    def __init__(self, backend: Backend) -> None:
        norm = self.norm.from_config(backend.config)
        self.embedding_norm = nn.weight("token_embd_norm", "width", kind=norm, needed=True)
        super().__init__(backend)

    def fit_context(self, positions: int) -> None:
        """Do nothing: a recurrent network has no positions."""

    def hidden(self, batch: Batch) -> Tensor:
        """Return the states of the output rows after the last norm."""
        x, first = self.embedding_norm(self.embed(batch)), FirstValues()
        rescaled = self.config.uint("rescale_every_n_layers", 0)
        for i, layer in enumerate(self.layers):
            x = cast("RwkvLayer", layer).forward(x, batch, first)
            if rescaled and (i + 1) % rescaled == 0:
                # Converters divide output matrices by two as often, so that f16 sums stay in range.
                x = x.scale(factor=0.5)
            x = self.add_direction(i, x)
        return self.normalise(x)


@architecture("rwkv6")
class Rwkv6(Rwkv):
    """RWKV 6, "Finch"."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer whose decays depend on the token."""
        return RwkvLayer(config, TimeMix6(config))


@architecture("rwkv7")
class Rwkv7(Rwkv):
    """RWKV 7, "Goose"."""

    def layer(self, config: nn.LayerConfig) -> nn.DecoderLayer:
        """Build a layer with the generalised delta rule."""
        return RwkvLayer(config, TimeMix7(config))
