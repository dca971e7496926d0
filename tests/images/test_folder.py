"""Folders of pipelines: components, their settings and tensors, and what is wrong with them."""

import json

import numpy as np
import pytest

from tests.files.huggingface.folders import safetensors
from wgpu_backend.errors import ModelError
from wgpu_backend.images.folder import PipelineFolder

UNET, BIAS = "conv_in.weight", "conv_in.bias"
STEM = "diffusion_pytorch_model"


def pipeline(path, files, index=None):
    """A folder whose unet has these files."""
    (path / "unet").mkdir()
    known = {"_class_name": "StableDiffusionPipeline", "unet": ["diffusers", "UNet"]}
    extra = {"safety_checker": [None, None], "vae": ["diffusers", "AutoencoderKL"]}
    (path / "model_index.json").write_text(json.dumps(known | extra | (index or {})))
    (path / "unet/config.json").write_text(json.dumps({"in_channels": 4}))
    for name, data in files.items():
        (path / "unet" / name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return PipelineFolder(path)


def tensors(rng):
    return {UNET: rng.standard_normal((2, 3, 1, 5), "f4"), BIAS: rng.standard_normal(2, "f4")}


def shards(values, infix=""):
    """Two shards and their index."""
    names = [f"{STEM}{infix}-0000{i}-of-00002.safetensors" for i in (1, 2)]
    files = {n: safetensors({key: values[key]}) for n, key in zip(names, values, strict=True)}
    files[f"{STEM}.safetensors.index{infix}.json"] = json.dumps(
        {"weight_map": dict(zip(values, names, strict=True))}
    )
    return files


@pytest.mark.parametrize("kind", ["plain", "variant", "shards", "shards of a variant", "model"])
def test_tensors_are_found_in_files_of_any_name(tmp_path, rng, kind):
    values = tensors(rng)
    files = {
        "plain": {f"{STEM}.safetensors": safetensors(values)},
        "variant": {f"{STEM}.fp16.safetensors": safetensors(values)},
        "shards": shards(values),
        "shards of a variant": shards(values, ".fp16"),
        "model": {"model.safetensors": safetensors(values)},
    }[kind]
    with pipeline(tmp_path, files) as folder:
        unet = folder["unet"]
        assert (folder.class_name, unet.class_name) == ("StableDiffusionPipeline", "UNet")
        assert unet.settings.uint("in_channels") == 4
        np.testing.assert_array_equal(unet.array(UNET, (2, 3, 1, 5)), values[UNET])
        np.testing.assert_array_equal(unet.values(BIAS).read(0, 1), values[BIAS][None])
        unet.require({name: x.shape for name, x in values.items()})


def test_of_two_variants_the_wanted_one_is_read(tmp_path, rng):
    plain, half = tensors(rng), {k: v.astype("f2") for k, v in tensors(rng).items()}
    files = {
        f"{STEM}.safetensors": safetensors(plain),
        f"{STEM}.fp16.safetensors": safetensors(half),
    }
    assert pipeline(tmp_path, files)["unet"].array(BIAS)[0] == plain[BIAS][0]
    assert PipelineFolder(tmp_path, "fp16")["unet"].array(BIAS)[0] == half[BIAS][0]
    with pytest.raises(ModelError, match="no safetensors of variant 'bf16', there are diffusion_"):
        _ = PipelineFolder(tmp_path, "bf16")["unet"].tensors


def test_types_that_numpy_has_not_become_f32_and_integers_stay(tmp_path, rng):
    bits = rng.integers(0, 0x7F00, (3, 2), "u2")
    data = safetensors(
        {"a": bits, "ids": np.arange(77)[None], "one": np.ones((), "f4")}, {"a": "BF16"}
    )
    unet = pipeline(tmp_path, {"model.safetensors": data})["unet"]
    np.testing.assert_array_equal(unet.array("a").view("u4"), bits.astype("u4") << 16)
    np.testing.assert_array_equal(unet.array("ids"), np.arange(77)[None])
    assert unet.array("one").shape == ()


def test_what_is_wrong_with_tensors_is_one_line(tmp_path, rng):
    values = tensors(rng)
    unet = pipeline(tmp_path, {f"{STEM}.safetensors": safetensors(values)})["unet"]
    for call, message in (
        (
            lambda: unet.array(BIAS, (3,)),
            r"'conv_in.bias' has shape \[2\], the settings need \[3\]",
        ),
        (lambda: unet.array("x." + BIAS, (2,)), r"of shape \[2\] is missing; 'conv_in.bias' is th"),
        (lambda: unet.require({BIAS: (4,)}), r"shape \[2\], the settings need \[4\]"),
        (
            lambda: unet.require({"a": (4,), BIAS: (2,)}),
            r"1 of 2 tensors are missing: 'a' \[4\]; 2",
        ),
        (lambda: unet.choose({"A": 1}), r"class 'UNet' is unknown, needs one of A"),
    ):
        with pytest.raises(ModelError, match=message):
            call()
    assert unet.choose({"UNet": 7}) == 7


def test_damaged_files_of_weights_are_told(tmp_path, rng):
    files = shards(tensors(rng))
    whole = files.pop(f"{STEM}-00002-of-00002.safetensors")
    folder = pipeline(tmp_path, files)
    with pytest.raises(ModelError, match="no such file; 1 of the 2 shards"):
        _ = folder["unet"].tensors
    (tmp_path / f"unet/{STEM}-00002-of-00002.safetensors").write_bytes(whole[:-3])
    with pytest.raises(ModelError, match="it is truncated"):
        _ = folder["unet"].tensors


def test_folders_that_are_no_pipelines_are_told(tmp_path):
    with pytest.raises(ModelError, match="has no model_index"):
        PipelineFolder(tmp_path)
    with pytest.raises(ModelError, match="is not a folder, needs one with model_index"):
        PipelineFolder(tmp_path / "x")
    folder = pipeline(tmp_path, {})
    for name, message in (
        ("text_encoder", "no component 'text_encoder', model_index.json has unet, vae"),
        ("vae", "no such folder; model_index.json lists it"),
    ):
        with pytest.raises(ModelError, match=message):
            folder[name]
    with pytest.raises(ModelError, match=f"no {STEM}.safetensors and no"):
        _ = folder["unet"].tensors
    with pytest.raises(ModelError, match="class 'StableDiffusionPipeline' is unknown"):
        folder.choose({"FluxPipeline": 1})


@pytest.mark.parametrize("name", ["../unet", "a/b", ".."])
def test_components_stay_in_the_folder(tmp_path, name):
    with pytest.raises(ModelError, match="needs a library and a class"):
        pipeline(tmp_path, {}, {name: ["diffusers", "UNet"]})
