"""EXAONE 3, 3.5 and 4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import Olmo2
from wgpu_backend.files.huggingface.family import Family, family, make_names
from wgpu_backend.files.huggingface.shared_settings import bools, find_sliding


@family("ExaoneForCausalLM")
class Exaone(Family):
    """Llama's layers under GPT-2's names."""

    architecture = "exaone"
    prefixes = ("transformer.",)
    activation_settings = ("activation_function", "hidden_act")
    left_out = ("attention.layer_norm_epsilon",)
    defaults: ClassVar[Mapping[str, object]] = {
        "layer_norm_epsilon": 1e-5,
        "rope_theta": 500_000.0,
    }
    names = make_names(
        {"wte": "token_embd", "ln_f": "output_norm", "lm_head": "output"},
        {
            "ln_1": "attn_norm",
            "attn.attention.q_proj": "attn_q",
            "attn.attention.k_proj": "attn_k",
            "attn.attention.v_proj": "attn_v",
            "attn.attention.out_proj": "attn_output",
            "ln_2": "ffn_norm",
            "mlp.c_fc_0": "ffn_gate",
            "mlp.c_fc_1": "ffn_up",
            "mlp.c_proj": "ffn_down",
        },
        stack="h",
    )

    def keys(self) -> dict[str, Value]:
        """Return the epsilon, whose setting has the name of a layer norm's."""
        epsilon = self.settings.number("rms_norm_eps", "layer_norm_epsilon")
        return {"attention.layer_norm_rms_epsilon": epsilon}


@family("Exaone4ForCausalLM")
class Exaone4(Olmo2):
    """OLMo 2's norms; the larger model has windows, and layers without positions."""

    architecture = "exaone4"
    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-5, "sliding_window": 4096}

    def keys(self) -> dict[str, Value]:
        """Return the keys of windows even if no layer has one: such layers have no RoPE."""
        s = self.settings
        made: dict[str, Value] = {"vocab_size": s.uint("vocab_size")}
        slides = self.slides()
        if "sliding_window" not in s:
            return made
        made["attention.sliding_window"] = s.uint("sliding_window")
        return made | {"attention.sliding_window_pattern": bools(slides)}

    def slides(self) -> list[bool]:
        """Return the layers with a window: as listed, by a pattern, or all but each n-th."""
        s = self.settings
        if isinstance(s.value("sliding_window_pattern"), str):
            pattern = s.text("sliding_window_pattern") or "L"
            slides = find_sliding(s, lambda i: pattern[i % len(pattern)] == "L")
        else:
            every = s.uint("sliding_window_pattern", default=4) or 1
            slides = find_sliding(s, lambda i: (i + 1) % every != 0)
        return slides if "sliding_window" in s else []
