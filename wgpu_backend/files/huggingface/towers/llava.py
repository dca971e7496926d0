"""LLaVA's tower: CLIP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import chain
from typing import ClassVar, cast

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tower import TowerFamily, tower_family
from wgpu_backend.files.huggingface.towers.gemma3 import SIGLIP
from wgpu_backend.files.huggingface.values import Values

CLIP: Names = {
    **SIGLIP,
    "embeddings.class_embedding": "v.class_embd",
    "pre_layrnorm": "v.pre_ln",
}
_LAYER = re.compile(r"\.layers\.(\d+)\.")
_NEWLINE = re.compile(r"(^|\.)image_newline$")


@tower_family("LlavaForConditionalGeneration", "LlavaNextForConditionalGeneration")
class LlavaTower(TowerFamily):
    """CLIP and a projector."""

    projector = "mlp"
    names: ClassVar[Names] = {**CLIP, "linear_1": "mm.0", "linear_2": "mm.2"}
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12,
        "num_attention_heads": 12, "image_size": 224, "patch_size": 32, "layer_norm_eps": 1e-5,
        "hidden_act": "quick_gelu",
    }  # fmt: skip

    def __init__(self, settings: Settings, processor: Settings) -> None:
        super().__init__(settings, processor)
        self.is_clip = self.own.value("model_type") in (None, "clip_vision_model")

    @property
    def features(self) -> list[int]:
        """Return the used states, each by the number of layers before it."""
        asked = self.settings.value("vision_feature_layer")
        count = self.own.uint("num_hidden_layers")
        one = -2 if asked is None else asked
        numbers = cast("list[int]", asked if isinstance(asked, list) else [one])
        return [number + count + 1 if number < 0 else number for number in numbers]

    def owns(self, name: str) -> bool:
        """Return whether a tensor belongs to the tower and is used."""
        if not self.is_clip:
            return False
        layer = _LAYER.search(name)
        needed = layer is None or int(layer[1]) < max(self.features)
        return bool(_NEWLINE.search(name)) or (super().owns(name) and needed)

    def rename(self, name: str, values: Values) -> dict[str, Values]:
        """Return the tensors that a tensor of the folder becomes."""
        if _NEWLINE.search(name):
            return {"v.image_newline": values}
        return super().rename(name, values)

    def keys(self) -> dict[str, Value]:
        """Return the used states and LLaVA 1.6's sizes of pictures, widths first."""
        self.need("vision_feature_select_strategy", "default")
        self.need("projector_hidden_act", "gelu")
        made: dict[str, Value] = {
            "vision.block_count": max(self.features),
            "vision.feature_layer": np.array(self.features, np.int32),
        }
        pinpoints = self.settings.value("image_grid_pinpoints")
        if self.settings.value("model_type") == "llava_next" or pinpoints is not None:
            sizes = cast("list[list[int]]", pinpoints or _PINPOINTS)
            made["vision.image_grid_pinpoints"] = np.array(
                [*chain.from_iterable((width, height) for height, width in sizes)], np.int32
            )
        return made


_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
