"""Qwen2 and Qwen2.5: Llama with biases on queries, keys and values, and rotation of halves.

Yang et al. 2024, "Qwen2 Technical Report", §2.2. The biases are where the file has them.
"""

from __future__ import annotations

from wgpu_backend.model import architecture

from .llama import Llama


@architecture("qwen2")
class Qwen2(Llama):
    """Qwen2."""

    rope_interleaved = False
