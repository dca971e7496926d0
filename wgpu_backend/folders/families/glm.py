"""GLM 4."""

from __future__ import annotations

from wgpu_backend.config import Value
from wgpu_backend.folders.families.llama import ATTENTION, ENDS, MLP, Decoder
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
