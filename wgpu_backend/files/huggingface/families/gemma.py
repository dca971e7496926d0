"""Gemma 1 to 3, and EmbeddingGemma. Their norms multiply by one more than the weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import ATTENTION, MLP
from wgpu_backend.files.huggingface.family import Family, Names, family, make_names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.shared_settings import activation_key, find_sliding
from wgpu_backend.files.huggingface.values import Values, plus


def one_more(x: Values, settings: Settings) -> Values:
    """Add 1 to the weights of a norm."""
    return plus(x, 1.0)


NORMS: Names = {
    "input_layernorm": {"attn_norm": one_more},
    "self_attn.q_norm": {"attn_q_norm": one_more},
    "self_attn.k_norm": {"attn_k_norm": one_more},
    "post_attention_layernorm": {"post_attention_norm": one_more},
    "pre_feedforward_layernorm": {"ffn_norm": one_more},
    "post_feedforward_layernorm": {"post_ffw_norm": one_more},
}
ENDS: Names = {
    "embed_tokens": "token_embd",
    "norm": {"output_norm": one_more},
    "lm_head": "output",
}


@family("GemmaForCausalLM")
class Gemma(Family):
    """Gemma 1, with two norms per layer."""

    architecture = "gemma"
    activation = "gelu"
    activation_settings = ("hidden_activation",)
    defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "head_dim": 256,
    }
    needed: ClassVar[Mapping[str, object]] = {"use_bidirectional_attention": False}
    harmless = ("hidden_act",)
    names = make_names(
        ENDS, ATTENTION, MLP, NORMS, {"post_attention_layernorm": {"ffn_norm": one_more}}
    )

    def keys(self) -> dict[str, Value]:
        """Return the activation of files with only ``hidden_act``, where "gelu" means tanh's."""
        s = self.settings
        if "hidden_activation" in s or s.text("hidden_act", default="gelu") == "gelu":
            return {}
        return activation_key(s, ("hidden_act",), "gelu")


@family("Gemma2ForCausalLM")
class Gemma2(Gemma):
    """Gemma 2, with four norms per layer, windows in every other layer, and capped logits."""

    architecture = "gemma2"
    period = 2
    defaults: ClassVar[Mapping[str, object]] = {
        **Gemma.defaults,
        "attn_logit_softcapping": 50.0,
        "final_logit_softcapping": 30.0,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
    }
    names = make_names(ENDS, ATTENTION, MLP, NORMS)

    def keys(self) -> dict[str, Value]:
        """Return the caps of logits and scores, 0 for none, and the factor of scores."""
        s = self.settings
        made: dict[str, Value] = {
            name: s.number(name, default=0.0)
            for name in ("attn_logit_softcapping", "final_logit_softcapping")
        }
        wide = s.number("query_pre_attn_scalar")
        if wide <= 0:
            raise s.error("query_pre_attn_scalar", f"is {wide}, needs more than 0")
        return made | {"attention.scale": wide**-0.5}

    def slides(self) -> list[bool]:
        """Return the layers with a window: all but each n-th, unless config.json lists them."""
        s = self.settings
        period = s.uint("sliding_window_pattern", "_sliding_window_pattern", default=self.period)
        slides = find_sliding(s, lambda i: period == 0 or (i + 1) % period != 0)
        return slides if "sliding_window" in s else []


@family("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration")
class Gemma3(Gemma2):
    """Gemma 3, with norms of queries and keys, and defaults for keys missing in published files."""

    architecture = "gemma3"
    period = 6
    has_local_rope = True
    defaults: ClassVar[Mapping[str, object]] = {
        **Gemma.defaults,
        "sliding_window": 4096,
        "query_pre_attn_scalar": 256,
    }

    def keys(self) -> dict[str, Value]:
        """Return Gemma 2's keys, with defaults."""
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
    """Gemma 3 with bidirectional attention; the model halves config.json's window later."""

    architecture = "gemma-embedding"
    needed: ClassVar[Mapping[str, object]] = {"use_bidirectional_attention": True}
    defaults: ClassVar[Mapping[str, object]] = {
        **Gemma3.defaults,
        "use_bidirectional_attention": False,
    }
