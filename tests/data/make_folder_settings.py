"""What transformers makes of tiny random folders, for tests/files/huggingface/test_settings.py.

Needs torch and transformers 5.24: ``python tests/data/make_folder_settings.py``. A case is a class,
settings of its config.json, shapes of its tensors, and a few logits (states of an encoder); weights
are drawn by `drawn`, so that tests need neither package.
"""

import json
import logging
import re
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent
VOCABULARY, WIDTH, LAYERS = 114, 32, 3
TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, VOCABULARY, 24)]
ROWS, COLUMNS = [6, 15, 23], 6
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
LONG = {
    "rope_type": "longrope",
    "original_max_position_embeddings": 128,
    "short_factor": [1.0, 1.5, 2.0, 2.5],
    "long_factor": [1.0, 2.0, 3.0, 4.0],
}
FULL, PART = "full_attention", "sliding_attention"
QWEN = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHARED = {**EXPERTS, "shared_expert_intermediate_size": 24}
GEMMA = {"head_dim": 8, "query_pre_attn_scalar": 8, "sliding_window": 5}
DEEPSEEK = {
    "kv_lora_rank": 16, "q_lora_rank": None, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8,
    "v_head_dim": 8, "n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2,
    "moe_intermediate_size": 16, "num_key_value_heads": 4, "first_k_dense_replace": 1,
}  # fmt: skip
V3 = {**DEEPSEEK, "n_group": 1, "topk_group": 1}
LLAMA4 = {
    "intermediate_size_mlp": 40, "head_dim": 8, "num_local_experts": 4, "attention_chunk_size": 7,
}  # fmt: skip
GEMMA4 = {
    "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1, "sliding_window": 5,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
    "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0, "rope_theta": None,
}  # fmt: skip
GEMMA4_SMALL = {
    **GEMMA4, "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY,
    "num_kv_shared_layers": 1, "use_double_wide_mlp": True,
    "layer_types": ["sliding_attention", "full_attention", "full_attention"],
}  # fmt: skip
GEMMA3N = {
    "head_dim": 8, "sliding_window": 5, "num_kv_shared_layers": 1, "rope_theta": None,
    "hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": VOCABULARY,
    "laurel_rank": 6, "altup_num_inputs": 3,
}  # fmt: skip
GEMMA4_MIXED = {
    **GEMMA4, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
    "moe_intermediate_size": 16, "attention_k_eq_v": True, "final_logit_softcapping": 3.0,
}  # fmt: skip
LFM2 = {
    "layer_types": ["conv", "full_attention", "conv"], "norm_eps": 0.1, "block_multiple_of": 8,
    "rms_norm_eps": None, "hidden_act": None,
}  # fmt: skip
GPT2 = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4, "n_positions": 64}
_USUAL = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "intermediate_size": 48,
    "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
    "hidden_act": "silu", "tie_word_embeddings": False,
}  # fmt: skip
# A tower of one layer, whose weights are left out.
GLIMMER_TOWER = {
    "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
    "pos_emb_height": 2, "pos_emb_width": 2,
}  # fmt: skip


def glimmer(**settings: Any) -> dict[str, Any]:
    """Settings of Muse Glimmer, with those of its language model."""
    text = {**_USUAL, "head_dim": 8, "hidden_act": None, "sliding_window": 5, **settings}
    text = {name: value for name, value in text.items() if value is not None}
    return {
        "text_config": text, "vision_config": GLIMMER_TOWER, "out_hidden_size": 64,
        "projector_hidden_size": 16, "image_token_id": 112, "video_token_id": 113,
    }  # fmt: skip


