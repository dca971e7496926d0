"""InternVL 3's tower: InternViT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tower import TowerFamily, as_matrix, tower_family


@tower_family("InternVLForConditionalGeneration")
class InternVLTower(TowerFamily):
    """InternViT and a projector."""

    projector = "internvl"
    names: ClassVar[Names] = {
        "embeddings.cls_token": "v.class_embd",
        "embeddings.position_embeddings": "v.position_embd.weight",
        "embeddings.patch_embeddings.projection.weight": {"v.patch_embd.weight": as_matrix},
        "embeddings.patch_embeddings.projection": "v.patch_embd",
        "encoder.layer.*.attention.q_proj": "v.blk.*.attn_q",
        "encoder.layer.*.attention.k_proj": "v.blk.*.attn_k",
        "encoder.layer.*.attention.v_proj": "v.blk.*.attn_v",
        "encoder.layer.*.attention.projection_layer": "v.blk.*.attn_out",
        "encoder.layer.*.layernorm_before": "v.blk.*.ln1",
        "encoder.layer.*.layernorm_after": "v.blk.*.ln2",
        "encoder.layer.*.lambda_1": "v.blk.*.ls1.weight",
        "encoder.layer.*.lambda_2": "v.blk.*.ls2.weight",
        "encoder.layer.*.mlp.fc1": "v.blk.*.ffn_up",
        "encoder.layer.*.mlp.fc2": "v.blk.*.ffn_down",
        "layer_norm": "mm.model.mlp.0",
        "linear_1": "mm.model.mlp.1",
        "linear_2": "mm.model.mlp.3",
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "image_size": [448, 448], "patch_size": [14, 14],
        "layer_norm_eps": 1e-6, "hidden_act": "gelu",
    }  # fmt: skip

    def __init__(self, settings: Settings, processor: Settings) -> None:
        super().__init__(settings, processor)
        sides = {name: self._side(name) for name in ("image_size", "patch_size")}
        self.own = Settings(self.own.source, {**self.own.values, **sides}, self.own.asked)

    def _side(self, name: str) -> int:
        """Return a side, which may be listed as height and width."""
        if not isinstance(self.own.value(name), list):
            return self.own.uint(name)
        sides = self.own.uints(name)
        if len(set(sides)) != 1:
            raise self.own.error(name, f"is {sides}, needs a square")
        return sides[0]

    def keys(self) -> dict[str, Value]:
        """Return the patches along the side of a square, and the numbers of tiles."""
        for name, value in (("norm_type", "layer_norm"), ("use_qk_norm", False)):
            if self.own.value(name) not in (None, value):
                raise self.own.error(name, f"is {self.own.value(name)!r}, needs {value!r}")
        self.need("projector_hidden_act", "gelu")
        self.need("vision_feature_layer", -1)
        self.need("vision_feature_select_strategy", "default")
        cuts = self.processor.flag("crop_to_patches", default=True)
        ratio = self.settings.number("downsample_ratio", default=0.5)
        return {
            "vision.projector.scale_factor": round(1 / ratio) if ratio > 0 else 0,
            "vision.preproc_min_tiles": self.processor.uint("min_patches", default=1),
            "vision.preproc_max_tiles": self.processor.uint("max_patches", default=12)
            if cuts
            else 1,
        }
