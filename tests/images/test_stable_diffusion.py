"""Stable Diffusion's networks and pipelines beside diffusers' own of tiny pipelines."""

import json
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

import wgpu_backend.array as wx
from tests.images import stages
from tests.images.test_lora_strength import written
from tests.images.tiny import NAMES, nmse
from wgpu_backend import images
from wgpu_backend.array import devices, nn
from wgpu_backend.array.session import Session
from wgpu_backend.errors import ContextError, ModelError, OptionError, OutOfMemory
from wgpu_backend.images import tiling
from wgpu_backend.images.folder import PipelineFolder
from wgpu_backend.images.lora import diffusers_name
from wgpu_backend.images.networks import make_network, open_network
from wgpu_backend.images.weights import load_network

SD = [n for n in NAMES if n.startswith("sd")]
# Fed with what the reference was fed with: sums of some hundred products in another order.
OF_A_STAGE = 1e-10
# Errors of the first step pass through the others, and guidance multiplies them.
OF_A_PICTURE = 1e-9


@pytest.fixture
def host():
    """New arrays lie on NumPy."""
    with devices.preferring(devices.session("cpu")):
        yield


@pytest.mark.parametrize("name", ["sd15", "sd15-inpaint", "sdxl", "sd3", "sd35"])
def test_every_stage_says_what_diffusers_says(host, tiny, name):
    pipeline = tiny(name)
    with images.load(pipeline.path) as made:
        assert stages.text_error(pipeline, made.networks) <= OF_A_STAGE
        assert stages.denoiser_error(pipeline, made.networks) <= OF_A_STAGE
        assert max(stages.autoencoder_errors(pipeline, made.networks)) <= OF_A_STAGE


@pytest.mark.parametrize("name", SD)
def test_pictures_of_prompts_are_those_of_diffusers(host, tiny, name):
    pipeline = tiny(name)
    behind = []
    with images.load(pipeline.path) as made:
        asked = stages.arguments(made, pipeline)
        picture = made.generate(**asked, callback=lambda step: behind.append(step)).images
    assert nmse(picture, pipeline.arrays["image"]) <= OF_A_PICTURE
    if name == "sd15-inpaint4":  # the reference's are those before the mask
        return
    for step in behind:
        known = pipeline.arrays[f"step{step.index}.scheduler.prev_sample"]
        assert nmse(step.latents.numpy(), np.moveaxis(known, 1, -1)) <= OF_A_PICTURE
        assert step.count == len(behind)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sd15", "sdxl", "sd3"])
def test_pictures_of_devices_are_those_of_diffusers(full, tiny, name):
    pipeline = tiny(name)
    with devices.preferring(Session(full)), images.load(pipeline.path) as made:
        assert stages.picture_error(made, pipeline) <= OF_A_PICTURE


def test_previews_of_a_tiny_autoencoder_are_those_of_diffusers(host, tiny):
    pipeline = tiny("sd15")
    assert stages.preview_error(pipeline) <= OF_A_STAGE
    previews = []
    with images.load(pipeline.path) as made:
        made.generate(
            **stages.arguments(made, pipeline),
            callback=lambda step: previews.append(step.preview()),
        )
    known = np.clip(pipeline.arrays["taesd.decode.step2"][0] / 2 + 0.5, 0, 1)
    assert nmse(previews[2], known.transpose(1, 2, 0)) <= OF_A_PICTURE


def test_an_adapter_changes_the_picture_until_it_is_unloaded(host, tiny):
    pipeline = tiny("sd15")
    with np.load(pipeline.path / "reference/lora.npz") as stored:
        known = stored["image"]
    with images.load(pipeline.path) as made:
        made.load_lora_weights(pipeline.path / "lora.safetensors", scale=0.5)
        made.load_lora_weights(pipeline.path / "lora.safetensors", scale=0.5)
        assert stages.picture_error(made, pipeline, known) <= OF_A_PICTURE
        made.unload_lora_weights()
        assert stages.picture_error(made, pipeline) <= OF_A_PICTURE


