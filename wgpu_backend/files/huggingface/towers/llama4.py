"""Llama 4's tower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.tower import TowerFamily, tower_family


@tower_family("Llama4ForConditionalGeneration")
class Llama4Tower(TowerFamily):
    """A vision transformer, an adapter and a matrix."""

    projector = "llama4"
    roots = ("vision_model.", "multi_modal_projector.", "model.vision_model.")
    names: ClassVar[Names] = {
        "class_embedding": "v.class_embd",
        "positional_embedding_vlm": "v.position_embd.weight",
        "patch_embedding.linear": "v.patch_embd",
        "layernorm_pre": "v.pre_ln",
        "layernorm_post": "v.post_ln",
        "model.layers.*.input_layernorm": "v.blk.*.ln1",
        "model.layers.*.post_attention_layernorm": "v.blk.*.ln2",
        "model.layers.*.self_attn.q_proj": "v.blk.*.attn_q",
        "model.layers.*.self_attn.k_proj": "v.blk.*.attn_k",
        "model.layers.*.self_attn.v_proj": "v.blk.*.attn_v",
        "model.layers.*.self_attn.o_proj": "v.blk.*.attn_out",
        "model.layers.*.mlp.fc1": "v.blk.*.ffn_up",
        "model.layers.*.mlp.fc2": "v.blk.*.ffn_down",
        "vision_adapter.mlp.fc1": "mm.model.mlp.1",
        "vision_adapter.mlp.fc2": "mm.model.mlp.2",
        "linear_1": "mm.model.fc",
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 768, "intermediate_size": 5632, "num_hidden_layers": 34,
        "num_attention_heads": 16, "image_size": 448, "patch_size": 14, "norm_eps": 1e-5,
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return the patches along the side of a square, and the most tiles."""
        if self.processor.flag("resize_to_max_canvas", default=False):
            raise self.processor.error("resize_to_max_canvas", "is True, needs False")
        ratio = self.own.number("pixel_shuffle_ratio", default=0.5)
        return {
            "vision.projector.scale_factor": round(1 / ratio) if ratio > 0 else 0,
            "vision.preproc_max_tiles": self.processor.uint("max_patches", default=16),
        }
