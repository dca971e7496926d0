"""The tower of Pixtral and Mistral Small 3.1."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.rope import rope_settings
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tower import TowerFamily, as_matrix, tower_family
from wgpu_backend.files.huggingface.transforms import interleave_halves
from wgpu_backend.files.huggingface.values import Values


def _interleave(x: Values, settings: Settings) -> Values:
    return interleave_halves(x, settings.uint("num_attention_heads"))


@tower_family("LlavaForConditionalGeneration", "Mistral3ForConditionalGeneration")
class PixtralTower(TowerFamily):
    """A vision transformer with RMS norms and a projector."""

    projector = "pixtral"
    names: ClassVar[Names] = {
        "patch_conv.weight": {"v.patch_embd.weight": as_matrix},
        "ln_pre": "v.pre_ln",
        "transformer.layers.*.attention.q_proj": {"v.blk.*.attn_q": _interleave},
        "transformer.layers.*.attention.k_proj": {"v.blk.*.attn_k": _interleave},
        "transformer.layers.*.attention.v_proj": "v.blk.*.attn_v",
        "transformer.layers.*.attention.o_proj": "v.blk.*.attn_out",
        "transformer.layers.*.attention_norm": "v.blk.*.ln1",
        "transformer.layers.*.ffn_norm": "v.blk.*.ln2",
        "transformer.layers.*.feed_forward.gate_proj": "v.blk.*.ffn_gate",
        "transformer.layers.*.feed_forward.up_proj": "v.blk.*.ffn_up",
        "transformer.layers.*.feed_forward.down_proj": "v.blk.*.ffn_down",
        "norm": "mm.input_norm",
        "patch_merger.merging_layer": "mm.patch_merger",
        "linear_1": "mm.1",
        "linear_2": "mm.2",
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24,
        "num_attention_heads": 16, "image_size": 1024, "patch_size": 16,
    }  # fmt: skip

    def owns(self, name: str) -> bool:
        """Return whether a tensor belongs to the tower and is used."""
        return self.own.value("model_type") in (None, "pixtral") and super().owns(name)

    def keys(self) -> dict[str, Value]:
        """Return the longest side, the merged patches, and the projector's epsilon."""
        self.need("projector_hidden_act", "gelu")
        self.need("vision_feature_layer", -1)
        text = self.settings.section("text_config")
        longest = self.processor.section("size").uint(
            "longest_edge", default=self.own.uint("image_size")
        )
        base = rope_settings(self.own, local=False).number("rope_theta", default=10_000.0)
        made: dict[str, Value] = {
            "vision.image_size": longest,
            "vision.rope.freq_base": base,
            "vision.feed_forward_activation": "silu",
            "vision.projector.layer_norm_epsilon": text.number("rms_norm_eps", default=1e-5),
        }
        if self.settings.value("model_type") == "mistral3":
            made["vision.spatial_merge_size"] = self.settings.uint("spatial_merge_size", default=2)
        return made
