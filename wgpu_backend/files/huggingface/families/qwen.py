"""Qwen 2 and 3, dense and with experts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import ATTENTION, ENDS, EXPERTS, MLP, Decoder
from wgpu_backend.files.huggingface.family import family, make_names
from wgpu_backend.files.huggingface.settings import Settings
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
        # Both are read, whatever either says.
        there, used = "sliding_window" in s, s.flag("use_sliding_window", default=False)
        return slides if there and used else []

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
        """Return the layers with a window: every second of the first, as in transformers."""
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


# Settings of the tower and of tokens that stand for pictures.
_TOWERS = (
    "vision_config", "image_token_id", "video_token_id", "vision_start_token_id",
    "vision_end_token_id", "vision_token_id", "use_sliding_window",
)  # fmt: skip


def _section_keys(rope: Settings) -> dict[str, Value]:
    """Return the pairs that rotate by time, height and width."""
    return {"rope.dimension_sections": np.array(rope.uints("mrope_section"), np.int32)}


@family("Qwen2VLForConditionalGeneration", "Qwen2_5_VLForConditionalGeneration")
class Qwen2VL(Qwen2):
    """The language model of Qwen2-VL and Qwen2.5-VL."""

    architecture = "qwen2vl"
    defaults: ClassVar[Mapping[str, object]] = {**Qwen2.defaults, "rms_norm_eps": 1e-5}
    harmless = (*Qwen2.harmless, *_TOWERS)

    def keys(self) -> dict[str, Value]:
        """Return the sections of rotation."""
        return {**super().keys(), **_section_keys(self.rope)}


@family("Qwen2AudioForConditionalGeneration")
class Qwen2Audio(Qwen2):
    """The language model of Qwen2-Audio."""

    harmless = (
        *Qwen2.harmless, "audio_config", "audio_token_index", "audio_token_id",
        "use_sliding_window",
    )  # fmt: skip


@family("Qwen3VLForConditionalGeneration")
class Qwen3VL(Qwen3):
    """The language model of Qwen3-VL."""

    architecture = "qwen3vl"
    harmless = (*Qwen3.harmless, *_TOWERS)

    def keys(self) -> dict[str, Value]:
        """Return the sections of rotation, and the layers after which tower rows are added."""
        return {**super().keys(), **_interleaved_keys(self.rope), **_deep_keys(self.settings)}


@family("Qwen3VLMoeForConditionalGeneration")
class Qwen3VLMoe(Qwen3Moe):
    """The language model of Qwen3-VL with experts."""

    architecture = "qwen3vlmoe"
    harmless = (*Qwen3Moe.harmless, *_TOWERS)

    def keys(self) -> dict[str, Value]:
        """Return Qwen 3's keys, and those of Qwen3-VL."""
        return {**super().keys(), **_interleaved_keys(self.rope), **_deep_keys(self.settings)}


def _interleaved_keys(rope: Settings) -> dict[str, Value]:
    """Return the sections of rotation, which the model interleaves."""
    if not rope.flag("mrope_interleaved", default=True):
        raise rope.error("mrope_interleaved", "is false, Qwen3-VL interleaves its sections")
    return _section_keys(rope)


def _deep_keys(settings: Settings) -> dict[str, Value]:
    """Return the number of layers after which rows of the tower are added (DeepStack)."""
    tower = settings.section("vision_config")
    return {"n_deepstack_layers": len(tower.uints("deepstack_visual_indexes", default=[]))}
