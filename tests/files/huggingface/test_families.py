"""Families of folders: their names are mapped to those of GGUF files and models."""

import json

import gguf
import numpy as np
import pytest

import wgpu_backend as wb
from tests.files.huggingface.folders import LLAMA, VOCABULARY, llama_tensors, write_folder
from wgpu_backend.errors import ModelError
from wgpu_backend.files.huggingface.family import families, find_family
from wgpu_backend.files.huggingface.folder import open_folder
from wgpu_backend.files.huggingface.settings import Settings
from wgpu_backend.nn.model import architectures

FAMILIES = families()
KNOWN = {name.replace("{bid}", "*") for name in gguf.TENSOR_NAMES.values()}
# The names of Ollama's converter for Llama 3.2 Vision, which llama.cpp does not have.
KNOWN |= {f"blk.*.cross_attn_{part}_proj" for part in "qkvo"}
KNOWN |= {f"blk.*.cross_attn_{part}" for part in ("q_norm", "k_norm", "attn_gate", "mlp_gate")}


@pytest.mark.parametrize("name", FAMILIES)
def test_architectures_and_tensors_have_names_of_gguf_files(name):
    family = FAMILIES[name]
    assert family.architecture in architectures()
    targets = {
        to for made in family.names.values() for to in ([made] if isinstance(made, str) else made)
    }
    assert targets <= KNOWN


def read(folder, name):
    info = folder.tensors[name]
    return np.frombuffer(folder.data(name), "<f4").reshape(info.shape)


def made(tmp_path, tensors, **config):
    folder = write_folder(tmp_path / "a", tensors, {"num_hidden_layers": 1, **config})
    return open_folder(folder)


def ends(rng, table):
    return {table: rng.standard_normal((len(VOCABULARY), 32), "f4")}


def test_latents_make_keys_and_values_apart(tmp_path, rng):
    both = rng.standard_normal((4 * (6 + 5), 8), "f4")
    foreseeing = rng.standard_normal((44, 8), "f4")
    tensors = {
        **ends(rng, "model.embed_tokens.weight"),
        "model.layers.0.self_attn.kv_b_proj.weight": both,
        "model.layers.0.mlp.gate.e_score_correction_bias": rng.standard_normal(3, "f4"),
        "model.layers.1.self_attn.kv_b_proj.weight": foreseeing,
    }
    sizes = {"kv_lora_rank": 8, "qk_rope_head_dim": 2, "qk_nope_head_dim": 6, "v_head_dim": 5}
    with made(
        tmp_path,
        tensors,
        architectures=["DeepseekV3ForCausalLM"],
        moe_intermediate_size=4,
        **sizes,
    ) as folder:
        heads = both.reshape(4, 11, 8)
        np.testing.assert_array_equal(
            read(folder, "blk.0.attn_k_b.weight"), heads[:, :6].swapaxes(1, 2)
        )
        np.testing.assert_array_equal(read(folder, "blk.0.attn_v_b.weight"), heads[:, 6:])
        assert "blk.0.exp_probs_b.bias" in folder.tensors
        assert not [name for name in folder.tensors if name.startswith("blk.1.")]
        assert folder.config.uint("attention.key_length") == 10
        assert folder.config.uint("attention.key_length_mla") == 8
        assert folder.config.uint("expert_gating_func") == 2


