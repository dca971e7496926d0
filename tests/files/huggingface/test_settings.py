"""Settings of config.json that change numbers: what is loaded computes what transformers does.

tests/data/folder_settings.json has transformers' numbers; make_folder_settings.py beside it says
how they were made.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import wgpu_backend as wb
from tests.data.make_folder_settings import (
    CASES,
    COLUMNS,
    ROWS,
    TOKENS,
    YARN,
    config_of,
)
from tests.files.huggingface.folders import TOKENIZER, llama_tensors, safetensors, write_folder
from tests.files.huggingface.random_configs import difference, tensors_of
from wgpu_backend.files.huggingface.families.gemma import EmbeddingGemma
from wgpu_backend.files.huggingface.family import families

DEFAULTS = json.loads((Path(__file__).parents[2] / "data" / "config_defaults.json").read_text())
RECORDED = json.loads((Path(__file__).parents[2] / "data" / "folder_settings.json").read_text())
# transformers' GELUs by tanh go through other constants.
NEARLY = 2e-5


def numbers(path, kind):
    with wb.load(path, device="cpu", exact=True, kv_dtype="f32", num_ctx=64) as model:
        read = model.states if kind == "Bert" else model.logits
        return np.asarray(read(TOKENS))[ROWS, :COLUMNS]


@pytest.mark.parametrize(("name", "kind", "settings"), CASES, ids=[case[0] for case in CASES])
def test_a_setting_is_followed_as_transformers_does(tmp_path, name, kind, settings):
    case = RECORDED[name]
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(kind, settings)))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    (folder / "model.safetensors").write_bytes(safetensors(tensors_of(case["shapes"])))
    wanted = np.array(case["rows"])
    got = numbers(folder, kind)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=NEARLY * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize(
    "name", ["yarn whole", "smollm3 layers", "gpt2 by layer", "gpt-oss limits"]
)
def test_a_file_of_the_folder_keeps_its_settings(tmp_path, name):
    kind, settings = next((kind, settings) for n, kind, settings in CASES if n == name)
    folder = tmp_path / "a"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config_of(kind, settings)))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER))
    tensors = tensors_of(RECORDED[name]["shapes"])
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    wb.create(tmp_path / "a.gguf", folder)
    np.testing.assert_array_equal(numbers(tmp_path / "a.gguf", kind), numbers(folder, kind))


@pytest.mark.parametrize("name", DEFAULTS)
def test_defaults_are_those_of_transformers(name):
    made, theirs = families()[name], DEFAULTS[name]
    ours = {**made.default_rope, **made.defaults, **made.by_class.get(name, {})}
    assert ours == {key: theirs[key] for key in ours}
    usual = [theirs[key] for key in made.activation_settings if theirs[key] is not None]
    if made.activation is not None and usual:
        known = {"gelu": "gelu_erf", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu"}
        known["quick_gelu"] = "gelu_quick"
        assert made.activation == known.get(usual[0], usual[0])
    # A default that is not supported is refused, unless config.json has the other value.
    refused = {k: v for k, v in made.needed.items() if theirs[k] not in (None, v)}
    assert refused == ({"use_bidirectional_attention": True} if made is EmbeddingGemma else {})


@pytest.mark.slow
def test_random_settings_are_followed_as_transformers_does():
    """random_configs.py beside this file drew them and recorded transformers' numbers."""
    lines = (Path(__file__).parents[2] / "data" / "random_settings.jsonl").read_text().splitlines()
    cases = [case for case in map(json.loads, lines) if "error" not in case]
    assert len(cases) > 50
    assert [case["seed"] for case in cases if difference(case) > 1e-6] == []


