"""Every method of both interface files of Ollama's machine-learning packages exists here.

The lists are literal: `ml/backend.go` and `x/ml/backend.go`, with the methods that stand there in
comments. A name becomes snake_case by one rule; RENAMED holds what has another name, and why.
"""

import inspect
import re

import pytest

from wgpu_backend.engine.loading import bundled
from wgpu_backend.ml.backend import Backend, new_backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor

BACKEND = [
    "Close",
    "Load",
    "BackendMemory",
    "Config",
    "Get",
    "NewContext",
    "NewContextSize",
    "BackendDevices",
    "Devices",
    "CacheConfig",
]
CONTEXT = [
    "Empty",
    "Zeros",
    "FromBytes",
    "FromFloats",
    "FromInts",
    "RandomNormal",
    "Arange",
    "Forward",
    "SetBatchSize",
    "Compute",
    "ComputeWithNotify",
    "Reserve",
    "MaxGraphNodes",
    "Close",
    "Input",
    "Layer",
    "CompareWith",
]
TENSOR = [
    "Dim",
    "Stride",
    "Shape",
    "DType",
    "Cast",
    "Bytes",
    "Floats",
    "BackendGet",
    "FromBytes",
    "FromFloats",
    "FromInts",
    "Add",
    "Sub",
    "Mul",
    "Div",
    "Mulmat",
    "MulmatFullPrec",
    "MulmatID",
    "AddID",
    "Softmax",
    "L2Norm",
    "LayerNorm",
    "RMSNorm",
    "Scale",
    "SumRows",
    "AvgPool2D",
    "Conv2D",
    "Conv3D",
    "Conv1DDW",
    "SSMConv",
    "SSMScan",
    "IM2Col",
    "Sin",
    "Cos",
    "Tanh",
    "Sigmoid",
    "GELU_ERF",
    "SigmoidOut",
    "GELU",
    "QuickGELU",
    "SILU",
    "RELU",
    "SILUAlphaLimit",
    "Reshape",
    "View",
    "Permute",
    "Contiguous",
    "Pad",
    "PadExt",
    "Stack",
    "Repeat",
    "Repeat4D",
    "Concat",
    "Rows",
    "SetRows",
    "SetInplace",
    "Copy",
    "Duplicate",
    "Slice",
    "Chunk",
    "ChunkSections",
    "TopK",
    "Argsort",
    "Mean",
    "Variance",
    "Stddev",
    "Sqr",
    "Sqrt",
    "Exp",
    "Neg",
    "Clamp",
    "Softplus",
    "CumSum",
    "Diag",
    "Tri",
    "Fill",
    "SolveTri",
    "Interpolate",
    "ScaledDotProductAttention",
    "RoPE",
    "ToString",
    "Ints",
    "TakeAxes",
    "Matmul",
    "Max",
    "Min",
    "AsStrided",
    "Transpose",
    "Scatter",
    "SliceUpdate",
    "SliceUpdateDynamic",
    "PutAlongAxis",
    "Dump",
]
RENAMED = {
    "ToString": "dump",  # what is printed of the values; repr() is one line
    "SigmoidOut": "sigmoid",  # nothing is in place by name, so there is no other
}
ATTRIBUTES = {"Shape", "DType"}  # values, not calls


def snake(name: str) -> str:
    """Name in snake_case: words begin at capitals, runs of capitals are one word."""
    special = {
        "Devices": "Devices",  # keeps its name, as the function does
        "GELU_ERF": "gelu_erf",
        "QuickGELU": "quick_gelu",
        "RoPE": "rope",
        "DType": "dtype",
        "CumSum": "cumsum",
        "IM2Col": "im2col",
        "Conv1DDW": "conv1d_dw",
        "SSMConv": "ssm_conv",
        "SSMScan": "ssm_scan",
        "AvgPool2D": "avg_pool2d",
        "Conv2D": "conv2d",
        "Conv3D": "conv3d",
        "L2Norm": "l2_norm",
        "MulmatID": "mulmat_id",
        "AddID": "add_id",
        "TopK": "top_k",
        "SILUAlphaLimit": "silu_alpha_limit",
        "Repeat4D": "repeat_4d",
        "RMSNorm": "rms_norm",
    }
    return (
        special.get(name)
        or re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
    )


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (kind, n)
        for kind, names in ((Backend, BACKEND), (Context, CONTEXT), (Tensor, TENSOR))
        for n in names
    ],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_every_method_is_there(kind, name) -> None:
    found = getattr(kind, RENAMED.get(name, snake(name)), None)

    assert found is not None
    assert name in ATTRIBUTES or callable(found) or isinstance(found, property)


def test_nothing_takes_a_context_argument() -> None:
    for name in TENSOR:
        method = getattr(Tensor, RENAMED.get(name, snake(name)), None)
        record = getattr(method, "record", method)
        if callable(record):
            assert not {"ctx", "context"} & set(inspect.signature(record).parameters), name


def test_a_weight_is_read_by_both_names_and_devices_are_those_of_the_backend() -> None:
    with new_backend(bundled(), name="cpu") as backend:
        backend.load()
        weight = backend.require("output_norm.weight")
        assert weight.backend_get().tolist() == weight.numpy().tolist()
        assert backend.Devices() == backend.backend_devices() == [backend.device]
