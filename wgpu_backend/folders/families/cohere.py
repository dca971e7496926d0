"""Command R, R+ and R7B, Aya."""

from __future__ import annotations

from wgpu_backend.config import Value
from wgpu_backend.folders.families.llama import Decoder
from wgpu_backend.folders.family import family, head_size


@family("CohereForCausalLM")
class CommandR(Decoder):
    """One norm a layer, and a factor of the logits."""

    architecture = "command-r"

    def keys(self) -> dict[str, Value]:
        """The factor; the context is longer than the positions that config.json names."""
        s = self.settings
        return {
            "context_length": s.uint("model_max_length", "max_position_embeddings"),
            "logit_scale": s.number("logit_scale"),
            "rope.scaling.type": "none",
        }


@family("Cohere2ForCausalLM")
class Cohere2(CommandR):
    """Windows in three of four layers."""

    architecture = "cohere2"

    def keys(self) -> dict[str, Value]:
        """The window, and how much of a head is rotated."""
        s = self.settings
        share = self.rope.number("partial_rotary_factor", default=1.0)
        return {
            **super().keys(),
            "attention.sliding_window": s.uint("sliding_window"),
            "vocab_size": s.uint("vocab_size"),
            "rope.dimension_count": int(share * head_size(s)),
        }
