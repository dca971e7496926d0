"""Transformers whose tensors are in a GGUF file, under their authors' names."""

import re

import gguf
import numpy as np
import pytest

import wgpu_backend.array as wx
from tests.images.test_flow_pipelines import arguments_of, network, velocity
from tests.images.tiny import nmse
from wgpu_backend import images
from wgpu_backend.array import devices
from wgpu_backend.array.nn import Linear
from wgpu_backend.errors import ModelError
from wgpu_backend.images.folder import PipelineFolder
from wgpu_backend.images.gguf_component import GgufComponent
from wgpu_backend.images.networks import open_network

NAMES = ("flux1-dev", "flux2-klein", "z-image-turbo", "qwen-image")
# What authors call ours, by parts of names; `*` is what lies in front of the rest.
RENAMED = {
    "flux": {
        "time_text_embed.timestep_embedder.linear_1": "time_in.in_layer",
        "time_text_embed.timestep_embedder.linear_2": "time_in.out_layer",
        "time_text_embed.guidance_embedder.linear_1": "guidance_in.in_layer",
        "time_text_embed.guidance_embedder.linear_2": "guidance_in.out_layer",
        "time_text_embed.text_embedder.linear_1": "vector_in.in_layer",
        "time_text_embed.text_embedder.linear_2": "vector_in.out_layer",
        "time_guidance_embed.timestep_embedder.linear_1": "time_in.in_layer",
        "time_guidance_embed.timestep_embedder.linear_2": "time_in.out_layer",
        "double_stream_modulation_img.linear": "double_stream_modulation_img.lin",
        "double_stream_modulation_txt.linear": "double_stream_modulation_txt.lin",
        "single_stream_modulation.linear": "single_stream_modulation.lin",
        "x_embedder": "img_in",
        "context_embedder": "txt_in",
        "single_transformer_blocks": "single_blocks",
        "transformer_blocks": "double_blocks",
        "attn.to_qkv_mlp_proj": "linear1",
        "norm1.linear": "img_mod.lin",
        "norm1_context.linear": "txt_mod.lin",
        "ff.net.0.proj": "img_mlp.0",
        "ff.net.2": "img_mlp.2",
        "ff_context.net.0.proj": "txt_mlp.0",
        "ff_context.net.2": "txt_mlp.2",
        "ff.linear_in": "img_mlp.0",
        "ff.linear_out": "img_mlp.2",
        "ff_context.linear_in": "txt_mlp.0",
        "ff_context.linear_out": "txt_mlp.2",
        "attn.to_out.0": "img_attn.proj",
        "attn.to_add_out": "txt_attn.proj",
        "attn.norm_added_q.weight": "txt_attn.norm.query_norm.scale",
        "attn.norm_added_k.weight": "txt_attn.norm.key_norm.scale",
    },
    "z-image": {
        "all_x_embedder.2-1": "x_embedder",
        "all_final_layer.2-1": "final_layer",
        "attention.to_out.0": "attention.out",
        "attention.norm_q": "attention.q_norm",
        "attention.norm_k": "attention.k_norm",
    },
    "qwen": {},
}
IN_SINGLE = {
    "norm.linear": "modulation.lin",
    "attn.norm_q.weight": "norm.query_norm.scale",
    "attn.norm_k.weight": "norm.key_norm.scale",
    "attn.to_out": "linear2",
    "proj_out": "linear2",
}
IN_DOUBLE = {
    "attn.norm_q.weight": "img_attn.norm.query_norm.scale",
    "attn.norm_k.weight": "img_attn.norm.key_norm.scale",
}
# Parameters that lie in one tensor, one behind the other.
FUSED = (
    (("attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"), "linear1"),
    (("attn.to_q", "attn.to_k", "attn.to_v"), "img_attn.qkv"),
    (("attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"), "txt_attn.qkv"),
    (("attention.to_q", "attention.to_k", "attention.to_v"), "attention.qkv"),
)


@pytest.fixture
def host():
    """New arrays lie on NumPy."""
    with devices.preferring(devices.session("cpu")):
        yield


def originals(name, tensors):
    """Tensors as authors publish them."""
    if name.startswith("qwen"):
        return tensors
    found, left = {}, dict(tensors)
    for parts, fused in FUSED:
        for key in list(left):
            front, _, leaf = key.rpartition(".")
            if not front.endswith("." + parts[0]):
                continue
            front = front.removesuffix(parts[0])
            keys = [f"{front}{part}.{leaf}" for part in parts]
            if all(key in left for key in keys):
                found[f"{front}{fused}.{leaf}"] = np.concatenate([left.pop(key) for key in keys])
    found |= left
    return {renamed(name, key): value for key, value in turned(found).items()}


