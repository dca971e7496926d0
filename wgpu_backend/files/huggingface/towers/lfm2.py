"""LFM2-VL's tower: SigLIP 2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.tower import TowerFamily, colours_before, tower_family
from wgpu_backend.files.huggingface.towers.gemma3 import SIGLIP


@tower_family("Lfm2VlForConditionalGeneration")
class Lfm2Tower(TowerFamily):
    """SigLIP 2 and a projector."""

    projector = "lfm2"
    names: ClassVar[Names] = {
        **SIGLIP,
        "embeddings.patch_embedding.weight": {"v.patch_embd.weight": colours_before},
        "layer_norm": "mm.input_norm",
        "linear_1": "mm.1",
        "linear_2": "mm.2",
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "patch_size": 16, "layer_norm_eps": 1e-6,
        "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return the patches along the side of a square, and the limits of pictures."""
        self.need("projector_hidden_act", "gelu")
        p = self.processor
        square = self.settings.uint("downsample_factor", default=2)
        area = (self.own.uint("patch_size") * square) ** 2
        cuts = p.flag("do_image_splitting", default=True)
        for name, value in (("use_thumbnail", True), ("max_pixels_tolerance", 2.0)):
            if p.value(name) not in (None, value):
                raise p.error(name, f"is {p.value(name)!r}, needs {value!r}")
        return {
            "vision.projector.scale_factor": square,
            "vision.image_min_pixels": p.uint("min_image_tokens", default=64) * area,
            "vision.image_max_pixels": p.uint("max_image_tokens", default=256) * area,
            "vision.preproc_image_size": p.uint("tile_size", default=512),
            "vision.preproc_min_tiles": p.uint("min_tiles", default=2) if cuts else 1,
            "vision.preproc_max_tiles": p.uint("max_tiles", default=10) if cuts else 1,
        }
