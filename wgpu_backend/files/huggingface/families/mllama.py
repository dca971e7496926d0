"""Llama 3.2 Vision."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import ATTENTION, ENDS, MLP, ROTATED, Decoder
from wgpu_backend.files.huggingface.family import Names, family, head_size, make_names

# The names of Ollama's converter.
CROSS: Names = {
    **{f"cross_attn.{part}_proj": f"cross_attn_{part}_proj" for part in "qkvo"},
    **{f"cross_attn.{part}_norm": f"cross_attn_{part}_norm" for part in "qk"},
    "cross_attn_attn_gate": "cross_attn_attn_gate",
    "cross_attn_mlp_gate": "cross_attn_mlp_gate",
}


@family("MllamaForConditionalGeneration")
class Mllama(Decoder):
    """Llama's layers, and some that attend to pictures."""

    architecture = "mllama"
    # As transformers makes them: the first is the picture's.
    spare_tokens = 8
    names = make_names(ENDS, ATTENTION, ROTATED, MLP, CROSS)
    defaults: ClassVar[Mapping[str, object]] = {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336,
        "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8,
        "max_position_embeddings": 131072, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
        "cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38],
    }  # fmt: skip
    harmless = ("image_token_index", "dropout")

    def keys(self) -> dict[str, Value]:
        """Return the layers that attend to pictures, and the most rows of a picture."""
        s = self.settings
        vision = s.section("vision_config")
        side = vision.uint("image_size", default=448) // vision.uint("patch_size", default=14)
        tiles = vision.uint("max_num_tiles", default=4)
        return {
            "vocab_size": s.uint("vocab_size"),
            "rope.dimension_count": head_size(s),
            "attention.cross_attention_layers": np.array(s.uints("cross_attention_layers")),
            "attention.cross_attention_rows": tiles * (side**2 + 1),
        }
