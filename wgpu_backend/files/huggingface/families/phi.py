"""Phi 2, Phi 3 and 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import ATTENTION, ENDS, MLP
from wgpu_backend.files.huggingface.family import Family, family, make_names
from wgpu_backend.files.huggingface.shared_settings import all_slide


@family("PhiForCausalLM")
class Phi2(Family):
    """Phi 2, with layer norms, and attention in parallel with feed-forward."""

    architecture = "phi2"
    activation = "gelu"
    is_partial = True
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-5,
        "partial_rotary_factor": 0.5,
    }
    needed: ClassVar[Mapping[str, object]] = {"qk_layernorm": False}
    names = make_names(
        {**ENDS, "final_layernorm": "output_norm"},
        ATTENTION,
        {"self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
    )

    def keys(self) -> dict[str, Value]:
        """Return the number of key heads, by default that of query heads."""
        s = self.settings
        heads = s.uint("num_attention_heads")
        return {"attention.head_count_kv": s.uint("num_key_value_heads", default=heads)}


@family("Phi3ForCausalLM")
class Phi3(Family):
    """Phi 3, with queries, keys and values in one matrix, and gate and up in another."""

    architecture = "phi3"
    is_partial = True
    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-5}
    names = make_names(
        ENDS, ATTENTION, MLP, {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
    )

    def keys(self) -> dict[str, Value]:
        """Return the training context length, and the rotated size of a head."""
        s, rope = self.settings, self.rope
        whole = s.uint("max_position_embeddings")
        old = rope.uint("original_max_position_embeddings", default=whole)
        made: dict[str, Value] = {
            "rope.scaling.original_context_length": old,
            "rope.dimension_count": self.rotary_size,
        }
        return made if self.slides() else {**made, "attention.sliding_window": 0}

    def slides(self) -> list[bool]:
        """Return the layers with a window: all, if config.json has one."""
        return all_slide(self.settings)
