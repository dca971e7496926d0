"""Llama, Mistral, Mixtral, Granite, OLMo, SmolLM 3, Seed-OSS, AFM, StarCoder 2, ERNIE 4.5."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Family, Names, family, head_size, make_names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.shared_settings import (
    all_slide,
    bools,
    find_sliding,
    layer_count,
)
from wgpu_backend.files.huggingface.transforms import interleave_halves, take_half
from wgpu_backend.files.huggingface.values import Values

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
    """Return the upper half of the rows of a fused matrix: the gates."""
    return take_half(x, 0)


def second_half(x: Values, settings: Settings) -> Values:
    """Return the lower half of the rows of a fused matrix: the values that are gated."""
    return take_half(x, 1)


def queries(x: Values, settings: Settings) -> Values:
    """Reorder rows of queries for rotation of adjacent pairs."""
    return interleave_halves(x, settings.uint("num_attention_heads"))


def keys(x: Values, settings: Settings) -> Values:
    """Reorder rows of keys for rotation of adjacent pairs."""
    # Settings older than grouped queries have as many key heads as heads.
    heads = settings.uint("num_attention_heads")
    return interleave_halves(x, settings.uint("num_key_value_heads", default=heads))


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
# The names of routing functions, and their numbers in GGUF files.
_GATING = {"softmax": 1, "sigmoid": 2}
SHARED: Names = {
    "mlp.gate.e_score_correction": "exp_probs_b",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp",
    "mlp.shared_experts.up_proj": "ffn_up_shexp",
    "mlp.shared_experts.down_proj": "ffn_down_shexp",
}
_LAYER = re.compile(r"^layers\.(\d+)\.")


def is_before_end(made: Family, name: str) -> bool:
    """Return whether a tensor belongs to one of the model's layers, or to no layer."""
    # Files may have further layers that predict several tokens ahead; they are not read.
    found = _LAYER.match(made.bare(name))
    return found is None or int(found[1]) < layer_count(made.settings)


def expert_keys(settings: Settings, gating: str) -> dict[str, Value]:
    """Return the keys of routing, with this kind of score unless the settings name another.

    Raises
    ------
    ModelError
        The settings name an unknown kind of score, or lack the experts' width.
    """
    kind = settings.text("scoring_func", default=gating)
    if kind not in _GATING:
        raise settings.error("scoring_func", f"is {kind!r}, needs one of {', '.join(_GATING)}")
    return {
        "leading_dense_block_count": settings.uint("first_k_dense_replace", default=0),
        "expert_feed_forward_length": settings.uint("moe_intermediate_size"),
        "expert_shared_count": settings.uint("n_shared_experts", default=0),
        "expert_weights_scale": settings.number("routed_scaling_factor", default=1.0),
        "expert_weights_norm": settings.flag("norm_topk_prob", default=False),
        "expert_gating_func": _GATING[kind],
    }


class Decoder(Family):
    """A decoder with the names of Llama."""

    names = make_names(ENDS, ATTENTION, MLP)


@family("LlamaForCausalLM", "LLaMAForCausalLM", "MistralForCausalLM", "MixtralForCausalLM")
class Llama(Decoder):
    """Llama, whose GGUF files rotate adjacent pairs where checkpoints rotate halves."""

    architecture = "llama"
    needed: ClassVar[Mapping[str, object]] = {"rope_interleaved": False}
    names = make_names(ENDS, ATTENTION, ROTATED, MLP, MIXTURE)
    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-6}
    by_class: ClassVar[Mapping[str, Mapping[str, object]]] = {
        "MistralForCausalLM": {"sliding_window": 4096},
        "MixtralForCausalLM": {
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e6,
            "num_experts_per_tok": 2,
        },
    }

    def keys(self) -> dict[str, Value]:
        """Return the vocabulary's size and a head's rotated size, which GGUF files list."""
        size = head_size(self.settings)
        return {"vocab_size": self.settings.uint("vocab_size"), "rope.dimension_count": size}

    def slides(self) -> list[bool]:
        """Return the layers with a window: all of Mistral's first version and of Mixtral."""
        return all_slide(self.settings) if self.class_name in _SLIDING else []


_SLIDING = ("MistralForCausalLM", "MixtralForCausalLM")


@family("VoxtralForConditionalGeneration")
class Voxtral(Llama):
    """The language model of Voxtral."""

    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-5}
    harmless = (*Llama.harmless, "audio_config", "audio_token_id", "projector_hidden_act")


@family("GraniteForCausalLM")
class Granite(Llama):
    """Llama with multipliers."""

    architecture = "granite"
    defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-6,
        "attention_multiplier": 1.0,
        "embedding_multiplier": 1.0,
        "residual_multiplier": 1.0,
        "logits_scaling": 1.0,
    }

    def keys(self) -> dict[str, Value]:
        """Return Llama's keys and the multipliers."""
        s = self.settings
        multipliers: dict[str, Value] = {
            key: s.number(name) for key, name in _MULTIPLIERS.items() if name in s
        }
        return {**super().keys(), **multipliers}


@family("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM")
class GraniteMoe(Granite):
    """Granite with experts in all layers, and optionally a shared expert."""

    architecture = "granitemoe"
    names = make_names(
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
        """Return Granite's keys and the width of the shared expert."""
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
    activation = "relu2"
    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-5, "hidden_act": "relu2"}


