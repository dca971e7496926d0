"""The tower of Idefics 3 and SmolVLM: SigLIP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.tower import TowerFamily, tower_family
from wgpu_backend.files.huggingface.towers.gemma3 import SIGLIP


@tower_family("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration")
class Idefics3Tower(TowerFamily):
    """SigLIP and a matrix."""

    projector = "idefics3"
    roots = ("model.vision_model.", "model.connector.", "vision_model.", "connector.")
    names: ClassVar[Names] = {**SIGLIP, "modality_projection.proj": "mm.model.fc"}
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 16, "image_size": 224, "patch_size": 32, "layer_norm_eps": 1e-6,
        "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return the patches along the side of a square, and the longer side of pictures."""
        if not self.processor.flag("do_image_splitting", default=True):
            raise self.processor.error("do_image_splitting", "is False, needs True")
        tile = self.own.uint("image_size")
        size, most = self.processor.section("size"), self.processor.section("max_image_size")
        if most.uint("longest_edge", default=tile) != tile:
            raise most.error("longest_edge", f"differs from the tower's image_size, {tile}")
        return {
            "vision.projector.scale_factor": self.settings.uint("scale_factor", default=2),
            "vision.preproc_image_size": size.uint("longest_edge", default=4 * tile),
        }
