"""The parts of Whisper's encoder: the convolutions, and the encoder as a tower.

Radford et al. 2022, "Robust Speech Recognition via Large-Scale Weak Supervision", §2.2. Weights of
a tower have the names of llama.cpp's mmproj files.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.audio.mel import HOP, RATE, log_mel
from wgpu_backend.nn.layers import LayerNorm, Norm
from wgpu_backend.nn.mlp import activated
from wgpu_backend.nn.module import Module
from wgpu_backend.nn.module import weight as tagged
from wgpu_backend.nn.tower import Tower
from wgpu_backend.nn.vision.blocks import EncoderLayer, LayerSizes

TAPS = 3
# Frames of 10 ms that make one state of the encoder.
STRIDE = 2
SECONDS, STATES = 30, 1500


class Convolution(Module):
    """A convolution over time, of width 3, and GELU.

    Parameters
    ----------
    inputs, outputs : int
        Channels.
    """

    weight: Tensor = tagged("weight", "outputs", "inputs", TAPS)
    bias: Tensor = tagged("bias")

    def __init__(self, inputs: int, outputs: int) -> None:
        self.inputs, self.outputs = inputs, outputs

    def __call__(self, x: Tensor, stride: int = 1) -> Tensor:
        """Map (n, frames, inputs) to (n, frames / stride, outputs)."""
        # In published weights the taps are the last axis; the op needs channels last.
        y = x.conv1d(self.weight.permute(0, 2, 1), stride, 1)
        return activated("gelu_erf", y.add(self.bias.reshape(self.outputs)))


class WhisperTower(Tower):
    """Whisper's encoder without its last norm, for sounds in windows of 30 seconds.

    Attributes
    ----------
    bands : int
        Bands of the spectrogram.
    """

    modality = "audio"

    positions: Tensor = tagged("a.position_embd.weight", STATES, "width")
    norm: Norm
    first: Convolution
    second: Convolution

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        self.sizes = LayerSizes.from_config(keys, "audio", activation="gelu_erf", eps=1e-5)
        self.width = self.sizes.width
        self.bands = keys.uint("audio.num_mel_bins", 128, at_least=1)
        self.cols = keys.uint("audio.projection_dim", at_least=1)
        self.norm = tagged("a.post_ln", "width", kind=LayerNorm(self.sizes.eps), needed=True)
        self.first = tagged("a.conv1d.1", kind=Convolution(self.bands, self.width), needed=True)
        self.second = tagged("a.conv1d.2", kind=Convolution(self.width, self.width), needed=True)
        super().__init__(backend)
        self.layers = self.fill_layers(
            lambda: EncoderLayer(self.sizes), self.sizes.count, prefix="a.blk."
        )

    def spectrograms(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the spectrogram of each window of 30 seconds, padded with silence.

        Returns
        -------
        (windows, frames, bands), f32
        """
        window = SECONDS * RATE
        count = max(1, -(-len(samples) // window))
        padded = np.pad(samples, (0, count * window - len(samples)))
        return np.stack([log_mel(each, self.bands) for each in padded.reshape(count, window)])

    def states(self, frames: Tensor, kept: Tensor | None = None) -> Tensor:
        """Encode windows, each of which attends only to itself: (windows · states, width).

        Parameters
        ----------
        frames : (windows, frames, bands), f32
            Of 30 seconds, or fewer: then there are fewer states.
        kept : (states,), i32, or None
            Indices of the states with sound, for a single window; None for all.
        """
        count = frames.shape[0]
        x = self.second(self.first(frames), STRIDE)
        x = x.add(self.positions.slice(0, 0, x.shape[1]))
        x = x.contiguous().reshape(count * x.shape[1], self.width)
        if kept is not None:
            x = x.rows(kept)
        runs = [x.shape[0] // count] * count
        for layer in self.layers:
            x = layer(x, None, runs)
        return x


def count_states(samples: int) -> int:
    """Return the number of states that a sound of at most 30 seconds has."""
    return (-(-samples // HOP) - 1) // STRIDE + 1
