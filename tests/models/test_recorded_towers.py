"""Towers of checkpoints make the rows, and the texts around them, that transformers makes.

Recorded by `make_towers.py` and `make_newer_towers.py` of `tests/data/`, with transformers 5.24 and
Pillow 13.
"""

import json
import math
import re
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import PIL
import pytest
from gguf import GGUFWriter

from tests.data.tower_weights import make_weights, picture, sound
from tests.files.huggingface.folders import safetensors
from tests.models.towers import open_recorded, open_tower, rows, write_mmproj
from wgpu_backend.errors import MediaError, ModelError, OptionError
from wgpu_backend.files.gguf.config import Config
from wgpu_backend.files.gguf.one_file import own_tower, text_part
from wgpu_backend.files.gguf.parts import FilePart, tower_part
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.files.huggingface.tower import open_tower_folder
from wgpu_backend.files.tower_files import require_fitting_tower
from wgpu_backend.ml.backend import Backend, BackendParams, make_executor
from wgpu_backend.nn.tower import (
    NUMBER_MARK,
    Rows,
    known_kinds,
    projector_kinds,
    tower_class,
)
from wgpu_backend.testing import nmse

PLAIN = np.zeros((2, 2), np.float32)
DEVICES = ["cpu", pytest.param("wgpu", marks=pytest.mark.gpu)]
# Other versions of Pillow round a few values of resized pictures otherwise.
LIMIT = 1e-10 if PIL.__version__.startswith("13.") else 1e-3


@cache
def recorded():
    facts, arrays = {}, {}
    for name in ("towers", "newer_towers"):
        with np.load(Path(__file__).parents[1] / f"data/{name}.npz") as file:
            facts |= json.loads(file["facts"].tobytes())
            arrays |= {key: file[key] for key in file.files if key != "facts"}
    return facts, arrays


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", sorted(set(recorded()[1]) - {"gemma3n"}))
def test_rows_are_those_of_transformers(name, device, tmp_path):
    facts, arrays = recorded()
    tower, backend = open_recorded(tmp_path, recorded()[0], name, device)
    with backend:
        samples = facts[name].get("sound")
        media = tower.prepare(picture(41, 70) if samples is None else sound(samples))
        found = rows(tower, media)
    assert found.shape == (media.rows, tower.cols) == arrays[name].shape
    assert nmse(found, arrays[name]) < LIMIT
    text = facts[name]["text"]
    if text is not None:
        pads = re.findall(r"<unk>|<image>|<\|patch\|>|\[IMG\]", text)
        token = "<unk>" if "<unk>" in pads else pads[0]
        parts = (token * x.count if isinstance(x, Rows) else x for x in media.layout)
        assert "".join(parts).replace(NUMBER_MARK, "0") == text


def sort_pairs(values, heads):
    """Kimi K2.5's queries, keys and values with the pairs of a head sorted, as llama.cpp does."""
    parts = values.reshape(3, heads, -1, 2, 2, *values.shape[1:])
    sorted_parts = [*parts[:2].swapaxes(2, 3).reshape(2, -1), parts[2].reshape(-1)]
    return np.stack(sorted_parts).reshape(values.shape)


def test_kimi_k25_in_the_order_of_llama_cpp(tmp_path):
    tower, backend = open_recorded(tmp_path, recorded()[0], "kimi-k2.5", "cpu")
    shapes = {k: tuple(v) for k, v in recorded()[0]["kimi-k2.5"]["shapes"].items()}
    backend.close()
    weights = {
        name: sort_pairs(values, 2) if "wqkv" in name else values
        for name, values in make_weights(shapes).items()
    }
    (tmp_path / "model.safetensors").write_bytes(safetensors(weights))
    file = open_tower_folder(tmp_path)
    assert file is not None
    with file, Backend(file, make_executor("cpu", BackendParams(exact=True))) as backend:
        backend.load()
        tower: Any = tower_class(backend.config, "image", "kimik25")(backend)
        tower.woven = tower.is_woven
        found = rows(tower, tower.prepare(picture(41, 70)))
    assert nmse(found, recorded()[1]["kimi-k2.5"]) < LIMIT