LAYER = ["full_attention", "sliding_attention"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"hidden_act": "mish"}, "'hidden_act' is 'mish', known activations are silu"),
        ({"partial_rotary_factor": 0.5}, "is 0.5, LlamaForCausalLM rotates whole heads"),
        ({"rope_scaling": {"type": "mrope"}}, "'rope_type' is 'mrope', needs one of default"),
        (
            {"rope_parameters": {"full_attention": YARN, "sliding_attention": {}}},
            "'sliding_attention' is set, needs one RoPE",
        ),
        ({"rope_scaling": {"type": "linear"}}, "key 'factor' is missing"),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": ["chunked_attention"] * 2},
            "'layer_types' names 'chunked_attention', needs",
        ),
        (
            {"architectures": ["Qwen2ForCausalLM"], "layer_types": LAYER * 2},
            "'layer_types' has 4 values, needs",
        ),
        (
            {"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1]},
            "'no_rope_layers' has 1 values, needs 2",
        ),
        (
            {"architectures": ["Qwen3MoeForCausalLM"], "mlp_only_layers": [1]},
            r"'mlp_only_layers' is \[1\], needs \[\]",
        ),
        (
            {"architectures": ["Gemma3TextModel"], "query_pre_attn_scalar": 8},
            "'use_bidirectional_attention' is False, needs True",
        ),
        (
            {"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True},
            "'use_bidirectional_attention' is True, needs False",
        ),
        (
            {"architectures": ["BertModel"], "is_decoder": True},
            "'is_decoder' is True, needs False",
        ),
        (
            {"architectures": ["BertModel"], "position_embedding_type": "relative_key"},
            "'position_embedding_type' is 'relative_key', needs 'absolute'",
        ),
        (
            {"architectures": ["MambaForCausalLM"], "hidden_act": "relu"},
            "'hidden_act' is 'relu', needs 'silu'",
        ),
    ],
)
def test_a_setting_that_is_not_known_is_refused(tmp_path, config, said):
    with pytest.raises(wb.ModelError, match=said):
        wb.load(write_folder(tmp_path / "a", config=config), device="cpu")


def test_keys_that_are_not_followed_are_named(tmp_path):
    ordinary = {
        "torch_dtype": "bfloat16", "use_cache": True, "attention_dropout": 0.1, "new_thing": None,
        "is_llama_config": True, "rope_interleaved": False,
        "model_type": "llama", "transformers_version": "4.1", "initializer_range": 0.02,
    }  # fmt: skip
    folder = write_folder(tmp_path / "a", config=ordinary)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        numbers(folder, "Llama")
    config = {**ordinary, "attention_sinks": 4, "new_thing": False}
    folder = write_folder(tmp_path / "b", config=config)
    said = r"b.config.json: keys 'attention_sinks', 'new_thing' not followed"
    with pytest.warns(UserWarning, match=said):
        numbers(folder, "Llama")
    config = {"rope_scaling": {**YARN, "new_factor": 2.0}}
    with pytest.warns(UserWarning, match="rope_scaling: key 'new_factor' not followed"):
        numbers(write_folder(tmp_path / "c", config=config), "Llama")


def test_biases_that_are_switched_off_are_left_out_and_named(tmp_path):
    tensors = llama_tensors()
    wanted = numbers(write_folder(tmp_path / "a", tensors), "Llama")
    tensors["model.layers.0.self_attn.q_proj.bias"] = np.ones(32, "f4")
    folder = write_folder(tmp_path / "b", tensors, {"attention_bias": False})
    with pytest.warns(UserWarning, match=r"q_proj.bias' is left out"):
        np.testing.assert_array_equal(numbers(folder, "Llama"), wanted)
    folder = write_folder(tmp_path / "c", tensors, {"attention_bias": True})
    assert not np.allclose(numbers(folder, "Llama"), wanted)


def test_rope_that_grows_with_the_text_is_followed_within_the_context(tmp_path):
    wanted = numbers(write_folder(tmp_path / "a"), "Llama")
    config = {"rope_scaling": {"type": "dynamic", "factor": 2.0}}
    folder = write_folder(tmp_path / "b", config=config)
    with pytest.warns(UserWarning, match="'dynamic' changes what is beyond 64 tokens"):
        np.testing.assert_array_equal(numbers(folder, "Llama"), wanted)
