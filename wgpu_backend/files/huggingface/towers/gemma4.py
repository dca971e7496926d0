"""Gemma 4's towers for pictures and sound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from wgpu_backend.dtypes import F32
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.rope import rope_settings
from wgpu_backend.files.huggingface.tower import TowerFamily, colours_before, tower_family
from wgpu_backend.files.huggingface.transforms import reshape
from wgpu_backend.files.huggingface.values import Values, as_f32


def _as_vector(x: Values, _: object) -> Values:
    """View a single value as a vector of one."""
    return Values((1,), x.dtype, x.read)


_LAYER = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_ENDS = ("input_min", "input_max", "output_min", "output_max")


@tower_family("Gemma4ForConditionalGeneration")
class Gemma4Tower(TowerFamily):
    """A vision transformer and a matrix."""

    projector = "gemma4v"
    roots = (
        "model.vision_tower.", "vision_tower.", "model.embed_vision.", "embed_vision.",
    )  # fmt: skip
    names: ClassVar[Names] = {
        "patch_embedder.input_proj.weight": {"v.patch_embd.weight": colours_before},
        "patch_embedder.position_embedding_table": "v.position_embd.weight",
        "encoder.layers.*.input_layernorm": "v.blk.*.ln1",
        "encoder.layers.*.post_attention_layernorm": "v.blk.*.attn_post_norm",
        "encoder.layers.*.pre_feedforward_layernorm": "v.blk.*.ln2",
        "encoder.layers.*.post_feedforward_layernorm": "v.blk.*.ffn_post_norm",
        "encoder.layers.*.self_attn.q_norm": "v.blk.*.attn_q_norm",
        "encoder.layers.*.self_attn.k_norm": "v.blk.*.attn_k_norm",
        **{f"encoder.layers.*.{a}.linear": f"v.blk.*.{b}" for a, b in _LAYER.items()},
        **{
            f"encoder.layers.*.{a}.{end}": {f"v.blk.*.{b}.{end}": _as_vector}
            for a, b in _LAYER.items()
            for end in _ENDS
        },
        "std_bias": "v.std_bias",
        "std_scale": "v.std_scale",
        "embedding_projection": "mm.input_projection",
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16,
        "num_attention_heads": 12, "patch_size": 16, "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return the pooled patches, the most pixels, and whether rows of a picture are causal."""
        square = self.own.uint("pooling_kernel_size", default=3)
        area = (self.own.uint("patch_size") * square) ** 2
        text = self.settings.section("text_config")
        base = rope_settings(self.own, local=False).number("rope_theta", default=100.0)
        return {
            "vision.projector.scale_factor": square,
            "vision.image_max_pixels": self.processor.uint("max_soft_tokens", default=280) * area,
            "vision.is_causal": text.value("use_bidirectional_attention") != "vision",
            "vision.rope.freq_base": base,
        }


def _softplus(x: Values, _: object) -> Values:
    """Compute log(1 + exp(x)), as llama.cpp's converter does."""
    return Values(
        x.shape, F32, lambda b, e: np.logaddexp(as_f32(x.read(b, e), x.dtype), np.float32(0))
    )


def _as_rows(x: Values, _: object) -> Values:
    """Drop the axis of length 1 of a convolution of each channel: (channels, taps)."""
    return reshape(x, x.shape[0], x.shape[-1])


_CONFORMER = {
    "feed_forward1.ffw_layer_1": "ffn_up",
    "feed_forward1.ffw_layer_2": "ffn_down",
    "feed_forward2.ffw_layer_1": "ffn_up_1",
    "feed_forward2.ffw_layer_2": "ffn_down_1",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.post": "attn_out",
    "lconv1d.linear_start": "conv_pw1",
    "lconv1d.linear_end": "conv_pw2",
}


@tower_family("Gemma4ForConditionalGeneration")
class Gemma4AudioTower(TowerFamily):
    """A conformer and a matrix."""

    projector = "gemma4a"
    section = "audio"
    roots = ("model.audio_tower.", "audio_tower.", "model.embed_audio.", "embed_audio.")
    names: ClassVar[Names] = {
        "subsample_conv_projection.layer0.conv": "a.conv1d.0",
        "subsample_conv_projection.layer0.norm": "a.conv1d.0.norm",
        "subsample_conv_projection.layer1.conv": "a.conv1d.1",
        "subsample_conv_projection.layer1.norm": "a.conv1d.1.norm",
        "subsample_conv_projection.input_proj_linear": "a.input_projection",
        **{f"layers.*.{a}.linear": f"a.blk.*.{b}" for a, b in _CONFORMER.items()},
        **{
            f"layers.*.{a}.{end}": {f"a.blk.*.{b}.{end}": _as_vector}
            for a, b in _CONFORMER.items()
            for end in _ENDS
        },
        "layers.*.feed_forward1.pre_layer_norm": "a.blk.*.ffn_norm",
        "layers.*.feed_forward1.post_layer_norm": "a.blk.*.ffn_post_norm",
        "layers.*.feed_forward2.pre_layer_norm": "a.blk.*.ffn_norm_1",
        "layers.*.feed_forward2.post_layer_norm": "a.blk.*.ffn_post_norm_1",
        "layers.*.self_attn.relative_k_proj": "a.blk.*.attn_k_rel",
        "layers.*.self_attn.per_dim_scale": {"a.blk.*.per_dim_scale.weight": _softplus},
        "layers.*.norm_pre_attn": "a.blk.*.attn_pre_norm",
        "layers.*.norm_post_attn": "a.blk.*.attn_post_norm",
        "layers.*.norm_out": "a.blk.*.ln2",
        "layers.*.lconv1d.pre_layer_norm": "a.blk.*.conv_norm",
        "layers.*.lconv1d.conv_norm": "a.blk.*.norm_conv",
        "layers.*.lconv1d.depthwise_conv1d.weight": {"a.blk.*.conv_dw.weight": _as_rows},
        "output_proj": "a.pre_encode.out",
        "embedding_projection": "mm.a.input_projection",
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 8,
        "rms_norm_eps": 1e-6, "hidden_act": "silu",
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return the width between the matrices of the feed-forward network."""
        for name, value in (
            ("attention_context_left", 13), ("attention_context_right", 0),
            ("conv_kernel_size", 5), ("attention_logit_cap", 50.0), ("residual_weight", 0.5),
            ("rms_norm_eps", 1e-6), ("hidden_act", "silu"),
        ):  # fmt: skip
            if self.own.value(name) not in (None, value):
                raise self.own.error(name, f"is {self.own.value(name)!r}, needs {value!r}")
        return {
            "audio.feed_forward_length": 4 * self.own.uint("hidden_size"),
            "audio.num_mel_bins": self.processor.uint("feature_size", default=128),
        }
