"""Strength of adapters: what diffusers and peft make of a file's header, by their formulas."""

import json

import numpy as np
import pytest

from wgpu_backend.array import nn
from wgpu_backend.errors import ModelError
from wgpu_backend.images.lora import read_changes


def written(path, tensors, metadata=None):
    """A safetensors file of arrays in f32."""
    header, offset = {} if metadata is None else {"__metadata__": metadata}, 0
    for name, values in tensors.items():
        end = offset + values.nbytes
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    data = b"".join(v.tobytes() for v in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


DOWN, UP = np.ones((2, 64), np.float32), np.ones((64, 2), np.float32)
PLACE = "unet.mid_block.attn1.to_q"


class Attention(nn.Module):
    def __init__(self):
        self.to_q = nn.Linear(64, 64)


class Block(nn.Module):
    def __init__(self):
        self.attn1 = Attention()


class Network(nn.Module):
    def __init__(self):
        self.mid_block = Block()


@pytest.fixture
def networks():
    return {"unet": Network()}


@pytest.mark.parametrize(
    ("settings", "strength"),
    [
        ({}, 1.0),
        ({"unet.r": 2, "unet.lora_alpha": 8}, 4.0),
        ({"unet.r": 2, "unet.lora_alpha": 1}, 0.5),
        ({"unet.r": 2, "unet.lora_alpha": 8, "unet.use_rslora": True}, 8 / 2**0.5),
        ({"unet.r": 9, "unet.rank_pattern": {"attn1.to_q": 2}, "unet.lora_alpha": 4}, 2.0),
        ({"unet.lora_alpha": 4, "unet.alpha_pattern": {"attn1.to_q": 6, "to_q": 1}}, 3.0),
        ({"unet.lora_alpha": 4, "unet.alpha_pattern": {"mid_block.attn1.to_q": 6}}, 3.0),
        ({"unet.lora_alpha": 4, "unet.alpha_pattern": {"o_q": 6, "to_qq": 6}}, 2.0),
        ({"unet.lora_alpha": 4, "unet.alpha_pattern": {r"mid_block.*\.to_[qk]": 10}}, 5.0),
        ({"unet.r": 2}, 4.0),  # peft's default is 8
        ({"text_encoder.lora_alpha": 64}, 1.0),
        ({"r": 2, "lora_alpha": 4}, 2.0),
    ],
)
def test_the_strength_of_an_adapter_may_stand_in_the_header(networks, tmp_path, settings, strength):
    tensors = {f"{PLACE}.lora_A.weight": DOWN, f"{PLACE}.lora_B.weight": UP}
    metadata = {"format": "pt", "lora_adapter_metadata": json.dumps(settings)}
    path = written(tmp_path / "lora.safetensors", tensors, metadata)
    [change] = read_changes(path, networks)
    assert change.scale == pytest.approx(strength, rel=1e-12)
    tensors[f"{PLACE}.alpha"] = np.full(1, 3, np.float32)  # a tensor comes first
    path = written(tmp_path / "lora.safetensors", tensors, metadata)
    [change] = read_changes(path, networks)
    assert change.scale == 1.5


@pytest.mark.parametrize(
    ("told", "message"),
    [
        ("[", "lora_adapter_metadata: Expecting"),
        ("[]", "lora_adapter_metadata is list, needs a JSON object"),
        ('{"unet.lora_alpha": "8"}', "unet.lora_alpha is '8', needs a number"),
        ('{"unet.lora_alpha": NaN}', "unet.lora_alpha is 'nan', needs a number"),
        ('{"unet.alpha_pattern": [1]}', r"unet.alpha_pattern is '\[1\]', needs a JSON object"),
        ('{"unet.alpha_pattern": {"(": 1}}', r"unet.alpha_pattern is '\(', needs an expression"),
        ('{"unet.alpha_pattern": {"(.*)*x": 1}}', "needs at most 3 repeats, none of a group"),
        ('{"unet.use_rslora": 2}', "unet.use_rslora is '2', needs true or false"),
    ],
)
def test_a_strength_that_is_none_is_refused(networks, tmp_path, told, message):
    tensors = {f"{PLACE}.lora_A.weight": DOWN, f"{PLACE}.lora_B.weight": UP}
    path = written(tmp_path / "lora.safetensors", tensors, {"lora_adapter_metadata": told})
    with pytest.raises(ModelError, match=message):
        read_changes(path, networks)