DOWN, UP = np.ones((2, 64), np.float32), np.ones((64, 2), np.float32)
PLACE = "unet.mid_block.attentions.0.transformer_blocks.0.attn1.to_q"


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({f"{PLACE}.lora_A.weight": DOWN}, "has no up matrix"),
        (
            {f"{PLACE}.lora_A.weight": DOWN, f"{PLACE}.lora_B.weight": UP[:32]},
            r"is \[32, 2\] times",
        ),
        (
            {"unet.x.lora_A.weight": DOWN, "unet.x.lora_B.weight": UP},
            r"1 of 1 changes .* 'unet\.x'",
        ),
        ({"conv.weight": DOWN}, r"1 of 1 tensors belong to no known adapter: 'conv\.weight'"),
    ],
)
def test_adapters_of_other_models_change_nothing(host, tiny, tmp_path, tensors, message):
    with images.load(tiny("sd15").path) as made:
        weights = {s.path: s.array for s in made.networks["unet"].slots()}
        path = written(tmp_path / "lora.safetensors", tensors)
        with pytest.raises(ModelError, match=message):
            made.load_lora_weights(path)
        path.write_bytes(path.read_bytes()[:-8])
        with pytest.raises(ModelError, match="truncated"):
            made.load_lora_weights(path)
        assert all(s.array is weights[s.path] for s in made.networks["unet"].slots())


@pytest.mark.parametrize("ends", [("lora_A", "lora_B"), ("lora.down", "lora.up")])
def test_adapters_of_peft_and_diffusers_find_their_places(host, tiny, tmp_path, ends):
    tensors = {f"{PLACE}.{ends[0]}.weight": DOWN, f"{PLACE}.{ends[1]}.weight": UP}
    with images.load(tiny("sd15").path) as made:
        attention = made.networks["unet"].mid_block.attentions[0].transformer_blocks[0].attn1
        before = attention.to_q.weight.numpy()
        made.load_lora_weights(written(tmp_path / "lora.safetensors", tensors), scale=0.25)
        np.testing.assert_allclose(attention.to_q.weight.numpy(), before + 0.5, atol=1e-6)


def test_names_of_the_first_stable_diffusion_lead_to_diffusers():
    known = {
        "input_blocks_4_1_transformer_blocks_0_attn1_to_k":
            "down_blocks_1_attentions_0_transformer_blocks_0_attn1_to_k",
        "input_blocks_8_0_in_layers_2": "down_blocks_2_resnets_1_conv1",
        "input_blocks_3_0_op": "down_blocks_0_downsamplers_0_conv",
        "middle_block_1_proj_in": "mid_block_attentions_0_proj_in",
        "middle_block_2_out_layers_3": "mid_block_resnets_1_conv2",
        "output_blocks_5_1_proj_out": "up_blocks_1_attentions_2_proj_out",
        "output_blocks_2_2_conv": "up_blocks_0_upsamplers_0_conv",
        "label_emb_0_2": "add_embedding_linear_2",
        "mid_block_attentions_0_proj_in": "mid_block_attentions_0_proj_in",
    }  # fmt: skip
    assert {name: diffusers_name(name) for name in known} == known


def test_a_layer_adds_what_cannot_be_merged(host, rng):
    layer = nn.Linear(6, 4)
    x, down, up = (wx.array(rng.standard_normal(s, "f4")) for s in ((3, 6), (2, 6), (4, 2)))
    before = layer(x).numpy()
    layer.add_low_rank(down, up)
    want = before + x.numpy() @ (up.numpy() @ down.numpy()).T
    np.testing.assert_allclose(layer(x).numpy(), want, atol=1e-5)
    layer.remove_low_rank()
    np.testing.assert_array_equal(layer(x).numpy(), before)


@pytest.mark.parametrize("name", ["sd15", "sd3"])
def test_seeds_say_which_picture_in_any_size(host, tiny, name):
    asked = {"width": 48, "height": 32, "num_inference_steps": 1, "output_type": "np"}
    asked |= {"max_sequence_length": 16}
    with images.load(tiny(name).path) as made:
        first, other = (made.generate("a dog", seed=seed, **asked) for seed in (1, 2))
        both = made.generate("a dog", seed=1, num_images_per_prompt=2, **asked)
        unguided = made.generate("a dog", seed=1, guidance_scale=1.0, **asked)
        drawn = made.generate("a dog", **asked)
        again = made.generate("a dog", seed=drawn.seeds[0], **asked | {"output_type": "pil"})
    np.testing.assert_array_equal(both.images, np.concatenate([first.images, other.images]))
    assert both.seeds == [1, 2]
    assert first.images.shape == (1, 32, 48, 3)
    assert nmse(other.images, first.images) > 1e-3
    assert nmse(unguided.images, first.images) > 1e-6
    assert again.images[0].size == (48, 32)
    assert np.abs(np.asarray(again.images[0]) / 255 - drawn.images[0]).max() <= 0.5 / 255 + 1e-6


def test_a_step_is_traced_once_for_all_prompts_steps_and_scales(host, tiny, monkeypatch):
    pipeline = tiny("sd15-dpmpp2m")
    with images.load(pipeline.path) as made:
        asked = stages.arguments(made, pipeline)
        made.generate(**asked)
        monkeypatch.setattr(made, "predict", None)  # calling it again would fail
        made.generate(
            **asked | {"prompt": "a dog", "guidance_scale": 3.0, "num_inference_steps": 5}
        )


