"""LFM2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.llama import Decoder
from wgpu_backend.files.huggingface.family import Names, family, make_names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.shared_settings import layer_count
from wgpu_backend.files.huggingface.transforms import reshape
from wgpu_backend.files.huggingface.values import Values


def _kernel(x: Values, settings: Settings) -> Values:
    """Drop the axis of length 1 of a convolution whose channels are separate."""
    return reshape(x, x.rows, x.cols)


ENDS: Names = {
    "embed_tokens": "token_embd",
    "embedding_norm": "token_embd_norm",
    "lm_head": "output",
}
LAYER: Names = {
    "operator_norm": "attn_norm",
    "ffn_norm": "ffn_norm",
    "conv.conv": {"shortconv.conv": _kernel},
    "conv.in_proj": "shortconv.in_proj",
    "conv.out_proj": "shortconv.out_proj",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_output",
    "self_attn.q_layernorm": "attn_q_norm",
    "self_attn.k_layernorm": "attn_k_norm",
    "feed_forward.w1": "ffn_gate",
    "feed_forward.w2": "ffn_down",
    "feed_forward.w3": "ffn_up",
}
_KINDS = ("conv", "full_attention")


@family("Lfm2ForCausalLM", "Lfm2VlForConditionalGeneration")
class Lfm2(Decoder):
    """LFM2: layers of short convolutions, and of attention."""

    architecture = "lfm2"
    names = make_names(ENDS, LAYER)
    needed: ClassVar[Mapping[str, object]] = {"conv_bias": False}
    harmless = (
        "rms_norm_eps", "downsample_factor", "projector_hidden_size", "projector_bias",
        "projector_use_layernorm", "conv_dim", "conv_use_xavier_init", "block_dim",
        "block_mlp_init_scale", "block_norm_eps", "block_out_init_scale", "block_use_swiglu",
        "block_use_xavier_init", "num_heads", "use_pos_enc", "theta", "conv_dim_out",
        "do_image_splitting", "encoder_patch_size", "max_image_tokens", "max_num_patches",
        "max_pixels_tolerance", "max_tiles", "min_image_tokens", "min_tiles", "tile_size",
        "use_image_special_tokens", "use_thumbnail",
    )  # fmt: skip
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 2560, "num_hidden_layers": 32, "num_attention_heads": 32,
        "num_key_value_heads": 8, "max_position_embeddings": 128000, "vocab_size": 65536,
        "rope_theta": 1e6, "tie_word_embeddings": True,
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return KV heads by layer, 0 for convolutions, and the width of the network."""
        s = self.settings
        heads = s.uint("num_key_value_heads")
        counts = [heads if kind == "full_attention" else 0 for kind in self._kinds()]
        return {
            "attention.head_count_kv": np.array(counts, np.int32),
            # `rms_norm_eps`, where it is there too, is not read in transformers.
            "attention.layer_norm_rms_epsilon": s.number("norm_eps", default=1e-5),
            "shortconv.l_cache": s.uint("conv_L_cache", default=3),
            "feed_forward_length": self._inner(),
            "vocab_size": s.uint("vocab_size"),
        }

    def _kinds(self) -> list[str]:
        """Return the kind of each layer.

        Raises
        ------
        ModelError
            A kind is unknown, or there are more or fewer than layers.
        """
        s, count = self.settings, layer_count(self.settings)
        full = s.uints("full_attn_idxs", default=list(range(count)))
        usual = [_KINDS[i in full] for i in range(count)]
        kinds = s.texts("layer_types", default=usual)
        if len(kinds) != count or not {*kinds} <= {*_KINDS}:
            raise s.error("layer_types", f"is {kinds}, needs {count} of {', '.join(_KINDS)}")
        return kinds

    def _inner(self) -> int:
        """Return the columns between the matrices of the feed-forward network."""
        s = self.settings
        inner = s.uint("block_ff_dim", "intermediate_size", default=12288)
        multiple = max(s.uint("block_multiple_of", default=256), 1)
        factor = s.number("block_ffn_dim_multiplier", default=1.0)
        if not s.flag("block_auto_adjust_ff_dim", default=True):
            return inner
        # As published: two thirds, times a factor, rounded up to a multiple.
        wide = int(factor * int(2 * inner / 3))
        return multiple * -(-wide // multiple)
