"""Whisper's encoder as a tower: Qwen2-Audio and Voxtral."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tower import TowerFamily, tower_family

_ENCODER = {
    "conv1": "a.conv1d.1",
    "conv2": "a.conv1d.2",
    "embed_positions": "a.position_embd",
    "layer_norm": "a.post_ln",
    "layers.*.self_attn.q_proj": "a.blk.*.attn_q",
    "layers.*.self_attn.k_proj": "a.blk.*.attn_k",
    "layers.*.self_attn.v_proj": "a.blk.*.attn_v",
    "layers.*.self_attn.out_proj": "a.blk.*.attn_out",
    "layers.*.self_attn_layer_norm": "a.blk.*.ln1",
    "layers.*.final_layer_norm": "a.blk.*.ln2",
    "layers.*.fc1": "a.blk.*.ffn_up",
    "layers.*.fc2": "a.blk.*.ffn_down",
}


class WhisperEncoder(TowerFamily):
    """The encoder, which both models have."""

    section = "audio"
    roots = (
        "model.audio_tower.", "audio_tower.", "model.multi_modal_projector.",
        "multi_modal_projector.",
    )  # fmt: skip

    def __init__(self, settings: Settings, processor: Settings) -> None:
        super().__init__(settings, processor)
        for name, value in (("activation_function", "gelu"), ("scale_embedding", False)):
            found = self.own.value(name)
            if found not in (None, value):
                raise self.own.error(name, f"is {found!r}, needs {value!r}")

    def keys(self) -> dict[str, Value]:
        """Return the bands of the spectrogram."""
        states = self.own.uint("max_source_positions", default=1500)
        if states != 1500:
            raise self.own.error("max_source_positions", f"is {states}, needs 1500")
        return {"audio.num_mel_bins": self.own.uint("num_mel_bins", default=128)}


@tower_family("Qwen2AudioForConditionalGeneration")
class Qwen2AudioTower(WhisperEncoder):
    """The encoder and a matrix."""

    projector = "qwen2a"
    names: ClassVar[Names] = {**_ENCODER, "linear": "mm.a.fc"}
    defaults: ClassVar[Mapping[str, object]] = {
        "d_model": 1280, "encoder_ffn_dim": 5120, "encoder_layers": 32,
        "encoder_attention_heads": 20,
    }  # fmt: skip


@tower_family("VoxtralForConditionalGeneration")
class VoxtralTower(WhisperEncoder):
    """The encoder and two matrices."""

    projector = "voxtral"
    names: ClassVar[Names] = {**_ENCODER, "linear_1": "mm.a.mlp.1", "linear_2": "mm.a.mlp.2"}
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
        "num_attention_heads": 20,
    }  # fmt: skip

    def keys(self) -> dict[str, Value]:
        """Return the encoder's keys, and the number of states that are joined into a row."""
        self.need("projector_hidden_act", "gelu")
        width, inner = self.own.uint("hidden_size"), self.own.uint("intermediate_size")
        if not width or inner % width:
            raise self.own.error("intermediate_size", f"is {inner}, needs a multiple of {width}")
        return {**super().keys(), "audio.projector.stack_factor": inner // width}
