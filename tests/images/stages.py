"""Stages of a tiny pipeline, each fed with what diffusers fed its own with, and their errors."""

import numpy as np

import wgpu_backend.array as wx
from tests.images.test_flow_pipelines import NAMES as FLOWS
from tests.images.test_flow_pipelines import QWEN, channels_last, velocity
from tests.images.tiny import nmse
from wgpu_backend.images.folder import Component
from wgpu_backend.images.networks import open_network

ENCODERS = ("text_encoder", "text_encoder_2", "text_encoder_3")


def text_error(pipeline, networks):
    """Largest error of all states of all text encoders."""
    arrays, errors = pipeline.arrays, []
    for part in ENCODERS:
        for call in range(2):
            prefix = f"{part}.call{call}"
            if part in networks and f"{prefix}.input_ids" in arrays:
                made = encoded(pipeline, networks[part], prefix)
                errors += [nmse(value, arrays[f"{prefix}.{key}"]) for key, value in made.items()]
    return max(errors)


def encoded(pipeline, network, prefix):
    """What an encoder says, by the names of the reference."""
    arrays = pipeline.arrays
    ids = arrays[f"{prefix}.input_ids"]
    name = pipeline.path.name
    if name not in FLOWS or type(network).__name__.startswith(("CLIP", "T5")):
        made = network(ids)
        if isinstance(made, wx.Array):
            return {"last_hidden_state": made.numpy()}
        pooled = "text_embeds" if f"{prefix}.text_embeds" in arrays else "pooler_output"
        states = {f"hidden_states.{i}": s.numpy() for i, s in enumerate(made.states)}
        return states | {"last_hidden_state": made.last.numpy(), pooled: made.pooled.numpy()}
    if f"{prefix}.pixel_values" in arrays:
        grid = tuple(int(n) for n in arrays[f"{prefix}.image_grid_thw"][0])
        states = network(ids[0], arrays[f"{prefix}.pixel_values"], grid, in_a_row=True)
    elif name in QWEN:
        states = network(ids[0])
    else:
        states = network(ids[0], arrays[f"{prefix}.attention_mask"][0].astype(np.int64))
    return {f"hidden_states.{i}": state.numpy() for i, state in enumerate(states)}


def denoiser_error(pipeline, networks):
    """Largest error of the UNet or transformer, over all steps."""
    arrays = pipeline.arrays
    part = "unet" if "unet" in networks else "transformer"
    calls = sorted({".".join(k.split(".")[:3]) for k in arrays if f".{part}.call" in k})
    return max(_denoiser_error(pipeline, networks[part], call) for call in calls)


def _denoiser_error(pipeline, network, call):
    arrays = pipeline.arrays
    if pipeline.path.name in FLOWS:
        made, known = velocity(pipeline.path.name, network, arrays, call)
        return nmse(made.numpy(), known)
    is_unet = f"{call}.sample" in arrays
    x = channels_last(arrays[f"{call}.sample" if is_unet else f"{call}.hidden_states"])
    arguments = [arrays[f"{call}.encoder_hidden_states"]]
    extra = ("added_cond_kwargs.text_embeds", "added_cond_kwargs.time_ids", "pooled_projections")
    arguments += [arrays[f"{call}.{key}"] for key in extra if f"{call}.{key}" in arrays]
    time = arrays[f"{call}.timestep"].reshape(-1).astype(np.float32)
    made = network(wx.array(x), wx.array(time), *map(wx.array, arguments))
    return nmse(made.numpy(), channels_last(arrays[f"{call}.output"]))


def autoencoder_errors(pipeline, networks):
    """Errors of a picture that is decoded, and of one that is encoded."""
    arrays, vae = pipeline.arrays, networks["vae"]
    kinds = (k for k in type(vae).__mro__ if k.__name__.startswith("AutoencoderKL"))
    kind = next(kinds, type(vae))  # whose latents are not normalised
    decoded = kind.decode(vae, wx.array(channels_last(arrays["vae.decode.call0.input"])))
    there = channels_last(arrays["vae.test_picture.input"])
    moments = zip(kind.encode(vae, wx.array(there)), ("mean", "logvar"), strict=True)
    return nmse(decoded.numpy(), channels_last(arrays["vae.decode.call0.output"])), max(
        nmse(made.numpy(), channels_last(arrays[f"vae.test_picture.{key}"]))
        for made, key in moments
    )


def preview_error(pipeline):
    """Largest error of TAESD's previews, and of what it encodes."""
    folder = pipeline.path / "taesd"
    network = open_network(Component(folder, "taesd", "AutoencoderTiny"))
    arrays, errors = pipeline.arrays, []
    for i in range(pipeline.reference["steps"]):
        latents = channels_last(arrays[f"step{i}.scheduler.prev_sample"])
        made = network.decode(wx.array(latents)).numpy()
        errors.append(nmse(made, channels_last(arrays[f"taesd.decode.step{i}"])))
    made = network.encode(wx.array(channels_last(arrays["vae.test_picture.input"]))).numpy()
    return max(*errors, nmse(made, channels_last(arrays["taesd.encode.test_picture"])))


def arguments(made, pipeline):
    """What `generate` is called with to make the reference's picture."""
    found = dict(pipeline.reference["arguments"]) | {"output_type": "np"}
    made.text_layers = found.pop("text_encoder_out_layers", None)
    if "true_cfg_scale" in found:
        found["guidance_scale"] = found.pop("true_cfg_scale")
    stored = {"image": "picture", "mask_image": "mask", "latents": "latents.given"}
    found |= {key: pipeline.arrays[stored[key]] for key in stored if key in found}
    width, height = pipeline.reference["size"]
    # The tool scales pictures to its own size, and its transformers see them as text.
    made.area, made.in_a_row = width * height, True
    draws = (pipeline.arrays[f"noise.{i}"] for i in range(100))
    return found | {"generator": lambda shape: next(draws).reshape(shape)}


def picture_error(made, pipeline, known=None):
    """Error of the picture that a prompt makes."""
    picture = made.generate(**arguments(made, pipeline)).images
    return nmse(picture, pipeline.arrays["image"] if known is None else known)