@pytest.mark.parametrize("pads", [True, False])
def test_kimi_vl_pads_or_crops(tmp_path, pads):
    tower, backend = open_recorded(tmp_path, recorded()[0], "kimi-vl", "cpu")
    with backend:
        tower.pads = pads
        # Squares have 14 pixels a side.
        assert tower.values(picture(41, 75)).shape == ((42, 84, 3) if pads else (28, 70, 3))
        if not pads:
            # Of 13 rows too many, 6.5 are above: rounded to even.
            wanted = tower.values(picture(41, 75)[6:34, 2:72])
            assert np.array_equal(tower.values(picture(41, 75)), wanted)
            with pytest.raises(OptionError, match="75 x 13 pixels, this model needs at least 14"):
                tower.values(picture(13, 75))
        tower.most = 16
        # 10 x 5 patches: scaled by sqrt(16 / 50).
        assert tower.values(picture(41, 75)).shape == ((28, 42, 3) if pads else (14, 42, 3))
        tower.most = 10**6
        with pytest.raises(OptionError, match="takes less than 3584 on each side"):
            tower.values(picture(14, 3584))


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES)
def test_gemma3n_has_the_rows_of_timm(tmp_path, device):
    facts, wanted = (part["gemma3n"] for part in recorded())
    weights = make_weights({name: tuple(shape) for name, shape in facts["shapes"].items()})
    for name in weights:
        if name.endswith(("gamma", "conv.bias")):
            # llama.cpp's converter gives them the axes of a map.
            weights[name] = weights[name].reshape(1, -1, 1, 1)
    path = write_mmproj(tmp_path / "mmproj.gguf", facts["keys"], weights)
    tower, backend = open_tower(path, device)
    with backend:
        media = tower.prepare(picture(41, 70))
        found = rows(tower, media)
    # The last row is that of <end_of_image>.
    assert [*media.layout] == ["\n\n<start_of_image>", Rows(257), "\n\n"]
    assert nmse(found, wanted) < LIMIT


