"""StableLM and Nemotron: Llama's layers with layer norms, and a part of each head rotated."""

from __future__ import annotations

from wgpu_backend.config import Value
from wgpu_backend.folders.families.llama import ATTENTION, ENDS, MLP, Decoder
from wgpu_backend.folders.family import Names, family, head_size, named
from wgpu_backend.folders.settings import Settings
from wgpu_backend.folders.values import Values, plus


def one_more(x: Values, settings: Settings) -> Values:
    """Weights of a norm as other models' norms have them; biases as they are."""
    return x if x.cols == 1 else plus(x, 1.0)


NORMS: Names = {
    "input_layernorm": {"attn_norm": one_more},
    "post_attention_layernorm": {"ffn_norm": one_more},
}


@family("StableLmForCausalLM", "StableLMEpochForCausalLM")
class StableLm(Decoder):
    """The largest normalises each head of queries and keys by weights of its own."""

    architecture = "stablelm"
    left_out = ("attention.layer_norm_rms_epsilon",)
    names = named(
        ENDS,
        ATTENTION,
        MLP,
        {
            "self_attn.q_layernorm": "attn_q_norm",
            "self_attn.k_layernorm": "attn_k_norm",
            "self_attn.q_layernorm.norms.*": "attn_q_norm",
            "self_attn.k_layernorm.norms.*": "attn_k_norm",
        },
    )

    def keys(self) -> dict[str, Value]:
        """How much of a head is rotated, and the epsilon, which some call as others their RMS's."""
        s = self.settings
        share = self.rope.number("partial_rotary_factor", default=0.25)
        return {
            "rope.dimension_count": int(share * head_size(s)),
            "use_parallel_residual": s.flag("use_parallel_residual", default=False),
            "attention.layer_norm_epsilon": s.number("layer_norm_eps", "norm_eps"),
        }


@family("NemotronForCausalLM")
class Nemotron(Decoder):
    """Norms multiply by one more than the weight."""

    architecture = "nemotron"
    names = named({**ENDS, "norm": {"output_norm": one_more}}, ATTENTION, MLP, NORMS)

    def keys(self) -> dict[str, Value]:
        """How much of a head is rotated; scaling is linear or none."""
        s = self.settings
        share = self.rope.number("partial_rotary_factor", default=0.5)
        heads = s.uint("num_attention_heads", default=0) or 1
        made: dict[str, Value] = {
            "vocab_size": s.uint("vocab_size"),
            "attention.layer_norm_epsilon": s.number("norm_eps", "layer_norm_eps"),
            "rope.dimension_count": int(share * s.uint("hidden_size")) // heads,
            "rope.scaling.type": "linear" if "factor" in self.rope else "none",
        }
        if "factor" in self.rope:
            made["rope.scaling.factor"] = self.rope.number("factor")
        return made