def turned(tensors):
    """With shift before scale in front of the last product."""
    changed = {}
    for key, value in tensors.items():
        new = key.replace("norm_out.linear", "final_layer.adaLN_modulation.1")
        changed[new] = np.concatenate(np.split(value, 2)[::-1]) if new != key else value
    return changed


def renamed(name, key):
    blocks = IN_SINGLE if key.startswith("single_transformer_blocks") else IN_DOUBLE
    family = next(family for family in RENAMED if name.startswith(family))
    key = re.sub("^proj_out", "final_layer.linear", key) if family == "flux" else key
    for ours, theirs in ((blocks if family == "flux" else {}) | RENAMED[family]).items():
        key = re.sub(rf"(^|\.){re.escape(ours)}(\.|$)", rf"\g<1>{theirs}\2", key)
    return key


def write(pipeline, path, kind=None):
    """A file of the pipeline's transformer; matrices in a block format, or all in f32."""
    with PipelineFolder(pipeline.path) as folder:
        component = folder["transformer"]
        tensors = {key: component.array(key) for key in component.tensors}
    writer = gguf.GGUFWriter(path, "flux")
    for key, value in originals(pipeline.path.name, tensors).items():
        fits = kind is not None and value.ndim == 2 and value.shape[1] % 32 == 0
        data = gguf.quantize(value, kind) if fits and value.shape[0] > 1 else value
        writer.add_tensor(key, data, raw_dtype=kind if data is not value else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def opened(pipeline, path):
    with PipelineFolder(pipeline.path) as folder:
        component = GgufComponent(folder["transformer"], path)
        try:
            return open_network(component)
        finally:
            component.close()


@pytest.mark.parametrize("name", NAMES)
def test_parameters_are_those_of_the_folder(host, tiny, tmp_path, name):
    write(tiny(name), tmp_path / "whole.gguf")
    known = {s.path: s.array.numpy() for s in network(tiny(name), "transformer").slots()}
    made = {s.path: s.array.numpy() for s in opened(tiny(name), tmp_path / "whole.gguf").slots()}
    assert made.keys() == known.keys()
    for path, value in made.items():
        np.testing.assert_array_equal(value, known[path])


@pytest.mark.parametrize("name", NAMES)
def test_blocks_stay_and_networks_say_what_their_values_say(gpu, tiny, tmp_path, name):
    from wgpu_backend.array.session import Session

    path = tmp_path / "q8_0.gguf"
    write(tiny(name), path, gguf.GGMLQuantizationType.Q8_0)
    call = "step0.transformer.call0"
    with devices.preferring(Session(gpu)):
        blocks = opened(tiny(name), path)
        kept = [s for s in blocks.slots() if s.array.dtype.quantised]
        made, _ = velocity(name, blocks, tiny(name).arrays, call)
        made = made.numpy()
    assert len(kept) > 10
    with devices.preferring(devices.session("cpu")):
        plain = opened(tiny(name), path)
        for module in plain.modules():
            if isinstance(module, Linear):
                module.weight = wx.array(np.asarray(module.weight.numpy(), np.float32))
        known, reference = velocity(name, plain, tiny(name).arrays, call)
        known = known.numpy()
    # Activations may be rounded no more than values of blocks are: 1e-9 where they are not.
    assert nmse(made, known) <= 1e-9
    assert 1e-9 < nmse(known, reference) < 1e-2


def test_a_picture_is_made_with_a_file_for_the_transformer(host, tiny, tmp_path):
    pipeline = tiny("flux1-dev")
    write(pipeline, tmp_path / "whole.gguf")
    with images.load(pipeline.path, gguf={"transformer": tmp_path / "whole.gguf"}) as made:
        picture = made.generate(**arguments_of(made, pipeline)).images
    assert nmse(picture, pipeline.arrays["image"]) <= 1e-9


def test_a_file_of_another_model_is_refused(host, tiny, tmp_path):
    write(tiny("z-image-turbo"), tmp_path / "other.gguf")
    with pytest.raises(ModelError, match="parameters of FluxTransformer are missing"):
        opened(tiny("flux1-dev"), tmp_path / "other.gguf")
    with pytest.raises(ModelError, match="no component 'unet'"):
        images.load(tiny("flux1-dev").path, gguf={"unet": tmp_path / "other.gguf"})
