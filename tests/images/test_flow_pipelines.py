"""Transformers for flow matching and their pipelines beside diffusers' own of tiny pipelines."""

import numpy as np
import pytest

import wgpu_backend.array as wx
from tests.images.tiny import nmse
from wgpu_backend import images
from wgpu_backend.array import devices
from wgpu_backend.array.session import Session
from wgpu_backend.errors import ModelError, OptionError, ShapeError
from wgpu_backend.images.folder import PipelineFolder
from wgpu_backend.images.networks import open_network
from wgpu_backend.models.images.autoencoder_kl import AutoencoderKL

FLUX = ("flux1-dev", "flux1-schnell")
KLEIN = ("flux2-klein", "flux2-klein-base", "flux2-klein-edit")
Z_IMAGE = ("z-image", "z-image-turbo")
QWEN = ("qwen-image", "qwen-image-edit")
NAMES = FLUX + KLEIN + Z_IMAGE + QWEN
# Fed with what the reference was fed with: sums of some hundred products in another order.
OF_A_STAGE = 1e-10
# Errors of the first step pass through the others, and guidance multiplies them.
OF_A_PICTURE = 1e-9


@pytest.fixture
def host():
    """New arrays lie on NumPy."""
    with devices.preferring(devices.session("cpu")):
        yield


@pytest.fixture
def session(executor):
    """New arrays lie on each profile of the adapter in turn."""
    made = Session(executor)
    with devices.preferring(made):
        yield made


def network(pipeline, part):
    with PipelineFolder(pipeline.path) as folder:
        return open_network(folder[part])


def channels_last(x):
    return np.ascontiguousarray(np.moveaxis(x[:, :, 0] if x.ndim == 5 else x, 1, -1))


