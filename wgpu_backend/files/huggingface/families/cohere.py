"""Command R, R+ and R7B, Aya."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.choices import bools, listed
from wgpu_backend.files.huggingface.families.llama import Decoder
from wgpu_backend.files.huggingface.family import family
from wgpu_backend.files.huggingface.rope import kind_of


@family("CohereForCausalLM")
class CommandR(Decoder):
    """One norm a layer, and a factor of the logits."""

    architecture = "command-r"
    defaults: ClassVar[Mapping[str, object]] = {
        "logit_scale": 0.0625,
        "layer_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
    }
    harmless = ("use_qk_norm",)

    def keys(self) -> dict[str, Value]:
        """The factor; the context is longer than the positions that config.json names."""
        s = self.settings
        made: dict[str, Value] = {
            "context_length": s.uint("model_max_length", "max_position_embeddings"),
            "logit_scale": s.number("logit_scale"),
        }
        return made if kind_of(self.rope) != "default" else {**made, "rope.scaling.type": "none"}


@family("Cohere2ForCausalLM")
class Cohere2(CommandR):
    """Windows in three of four layers."""

    architecture = "cohere2"
    defaults: ClassVar[Mapping[str, object]] = {
        **CommandR.defaults,
        "rope_theta": 1e4,
        "sliding_window": 4096,
    }
    harmless = (
        "order_of_interleaved_layers", "position_embedding_type", "use_embedding_sharing",
        "use_gated_activation", "use_parallel_block", "use_parallel_embedding", "layer_switch",
    )  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Windows, also where no layer has one: those without do not rotate."""
        s = self.settings
        return {
            **super().keys(),
            "attention.sliding_window": s.uint("sliding_window"),
            "attention.sliding_window_pattern": bools(self.slides()),
            "vocab_size": s.uint("vocab_size"),
            "rope.dimension_count": self.rotated,
        }

    def slides(self) -> list[bool]:
        """All but every fourth, where config.json does not list them."""
        s = self.settings
        period = s.uint("sliding_window_pattern", default=4) or 1
        return listed(s, lambda i: (i + 1) % period != 0)
