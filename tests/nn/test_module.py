"""Fields find their weights, whose shapes are what the module says."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from wgpu_backend import nn
from wgpu_backend.dtypes import F32
from wgpu_backend.errors import ModelError
from wgpu_backend.graph.node import Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.model import Model
from wgpu_backend.nn.module import old_names


def weights(**shapes):
    """Find function over weights of these shapes; names have double underscores for dots."""
    there = {
        name.replace("__", "."): Tensor(
            Spec.dense(shape, F32), Storage(4 * int(np.prod(shape)), "weight")
        )
        for name, shape in shapes.items()
    }
    return there.get


def require_all_used(tensors, used, layers, elsewhere):
    """Check a file with tensors of these bytes, some of which are in fields of a model."""
    infos = {name: SimpleNamespace(nbytes=nbytes) for name, nbytes in tensors.items()}
    backend = SimpleNamespace(file=SimpleNamespace(tensors=infos))
    config = SimpleNamespace(architecture="own")
    model: Any = SimpleNamespace(backend=backend, config=config, _used=used, fail=ModelError)
    Model.require_all_used(model, layers, elsewhere)


class Feed(nn.Module):
    up: nn.Linear = nn.weight("up", "inner", "width")
    down: nn.Linear = nn.weight("down", "width", "inner")
    norm: nn.RMSNorm | None = nn.weight("norm", "width")

    def __init__(self, width=4, inner=6):
        self.width, self.inner = width, inner


def test_shapes_are_those_of_the_modules_attributes():
    feed = Feed()
    found = weights(up__weight=(6, 4), up__bias=(6,), down__weight=(4, 6))
    assert nn.populate(feed, found)
    assert feed.up.bias.shape == (6,)
    assert feed.down.bias is None
    assert feed.norm is None


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        ("up__weight", (4, 6), r"tensor up.weight is \(4, 6\), the file's keys require \(6, 4\)"),
        ("up__bias", (4,), r"tensor up.bias is \(4,\), the file's keys require \(6,\)"),
        ("norm__weight", (6,), r"tensor norm.weight is \(6,\), the file's keys require \(4,\)"),
    ],
)
def test_another_shape_is_refused(name, shape, said):
    shapes = {"up__weight": (6, 4), "down__weight": (4, 6)} | {name: shape}
    with pytest.raises(ModelError, match=said):
        nn.populate(Feed(), weights(**shapes))


def test_a_shape_that_the_module_does_not_know_is_any():
    feed = Feed(inner=None)
    nn.populate(feed, weights(up__weight=(9, 4), down__weight=(4, 9)))
    assert feed.up.weight.shape == (9, 4)


class Optional(nn.Module):
    gate: nn.Linear | None = None
    up: nn.Linear = nn.weight("up")

    def __init__(self, gated):
        if gated:
            self.gate = nn.weight("gate", needed=True)


def test_fields_are_tagged_when_a_module_is_constructed():
    plain, gated = Optional(gated=False), Optional(gated=True)
    both = weights(up__weight=(2, 2), gate__weight=(2, 2))
    assert nn.populate(plain, both)
    assert plain.gate is None
    assert nn.populate(gated, both)
    assert gated.gate.weight is both("gate.weight")
    with pytest.raises(ModelError, match=r"tensor gate is missing, Optional\.gate needs it"):
        nn.populate(Optional(gated=True), weights(up__weight=(2, 2)))


class Gain(nn.Module):
    gain: Tensor = nn.weight("ffn_gain")


class Named(nn.Module):
    up: nn.Linear = nn.weight("up.weight")


@pytest.mark.parametrize(
    ("module", "found", "said"),
    [
        (Gain, {}, "tensor b.ffn_gain is missing, Gain.gain needs it"),
        (
            Gain,
            {"b__ffn_gain__weight": (4,)},
            "tensor b.ffn_gain is missing, Gain.gain needs it; b.ffn_gain.weight is there, and a "
            "Tensor is tagged with the whole name",
        ),
        (
            Named,
            {"b__up__weight": (4, 4)},
            "tensor b.up.weight is missing, Named.up needs it; b.up.weight is there, and a module "
            "is tagged with the name before .weight",
        ),
    ],
)
def test_a_weight_of_nearly_the_name_is_told(module, found, said):
    with pytest.raises(ModelError) as told:
        nn.populate(module(), weights(**found), "b.")
    assert str(told.value) == said


class Outer(nn.Module):
    def __init__(self):
        self.feed = Feed()


def test_a_module_in_a_field_has_its_weights_beside_those_of_its_owner():
    outer = Outer()
    found = weights(b__up__weight=(6, 4), b__down__weight=(4, 6))
    nn.populate(outer, found, "b.")
    assert outer.feed.up.weight is found("b.up.weight")
    with pytest.raises(ModelError, match=r"tensor b\.up is missing, Feed\.up needs it"):
        nn.populate(Outer(), weights(), "b.")


class Chooses(nn.Module):
    one: nn.Linear | None = None
    two: nn.Linear | None = None

    def declare(self, has):
        name = "one" if has("one.weight") else "two"
        setattr(self, name, nn.weight(name))


@pytest.mark.parametrize("name", ["one", "two"])
def test_fields_go_by_which_weights_there_are(name):
    made = Chooses()
    assert nn.populate(made, weights(**{f"{name}__weight": (2, 3)}))
    assert getattr(made, name).weight.shape == (2, 3)
    assert getattr(made, "two" if name == "one" else "one") is None


def test_a_norm_without_weights_needs_none():
    class Bare(nn.Module):
        norm: nn.Norm
        up: nn.Linear = nn.weight("up")

        def __init__(self):
            self.norm = nn.weight("norm", kind=nn.PlainLayerNorm(1e-3))

    made = Bare()
    nn.populate(made, weights(up__weight=(2, 2)))
    assert isinstance(made.norm, nn.PlainLayerNorm)
    assert made.norm.eps == 1e-3


def test_old_names_of_attributes_work_with_a_warning():
    @old_names(speed="velocity")
    class Car:
        velocity = 3

    with pytest.warns(DeprecationWarning, match=r"Car\.speed is now velocity"):
        assert Car().speed == 3


def test_a_model_may_still_override_reader():
    with pytest.warns(DeprecationWarning, match=r"Old\.reader is now prompt_encoder"):

        class Old(Model):
            def reader(self):
                return "an encoder"

    assert Old.prompt_encoder(None) == "an encoder"


def test_a_module_for_all_models_is_refused():
    with pytest.raises(ModelError, match=r"Shared.norm: kind is one RMSNorm for all models; give"):

        class Shared(nn.Module):
            norm: nn.RMSNorm = nn.weight("norm", "width", kind=nn.RMSNorm(1e-5))


def test_weights_that_no_field_takes_are_refused():
    tensors, used = {"blk.0.up": 4, "blk.1.up": 4, "v.up": 4, "empty": 0}, {"blk.0.up"}
    require_all_used(tensors, used, 1, ("v.",))
    for layers, elsewhere in ((2, ("v.",)), (1, ("a.",))):
        with pytest.raises(ModelError, match=r"unexpected tensor (blk\.1|v)\.up for archi"):
            require_all_used(tensors, used, layers, elsewhere)