@pytest.mark.parametrize(
    "device", ["cpu", pytest.param("wgpu", marks=[pytest.mark.gpu, pytest.mark.slow])]
)
def test_a_folder_of_gemma3n_has_the_rows_of_timm(tmp_path, device):
    """Names are those of transformers, and values go through the same reader as other towers'."""
    facts, wanted = (part["gemma3n"] for part in recorded())
    ends = {"embedding": "embedding", "hard_emb": "hard_embedding",
                        "soft_emb": "soft_embedding", "input_": "embedding_"}  # fmt: skip
    made = make_weights({name: tuple(shape) for name, shape in facts["shapes"].items()})
    weights = {}
    for name, values in made.items():
        if name.startswith("v."):
            bare = name.removeprefix("v.").replace("blk.", "blocks.", 1)
            weights[f"model.vision_tower.timm_model.{bare}"] = values
            continue
        ours = name.removeprefix("mm.")
        for short, long in ends.items():
            if ours.startswith(short):
                weights[f"model.embed_vision.{ours.replace(short, long, 1)}"] = values
    weights["model.audio_tower.conformer.0.norm.weight"] = np.ones(4, np.float32)
    assert len(weights) == len(made) + 1
    keys = facts["keys"]
    config = {
        "architectures": ["Gemma3nForConditionalGeneration"],
        "text_config": {"hidden_size": keys["vision.projection_dim"]},
        "vision_config": {"architecture": "mobilenetv5_300m_enc", "hidden_size": 2048},
    }
    size = {"height": keys["vision.image_size"], "width": keys["vision.image_size"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    preprocessor = tmp_path / "preprocessor_config.json"
    preprocessor.write_text(json.dumps({"size": size, "do_normalize": False}))
    (tmp_path / "model.safetensors").write_bytes(safetensors(weights))
    file = open_tower_folder(tmp_path)
    assert known_kinds(file.config) == {"audio": "gemma3na", "image": "gemma3nv"}
    with Backend(file, make_executor(device, BackendParams(exact=True))) as backend:
        backend.load()
        tower = tower_class(backend.config, "image", "gemma3nv")(backend)
        media = tower.prepare(picture(41, 70))
        assert nmse(rows(tower, media), wanted) < LIMIT
    for wrong, said in (
        ({"size": {**size, "width": 256}}, "is 512 and the width 256, needs a square"),
        ({"size": size, "do_normalize": True}, "'do_normalize' is True, needs False"),
    ):
        preprocessor.write_text(json.dumps(wrong))
        with pytest.raises(ModelError, match=said):
            open_tower_folder(tmp_path)
    preprocessor.write_text(json.dumps({"size": size}))
    name = "model.vision_tower.timm_model.head.weight"
    (tmp_path / "model.safetensors").write_bytes(safetensors({name: np.ones((2, 2), "f4")}))
    with pytest.raises(ModelError, match="unexpected tensor for Gemma3nTower"):
        open_tower_folder(tmp_path)


def test_gemma3n_without_embeddings_of_tokens(tmp_path):
    facts, wanted = (part["gemma3n"] for part in recorded())
    weights = make_weights({name: tuple(shape) for name, shape in facts["shapes"].items()})
    del weights["mm.embedding.weight"]
    path = write_mmproj(tmp_path / "mmproj.gguf", facts["keys"], weights)
    tower, backend = open_tower(path, "cpu")
    with backend:
        media = tower.prepare(picture(41, 70))
        assert nmse(rows(tower, media), wanted[:256]) < LIMIT
    assert [*media.layout] == ["\n\n<start_of_image>", Rows(256), "<end_of_image>\n\n"]
    few = {name: w for name, w in weights.items() if "blk.3" not in name}
    path = write_mmproj(tmp_path / "few.gguf", facts["keys"], few)
    with pytest.raises(ModelError, match=r"v\.blk\.3\.0, v\.blk\.3\.1, … are missing"):
        open_tower(path, "cpu")


def test_gemma4_hears_whole_windows_only(tmp_path):
    tower, backend = open_recorded(tmp_path, recorded()[0], "gemma4-audio", "cpu")
    with backend:
        # Windows of 20 ms begin 10 ms before the sound; four of them make a row.
        for samples, count in ((161, 1), (320, 1), (321, 2), (960, 5), (480_000, 2999)):
            media = tower.prepare(sound(samples))
            assert media.arrays["frames"].shape == (count, 128)
            assert media.rows == math.ceil(count / 4)
        assert [*media.layout] == ["<|audio>", Rows(750), "<audio|>"]
        for samples in (0, 160, 480_001):
            with pytest.raises(MediaError, match=r"seconds, the model takes 0\.02 to 30"):
                tower.prepare(sound(samples))
        # Silence: the logarithm of the floor.
        frames = tower.prepare(np.zeros(400, np.float32)).arrays["frames"]
        assert np.allclose(frames, np.log(1e-3), atol=1e-6)


def test_gemma3n_has_188_rows_and_the_end_of_any_sound(tmp_path):
    facts, wanted = (part["gemma3n-audio"] for part in recorded())
    tower, backend = open_recorded(tmp_path, recorded()[0], "gemma3n-audio", "cpu")
    with backend:
        # Windows of 513 samples in multiples of 128.
        for samples, count in ((513, 1), (640, 1), (641, 2), (20_000, 123), (480_000, 2997)):
            media = tower.prepare(sound(samples))
            assert media.arrays["frames"].shape == (count, 128)
            assert [*media.layout] == ["\n\n<start_of_audio>", Rows(189), "\n\n"]
        for samples in (0, 512, 480_001):
            with pytest.raises(MediaError, match=r"seconds, the model takes 0\.033 to 30"):
                tower.prepare(sound(samples))
        frames = tower.prepare(sound(20_000)).arrays["frames"]
        assert np.allclose(frames[::40], np.array(facts["frames"]), rtol=0, atol=1e-6)
        # Silence: the logarithm of the floor.
        quiet = tower.prepare(np.zeros(1600, np.float32))
        assert np.allclose(quiet.arrays["frames"], np.log(1e-5), atol=1e-6)
        assert nmse(rows(tower, quiet)[1:], wanted[[8] * 187 + [188]]) < LIMIT


def test_gemma3n_hears_by_llama_cpps_file(tmp_path):
    tower, backend = open_recorded(tmp_path, recorded()[0], "gemma3n-audio", "cpu")
    with backend:
        weights = {name: each.numpy() for name, each in backend.weights.items()}
    keys = {
        "has_vision_encoder": False, "has_audio_encoder": True,
        "audio.projector_type": "gemma3na", "audio.projection_dim": 24,
        "audio.embedding_length": 32, "audio.feed_forward_length": 128, "audio.block_count": 2,
        "audio.attention.head_count": 2, "audio.attention.layer_norm_epsilon": 1e-5,
        "audio.num_mel_bins": 128,
    }  # fmt: skip
    names = {
        "a.blk.1.per_dim_scale",
        "a.blk.0.linear_pos.weight",
        "a.blk.1.layer_pre_norm.weight",
        "a.conv1d.1.norm.weight",
        "a.pre_encode.out.weight",
        "mm.a.hard_emb_norm.weight",
    }
    assert names <= {*weights}
    tower, backend = open_tower(write_mmproj(tmp_path / "mmproj.gguf", keys, weights), "cpu")
    with backend:
        found = rows(tower, tower.prepare(sound(20_000)))
    assert nmse(found, recorded()[1]["gemma3n-audio"]) < LIMIT
    wrong = {**weights, "a.conv1d.1.weight": np.zeros((4, 128, 3, 5), np.float32)}
    path = write_mmproj(tmp_path / "wrong.gguf", keys, wrong)
    with pytest.raises(ModelError, match=r"a\.conv1d\.1\.weight is \(4, 128, 3, 5\), needs"):
        open_tower(path, "cpu")


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("audio_config", "conf_reduction_factor", 2),
        ("audio_config", "gradient_clipping", 1.0),
        ("config", "audio_soft_tokens_per_image", 100),
        ("processor", "mel_floor", 0.1),
    ],
)
def test_gemma3n_refuses_another_conformer(tmp_path, place, name, value):
    facts = json.loads(json.dumps({"other": recorded()[0]["gemma3n-audio"]}))
    own = facts["other"]
    (own["config"] if place == "config" else own["config"][place] if place in own["config"]
     else own[place])[name] = value  # fmt: skip
    with pytest.raises(ModelError, match=rf"'{name}' is {value}, needs"):
        open_recorded(tmp_path, facts, "other", "cpu")


