"""DeepSeek V2 and V3, Moonlight: latent attention, and experts behind a few layers without."""

from __future__ import annotations

import re

from wgpu_backend.config import Value
from wgpu_backend.folders.arrangements import matrices, rows_of_each, transposed
from wgpu_backend.folders.families.llama import ATTENTION, ENDS, EXPERTS, MLP
from wgpu_backend.folders.family import Family, Names, family, layer_count, named
from wgpu_backend.folders.settings import Settings
from wgpu_backend.folders.values import Values

_LAYER = re.compile(r"^layers\.(\d+)\.")
_GATING = {"softmax": 1, "sigmoid": 2}
SHARED: Names = {
    "mlp.gate.e_score_correction": "exp_probs_b",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}


def keys_of_latents(x: Values, settings: Settings) -> Values:
    """What makes keys of latents, turned: queries are multiplied by it instead."""
    size = settings.uint("qk_nope_head_dim")
    return transposed(rows_of_each(_heads(x, settings), 0, size))


def values_of_latents(x: Values, settings: Settings) -> Values:
    """What makes values of latents."""
    size = settings.uint("qk_nope_head_dim")
    return rows_of_each(_heads(x, settings), size, size + settings.uint("v_head_dim"))


def _heads(x: Values, settings: Settings) -> Values:
    return matrices(x, settings.uint("num_attention_heads"))


def within(made: Family, name: str) -> bool:
    """Whether a tensor is of no layer behind the last one."""
    found = _LAYER.match(made.bare(name))
    return found is None or int(found[1]) < layer_count(made.settings)


def expert_keys(settings: Settings, gating: str) -> dict[str, Value]:
    """How experts are chosen, by scores of a kind if the settings name no other.

    Raises
    ------
    ModelError
        They name one that is not known, or lack the experts' width.
    """
    kind = settings.text("scoring_func", default=gating)
    if kind not in _GATING:
        raise settings.error("scoring_func", f"is {kind!r}, known are {', '.join(_GATING)}")
    return {
        "leading_dense_block_count": settings.uint("first_k_dense_replace", default=0),
        "expert_feed_forward_length": settings.uint("moe_intermediate_size"),
        "expert_shared_count": settings.uint("n_shared_experts", default=0),
        "expert_weights_scale": settings.number("routed_scaling_factor", default=1.0),
        "expert_weights_norm": settings.flag("norm_topk_prob", default=False),
        "expert_gating_func": _GATING[kind],
    }


@family("DeepseekV2ForCausalLM")
class DeepSeek2(Family):
    """Scores of experts are softmax's."""

    architecture = "deepseek2"
    gating = "softmax"
    names = named(
        ENDS,
        ATTENTION,
        MLP,
        EXPERTS,
        SHARED,
        {
            "self_attn.q_a_proj": "attn_q_a",
            "self_attn.q_a_layernorm": "attn_q_a_norm",
            "self_attn.q_b_proj": "attn_q_b",
            "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa",
            "self_attn.kv_a_layernorm": "attn_kv_a_norm",
            "self_attn.kv_b_proj": {
                "attn_k_b": keys_of_latents,
                "attn_v_b": values_of_latents,
            },
        },
    )

    def useful(self, name: str) -> bool:
        """Layers behind the last one foresee further tokens, which nothing here does."""
        return super().useful(name) and within(self, name)

    def keys(self) -> dict[str, Value]:
        """Sizes of latents and heads, as of attention over latents: all heads share one key."""
        s = self.settings
        rank, rotated = s.uint("kv_lora_rank"), s.uint("qk_rope_head_dim")
        made: dict[str, Value] = {
            "attention.head_count_kv": 1,
            "attention.layer_norm_rms_epsilon": s.number("rms_norm_eps", default=1e-6),
            "attention.kv_lora_rank": rank,
            "attention.key_length": rank + rotated,
            "attention.value_length": rank,
            "attention.key_length_mla": s.uint("qk_nope_head_dim") + rotated,
            "attention.value_length_mla": s.uint("v_head_dim"),
            "rope.dimension_count": rotated,
            "vocab_size": s.uint("vocab_size"),
        }
        if "q_lora_rank" in s:
            made["attention.q_lora_rank"] = s.uint("q_lora_rank")
        if "mscale_all_dim" in self.rope:
            multiplier = 0.1 * self.rope.number("mscale_all_dim")
            made["rope.scaling.yarn_log_multiplier"] = multiplier
        return made | expert_keys(s, self.gating)


@family("DeepseekV3ForCausalLM")
class DeepSeek3(DeepSeek2):
    """Scores are sigmoids, and groups of experts are chosen first."""

    gating = "sigmoid"