# Name, class, settings: one for each that changes numbers, and siblings of other families.
CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("llama activation", "Llama", {"hidden_act": "relu"}),
    ("llama exact gelu", "Llama", {"hidden_act": "gelu"}),
    ("llama quick gelu", "Llama", {"hidden_act": "quick_gelu"}),
    ("llama sigmoid", "Llama", {"hidden_act": "sigmoid"}),
    ("llama without epsilon", "Llama", {"rms_norm_eps": None}),
    ("llama tied", "Llama", {"tie_word_embeddings": True}),
    ("llama biases", "Llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama head_dim", "Llama", {"head_dim": 16}),
    ("llama linear", "Llama", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    ("llama yarn", "Llama", {"rope_scaling": YARN}),
    ("yarn factor", "Llama", {"rope_scaling": {**YARN, "attention_factor": 2.0}}),
    ("yarn mscale", "Llama", {"rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.3}}),
    ("yarn one mscale", "Llama", {"rope_scaling": {**YARN, "mscale": 0.7}}),
    ("yarn whole", "Llama", {"rope_scaling": {**YARN, "truncate": False}}),
    ("yarn betas", "Llama", {"rope_scaling": {**YARN, "beta_fast": 8, "beta_slow": 0.5}}),
    ("yarn new", "Llama", {"rope_parameters": {**YARN, "rope_theta": 500.0}}),
    ("llama3 rope", "Llama", {"rope_scaling": LLAMA3}),
    ("long rope", "Llama", {"rope_scaling": LONG}),
    ("theta, new", "Llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}),
    ("mistral window", "Mistral", {"sliding_window": 5}),
    ("mistral without", "Mistral", {"sliding_window": None}),
    ("mixtral window", "Mixtral", {"sliding_window": 5, "num_local_experts": 4}),
    ("mixtral theta", "Mixtral", {"rope_theta": None, "num_local_experts": 4}),
    ("granite", "Granite", {"attention_multiplier": 0.2, "logits_scaling": 4.0, "head_dim": 16}),
    ("granite usual", "Granite", {"residual_multiplier": 0.5}),
    ("arcee activation", "Arcee", {"hidden_act": "silu"}),
    ("smollm3 layers", "SmolLM3", {"no_rope_layers": [1, 0, 1]}),
    ("smollm3 interval", "SmolLM3", {"no_rope_layer_interval": 2, "rope_theta": None}),
    (
        "smollm3 window",
        "SmolLM3",
        {"no_rope_layers": [1, 0, 1], "use_sliding_window": True, "sliding_window": 5},
    ),
    ("olmo clip", "Olmo", {"clip_qkv": 0.5}),
    (
        "olmo3 layers",
        "Olmo3",
        {"sliding_window": 5, "layer_types": [FULL, PART, PART], "rope_theta": None},
    ),
    (
        "olmo3 ropes",
        "Olmo3",
        {
            "sliding_window": 5,
            "rope_parameters": {FULL: {**YARN, "rope_theta": 1e4}, PART: {"rope_theta": 500.0}},
        },
    ),
    ("olmoe clip", "Olmoe", {"num_experts": 4, "num_experts_per_tok": 2, "clip_qkv": 0.5}),
    ("olmoe weights", "Olmoe", {**EXPERTS, "moe_intermediate_size": None, "norm_topk_prob": True}),
    ("seed-oss biases", "SeedOss", {"attention_out_bias": True, "head_dim": 16}),
    ("starcoder2 window", "Starcoder2", {"sliding_window": 5, "norm_epsilon": 1e-3}),
    ("starcoder2 activation", "Starcoder2", {"hidden_act": "gelu", "tie_word_embeddings": None}),
    ("ernie activation", "Ernie4_5", {"hidden_act": "relu", "use_bias": True, "head_dim": 8}),
    ("qwen2 windows", "Qwen2", QWEN),
    ("qwen2 layers", "Qwen2", {**QWEN, "layer_types": [PART, FULL, PART]}),
    ("qwen2 switched off", "Qwen2", {**QWEN, "use_sliding_window": False}),
    ("qwen3 windows", "Qwen3", {**QWEN, "head_dim": 16}),
    ("qwen2moe windows", "Qwen2Moe", {**SHARED, **QWEN}),
    ("qwen2moe weights", "Qwen2Moe", {**SHARED, "norm_topk_prob": True}),
    ("qwen3moe weights", "Qwen3Moe", {**EXPERTS, "norm_topk_prob": True}),
    ("qwen3moe raw weights", "Qwen3Moe", {**EXPERTS, "norm_topk_prob": False}),
    ("qwen3moe windows", "Qwen3Moe", {**EXPERTS, **QWEN}),
    ("gemma untied", "Gemma", {"head_dim": 8, "tie_word_embeddings": False, "rope_theta": 500.0}),
    ("gemma activation", "Gemma", {"head_dim": 8, "hidden_act": "relu"}),
    ("gemma2 layers", "Gemma2", {**GEMMA, "layer_types": [FULL, PART, PART]}),
    ("gemma2 scale", "Gemma2", {**GEMMA, "query_pre_attn_scalar": 20}),
    ("gemma2 caps", "Gemma2", {**GEMMA, "attn_logit_softcapping": 1.0}),
    ("gemma2 without caps", "Gemma2", {**GEMMA, "attn_logit_softcapping": None}),
    ("gemma3 layers", "Gemma3", {**GEMMA, "layer_types": [PART, FULL, PART]}),
    ("gemma3 pattern", "Gemma3", {**GEMMA, "sliding_window_pattern": 2}),
    ("gemma3 untied", "Gemma3", {**GEMMA, "tie_word_embeddings": False}),
    ("gemma3 scale", "Gemma3", {**GEMMA, "query_pre_attn_scalar": 20}),
    ("gemma3 bases", "Gemma3", {**GEMMA, "rope_local_base_freq": 500.0, "rope_theta": 1e5}),
    ("gpt2 untied", "GPT2", {**GPT2, "tie_word_embeddings": False}),
    ("gpt2 scores", "GPT2", {**GPT2, "scale_attn_weights": False}),
    ("gpt2 by layer", "GPT2", {**GPT2, "scale_attn_by_inverse_layer_idx": True}),
    ("gpt2 activation", "GPT2", {**GPT2, "activation_function": "relu"}),
    ("starcoder activation", "GPTBigCode", {**GPT2, "activation_function": "gelu"}),
    (
        "gpt-oss limits",
        "GptOss",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "head_dim": 8,
            "sliding_window": 5,
            "swiglu_limit": 1.0,
            "swiglu_alpha": 1.2,
            "layer_types": [FULL, PART, PART],
            "rope_scaling": {**YARN, "truncate": False},
        },
    ),
    (
        "gpt-oss usual rope",
        "GptOss",
        {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 8, "rope_scaling": None},
    ),
    ("phi share", "Phi", {"partial_rotary_factor": 1.0, "rope_theta": 500.0}),
    ("phi tied", "Phi", {"tie_word_embeddings": True}),
    ("phi3 window", "Phi3", {"sliding_window": 5}),
    ("phi3 long", "Phi3", {"rope_scaling": LONG, "original_max_position_embeddings": 128}),
    ("stablelm activation", "StableLm", {"hidden_act": "relu", "partial_rotary_factor": 0.5}),
    ("nemotron yarn", "Nemotron", {"rope_scaling": YARN, "partial_rotary_factor": 1.0}),
    ("command-r linear", "Cohere", {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    ("command-r untied", "Cohere", {"tie_word_embeddings": False, "logit_scale": 0.5}),
    ("cohere2 layers", "Cohere2", {"sliding_window": 5, "layer_types": [FULL, PART, PART]}),
    ("cohere2 all full", "Cohere2", {"sliding_window": 5, "layer_types": [FULL] * 3}),
    ("deepseek2 yarn", "DeepseekV2", {**DEEPSEEK, "rope_scaling": YARN}),
    (
        "deepseek2 mscale",
        "DeepseekV2",
        {**DEEPSEEK, "rope_scaling": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}},
    ),
    ("deepseek3 weights", "DeepseekV3", {**V3, "norm_topk_prob": None}),
    ("deepseek3 raw weights", "DeepseekV3", {**V3, "norm_topk_prob": False}),
    ("deepseek3 epsilon", "DeepseekV3", {**V3, "rms_norm_eps": 0.1}),
    ("exaone4 layers", "Exaone4", {"sliding_window": 5, "layer_types": [FULL, PART, FULL]}),
    ("exaone4 without", "Exaone4", {"sliding_window": None, "layer_types": [FULL] * 3}),
    ("glimmer usual", "MuseGlimmer", glimmer()),
    (
        "glimmer settings",
        "MuseGlimmer",
        glimmer(
            layer_types=[FULL, PART, PART],
            layer_rope_theta=[0, 10000.0, 10000.0],
            qk_scale_factor=1.5,
            output_multiplier=0.5,
            final_logit_softcapping=3.0,
            hidden_activation="relu",
        ),
    ),
    ("glm4 share", "Glm4", {"head_dim": 16, "partial_rotary_factor": 1.0, "attention_bias": True}),
    ("neox activation", "GPTNeoX", {"hidden_act": "relu", "rotary_pct": 0.5}),
    ("neox share", "GPTNeoX", {"rope_parameters": {"partial_rotary_factor": 1.0}}),
    ("falcon activation", "Falcon", {"activation": "relu", "tie_word_embeddings": False}),
    ("falcon yarn", "Falcon", {"rope_scaling": YARN, "max_position_embeddings": None}),
    ("llama4", "Llama4", {**LLAMA4, "interleave_moe_layer_step": 2}),
    ("llama4 without norms", "Llama4", {**LLAMA4, "use_qk_norm": False}),
    ("gemma4 inputs of layers", "Gemma4", GEMMA4_SMALL),
    ("gemma4 experts", "Gemma4", GEMMA4_MIXED),
    ("gemma3n usual", "Gemma3n", GEMMA3N),
    (
        "gemma3n layers",
        "Gemma3n",
        {
            **GEMMA3N,
            "layer_types": [FULL, PART, FULL],
            "intermediate_size": [48, 40, 56],
            "activation_sparsity_pattern": [0.0, 0.0, 0.0],
            "altup_active_idx": 1,
            "final_logit_softcapping": 2.0,
        },
    ),
    ("lfm2 widths", "Lfm2", LFM2),
    ("lfm2 as it is", "Lfm2", {**LFM2, "block_auto_adjust_ff_dim": False, "conv_L_cache": 4}),
    ("falcon mamba epsilons", "FalconMamba", {"layer_norm_epsilon": 0.1, "mixer_rms_eps": 1e-2}),
    ("bert activation", "Bert", {"hidden_act": "relu"}),
]
_KEPT = {
    "GPT2": ("vocab_size",), "GPTBigCode": ("vocab_size",),
    "FalconMamba": ("vocab_size", "hidden_size", "num_hidden_layers"), "MuseGlimmer": (),
}  # fmt: skip
_OTHERS = {
    "Bert": "BertModel", "GPT2": "GPT2LMHeadModel",
    "MuseGlimmer": "MuseGlimmerForConditionalGeneration",
}  # fmt: skip
_ACTIVATIONS = ("Gemma2", "Gemma3", "GptOss", "Falcon")  # named otherwise, or fixed


def config_of(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """A config.json; a setting of None is left out, but for those whose null means something."""
    usual = {k: v for k, v in _USUAL.items() if k in _KEPT.get(kind, _USUAL)}
    if kind in _ACTIVATIONS or kind.startswith("Gemma"):
        usual.pop("hidden_act", None)
    if kind.startswith("Gemma"):
        usual.pop("tie_word_embeddings", None)
    if kind == "Bert":
        usual.pop("num_key_value_heads")
    if "rope_parameters" in settings:
        usual.pop("rope_theta", None)
    nulls = ("sliding_window", "attn_logit_softcapping", "q_lora_rank")
    made = {**usual, **settings}
    made = {k: v for k, v in made.items() if v is not None or k in nulls}
    ids = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}
    return {"architectures": [_OTHERS.get(kind, f"{kind}ForCausalLM")], **ids, **made}


def drawn(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Values of a parameter: those of a name are always the same."""
    rng = np.random.default_rng(zlib.crc32(name.encode()))
    if len(shape) == 1:
        return rng.uniform(0.2, 1.2, shape).astype(np.float32)
    return (rng.standard_normal(shape) * 1.2 / shape[-1] ** 0.5).astype(np.float32)


def collapsed(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """Shapes with one entry for all layers, where these have the same tensors."""
    made: dict[str, list[int]] = {}
    for name, shape in shapes.items():
        starred = re.sub(r"\.(\d+)\.", ".*.", name, count=1)
        of_all = [shapes.get(starred.replace("*", str(i), 1)) for i in range(LAYERS)]
        made[starred if of_all == [shape] * LAYERS else name] = shape
    return made


def recorded(kind: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Shapes and results of one case."""
    import torch
    import transformers
    from safetensors.numpy import load_file

    config = config_of(kind, settings)
    made = getattr(transformers, config["architectures"][0])
    known = made.config_class
    if kind == "Gemma3":
        known = transformers.Gemma3TextConfig
    values = {k: v for k, v in config.items() if k != "architectures"}
    model = made(known.from_dict(json.loads(json.dumps(values))))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        path = Path(folder) / "model.safetensors"
        tensors = {name: drawn(name, x.shape) for name, x in load_file(path).items()}
        from safetensors.numpy import save_file

        save_file(tensors, path, {"format": "pt"})
        full = json.loads((Path(folder) / "config.json").read_text())
        written = {**values, "model_type": full["model_type"]}
        (Path(folder) / "config.json").write_text(json.dumps(written))
        loaded = known.from_pretrained(folder)
        model = made.from_pretrained(folder, config=loaded, attn_implementation="eager").float()
    with torch.no_grad():
        found = model.eval()(torch.tensor([TOKENS]))
    values = (found.last_hidden_state if kind == "Bert" else found.logits)[0]
    rows = values[ROWS, :COLUMNS].double().numpy()
    return {
        "shapes": collapsed({name: list(x.shape) for name, x in tensors.items()}),
        "rows": [[float(f"{x:.7g}") for x in row] for row in rows],
    }


def main() -> None:
    """Write the file."""
    logging.disable(logging.CRITICAL)
    lines = [
        f"{json.dumps(name)}: {json.dumps(recorded(kind, settings))}"
        for name, kind, settings in CASES
    ]
    (HERE / "folder_settings.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
