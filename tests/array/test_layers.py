"""Layers that MLX has beside those of networks here, against numbers that mlx 0.32.4 gives."""

from typing import Any

import numpy as np
import pytest

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.errors import OptionError, ShapeError

pytestmark = pytest.mark.usefixtures("session")


def waves(shape: tuple[int, ...], start: float) -> Any:
    """Numbers that mlx was given, too."""
    count = np.prod(shape, dtype=int)
    return (0.4 * np.sin(0.7 * np.arange(count) + start)).reshape(shape).astype("f4")


X, H, T, S = waves((2, 5, 4), 1), waves((2, 6), 2), waves((1, 4, 8), 3), waves((1, 3, 8), 4)
PICTURE, SIGNAL = waves((1, 4, 5, 2), 5), waves((1, 7, 2), 6)
PLACES = np.arange(4, dtype="f4")
MASK = np.triu(np.full((4, 4), -1e9, "f4"), 1)
OPERANDS: dict[str, Any] = {
    "RNN(4, 6)": (X,), "GRU(4, 6)": (X,), "LSTM(4, 6)": (X, H), "Sinusoidal": (PLACES,),
    "RNN": (X, H), "GRU": (X, H), "LSTM": (X, H, H), "ALiBi": (waves((1, 6, 3, 5), 7),),
    "Transformer": (S, T, None, MASK, None), "Upsample(1.5": (SIGNAL,), "Upsample": (PICTURE,),
    "Step": (X,),
}  # fmt: skip
# Shape, second and last value, and the product with the cosines of 0, 1, 2 and so on.
RECORDED: dict[str, tuple[tuple[int, ...], float, float, float]] = {
    "RNN(4, 6)": ((2, 5, 6), 0.417096, -0.409724, 5.10219),
    "GRU(4, 6)": ((2, 5, 6), -0.115577, 0.441040, -3.81478),
    "LSTM(4, 6)": ((2, 5, 6), -0.069076, -0.336577, 1.92246),
    "RNN(4, 6, bias=False)": ((2, 5, 6), -0.152250, -0.304986, 0.07493),
    "GRU(4, 6, bias=False)": ((2, 5, 6), 0.026800, -0.087962, 1.56902),
    "LSTM(4, 6, bias=False)": ((2, 5, 6), 0.041039, -0.096505, 1.95746),
    "SinusoidalPositionalEncoding(6)": ((4, 6), 0.000000, 0.577350, -1.65672),
    "SinusoidalPositionalEncoding(2, cos_first=True, full_turns=True)": (
        (4, 2),
        0.000000,
        0.000000,
        0.89038,
    ),
    "ALiBi()": ((1, 6, 3, 5), 0.145267, -0.176436, -1.72880),
    "Transformer(8, 2, 1, 2, 16)": ((1, 4, 8), 0.111212, 0.378052, -0.12952),
    "Transformer(8, 2, 1, 1, norm_first=False)": ((1, 4, 8), -0.037356, -0.125407, -0.50197),
    'Upsample(2, "linear", True)': ((1, 8, 10, 2), -0.220274, 0.309331, -0.08929),
    'Upsample(1.5, "cubic")': ((1, 10, 2), 0.161940, 0.228479, -0.27281),
    'Upsample((2, 0.6), "linear")': ((1, 8, 3, 2), -0.049654, 0.140442, 0.90107),
    "Upsample(1.5)": ((1, 10, 2), 0.161940, 0.228479, -0.24954),
    'Upsample(3, "cubic", True)': ((1, 12, 15, 2), -0.220274, 0.309331, 0.10823),
    "Step(0.1)": ((2, 5, 4), 1.000000, 0.000000, 0.34777),
}


@pytest.mark.parametrize("made", RECORDED)
def test_layers_give_what_mlx_gives(made):
    layer = eval(f"nn.{made}")
    weights = [
        (slot.path, wx.array(waves(slot.array.shape, sum(map(ord, slot.path)))))
        for slot in layer.slots()
    ]
    layer.load_weights(weights)
    operands = next(v for name, v in OPERANDS.items() if made.startswith(name))
    found = layer(*(None if v is None else wx.array(v) for v in operands))
    values = (found[1] if isinstance(found, tuple) else found).numpy()
    flat = values.reshape(-1).astype("f8")
    shape, second, last, product = RECORDED[made]
    assert values.shape == shape
    ours = [flat[1], flat[-1], flat @ np.cos(np.arange(flat.size))]
    np.testing.assert_allclose(ours, [second, last, product], rtol=2e-4, atol=5e-5)


def test_small_names():
    assert nn.relu2(wx.array([-1.0, 2.0])).tolist() == [0, 4]
    assert nn.step(wx.array([-1, 0, 1])).tolist() == [0, 1, 1]
    assert nn.step(wx.array([0.5])).dtype == wx.int32


def test_upsample_says_what_it_cannot_do():
    with pytest.raises(OptionError, match="nearest"):
        nn.Upsample(2, "nearest", antialias=True)
    with pytest.raises(OptionError, match="wavy"):
        nn.Upsample(2, "wavy")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ShapeError, match="factors"):
        nn.Upsample((2, 2))(wx.zeros((1, 4, 2)))
