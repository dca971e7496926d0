"""Ultravox's tower: Fixie AI 2025, "Ultravox v0.5", model card and published code.

Whisper's encoder on windows of 30 seconds, without the silence that would fill the last one. Eight
consecutive states go through a norm, a gated matrix, a second norm and a matrix: about six rows a
second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend import nn
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.audio.blocks import STATES, STRIDE, WhisperTower
from wgpu_backend.nn.audio.mel import HOP, log_mel
from wgpu_backend.nn.tower import Media, Rows, make_media, projector

EPS = 1e-6


@projector("ultravox")
class Ultravox(WhisperTower):
    """Whisper's encoder and a gated projector."""

    placeholder = "<|audio|>"

    first_norm: nn.RMSNorm
    up: nn.Linear = nn.weight("mm.a.mlp.1", "two_gates", "joined")
    middle_norm: nn.RMSNorm
    down: nn.Linear = nn.weight("mm.a.mlp.2", "cols", "gate")

    def __init__(self, backend: Backend) -> None:
        keys = backend.config
        self.together = keys.uint("audio.projector.stack_factor", 8, at_least=1)
        self.joined = self.together * keys.uint("audio.embedding_length", at_least=1)
        rows = backend.file.tensors.get("mm.a.mlp.1.weight")
        self.two_gates = 0 if rows is None else rows.shape[0]
        self.gate = self.two_gates // 2
        self.first_norm = nn.weight("mm.a.norm_pre", "joined", kind=nn.RMSNorm(EPS), needed=True)
        self.middle_norm = nn.weight("mm.a.norm_mid", "gate", kind=nn.RMSNorm(EPS), needed=True)
        super().__init__(backend)

    def prepare(self, source: NDArray[Any]) -> Media:
        """Make the spectrograms of whole windows, and of the rest of a sound."""
        frames = log_mel(np.pad(source, (0, -len(source) % HOP)), self.bands)
        window = STATES * STRIDE
        whole, rest = np.split(frames, [len(frames) // window * window])
        arrays = {"whole": whole.reshape(-1, window, self.bands), "rest": rest[None]}
        each = STRIDE * self.together
        count = len(whole) // window * -(-window // each) + -(-len(rest) // each)
        return make_media({n: a for n, a in arrays.items() if a.size}, [Rows(count)])

    def encode(self, context: Context, inputs: Mapping[str, Tensor]) -> Tensor:
        """Return a row for every eight states, window by window."""
        parts = [self._stack(context, inputs[name]) for name in ("whole", "rest") if name in inputs]
        x = parts[0] if len(parts) == 1 else parts[0].concat(parts[1], axis=0)
        x = self.up(self.first_norm(x))
        values, gates = (x.slice(-1, i * self.gate, (i + 1) * self.gate) for i in (0, 1))
        # The second half has the activation, unlike in other gated networks.
        return self.down(self.middle_norm(gates.contiguous().silu().mul(values)))

    def _stack(self, context: Context, frames: Tensor) -> Tensor:
        """Encode windows of one length, and join their states: (rows, joined)."""
        windows = frames.shape[0]
        x = self.norm(self.states(frames)).reshape(windows, -1, self.width)
        lacking = -x.shape[1] % self.together
        if lacking:
            x = x.concat(context.from_numpy(np.zeros((windows, lacking, self.width), "f4")), axis=1)
        return x.contiguous().reshape(-1, self.joined)
