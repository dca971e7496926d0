"""Files, ids, steps and pictures of all tiny pipelines, where they were made (`tiny.py`)."""

import json

import numpy as np
import pytest

from tests.images.tiny import NAMES, nmse
from wgpu_backend.images import pictures
from wgpu_backend.images.folder import PipelineFolder
from wgpu_backend.images.prompts import open_prompt_tokenizer
from wgpu_backend.images.schedulers import (
    Scheduler,
    first_step,
    klein_mu,
    linear_mu,
    linear_sigmas,
)
from wgpu_backend.images.vision_patches import vision_patches

# Coefficients up to 15, each rounded to f32 a few times: (15 · 6e-8)².
LIMIT = 1e-12
ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")


@pytest.mark.parametrize("name", NAMES)
def test_tensors_are_those_that_safetensors_reads(tiny, name):
    safetensors = pytest.importorskip("safetensors.numpy")
    with PipelineFolder(tiny(name).path) as folder:
        for component in folder.components.values():
            for path in component.folder.glob("*.safetensors"):
                known = safetensors.load_file(path)
                component.require({key: value.shape for key, value in known.items()})
                assert component.tensors.keys() == known.keys()
                for key, value in known.items():
                    np.testing.assert_array_equal(component.array(key), value)


@pytest.mark.parametrize("name", NAMES)
def test_ids_and_chats_are_those_of_transformers(tiny, name):
    path = tiny(name).path
    known = json.loads((path / "reference/tokenizers.json").read_text())
    for key, entries in known.items():
        tokenizer = open_prompt_tokenizer(path / key.removesuffix(".chat"))
        if key.endswith(".chat"):
            for variable, text in entries.items():
                thinks = variable.endswith("True")
                assert tokenizer.chat("a red circle", enable_thinking=thinks) == text
        else:
            made = [tokenizer.ids(entry["text"]) for entry in entries]
            assert made == [entry["ids"] for entry in entries]


@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(("sd", "flux1"))])
def test_text_encoders_are_given_the_ids_that_diffusers_gives(tiny, name):
    pipeline = tiny(name)
    arguments = pipeline.reference["arguments"]
    for encoder in ENCODERS:
        for call, key in enumerate(("prompt", "negative_prompt")):
            ids = pipeline.arrays.get(f"{encoder}.call{call}.input_ids")
            if ids is not None:
                folder = encoder.replace("text_encoder", "tokenizer")
                tokenizer = open_prompt_tokenizer(pipeline.path / folder)
                made = tokenizer.batch([arguments.get(key) or ""], ids.shape[1])
                np.testing.assert_array_equal(made.ids, ids)


@pytest.mark.parametrize("name", NAMES)
def test_steps_are_those_of_diffusers(tiny, name):
    pipeline = tiny(name)
    component = PipelineFolder(pipeline.path)["scheduler"]
    scheduler = Scheduler(component.class_name, component.settings)
    steps, arguments = pipeline.reference["steps"], pipeline.reference["arguments"]
    given = {}
    if "Flow" in component.class_name:
        tokens = (
            pipeline.arrays["noise.initial"][0, ..., ::2, ::2].size
            // (pipeline.arrays["noise.initial"].shape[-3])
        )
        klein = "klein" in name
        height, width = pipeline.arrays["noise.initial"].shape[-2:]
        klein = "klein" in name  # whose noise is packed already
        tokens = height * width if klein else height * width // 4
        mu = klein_mu(tokens, steps) if klein else linear_mu(component.settings, tokens)
        given = {"mu": mu} | ({} if name.startswith("sd3") else {"sigmas": linear_sigmas(steps)})
    if arguments.get("strength", 1) < 1:
        given["first"] = first_step(steps, arguments["strength"])
    schedule = scheduler.plan(steps, **given)
    known = pipeline.arrays["scheduler.timesteps"]
    np.testing.assert_allclose(schedule.timesteps, known, rtol=2e-7)
    for count, i in enumerate(schedule.steps):
        sample, output, noise, made = (
            pipeline.arrays.get(f"step{count}.scheduler.{part}")
            for part in ("sample", "model_output", "noise", "prev_sample")
        )
        assert nmse(schedule.step(output, i, sample, noise), made) <= LIMIT


@pytest.mark.parametrize("name", [n for n in NAMES if "paint" in n or "edit" in n or "img2" in n])
def test_encoders_are_given_the_pictures_that_diffusers_gives(tiny, name):
    pipeline = tiny(name)
    arrays = pipeline.arrays
    picture = pictures.load_picture(pipeline.path / "reference/picture.png")
    np.testing.assert_array_equal(picture, arrays["picture"])
    whole = pictures.encoder_input(picture)
    mask = pictures.mask_input(pictures.load_mask(arrays["mask"])) if "mask" in arrays else None
    masked = whole if mask is None else whole * (mask < 0.5)
    inputs = [
        value for key, value in arrays.items() if key.startswith("vae.encode") and "input" in key
    ]
    expected = {1: [masked], 2: [whole, masked]}[len(inputs)]
    for made, known in zip(expected, inputs, strict=True):
        np.testing.assert_array_equal(made.reshape(known.shape), known)
    patches = arrays.get("text_encoder.call0.pixel_values")
    if patches is not None:
        config = PipelineFolder(pipeline.path)["processor"].settings.section("image_processor")
        assert nmse(vision_patches(picture, config)[0], patches) <= LIMIT


@pytest.mark.parametrize("name", NAMES)
def test_values_become_the_bytes_of_the_picture(tiny, name):
    pipeline = tiny(name)
    made = pictures.to_picture(pipeline.arrays["image"][0])
    np.testing.assert_array_equal(
        made, pictures.load_picture(pipeline.path / "reference/image.png")
    )
