"""Gemma 3's tower."""

from __future__ import annotations

from collections.abc import Mapping
from math import isqrt
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.tower import TowerFamily, as_matrix, tower_family
from wgpu_backend.files.huggingface.values import Values, plus


def _one_more(x: Values, _: object) -> Values:
    return plus(x, 1.0)


SIGLIP: Names = {
    "embeddings.patch_embedding.weight": {"v.patch_embd.weight": as_matrix},
    "embeddings.patch_embedding": "v.patch_embd",
    "embeddings.position_embedding": "v.position_embd",
    "post_layernorm": "v.post_ln",
    "encoder.layers.*.layer_norm1": "v.blk.*.ln1",
    "encoder.layers.*.layer_norm2": "v.blk.*.ln2",
    "encoder.layers.*.self_attn.q_proj": "v.blk.*.attn_q",
    "encoder.layers.*.self_attn.k_proj": "v.blk.*.attn_k",
    "encoder.layers.*.self_attn.v_proj": "v.blk.*.attn_v",
    "encoder.layers.*.self_attn.out_proj": "v.blk.*.attn_out",
    "encoder.layers.*.mlp.fc1": "v.blk.*.ffn_up",
    "encoder.layers.*.mlp.fc2": "v.blk.*.ffn_down",
}


@tower_family("Gemma3ForConditionalGeneration")
class Gemma3Tower(TowerFamily):
    """SigLIP and a projector."""

    projector = "gemma3"
    names: ClassVar[Names] = {
        **SIGLIP,
        "mm_input_projection_weight": "mm.input_projection.weight",
        "mm_soft_emb_norm.weight": {"mm.soft_emb_norm.weight": _one_more},
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "image_size": 224, "patch_size": 16, "layer_norm_eps": 1e-6,
        "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return how many patches along a side are merged into one row."""
        rows = self.settings.uint("mm_tokens_per_image", default=256)
        patches = self.own.uint("image_size") // self.own.uint("patch_size")
        return {"vision.projector.scale_factor": patches // max(isqrt(rows), 1)}
