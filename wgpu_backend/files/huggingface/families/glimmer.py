"""The language model of Muse Glimmer. Norms around blocks multiply by one more than the weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.gemma import one_more
from wgpu_backend.files.huggingface.families.llama import ATTENTION, ENDS, MLP, ROTATED
from wgpu_backend.files.huggingface.family import Family, Names, family, head_size, make_names
from wgpu_backend.files.huggingface.shared_settings import find_sliding, layer_count
from wgpu_backend.files.huggingface.values import Values, constant

NORMS: Names = {
    "input_layernorm": {"attn_norm": one_more},
    "post_attention_layernorm": {"post_attention_norm": one_more},
    "pre_feedforward_layernorm": {"ffn_norm": one_more},
    "post_feedforward_layernorm": {"post_ffw_norm": one_more},
}


@family("MuseGlimmerForConditionalGeneration")
class Glimmer(Family):
    """Windows and RoPE in all but every fourth layer, counted from the last."""

    architecture = "muse-glimmer"
    activation_settings = ("hidden_activation",)
    defaults: ClassVar[Mapping[str, object]] = {
        "head_dim": 128,
        "rms_norm_eps": 1e-5,
        "sliding_window": 2048,
        "final_logit_softcapping": 20.0,
        "qk_scale_factor": 3.87,
        "output_multiplier": 0.19611613513818404,
    }
    needed: ClassVar[Mapping[str, object]] = {"post_norm_eps": 1e-8}
    harmless = ("out_hidden_size", "projector_hidden_size")  # of the vision tower
    names = make_names(ENDS, ATTENTION, ROTATED, MLP, NORMS, {"self_attn.gate_proj": "attn_gate"})

    def keys(self) -> dict[str, Value]:
        """Return the scale and the cap of logits.

        Raises
        ------
        ModelError
            A layer with full attention is rotated, or one with a window is not.
        """
        s, slides = self.settings, self.slides()
        theta = self.rope.number("rope_theta", default=10_000.0)
        wanted = [theta if slide else 0.0 for slide in slides]
        if s.numbers("layer_rope_theta", default=wanted) != wanted:
            found = s.value("layer_rope_theta")
            needs = f"needs {theta} in layers with a window, 0 elsewhere"
            raise s.error("layer_rope_theta", f"is {found}, {needs}")
        return {
            "final_logit_softcapping": s.number("final_logit_softcapping"),
            "logit_scale": s.number("output_multiplier"),
        }

    def slides(self) -> list[bool]:
        """Return the layers with a window: all but every fourth, unless config.json lists them."""
        last = layer_count(self.settings) - 1
        return find_sliding(self.settings, lambda i: (last - i) % 4 != 0)

    def extra(self) -> dict[str, Values]:
        """Return weights for the norms of queries and keys, which have none in the folder."""
        size, scale = head_size(self.settings), self.settings.number("qk_scale_factor")
        made = super().extra()
        for i in range(layer_count(self.settings)):
            for part, factor in (("q", scale), ("k", 1.0)):
                norm = np.full(size, factor, np.float32)
                made[f"blk.{i}.attn_{part}_norm.weight"] = constant(norm)
        return made
