"""The same tower in an mmproj file, in a checkpoint and in Ollama's one file."""

import json
import re

import numpy as np
import pytest
from gguf import GGUFWriter

from tests.files.huggingface.folders import safetensors
from tests.models.test_vision_towers import (
    COLS,
    GEMMA3,
    HEADS,
    INNER,
    PATCH,
    PIXELS,
    Q_INNER,
    Q_OUT,
    Q_PATCH,
    Q_WIDTH,
    QWEN,
    SIDE,
    WIDTH,
    gemma3_rows,
    gemma3_weights,
    qwen_rows,
    qwen_weights,
)
from tests.models.towers import rows, write_mmproj
from wgpu_backend.errors import ModelError
from wgpu_backend.files.gguf.one_file import own_tower, text_part
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.files.huggingface.tower import open_tower_folder
from wgpu_backend.files.tower_files import open_tower
from wgpu_backend.ml.backend import Backend, BackendParams, make_executor
from wgpu_backend.nn.tower import projector_kinds, tower_class
from wgpu_backend.testing import nmse

# Names in checkpoints and in Ollama's files, in place of those of mmproj files.
PUBLISHED = (
    (r"v\.patch_embd", "vision_tower.vision_model.embeddings.patch_embedding"),
    (r"v\.position_embd", "vision_tower.vision_model.embeddings.position_embedding"),
    (r"v\.post_ln", "vision_tower.vision_model.post_layernorm"),
    (r"v\.blk\.", "vision_tower.vision_model.encoder.layers."),
    (r"\.ln(\d)", r".layer_norm\1"),
    (r"attn_(q|k|v|out)", r"self_attn.\1_proj"),
    (r"ffn_up", "mlp.fc1"),
    (r"ffn_down", "mlp.fc2"),
    (r"mm\.input_projection\.weight", "multi_modal_projector.mm_input_projection_weight"),
    (r"mm\.soft_emb_norm", "multi_modal_projector.mm_soft_emb_norm"),
)
OLLAMAS = (
    (r"v\.patch_embd", "v.patch_embedding"),
    (r"v\.position_embd", "v.position_embedding"),
    (r"v\.post_ln", "v.post_layernorm"),
    (r"\.ln(\d)", r".layer_norm\1"),
    (r"attn_out", "attn_output"),
    (r"ffn_up", "mlp.fc1"),
    (r"ffn_down", "mlp.fc2"),
    (r"^mm\.", "mm.mm_"),
)
CONFIG = {
    "architectures": ["Gemma3ForConditionalGeneration"],
    "mm_tokens_per_image": 4,
    "text_config": {"hidden_size": COLS},
    "vision_config": {
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "image_size": SIDE * PATCH,
        "patch_size": PATCH,
        "layer_norm_eps": 1e-3,
        "hidden_act": "gelu_pytorch_tanh",
    },
}


def renamed(weights, table):
    made = {}
    for name, values in weights.items():
        for pattern, to in table:
            name = re.sub(pattern, to, name)
        made[name] = values
    return made


def rows_in(file):
    with file, Backend(file, make_executor("cpu", BackendParams())) as backend:
        backend.load()
        [(modality, kind)] = projector_kinds(backend.config).items()
        tower = tower_class(backend.config, modality, kind)(backend)
        return rows(tower, tower.prepare(PIXELS))


def write_checkpoint(path, weights, **config):
    tensors = renamed(weights, PUBLISHED)
    # Published weights of this norm are those less one.
    norm = "multi_modal_projector.mm_soft_emb_norm.weight"
    tensors[norm] = tensors[norm] - np.float32(1)
    processor = {"image_mean": GEMMA3["vision.image_mean"], "image_std": GEMMA3["vision.image_std"]}
    path.joinpath("config.json").write_text(json.dumps({**CONFIG, **config}))
    path.joinpath("preprocessor_config.json").write_text(json.dumps(processor))
    path.joinpath("model.safetensors").write_bytes(safetensors(tensors))
    return path


