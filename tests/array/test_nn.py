"""Layers against NumPy, on every device."""

import numpy as np
import pytest

import wgpu_backend.array as wx
from wgpu_backend.array import nn
from wgpu_backend.errors import ModelError, OptionError, ShapeError

pytestmark = pytest.mark.usefixtures("session")


def given(rng, *shape, dtype=None):
    return wx.array(rng.standard_normal(shape, "f4"), dtype)


def redrawn(module, rng):
    """Parameters far from what they start as."""
    return module.apply(lambda a: given(rng, *a.shape))


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", [(3, 33), (2, 3, 2, 4, 32)])
def test_linear_multiplies_rows_whatever_type_weights_have(rng, shape, dtype):
    layer = redrawn(nn.Linear(shape[-1], 5), rng).set_dtype(dtype)
    x = given(rng, *shape)
    want = x.numpy() @ layer.weight.numpy().T + layer.bias.numpy()
    np.testing.assert_allclose(layer(x).numpy(), want, atol=2e-5)


@pytest.mark.parametrize("dtype", ["f32", "f16"])
@pytest.mark.parametrize("leading", [(), (3,), (2, 1, 5)], ids=str)
def test_bilinear_layers_have_a_matrix_for_each_output(rng, leading, dtype):
    layer = redrawn(nn.Bilinear(7, 4, 3), rng).set_dtype(dtype)
    x1, x2 = given(rng, *leading, 7), given(rng, *leading, 4)
    assert layer.weight.shape == (3, 4, 7)
    weight, bias = (p.numpy().astype("f4") for p in (layer.weight, layer.bias))
    want = np.einsum("...j,ojk,...k->...o", x2.numpy(), weight, x1.numpy()) + bias
    np.testing.assert_allclose(layer(x1, x2).numpy(), want, atol=2e-5)
    bare = nn.Bilinear(7, 4, 3, bias=False)
    assert bare(x1, x2).shape == (*leading, 3)
    with pytest.raises(ShapeError, match=r"Bilinear: inputs are .* need as many rows"):
        layer(x1, wx.ones((9, 4)))


def test_an_embedding_takes_rows_and_is_a_product_the_other_way(rng):
    layer = redrawn(nn.Embedding(7, 12), rng)
    ids = np.array([[1, 6, 0], [3, 3, 2]])
    np.testing.assert_array_equal(layer(wx.array(ids)).numpy(), layer.weight.numpy()[ids])
    x = given(rng, 3, 12)
    want = x.numpy() @ layer.weight.numpy().T
    np.testing.assert_allclose(layer.as_linear(x).numpy(), want, atol=1e-5)


def by_groups(x, groups):
    parts = x.reshape(*x.shape[:-1], groups, -1)
    axes = (*range(1, x.ndim - 1), x.ndim)
    normed = (parts - parts.mean(axes, keepdims=True)) / np.sqrt(
        parts.var(axes, keepdims=True) + 1e-5
    )
    return normed.reshape(x.shape)


def test_norms_agree_with_their_formulas(rng):
    x = given(rng, 2, 3, 5, 12)
    values = x.numpy()
    rms, layer = redrawn(nn.RMSNorm(12), rng), redrawn(nn.LayerNorm(12), rng)
    group = redrawn(nn.GroupNorm(4, 12, pytorch_compatible=True), rng)
    want = values / np.sqrt((values**2).mean(-1, keepdims=True) + 1e-5) * rms.weight.numpy()
    np.testing.assert_allclose(rms(x).numpy(), want, atol=1e-5)
    centred = values - values.mean(-1, keepdims=True)
    want = centred / np.sqrt(centred.var(-1, keepdims=True) + 1e-5)
    want = want * layer.weight.numpy() + layer.bias.numpy()
    np.testing.assert_allclose(layer(x).numpy(), want, atol=1e-5)
    want = by_groups(values, 4) * group.weight.numpy() + group.bias.numpy()
    np.testing.assert_allclose(group(x).numpy(), want, atol=1e-5)


def test_groups_of_mlx_are_every_so_manieth_channel(rng):
    x = given(rng, 2, 5, 12)
    layer = redrawn(nn.GroupNorm(4, 12), rng)
    order = np.arange(12).reshape(3, 4).T.ravel()
    want = np.empty_like(x.numpy())
    want[..., order] = by_groups(x.numpy()[..., order], 4)
    want = want * layer.weight.numpy() + layer.bias.numpy()
    np.testing.assert_allclose(layer(x).numpy(), want, atol=1e-5)


