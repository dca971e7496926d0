"""GLM 4, 4.5 and 4.6."""

from __future__ import annotations

from wgpu_backend.config import Value
from wgpu_backend.folders.families.deepseek import SHARED, expert_keys, within
from wgpu_backend.folders.families.llama import ATTENTION, ENDS, EXPERTS, MLP, Decoder
from wgpu_backend.folders.family import family, head_size, named


@family("Glm4ForCausalLM")
class Glm4(Decoder):
    """Four norms a layer, gates and the rest in one matrix, half of each head rotated."""

    architecture = "glm4"
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

    def keys(self) -> dict[str, Value]:
        """How much of a head is rotated."""
        share = self.rope.number("partial_rotary_factor", default=0.5)
        return {"rope.dimension_count": int(share * head_size(self.settings))}


@family("Glm4MoeForCausalLM")
class Glm4Moe(Decoder):
    """Experts behind a few layers without, chosen as in DeepSeek V3."""

    architecture = "glm4moe"
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
        """How much of a head is rotated, and how experts are chosen."""
        share = self.rope.number("partial_rotary_factor", default=0.5)
        return {
            "rope.dimension_count": int(share * head_size(self.settings)),
            **expert_keys(self.settings, "sigmoid"),
        }
