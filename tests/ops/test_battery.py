"""The package's own ops under the battery that ops from outside are checked with.

Their kernels run without bounds clamping, so what red zones say of them matters.
"""

import pytest

from wgpu_backend.dtypes import BF16, F16, F32
from wgpu_backend.ops.op import find
from wgpu_backend.testing import check_op

pytestmark = pytest.mark.any_width

ROWS = "rows cols"
UNARY = (
    "abs", "contiguous", "cos", "exp", "fresh", "gelu", "gelu_erf", "log", "neg", "quick_gelu",
    "sigmoid", "sign", "silu", "sin", "softmax", "softplus", "sqr", "sqrt", "tanh",
)  # fmt: skip
BINARY = (
    "sub", "mul", "div", "maximum", "minimum", "power", "equal", "less", "swiglu", "geglu",
    "geglu_erf", "geglu_quick",
)  # fmt: skip
# Ops by the way they are tried: shapes, then options.
TRIALS = {
    **{name: ((ROWS,), {}) for name in UNARY},
    **{name: ((ROWS, ROWS), {}) for name in BINARY},
    "add": ((ROWS, ROWS), {"broadcast": True}),
    "relu": ((ROWS,), {}),
    "reglu": ((ROWS, ROWS), {}),
    "elu": ((ROWS,), {"options": {"alpha": 0.5}}),
    "isnan": ((ROWS,), {}),
    "tan": ((ROWS,), {}),
    "erf": ((ROWS,), {}),
    "remainder": ((ROWS, ROWS), {}),
    "left_shift": (("rows cols:i32", "cols:i32"), {}),
    "clamp": ((ROWS,), {"options": {"low": -0.5, "high": 0.5}}),
    "argmax": ((ROWS,), {}),
    "l2_norm": ((ROWS,), {"options": {"eps": 1e-6}}),
    "scale": ((ROWS,), {"options": {"factor": 1.5}}),
    "cast": ((ROWS,), {"options": {"dtype": F16}}),
    "fill": ((ROWS,), {"options": {"value": 3}}),
    "rms_norm": ((ROWS, "cols"), {"options": {"eps": 1e-6}}),
    "layer_norm": ((ROWS, "cols", "cols"), {"options": {"eps": 1e-6}}),
    "concat": ((ROWS, ROWS), {"options": {"axis": 0}}),
    "window": ((ROWS,), {"options": {"start": (-1, 1), "shape": (7, 9)}}),
    "tri": ((ROWS,), {"options": {"kind": 1}}),
    "diag": ((ROWS,), {}),
    "take_axes": ((ROWS, "ids:i32"), {"options": {"axis": 0}}),
    "take_along_axis": ((ROWS, "ids cols:i32"), {"options": {"axis": 0}}),
    "rows": (("5 cols", "ids:i32"), {}),
    "linear": (("m 64", "n 64"), {"nonfinite": False, "limit": 1e-6, "dtypes": (F32,)}),
    "matmul_strided": (("m k", "n k"), {"nonfinite": False, "limit": 1e-6}),
}


# Of every sort of kernel one that compiles quickly: `make test` runs these.
BRIEF = {"abs", "softmax", "sub", "power", "swiglu", "clamp", "fill", "cast", "concat", "take_axes"}
# Each kind of device with a type of its own, for the time it takes; a GPU's where it has kernels.
KINDS = {"full": F32, "baseline": F16, "wide": BF16}
OF_GPUS = {"softmax", "rms_norm", "layer_norm", "l2_norm", "argmax"}


def trials():
    """Ops and kinds of device."""
    for name in TRIALS:
        marks = () if name in BRIEF else (pytest.mark.slow,)
        yield pytest.param(name, "full", marks=(*marks, pytest.mark.second_driver))
        yield pytest.param(name, "baseline", marks=marks)
        if name in OF_GPUS:
            yield pytest.param(name, "wide", marks=marks)


@pytest.mark.parametrize(("name", "kind"), list(trials()))
def test_an_op_stays_inside_and_agrees_with_its_twin(executors, name, kind):
    shapes, how = TRIALS[name]
    how = {"dtypes": (KINDS[kind],), **how}
    cases = check_op(find(name), *shapes, executors={kind: executors(kind)}, **how)
    assert len(cases) > 40
