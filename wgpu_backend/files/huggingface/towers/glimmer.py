"""The tower of Muse Glimmer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tower import TowerFamily, tower_family
from wgpu_backend.files.huggingface.transforms import (
    as_columns,
    flatten_columns,
    interleave_halves,
)
from wgpu_backend.files.huggingface.values import Rows, Values

_MIDDLE = [0.5, 0.5, 0.5]


def _interleave(x: Values, settings: Settings) -> Values:
    return interleave_halves(x, settings.uint("num_attention_heads"))


def _interleave_bias(x: Values, settings: Settings) -> Values:
    return flatten_columns(_interleave(as_columns(x), settings))


def _sum_frames(x: Values, settings: Settings) -> Values:
    """Add the kernels of the frames, since all frames of a still picture are equal."""
    frames = settings.uint("patch_temporal")
    cols = x.cols // frames

    def read(begin: int, end: int) -> Rows:
        return x.read(begin, end).reshape(end - begin, frames, cols).sum(1, dtype=np.float32)

    return Values((x.rows, cols), F32, read)


@tower_family("MuseGlimmerForConditionalGeneration")
class GlimmerTower(TowerFamily):
    """A vision transformer and a projector of three matrices."""

    projector = "muse-glimmer"
    roots = ("model.vision_tower.", "model.vision_adapter.", "model.")
    names: ClassVar[Names] = {
        "patch_embedder.patch_embedding": {"v.patch_embd": _sum_frames},
        "patch_embedder.position_embedding_table": "v.position_embd",
        "ln_pre": "v.pre_ln",
        "ln_post": "v.post_ln",
        "layers.*.norm1": "v.blk.*.ln1",
        "layers.*.norm2": "v.blk.*.ln2",
        "layers.*.attn.q_proj.weight": {"v.blk.*.attn_q.weight": _interleave},
        "layers.*.attn.q_proj.bias": {"v.blk.*.attn_q.bias": _interleave_bias},
        "layers.*.attn.k_proj.weight": {"v.blk.*.attn_k.weight": _interleave},
        "layers.*.attn.k_proj.bias": {"v.blk.*.attn_k.bias": _interleave_bias},
        "layers.*.attn.v_proj": "v.blk.*.attn_v",
        "layers.*.attn.proj": "v.blk.*.attn_out",
        "layers.*.mlp.fc1": "v.blk.*.ffn_up",
        "layers.*.mlp.fc2": "v.blk.*.ffn_down",
        "fc1": "mm.0",
        "fc2": "mm.1",
        "vision_projection": "mm.2",
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 50,
        "num_attention_heads": 16, "patch_size": 14, "pos_emb_height": 32, "pos_emb_width": 32,
        "patch_temporal": 2, "merge_size": 2, "layer_norm_eps": 1e-5,
    }  # fmt: skip

    def owns(self, name: str) -> bool:
        """Return whether a tensor belongs to the tower and is used."""
        return super().owns(name) and not name.startswith("model.language_model.")

    def keys(self) -> dict[str, Value]:
        """Return the joined patches, the processor's limit and statistics.

        Raises
        ------
        ModelError
            The layers with windows are not the usual ones, or the table of positions has no square.
        """
        self.need("projector_hidden_act", "gelu")
        own, count = self.own, self.own.uint("num_hidden_layers")
        usual = [
            "full_attention" if (i + 1) % 4 == 0 or i == count - 1 else "window_attention"
            for i in range(count)
        ]
        if own.texts("layer_types", default=usual) != usual:
            raise own.error("layer_types", f"is {own.value('layer_types')}, needs {usual}")
        sides = own.uint("pos_emb_height"), own.uint("pos_emb_width")
        if sides[0] != sides[1]:
            raise own.error("pos_emb_height", f"is {sides[0]}, needs pos_emb_width, {sides[1]}")
        text = self.settings.section("text_config")
        return {
            "vision.projector.layer_norm_epsilon": text.number("rms_norm_eps", default=1e-5),
            "vision.spatial_merge_size": own.uint("merge_size"),
            "vision.image_size": sides[0] * own.uint("patch_size") * own.uint("merge_size"),
            "vision.attention.layer_norm_epsilon": own.number("layer_norm_eps"),
            "vision.max_rows": self.processor.uint("max_image_tokens", default=4096),
            "vision.image_mean": np.array(self.processor.numbers("image_mean", default=_MIDDLE)),
            "vision.image_std": np.array(self.processor.numbers("image_std", default=_MIDDLE)),
        }
