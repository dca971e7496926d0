"""The towers of Kimi-VL and Kimi K2.5."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tower import TowerFamily, as_matrix, tower_family
from wgpu_backend.files.huggingface.values import Values

_MIDDLE = [0.5, 0.5, 0.5]


@tower_family("KimiVLForConditionalGeneration")
class KimiTower(TowerFamily):
    """MoonViT and a projector."""

    projector = "kimivl"
    roots = ("vision_tower.", "multi_modal_projector.", "mm_projector.")
    names: ClassVar[Names] = {
        "patch_embed.proj.weight": {"v.patch_embd.weight": as_matrix},
        "patch_embed.proj": "v.patch_embd",
        "patch_embed.pos_emb": "v.position_embd",
        "encoder.blocks.*.norm0": "v.blk.*.ln1",
        "encoder.blocks.*.norm1": "v.blk.*.ln2",
        "encoder.blocks.*.wqkv": "v.blk.*.attn_qkv",
        "encoder.blocks.*.wo": "v.blk.*.attn_out",
        "encoder.blocks.*.mlp.fc0": "v.blk.*.ffn_up",
        "encoder.blocks.*.mlp.fc1": "v.blk.*.ffn_down",
        "encoder.final_layernorm": "v.post_ln",
        "pre_norm": "mm.input_norm",
        "linear_1": "mm.1",
        "linear_2": "mm.2",
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "patch_size": 14, "merge_kernel_size": [2, 2],
    }  # fmt: skip
    useless = r"position_ids$|inv_freq$|time_weight$"

    def keys(self) -> dict[str, Value]:
        """Return the joined patches, and how the processor limits and pads pictures."""
        rows, columns = self.own.uints("merge_kernel_size")
        if rows != columns:
            raise self.own.error("merge_kernel_size", f"is {rows}, {columns}, needs to be square")
        return {
            "vision.projector.scale_factor": rows,
            "vision.rope.woven": True,
            "vision.image_mean": np.array(self.processor.numbers("image_mean", default=_MIDDLE)),
            "vision.image_std": np.array(self.processor.numbers("image_std", default=_MIDDLE)),
            **self.limits(),
        }

    def limits(self) -> dict[str, Value]:
        """Return the keys of the processor's limits."""
        return {
            "vision.max_patches": self.processor.uint("in_token_limit", default=4096),
            "vision.pad_input": self.processor.flag("pad_input", default=False),
        }


@tower_family("KimiK25ForConditionalGeneration", "Kimi_K25ForConditionalGeneration")
class KimiK25Tower(KimiTower):
    """MoonViT of Kimi K2.5, for pictures alone."""

    projector = "kimik25"

    def __init__(self, settings: Settings, processor: Settings) -> None:
        # Published settings of the processor have a section, and those of the tower a prefix.
        own = processor.section("media_proc_cfg")
        super().__init__(settings, Settings(own.source, {**processor.values, **own.values}))
        renamed = {
            name.removeprefix("vt_"): value
            for name, value in self.own.values.items()
            if name.startswith("vt_")
        }
        self.own = Settings(self.own.source, {**self.own.values, **renamed})

    def rename(self, name: str, values: Values) -> dict[str, Values]:
        """Return the tensors that a tensor becomes; matrices have numbers 0 and 2 here."""
        for found, kept in (("proj.0.", "linear_1."), ("proj.2.", "linear_2.")):
            name = name.replace(f"mm_projector.{found}", f"mm_projector.{kept}")
        return super().rename(name, values)

    def limits(self) -> dict[str, Value]:
        """Return the keys of the processor's limits."""
        size = self.processor.section("size")
        return {
            "vision.max_patches": self.processor.uint(
                "max_patches", "in_patch_limit", default=16384
            ),
            "vision.max_side_patches": size.uint(
                "max_height",
                default=self.processor.uint("patch_limit_on_one_side", default=512),
            ),
        }
