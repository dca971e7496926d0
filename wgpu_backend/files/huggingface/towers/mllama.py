"""Llama 3.2 Vision's tower, under the names of Ollama's converter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.family import Names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.tower import TowerFamily, as_matrix, tower_family
from wgpu_backend.files.huggingface.values import Rows, Values, as_f32


def _map(x: Values, change: Callable[[NDArray[Any]], NDArray[Any]]) -> Values:
    return Values(x.shape, F32, lambda a, b: change(as_f32(x.read(a, b), x.dtype)), x.step)


def _open(x: Values, settings: Settings) -> Values:
    """Return tanh of a gate, as Ollama stores gates."""
    return _map(x, np.tanh)


def _rest(x: Values, settings: Settings) -> Values:
    return _map(x, lambda gate: 1 - np.tanh(gate))


def _as_rows(x: Values, settings: Settings) -> Values:
    """View a table of grids as one with a row for each tile or patch: (rows, width)."""
    width = settings.uint("hidden_size")
    each = x.cols // width
    if each * width != x.cols:
        raise ModelError(f"of shape {x.shape}, needs rows of a multiple of {width} values")

    def read(begin: int, end: int) -> Rows:
        first = begin // each
        rows = x.read(first, -(-end // each)).reshape(-1, width)
        return rows[begin - first * each : end - first * each]

    return Values((x.rows * each, width), x.dtype, read, each)


_LAYER: Names = {
    "input_layernorm": "ln1",
    "post_attention_layernorm": "ln2",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_out",
    "mlp.fc1": "ffn_up",
    "mlp.fc2": "ffn_down",
}


@tower_family("MllamaForConditionalGeneration")
class MllamaTower(TowerFamily):
    """Layers over all tiles of a picture, and further layers with gates."""

    projector = "mllama"
    roots = ("model.vision_model.", "vision_model.", "model.", "")
    names: ClassVar[Names] = {
        "class_embedding": "v.class_embd",
        "patch_embedding": {"v.patch_embd": as_matrix},
        "gated_positional_embedding.embedding": "v.position_embd.weight",
        "gated_positional_embedding.gate": {
            "v.position_embd.gate": _rest,
            "v.tile_position_embd.gate": _open,
        },
        "gated_positional_embedding.tile_embedding": {"v.tile_position_embd": _as_rows},
        "pre_tile_positional_embedding.embedding": {"v.pre_tile_position_embd": _as_rows},
        "pre_tile_positional_embedding.gate": {"v.pre_tile_position_embd.gate": _open},
        "post_tile_positional_embedding.embedding": {"v.post_tile_position_embd": _as_rows},
        "post_tile_positional_embedding.gate": {"v.post_tile_position_embd.gate": _open},
        "layernorm_pre": "v.pre_ln",
        "layernorm_post": "v.post_ln",
        **{f"transformer.layers.*.{name}": f"v.blk.*.{to}" for name, to in _LAYER.items()},
        **{
            f"global_transformer.layers.*.{name}": f"v.global.blk.*.{to}"
            for name, to in _LAYER.items()
        },
        "global_transformer.layers.*.gate_attn": {"v.global.blk.*.attn_gate": _open},
        "global_transformer.layers.*.gate_ffn": {"v.global.blk.*.ffn_gate": _open},
        "multi_modal_projector": "mm.0",
    }
    defaults: ClassVar[Mapping[str, object]] = {
        "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32,
        "attention_heads": 16, "image_size": 448, "patch_size": 14, "norm_eps": 1e-5,
        "num_global_layers": 8, "max_num_tiles": 4, "hidden_act": "gelu",
        "intermediate_layers_indices": [3, 7, 15, 23, 30],
    }  # fmt: skip

    def owns(self, name: str) -> bool:
        """Return whether a tensor belongs to the tower."""
        bare = name.removeprefix("model.")
        return bare.startswith(("vision_model.", "multi_modal_projector."))

    def keys(self) -> dict[str, Value]:
        """Return the numbers of heads, layers and tiles, and the layers whose states are kept.

        Raises
        ------
        ModelError
            The picture's tiles differ from those that the processor makes.
        """
        tiles = self.own.uint("max_num_tiles")
        if (made := self.processor.uint("max_image_tiles", default=tiles)) != tiles:
            raise self.processor.error("max_image_tiles", f"is {made}, needs {tiles}")
        return {
            "vision.attention.head_count": self.own.uint("attention_heads"),
            "vision.attention.layer_norm_epsilon": self.own.number("norm_eps"),
            "vision.global.block_count": self.own.uint("num_global_layers"),
            "vision.intermediate_layers_indices": np.array(
                self.own.uints("intermediate_layers_indices")
            ),
            "vision.max_num_tiles": tiles,
        }
