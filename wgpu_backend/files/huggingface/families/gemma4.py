"""Gemma 4, whose norms multiply by their weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import (
    ATTENTION,
    MLP,
    Decoder,
    first_half,
    second_half,
)
from wgpu_backend.files.huggingface.family import Names, family, make_names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.shared_settings import find_sliding, layer_count
from wgpu_backend.files.huggingface.values import Values, constant

ENDS: Names = {
    "embed_tokens": "token_embd",
    "norm": "output_norm",
    "lm_head": "output",
    "embed_tokens_per_layer": "per_layer_token_embd",
    "per_layer_model_projection": "per_layer_model_proj",
    "per_layer_projection_norm": "per_layer_proj_norm",
}
LAYER: Names = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "pre_feedforward_layernorm_2": "pre_ffw_norm_2",
    "post_feedforward_layernorm_1": "post_ffw_norm_1",
    "post_feedforward_layernorm_2": "post_ffw_norm_2",
    "layer_scalar": "layer_output_scale",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
    "router.proj": "ffn_gate_inp",
    "experts.gate_up_proj": {"ffn_gate_exps": first_half, "ffn_up_exps": second_half},
    "experts.down_proj": "ffn_down_exps",
}
_FULL = "full_attention"
_SCALES = {
    "router.scale": ("router.proj", ".scale"),
    "router.per_expert_scale": ("experts.down_proj", ".scale"),
}
# A divisor of frequencies that leaves a pair as it is.
_STILL = 1e30


@family("Gemma4ForConditionalGeneration", "Gemma4ForCausalLM")
class Gemma4(Decoder):
    """Gemma 4: wider heads in layers with full attention, and an embedding per layer."""

    architecture = "gemma4"
    activation = "gelu"
    activation_settings = ("hidden_activation",)
    has_local_rope = True
    names: ClassVar[Names] = make_names(ENDS, ATTENTION, MLP, LAYER)
    needed: ClassVar[Mapping[str, object]] = {"attention_bias": False}
    harmless = (
        "audio_config", "audio_token_id", "boa_token_id", "boi_token_id", "eoa_token_id",
        "eoa_token_index", "eoi_token_id", "enable_moe_block", "attention_k_eq_v",
        "vision_soft_tokens_per_image",
    )  # fmt: skip
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "head_dim": 256,
        "tie_word_embeddings": True, "sliding_window": 512, "max_position_embeddings": 131072,
    }  # fmt: skip
    default_rope: ClassVar[Mapping[str, object]] = {
        _FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }

    def __init__(self, settings: Settings, class_name: str) -> None:
        super().__init__(settings, class_name)
        rope = self.rope
        kind = rope.text("rope_type", default="default")
        if kind not in ("default", "proportional"):
            raise rope.error("rope_type", f"is {kind!r}, needs 'proportional'")
        # The tensor of `extra` says which pairs rotate; frequencies are those of whole heads.
        self.share = rope.number("partial_rotary_factor", default=1.0)
        left = {k: v for k, v in rope.values.items() if k != "partial_rotary_factor"}
        self.rope = Settings(rope.source, left | {"rope_type": "default"}, rope.asked)

    def rename(self, name: str, values: Values) -> list[tuple[str, int | None, Values]]:
        """Return the GGUF tensors that a tensor becomes; scales have their own suffixes."""
        for end, (to, suffix) in _SCALES.items():
            if name.endswith(end):
                [(made, part, _)] = super().rename(name.removesuffix(end) + to, values)
                return [(made.removesuffix(".weight") + suffix, part, values)]
        return super().rename(name, values)

    def slides(self) -> list[bool]:
        """Return the layers with a window: all but each sixth, unless config.json lists them."""
        # As in transformers, the last layer has full attention in any case.
        return [*find_sliding(self.settings, lambda i: (i + 1) % 6 != 0)[:-1], False]

    def _read_wide(self, own: str, name: str, usual: int) -> int:
        """Return a setting of layers with full attention, given by itself or by layer."""
        s = self.settings
        if s.value("per_layer_config") is None:
            return s.uint(own, default=usual)
        s.value(own)
        layers = s.section("per_layer_config")
        full = [i for i, slides in enumerate(self.slides()) if not slides]
        found = {layers.section(str(i)).uint(name, default=s.uint(name)) for i in full}
        if len(found) != 1:
            raise layers.error(name, f"has values {sorted(found)} for full attention, needs one")
        return found.pop()

    def _head(self) -> int:
        """Return the size of a head of layers with full attention."""
        return self._read_wide("global_head_dim", "head_dim", 512)

    def extra(self) -> dict[str, Values]:
        """Return the divisors of frequencies of layers with full attention."""
        size = self._head()
        factors = np.full(size // 2, _STILL, np.float32)
        factors[: int(self.share * size // 2)] = 1
        return {"rope_freqs.weight": constant(factors)}

    def keys(self) -> dict[str, Value]:
        """Return head sizes of both kinds of layers, shared KV layers, and per-layer embeddings.

        Raises
        ------
        ModelError
            All tokens attend to later ones, or a setting is missing.
        """
        s = self.settings
        if s.value("use_bidirectional_attention") not in (None, False, "vision"):
            raise s.error("use_bidirectional_attention", "is for all tokens, needs null or vision")
        size, wide = s.uint("head_dim"), self._head()
        made: dict[str, Value] = {
            "attention.key_length": wide,
            "attention.value_length": wide,
            "attention.key_length_swa": size,
            "attention.value_length_swa": size,
            "rope.dimension_count": wide,
            "rope.dimension_count_swa": size,
            "attention.head_count_kv": self._kv_heads(),
            "attention.shared_kv_layers": s.uint("num_kv_shared_layers", default=0),
            "embedding_length_per_layer_input": s.uint("hidden_size_per_layer_input", default=256),
            "feed_forward_length": self._inner(),
        }
        if s.value("final_logit_softcapping") is not None:
            made["final_logit_softcapping"] = s.number("final_logit_softcapping")
        if s.value("moe_intermediate_size", "expert_intermediate_size") is not None:
            key = "expert_feed_forward_length"
            made[key] = s.uint("moe_intermediate_size", "expert_intermediate_size")
        rows, all_rows = s.value("vocab_size_per_layer_input"), s.value("vocab_size")
        if rows is not None and made["embedding_length_per_layer_input"] and rows != all_rows:
            raise s.error("vocab_size_per_layer_input", f"is {rows}, needs vocab_size, {all_rows}")
        return made

    def _kv_heads(self) -> Any:  # noqa: ANN401
        own = self.settings.uint("num_key_value_heads")
        wide = self._read_wide("num_global_key_value_heads", "num_key_value_heads", own)
        # transformers reads the number by itself only where keys are values.
        if "per_layer_config" not in self.settings:
            wide = wide if self.settings.flag("attention_k_eq_v", default=False) else own
        return np.array([own if slides else wide for slides in self.slides()], np.int32)

    def _inner(self) -> Any:  # noqa: ANN401
        """Return the width of each feed-forward network, twice in layers that share keys."""
        s, count = self.settings, layer_count(self.settings)
        inner = s.uint("intermediate_size")
        if not s.flag("use_double_wide_mlp", default=False):
            return inner
        first = count - s.uint("num_kv_shared_layers", default=0)
        return np.array([inner * (1 + (i >= first)) for i in range(count)], np.int32)
