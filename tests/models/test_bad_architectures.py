"""Files that do not fit their architecture: one line names key or weight, and both numbers."""

import copy

import pytest

import wgpu_backend
from tests.models.outlines import outlines, written
from wgpu_backend.errors import ContextFull, ModelError

OUTLINES = outlines()


def changed(path, name, *, weights=None, **keys):
    """File of an outline with other keys and shapes of weights; None leaves one out."""
    outline = copy.deepcopy(OUTLINES[name])
    architecture = outline["architecture"]
    for part, changes in (("keys", keys), ("weights", weights or {})):
        for key, value in changes.items():
            full = key if part == "weights" else f"{architecture}.{key.replace('__', '.')}"
            outline[part].pop(full, None)
            if value is not None:
                outline[part][full] = value
    return written(path, outline)


@pytest.mark.parametrize(
    ("name", "keys", "said"),
    [
        (
            "qwen2moe",
            {"expert_used_count": 9},
            "9 of 8 experts, in 1 of 1 groups; needs at most as many",
        ),
        (
            "qwen2moe",
            {"expert_count": 6},
            r"ffn_gate_inp.weight is \(8, 64\), the file's keys require",
        ),
        ("qwen2moe", {"expert_count": None}, "'qwen2moe.expert_count' is missing"),
        ("qwen2moe", {"expert_gating_func": 9}, "expert_gating_func is 9, needs 1 to 3"),
        ("qwen2moe", {"expert_group_count": 3}, "in 3 of 3 groups; needs .* groups of equal size"),
        ("qwen2moe", {"block_count": 3}, "it has 2 layers, block_count is 3"),
        ("qwen2moe", {"attention__head_count": 1}, "head_count is 1, needs .*head_count_kv, .* 2"),
        (
            "qwen2moe",
            {"rope__dimension_count": 3},
            "gguf: rope.dimension_count is 3, needs an e",
        ),
        ("qwen2moe", {"rope__freq_base": 0.0}, "gguf: rope.freq_base is 0.0, needs more than 0"),
        (
            "qwen2moe",
            {"expert_feed_forward_length": 31},
            r"\(8, 64, 32\), .* require \(8, 64, 31\)",
        ),
        ("gemma2", {"attention__key_length": 32}, r"attn_q.weight is \(256, 64\), the file's"),
        ("gemma2", {"attention__sliding_window_pattern": [True]}, "has 1 values, the model has 4"),
        ("gemma2", {"attention__layer_norm_rms_epsilon": None}, "layer_norm_rms_epsilon' is miss"),
        ("gemma4", {"attention__shared_kv_layers": 6}, "of 8 and no keys; none of the first 0 lay"),
        ("gemma4", {"embedding_length_per_layer_input": 16}, r"per_layer_.* is .*, the file's"),
        ("gemma4", {"attention__key_length_swa": 32}, r"q_norm.weight is \(64,\), the file's"),
        ("gemma3n", {"activation_sparsity_scale": None}, "activation_sparsity_scale' is missing"),
        ("gemma3n", {"altup__active_idx": 4}, "altup.active_idx.* is 4, .* at most 3"),
        ("apertus", {"feed_forward_length": "a"}, "is a string .'a'., needs an unsigned integer"),
        (
            "olmo2",
            {"attention__head_count": 2},
            r"attn_k_norm.weight is \(32,\), .* require \(64,\)",
        ),
        (
            "modern-bert",
            {"hidden_activation": "tanh"},
            "hidden_activation is 'tanh', needs one of ge",
        ),
        (
            "t5encoder",
            {"attention__relative_buckets_count": 16},
            r"\(32, 4\), .* require \(16, 4\)",
        ),
        ("t5encoder", {"attention__relative_buckets_count": None}, "buckets_count' is missing"),
        ("phi3-longrope", {"rope__dimension_count": 8}, r"\(6,\) factors, 4 pairs are rotated"),
    ],
)
def test_a_key_that_does_not_fit_is_named(tmp_path, name, keys, said):
    path = changed(tmp_path / "model.gguf", name, **keys)
    with pytest.raises((ModelError, ValueError), match=said):
        wgpu_backend.load(path, device="cpu").close()


@pytest.mark.parametrize(
    ("name", "weights", "said"),
    [
        ("qwen3", {"blk.1.attn_q_norm.weight": None}, "blk.1.attn_q_norm is missing, SelfAttent"),
        (
            "olmo2",
            {"blk.0.attn_q_norm.weight": [16]},
            r"is \(16,\), the file's keys require \(64,",
        ),
        (
            "llama",
            {"blk.0.gate_of_another": [4]},
            "unexpected tensor blk.0.gate_of_another for arch",
        ),
        ("gpt2", {"position_embd.weight": None}, "position_embd is missing, GPT2.position_embed"),
        ("phi3", {"blk.0.ffn_up.weight": [96, 64]}, "blk.0.ffn_gate is missing, MLP.gate needs it"),
        (
            "qwen2moe",
            {"blk.0.ffn_up_exps.weight": None},
            "ffn_up_exps is missing, Experts.up needs",
        ),
        (
            "deepseek3",
            {"blk.0.attn_k_b.weight": [4, 64, 8]},
            r"\(4, 64, 8\), the file's keys require",
        ),
    ],
)
def test_a_weight_that_does_not_fit_is_named(tmp_path, name, weights, said):
    path = changed(tmp_path / "model.gguf", name, weights=weights)
    with pytest.raises(ModelError, match=said):
        wgpu_backend.load(path, device="cpu").close()


def test_learned_positions_bound_the_context(tmp_path):
    path = changed(tmp_path / "model.gguf", "gpt2")
    with pytest.raises(ContextFull, match="num_ctx: 65, the model knows 1 to 64"):
        wgpu_backend.load(path, device="cpu", num_ctx=65)
    with wgpu_backend.load(path, device="cpu") as model:
        assert model.num_ctx == 64
