"""GLM 4, 4.5 and 4.6."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.deepseek import SHARED, expert_keys, within
from wgpu_backend.files.huggingface.families.llama import ATTENTION, ENDS, EXPERTS, MLP, Decoder
from wgpu_backend.files.huggingface.family import family, named


@family("Glm4ForCausalLM")
class Glm4(Decoder):
    """Four norms a layer, gates and the rest in one matrix, half of each head rotated."""

    architecture = "glm4"
    is_partial = True
    defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1.5625e-7,
        "head_dim": 128,
        "partial_rotary_factor": 0.5,
    }
    names = named(
        ENDS,
        ATTENTION,
        MLP,
        {
            "post_self_attn_layernorm": "post_attention_norm",
            "post_mlp_layernorm": "post_ffw_norm",
            "mlp.gate_up_proj": "ffn_up",
        },
    )


@family("Glm4MoeForCausalLM")
class Glm4Moe(Decoder):
    """Experts behind a few layers without, chosen as in DeepSeek V3."""

    architecture = "glm4moe"
    is_partial = True
    defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
        "norm_topk_prob": True,
        "first_k_dense_replace": 1,
    }
    harmless = ("use_qk_norm",)
    names = named(
        ENDS,
        ATTENTION,
        MLP,
        EXPERTS,
        SHARED,
        {"post_attention_layernorm": "post_attention_norm"},
    )

    def useful(self, name: str) -> bool:
        """Layers behind the last one foresee further tokens, which nothing here does."""
        return super().useful(name) and within(self, name)

    def keys(self) -> dict[str, Value]:
        """How experts are chosen."""
        return expert_keys(self.settings, "sigmoid")
