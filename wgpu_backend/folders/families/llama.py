"""Llama, Mistral, Mixtral, Granite, OLMo, SmolLM 3, Seed-OSS, AFM, StarCoder 2, ERNIE 4.5."""

from __future__ import annotations

import math

import numpy as np

from wgpu_backend.config import Value
from wgpu_backend.folders.arrangements import half, halves_interleaved
from wgpu_backend.folders.family import Family, Names, bools, family, head_size, named
from wgpu_backend.folders.settings import Settings
from wgpu_backend.folders.values import Values, constant

ENDS: Names = {"embed_tokens": "token_embd", "norm": "output_norm", "lm_head": "output"}
ATTENTION: Names = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
}
MLP: Names = {"mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def first_half(x: Values, settings: Settings) -> Values:
    """Gates of a matrix that has gates above the rest."""
    return half(x, 0)


def second_half(x: Values, settings: Settings) -> Values:
    """What the gates are for."""
    return half(x, 1)


def queries(x: Values, settings: Settings) -> Values:
    """Rows of queries for rotation of neighbours."""
    return halves_interleaved(x, settings.uint("num_attention_heads"))


def keys(x: Values, settings: Settings) -> Values:
    """Rows of keys for rotation of neighbours."""
    heads = settings.uint("num_attention_heads")
    return halves_interleaved(x, settings.uint("num_key_value_heads", default=heads))


ROTATED: Names = {
    "self_attn.q_proj": {"attn_q": queries},
    "self_attn.k_proj": {"attn_k": keys},
}
MIXTURE: Names = {
    "block_sparse_moe.gate": "ffn_gate_inp",
    "block_sparse_moe.experts.*.w1": "ffn_gate_exps",
    "block_sparse_moe.experts.*.w2": "ffn_down_exps",
    "block_sparse_moe.experts.*.w3": "ffn_up_exps",
}
EXPERTS: Names = {
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.*.gate_proj": "ffn_gate_exps",
    "mlp.experts.*.up_proj": "ffn_up_exps",
    "mlp.experts.*.down_proj": "ffn_down_exps",
    "mlp.experts.gate_up_proj": {"ffn_gate_exps": first_half, "ffn_up_exps": second_half},
    "mlp.experts.down_proj": "ffn_down_exps",
}


class Decoder(Family):
    """A decoder with the names of Llama."""

    names = named(ENDS, ATTENTION, MLP)


@family("LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "MixtralForCausalLM")
class Llama(Decoder):
    """Neighbours are rotated, where folders have halves."""

    architecture = "llama"
    names = named(ENDS, ATTENTION, ROTATED, MLP, MIXTURE)

    def keys(self) -> dict[str, Value]:
        """Sizes that could be computed of others."""
        size = head_size(self.settings)
        return {"vocab_size": self.settings.uint("vocab_size"), "rope.dimension_count": size}

    def extra(self) -> dict[str, Values]:
        """Factors of frequencies, in Llama 3.1 and later."""
        return llama3_extra(self)


def llama3_extra(made: Family) -> dict[str, Values]:
    """Tensor of the factors of frequencies, where they are Llama 3.1's."""
    if made.rope.text("rope_type", default="default") != "llama3":
        return {}
    return {"rope_freqs.weight": constant(llama3_factors(made.rope, head_size(made.settings)))}


def llama3_factors(rope: Settings, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """What frequencies are divided by: (size / 2,), f32.

    Dubey et al. 2024, "The Llama 3 Herd of Models", as the published code has it: waves shorter
    than a part of the old context stay, long ones are slowed down, and between there is a ramp.
    """
    factor, context = rope.number("factor"), rope.uint("original_max_position_embeddings")
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if not (factor > 0 and 0 < low < high and context):
        raise rope.error("low_freq_factor", f"is {low}, needs to be above 0 and below {high}")
    base = np.float32(rope.number("rope_theta", default=10_000.0))
    frequencies = 1 / base ** (np.arange(0, size, 2, dtype=np.float32) / np.float32(size))
    turns = context / (2 * math.pi / frequencies)
    ramp = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - ramp) / factor + ramp)).astype(np.float32)


