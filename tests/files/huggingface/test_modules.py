"""What sentence-transformers' modules make of states, by their formulas."""

import json

import numpy as np
import pytest

import wgpu_backend as wb
from tests.files.huggingface.folders import llama_tensors, safetensors, write_folder

TEXT = "the in a"
NONE = {
    f"pooling_mode_{name}": False
    for name in ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "lasttoken")
}
BY_MODE = {
    "cls": lambda states: states[0],
    "last": lambda states: states[-1],
    "max": lambda states: states.max(0),
    "mean": lambda states: states.mean(0),
    "mean_sqrt_len": lambda states: states.sum(0) / len(states) ** 0.5,
    "weightedmean": lambda states: np.arange(1, len(states) + 1) @ states,
}


def written(tmp_path, pooling, *dense, normalised=True):
    """A folder with modules: how texts are pooled, then (matrix, bias or None, activation)."""
    folder = write_folder(tmp_path / "a", llama_tensors())
    kinds = ["Transformer", "Pooling", *["Dense"] * len(dense), *["Normalize"] * normalised]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"a.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({**NONE, **pooling}))
    for i, (matrix, bias, activation) in enumerate(dense):
        place = folder / f"{i + 2}_Dense"
        place.mkdir()
        sizes = {"in_features": matrix.shape[1], "out_features": matrix.shape[0]}
        config = {**sizes, "bias": bias is not None, "activation_function": activation}
        (place / "config.json").write_text(json.dumps(config))
        tensors = {"linear.weight": matrix, **({} if bias is None else {"linear.bias": bias})}
        (place / "model.safetensors").write_bytes(safetensors(tensors))
    return folder


def unit(vector):
    return vector / np.linalg.norm(vector)


@pytest.mark.parametrize(
    ("pooling", "mode"),
    [
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode_last_token": True}, "last"),
        ({"pooling_mode": "lasttoken"}, "last"),
        ({"pooling_mode": ["cls"]}, "cls"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_mean_tokens": True}, "mean"),
        ({"pooling_mode_max_tokens": True}, "max"),
        ({"pooling_mode": "max"}, "max"),
        ({"pooling_mode_mean_sqrt_len_tokens": True}, "mean_sqrt_len"),
        ({"pooling_mode_weightedmean_tokens": True}, "weightedmean"),
    ],
)
def test_a_text_is_pooled_as_its_folder_says(tmp_path, pooling, mode):
    folder = written(tmp_path, pooling)
    wb.create(tmp_path / "a.gguf", folder)
    for path in (folder, tmp_path / "a.gguf"):
        with wb.load(path, device="cpu", kv_dtype="f32") as model:
            states = model.states(model.tokenizer.encode(TEXT))
            assert len(states) > 2
            [got] = model.embed(TEXT)
        np.testing.assert_allclose(got, unit(BY_MODE[mode](states)), atol=1e-6)


def test_of_several_modes_the_caller_chooses(tmp_path):
    """Side by side in sentence-transformers' order, which is not that of the keys."""
    folder = written(tmp_path, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True})
    with wb.load(folder, device="cpu", kv_dtype="f32") as model:
        with pytest.raises(wb.ModelError, match=r"names 2 poolings; pass pooling='cls\+mean'"):
            model.embed(TEXT)
        states = model.states(model.tokenizer.encode(TEXT))
        [got] = model.embed(TEXT, pooling="cls+mean")
        [last] = model.embed(TEXT, pooling="last")
    np.testing.assert_allclose(got, unit(np.concatenate([states[0], states.mean(0)])), atol=1e-6)
    np.testing.assert_allclose(last, unit(states[-1]), atol=1e-6)


@pytest.mark.parametrize("activation", ["Identity", "Tanh", "ReLU"])
@pytest.mark.parametrize("biased", [False, True])
def test_dense_modules_map_what_is_pooled(tmp_path, rng, activation, biased):
    function = {"Identity": lambda x: x, "Tanh": np.tanh, "ReLU": lambda x: np.maximum(x, 0)}
    first, second = rng.standard_normal((64, 32), "f4"), rng.standard_normal((16, 64), "f4")
    bias = rng.standard_normal(64, "f4") if biased else None
    name = f"torch.nn.modules.activation.{activation}"
    folder = written(
        tmp_path,
        {"pooling_mode_mean_tokens": True},
        (first, bias, name),
        (second, None, "torch.nn.modules.linear.Identity"),
    )
    wb.create(tmp_path / "a.gguf", folder)
    for path in (folder, tmp_path / "a.gguf"):
        with wb.load(path, device="cpu", kv_dtype="f32") as model:
            mean = model.states(model.tokenizer.encode(TEXT)).mean(0)
            [got] = model.embed(TEXT)
        wanted = second @ function[activation](first @ mean + (bias if biased else 0))
        np.testing.assert_allclose(got, unit(wanted), atol=1e-5)


def test_one_dense_module_is_enough(tmp_path, rng):
    matrix = rng.standard_normal((16, 32), "f4")
    dense = (matrix, None, "torch.nn.modules.activation.Tanh")
    folder = written(tmp_path, {"pooling_mode": "mean"}, dense, normalised=False)
    with wb.load(folder, device="cpu", kv_dtype="f32") as model:
        mean = model.states(model.tokenizer.encode(TEXT)).mean(0)
        [got] = model.embed(TEXT)
    np.testing.assert_allclose(got, unit(np.tanh(matrix @ mean)), atol=1e-5)


def renamed_module(folder, kind, place):
    modules = json.loads((folder / "modules.json").read_text())
    modules[place]["type"] = f"a.models.{kind}"
    (folder / "modules.json").write_text(json.dumps(modules))


def reshaped(folder):
    config = {"in_features": 32, "out_features": 8, "activation_function": "a.Identity"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))


def activated(folder):
    config = {"in_features": 32, "out_features": 16, "activation_function": "a.Hardtanh"}
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("pooling", "then", "said"),
    [
        ({}, None, "key 'pooling_mode' is missing, needs one of cls, max, mean"),
        ({"pooling_mode": "sum"}, None, "key 'pooling_mode' names 'sum', needs one of cls, max"),
        ({"pooling_mode": "mean"}, lambda f: renamed_module(f, "LayerNorm", 3), "'LayerNorm' of"),
        ({"pooling_mode": "mean"}, lambda f: renamed_module(f, "Dense", 1), "module 'Dense' of"),
        ({"pooling_mode": "mean"}, lambda f: renamed_module(f, "CNN", 1), "module 'CNN' of"),
        ({"pooling_mode": "mean"}, reshaped, r"'linear.weight' has shape \(16, 32\), needs shape"),
        ({"pooling_mode": "mean"}, activated, "is 'Hardtanh', needs one of Identity, Tanh"),
        (
            {"pooling_mode": "mean"},
            lambda f: (f / "2_Dense" / "model.safetensors").rename(f / "2_Dense" / "a.bin"),
            "2_Dense: no model.safetensors",
        ),
    ],
)
def test_modules_that_are_not_known_are_refused(tmp_path, pooling, then, said):
    dense = (np.ones((16, 32), "f4"), None, "torch.nn.modules.linear.Identity")
    folder = written(tmp_path, pooling, dense)
    if then is not None:
        then(folder)
    with pytest.raises(wb.ModelError, match=said):
        wb.load(folder, device="cpu")
