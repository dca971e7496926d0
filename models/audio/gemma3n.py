"""Gemma 3n's tower for sound: Zhang et al. 2023, "Google USM", §2.1; Gemma Team 2025, "Gemma 3n".

Gemma 4's conformer after two convolutions, whose norms are over all frames up to the present one.
One state of four is kept, which makes a row for every 160 ms. Each sound has 188 rows, of which
those after its end stand for silence.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.audio.mel import log_emphasised
from wgpu_backend.nn.tower import Media, Rows, make_media, projector

from .gemma4 import (
    EPS,
    TAPS,
    Conformer,
    Layer,
    LocalAttention,
    TimeConvolution,
)

# Constants of the published code, for which files have no keys.
GROUP_EPS = 1e-3
REDUCTION = 4  # states of which one is kept
SOUND = 188  # rows of a sound


class CumulativeNorm(nn.Module):
    """A norm of each frame's values by the mean and variance of all frames up to it.

    Wu & He 2018, "Group Normalization", §3.1, with one group, without later frames. The sum of
    squares has each frame's difference to its own mean.
    """

    scale: Tensor = nn.weight("weight")

    def __call__(self, x: Tensor, shares: Tensor) -> Tensor:
        """Map (1, frames, bands, channels) to the same shape.

        Parameters
        ----------
        shares : (frames, 1), f32
            1, 1/2, 1/3, …: of one frame in all up to it.
        """
        frames = x.contiguous().reshape(x.shape[1], -1)
        centred = frames.sub(_average(frames, shares))
        variance = _average(centred.sqr(), shares)
        return centred.mul((variance + GROUP_EPS).rsqrt()).reshape(*x.shape).mul(self.scale)


def _average(frames: Tensor, shares: Tensor) -> Tensor:
    """Return the mean of all values up to each frame: (frames, 1)."""
    return frames.mean(-1, keep_dims=True).cumsum(0).mul(shares)


class PlainKeyAttention(LocalAttention):
    """Gemma 4's attention, with keys that are not scaled and other names of weights."""

    key_factor: ClassVar[float] = 1.0
    distance: nn.Linear = nn.weight("linear_pos", "width", "width")
    scales: Tensor = nn.weight("per_dim_scale", "head")

    def get_scales(self, zero: Tensor) -> Tensor:
        """Return the factors of a query's columns: (head,)."""
        # Gemma 4's files have them after softplus. The sum is in the context of the zero.
        return self.scales.add(zero).softplus()


class ThinConvolution(TimeConvolution):
    """Gemma 4's convolution over time, in the shape of the published weights."""

    taps: Tensor = nn.weight("conv_dw.weight", "width", 1, TAPS)


@projector("gemma3na")
class Gemma3nAudio(Conformer):
    """A conformer, and a matrix between two norms."""

    placeholder = "<audio_soft_token>"
    seen = 13
    shortest = 0.033

    first_norm: CumulativeNorm = nn.weight("a.conv1d.0.norm")
    second_norm: CumulativeNorm = nn.weight("a.conv1d.1.norm")
    project: nn.Linear = nn.weight("a.pre_encode.out")
    soft_norm: Tensor = nn.weight("mm.a.soft_emb_norm.weight", "width")
    projection: nn.Linear = nn.weight("mm.a.input_projection", "cols", "width")
    # Embeddings of tokens for sound: <end_of_audio> is the first, silence the last.
    tokens: Tensor = nn.weight("mm.a.embedding.weight")
    token_norm: Tensor = nn.weight("mm.a.hard_emb_norm.weight", "width")

    def make_layer(self) -> Layer:
        """Return a layer without weights."""
        attention, convolution = PlainKeyAttention(self.sizes), ThinConvolution(self.width)
        return Layer(self.sizes, attention, convolution, ("ln1", "ln2", "layer_pre_norm"))

    def prepare(self, source: NDArray[Any]) -> Media:
        """Make the spectrogram of a sound of at most 30 seconds."""
        frames = log_emphasised(source, self.bands)
        self.require_length(source, frames)
        # The last row is that of <end_of_audio>.
        return make_media({"frames": frames}, ["\n\n<start_of_audio>", Rows(SOUND + 1), "\n\n"])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for every 160 ms, then those of silence and of <end_of_audio>."""
        x = inputs["frames"].reshape(1, -1, self.bands, 1)
        for kernel, norm in ((self.first, self.first_norm), (self.second, self.second_norm)):
            # In time there is padding only at the end.
            x = x.conv2d(kernel.permute(0, 2, 3, 1), (2, 2), ((0, 2), (1, 1)))
            shares = 1 / np.arange(1, x.shape[1] + 1, dtype=np.float32)[:, None]
            x = norm(x, context.from_numpy(shares)).relu()
        x = self.encode_states(context, x)
        x = x.rows(context.from_numpy(np.arange(0, x.shape[0], REDUCTION, dtype=np.int32)))
        added = np.full(SOUND + 1 - x.shape[0], self.tokens.shape[0] - 1, np.int32)
        added[-1] = 0
        tokens = self.tokens.rows(context.from_numpy(added)).rms_norm(self.token_norm, eps=EPS)
        x = x.rms_norm(self.soft_norm, eps=EPS).concat(tokens, axis=0)
        return self.projection(x).rms_norm(None, eps=EPS)