@family("GraniteForCausalLM")
class Granite(Llama):
    """Llama with multipliers."""

    architecture = "granite"
    left_out = ("attention.key_length", "attention.value_length")

    def keys(self) -> dict[str, Value]:
        """The multipliers."""
        s = self.settings
        multipliers: dict[str, Value] = {
            key: s.number(name) for key, name in _MULTIPLIERS.items() if name in s
        }
        return {**super().keys(), **multipliers}


@family("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM")
class GraniteMoe(Granite):
    """Experts of all layers, gates above the rest, and perhaps one that all tokens share."""

    architecture = "granitemoe"
    names = named(
        ENDS,
        ATTENTION,
        ROTATED,
        {
            "block_sparse_moe.router.layer": "ffn_gate_inp",
            "block_sparse_moe.input_linear": {
                "ffn_gate_exps": first_half,
                "ffn_up_exps": second_half,
            },
            "block_sparse_moe.output_linear": "ffn_down_exps",
            "shared_mlp.input_linear": {
                "ffn_gate_shexp": first_half,
                "ffn_up_shexp": second_half,
            },
            "shared_mlp.output_linear": "ffn_down_shexp",
        },
    )

    def keys(self) -> dict[str, Value]:
        """The width of what is shared."""
        s, name = self.settings, "shared_intermediate_size"
        key = "expert_shared_feed_forward_length"
        return {**super().keys(), **({key: s.uint(name)} if s.value(name) else {})}


_MULTIPLIERS = {
    "attention.scale": "attention_multiplier",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


@family("ArceeForCausalLM")
class Arcee(Llama):
    """Llama without gates."""

    architecture = "arcee"


@family("SmolLM3ForCausalLM")
class SmolLM3(Llama):
    """Llama whose every fourth layer has no positions."""

    architecture = "smollm3"


@family("OlmoForCausalLM", "OLMoForCausalLM")
class Olmo(Decoder):
    """Norms have no weights, and their epsilon is the paper's."""

    architecture = "olmo"
    names = named(ENDS, ATTENTION, ROTATED, MLP)

    def keys(self) -> dict[str, Value]:
        """Epsilon, and the largest magnitude of queries, keys and values."""
        made: dict[str, Value] = {"attention.layer_norm_epsilon": 1e-5}
        if "clip_qkv" in self.settings:
            made["attention.clamp_kqv"] = self.settings.number("clip_qkv")
        return made


@family("Olmo2ForCausalLM", "Olmo3ForCausalLM")
class Olmo2(Decoder):
    """Norms behind attention and feed-forward."""

    architecture = "olmo2"
    names = named(
        ENDS,
        ATTENTION,
        MLP,
        {
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
    )

    def keys(self) -> dict[str, Value]:
        """Which layers have a window."""
        s = self.settings
        if "sliding_window" not in s:
            return {}
        count = s.uint("num_hidden_layers")
        kinds = [
            "full_attention" if (i + 1) % 4 == 0 else "sliding_attention" for i in range(count)
        ]
        slides = [kind == "sliding_attention" for kind in s.texts("layer_types", default=kinds)]
        return {
            "attention.sliding_window": s.uint("sliding_window"),
            "attention.sliding_window_pattern": bools(slides),
        }


@family("OlmoeForCausalLM")
class Olmoe(Decoder):
    """Experts, and norms of queries and keys."""

    architecture = "olmoe"
    names = named(ENDS, ATTENTION, MLP, EXPERTS)

    def keys(self) -> dict[str, Value]:
        """Epsilon as the paper's."""
        return {"attention.layer_norm_rms_epsilon": 1e-5}


@family("SeedOssForCausalLM")
class SeedOss(Decoder):
    """Seed-OSS, whose second norm has another name."""

    architecture = "seed_oss"
    names = named(ENDS, ATTENTION, MLP, {"post_attention_layernorm": "post_attention_norm"})


@family("Starcoder2ForCausalLM")
class Starcoder2(Decoder):
    """Layer norms, biases, and no gates."""

    architecture = "starcoder2"
    names = named(ENDS, ATTENTION, {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"})


@family("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM")
class Ernie(Decoder):
    """ERNIE 4.5 without experts."""

    architecture = "ernie4_5"
    prefixes = ("ernie.", *Decoder.prefixes)
