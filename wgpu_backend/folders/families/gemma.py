"""Gemma 1 to 3, and EmbeddingGemma. Their norms multiply by one more than the weight."""

from __future__ import annotations

from wgpu_backend.config import Value
from wgpu_backend.folders.families.llama import ATTENTION, MLP
from wgpu_backend.folders.family import Family, Names, family, named
from wgpu_backend.folders.settings import Settings
from wgpu_backend.folders.values import Values, plus


def one_more(x: Values, settings: Settings) -> Values:
    """Weights of a norm as other models' norms have them."""
    return plus(x, 1.0)


NORMS: Names = {
    "input_layernorm": {"attn_norm": one_more},
    "self_attn.q_norm": {"attn_q_norm": one_more},
    "self_attn.k_norm": {"attn_k_norm": one_more},
    "post_attention_layernorm": {"post_attention_norm": one_more},
    "pre_feedforward_layernorm": {"ffn_norm": one_more},
    "post_feedforward_layernorm": {"post_ffw_norm": one_more},
}
ENDS: Names = {"embed_tokens": "token_embd", "norm": {"output_norm": one_more}}


@family("GemmaForCausalLM")
class Gemma(Family):
    """Two norms a layer."""

    architecture = "gemma"
    left_out = ("rope.freq_base",)
    useless = r"^lm_head\.weight$"  # the embedding
    names = named(ENDS, ATTENTION, MLP, NORMS, {"post_attention_layernorm": {"ffn_norm": one_more}})


@family("Gemma2ForCausalLM")
class Gemma2(Gemma):
    """Four norms a layer, windows in every other one, and capped logits."""

    architecture = "gemma2"
    names = named(ENDS, ATTENTION, MLP, NORMS)

    def keys(self) -> dict[str, Value]:
        """Caps and the window."""
        s = self.settings
        made: dict[str, Value] = {
            name: s.number(name)
            for name in ("attn_logit_softcapping", "final_logit_softcapping")
            if name in s
        }
        if "sliding_window" in s:
            made["attention.sliding_window"] = s.uint("sliding_window")
        return made


@family("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
class Gemma3(Gemma2):
    """Norms of queries and keys; what published files leave out is what the first ones had."""

    architecture = "gemma3"
    left_out = ()

    def keys(self) -> dict[str, Value]:
        """Gemma 2's, with defaults."""
        s = self.settings
        size = s.uint("head_dim", default=256)
        return {
            "context_length": s.uint("max_position_embeddings", default=131_072),
            "attention.head_count": s.uint("num_attention_heads", default=8),
            "attention.head_count_kv": s.uint("num_key_value_heads", default=4),
            "attention.layer_norm_rms_epsilon": s.number("rms_norm_eps", default=1e-6),
            "attention.key_length": size,
            "attention.value_length": size,
            "rope.freq_base": self.rope.number("rope_theta", default=1_000_000.0),
            **super().keys(),
        }


@family("Gemma3TextModel")
class EmbeddingGemma(Gemma3):
    """Gemma 3 that sees both ways; the window of config.json is halved when the model is made."""

    architecture = "gemma-embedding"