# Names that llama.cpp's converter gives MiniCPM-V's weights; it swaps the two last matrices.
MINICPM_NAMES = (
    (r"^vpm\.(embeddings\.)?", "v."),
    (r"encoder\.layers", "blk"),
    (r"self_attn\.(q|k|v|out)_proj", r"attn_\1"),
    (r"layer_norm", "ln"),
    (r"post_layernorm", "post_ln"),
    (r"mlp\.fc1", "ffn_down"),
    (r"mlp\.fc2", "ffn_up"),
    (r"(patch|position)_embedding", r"\1_embd"),
    (r"\.kv_proj", ".kv"),
    (r"attn\.out_proj", "attn.out"),
)


def write_minicpm(path):
    """Write MiniCPM-V's recorded tower as llama.cpp's converter does."""
    shapes = {k: tuple(v) for k, v in recorded()[0]["minicpm-v"]["shapes"].items()}
    weights = {}
    for name, values in make_weights(shapes).items():
        for pattern, to in MINICPM_NAMES:
            name = re.sub(pattern, to, name)
        if "in_proj_" in name:
            parts = zip("qkv", np.split(values, 3), strict=True)
            weights |= {name.replace("in_proj_", f"{part}."): each for part, each in parts}
        elif name == "resampler.proj":
            weights["resampler.proj.weight"] = values.T
        else:
            weights[name] = values
    keys = {
        "projector_type": "resampler",
        "minicpmv_version": 3,
        "use_gelu": True,
        # The converter writes 448, whatever the table of positions is for.
        "vision.image_size": 448,
        "vision.patch_size": 7,
        "vision.projection_dim": 0,
        "vision.embedding_length": 32,
        "vision.feed_forward_length": 48,
        "vision.block_count": 2,
        "vision.attention.head_count": 2,
        "vision.attention.layer_norm_epsilon": 1e-3,
        "vision.image_mean": [0.5] * 3,
        "vision.image_std": [0.5] * 3,
    }
    return write_mmproj(path, keys, weights)


def test_minicpm_v_of_llama_cpp(tmp_path):
    path = write_minicpm(tmp_path / "mmproj.gguf")
    tower, backend = open_tower(path, "cpu")
    with backend:
        # The file has no key for it.
        tower.edge = 28
        assert nmse(rows(tower, tower.prepare(picture(41, 70))), recorded()[1]["minicpm-v"]) < LIMIT
        tower.version = 2
        assert "".join(x for x in tower.lay_out((2, 1)) if isinstance(x, str)) == (
            "<image></image><slice><image></image>\n<image></image></slice>"
        )
        # Sizes of MiniCPM-V 2.6's published processor: 448 pixels a side, at most nine slices.
        tower.edge, tower.patch = 448, 14
        assert tower.find_grid((448, 448)) is None
        assert tower.find_grid((900, 600)) == (2, 1)
        assert tower.find_grid((2000, 4000)) == (2, 4)
        assert tower.fit((250, 400), enlarge=True) == (350, 560)
        assert tower.fit((250, 400), enlarge=False) == (252, 406)
    # The width of rows is that of the last matrix.
    keys = {"general.architecture": "qwen2", "qwen2.embedding_length": 24}
    fitting = SimpleNamespace(config=Config("m.gguf", keys), tensors={}, path=Path("m.gguf"))
    require_fitting_tower(path, fitting)
    fitting.config = Config("m.gguf", {**keys, "qwen2.embedding_length": 32})
    with pytest.raises(ModelError, match="its rows have 24 columns"):
        require_fitting_tower(path, fitting)


