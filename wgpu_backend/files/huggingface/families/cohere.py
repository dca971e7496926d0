"""Command R, R+ and R7B, Aya."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import Decoder
from wgpu_backend.files.huggingface.family import family
from wgpu_backend.files.huggingface.rope import rope_kind
from wgpu_backend.files.huggingface.shared_settings import bools, find_sliding


@family("CohereForCausalLM")
class CommandR(Decoder):
    """A model with one norm per layer, and a factor of the logits."""

    architecture = "command-r"
    defaults: ClassVar[Mapping[str, object]] = {
        "logit_scale": 0.0625,
        "layer_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
    }
    harmless = ("use_qk_norm",)

    def keys(self) -> dict[str, Value]:
        """Return the logits' factor, and the context length, above config.json's positions."""
        s = self.settings
        made: dict[str, Value] = {
            "context_length": s.uint("model_max_length", "max_position_embeddings"),
            "logit_scale": s.number("logit_scale"),
        }
        return made if rope_kind(self.rope) != "default" else {**made, "rope.scaling.type": "none"}


@family("Cohere2ForCausalLM")
class Cohere2(CommandR):
    """A model with windows in three of four layers."""

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
        """Return the keys of windows even if no layer has one: such layers have no RoPE."""
        s = self.settings
        return {
            **super().keys(),
            "attention.sliding_window": s.uint("sliding_window"),
            "attention.sliding_window_pattern": bools(self.slides()),
            "vocab_size": s.uint("vocab_size"),
            "rope.dimension_count": self.rotary_size,
        }

    def slides(self) -> list[bool]:
        """Return the layers with a window: all but each fourth, unless config.json lists them."""
        s = self.settings
        period = s.uint("sliding_window_pattern", default=4) or 1
        return find_sliding(s, lambda i: (i + 1) % period != 0)