@pytest.mark.parametrize("name", ["sd15", "sdxl", "sd3"])
def test_a_picture_is_begun_with_or_painted_in_part(host, tiny, name):
    picture = Image.fromarray(tiny(name).arrays["picture"]).resize((48, 40))
    mask = np.zeros((40, 48), np.uint8)
    mask[:, 24:] = 255
    asked = {"num_inference_steps": 4, "output_type": "latent", "image": picture, "seed": 1}
    asked |= {"max_sequence_length": 16}
    with images.load(tiny(name).path) as made:
        little, much = (
            made.generate("a dog", strength=strength, **asked).images for strength in (0.25, 1.0)
        )
        painted = made.generate("a dog", mask_image=mask, width=48, height=40 // 16 * 16, **asked)
        latents = made.encode(
            images.pictures.encoder_input(picture.resize((48, 32))), zeros
        ).numpy()
    assert little.shape == much.shape
    assert nmse(little, much) > 1e-3
    kept = np.moveaxis(painted.images, 1, -1)[:, :, :3]
    assert nmse(kept, latents[:, :, :3]) < nmse(
        np.moveaxis(much, 1, -1)[:, :4, :3], latents[:, :, :3]
    )


def zeros(shape):
    return np.zeros(shape, np.float32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 60}, "an image of 60 x 64 pixels, needs multiples of 8"),
        ({"latents": np.zeros((1, 4, 7, 8))}, r"latents are \(1, 4, 7, 8\), needs \(1, 4, 8, 8\)"),
        ({"mask_image": np.zeros((8, 8), np.uint8)}, "mask_image without image"),
        ({"output_type": "jpg"}, "output_type is 'jpg'"),
        ({"strength": 0.1, "image": np.zeros((64, 64, 3), np.uint8)}, "strength is 0.1 of 3 steps"),
        ({"num_inference_steps": 0}, "steps"),
        ({"guidance_scale": -1}, "guidance_scale is -1"),
        ({"seed": -1}, "seed is -1"),
        ({"scheduler": "magic"}, "scheduler is 'magic', needs one of ddim"),
        ({"eta": 1}, "unexpected keyword argument 'eta'"),
        ({"image": "no.png"}, "no.png: No such file"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(host, tiny, options, message):
    with images.load(tiny("sd15").path) as made:
        with pytest.raises(OptionError, match=message) as caught:
            made.generate("a dog", **{"num_inference_steps": 3, **options})
        assert "\n" not in str(caught.value)
    with pytest.raises(ContextError, match="it is closed"):
        made.generate("a dog")


def test_a_model_that_paints_wants_a_mask(host, tiny):
    with (
        images.load(tiny("sd15-inpaint").path) as made,
        pytest.raises(OptionError, match="is an inpainting model, give image and mask_image"),
    ):
        made.generate("a dog")


def test_a_callback_ends_the_call_by_an_exception(host, tiny):
    seen = []

    def stop(step):
        seen.append(step.index)
        raise KeyError("enough")

    with images.load(tiny("sd15").path) as made, pytest.raises(KeyError, match="enough"):
        made.generate("a dog", num_inference_steps=5, callback=stop)
    assert seen == [0]


def test_another_scheduler_makes_what_its_folder_makes(host, tiny):
    pipeline = tiny("sd15-dpmpp2m-karras")
    with images.load(tiny("sd15").path) as made:
        asked = stages.arguments(made, pipeline)
        picture = made.generate(**asked, scheduler="dpmpp-2m-karras").images
    assert nmse(picture, pipeline.arrays["image"]) <= OF_A_PICTURE


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("conv_in.bias"), "1 of 208 tensors are missing: 'conv_in.bias'"),
        (lambda t: t.update({"x": t["conv_in.bias"]}), "1 tensors have no place in UNet: 'x'"),
    ],
)
def test_tensors_that_do_not_fit_are_told(host, tiny, change, message):
    with PipelineFolder(tiny("sd15").path) as folder:
        component = folder["unet"]
        change(component.tensors)
        with pytest.raises(ModelError, match=message):
            open_network(component)


def test_settings_that_are_not_known_are_refused(host, tiny):
    changes = (
        ("sd15", "unet", {"down_block_types": ["AttnDownBlock2D"]}),
        ("sd15", "unet", {"class_embed_type": "timestep"}),
        ("sd15", "unet", {"attention_head_dim": [1, 2, 3]}),
        ("sd15", "vae", {"up_block_types": ["AttnUpDecoderBlock2D"]}),
        ("sd3", "transformer", {"qk_norm": "layer_norm"}),
    )
    for name, part, change in changes:
        with PipelineFolder(tiny(name).path) as folder:
            folder[part].settings.values.update(change)
            with pytest.raises(ModelError, match=next(iter(change))):
                make_network(folder[part])


