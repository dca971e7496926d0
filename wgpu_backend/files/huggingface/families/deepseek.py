"""DeepSeek V2, V3 and OCR, Moonlight: experts after a few dense layers, and latent attention.

DeepSeek-OCR's language model has plain attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import (
    ATTENTION,
    ENDS,
    EXPERTS,
    MLP,
    SHARED,
    expert_keys,
    is_before_end,
)
from wgpu_backend.files.huggingface.family import Family, family, head_size, make_names
from wgpu_backend.files.huggingface.rope import rope_kind, stretch, yarn_magnitude
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.transforms import slice_rows, split_matrices, transpose
from wgpu_backend.files.huggingface.values import Values

# Epsilon of the norms of latents, independent of that of the others.
_LATENT_EPS = 1e-6


def latent_keys(x: Values, settings: Settings) -> Values:
    """Return the matrices from latents to keys, transposed: queries are multiplied by them."""
    size = settings.uint("qk_nope_head_dim")
    return transpose(slice_rows(_heads(x, settings), 0, size))


def latent_values(x: Values, settings: Settings) -> Values:
    """Return the matrices from latents to values."""
    size = settings.uint("qk_nope_head_dim")
    return slice_rows(_heads(x, settings), size, size + settings.uint("v_head_dim"))


def _heads(x: Values, settings: Settings) -> Values:
    return split_matrices(x, settings.uint("num_attention_heads"))


@family("DeepseekV2ForCausalLM")
class DeepSeek2(Family):
    """DeepSeek V2, whose scores of experts are a softmax."""

    architecture = "deepseek2"
    biases: ClassVar[Mapping[str, str]] = {
        "attention_bias": r"self_attn\..*_proj\w*\.bias$",
        "mlp_bias": r"mlp\..*_proj\.bias$",
    }
    gating = "softmax"
    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-6}
    harmless = ("qk_head_dim",)
    needed: ClassVar[Mapping[str, object]] = {"rope_interleave": True, "moe_layer_freq": 1}
    names = make_names(
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
                "attn_k_b": latent_keys,
                "attn_v_b": latent_values,
            },
        },
    )

    def useful(self, name: str) -> bool:
        """Skip the layers after the last one: multi-token prediction is not supported."""
        return super().useful(name) and is_before_end(self, name)

    def keys(self) -> dict[str, Value]:
        """Return sizes for attention over latents, in which all heads share one key."""
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
        if made["attention.layer_norm_rms_epsilon"] != _LATENT_EPS:
            made["attention.latent_norm_rms_epsilon"] = _LATENT_EPS
        if "q_lora_rank" in s:
            made["attention.q_lora_rank"] = s.uint("q_lora_rank")
        return made | expert_keys(s, self.gating) | self._groups() | self._yarn_keys()

    @property
    def rotary_size(self) -> int:
        """Return the number of rotated values of a head."""
        return self.settings.uint("qk_rope_head_dim")

    def _groups(self) -> dict[str, Value]:
        """Return the groups of experts, which V2 may have and not use.

        Raises
        ------
        ModelError
            Groups are ranked by their best expert; models here rank by the two best.
        """
        method = self.settings.text("topk_method", default="noaux_tc")
        if method == "group_limited_greedy" and self.settings.value("n_group") not in (None, 1):
            raise self.settings.error("topk_method", f"is {method!r}, needs 'greedy'")
        return {"expert_group_count": 1, "expert_group_used_count": 1} if method == "greedy" else {}

    def _yarn_keys(self) -> dict[str, Value]:
        """Return YaRN's magnitude, and the factor of scores if it differs from the paper's."""
        s, rope = self.settings, self.rope
        if rope_kind(rope) != "yarn":
            return {}
        all_dim, factor = rope.number("mscale_all_dim", default=0.0), rope.number("factor")
        usual = 1.0 if all_dim else stretch(factor)
        made: dict[str, Value] = {
            "rope.scaling.yarn_log_multiplier": 0.1 * all_dim,
            "rope.scaling.attn_factor": yarn_magnitude(rope, factor) / usual,
        }
        if all_dim:
            return made
        size = s.uint("qk_nope_head_dim") + s.uint("qk_rope_head_dim")
        return made | {"attention.scale": size**-0.5}


@family("DeepseekV3ForCausalLM")
class DeepSeek3(DeepSeek2):
    """DeepSeek V3, whose scores are sigmoids, with groups of experts chosen first."""

    gating = "sigmoid"
    defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-6,
        "norm_topk_prob": True,
        "first_k_dense_replace": 3,
        "routed_scaling_factor": 2.5,
        "n_group": 8,
        "topk_group": 4,
    }


@family("DeepseekOCRForCausalLM")
class DeepSeekOcr(Family):
    """The language model of DeepSeek-OCR: experts of DeepSeek V2, and plain attention."""

    architecture = "deepseek2-ocr"
    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-6}
    needed: ClassVar[Mapping[str, object]] = {
        "use_mla": False, "moe_layer_freq": 1, "topk_method": "greedy",
    }  # fmt: skip
    # Sizes of latents are zero, and the heads that are switched on or off are the published ones.
    harmless = (
        "candidate_resolutions", "global_view_pos", "tile_tag", "language_config", "vision_config",
        "projector_config", "lm_head", "rm_head", "qk_nope_head_dim", "qk_rope_head_dim",
        "v_head_dim", "kv_lora_rank", "q_lora_rank",
    )  # fmt: skip
    useless = r"^model\.(sam_model|projector|view_seperator)"
    names = make_names(ENDS, ATTENTION, MLP, EXPERTS, SHARED)

    def keys(self) -> dict[str, Value]:
        """Return the vocabulary's size, the size of heads and the routing."""
        s = self.settings
        return {
            "vocab_size": s.uint("vocab_size"),
            "rope.dimension_count": head_size(s),
            **expert_keys(s, "softmax"),
        }
