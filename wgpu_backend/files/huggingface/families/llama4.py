"""Llama 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import ATTENTION, ENDS, Decoder
from wgpu_backend.files.huggingface.family import Names, family, make_names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.shared_settings import layer_count
from wgpu_backend.files.huggingface.transforms import take_half, transpose
from wgpu_backend.files.huggingface.values import Values


def _gates(x: Values, settings: Settings) -> Values:
    """Return the gates of experts, whose matrices are stored for multiplication from the right."""
    return take_half(transpose(x), 0)


def _gated(x: Values, settings: Settings) -> Values:
    """Return the values of experts that are gated."""
    return take_half(transpose(x), 1)


def _down(x: Values, settings: Settings) -> Values:
    return transpose(x)


NETWORK: Names = {
    "feed_forward.gate_proj": "ffn_gate",
    "feed_forward.up_proj": "ffn_up",
    "feed_forward.down_proj": "ffn_down",
    "feed_forward.router": "ffn_gate_inp",
    "feed_forward.experts.gate_up_proj": {"ffn_gate_exps": _gates, "ffn_up_exps": _gated},
    "feed_forward.experts.down_proj": {"ffn_down_exps": _down},
    "feed_forward.shared_expert.gate_proj": "ffn_gate_shexp",
    "feed_forward.shared_expert.up_proj": "ffn_up_shexp",
    "feed_forward.shared_expert.down_proj": "ffn_down_shexp",
}
# Every fourth layer of the model has no RoPE.
_PERIOD = 4


@family("Llama4ForConditionalGeneration", "Llama4ForCausalLM")
class Llama4(Decoder):
    """Llama 4, whose checkpoints rotate adjacent pairs as GGUF files do."""

    architecture = "llama4"
    names = make_names(ENDS, ATTENTION, NETWORK)
    needed: ClassVar[Mapping[str, object]] = {
        "attention_bias": False,
        "no_rope_layer_interval": _PERIOD,
    }
    harmless = ("moe_layers", "layer_types", "for_llm_compressor")
    defaults: ClassVar[Mapping[str, object]] = {
        "vocab_size": 202048, "hidden_size": 5120, "intermediate_size": 8192,
        "intermediate_size_mlp": 16384, "num_hidden_layers": 48, "num_attention_heads": 40,
        "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "rope_theta": 5e5, "num_local_experts": 16, "num_experts_per_tok": 1,
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return widths, chunks, the temperature of queries, and whether these are normalised.

        Raises
        ------
        ModelError
            Other layers than every fourth have no RoPE.
        """
        s = self.settings
        # transformers takes an empty list for the usual one.
        usual = [int((i + 1) % _PERIOD != 0) for i in range(layer_count(s))]
        if (s.value("no_rope_layers") or usual) != usual:
            raise s.error("no_rope_layers", f"is {s.value('no_rope_layers')}, needs {usual}")
        tuned = s.value("attn_temperature_tuning") in (None, True, 4)
        growth = s.number("attn_scale", default=0.1)
        return {
            "feed_forward_length": s.uint("intermediate_size_mlp"),
            "expert_feed_forward_length": s.uint("intermediate_size"),
            "interleave_moe_layer_step": s.uint("interleave_moe_layer_step", default=1),
            "attention.chunk_size": s.uint("attention_chunk_size", default=8192),
            "attention.temperature_scale": growth if tuned else 0.0,
            "attention.temperature_length": s.uint("floor_scale", default=8192),
            "attention.normalised": s.flag("use_qk_norm", default=True),
        }
