"""The text halves of CLIP and SigLIP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Family, Names, family, make_names

ENDS: Names = {
    "embeddings.token_embedding": "token_embd",
    "embeddings.position_embedding": "position_embd",
    "final_layer_norm": "output_norm",
    "text_projection": "dense_2",
    "head": "dense_2",
}
LAYER: Names = {
    "layer_norm1": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "layer_norm2": "ffn_norm",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}
_LAST = 3


@family("CLIPModel")
class ClipText(Family):
    """CLIP's text half."""

    architecture = "clip-text"
    activation = "gelu_quick"
    prefixes = ("text_model.",)
    useless = r"^logit_(scale|bias)$"
    names = make_names(ENDS, LAYER, stack="encoder.layers")
    harmless = ("logit_scale_init_value", "projection_dim", "vision_config", "vision_config_dict",
                "text_config_dict", "initializer_factor", "projection_size")  # fmt: skip
    # Those of transformers, which published files leave out.
    defaults: ClassVar[Mapping[str, object]] = {
        "vocab_size": 49408, "hidden_size": 512, "intermediate_size": 2048,
        "num_hidden_layers": 12, "num_attention_heads": 8, "max_position_embeddings": 77,
        "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "eos_token_id": 49407,
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return the pooling, and the token that ends a text.

        Older files say 2, which is not the end token; the highest id is.
        """
        end = self.settings.uint("eos_token_id")
        own: dict[str, Value] = {} if end == 2 else {"text_end_token_id": end}
        return {"pooling_type": _LAST, **own}


@family("SiglipModel")
class SiglipText(ClipText):
    """SigLIP's text half."""

    architecture = "siglip-text"
    activation = "gelu"
    defaults: ClassVar[Mapping[str, object]] = {
        "vocab_size": 32000, "hidden_size": 768, "intermediate_size": 3072,
        "num_hidden_layers": 12, "num_attention_heads": 12, "max_position_embeddings": 64,
        "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6,
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return the keys of pooling and of bidirectional attention."""
        return {"pooling_type": _LAST, "attention.causal": False}
