"""DeepSeek-OCR's tower: SAM's encoder and CLIP's layers."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tower import TowerFamily, as_matrix, tower_family
from wgpu_backend.files.huggingface.values import Values

_ROWS = {"model.image_newline": "v.image_newline", "model.view_seperator": "v.view_seperator"}


@tower_family("DeepseekOCRForCausalLM")
class DeepSeekOcrTower(TowerFamily):
    """DeepEncoder, whose settings have a section for each half."""

    projector = "deepseekocr"
    roots = ("model.sam_model.", "model.vision_model.", "model.projector.", *_ROWS)
    names: ClassVar[Names] = {
        "patch_embed.proj.weight": {"v.sam.patch_embd.weight": as_matrix},
        "patch_embed.proj": "v.sam.patch_embd",
        "pos_embed": "v.sam.pos_embd.weight",
        "blocks.*.norm1": "v.sam.blk.*.pre_ln",
        "blocks.*.norm2": "v.sam.blk.*.post_ln",
        "blocks.*.attn.qkv": "v.sam.blk.*.attn.qkv",
        "blocks.*.attn.proj": "v.sam.blk.*.attn.out",
        "blocks.*.attn.rel_pos_h": "v.sam.blk.*.attn.pos_h.weight",
        "blocks.*.attn.rel_pos_w": "v.sam.blk.*.attn.pos_w.weight",
        "blocks.*.mlp.lin1": "v.sam.blk.*.mlp.lin1",
        "blocks.*.mlp.lin2": "v.sam.blk.*.mlp.lin2",
        "neck.*": "v.sam.neck.*",
        "net_2": "v.sam.net_2",
        "net_3": "v.sam.net_3",
        "embeddings.class_embedding": "v.class_embd",
        "embeddings.position_embedding": "v.position_embd",
        "pre_layrnorm": "v.pre_ln",
        "transformer.layers.*.layer_norm1": "v.blk.*.ln1",
        "transformer.layers.*.layer_norm2": "v.blk.*.ln2",
        "transformer.layers.*.self_attn.qkv_proj": "v.blk.*.attn_qkv",
        "transformer.layers.*.self_attn.out_proj": "v.blk.*.attn_out",
        "transformer.layers.*.mlp.fc1": "v.blk.*.ffn_up",
        "transformer.layers.*.mlp.fc2": "v.blk.*.ffn_down",
        "layers": "mm.model.fc",
    }
    # CLIP's layers have the map of SAM's encoder in place of patches.
    useless = r"position_ids$|embeddings\.patch_embedding"

    def __init__(self, settings: Settings, processor: Settings) -> None:
        super().__init__(settings, processor)
        both = self.own.section("width")
        self.sam, self.clip = both.section("sam_vit_b"), both.section("clip-l-14-224")

    @property
    def width(self) -> int:
        """Return the width of the language model."""
        return self.settings.section("language_config").uint("hidden_size", default=1280)

    def rename(self, name: str, values: Values) -> dict[str, Values]:
        """Return the tensors that a tensor becomes."""
        return {_ROWS[name]: values} if name in _ROWS else super().rename(name, values)

    def all_keys(self) -> dict[str, Value]:
        """Return all keys; sizes are in the sections of the halves."""
        made = super().all_keys()
        # They are those of pictures that the published processor has constants for.
        return {k: v for k, v in made.items() if k != "vision.image_size"}

    def keys(self) -> dict[str, Value]:
        """Return the sizes of both halves, and how the processor cuts pictures."""
        whole = self.sam.uints("global_attn_indexes", default=[2, 5, 8, 11])
        made: dict[str, Value] = {
            "vision.embedding_length": self.clip.uint("width", default=1024),
            "vision.block_count": self.clip.uint("layers", default=24),
            "vision.attention.head_count": self.clip.uint("heads", default=16),
            "vision.sam.embedding_length": self.sam.uint("width", default=768),
            "vision.sam.block_count": self.sam.uint("layers", default=12),
            "vision.sam.head_count": self.sam.uint("heads", default=12),
            "vision.sam.global_layers": np.array(whole, np.int32),
            "vision.window_size": self.own.uint("window_size", default=14),
            "vision.preproc_min_tiles": self.processor.uint("min_patches", default=2),
            "vision.preproc_max_tiles": self.processor.uint("max_patches", default=9),
            "vision.preproc_tile_size": self.processor.uint("tile_size", default=640),
        }
        if not self.processor.flag("crop_to_patches", default=True):
            made["vision.preproc_max_tiles"] = 0
        return made
