"""GLM-4.1V's tower."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tower import TowerFamily, as_matrix, take_frame, tower_family
from wgpu_backend.files.huggingface.values import Values


def _first(x: Values, _: Settings) -> Values:
    return take_frame(x, 0)


def _second(x: Values, _: Settings) -> Values:
    return take_frame(x, 1)


@tower_family("Glm4vForConditionalGeneration", "Glm4vMoeForConditionalGeneration")
class Glm4vTower(TowerFamily):
    """A vision transformer with RMS norms, a convolution and a gated projector."""

    projector = "glm4v"
    roots = ("model.visual.", "visual.")
    names: ClassVar[Names] = {
        "patch_embed.proj.weight": {
            "v.patch_embd.weight": _first,
            "v.patch_embd.weight.1": _second,
        },
        "patch_embed.proj": "v.patch_embd",
        "embeddings.position_embedding": "v.position_embd",
        "post_conv_layernorm": "v.norm_embd",
        "post_layernorm": "v.post_ln",
        "blocks.*.norm1": "v.blk.*.ln1",
        "blocks.*.norm2": "v.blk.*.ln2",
        "blocks.*.attn.qkv": "v.blk.*.attn_qkv",
        "blocks.*.attn.proj": "v.blk.*.attn_out",
        "blocks.*.mlp.gate_proj": "v.blk.*.ffn_gate",
        "blocks.*.mlp.up_proj": "v.blk.*.ffn_up",
        "blocks.*.mlp.down_proj": "v.blk.*.ffn_down",
        "downsample.weight": {"mm.patch_merger.weight": as_matrix},
        "downsample": "mm.patch_merger",
        "merger.proj": "mm.model.fc",
        "merger.post_projection_norm": "mm.post_norm",
        "merger.gate_proj": "mm.gate",
        "merger.up_proj": "mm.up",
        "merger.down_proj": "mm.down",
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 1536, "intermediate_size": 13696, "depth": 24, "num_heads": 12,
        "image_size": 336, "patch_size": 14, "rms_norm_eps": 1e-5, "out_hidden_size": 4096,
        "hidden_act": "silu",
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return the merged patches, and the limits of the pixels of one frame."""
        if self.own.uint("temporal_patch_size", default=2) != 2:
            raise self.own.error("temporal_patch_size", "needs to be 2")
        size = self.processor.section("size")
        return {
            "vision.projection_dim": self.own.uint("out_hidden_size"),
            "vision.spatial_merge_size": self.own.uint("spatial_merge_size", default=2),
            "vision.image_min_pixels": size.uint("shortest_edge", default=112 * 112) // 2,
            "vision.image_max_pixels": size.uint("longest_edge", default=28 * 28 * 15000) // 2,
        }
