"""The picture halves of CLIP and SigLIP."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.tower import TowerFamily, tower_family
from wgpu_backend.files.huggingface.towers.gemma3 import SIGLIP, Gemma3Tower
from wgpu_backend.files.huggingface.towers.llava import CLIP, LlavaTower


class VectorTower(TowerFamily):
    """A tower that makes one vector of a picture."""

    roots = ("vision_model.", "")

    @property
    def cols(self) -> int:
        """Return the columns of a vector."""
        return self.own.uint("hidden_size")

    def owns(self, name: str) -> bool:
        """Return whether a tensor belongs to the tower and is used."""
        return name.startswith(("vision_model.", "visual_projection.")) and super().owns(name)

    def keys(self) -> dict[str, Value]:
        """Return the columns of a vector.

        Raises
        ------
        ModelError
            The processor makes pictures of another size than the tower takes.
        """
        tile = self.own.uint("image_size")
        for part in ("size", "crop_size"):
            # A number alone stands for the shorter side.
            given = self.processor.value(part)
            sides = [given]
            if isinstance(given, Mapping):
                sides = [*self.processor.section(part).values.values()]
            if any(side not in (tile, None) for side in sides):
                what = f"is {given}, the tower's image_size is {tile}"
                raise self.processor.error(part, what)
        return {"vision.projection_dim": self.cols}


@tower_family("CLIPModel")
class ClipTower(VectorTower):
    """CLIP's picture half."""

    projector = "clip-vector"
    names: ClassVar[Names] = {**CLIP, "visual_projection": "mm.visual_projection"}
    defaults = LlavaTower.defaults

    @property
    def cols(self) -> int:
        """Return the columns of a vector."""
        return self.settings.uint("projection_dim", default=512)


@tower_family("SiglipModel")
class SiglipTower(VectorTower):
    """SigLIP's picture half, with its pooling head."""

    projector = "siglip-vector"
    names: ClassVar[Names] = {
        **SIGLIP,
        "head.probe": "v.head.probe",
        "head.attention.in_proj_weight": "v.head.attn_qkv.weight",
        "head.attention.in_proj": "v.head.attn_qkv",
        "head.attention.out_proj": "v.head.attn_out",
        "head.layernorm": "v.head.ln",
        "head.mlp.fc1": "v.head.ffn_up",
        "head.mlp.fc2": "v.head.ffn_down",
    }
    defaults = Gemma3Tower.defaults
