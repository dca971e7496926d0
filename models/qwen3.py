"""Qwen3: Llama with a norm on every query and key head, and rotation of halves.

Yang et al. 2025, "Qwen3 Technical Report", §2. The norms are where the file has them, and needed.
"""

from __future__ import annotations

from wgpu_backend.ml.backend import Backend
from wgpu_backend.model import architecture

from .llama import Llama


@architecture("qwen3")
class Qwen3(Llama):
    """Qwen3."""

    rope_interleaved = False

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        for i, layer in enumerate(self.layers):
            if layer.attention.query_norm is None or layer.attention.key_norm is None:
                raise self.fail(f"blk.{i}: attn_q_norm or attn_k_norm is missing, qwen3 has both")
