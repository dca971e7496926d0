"""Settings that several families share: layer counts, windows, activations."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from wgpu_backend.files.gguf.config import Value
from wgpu_backend.files.huggingface.settings import Settings

_FULL, _SLIDING = "full_attention", "sliding_attention"
# Names of nn.mlp.ACTIVATIONS by those of transformers.
_ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu", "swish": "silu", "relu": "relu", "relu2": "relu2", "tanh": "tanh",
    "sigmoid": "sigmoid", "linear": "linear", "quick_gelu": "gelu_quick",
    "gelu": "gelu_erf", "gelu_python": "gelu_erf",
    "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu", "gelu_accurate": "gelu",
}  # fmt: skip
# Settings for training, for generation, and for implementation choices of transformers.
_HARMLESS = frozenset((
    "_attn_implementation", "_attn_implementation_autoset", "_name_or_path", "adapters",
    "architectures", "attention_dropout", "attention_probs_dropout_prob",
    "attention_softmax_in_fp32", "attn_cfg", "attn_implementation", "attn_layer_idx",
    "attn_pdrop", "attn_softmax_bf16", "auto_map", "aux_loss_alpha", "begin_suppress_tokens",
    "boi_token_index", "bos_token_id", "cache_implementation", "chunk_size",
    "chunk_size_feed_forward", "classifier_dropout", "cross_attention_hidden_size",
    "decoder_start_token_id", "directionality", "do_sample", "dtype", "embd_pdrop",
    "embedding_dropout", "eoi_token_index", "eos_token_id", "ep_size", "finetuning_task",
    "fused_add_norm", "fused_rms_norm", "gradient_checkpointing", "hidden_dropout",
    "hidden_dropout_prob", "id2label", "image_token_id", "image_token_index", "inference_runner",
    "initializer_cutoff_factor", "initializer_range", "is_encoder_decoder", "is_llama_config",
    "label2id", "mask_token_id", "max_batch_size", "max_length", "max_sequence_length",
    "min_length", "mm_tokens_per_image", "model_type", "n_ctx", "norm_before_gate", "num_labels",
    "num_nextn_predict_layers", "num_return_sequences", "output_attentions",
    "output_hidden_states", "output_past", "output_router_logits", "pad_key_length",
    "pad_token_id", "pad_vocab_size_multiple", "pooler_fc_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "pre_allocate_kv_cache",
    "prefix", "pretraining_tp", "problem_type", "quantization_config", "reorder_and_upcast_attn",
    "rescale_prenorm_residual", "resid_dropout", "resid_pdrop", "residual_dropout",
    "residual_in_fp32", "return_dict", "return_dict_in_generate", "rms_norm", "rope_parameters",
    "rope_scaling", "rope_theta", "router_aux_loss_coef", "router_jitter_noise",
    "router_z_loss_coef", "scale_attention_softmax_in_fp32", "sep_token_id", "seq_aux",
    "seq_length", "slow_but_exact", "ssm_cfg", "summary_activation", "summary_first_dropout",
    "summary_proj_to_labels", "summary_type", "summary_use_proj", "suppress_tokens",
    "task_specific_params", "temperature", "text_config", "tie_encoder_decoder",
    "time_step_floor", "time_step_init_scheme", "time_step_max", "time_step_min",
    "time_step_scale", "tokenizer_class", "torch_dtype", "torchscript", "training_dtype",
    "transformers.js_config", "transformers_version", "unk_token_id", "unsloth_fixed",
    "unsloth_version", "use_associative_scan", "use_bfloat16", "use_cache", "use_mamba_kernels",
    "use_mambapy", "use_return_dict", "validate_runner_input", "video_token_id", "vision_config",
    "vision_end_token_id", "vision_start_token_id", "vocab_size",
    # Settings of towers and their projectors, which `tower.TowerFamily` reads.
    "downsample_ratio", "image_end_token_id", "image_grid_pinpoints", "image_seq_length",
    "query_num", "version", "slice_config", "slice_mode", "use_image_id", "image_feature_size",
    "drop_vision_last_layer", "vision_batch_size", "media_placeholder_token_id",
    "projection_hidden_size", "projection_layer_norm_eps",
    "image_start_token_id", "multimodal_projector_bias", "projector_hidden_act", "scale_factor",
    "spatial_merge_size", "video_end_token_id", "video_start_token_id", "vision_feature_layer",
    "vision_feature_select_strategy",
))  # fmt: skip
_ROPE_HARMLESS = frozenset(("rope_type", "type", "finetuned", "local_theta", "rope_theta"))


def layer_count(settings: Settings) -> int:
    """Return the number of layers of a model."""
    return settings.uint("num_hidden_layers", "n_layer", "num_layers", "n_layers")


def find_sliding(settings: Settings, usual: Callable[[int], bool]) -> list[bool]:
    """Return which layers have a window, by ``layer_types`` or else by a rule.

    Raises
    ------
    ModelError
        ``layer_types`` has another length than there are layers, or unknown kinds.
    """
    count = layer_count(settings)
    if "layer_types" not in settings:
        return [usual(i) for i in range(count)]
    kinds = settings.texts("layer_types")
    wrong = next((kind for kind in kinds if kind not in (_FULL, _SLIDING)), None)
    if wrong is not None or len(kinds) != count:
        said = f"names {wrong!r}" if wrong is not None else f"has {len(kinds)} values"
        raise settings.error("layer_types", f"{said}, needs {_FULL} or {_SLIDING} {count} times")
    return [kind == _SLIDING for kind in kinds]


def window_keys(settings: Settings, slides: Sequence[bool]) -> dict[str, Value]:
    """Return the keys of windows, if some layers have one."""
    if not any(slides):
        return {}
    return {
        "attention.sliding_window": settings.uint("sliding_window"),
        "attention.sliding_window_pattern": bools(slides),
    }


def all_slide(settings: Settings) -> list[bool]:
    """Return a window for every layer, if there is a ``sliding_window``."""
    return [True] * layer_count(settings) if settings.value("sliding_window") else []


def bools(values: Iterable[bool]) -> Value:
    """Return an array of truth values, as in GGUF files."""
    return np.array(list(values), np.bool)


def activation_key(settings: Settings, names: Sequence[str], usual: str) -> dict[str, Value]:
    """Return the key of the activation, if it is not the architecture's usual one.

    Raises
    ------
    ModelError
        The activation is unknown.
    """
    if settings.value(*names) is None:
        return {}
    asked = settings.text(*names)
    if asked not in _ACTIVATIONS:
        name = next(name for name in names if name in settings)
        known = ", ".join(_ACTIVATIONS)
        raise settings.error(name, f"is {asked!r}, known activations are {known}")
    made = _ACTIVATIONS[asked]
    return {} if made == usual else {"feed_forward_activation": made}


def warn_unread(settings: Settings, rope: Settings, harmless: Iterable[str]) -> None:
    """Warn of keys that no code has read and that are not known to be harmless."""
    known = _HARMLESS.union(harmless)
    for part, names in ((settings, known), (rope, _ROPE_HARMLESS)):
        unread = [name for name in part.unread() if name not in names and not name.startswith("_")]
        if unread:
            which = ", ".join(map(repr, unread))
            keys = "keys" if len(unread) > 1 else "key"
            warnings.warn(f"{part.source}: {keys} {which} not followed", stacklevel=4)