@family("SmolLM3ForCausalLM")
class SmolLM3(Llama):
    """Llama whose every fourth layer has no positions, unless config.json lists others."""

    architecture = "smollm3"
    harmless = ("max_window_layers",)
    defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-6,
        "rope_theta": 2e6,
        "tie_word_embeddings": True,
    }

    def keys(self) -> dict[str, Value]:
        """Return Llama's keys, and the layers that are rotated."""
        return {**super().keys(), "rope.layers": bools(self._rotates())}

    def slides(self) -> list[bool]:
        """Return the layers with a window: those without positions, if windows are switched on."""
        s, rotates = self.settings, self._rotates()
        there = "sliding_window" in s and s.flag("use_sliding_window", default=False)
        slides = find_sliding(s, lambda i: there and not rotates[i])
        return slides if there else []

    def _rotates(self) -> list[bool]:
        s, count = self.settings, layer_count(self.settings)
        every = s.uint("no_rope_layer_interval", default=4) or 1
        usual = [int((i + 1) % every != 0) for i in range(count)]
        found = s.uints("no_rope_layers", default=usual)
        if len(found) < count:
            raise s.error("no_rope_layers", f"has {len(found)} values, needs {count}")
        return [bool(each) for each in found[:count]]


@family("OlmoForCausalLM", "OLMoForCausalLM")
class Olmo(Decoder):
    """OLMo, whose norms have no weights and the paper's epsilon."""

    architecture = "olmo"
    names = make_names(ENDS, ATTENTION, ROTATED, MLP)

    def keys(self) -> dict[str, Value]:
        """Return the epsilon, and the bound of queries, keys and values."""
        made: dict[str, Value] = {"attention.layer_norm_epsilon": 1e-5}
        if "clip_qkv" in self.settings:
            made["attention.clamp_kqv"] = self.settings.number("clip_qkv")
        return made


@family("Olmo2ForCausalLM")
class Olmo2(Decoder):
    """OLMo 2, with norms after attention and feed-forward."""

    architecture = "olmo2"
    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-5}
    names = make_names(
        ENDS,
        ATTENTION,
        MLP,
        {
            "post_attention_layernorm": "post_attention_norm",
            "post_feedforward_layernorm": "post_ffw_norm",
        },
    )


@family("Olmo3ForCausalLM")
class Olmo3(Olmo2):
    """OLMo 3: three of four layers have a window, and RoPE without scaling."""

    defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "sliding_window": 4096,
    }
    has_local_rope = True

    def slides(self) -> list[bool]:
        """Return the layers with a window: all but each fourth, unless config.json lists them."""
        s = self.settings
        return find_sliding(s, lambda i: (i + 1) % 4 != 0) if "sliding_window" in s else []


@family("OlmoeForCausalLM")
class Olmoe(Decoder):
    """OLMoE, with experts, and norms of queries and keys."""

    architecture = "olmoe"
    names = make_names(ENDS, ATTENTION, MLP, EXPERTS)
    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-5}

    def keys(self) -> dict[str, Value]:
        """Return whether experts' weights are normalised, and the bound of Q, K and V."""
        s = self.settings
        made: dict[str, Value] = {
            "expert_weights_norm": s.flag("norm_topk_prob", default=False),
        }
        if "clip_qkv" in s:
            made["attention.clamp_kqv"] = s.number("clip_qkv")
        return made

    def slides(self) -> list[bool]:
        """Return the layers with a window: all, if config.json has one."""
        return all_slide(self.settings)


@family("SeedOssForCausalLM")
class SeedOss(Decoder):
    """Seed-OSS, whose second norm has another name."""

    architecture = "seed_oss"
    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-6, "head_dim": 128}
    biases: ClassVar[Mapping[str, str]] = {
        "attention_bias": r"self_attn\.[qkv]_proj\.bias$",
        "attention_out_bias": r"self_attn\.o_proj\.bias$",
        "mlp_bias": r"mlp\..*_proj\.bias$",
    }
    names = make_names(ENDS, ATTENTION, MLP, {"post_attention_layernorm": "post_attention_norm"})


@family("Starcoder2ForCausalLM")
class Starcoder2(Decoder):
    """StarCoder 2, with layer norms, biases, and no gates."""

    architecture = "starcoder2"
    biases: ClassVar[Mapping[str, str]] = {"use_bias": r"(self_attn|mlp)\..*\.bias$"}
    activation = "gelu"
    names = make_names(ENDS, ATTENTION, {"mlp.c_fc": "ffn_up", "mlp.c_proj": "ffn_down"})
    defaults: ClassVar[Mapping[str, object]] = {
        "norm_epsilon": 1e-5,
        "hidden_act": "gelu_pytorch_tanh",
        "tie_word_embeddings": True,
    }
    harmless = ("mlp_type", "norm_type")

    def slides(self) -> list[bool]:
        """Return the layers with a window: all, if config.json has one."""
        return all_slide(self.settings)


@family("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM")
class Ernie(Decoder):
    """ERNIE 4.5 without experts."""

    architecture = "ernie4_5"
    biases: ClassVar[Mapping[str, str]] = {"use_bias": r"(self_attn|mlp)\..*\.bias$"}
    prefixes = ("ernie.", *Decoder.prefixes)
    defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-5,
        "rope_theta": 5e5,
        "tie_word_embeddings": True,
        "head_dim": 128,
    }
