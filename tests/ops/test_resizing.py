"""Pictures in another size, beside PyTorch's."""

from pathlib import Path

import numpy as np
import pytest

from tests.ops.operands import tensor
from wgpu_backend.dtypes import I32
from wgpu_backend.errors import DTypeError, OptionError, ShapeError
from wgpu_backend.ml.context import Context

RESIZED = dict(np.load(Path(__file__).parent.parent / "data" / "resized.npz"))
LIMIT = 1e-12
MODES = [
    ("nearest", False, False),
    ("area", False, False),
    ("bilinear", False, True),
    ("bicubic", True, False),
]


@pytest.mark.parametrize("case", [name for name in RESIZED if name != "x"])
def test_pictures_are_those_of_pytorch(executor, case):
    height, width, mode, align, antialias = case.split()
    with Context(executor) as ctx:
        x = tensor(ctx, RESIZED["x"])
        got = x.resize(int(height), int(width), mode, align == "1", antialias == "1").numpy()
    # PyTorch's weights are in f32: a few 2⁻²⁴ of a value of up to 3.
    np.testing.assert_allclose(got, RESIZED[case], atol=3e-6)


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("shape", [(1, 1, 3, 1), (2, 33, 3, 4), (1, 7, 257, 3)], ids=str)
@pytest.mark.parametrize("size", [(33, 5), (14, 514)], ids=str)
def test_any_size_from_any_other(any_executor, check, rng, shape, mode, size):
    x = rng.standard_normal(shape, "f4")
    check(any_executor, lambda ctx: tensor(ctx, x).resize(*size, *mode), limit=LIMIT)


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_same_size_is_the_same_picture(executor, rng, mode):
    x = rng.standard_normal((1, 31, 33, 3), "f4")
    with Context(executor) as ctx:
        np.testing.assert_array_equal(tensor(ctx, x).resize(31, 33, *mode).numpy(), x)


def test_a_value_without_weight_is_not_looked_at(executor):
    x = np.array([0, np.nan, 1, 2, 3, np.inf], "f4").reshape(1, 6, 1, 1)
    with Context(executor) as ctx:
        got = tensor(ctx, x).resize(3, 1, "bilinear", True).numpy().ravel()
    np.testing.assert_array_equal(got, [0, 1.5, np.inf])


def test_what_does_not_fit_is_refused(full):
    with Context(full) as ctx:
        x = ctx.zeros(1, 5, 6, 3)
        for given, message in [((0, 6), r"\(5, 6\) to \(0, 6\)"), ((3, 40000), "1 to 32768 along")]:
            with pytest.raises(ShapeError, match=f"resize: .*{message}"):
                x.resize(*given)
        with pytest.raises(OptionError, match="mode is 'cubic', needs one of"):
            x.resize(3, 3, "cubic")
        with pytest.raises(OptionError, match="mode 'area' neither aligns corners nor filters"):
            x.resize(3, 3, "area", antialias=True)
        with pytest.raises(ShapeError, match=r"resize: x is .* needs 4 to 4"):
            ctx.zeros(5, 6).resize(3, 3)
        with pytest.raises(DTypeError, match="resize: x is i32"):
            ctx.zeros(1, 5, 6, 1, dtype=I32).resize(3, 3)
