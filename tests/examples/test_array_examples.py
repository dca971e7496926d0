"""Models written for arrays agree with the programs that they come from."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import wgpu_backend.array as wx
from wgpu_backend.array import devices
from wgpu_backend.array.session import Session

ROOT = Path(__file__).parent.parent.parent
MLX = ROOT / "tests" / "data" / "mlx_qwen3"


@pytest.fixture
def session(executor):
    made = Session(executor)
    with devices.preferring(made):
        yield made


def example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_a_file_of_mlx_style_gives_the_logits_of_mlx_lm(session):
    answers = np.load(MLX / "answers.npz")
    model = example("mlx_model").load(MLX)
    logits = model(wx.array([answers["ids"].tolist()]))[0].numpy()
    difference = np.sum((logits - answers["logits"]) ** 2) / np.sum(answers["logits"] ** 2)
    assert difference < 1e-10


def test_an_onnx_graph_is_computed_as_its_ops_say(session, rng, tmp_path):
    onnx = pytest.importorskip("onnx", reason="reads ONNX files; not a dependency")
    helper = onnx.helper
    weight = rng.standard_normal((4, 3, 3, 3), dtype="f4")
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
            helper.make_node("Sigmoid", ["c"], ["s"]),
            helper.make_node("Mul", ["c", "s"], ["y"]),
        ],
        "silu of a convolution",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 5, 7])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4, 5, 7])],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    onnx.save(helper.make_model(graph), tmp_path / "model.onnx")
    x = rng.standard_normal((1, 3, 5, 7), dtype="f4")
    found = example("onnx_model").OnnxModel(tmp_path / "model.onnx")(x=x)["y"].numpy()
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    expected = np.einsum("nchwij,ocij->nohw", windows, weight)
    np.testing.assert_allclose(found, expected / (1 + np.exp(-expected)), rtol=1e-4, atol=1e-5)
