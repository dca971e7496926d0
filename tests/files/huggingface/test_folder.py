"""A folder is loaded as the GGUF file that is made of it; faults in one are reported."""

import json

import gguf
import numpy as np
import pytest

import wgpu_backend as wb
from tests.files.huggingface.folders import (
    LLAMA,
    TOKENIZER,
    VOCABULARY,
    llama_tensors,
    safetensors,
    write_folder,
)
from tests.files.huggingface.test_values import interleaved
from tests.files.quantize.test_files import finish
from wgpu_backend.dtypes import Q4_0
from wgpu_backend.files.huggingface.folder import open_folder
from wgpu_backend.files.quantize import quantize_rows

TOKENS = [0, 5, 17, 40, 3, 99]


def logits(path):
    with wb.load(path, device="cpu", kv_dtype="f32") as model:
        return np.asarray(model.logits(TOKENS), "f8")


def test_a_folder_its_shards_and_its_file_are_one_model(tmp_path):
    folder = write_folder(tmp_path / "a")
    sharded = write_folder(tmp_path / "b", shards=3)
    shares = []
    wb.create(tmp_path / "a.gguf", folder, progress=shares.append)
    wanted = logits(folder)
    np.testing.assert_array_equal(logits(sharded), wanted)
    np.testing.assert_array_equal(logits(tmp_path / "a.gguf"), wanted)
    assert np.ptp(wanted) > 0.1
    assert shares == sorted(shares)
    assert not list(tmp_path.glob(".*"))


def test_rotation_of_halves_is_that_of_neighbours_with_rows_moved(tmp_path):
    tensors = llama_tensors()
    with open_folder(write_folder(tmp_path / "a", tensors)) as folder:
        made = np.frombuffer(folder.data("blk.1.attn_k.weight"), "<f4").reshape(16, 32)
        given = tensors["model.layers.1.self_attn.k_proj.weight"]
        np.testing.assert_array_equal(made, interleaved(given, 2))
        assert folder.config.uint("attention.head_count_kv") == 2
        assert folder.config.float("rope.freq_base") == 10000.0


@pytest.mark.parametrize("dtype", ["f16", "BF16", "q8_0", "Q4_K_M"])
def test_a_file_of_a_type_is_what_quantize_makes_of_the_folders(tmp_path, dtype):
    folder = write_folder(tmp_path / "a")
    report = wb.create(tmp_path / "made.gguf", folder, dtype, threads=2)
    wb.create(tmp_path / "plain.gguf", folder)
    wb.quantize(tmp_path / "plain.gguf", tmp_path / "two_steps.gguf", dtype)
    assert (tmp_path / "made.gguf").read_bytes() == (tmp_path / "two_steps.gguf").read_bytes()
    kinds = {name: kind.name for name, kind in report.types.items()}
    assert kinds["blk.0.attn_norm.weight"] == "f32"
    # Rows of 32 are blocks of some types, rows of 48 of none.
    assert kinds["blk.0.attn_q.weight"] == {"Q4_K_M": "q5_0"}.get(dtype, dtype.lower())
    assert kinds["blk.0.ffn_down.weight"] == ("bf16" if dtype == "BF16" else "f16")


def test_matrices_that_are_turned_are_read_whole(tmp_path, rng):
    tensors = {
        "wte.weight": rng.standard_normal((len(VOCABULARY), 32), "f4"),
        "wpe.weight": rng.standard_normal((64, 32), "f4"),
        "h.0.mlp.c_fc.weight": rng.standard_normal((32, 96), "f4"),
    }
    config = {"architectures": ["GPT2LMHeadModel"], "n_embd": 32, "num_hidden_layers": 1}
    folder = write_folder(tmp_path / "a", tensors, config)
    importance = gguf.GGUFWriter(tmp_path / "matrix.gguf", "imatrix")
    sums = rng.uniform(0, 9, (1, 32)).astype("f4")
    importance.add_tensor("blk.0.ffn_up.weight.in_sum2", sums)
    importance.add_tensor("blk.0.ffn_up.weight.counts", np.array([[2]], "f4"))
    finish(importance)
    wb.create(tmp_path / "a.gguf", folder, "Q4_0", importance=tmp_path / "matrix.gguf")
    with wb.open_gguf(tmp_path / "a.gguf") as file:
        turned = np.ascontiguousarray(tensors["h.0.mlp.c_fc.weight"].T)
        assert file.data("blk.0.ffn_up.weight") == quantize_rows(turned, Q4_0, sums[0] / 2)