def test_convolutions_of_one_pixel_are_products_and_pad_by_sides(rng):
    x = given(rng, 2, 5, 6, 8)
    layer = redrawn(nn.Conv2d(8, 3, 1), rng)
    want = x.numpy() @ layer.weight.numpy()[:, 0, 0].T + layer.bias.numpy()
    np.testing.assert_allclose(layer(x).numpy(), want, atol=1e-5)
    down = nn.Conv2d(8, 3, 3, stride=2, padding=((0, 1), (0, 1)))
    assert down(x).shape == (2, 2, 3, 3)
    assert nn.Conv1d(8, 3, 3, padding=1)(x[:, :, 0]).shape == (2, 5, 3)
    assert nn.Conv3d(8, 3, 3, padding=1)(x.reshape(1, 2, 5, 6, 8)).shape == (1, 2, 5, 6, 3)
    assert nn.ConvTranspose2d(8, 3, 2, stride=2)(x).shape == (2, 10, 12, 3)


def test_heads_attend_as_the_formula_says(rng):
    layer = redrawn(nn.MultiHeadAttention(12, 3, bias=True), rng)
    x = given(rng, 2, 5, 12)
    q, k, v = (
        p(x).numpy().reshape(2, 5, 3, 4).transpose(0, 2, 1, 3)
        for p in (layer.query_proj, layer.key_proj, layer.value_proj)
    )
    mask = np.triu(np.full((5, 5), -1e9), 1)
    scores = q @ k.swapaxes(-1, -2) / 2 + mask
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    made = (weights / weights.sum(-1, keepdims=True)) @ v
    want = layer.out_proj(wx.array(made.transpose(0, 2, 1, 3).reshape(2, 5, 12))).numpy()
    given_mask = layer.create_additive_causal_mask(5)
    np.testing.assert_allclose(layer(x, x, x, given_mask).numpy(), want, atol=1e-5)


@pytest.mark.parametrize("traditional", [False, True])
def test_rotary_positions_turn_pairs(rng, traditional):
    x = given(rng, 2, 3, 5, 10)
    made = nn.RoPE(8, traditional=traditional, base=100)(x, offset=7).numpy()
    pairs = x.numpy()[..., :8]
    pairs = pairs.reshape(2, 3, 5, 4, 2) if traditional else np.stack(np.split(pairs, 2, -1), -1)
    turns = np.exp(1j * np.outer(7 + np.arange(5), 100 ** (-np.arange(4) / 4)))
    want = (pairs[..., 0] + 1j * pairs[..., 1]) * turns
    got = made[..., :8]
    got = got.reshape(2, 3, 5, 4, 2) if traditional else np.stack(np.split(got, 2, -1), -1)
    np.testing.assert_allclose(got[..., 0] + 1j * got[..., 1], want, atol=1e-5)
    np.testing.assert_array_equal(made[..., 8:], x.numpy()[..., 8:])


class Pair(nn.Module):
    def __init__(self):
        self.layers = [nn.Linear(3, 4), nn.Dropout(), nn.Linear(4, 2, bias=False)]
        self.scale = wx.ones((2,))
        self._hidden = wx.ones((1,))

    def __call__(self, x):
        for layer in self.layers:
            x = layer(x)
        return x * self.scale