def test_gemma_3n_has_stacks_of_matrices_and_tables_of_one_length(tmp_path, rng):
    states = rng.standard_normal((2, 3, 32, 32), "f4")
    table = rng.standard_normal((len(VOCABULARY) - 9, 2 * 8), "f4")
    tensors = {
        **ends(rng, "model.language_model.embed_tokens.weight"),
        "model.language_model.embed_tokens_per_layer.weight": table,
        "model.vision_tower.timm_model.conv_stem.conv.weight": rng.standard_normal((2, 2), "f4"),
        "model.embed_audio.embedding.weight": rng.standard_normal((2, 2), "f4"),
    }
    for kind, own in zip(("projections", "unembed_projections"), states, strict=True):
        for number, matrix in enumerate(own):
            tensors[f"model.language_model.altup_{kind}.{number}.weight"] = matrix
    for layer in range(12):
        name = f"model.language_model.layers.{layer}.laurel.post_laurel_norm.weight"
        tensors[name] = rng.standard_normal(32, "f4")
    text = {
        "hidden_size": 32, "num_hidden_layers": 12, "vocab_size": len(VOCABULARY),
        "intermediate_size": 48, "hidden_size_per_layer_input": 8, "num_attention_heads": 4,
        "vocab_size_per_layer_input": len(table),
    }  # fmt: skip
    config = {"architectures": ["Gemma3nForConditionalGeneration"], "text_config": text}
    with open_folder(write_folder(tmp_path / "a", tensors, config)) as folder:
        np.testing.assert_array_equal(read(folder, "altup_proj.weight"), states[0])
        np.testing.assert_array_equal(read(folder, "altup_unembd_proj.weight"), states[1])
        # transformers looks up tokens of towers as token 0.
        longer = np.concatenate([table, table[:1].repeat(9, axis=0)])
        np.testing.assert_array_equal(read(folder, "per_layer_token_embd.weight"), longer)
        assert len(folder.tensors) == 4 + 12
        scales = folder.config.floats("activation_sparsity_scale")
        assert scales[:10] == pytest.approx([1.6448536] * 10)
        assert [*scales[10:]] == [-np.inf] * 2
        assert folder.config.uint("attention.shared_kv_layers") == 15
        found = folder.config.bools("attention.sliding_window_pattern", 12)
        assert [i for i, slides in enumerate(found) if not slides] == [4, 9]
    for wrong, said in (
        ({"intermediate_size": [48]}, "has 1 values, needs 12"),
        ({"activation_sparsity_pattern": [0.5] * 11}, "needs 12 shares"),
        ({"activation_sparsity_pattern": [1.0] * 12}, "needs 12 shares from 0 to below 1"),
        ({"altup_correct_scale": False}, "is False, needs True"),
    ):
        path = write_folder(tmp_path / said, tensors, {**config, "text_config": {**text, **wrong}})
        with pytest.raises(ModelError, match=said):
            open_folder(path)


def test_heads_of_a_matrix_are_put_apart_and_biases_with_them(tmp_path, rng):
    matrix, bias = rng.standard_normal((96, 32), "f4"), rng.standard_normal(96, "f4")
    start = "gpt_neox.layers.0.attention.query_key_value"
    tensors = {
        **ends(rng, "gpt_neox.embed_in.weight"),
        f"{start}.weight": matrix,
        f"{start}.bias": bias,
    }
    with made(tmp_path, tensors, architectures=["GPTNeoXForCausalLM"], rotary_pct=0.5) as folder:
        order = np.arange(96).reshape(4, 3, 8).swapaxes(0, 1).reshape(-1)
        np.testing.assert_array_equal(read(folder, "blk.0.attn_qkv.weight"), matrix[order])
        np.testing.assert_array_equal(read(folder, "blk.0.attn_qkv.bias"), bias[order])
        assert folder.config.uint("rope.dimension_count") == 4


@pytest.mark.parametrize("section", [{}, {"rope_theta": 7.0, "partial_rotary_factor": 1.0}])
@pytest.mark.parametrize("own", [{}, {"rotary_emb_base": 5.0, "rotary_pct": 0.5}])
def test_gpt_neox_has_own_names_of_rotary_settings(tmp_path, rng, section, own):
    config = {"rope_theta": 3.0, "partial_rotary_factor": 0.75, **own}
    if section:
        config["rope_parameters"] = {"rope_type": "default", **section}
    matrix = {"gpt_neox.layers.0.attention.query_key_value.weight": np.ones((96, 32), "f4")}
    tensors = {**ends(rng, "gpt_neox.embed_in.weight"), **matrix}
    with made(tmp_path, tensors, architectures=["GPTNeoXForCausalLM"], **config) as folder:
        base = section.get("rope_theta", own.get("rotary_emb_base", 10_000.0))
        share = section.get("partial_rotary_factor", own.get("rotary_pct", 0.25))
        assert folder.config.float("rope.freq_base", default=10_000.0) == base
        assert folder.config.uint("rope.dimension_count") == int(8 * share)