def test_floats_of_eight_bits_are_loaded_with_their_scales(tmp_path):
    tensors = llama_tensors()
    name = "model.layers.0.mlp.up_proj.weight"
    codes = np.random.default_rng(1).integers(0, 120, tensors[name].shape).astype("u1")
    scales = np.array([[0.01, 0.02], [0.03, 0.04], [0.05, 0.06]], "f4")
    tensors |= {name: codes, name + "_scale_inv": scales}
    folder = write_folder(
        tmp_path / "a",
        tensors,
        {"quantization_config": {"quant_method": "fp8", "weight_block_size": [16, 16]}},
    )
    (folder / "model.safetensors").write_bytes(safetensors(tensors, {name: "F8_E4M3"}))
    with open_folder(folder) as opened:
        made = np.frombuffer(opened.data("blk.0.ffn_up.weight"), "<f2").astype("f8")
    exponent, mantissa = codes >> 3, codes & 7
    exact = np.where(exponent, (8 + mantissa) * 2.0 ** (exponent - 10.0), mantissa * 2.0**-9)
    exact *= np.kron(scales, np.ones((16, 16)))
    # Small ones are multiples of 2^-24, the smallest f16.
    np.testing.assert_allclose(made.reshape(48, 32), exact, rtol=2**-11, atol=2**-25)


def without(tensors, part):
    return {name: values for name, values in tensors.items() if part not in name}


def damaged(tmp_path, *, tensors=None, config=None, tokenizer=None, shards=1, then=None):
    folder = write_folder(tmp_path / "a", tensors, config, tokenizer=tokenizer, shards=shards)
    if then is not None:
        then(folder)
    return folder


