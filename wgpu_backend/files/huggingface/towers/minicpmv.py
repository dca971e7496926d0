"""MiniCPM-V's tower: SigLIP and a resampler."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Change, Names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tower import TowerFamily, as_matrix, tower_family
from wgpu_backend.files.huggingface.transforms import (
    as_columns,
    flatten_columns,
    slice_rows,
    transpose,
)
from wgpu_backend.files.huggingface.values import Values

# Numbers of published models in files of llama.cpp's converter.
VERSIONS = {"2.5": 2, "2.6": 3, "4.0": 5, "4.5": 6}


def _take(number: int) -> Change:
    """Return a function that takes queries, keys or values of a joined matrix or bias."""

    def take(x: Values, _: Settings) -> Values:
        if len(x.shape) == 1:
            return flatten_columns(take(as_columns(x), _))
        size = x.rows // 3
        return slice_rows(x, number * size, (number + 1) * size)

    return take


def _turn(x: Values, _: Settings) -> Values:
    return transpose(x)


def _split(suffix: str) -> dict[str, Change]:
    return {f"resampler.attn.{name}.{suffix}": _take(i) for i, name in enumerate("qkv")}


@tower_family("MiniCPMV")
class MiniCPMTower(TowerFamily):
    """SigLIP and a resampler."""

    projector = "resampler"
    roots = ("vpm.", "resampler.")
    names: ClassVar[Names] = {
        "embeddings.patch_embedding.weight": {"v.patch_embd.weight": as_matrix},
        "embeddings.patch_embedding": "v.patch_embd",
        "embeddings.position_embedding": "v.position_embd",
        "encoder.layers.*.layer_norm1": "v.blk.*.ln1",
        "encoder.layers.*.layer_norm2": "v.blk.*.ln2",
        "encoder.layers.*.self_attn.q_proj": "v.blk.*.attn_q",
        "encoder.layers.*.self_attn.k_proj": "v.blk.*.attn_k",
        "encoder.layers.*.self_attn.v_proj": "v.blk.*.attn_v",
        "encoder.layers.*.self_attn.out_proj": "v.blk.*.attn_out",
        "encoder.layers.*.mlp.fc1": "v.blk.*.ffn_up",
        "encoder.layers.*.mlp.fc2": "v.blk.*.ffn_down",
        "post_layernorm": "v.post_ln",
        "query": "resampler.query",
        "proj": {"resampler.proj.weight": _turn},
        "kv_proj": "resampler.kv",
        "ln_q": "resampler.ln_q",
        "ln_kv": "resampler.ln_kv",
        "ln_post": "resampler.ln_post",
        "attn.in_proj_weight": _split("weight"),
        "attn.in_proj_bias": _split("bias"),
        "attn.out_proj": "resampler.attn.out",
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27,
        "num_attention_heads": 16, "image_size": 980, "patch_size": 14, "layer_norm_eps": 1e-6,
        "hidden_act": "gelu_pytorch_tanh",
    }  # fmt: skip
    useless = r"position_ids$|inv_freq$|resampler\.pos_embed$"

    def keys(self) -> dict[str, Value]:
        """Return the version, and how the processor cuts pictures."""
        version = str(self.settings.value("version"))
        if version not in VERSIONS:
            raise self.settings.error(
                "version", f"is {version}, needs one of {', '.join(VERSIONS)}"
            )
        layers = self.own.uint("num_hidden_layers")
        last = self.settings.flag("drop_vision_last_layer", default=False)
        made: dict[str, Value] = {
            "minicpmv_version": VERSIONS[version],
            "vision.block_count": layers - last,
            "vision.scale_resolution": self.processor.uint("scale_resolution", default=448),
            "vision.max_slice_nums": self.processor.uint("max_slice_nums", default=9),
        }
        for key, names in (
            ("mean", ("norm_mean", "image_mean")),
            ("std", ("norm_std", "image_std")),
        ):
            usual = [0.5, 0.5, 0.5]
            made[f"vision.image_{key}"] = np.array(self.processor.numbers(*names, default=usual))
        return made