def test_scans_have_rates_and_no_suffix(tmp_path, rng):
    start = "backbone.layers.0.mixer"
    tensors = {
        **ends(rng, "backbone.embeddings.weight"),
        f"{start}.A_log": rng.standard_normal(4, "f4"),
        f"{start}.D": rng.standard_normal(4, "f4"),
        f"{start}.dt_bias": rng.standard_normal(4, "f4"),
        f"{start}.conv1d.weight": rng.standard_normal((6, 1, 4), "f4"),
        f"{start}.conv1d.bias": rng.standard_normal(6, "f4"),
        f"{start}.norm.weight": rng.standard_normal(64, "f4"),
    }
    config = {"architectures": ["Mamba2ForCausalLM"], "head_dim": 16, "n_groups": 2}
    with made(tmp_path, tensors, **config) as folder:
        shapes = {name.removeprefix("blk.0."): i.shape for name, i in folder.tensors.items()}
        rates = -np.exp(tensors[f"{start}.A_log"].astype("f8")).astype("f4")
        np.testing.assert_array_equal(read(folder, "blk.0.ssm_a")[:, 0], rates)
    del shapes["token_embd.weight"]
    assert shapes == {
        "ssm_a": (4, 1),
        "ssm_d": (4, 1),
        "ssm_dt.bias": (4,),
        "ssm_conv1d.weight": (6, 4),
        "ssm_conv1d.bias": (6,),
        "ssm_norm.weight": (2, 32),
    }


def test_norms_count_from_one_and_their_biases_do_not(tmp_path, rng):
    norm, bias = rng.standard_normal(32, "f4"), rng.standard_normal(32, "f4")
    tensors = {
        **ends(rng, "model.embed_tokens.weight"),
        "model.layers.0.input_layernorm.weight": norm,
        "model.layers.0.input_layernorm.bias": bias,
    }
    with made(tmp_path, tensors, architectures=["NemotronForCausalLM"], norm_eps=1e-5) as folder:
        np.testing.assert_array_equal(read(folder, "blk.0.attn_norm.weight"), norm + 1)
        np.testing.assert_array_equal(read(folder, "blk.0.attn_norm.bias"), bias)


def test_a_falcon_with_alibi_is_refused(tmp_path, rng):
    layer = {"transformer.h.0.self_attention.dense.weight": np.ones((32, 32), "f4")}
    tensors = {**ends(rng, "transformer.word_embeddings.weight"), **layer}
    with pytest.raises(ModelError, match=r"config.json: key 'alibi' is true"):
        made(tmp_path, tensors, architectures=["FalconForCausalLM"], alibi=True)


@pytest.mark.parametrize(
    ("asked", "group", "inner"), [("llama", 1, 11008), ("mistral", 4, 14336), (None, 1, 11008)]
)
def test_a_model_of_several_modes_has_the_class_of_its_language_model(asked, group, inner):
    """Its missing settings are those of that class; heads of LlamaConfig share no keys."""
    text = {} if asked is None else {"model_type": asked}
    config = {"architectures": ["LlavaForConditionalGeneration"], "text_config": text}
    family = find_family(Settings("config.json", config))
    assert family.architecture == "llama"
    keys = family.all_keys()
    assert keys["feed_forward_length"] == inner
    assert keys["attention.head_count"] == 32
    assert 32 // keys.get("attention.head_count_kv", 32) == group
    assert not family.useful("vision_tower.vision_model.embeddings.class_embedding")
    assert not family.useful("model.image_newline")
    assert not family.useful("model.connector.modality_projection.proj.weight")


def test_an_unknown_language_model_of_several_modes_is_named():
    config = {
        "architectures": ["InternVLForConditionalGeneration"],
        "text_config": {"model_type": "internlm9"},
    }
    with pytest.raises(ModelError, match="internlm9; needs one of"):
        find_family(Settings("config.json", config))