def velocity(name, transformer, arrays, call):
    """Output of a call, and the reference's."""

    def given(argument):
        return wx.array(arrays[f"{call}.{argument}"])

    if name in Z_IMAGE:
        x = channels_last(arrays[f"{call}.x.0"][None])
        text = arrays[f"{call}.cap_feats.0"][None]
        rope = wx.array(transformer.rope(*x.shape[1:3], text.shape[1]))
        y = transformer(wx.array(x), given("t")[:1], wx.array(text), rope)
        return y, channels_last(arrays[f"{call}.output.0"][None])
    x, text = given("hidden_states"), given("encoder_hidden_states")
    height, width = arrays["noise.initial"].shape[-2:]
    grid = (height, width) if name in KLEIN else (height // 2, width // 2)
    grids = [grid] * (x.shape[1] // (grid[0] * grid[1]))
    rope = wx.array(transformer.rope(grid if name in FLUX else grids, text.shape[1]))
    arguments = [x, given("timestep"), text, rope]
    if name in FLUX:
        arguments.insert(3, given("pooled_projections"))
    if transformer_is_guided := f"{call}.guidance" in arrays:
        arguments.append(given("guidance"))
    assert transformer_is_guided == getattr(transformer, "guided", False)
    return transformer(*arguments), arrays[f"{call}.output"]


@pytest.mark.parametrize("name", NAMES)
def test_transformers_say_what_diffusers_says(host, tiny, name):
    pipeline = tiny(name)
    transformer = network(pipeline, "transformer")
    calls = {k.rpartition(".")[0].removesuffix(".output") for k in pipeline.arrays if "output" in k}
    calls = {c for c in calls if ".transformer.call" in c}
    assert len(calls) >= 3
    for call in calls:
        made, known = velocity(name, transformer, pipeline.arrays, call)
        assert nmse(made.numpy(), known) <= OF_A_STAGE


@pytest.mark.parametrize("name", ["flux2-klein", "z-image", *QWEN])
def test_text_encoders_have_the_states_of_transformers(host, tiny, name):
    pipeline = tiny(name)
    encoder = network(pipeline, "text_encoder")
    for call in range(2):
        given = {
            key: pipeline.arrays.get(f"text_encoder.call{call}.{key}")
            for key in ("input_ids", "attention_mask", "pixel_values", "image_grid_thw")
        }
        if given["input_ids"] is None:
            continue
        ids = given["input_ids"][0]
        if given["pixel_values"] is not None:
            grid = tuple(int(n) for n in given["image_grid_thw"][0])
            states = encoder(ids, given["pixel_values"], grid, in_a_row=True)
        elif name in QWEN:
            states = encoder(ids)
        else:
            states = encoder(ids, given["attention_mask"][0].astype(np.int64))
        for i, state in enumerate(states):
            known = pipeline.arrays[f"text_encoder.call{call}.hidden_states.{i}"]
            assert nmse(state.numpy(), known) <= OF_A_STAGE


@pytest.mark.parametrize("name", ["qwen-image", "flux2-klein"])
def test_autoencoders_encode_and_decode_as_diffusers_does(host, tiny, name):
    arrays = tiny(name).arrays
    vae = network(tiny(name), "vae")
    kind = AutoencoderKL if name in KLEIN else type(vae)  # whose latents are not normalised
    for given, known in (
        ("vae.decode.call0.input", "vae.decode.call0.output"),
        ("vae.test_picture.mean", "vae.test_picture.decoded_mean"),
    ):
        made = kind.decode(vae, wx.array(channels_last(arrays[given])))
        assert nmse(made.numpy(), channels_last(arrays[known])) <= OF_A_STAGE
    made = kind.encode(vae, wx.array(channels_last(arrays["vae.test_picture.input"])))
    for value, key in zip(made, ("mean", "logvar"), strict=True):
        known = channels_last(arrays[f"vae.test_picture.{key}"])
        assert nmse(value.numpy(), known) <= OF_A_STAGE


def test_normalised_latents_of_flux2_decode_to_the_picture_that_was_encoded(host, tiny):
    arrays = tiny("flux2-klein").arrays
    vae = network(tiny("flux2-klein"), "vae")
    mean, _ = vae.encode(wx.array(channels_last(arrays["vae.test_picture.input"])))
    known = channels_last(arrays["vae.test_picture.decoded_mean"])
    assert nmse(vae.decode(mean).numpy(), known) <= OF_A_STAGE


def arguments_of(made, pipeline):
    """What `generate` is called with to make the reference's picture."""
    found = dict(pipeline.reference["arguments"])
    made.text_layers = found.pop("text_encoder_out_layers", None)
    if "true_cfg_scale" in found:
        found["guidance_scale"] = found.pop("true_cfg_scale")
    if "image" in found:
        found["image"] = pipeline.arrays["picture"]
    width, height = pipeline.reference["size"]
    # The tool scales pictures to its own size, and its transformers see them as text.
    made.area, made.in_a_row = width * height, True
    return found | {"latents": pipeline.arrays["latents.given"], "output_type": "np"}


@pytest.mark.parametrize("name", NAMES)
def test_pictures_of_prompts_are_those_of_diffusers(host, tiny, name):
    pipeline = tiny(name)
    with images.load(pipeline.path) as made:
        picture = made.generate(**arguments_of(made, pipeline)).images
    assert nmse(picture, pipeline.arrays["image"]) <= OF_A_PICTURE


@pytest.mark.parametrize("name", ["flux1-dev", "z-image-turbo", "qwen-image"])
def test_pictures_of_devices_are_those_of_diffusers(session, tiny, name):
    pipeline = tiny(name)
    with images.load(pipeline.path) as made:
        picture = made.generate(**arguments_of(made, pipeline)).images
    assert nmse(picture, pipeline.arrays["image"]) <= OF_A_PICTURE


def test_an_adapter_of_flux_changes_the_picture_as_peft_does(host, tiny):
    pipeline = tiny("flux1-dev")
    with np.load(pipeline.path / "reference/lora.npz") as stored:
        known = stored["image"]
    with images.load(pipeline.path) as made:
        made.load_lora_weights(pipeline.path / "lora.safetensors")
        picture = made.generate(**arguments_of(made, pipeline)).images
    assert nmse(picture, known) <= OF_A_PICTURE
    assert nmse(picture, pipeline.arrays["image"]) > 1e-4


@pytest.mark.parametrize("name", ["flux1-dev", "flux2-klein", "z-image-turbo", "qwen-image"])
def test_seeds_say_which_picture_in_any_size(host, tiny, name):
    with images.load(tiny(name).path) as made:
        made.text_layers = (1, 2, 3)
        asked = {"width": 48, "height": 32, "num_inference_steps": 1, "output_type": "np"}
        asked |= {"max_sequence_length": 32}
        first, second, other = (
            made.generate("a dog", seed=seed, **asked).images for seed in (1, 1, 2)
        )
        latents = made.generate("a dog", seed=1, **asked | {"output_type": "latent"}).images
        again = made.generate("a dog", latents=latents, **asked | {"num_inference_steps": 2})
    assert first.shape == (1, 32, 48, 3)
    np.testing.assert_array_equal(first, second)
    assert nmse(other, first) > 1e-3
    assert again.images.shape == first.shape


@pytest.mark.parametrize("name", ["flux1-dev", "z-image-turbo", "qwen-image"])
def test_a_picture_is_begun_with_or_painted_in_part(host, tiny, name):
    picture = tiny(name).arrays["picture"]
    mask = np.zeros(picture.shape[:2], np.uint8)
    mask[:, 32:] = 255
    asked = {"num_inference_steps": 2, "output_type": "latent", "image": picture, "seed": 1}
    asked |= {"max_sequence_length": 32, "width": 64, "height": 64}
    with images.load(tiny(name).path) as made:
        near, far = (
            made.generate("a dog", strength=strength, **asked).images for strength in (0.5, 1.0)
        )
        dog, cat = (
            made.generate(prompt, mask_image=mask, **asked).images for prompt in ("a dog", "a cat")
        )
    assert near.shape == far.shape == dog.shape
    assert nmse(near, far) > 1e-3
    # Behind the last step, what is kept is the picture, and what is painted is the prompt's.
    halves = [x if x.ndim == 4 else np.moveaxis(x.reshape(1, 4, 4, -1), -1, 1) for x in (dog, cat)]
    middle = halves[0].shape[-1] // 2
    kept, painted = ([x[..., part] for x in halves] for part in (np.s_[:middle], np.s_[middle:]))
    np.testing.assert_array_equal(*kept)
    assert nmse(*painted) > 1e-6


@pytest.mark.parametrize(("strength", "count"), [(1.0, 3), (0.7, 3), (0.6, 2), (0.01, 1)])
def test_part_of_a_step_of_flux_counts_as_a_whole(host, tiny, strength, count):
    made = []
    with images.load(tiny("flux1-dev").path) as pipeline:
        pipeline.generate(
            "a dog", image=tiny("flux1-dev").arrays["picture"], strength=strength, seed=1,
            num_inference_steps=3, max_sequence_length=32, callback=made.append,
        )  # fmt: skip
    assert len(made) == count
    assert made[-1].timestep < 600


def test_what_fits_no_pipeline_is_refused_in_one_line(host, tiny):
    with images.load(tiny("flux1-dev").path) as made:
        with pytest.raises(OptionError, match="does not support a negative prompt"):
            made.generate("a dog", "a cat")
        with pytest.raises(OptionError, match=r"latents are .*, needs \(1, 16, 32\)"):
            made.generate("a dog", latents=np.zeros((1, 4, 4)), width=64, height=64)
        with pytest.raises(OptionError, match="needs multiples of 16"):
            made.generate("a dog", width=72, height=64)
    with (
        images.load(tiny("qwen-image-edit").path) as made,
        pytest.raises(OptionError, match="edits an image, give image"),
    ):
        made.generate("a dog")


def test_places_beyond_those_of_z_image_are_refused(host, tiny):
    transformer = network(tiny("z-image"), "transformer")
    transformer.rope(126, 126, 32)
    with pytest.raises(ShapeError, match="reach"):
        transformer.rope(130, 8, 32)


def test_settings_that_are_not_known_are_refused(host, tiny):
    for name, part, change in (
        ("flux1-dev", "transformer", {"patch_size": 2}),
        ("z-image", "transformer", {"siglip_feat_dim": 8}),
        ("qwen-image", "transformer", {"zero_cond_t": True}),
        ("qwen-image", "vae", {"latents_mean": [0.0]}),
    ):
        with PipelineFolder(tiny(name).path) as folder:
            component = folder[part]
            component.settings.values.update(change)
            with pytest.raises(ModelError, match=next(iter(change))):
                open_network(component)
