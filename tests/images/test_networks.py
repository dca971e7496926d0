"""Networks of pictures beside diffusers' and transformers' own, with the same drawn weights.

networks.zip has some values of each result; tests/images/data/make_networks.py says how they were
made.
"""

import json
import zipfile

import numpy as np
import pytest

import wgpu_backend.array as wx
from tests.files.huggingface.folders import safetensors
from tests.images.data.make_networks import GRID, INPUTS, PATH, drawn, given, shown
from tests.images.stages import channels_last
from tests.images.tiny import nmse
from wgpu_backend.array import devices
from wgpu_backend.images.folder import Component
from wgpu_backend.images.networks import open_network
from wgpu_backend.models.images.autoencoder_kl import AutoencoderKL
from wgpu_backend.models.images.qwen_text import Qwen3Encoder

# Sums of some hundred products in another order.
LIMIT = 1e-10


def network_of(folder, case):
    (folder / "config.json").write_text(json.dumps(case["config"]))
    tensors = {name: drawn(name, tuple(shape)) for name, shape in case["shapes"].items()}
    (folder / "diffusion_pytorch_model.safetensors").write_bytes(safetensors(tensors))
    config = case["config"]
    class_name = config.get("_class_name") or config["architectures"][0]
    return open_network(Component(folder, "network", class_name))


def results(network, inputs):
    """Results by the names of the record, channels first."""
    if "ids" in inputs:
        return states(network, inputs["ids"])
    if "decode" in inputs:
        return pictures(network, inputs)
    if "x" in inputs:
        x, text = channels_last(inputs["x"][None]), inputs["cap_feats"][None]
        rope = wx.array(network.rope(*x.shape[1:3], text.shape[1]))
        y = network(wx.array(x), wx.array(inputs["t"]), wx.array(text), rope)
        return {"output": np.moveaxis(y.numpy(), -1, 1)[0][:, None]}
    values = {name.rpartition(".")[2]: wx.array(x) for name, x in inputs.items()}
    if hasattr(network, "rope"):
        text = values["encoder_hidden_states"]
        grid = GRID if "pooled_projections" in values else [GRID]
        values["rope"] = wx.array(network.rope(grid, text.shape[1]))
        order = ("hidden_states", "timestep", "encoder_hidden_states", "pooled_projections")
        names = [*order, "rope", "guidance"]
        return {"output": network(*(values[name] for name in names if name in values)).numpy()}
    image = "sample" if "sample" in values else "hidden_states"
    x = wx.array(channels_last(inputs[image]))
    names = ("encoder_hidden_states", "text_embeds", "time_ids", "pooled_projections")
    y = network(x, values["timestep"], *(values[name] for name in names if name in values))
    return {"output": np.moveaxis(y.numpy(), -1, 1)}


def states(network, ids):
    if isinstance(network, Qwen3Encoder):
        made = network(ids[0], np.ones_like(ids[0]))
        return {f"states.{i}": x.numpy() for i, x in enumerate(made)}
    made = network(ids)
    if isinstance(made, wx.Array):
        return {"last": made.numpy()}
    pooled = "pooled" if network.text_projection is None else "projected"
    found = {f"states.{i}": x.numpy() for i, x in enumerate(made.states)}
    return {**found, "last": made.last.numpy(), pooled: made.pooled.numpy()}


def pictures(network, inputs):
    # Flux 2 normalises latents; this is before that.
    kind = AutoencoderKL if isinstance(network, AutoencoderKL) else type(network)
    decoded = kind.decode(network, wx.array(channels_last(inputs["decode"])))
    made = kind.encode(network, wx.array(channels_last(inputs["encode"])))
    named = {"latents": made} if isinstance(made, wx.Array) else dict(zip(PARTS, made, strict=True))
    return {key: np.moveaxis(x.numpy(), -1, 1) for key, x in {"decode": decoded, **named}.items()}


PARTS = ("mean", "logvar")


@pytest.mark.parametrize("name", INPUTS)
def test_a_network_computes_what_its_authors_does(tmp_path, name):
    with zipfile.ZipFile(PATH) as kept:
        case = json.loads(kept.read(f"{name}.json"))
    with devices.preferring(devices.session("cpu")):
        found = results(network_of(tmp_path, case), given(INPUTS[name]))
    assert found
    for key, values in found.items():
        assert nmse(shown(values), np.array(case["results"][key])) <= LIMIT, key
