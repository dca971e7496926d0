"""Gemma 3n's towers for pictures, which timm names, and for sound."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.tower import TowerFamily, tower_family
from wgpu_backend.files.huggingface.values import Values

# The tower's own tensors keep their names after this, but for the blocks.
_TIMM = ("model.vision_tower.timm_model.", "vision_tower.timm_model.")
_KNOWN = ("conv_stem.", "blocks.", "msfa.")


class Gemma3nFamily(TowerFamily):
    """A tower of Gemma 3n."""

    @property
    def width(self) -> int:
        """Return the width of the language model."""
        return self.settings.section("text_config").uint("hidden_size", default=2048)


@tower_family("Gemma3nForConditionalGeneration")
class Gemma3nTower(Gemma3nFamily):
    """MobileNet-v5, and a matrix between norms."""

    projector = "gemma3nv"
    roots = (*_TIMM, "model.embed_vision.", "embed_vision.")
    names: ClassVar[Names] = {
        "embedding": "mm.embedding",
        "hard_embedding_norm": "mm.hard_emb_norm",
        "soft_embedding_norm": "mm.soft_emb_norm",
        "embedding_projection": "mm.input_projection",
    }
    defaults: ClassVar[Mapping[str, object]] = {"hidden_size": 2048}

    def rename(self, name: str, values: Values) -> dict[str, Values]:
        """Return the tensors that a tensor of the folder becomes; raises like `TowerFamily`'s."""
        root = next((root for root in _TIMM if name.startswith(root)), None)
        if root is None:
            return super().rename(name, values)
        bare = name.removeprefix(root)
        if not bare.startswith(_KNOWN):
            raise ModelError(f"unexpected tensor for {type(self).__name__}")
        start, _, rest = bare.partition(".")
        return {f"v.{'blk' if start == 'blocks' else start}.{rest}": values}

    def keys(self) -> dict[str, Value]:
        """Return the side of a picture.

        Raises
        ------
        ModelError
            The tower is another one than MobileNet-v5, or pictures are normalised.
        """
        for settings, name, value in (
            (self.own, "architecture", "mobilenetv5_300m_enc"),
            (self.own, "do_pooling", False),
            (self.processor, "do_normalize", False),
        ):
            if settings.value(name) not in (None, value):
                raise settings.error(name, f"is {settings.value(name)!r}, needs {value!r}")
        size = self.processor.section("size")
        sides = [size.uint(name, default=768) for name in ("height", "width")]
        if sides[0] != sides[1]:
            raise size.error("height", f"is {sides[0]} and the width {sides[1]}, needs a square")
        return {"vision.image_size": sides[0]}


_CONFORMER = {
    "ffw_layer_start.pre_layer_norm": "ffn_norm",
    "ffw_layer_start.ffw_layer_1": "ffn_up",
    "ffw_layer_start.ffw_layer_2": "ffn_down",
    "ffw_layer_start.post_layer_norm": "ffn_post_norm",
    "ffw_layer_end.pre_layer_norm": "ffn_norm_1",
    "ffw_layer_end.ffw_layer_1": "ffn_up_1",
    "ffw_layer_end.ffw_layer_2": "ffn_down_1",
    "ffw_layer_end.post_layer_norm": "ffn_post_norm_1",
    "attention.pre_attn_norm": "ln1",
    "attention.attn.q_proj": "attn_q",
    "attention.attn.k_proj": "attn_k",
    "attention.attn.v_proj": "attn_v",
    "attention.attn.per_dim_scale": "per_dim_scale",
    "attention.attn.relative_position_embedding.pos_proj": "linear_pos",
    "attention.post": "attn_out",
    "attention.post_norm": "ln2",
    "lconv1d.pre_layer_norm": "conv_norm",
    "lconv1d.linear_start": "conv_pw1",
    "lconv1d.depthwise_conv1d": "conv_dw",
    "lconv1d.conv_norm": "norm_conv",
    "lconv1d.linear_end": "conv_pw2",
    "norm": "layer_pre_norm",
}
_STARTS = {"conv_0.conv": "conv1d.0", "conv_0.norm": "conv1d.0.norm", "conv_1.conv": "conv1d.1",
           "conv_1.norm": "conv1d.1.norm", "input_proj_linear": "pre_encode.out"}  # fmt: skip
# The tower's constants, and those of the feature extractor.
_NETWORK: Mapping[str, object] = {
    "conf_attention_chunk_size": 12, "conf_attention_context_left": 13,
    "conf_attention_context_right": 0, "conf_attention_logit_cap": 50.0,
    "conf_conv_kernel_size": 5, "conf_reduction_factor": 4, "conf_residual_weight": 0.5,
    "gradient_clipping": 1e10, "rms_norm_eps": 1e-6, "sscp_conv_group_norm_eps": 1e-3,
    "sscp_conv_kernel_size": [[3, 3], [3, 3]], "sscp_conv_stride_size": [[2, 2], [2, 2]],
}  # fmt: skip
_EXTRACTOR: Mapping[str, object] = {
    "dither": 0.0, "fft_length": 1024, "frame_length": 512, "hop_length": 160,
    "input_scale_factor": 1.0, "max_frequency": 7600.0, "mel_floor": 1e-5, "min_frequency": 125.0,
    "per_bin_mean": None, "per_bin_stddev": None, "preemphasis": 0.97,
    "preemphasis_htk_flavor": True, "sampling_rate": 16000,
}  # fmt: skip


@tower_family("Gemma3nForConditionalGeneration")
class Gemma3nAudioTower(Gemma3nFamily):
    """A conformer, and a matrix between norms."""

    projector = "gemma3na"
    section = "audio"
    roots = ("model.audio_tower.", "audio_tower.", "model.embed_audio.", "embed_audio.")
    names: ClassVar[Names] = {
        **{f"subsample_conv_projection.{a}": f"a.{b}" for a, b in _STARTS.items()},
        **{f"conformer.*.{a}": f"a.blk.*.{b}" for a, b in _CONFORMER.items()},
        "embedding": "mm.a.embedding",
        "hard_embedding_norm": "mm.a.hard_emb_norm",
        "soft_embedding_norm": "mm.a.soft_emb_norm",
        "embedding_projection": "mm.a.input_projection",
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 1536, "conf_num_hidden_layers": 12, "conf_num_attention_heads": 8,
        "rms_norm_eps": 1e-6,
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return the sizes of layers and the bands of the spectrogram.

        Raises
        ------
        ModelError
            A constant of the tower or of the feature extractor is another one.
        """
        for settings, needed in ((self.own, _NETWORK), (self.processor, _EXTRACTOR)):
            for name, value in needed.items():
                if settings.value(name) not in (None, value):
                    raise settings.error(name, f"is {settings.value(name)!r}, needs {value!r}")
        self.need("audio_soft_tokens_per_image", 188)
        return {
            "audio.block_count": self.own.uint("conf_num_hidden_layers"),
            "audio.attention.head_count": self.own.uint("conf_num_attention_heads"),
            "audio.feed_forward_length": 4 * self.own.uint("hidden_size"),
            "audio.num_mel_bins": self.own.uint("input_feat_size", default=128),
        }
