"""What may be rounded by default, on devices of every kind, by a model that rounding hurts.

Trained models have a few channels whose activations are many times as large as others. A group of
32 values that has one leaves the others few steps of eight bits. The model here has such channels
behind every norm, and small weights where they are multiplied, as trained models have.
"""

from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("wgpu_backend.kernels.gpu", reason="benchmarks.quality tries its kernels")

import wgpu_backend
from benchmarks.quality import WAYS
from tests.builders import Dims, tiny_model
from tests.models.running import running
from wgpu_backend.errors import OptionError
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.kernels import complete
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.linear.attributes import Attributes
from wgpu_backend.ops.linear.q8 import GROUP
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse

TIMES = 60  # the others is the first channel of each group
BEHIND_NORMS = tuple(f"{n}.weight" for n in ("attn_q", "attn_k", "attn_v", "ffn_gate", "ffn_up"))
TOKENS = [int(t) for t in np.random.default_rng(3).integers(0, 256, 40)]
DEVICES = {
    "rasteriser": WAYS["coarse"].capabilities,
    "baseline": Capabilities(software=True),
    "packed bytes": WAYS["split"].capabilities,
    "packed bytes and f16": WAYS["q16"].capabilities,
    "f16": WAYS["f16"].capabilities,
    "neither": Capabilities(subgroups=True),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Model with large channels behind its norms."""
    path = tmp_path_factory.mktemp("outliers") / "model.gguf"
    dims = Dims()
    layers = (f"blk.{i}.{name}_norm" for i in range(dims.layers) for name in ("attn", "ffn"))
    gain = np.ones(dims.width, "f4")
    gain[::GROUP] = TIMES
    gains = {f"{name}.weight": gain for name in ("output_norm", *layers)}
    tiny_model(path, dtype="q8_0", dims=dims, vectors=gains)
    with open_gguf(path) as file:
        behind = [t for t in file.tensors.values() if t.name.endswith(BEHIND_NORMS)]
    for tensor in behind:
        data = np.memmap(path, np.int8, "r+", tensor.offset, (tensor.nbytes // 34, 34))
        data[:, 2] //= TIMES  # quants of large channels
        data.flush()
    return path


@contextmanager
def as_on(device, path, *, coarse=False, exact=False):
    """The model on NumPy, with the graphs that a device gets by default."""
    executor = NumpyExecutor(complete(DEVICES[device]))
    executor.rules = fusions(exact=exact, coarse=coarse)
    with running(path, executor) as model:
        yield model


@pytest.fixture(scope="module")
def exact(path):
    with running(path, NumpyExecutor()) as model:
        return model.anew(TOKENS)


@pytest.mark.parametrize("step", [7, 40])
@pytest.mark.parametrize("device", DEVICES)
def test_no_default_moves_logits(path, exact, device, step):
    with as_on(device, path) as model:
        assert nmse(model.anew(TOKENS, step), exact) < 1e-5


def test_eight_bits_alone_move_them(path, exact):
    pytest.importorskip("wgpu_backend.kernels.rasteriser", reason="whose products round x")
    with as_on("rasteriser", path, coarse=True) as model:
        got = model.anew(TOKENS)
    assert nmse(got, exact) > 1e-3
    assert np.mean(got.argmax(axis=-1) == exact.argmax(axis=-1)) < 0.98


def test_exact_rounds_nothing(path, exact):
    with as_on("rasteriser", path, exact=True) as model:
        assert nmse(model.anew(TOKENS), exact) < 1e-10


@pytest.mark.parametrize(
    ("device", "few", "many"),
    [
        ("rasteriser", {"values"}, {"values"}),
        ("baseline", {"values"}, {"values"}),
        ("packed bytes", {"q16"}, {"q8_pair"}),
        ("packed bytes and f16", {"q16"}, {"f16 precision"}),
        ("f16", {"f16"}, {"f16 precision"}),
        ("neither", {"values"}, {"values"}),
    ],
)
def test_forms_by_device(path, device, few, many):
    for tokens, wanted in ((TOKENS[:1], few), (TOKENS, many)):
        with as_on(device, path) as model:
            model.anew(tokens)
            assert forms(model) == wanted


def forms(model) -> set[str]:
    """How products of layers take activations."""
    found = model.runner._passes.values()
    attributes = [launch.attributes for each in found for _, launch in each.recorded.plan.steps]
    products = [a for a in attributes if isinstance(a, Attributes) and a.precision != "full"]
    return {"f16 precision" if a.precision == "f16" else a.prologue.form for a in products}


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("step", [1, 16])
def test_kernels_for_hardware_give_the_same_logits_in_sixteen_bits(path, exact, executors, step):
    wide = executors("wide")
    device = wide.as_if(replace(wide.capabilities, integer_dot=True))
    device.rules = fusions(exact=False, coarse=False)
    with running(path, device) as model:
        assert nmse(model.anew(TOKENS, step), exact) < 1e-5
        assert forms(model) == {"q16"}


def test_exact_and_coarse_exclude_each_other(path):
    with pytest.raises(OptionError, match="give one"):
        wgpu_backend.load(path, device="cpu", exact=True, coarse=True)
