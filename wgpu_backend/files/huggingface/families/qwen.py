"""Qwen 2 and 3, dense and with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import ATTENTION, ENDS, EXPERTS, MLP, Decoder
from wgpu_backend.files.huggingface.family import family, make_names
from wgpu_backend.files.huggingface.shared_settings import all_slide, find_sliding


@family("Qwen2ForCausalLM", "Qwen2Model")
class Qwen2(Decoder):
    """Qwen 2, with biases of queries, keys and values, and optional windows in the last layers."""

    architecture = "qwen2"
    biases: ClassVar[Mapping[str, str]] = {}
    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-6}
    harmless = ("use_mrope",)

    def slides(self) -> list[bool]:
        """Return the layers with a window: from ``max_window_layers`` on, unless listed."""
        s = self.settings
        first = s.uint("max_window_layers", default=28)
        slides = find_sliding(s, lambda i: self._has_window(i, first))
        there = "sliding_window" in s and s.flag("use_sliding_window", default=False)
        return slides if there else []

    def _has_window(self, layer: int, first: int) -> bool:
        return layer >= first


@family("Qwen3ForCausalLM", "Qwen3Model")
class Qwen3(Qwen2):
    """Qwen 3, with norms of queries and keys."""

    architecture = "qwen3"
    biases: ClassVar[Mapping[str, str]] = {"attention_bias": r"self_attn\.\w+_proj\.bias$"}
    defaults: ClassVar[Mapping[str, object]] = {"rms_norm_eps": 1e-6, "head_dim": 128}


@family("Qwen2MoeForCausalLM")
class Qwen2Moe(Qwen2):
    """Qwen 2 with experts, and a gated shared expert."""

    architecture = "qwen2moe"
    biases: ClassVar[Mapping[str, str]] = {"qkv_bias": r"[qkv]_proj\.bias$"}
    needed: ClassVar[Mapping[str, object]] = {"mlp_only_layers": [], "decoder_sparse_step": 1}
    names = make_names(
        ENDS,
        ATTENTION,
        MLP,
        EXPERTS,
        {
            "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
            "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
            "mlp.shared_expert.up_proj": "ffn_up_shexp",
            "mlp.shared_expert.down_proj": "ffn_down_shexp",
        },
    )

    def keys(self) -> dict[str, Value]:
        """Return widths of the experts, and whether their weights are normalised."""
        s = self.settings
        widths: dict[str, Value] = {key: s.uint(name) for key, name in _WIDTHS.items() if name in s}
        return {**widths, "expert_weights_norm": s.flag("norm_topk_prob", default=False)}

    def _has_window(self, layer: int, first: int) -> bool:
        """Return every second of the first layers, as transformers does for this class."""
        return layer < first and layer % 2 == 0


_WIDTHS = {
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}


@family("Qwen3MoeForCausalLM")
class Qwen3Moe(Qwen2Moe):
    """Qwen 3 with experts but without a shared one."""

    architecture = "qwen3moe"
    biases: ClassVar[Mapping[str, str]] = {"attention_bias": r"self_attn\.\w+_proj\.bias$"}
    harmless = ("max_window_layers",)

    def slides(self) -> list[bool]:
        """Return the layers with a window: all, if windows are switched on."""
        slides = all_slide(self.settings)
        return slides if self.settings.flag("use_sliding_window", default=False) else []
