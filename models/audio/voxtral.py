"""Voxtral's tower: Liu et al. 2025, "Voxtral", §2.

Whisper's encoder on windows of 30 seconds, the last of them padded with silence. Four
consecutive states go through two matrices: 375 rows for each window.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.audio.blocks import STATES, WhisperTower
from wgpu_backend.nn.tower import Media, Rows, make_media, projector


@projector("voxtral")
class Voxtral(WhisperTower):
    """Whisper's encoder and two matrices."""

    placeholder = "[AUDIO]"
    around = ("[BEGIN_AUDIO]", "")

    up: nn.Linear = nn.weight("mm.a.mlp.1", "cols", "joined")
    down: nn.Linear = nn.weight("mm.a.mlp.2", "cols", "cols")

    def __init__(self, backend: Backend) -> None:
        self.together = backend.config.uint("audio.projector.stack_factor", 4, at_least=1)
        if STATES % self.together:
            raise self.fail(
                f"audio.projector.stack_factor is {self.together}, needs a divisor of {STATES}"
            )
        self.joined = self.together * backend.config.uint("audio.embedding_length", at_least=1)
        super().__init__(backend)

    def prepare(self, source: NDArray[Any]) -> Media:
        """Make the spectrograms of a sound's windows."""
        frames = self.spectrograms(source)
        return make_media({"frames": frames}, [Rows(len(frames) * STATES // self.together)])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for every four states."""
        x = self.norm(self.states(inputs["frames"])).reshape(-1, self.joined)
        return self.down(self.up(x).gelu_erf())
