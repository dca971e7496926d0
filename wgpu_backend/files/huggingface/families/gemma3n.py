"""Gemma 3n, whose norms multiply by their weights."""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.families.gemma4 import ENDS
from wgpu_backend.files.huggingface.families.llama import ATTENTION, MLP, Decoder
from wgpu_backend.files.huggingface.family import Names, family, make_names
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.files.huggingface.shared_settings import find_sliding, layer_count
from wgpu_backend.files.huggingface.values import Rows, Values

LAYER: Names = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
    "altup.correct_output_scale": "altup_correct_scale",
    "altup.correction_coefs": "altup_correct_coef",
    "altup.prediction_coefs": "altup_predict_coef",
    "altup.modality_router": "altup_router",
    "altup.router_norm": "altup_router_norm",
    "laurel.linear_left": "laurel_l",
    "laurel.linear_right": "laurel_r",
    "laurel.post_laurel_norm": "laurel_post_norm",
    "per_layer_input_gate": "inp_gate",
    "per_layer_projection": "proj",
    "post_per_layer_input_norm": "post_norm",
}
# Matrices of the states but the first, each of a tensor of its own.
_STATES = re.compile(r"(altup_projections|altup_unembed_projections)\.(\d+)\.weight")
_STACKS = {
    "altup_projections": "altup_proj.weight",
    "altup_unembed_projections": "altup_unembd_proj.weight",
}
# Of values of the feed-forward network in the first layers of published models.
_SPARSE, _SPARSE_LAYERS = 0.95, 10


def _repeat_first(x: Values, rows: int) -> Values:
    """Pad a table with copies of its first row, which the model looks up for other tokens."""

    def read(begin: int, end: int) -> Rows:
        own = x.read(min(begin, x.rows), min(end, x.rows))
        more = end - begin - len(own)
        return np.concatenate([own, x.read(0, 1).repeat(more, axis=0)]) if more else own

    return x if x.rows >= rows else Values((rows, x.cols), x.dtype, read)


@family("Gemma3nForConditionalGeneration", "Gemma3nForCausalLM")
class Gemma3n(Decoder):
    """Gemma 3n: several hidden states per token (AltUp), and an embedding per layer."""

    architecture = "gemma3n"
    activation = None
    has_local_rope = True
    useless = r"^(model\.)?(vision_tower|audio_tower|embed_vision|embed_audio)\."
    names: ClassVar[Names] = make_names(ENDS, ATTENTION, MLP, LAYER)
    needed: ClassVar[Mapping[str, object]] = {
        "attention_bias": False,
        "altup_correct_scale": True,
        "hidden_activation": "gelu_pytorch_tanh",
    }
    harmless = (
        "hidden_act", "altup_coef_clip", "laurel_rank", "audio_config", "audio_token_id",
        "boa_token_id", "boi_token_id", "eoa_token_id", "eoi_token_id", "image_token_id",
        "audio_soft_tokens_per_image", "vision_soft_tokens_per_image", "vocab_size_per_layer_input",
    )  # fmt: skip
    defaults: ClassVar[Mapping[str, object]] = {
        "rms_norm_eps": 1e-6, "head_dim": 256, "tie_word_embeddings": True,
        "sliding_window": 512, "max_position_embeddings": 32768, "intermediate_size": 16384,
        "num_hidden_layers": 35, "num_attention_heads": 8, "num_key_value_heads": 2,
        "hidden_size": 2048, "vocab_size": 262400,
    }  # fmt: skip
    default_rope: ClassVar[Mapping[str, object]] = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    }

    def __init__(self, settings: Settings, class_name: str) -> None:
        super().__init__(settings, class_name)
        s, name = self.settings, "intermediate_size"
        count, is_list = layer_count(s), isinstance(s.value(name), list)
        self.inner = s.uints(name) if is_list else [s.uint(name)] * count
        if len(self.inner) != count:
            raise s.error(name, f"has {len(self.inner)} values, needs {count}")
        # Other families have one number, so it is no common key here.
        left = {key: value for key, value in s.values.items() if key != name}
        self.settings = Settings(s.source, left, s.asked)

    def slides(self) -> list[bool]:
        """Return the layers with a window: all but each fifth, unless config.json lists them."""
        return find_sliding(self.settings, lambda i: (i + 1) % 5 != 0)

    def rename(self, name: str, values: Values) -> list[tuple[str, int | None, Values]]:
        """Return the GGUF tensors of a tensor; per-layer embeddings get a row for every token."""
        bare = self.bare(name)
        if found := _STATES.fullmatch(bare):
            return [(_STACKS[found[1]], int(found[2]), values)]
        if bare == "embed_tokens_per_layer.weight":
            values = _repeat_first(values, self.settings.uint("vocab_size"))
        return super().rename(name, values)

    def keys(self) -> dict[str, Value]:
        """Return keys of AltUp, shared KV layers, per-layer embeddings and activation sparsity."""
        s = self.settings
        return {
            "altup.num_inputs": s.uint("altup_num_inputs", default=4),
            "altup.active_idx": s.uint("altup_active_idx", default=0),
            "attention.shared_kv_layers": s.uint("num_kv_shared_layers", default=15),
            "embedding_length_per_layer_input": s.uint("hidden_size_per_layer_input", default=256),
            "feed_forward_length": np.array(self.inner, np.int32),
            "final_logit_softcapping": s.number("final_logit_softcapping", default=30.0),
            "activation_sparsity_scale": self._zeros(),
        }

    def _zeros(self) -> Any:  # noqa: ANN401
        """Return how many standard deviations above the mean a share of the values lies below."""
        s, count = self.settings, layer_count(self.settings)
        sparse = _SPARSE_LAYERS if count > _SPARSE_LAYERS else 0
        usual = [_SPARSE] * sparse + [0.0] * (count - sparse)
        shares = usual
        if s.value("activation_sparsity_pattern") is not None:
            shares = s.numbers("activation_sparsity_pattern")
        if len(shares) != count or not all(0 <= share < 1 for share in shares):
            raise s.error("activation_sparsity_pattern", f"needs {count} shares from 0 to below 1")
        made = [NormalDist().inv_cdf(share) if share else -np.inf for share in shares]
        return np.array(made, np.float32)