OLLAMAS = {
    "mistral3": (
        (r"^vision_tower\.", "v."),
        (r"transformer\.layers", "blk"),
        (r"ln_pre", "encoder_norm"),
        (r"attention\.(q|k|v)_proj", r"attn_\1"),
        (r"attention\.o_proj", "attn_output"),
        (r"attention_norm", "attn_norm"),
        (r"feed_forward\.(gate|up|down)_proj", r"ffn_\1"),
        (r"^multi_modal_projector\.", "mm."),
    ),
    "llama4": (
        (r"^vision_model\.", "v."),
        (r"self_attn\.(q|k|v)_proj", r"attn_\1"),
        (r"self_attn\.o_proj", "attn_output"),
        (r"model\.layers", "blk"),
        (r"input_layernorm", "attn_norm"),
        (r"post_attention_layernorm", "ffn_norm"),
        (r"^multi_modal_projector\.", "mm."),
        (r"patch_embedding\.linear", "patch_embedding"),
    ),
}
OLLAMA_KEYS = {
    "mistral3": {
        "attention.layer_norm_rms_epsilon": 2e-3,
        "spatial_merge_size": 2,
        "vision.image_size": 56,
        "vision.feed_forward_length": 48,
    },
    "llama4": {
        "vision.image_size": 28,
        "vision.feed_forward_length": 128,
        "vision.pixel_shuffle_ratio": 0.5,
    },
}


def write_one_file(path, name):
    """Write a tower as Ollama's converter names its tensors, with the language model's file."""
    shapes = recorded()[0][name]["shapes"]
    weights = make_weights({k: tuple(v) for k, v in shapes.items()})
    keys = {
        "embedding_length": 24,
        "vision.block_count": 2,
        "vision.embedding_length": 32,
        "vision.attention.head_count": 2,
        "vision.patch_size": 7,
        **OLLAMA_KEYS[name],
    }
    writer = GGUFWriter(path, name)
    for key, value in keys.items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(
            f"{name}.{key}", value
        )
    writer.add_tensor("token_embd.weight", np.zeros((9, 24), np.float32))
    for full, values in weights.items():
        for pattern, to in OLLAMAS[name]:
            full = re.sub(pattern, to, full)
        writer.add_tensor(full, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rows_of(file, most=None):
    with file, Backend(file, make_executor("cpu", BackendParams(exact=True))) as backend:
        backend.load()
        [(modality, kind)] = projector_kinds(backend.config).items()
        tower: Any = tower_class(backend.config, modality, kind)(backend)
        tower.most = most
        return rows(tower, tower.prepare(picture(41, 70)))


@pytest.mark.parametrize("name", OLLAMAS)
def test_rows_of_ollamas_files(name, tmp_path):
    with text_part(open_gguf(write_one_file(tmp_path / "model.gguf", name))) as text:
        tower = own_tower(text)
        assert tower is not None
        # The number of tiles is not in the file.
        assert nmse(rows_of(tower, most=6), recorded()[1][name]) < LIMIT


def test_llama4_takes_its_second_norm_under_another_name(tmp_path):
    tower, backend = open_recorded(tmp_path, recorded()[0], "llama4", "cpu")
    with backend:
        plain = rows(tower, tower.prepare(picture(41, 70)))
    file = open_tower_folder(tmp_path)
    assert file is not None
    names = {name.replace(".ln2.", ".attn_post_norm."): name for name in file.tensors}
    other = FilePart(file, file.metadata, names, owns=True)
    assert np.array_equal(rows_of(other, most=6), plain)


def test_the_projector_of_an_mmproj_file_takes_the_language_models_epsilon(tmp_path):
    keys = {"general.architecture": "llama", "llama.attention.layer_norm_rms_epsilon": 2e-3}
    path = write_mmproj(tmp_path / "mmproj.gguf", {"projector_type": "pixtral"}, {"mm.x": PLAIN})
    with tower_part(open_gguf(path), Config("model.gguf", keys)) as part:
        assert part.config.float("vision.projector.layer_norm_epsilon") == pytest.approx(2e-3)
    own = {"projector_type": "pixtral", "vision.projector.layer_norm_epsilon": 1e-4}
    path = write_mmproj(tmp_path / "own.gguf", own, {"mm.x": PLAIN})
    with tower_part(open_gguf(path), Config("model.gguf", keys)) as part:
        assert part.config.float("vision.projector.layer_norm_epsilon") == pytest.approx(1e-4)
