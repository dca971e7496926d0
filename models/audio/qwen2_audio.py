"""Qwen2-Audio's tower: Chu et al. 2024, "Qwen2-Audio Technical Report", §2.

Whisper's encoder, a mean of every two states, the norm and a matrix: 25 rows a second. Padding is
left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.errors import MediaError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.audio.blocks import SECONDS, WhisperTower, count_states
from wgpu_backend.nn.audio.mel import RATE
from wgpu_backend.nn.tower import Media, Rows, make_media, projector


@projector("qwen2a")
class Qwen2Audio(WhisperTower):
    """Whisper's encoder with a mean of two states."""

    placeholder = "<|AUDIO|>"
    around = ("<|audio_bos|>", "<|audio_eos|>")
    max_seconds = SECONDS

    output: nn.Linear = nn.weight("mm.a.fc", "cols", "width")

    def prepare(self, source: NDArray[Any]) -> Media:
        """Make the spectrogram of a sound of at most 30 seconds."""
        states = count_states(len(source))
        if len(source) > SECONDS * RATE or states < 2:
            raise MediaError(
                f"audio: {len(source) / RATE:.2f} seconds, the model takes 0.03 to {SECONDS}"
            )
        arrays = {"frames": self.spectrograms(source), "kept": np.arange(states, dtype=np.int32)}
        return make_media(arrays, [Rows(states // 2)])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for every 40 ms."""
        x = self.states(inputs["frames"], inputs["kept"])
        pairs = x.slice(0, 0, x.shape[0] // 2 * 2).reshape(-1, 2 * self.width)
        earlier, later = (pairs.slice(-1, i * self.width, (i + 1) * self.width) for i in (0, 1))
        return self.output(self.norm(earlier.add(later).scale(factor=0.5)))