def test_a_checkpoint(tmp_path):
    weights = gemma3_weights()
    found = open_tower_folder(write_checkpoint(tmp_path, weights))
    assert found is not None
    assert nmse(rows_in(found), gemma3_rows(weights)) < 1e-11


def test_a_checkpoint_of_a_class_without_towers(tmp_path):
    weights = gemma3_weights()
    path = write_checkpoint(tmp_path, weights, architectures=["Gemma3ForCausalLM"])
    assert open_tower_folder(path) is None


def test_an_unknown_tensor_of_a_tower_is_named(tmp_path):
    weights = gemma3_weights() | {"v.blk.0.extra.weight": np.zeros((3, 3), np.float32)}
    with pytest.raises(ModelError, match=r"layers\.0\.extra\.weight': unexpected"):
        open_tower_folder(write_checkpoint(tmp_path, weights))


def write_one_file(path, weights):
    writer = GGUFWriter(path, "gemma3")
    for key, value in {"embedding_length": COLS, "mm.tokens_per_image": 4}.items():
        writer.add_uint32(f"gemma3.{key}", value)
    for key, value in GEMMA3.items():
        if key.startswith("vision.") and isinstance(value, int):
            writer.add_uint32(f"gemma3.{key}", value)
    writer.add_float32("gemma3.vision.attention.layer_norm_epsilon", 1e-3)
    for name, values in {
        **renamed(weights, OLLAMAS),
        "token_embd.weight": np.zeros((9, COLS)),
    }.items():
        writer.add_tensor(name, values.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_one_file_of_language_model_and_tower(tmp_path):
    weights = gemma3_weights()
    with text_part(open_gguf(write_one_file(tmp_path / "model.gguf", weights))) as text:
        assert [*text.tensors] == ["token_embd.weight"]
        assert not [key for key in text.metadata if ".vision." in key]
        tower = own_tower(text)
        assert tower is not None
        assert tower.config.floats("vision.image_mean") == [0.5] * 3
        assert tower.config.uint("vision.projector.scale_factor") == 2
        assert {name: info.nbytes for name, info in tower.tensors.items()} == {
            name: values.nbytes for name, values in weights.items()
        }
        name = "v.blk.1.ffn_up.weight"
        assert np.array_equal(np.frombuffer(tower.data(name), np.float32), weights[name].ravel())
        assert tower.tensors["v.patch_embd.weight"].shape == (WIDTH, 3 * PATCH**2)


def write_text(path, width=COLS):
    writer = GGUFWriter(path, "llama")
    writer.add_uint32("llama.embedding_length", width)
    writer.add_tensor("token_embd.weight", np.zeros((9, width), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_the_tower_beside_a_model(tmp_path):
    with open_gguf(write_text(tmp_path / "model.gguf")) as text:
        assert open_tower(text) is None
        write_mmproj(tmp_path / "mmproj-f32.gguf", GEMMA3, gemma3_weights())
        found = open_tower(text)
        assert found is not None
        assert found.path.name == "mmproj-f32.gguf"
        found.close()
        write_mmproj(tmp_path / "mmproj-other.gguf", GEMMA3, gemma3_weights())
        with pytest.raises(ModelError, match=r"mmproj-f32\.gguf, mmproj-other\.gguf; pass one"):
            open_tower(text)


def test_a_tower_of_another_width_is_not_taken(tmp_path):
    write_mmproj(tmp_path / "mmproj.gguf", GEMMA3, gemma3_weights())
    with open_gguf(write_text(tmp_path / "model.gguf", 40)) as text:
        assert open_tower(text) is None


def test_a_language_model_is_no_tower(tmp_path):
    with (
        open_gguf(write_text(tmp_path / "model.gguf")) as text,
        pytest.raises(ModelError, match="architecture 'llama', needs 'clip'"),
    ):
        open_tower(text, tmp_path / "model.gguf")


QWENS_NAMES = (
    (r"v\.blk\.", "visual.blocks."),
    (r"\.ln(\d)", r".norm\1"),
    (r"attn_out", "attn.proj"),
    (r"ffn_(gate|up|down)", r"mlp.\1_proj"),
    (r"v\.patch_embd", "visual.patch_embed.proj"),
    (r"v\.position_embd", "visual.pos_embed"),
)
QWENS = {
    2: ((r"v\.post_ln", "visual.merger.ln_q"), (r"^mm\.", "visual.merger.mlp.")),
    2.5: ((r"v\.post_ln", "visual.merger.ln_q"), (r"^mm\.", "visual.merger.mlp.")),
    3: (
        (r"v\.post_ln", "visual.merger.norm"),
        (r"^mm\.0", "visual.merger.linear_fc1"),
        (r"^mm\.2", "visual.merger.linear_fc2"),
        (r"v\.deepstack\.(\d)\.fc", r"visual.deepstack_merger_list.\1.linear_fc"),
        (r"v\.deepstack\.", "visual.deepstack_merger_list."),
        (r"list\.2", "list.1"),
        (r"mlp\.up_proj", "mlp.linear_fc1"),
        (r"mlp\.down_proj", "mlp.linear_fc2"),
    ),
}
QWENS_CONFIGS = {
    2: {"architectures": ["Qwen2VLForConditionalGeneration"], "hidden_size": Q_OUT},
    2.5: {"architectures": ["Qwen2_5_VLForConditionalGeneration"], "hidden_size": Q_OUT},
    3: {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": {"hidden_size": Q_OUT},
    },
}
QWENS_TOWERS = {
    2: {"embed_dim": Q_WIDTH, "mlp_ratio": 1.25},
    2.5: {"hidden_size": Q_WIDTH, "fullatt_block_indexes": [1, 3], "window_size": 56},
    3: {"hidden_size": Q_WIDTH, "deepstack_visual_indexes": [0, 2]},
}


def published_qwen(weights, version):
    """Queries, keys and values in one matrix, the kernels of both frames in one tensor."""
    made = {}
    for name, values in weights.items():
        for pattern, to in (*QWENS_NAMES, *QWENS[version]):
            name = re.sub(pattern, to, name)
        made[name] = values
    frames = [made.pop(f"visual.patch_embed.proj.weight{end}") for end in ("", ".1")]
    made["visual.patch_embed.proj.weight"] = np.stack(frames, axis=2)
    for i in range(4):
        for end in ("weight", "bias"):
            parts = [made.pop(f"visual.blocks.{i}.attn_{part}.{end}") for part in "qkv"]
            made[f"visual.blocks.{i}.attn.qkv.{end}"] = np.concatenate(parts)
    if version == 2:
        made = {n.replace("mlp.up_proj", "mlp.fc1").replace("mlp.down_proj", "mlp.fc2"): v
                for n, v in made.items()}  # fmt: skip
    return made


@pytest.mark.parametrize("version", QWENS)
def test_a_checkpoint_of_qwen(tmp_path, version):
    weights = qwen_weights(version)
    vision = {
        "depth": 4,
        "num_heads": 2,
        "patch_size": Q_PATCH,
        "intermediate_size": Q_INNER,
        **QWENS_TOWERS[version],
    }
    processor = {
        "image_mean": QWEN["vision.image_mean"],
        "image_std": QWEN["vision.image_std"],
        "size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 64},
    }
    config = {**QWENS_CONFIGS[version], "vision_config": vision}
    tmp_path.joinpath("config.json").write_text(json.dumps(config))
    tmp_path.joinpath("preprocessor_config.json").write_text(json.dumps(processor))
    tensors = safetensors(published_qwen(weights, version))
    tmp_path.joinpath("model.safetensors").write_bytes(tensors)
    found = open_tower_folder(tmp_path)
    assert found is not None
    assert nmse(rows_in(found), qwen_rows(weights, version, PIXELS, 4, 4)) < 1e-10
