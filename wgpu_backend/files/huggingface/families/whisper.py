"""Whisper and Distil-Whisper."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Family, Names, family
from wgpu_backend.files.huggingface.json_files import read_json
from wgpu_backend.files.huggingface.settings import Settings

ATTENTION = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_o",
    "self_attn_layer_norm": "attn_norm",
    "fc1": "ffn_up",
    "fc2": "ffn_down",
    "final_layer_norm": "ffn_norm",
}
CROSS = {
    "encoder_attn.q_proj": "cross_attn_q",
    "encoder_attn.k_proj": "cross_attn_k",
    "encoder_attn.v_proj": "cross_attn_v",
    "encoder_attn.out_proj": "cross_attn_o",
    "encoder_attn_layer_norm": "cross_attn_norm",
}
NAMES: Names = {
    "encoder.conv.*": "a.conv1d.*",
    "encoder.embed_positions": "a.position_embd",
    "encoder.layer_norm": "enc.output_norm",
    "decoder.embed_tokens": "token_embd",
    "decoder.embed_positions": "position_embd",
    "decoder.layer_norm": "dec.output_norm",
    "proj_out": "output",
    **{f"encoder.layers.*.{name}": f"enc.blk.*.{to}" for name, to in ATTENTION.items()},
    **{f"decoder.layers.*.{n}": f"dec.blk.*.{to}" for n, to in (ATTENTION | CROSS).items()},
}
# Names of other families for settings that the decoder and the encoder each have.
_USUAL = {
    "num_hidden_layers": "decoder_layers",
    "num_attention_heads": "decoder_attention_heads",
    "intermediate_size": "decoder_ffn_dim",
    "hidden_size": "d_model",
    "max_position_embeddings": "max_target_positions",
}
_LISTS = ("suppress_tokens", "begin_suppress_tokens")


@family("WhisperForConditionalGeneration")
class Whisper(Family):
    """An encoder of sound and a decoder of text."""

    architecture = "whisper"
    names = NAMES
    activation = "gelu_erf"
    activation_settings = ("activation_function",)
    defaults: ClassVar[Mapping[str, object]] = {
        "activation_function": "gelu",
        "num_mel_bins": 80,
        "max_source_positions": 1500,
        "max_target_positions": 448,
        "tie_word_embeddings": True,
    }
    needed: ClassVar[Mapping[str, object]] = {"scale_embedding": False}
    harmless = (
        "activation_dropout", "alignment_heads", "apply_spec_augment", "classifier_proj_size",
        "decoder_layerdrop", "dropout", "encoder_layerdrop", "forced_decoder_ids", "init_std",
        "mask_feature_length", "mask_feature_min_masks", "mask_feature_prob", "mask_time_length",
        "mask_time_min_masks", "mask_time_prob", "max_source_positions", "median_filter_width",
        "num_hidden_layers", "use_weighted_layer_sum",
    )  # fmt: skip

    def __init__(self, settings: Settings, class_name: str) -> None:
        values = dict(settings.values)
        # num_hidden_layers counts the encoder's layers, of which Distil-Whisper has more.
        values |= {usual: values[own] for usual, own in _USUAL.items() if own in values}
        settings.asked.update(_USUAL.values())
        super().__init__(Settings(settings.source, values, settings.asked), class_name)

    def bare(self, name: str) -> str:
        """Return a name without its prefix, with a dot before the number of a convolution."""
        return re.sub(r"^encoder\.conv(\d)", r"encoder.conv.\1", super().bare(name))

    def keys(self) -> dict[str, Value]:
        """Return the sizes of the encoder, and the tokens that are never chosen.

        Raises
        ------
        ModelError
            Encoder and decoder differ in heads or inner width.
        """
        s = self.settings
        for name in ("attention_heads", "ffn_dim"):
            encoder, decoder = s.uint(f"encoder_{name}"), s.uint(f"decoder_{name}")
            if encoder != decoder:
                raise s.error(f"encoder_{name}", f"is {encoder}, needs the decoder's {decoder}")
        return {
            "encoder_block_count": s.uint("encoder_layers"),
            "audio_band_count": s.uint("num_mel_bins"),
            "audio_context_length": s.uint("max_source_positions"),
            "attention.layer_norm_epsilon": 1e-5,
            "decoder_start_token_id": s.uint("decoder_start_token_id"),
            **self._generation_keys(),
        }

    def _generation_keys(self) -> dict[str, Value]:
        """Return keys of generation_config.json; older folders have them in config.json."""
        path = Path(self.settings.source).parent / "generation_config.json"
        own = Settings(str(path), read_json(path) if path.exists() else {})
        made: dict[str, Value] = {}
        if "is_multilingual" in own:
            made["is_multilingual"] = own.flag("is_multilingual")
        for name in _LISTS:
            listed = (own if name in own else self.settings).uints(name, default=[])
            if listed:
                made[name] = np.array(listed, np.int32)
        return made
