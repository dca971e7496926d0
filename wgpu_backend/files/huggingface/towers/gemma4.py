"""Gemma 4's tower for pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.rope import rope_settings
from wgpu_backend.files.huggingface.tower import TowerFamily, colours_before, tower_family
from wgpu_backend.files.huggingface.values import Values


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