SHARD = "model-00002-of-00002.safetensors"
DAMAGES = {
    "no shard": (
        {"shards": 2, "then": lambda f: (f / SHARD).unlink()},
        f"{SHARD}: no such file; 1 of the 2 shards that model.safetensors.index.json lists are the",
    ),
    "other shard": (
        {"shards": 2, "then": lambda f: (f / SHARD).write_bytes(safetensors({}))},
        f"is in no shard, the index places it in {SHARD}",
    ),
    "path in the index": (
        {
            "then": lambda f: (f / "model.safetensors.index.json").write_text(
                json.dumps({"weight_map": {"a": "../../etc/passwd"}})
            )
        },
        "file '../../etc/passwd' is not a file name",
    ),
    "no weights": (
        {"then": lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin")},
        "no model.safetensors and no .*; pytorch_model.bin holds Python objects, which are not",
    ),
    "no class": (
        {"config": {"architectures": ["StoryForCausalLM"]}},
        "key 'architectures' names StoryForCausalLM; needs one of",
    ),
    "wrong type": (
        {"config": {"num_attention_heads": "four"}},
        "config.json: key 'num_attention_heads' is 'four', needs a whole number",
    ),
    "too few layers": (
        {"tensors": without(llama_tensors(), "layers.1")},
        "tensors are of 1 layers, config.json has 2; layer 1 is missing",
    ),
    "a tensor of another model": (
        {"tensors": {**llama_tensors(), "model.layers.0.mixer.weight": np.ones((2, 2), "f4")}},
        "unexpected tensor 'model.layers.0.mixer.weight' for LlamaForCausalLM",
    ),
    "heads that do not fit": (
        {"config": {"num_key_value_heads": 3}},
        "k_proj.weight': has 16 rows, needs an even number for each of 3 heads",
    ),
    "the same tensor twice": (
        {"tensors": {**llama_tensors(), "lm_head": np.ones((2, 2), "f4")}},
        "'lm_head.weight' and 'lm_head' are both output.weight",
    ),
    "another size": ({"config": {"intermediate_size": 64}}, r"blk\.0\.ffn_.*48.*64|64.*48"),
    "a missing matrix": (
        {"tensors": without(llama_tensors(), "layers.1.mlp.up_proj")},
        r"blk\.1\.ffn_up",
    ),
    "integers": (
        {"tensors": {**llama_tensors(), "model.norm.weight": np.ones(32, "i8")}},
        "tensor 'model.norm.weight': is I64, needs one of F32",
    ),
    "quantised by others": (
        {"config": {"quantization_config": {"quant_method": "gptq"}}},
        "key 'quant_method' is 'gptq', needs one of fp8, mxfp4",
    ),
    "no tokenizer": (
        {"then": lambda f: (f / "tokenizer.json").unlink()},
        "no tokenizer.json and no tokenizer.model",
    ),
    "a small embedding": (
        {"config": {"vocab_size": 50}},
        "highest id is 113, config.json has vocab_size 50",
    ),
    "unknown steps": (
        {"tokenizer": {**TOKENIZER, "pre_tokenizer": {"type": "CharDelimiterSplit"}}},
        "key 'pre_tokenizer' cannot be used, the tokenizers library says",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_wrong_with_a_folder_is_told_in_one_line(tmp_path, damage):
    how, message = DAMAGES[damage]
    folder = damaged(tmp_path, **how)
    with pytest.raises((wb.ModelError, wb.TokenizerError), match=message) as told:
        wb.load(folder, device="cpu")
    assert str(folder) in str(told.value)
    assert "\n" not in str(told.value)


def test_experts_are_counted_and_stacked(tmp_path, rng):
    tensors = without(llama_tensors(), ".mlp.")
    for layer in range(2):
        start = f"model.layers.{layer}.block_sparse_moe"
        tensors[f"{start}.gate.weight"] = rng.standard_normal((3, 32), "f4")
        for expert in range(3):
            for name, shape in (("w1", (48, 32)), ("w2", (32, 48)), ("w3", (48, 32))):
                values = rng.standard_normal(shape, "f4")
                tensors[f"{start}.experts.{expert}.{name}.weight"] = values
    config = {
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 3,
        "num_experts_per_tok": 2,
    }
    folder = write_folder(tmp_path / "a", tensors, config)
    with open_folder(folder) as opened:
        made = np.frombuffer(opened.data("blk.1.ffn_down_exps.weight"), "<f4")
        experts = [f"model.layers.1.block_sparse_moe.experts.{i}.w2.weight" for i in range(3)]
        np.testing.assert_array_equal(
            made.reshape(3, 32, 48), np.stack([tensors[name] for name in experts])
        )
    assert np.isfinite(logits(folder)).all()
    few = without(tensors, "experts.2.w3")
    with pytest.raises(wb.ModelError, match=r"2 experts are there, config.json has 3, number 2 is"):
        open_folder(write_folder(tmp_path / "b", few, config))


def test_writing_that_fails_leaves_nothing(tmp_path):
    folder = write_folder(tmp_path / "a")

    def called_off(share):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wb.create(tmp_path / "a.gguf", folder, progress=called_off)
    with pytest.raises(wb.OptionError, match="type 'i32': unknown, needs one of F32, F16"):
        wb.create(tmp_path / "a.gguf", folder, "i32")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]


def test_a_closed_folder_says_so_and_a_changed_one_is_not_read(tmp_path):
    folder = open_folder(write_folder(tmp_path / "a"))
    (tmp_path / "a" / "model.safetensors").write_bytes(b"other")
    with pytest.raises(wb.GGUFError, match="it was changed meanwhile"):
        folder.data("blk.0.attn_q.weight")
    folder.close()
    folder.close()
    with pytest.raises(wb.ModelError, match="read from a closed folder"):
        folder.data("blk.0.attn_q.weight")


def test_keys_are_those_of_llama(tmp_path):
    rope = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    config = {"rope_scaling": rope, "head_dim": 8}
    with open_folder(write_folder(tmp_path / "tiny-7", config=config)) as folder:
        keys = dict(folder.metadata)
        factors = np.frombuffer(folder.data("rope_freqs.weight"), "<f4")
    assert keys["general.name"] == "tiny-7"
    assert keys["llama.context_length"] == LLAMA["max_position_embeddings"]
    assert keys["llama.attention.key_length"] == 8
    # Waves of 6 and 63 positions, beside 16 / 4 and 16 / 1, and longer ones.
    assert 1 < factors[0] < 8
    np.testing.assert_array_equal(factors[1:], [8, 8, 8])


def test_keys_are_looked_at_before_tensors(tmp_path):
    folder = write_folder(tmp_path / "a", config={"num_attention_heads": 3})
    said = r"^[^:]*config.json: key 'hidden_size' is 32, needs a multiple of 3 heads$"
    with pytest.raises(wb.ModelError, match=said):
        open_folder(folder)
    (folder / "config.json").write_text(json.dumps({**LLAMA, "num_attention_heads": "4"}))
    said = r"^[^:]*config.json: key 'num_attention_heads' is '4', needs a whole number$"
    with pytest.raises(wb.ModelError, match=said):
        open_folder(folder)
