"""Gemma 3n's tower for pictures, which timm names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.tower import TowerFamily, tower_family
from wgpu_backend.files.huggingface.values import Values

# The tower's own tensors keep their names after this, but for the blocks.
_TIMM = ("model.vision_tower.timm_model.", "vision_tower.timm_model.")
_KNOWN = ("conv_stem.", "blocks.", "msfa.")


@tower_family("Gemma3nForConditionalGeneration")
class Gemma3nTower(TowerFamily):
    """MobileNet-v5, and a matrix between norms."""

    projector = "gemma3nv"
    roots = (*_TIMM, "model.embed_vision.", "embed_vision.")
    names: ClassVar[Names] = {
        "embedding": "mm.embedding",
        "hard_embedding_norm": "mm.hard_emb_norm",
        "soft_embedding_norm": "mm.soft_emb_norm",
        "embedding_projection": "mm.input_projection",
    }
    defaults: ClassVar[Mapping[str, object]] = {"hidden_size": 2048}

    @property
    def width(self) -> int:
        """Return the width of the language model."""
        return self.settings.section("text_config").uint("hidden_size", default=2048)

    def rename(self, name: str, values: Values) -> dict[str, Values]:
        """Return the tensors that a tensor of the folder becomes; raises like `TowerFamily`'s."""
        root = next((root for root in _TIMM if name.startswith(root)), None)
        if root is None:
            return super().rename(name, values)
        bare = name.removeprefix(root)
        if not bare.startswith(_KNOWN):
            raise ModelError(f"unexpected tensor for {type(self).__name__}")
        start, _, rest = bare.partition(".")
        return {f"v.{'blk' if start == 'blocks' else start}.{rest}": values}

    def keys(self) -> dict[str, Value]:
        """Return the side of a picture.

        Raises
        ------
        ModelError
            The tower is another one than MobileNet-v5, or pictures are normalised.
        """
        for settings, name, value in (
            (self.own, "architecture", "mobilenetv5_300m_enc"),
            (self.own, "do_pooling", False),
            (self.processor, "do_normalize", False),
        ):
            if settings.value(name) not in (None, value):
                raise settings.error(name, f"is {settings.value(name)!r}, needs {value!r}")
        size = self.processor.section("size")
        sides = [size.uint(name, default=768) for name in ("height", "width")]
        if sides[0] != sides[1]:
            raise size.error("height", f"is {sides[0]} and the width {sides[1]}, needs a square")
        return {"vision.image_size": sides[0]}
