"""GLM 4, 4.5 and 4.6."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import (
    ATTENTION,
    ENDS,
    EXPERTS,
    MLP,
    SHARED,
    Decoder,
    expert_keys,
    is_before_end,
)
from wgpu_backend.files.huggingface.family import Names, family, make_names
from wgpu_backend.files.huggingface.rope import rope_settings
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.transforms import split_pairs
from wgpu_backend.files.huggingface.values import Values


@family("Glm4ForCausalLM")
class Glm4(Decoder):
    """GLM 4: four norms per layer, gate and up in one matrix, half of each head rotated."""

    architecture = "glm4"
    is_partial = True
    defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1.5625e-7,
        "head_dim": 128,
        "partial_rotary_factor": 0.5,
    }
    names = make_names(
        ENDS,
        ATTENTION,
        MLP,
        {
            "post_self_attn_layernorm": "post_attention_norm",
            "post_mlp_layernorm": "post_ffw_norm",
            "mlp.gate_up_proj": "ffn_up",
        },
    )


def _split_pairs(key: str) -> Callable[[Values, Settings], Values]:
    """Return the transform of queries or keys to the order of GGUF files with M-RoPE."""

    def change(x: Values, settings: Settings) -> Values:
        heads = settings.uint(key)
        share = rope_settings(settings, local=False).number("partial_rotary_factor", default=0.5)
        return split_pairs(x, heads, int(share * (x.rows // heads if heads else 0)))

    return change


@family("Glm4vForConditionalGeneration")
class Glm4v(Glm4):
    """The language model of GLM-4.1V, which rotates by time, height and width."""

    defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
    }
    names: ClassVar[Names] = {
        **Glm4.names,
        "layers.*.self_attn.q_proj": {"blk.*.attn_q": _split_pairs("num_attention_heads")},
        "layers.*.self_attn.k_proj": {"blk.*.attn_k": _split_pairs("num_key_value_heads")},
    }

    def keys(self) -> dict[str, Value]:
        """Return the pairs that each position rotates."""
        sections = self.rope.uints("mrope_section", default=[8, 12, 12])
        return {**super().keys(), "rope.dimension_sections": np.array(sections, np.int32)}


@family("Glm4MoeForCausalLM")
class Glm4Moe(Decoder):
    """GLM 4.5: experts after a few dense layers, chosen as in DeepSeek V3."""

    architecture = "glm4moe"
    is_partial = True
    defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
    }
    harmless = ("use_qk_norm",)
    names = make_names(
        ENDS,
        ATTENTION,
        MLP,
        EXPERTS,
        SHARED,
        {"post_attention_layernorm": "post_attention_norm"},
    )

    def useful(self, name: str) -> bool:
        """Skip the layers after the last one: multi-token prediction is not supported."""
        return super().useful(name) and is_before_end(self, name)

    def keys(self) -> dict[str, Value]:
        """Return the keys of routing."""
        return expert_keys(self.settings, "sigmoid")


@family("Glm4vMoeForConditionalGeneration")
class Glm4vMoe(Glm4Moe):
    """The language model of GLM-4.5V, which rotates halves by time, height and width."""

    def keys(self) -> dict[str, Value]:
        """Return the keys of routing, and the pairs that each position rotates."""
        sections = self.rope.uints("mrope_section", default=[8, 12, 12])
        return {**super().keys(), "rope.dimension_sections": np.array(sections, np.int32)}
