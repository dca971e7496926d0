"""Phi 2, Phi 3 and 4."""

from __future__ import annotations

import math

import numpy as np

from wgpu_backend.config import Value
from wgpu_backend.folders.families.llama import ATTENTION, ENDS, MLP
from wgpu_backend.folders.family import Family, family, head_size, named
from wgpu_backend.folders.values import Values, constant


@family("PhiForCausalLM")
class Phi2(Family):
    """Layer norms, attention and feed-forward side by side."""

    architecture = "phi2"
    left_out = ("rope.freq_base",)
    names = named(
        {**ENDS, "final_layernorm": "output_norm"},
        ATTENTION,
        {"self_attn.dense": "attn_output", "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down"},
    )

    def keys(self) -> dict[str, Value]:
        """How much of a head is rotated; key and value heads are as many as queries' here."""
        s = self.settings
        share = self.rope.number("partial_rotary_factor")
        heads = s.uint("num_attention_heads")
        return {
            "rope.dimension_count": int(share * head_size(s)),
            "attention.head_count_kv": s.uint("num_key_value_heads", default=heads),
        }


@family("Phi3ForCausalLM")
class Phi3(Family):
    """Queries, keys and values in one matrix, gates and the rest in another."""

    architecture = "phi3"
    left_out = (
        "rope.scaling.type", "rope.scaling.factor", "attention.key_length",
        "attention.value_length",
    )  # fmt: skip
    names = named(
        ENDS, ATTENTION, MLP, {"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}
    )

    def keys(self) -> dict[str, Value]:
        """Window, rotation, and how magnitudes change beyond the context of training."""
        s, old = self.settings, self._old_context()
        made: dict[str, Value] = {
            "rope.scaling.original_context_length": old,
            "rope.dimension_count": self._rotated(),
            "attention.sliding_window": s.uint("sliding_window", default=0),
        }
        ratio = s.uint("max_position_embeddings") / max(old, 1)
        if "long_factor" in self.rope:
            made["rope.scaling.attn_factor"] = self._magnitude(ratio, old)
        return made

    def extra(self) -> dict[str, Values]:
        """What frequencies are divided by, in short contexts and in long ones."""
        if "long_factor" not in self.rope:
            return {}
        made: dict[str, Values] = {}
        for name in ("long", "short"):
            factors = self.rope.numbers(f"{name}_factor")
            if 2 * len(factors) != self._rotated():
                raise self.rope.error(
                    f"{name}_factor", f"has {len(factors)} values, needs {self._rotated() // 2}"
                )
            made[f"rope_factors_{name}.weight"] = constant(np.array(factors, np.float32))
        return made

    def _old_context(self) -> int:
        whole = self.settings.uint("max_position_embeddings")
        return self.rope.uint("original_max_position_embeddings", default=whole)

    def _rotated(self) -> int:
        share = self.rope.number("partial_rotary_factor", default=1.0)
        return int(share * head_size(self.settings))

    def _magnitude(self, ratio: float, old: int) -> float:
        """Ding et al. 2024, "LongRoPE", §3.3; YaRN's (Peng et al. 2023, §3.4) where it is named."""
        if ratio <= 1:
            return 1.0
        kind = self.rope.text("rope_type")
        if kind in ("su", "longrope"):
            return math.sqrt(1 + math.log(ratio) / math.log(old))
        if kind == "yarn":
            return 0.1 * math.log(ratio) + 1
        raise self.rope.error("rope_type", f"is {kind!r}, known are su, longrope, yarn")
