"""The towers of Qwen2-VL, Qwen2.5-VL and Qwen3-VL."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tower import TowerFamily, tower_family
from wgpu_backend.files.huggingface.values import Rows, Values

_DEEP = "deepstack_merger_list."


def _take_frame(number: int, x: Values) -> Values:
    """Return the kernels for one frame as rows, of (outputs, colours, frames, side, side)."""
    outputs, colours, frames, *sides = x.shape
    each = x.rows // outputs

    def read(begin: int, end: int) -> Rows:
        whole = x.read(begin * each, end * each).reshape(end - begin, colours, frames, *sides)
        return whole[:, :, number].reshape(end - begin, -1)

    return Values((outputs, each // frames * x.cols), x.dtype, read)


def _first_frame(x: Values, _: Settings) -> Values:
    return _take_frame(0, x)


def _second_frame(x: Values, _: Settings) -> Values:
    return _take_frame(1, x)


NAMES: Names = {
    "patch_embed.proj.weight": {
        "v.patch_embd.weight": _first_frame,
        "v.patch_embd.weight.1": _second_frame,
    },
    "patch_embed.proj": "v.patch_embd",
    "blocks.*.norm1": "v.blk.*.ln1",
    "blocks.*.norm2": "v.blk.*.ln2",
    "blocks.*.attn.qkv": "v.blk.*.attn_qkv",
    "blocks.*.attn.proj": "v.blk.*.attn_out",
    "blocks.*.mlp.fc1": "v.blk.*.ffn_up",
    "blocks.*.mlp.fc2": "v.blk.*.ffn_down",
    "blocks.*.mlp.linear_fc1": "v.blk.*.ffn_up",
    "blocks.*.mlp.linear_fc2": "v.blk.*.ffn_down",
    "blocks.*.mlp.gate_proj": "v.blk.*.ffn_gate",
    "blocks.*.mlp.up_proj": "v.blk.*.ffn_up",
    "blocks.*.mlp.down_proj": "v.blk.*.ffn_down",
    "merger.ln_q": "v.post_ln",
    "merger.norm": "v.post_ln",
    "merger.mlp.0.weight": "mm.0.weight",
    "merger.mlp.0.bias": "mm.0.bias",
    "merger.mlp.2.weight": "mm.2.weight",
    "merger.mlp.2.bias": "mm.2.bias",
    "merger.mlp.*": "mm.*",
    "merger.linear_fc1": "mm.0",
    "merger.linear_fc2": "mm.2",
    "pos_embed": "v.position_embd",
    "deepstack_merger_list.*.norm": "v.deepstack.*.norm",
    "deepstack_merger_list.*.linear_fc1": "v.deepstack.*.fc1",
    "deepstack_merger_list.*.linear_fc2": "v.deepstack.*.fc2",
}


@tower_family("Qwen2VLForConditionalGeneration")
class Qwen2Tower(TowerFamily):
    """Qwen2-VL's tower."""

    projector = "qwen2vl_merger"
    roots = ("model.visual.", "visual.")
    names = NAMES
    defaults: ClassVar[Mapping[str, object]] = {
        "depth": 32, "embed_dim": 1280, "num_heads": 16, "mlp_ratio": 4, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return the sizes, and the limits of the processors of pictures and videos."""
        made: dict[str, Value] = {
            "vision.attention.layer_norm_epsilon": 1e-6,
            "vision.spatial_merge_size": self.own.uint("spatial_merge_size"),
            **self.sizes(),
        }
        for kind, processor in (("image", self.processor), ("video", self.video)):
            size = processor.section("size")
            for key, edge, old in (
                ("min_pixels", "shortest_edge", "min_pixels"),
                ("max_pixels", "longest_edge", "max_pixels"),
            ):
                if edge in size:
                    made[f"vision.{kind}_{key}"] = size.uint(edge)
                elif old in processor:
                    made[f"vision.{kind}_{key}"] = processor.uint(old)
        return made

    def sizes(self) -> dict[str, Value]:
        """Return the keys of the tower's widths."""
        width = self.own.uint("embed_dim")
        return {
            "vision.embedding_length": width,
            "vision.feed_forward_length": int(width * self.own.number("mlp_ratio")),
        }


@tower_family("Qwen2_5_VLForConditionalGeneration")
class Qwen25Tower(Qwen2Tower):
    """Qwen2.5-VL's tower."""

    projector = "qwen2.5vl_merger"
    defaults: ClassVar[Mapping[str, object]] = {
        "depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "num_heads": 16,
        "patch_size": 14, "spatial_merge_size": 2, "window_size": 112,
        "fullatt_block_indexes": [7, 15, 23, 31], "tokens_per_second": 4,
    }  # fmt: skip

    def sizes(self) -> dict[str, Value]:
        """Return the keys of the window's size, and of the layers without a window."""
        return {
            "vision.fullatt_block_indexes": np.array(self.own.uints("fullatt_block_indexes")),
            "vision.window_size": self.own.uint("window_size"),
            "vision.tokens_per_second": self.own.uint("tokens_per_second"),
        }


@tower_family("Qwen3VLForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration")
class Qwen3Tower(Qwen2Tower):
    """Qwen3-VL's tower; mergers are numbered by the layer that they follow."""

    projector = "qwen3vl_merger"
    defaults: ClassVar[Mapping[str, object]] = {
        "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "num_heads": 16,
        "patch_size": 16, "spatial_merge_size": 2, "deepstack_visual_indexes": [8, 16, 24],
    }  # fmt: skip

    def sizes(self) -> dict[str, Value]:
        """Return the key that lists the layers followed by a merger."""
        deep = self.own.uints("deepstack_visual_indexes")
        layers = self.own.uint("depth")
        return {"vision.is_deepstack_layers": np.array([i in deep for i in range(layers)])}

    def rename(self, name: str, values: Values) -> dict[str, Values]:
        """Return the tensors that a tensor becomes, with the layers of mergers."""
        before, found, after = name.partition(_DEEP)
        if found:
            number, _, rest = after.partition(".")
            deep = self.own.uints("deepstack_visual_indexes")
            if number.isdigit() and int(number) < len(deep):
                name = f"{before}{found}{deep[int(number)]}.{rest}"
        return super().rename(name, values)
