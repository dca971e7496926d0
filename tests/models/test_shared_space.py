"""CLIP and SigLIP embed texts and pictures as transformers does.

Recorded by `tests/data/make_shared_space.py` with transformers 5.24 and Pillow 13.
"""

import json
from functools import cache
from pathlib import Path

import numpy as np
import PIL
import pytest

import wgpu_backend as wb
from tests.builders import tiny_model
from tests.data.tower_weights import make_weights, picture, write_tokenizer
from tests.files.huggingface.folders import safetensors
from wgpu_backend.errors import MediaError, ModelError, OptionError
from wgpu_backend.server.core.model_capabilities import read_capabilities
from wgpu_backend.testing import nmse

TEXTS = ["A  Cat's dog!! 42\n café", "dog", "cat cat dog"]
PICTURES = [picture(41, 70), picture(33, 20)]
DEVICES = ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)]
# Other versions of Pillow round a few values of resized pictures otherwise.
LIMIT = 1e-10 if PIL.__version__.startswith("13.") else 1e-3


@cache
def recorded():
    with np.load(Path(__file__).parents[1] / "data/shared_space.npz") as file:
        arrays = dict(file)
    return json.loads(arrays.pop("facts").tobytes()), arrays


def write_folder(folder, name, **changes):
    facts = recorded()[0][name]
    (folder / "config.json").write_text(json.dumps(facts["config"]))
    (folder / "preprocessor_config.json").write_text(json.dumps(facts["processor"] | changes))
    weights = make_weights({k: tuple(v) for k, v in facts["shapes"].items()})
    (folder / "model.safetensors").write_bytes(safetensors(weights))
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["clip", "clip-newer", "siglip"])
def test_vectors_are_those_of_transformers(name, device, tmp_path):
    which = None if device == "gpu" else device
    with wb.load(write_folder(tmp_path, name), device=which, exact=True, kv_dtype="f32") as model:
        ids = [model.model.fit_text(model.tokenizer.encode(text)) for text in TEXTS]
        assert ids == recorded()[0][name]["ids"]
        found = model.embed(TEXTS, images=PICTURES)
        alone = model.embed(images=PICTURES[1:])
    wanted = recorded()[1][name]
    assert found.shape == wanted.shape
    assert nmse(found[:3], wanted[:3]) < 1e-10
    assert nmse(found[3:], wanted[3:]) < LIMIT
    assert np.array_equal(alone, found[4:])


def test_tokens_after_the_end_do_not_count(tmp_path):
    with wb.load(write_folder(tmp_path, "clip-newer"), device="cpu", exact=True) as model:
        found = model.embed(["dog", "dog<|endoftext|>cat"])
    assert np.array_equal(found[0], found[1])


def test_tokens_decode_to_words_with_spaces_between(tmp_path):
    with wb.load(write_folder(tmp_path, "clip"), device="cpu") as model:
        ids = model.tokenizer.encode(TEXTS[0])
        assert model.tokenizer.decode(ids) == "a cat 's dog !! 4 2 café "


def test_long_texts_and_bad_pictures_are_refused(tmp_path):
    with wb.load(write_folder(tmp_path, "siglip"), device="cpu") as model:
        with pytest.raises(wb.ContextFull, match="20"):
            model.embed("dog " * 40)
        with pytest.raises(MediaError):
            model.embed(images=[b"GIF89a"])


def test_capabilities_name_pictures(tmp_path):
    with wb.load(write_folder(tmp_path, "clip"), device="cpu") as model:
        assert read_capabilities(model.backend.file) == ["embedding", "vision"]
        assert model.towers.modalities == ["image"]


def test_a_processor_of_another_size_is_refused(tmp_path):
    folder = write_folder(tmp_path, "siglip", size={"height": 32, "width": 32})
    with (
        wb.load(folder, device="cpu") as model,
        pytest.raises(ModelError, match=r"size.*32.*image_size is 28"),
    ):
        model.embed(images=PICTURES)


def test_other_models_refuse_pictures(tmp_path):
    with (
        wb.load(tiny_model(tmp_path / "model.gguf"), device="cpu") as model,
        pytest.raises(OptionError, match="embeds texts only, pictures were given; needs a model"),
    ):
        model.embed(images=PICTURES)


def test_siglip_needs_its_tokenizer_json(tmp_path):
    folder = write_folder(tmp_path, "siglip")
    (folder / "vocab.json").unlink()
    (folder / "spiece.model").write_bytes(b"\n")
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "SiglipTokenizer"}')
    with pytest.raises(wb.TokenizerError, match=r"needs tokenizer\.json"):
        wb.load(folder, device="cpu")


def test_create_writes_the_picture_half_where_loading_finds_it(tmp_path):
    (tmp_path / "folder").mkdir()
    folder = write_folder(tmp_path / "folder", "siglip")
    # A tower of another model with the same width.
    other = tmp_path / "mmproj-other.gguf"
    report = wb.create(tmp_path / "model.gguf", folder)
    assert report.tower == tmp_path / "mmproj-model.gguf"
    other.write_bytes(report.tower.read_bytes())
    with wb.load(report.path, device="cpu", exact=True, kv_dtype="f32") as model:
        found = model.embed(TEXTS, images=PICTURES)
    assert nmse(found, recorded()[1]["siglip"]) < LIMIT