def test_parameters_are_found_and_put_by_their_paths(rng):
    model = Pair()
    paths = [s.path for s in model.slots()]
    assert paths == ["layers.0.weight", "layers.0.bias", "layers.2.weight", "scale"]
    weights = {s.path: given(rng, *s.array.shape) for s in model.slots()}
    assert model.load_weights(list(weights.items())).scale is weights["scale"]
    other = Pair().update(model.parameters())
    assert all(a.array is b.array for a, b in zip(model.slots(), other.slots(), strict=True))
    model.update_modules({"layers.2": nn.Linear(4, 2)})
    assert "bias" in model.layers[2]
    assert [p for p, _ in model.named_modules()] == ["", "layers.0", "layers.1", "layers.2"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (lambda w: {**w, "scale": wx.ones((3,))}, r"'scale' has shape \[2\], given is \[3\]"),
        (lambda w: {"scale": w["scale"]}, "3 of 4 parameters are missing: 'layers.0.weight'"),
        (lambda w: {**w, "x.y": w["scale"]}, "1 of 5 weights fit no parameter: 'x.y'"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(changed, message):
    model = Pair()
    before = {s.path: s.array for s in model.slots()}
    with pytest.raises(ModelError, match=message):
        model.load_weights(changed(before))
    assert all(s.array is before[s.path] for s in model.slots())


def test_wrong_rows_and_names_are_told():
    with pytest.raises(ShapeError, match=r"Linear: input is \(2, 4\), needs 3 values a row"):
        nn.Linear(3, 2)(wx.ones((2, 4)))
    with pytest.raises(OptionError, match="approx is 'x'"):
        nn.GELU("x")
    with pytest.raises(OptionError, match=r"Pair: has no part 'layers\.7'"):
        Pair().update_modules({"layers.7": nn.Dropout()})


def over(x, low, high):
    return np.where(x > 0, high, low)


LAYERS = {
    "ReLU6": ({}, lambda x: np.clip(x, 0, 6)),
    "ReLU2": ({}, lambda x: np.maximum(x, 0) ** 2),
    "Hardswish": ({}, lambda x: x * np.clip(x + 3, 0, 6) / 6),
    "SELU": ({}, lambda x: 1.0507009873554805 * over(x, 1.6732632423543772 * np.expm1(x), x)),
    "CELU": ({"alpha": 0.5}, lambda x: over(x, 0.5 * np.expm1(x / 0.5), x)),
    "ELU": ({"alpha": 0.5}, lambda x: over(x, 0.5 * np.expm1(x), x)),
    "LeakyReLU": ({"negative_slope": 0.25}, lambda x: over(x, 0.25 * x, x)),
    "HardShrink": ({}, lambda x: np.where(abs(x) > 0.5, x, 0)),
    "Softshrink": ({}, lambda x: np.sign(x) * np.maximum(abs(x) - 0.5, 0)),
    "Step": ({"threshold": 0.25}, lambda x: (x > 0.25).astype("f4")),
    "HardTanh": ({"low": -0.5}, lambda x: np.clip(x, -0.5, 1)),
    "Softsign": ({}, lambda x: x / (1 + abs(x))),
    "Softplus": ({}, lambda x: np.log1p(np.exp(x))),
    "Mish": ({}, lambda x: x * np.tanh(np.log1p(np.exp(x)))),
    "LogSigmoid": ({}, lambda x: -np.log1p(np.exp(-x))),
    "PReLU": ({"init": 0.75}, lambda x: over(x, 0.75 * x, x)),
    "GLU": ({}, lambda x: x[..., :4] / (1 + np.exp(-x[..., 4:]))),
    "Softmax": ({}, lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True)),
    "LogSoftmax": ({}, lambda x: x - np.log(np.exp(x).sum(-1, keepdims=True))),
    "Softmin": ({}, lambda x: np.exp(-x) / np.exp(-x).sum(-1, keepdims=True)),
}


def test_activations_are_their_formulas(rng):
    x = given(rng, 2, 3, 1, 2, 8)
    values = x.numpy().astype("f8") * 2
    made = {name: getattr(nn, name)(**options)(x * 2) for name, (options, _) in LAYERS.items()}
    wx.eval(made)
    for name, (_, known) in LAYERS.items():
        np.testing.assert_allclose(made[name].numpy(), known(values), atol=1e-5, err_msg=name)
    assert nn.activation("leaky_relu") is nn.leaky_relu
    with pytest.raises(OptionError, match="activation is 'swosh', needs one of relu"):
        nn.activation("swosh")


def test_pools_take_windows(rng):
    x = given(rng, 1, 4, 6, 3)
    windows = x.numpy().reshape(1, 2, 2, 3, 2, 3)
    np.testing.assert_array_equal(nn.MaxPool2d(2)(x).numpy(), windows.max((2, 4)))
    np.testing.assert_allclose(nn.AvgPool2d(2)(x).numpy(), windows.mean((2, 4)), atol=1e-6)
    assert nn.MaxPool1d(3, stride=1, padding=1)(x[:, 0]).shape == (1, 6, 3)
    assert nn.AvgPool3d((1, 2, 2))(x.reshape(1, 1, 4, 6, 3)).shape == (1, 1, 2, 3, 3)
    with pytest.raises(ShapeError, match=r"MaxPool1d: input is \(1, 4, 6, 3\), needs 3 axes"):
        nn.MaxPool1d(2)(x)


def test_transposed_convolutions_spread_what_they_get(rng):
    x = given(rng, 1, 3, 4, 2)
    layer = redrawn(nn.ConvTranspose2d(2, 5, 2, stride=2), rng)
    blocks = np.einsum("nhwc,oklc->nhkwlo", x.numpy(), layer.weight.numpy())
    want = blocks.reshape(1, 6, 8, 5) + layer.bias.numpy()
    np.testing.assert_allclose(layer(x).numpy(), want, atol=1e-5)
    assert nn.ConvTranspose1d(2, 5, 2, stride=2)(x[:, 0]).shape == (1, 8, 5)
    assert nn.ConvTranspose3d(2, 5, 2)(x.reshape(1, 1, 3, 4, 2)).shape == (1, 2, 4, 5, 5)