def test_old_names_of_the_autoencoder_lead_to_its_attention(host, tiny):
    with PipelineFolder(tiny("sd15").path) as folder:
        component = folder["vae"]
        old_names = {"query": "to_q", "key": "to_k", "value": "to_v", "proj_attn": "to_out.0"}
        for old, new in old_names.items():
            for name in [n for n in component.tensors if f"attentions.0.{new}." in n]:
                component.tensors[name.replace(new, old)] = component.tensors.pop(name)
        network = load_network(component, make_network(component))
        assert stages.autoencoder_errors(tiny("sd15"), {"vae": network})[0] <= OF_A_STAGE


def test_weights_stay_in_their_type_and_vectors_become_f32(host, tiny, tmp_path):
    with PipelineFolder(tiny("sd15").path) as folder:
        component = folder["vae"]
        halves = {name: component.array(name) for name in component.tensors}
        path = tmp_path / "diffusion_pytorch_model.safetensors"
        written(path, halves)
        text = path.read_bytes()
        size = int.from_bytes(text[:8], "little")
        header = json.loads(text[8 : 8 + size])
        for entry in header.values():
            entry["dtype"] = "F16"
            entry["data_offsets"] = [offset // 2 for offset in entry["data_offsets"]]
        data = np.frombuffer(text[8 + size :], np.float32).astype(np.float16).tobytes()
        text = json.dumps(header).encode()
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        stored = type(component)(tmp_path, "vae", "AutoencoderKL")
        network = load_network(stored, make_network(component))
    assert network.decoder.conv_in.weight.dtype == wx.float16
    assert network.decoder.conv_in.bias.dtype == wx.float32
    # Weights have eleven bits.
    assert stages.autoencoder_errors(tiny("sd15"), {"vae": network})[0] < 1e-4


# Tiles.


def test_tiles_cover_a_side_and_overlap():
    for extent in (1, 8, 15, 16, 17, 40, 64, 129):
        places = tiling.starts(extent, 16)
        assert places[0] == 0
        assert max(places) + 16 >= extent
        assert all(b - a <= 12 for a, b in pairwise(places))


def test_what_tiles_make_of_themselves_is_the_picture(host, rng):
    x = rng.standard_normal((1, 37, 50, 3), "f4")

    def twice(tile):
        return nn.resized(tile, 2 * tile.shape[1], 2 * tile.shape[2])

    made = tiling.run_tiled(x, twice, 16, lambda side: 2 * side)
    np.testing.assert_allclose(made, x.repeat(2, 1).repeat(2, 2), atol=1e-6)


def test_tiles_bound_the_memory_of_large_pictures(full, tiny):
    """Three and a half of the largest arrays of a tile, whatever the picture's size."""
    with devices.preferring(Session(full)), images.load(tiny("sd15").path) as made:
        made.tile = 8
        largest = 4 * made.vae.widest * (made.tile * made.vae.factor) ** 2
        for side in (8, 14):
            made.decode(wx.zeros((1, side, side, 4)))
            needed = [t._recorded.plan.peak_nbytes for t in made._decode._traces.values()]
            assert len(needed) == 1
            assert largest < needed[0] <= 3.5 * largest


def test_tiles_fit_into_bindings_and_the_budget(full):
    host = devices.session("cpu")
    assert tiling.tile_side(host, 8, 256) == 32
    side = tiling.tile_side(Session(full), 8, 256)
    limit = min(full.capabilities.max_binding_nbytes, tiling.BUDGET)
    assert 4 * 256 * (8 * side) ** 2 <= limit < 4 * 256 * (8 * (side + 8)) ** 2
    with pytest.raises(OptionError, match="8 latents a side needs"):
        tiling.tile_side(host, 64, 256)


def test_memory_returns_to_the_start(host, tiny):
    start = wx.get_active_memory()
    with images.load(tiny("sd15").path) as made:
        loaded = wx.get_active_memory()
        asked = {"num_inference_steps": 2, "seed": 1, "output_type": "np"}
        made.generate("a dog", **asked)
        first = wx.get_active_memory()
        for _ in range(3):
            made.generate("a dog", **asked)
        assert wx.get_active_memory() == first
        limit = wx.set_memory_limit(first + 1000)
        try:
            with pytest.raises(OutOfMemory):
                made.generate("a dog", width=128, **asked)
        finally:
            wx.set_memory_limit(limit)
        assert wx.get_active_memory() == first
    assert loaded > start
    assert wx.get_active_memory() == start