def test_glm_4v_has_the_halves_of_rotated_pairs_apart(tmp_path, rng):
    """Only half of each head is rotated: of 8 rows, the first 4."""
    q, bias = rng.standard_normal((16, 32), "f4"), rng.standard_normal(16, "f4")
    tensors = {
        **ends(rng, "model.language_model.embed_tokens.weight"),
        "model.language_model.layers.0.self_attn.q_proj.weight": q,
        "model.language_model.layers.0.self_attn.q_proj.bias": bias,
    }
    text = {
        "num_attention_heads": 2,
        "head_dim": 8,
        "rope_parameters": {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]},
    }
    order = [0, 2, 1, 3, 4, 5, 6, 7, 8, 10, 9, 11, 12, 13, 14, 15]
    config = {"architectures": ["Glm4vForConditionalGeneration"], "text_config": text}
    with made(tmp_path, tensors, **config) as folder:
        np.testing.assert_array_equal(read(folder, "blk.0.attn_q.weight"), q[order])
        np.testing.assert_array_equal(read(folder, "blk.0.attn_q.bias"), bias[order])
        assert folder.config.ints("rope.dimension_sections") == [1, 1, 0]


def test_glm45v_rotates_halves_by_several_positions(tmp_path, rng):
    q = rng.standard_normal((16, 32), "f4")
    tensors = {
        **ends(rng, "model.language_model.embed_tokens.weight"),
        "model.language_model.layers.0.self_attn.q_proj.weight": q,
    }
    text = {
        "num_attention_heads": 2,
        "head_dim": 8,
        "moe_intermediate_size": 4,
        "rope_parameters": {"partial_rotary_factor": 0.5, "mrope_section": [1, 1, 0]},
    }
    config = {"architectures": ["Glm4vMoeForConditionalGeneration"], "text_config": text}
    with made(tmp_path, tensors, **config) as folder:
        assert folder.config.architecture == "glm4moe"
        np.testing.assert_array_equal(read(folder, "blk.0.attn_q.weight"), q)
        assert folder.config.ints("rope.dimension_sections") == [1, 1, 0]
        assert folder.config.uint("rope.dimension_count") == 4


EXAONE = {
    "model.embed_tokens.": "transformer.wte.",
    "model.layers.": "transformer.h.",
    "model.norm.": "transformer.ln_f.",
    ".self_attn.": ".attn.attention.",
    ".o_proj.": ".out_proj.",
    ".input_layernorm.": ".ln_1.",
    ".post_attention_layernorm.": ".ln_2.",
    ".gate_proj.": ".c_fc_0.",
    ".up_proj.": ".c_fc_1.",
    ".down_proj.": ".c_proj.",
}


def test_exaone_is_llama_under_other_names(tmp_path):
    llama = {**LLAMA, "rms_norm_eps": 1e-2, "rope_theta": 500.0}
    tensors = llama_tensors(llama)
    renamed = {}
    for name, values in tensors.items():
        for theirs, own in EXAONE.items():
            name = name.replace(theirs, own)
        renamed[name] = values
    others = {"num_hidden_layers": "num_layers", "rms_norm_eps": "layer_norm_epsilon"}
    others |= {"hidden_act": "activation_function"}
    exaone = {others.get(key, key): value for key, value in llama.items()}
    exaone |= {"architectures": ["ExaoneForCausalLM"], "model_type": "exaone"}
    logits = []
    for folder, given, config in (("a", tensors, llama), ("b", renamed, exaone)):
        path = write_folder(tmp_path / folder, given)
        (path / "config.json").write_text(json.dumps(config))
        with wb.load(path, device="cpu", exact=True, kv_dtype="f32", num_ctx=32) as model:
            logits.append(np.asarray(model.logits(list(range(3, 20)))))
    np.testing.assert_allclose(logits[1], logits[0], rtol=0, atol=1e-4 * np.abs(logits[0]).max())


def test_a_glimmer_that_rotates_other_layers_is_refused(tmp_path, rng):
    text = {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}
    text |= {"layer_rope_theta": [1e4, 1e4], "rope_theta": 1e4}
    with pytest.raises(
        ModelError, match=r"layer_rope_theta' is \[10000.0, 10000.0\], needs 10000.0"
    ):
        made(
            tmp_path,
            ends(rng, "model.language_model.embed_tokens.weight"),
            architectures=["MuseGlimmerForConditionalGeneration"],
            text_config=text,
        )
