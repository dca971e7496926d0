"""Run an ONNX file as one compiled function of arrays: an interpreter of its graph, op by op.

    python examples/onnx_model.py MODEL.onnx [--device DEVICE]

Needs the package ``onnx``, which reads the file. Shapes are computed on the host while the graph is
traced; the work of the device is replayed. Images have ONNX's layout, channels first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import wgpu_backend.array as wx

Value = Any  # an array, or NumPy's where the host knows it
OnnxNode = Any
Attributes = Mapping[str, Any]
OPS: dict[str, Callable[..., Any]] = {}


def op(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as an ONNX op, which receives its inputs and attributes."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        OPS[name] = function
        return function

    return register


def on_host(*values: Value) -> bool:
    """Return whether the host knows all of these values."""
    return all(v is None or isinstance(v, np.ndarray | np.generic) for v in values)


def library(*values: Value) -> Value:
    """Return NumPy if the host knows all values, else the array module."""
    return np if on_host(*values) else wx


def ints(value: Value) -> list[int]:
    """Return whole numbers that the host must know, such as shapes and axes."""
    return [int(v) for v in np.atleast_1d(np.asarray(value))]


ELEMENTWISE = {
    "Add": "add", "Sub": "subtract", "Mul": "multiply", "Div": "divide", "Pow": "power",
    "Equal": "equal", "Greater": "greater", "Less": "less", "Where": "where",
    "Sqrt": "sqrt", "Exp": "exp", "Log": "log", "Sin": "sin", "Cos": "cos", "Tanh": "tanh",
    "Neg": "negative", "Abs": "abs", "MatMul": "matmul", "Floor": "floor", "Round": "round",
}  # fmt: skip


def elementwise(function: str) -> Callable[..., Any]:
    """Make an op that NumPy and the array module have under one name."""

    def call(_: Attributes, *values: Value) -> Value:
        return getattr(library(*values), function)(*values)

    return call


for onnx_name, function_name in ELEMENTWISE.items():
    OPS[onnx_name] = elementwise(function_name)


@op("Constant")
def constant(attributes: Attributes) -> Value:
    """Return a constant of the file."""
    return attributes["value"]


@op("Identity")
def identity(_: Attributes, x: Value) -> Value:
    """Return the value itself."""
    return x


@op("Reciprocal")
def reciprocal(_: Attributes, x: Value) -> Value:
    """Compute one over the value."""
    return 1.0 / x


@op("Sigmoid")
def sigmoid(_: Attributes, x: Value) -> Value:
    """Compute the logistic function."""
    return wx.sigmoid(x)


@op("Erf")
def erf(_: Attributes, x: Value) -> Value:
    """Compute the error function."""
    return wx.erf(x)


@op("Clip")
def clip(_: Attributes, x: Value, low: Value = None, high: Value = None) -> Value:
    """Clip values to two bounds."""
    return wx.clip(x, low, high)


@op("Cast")
def cast(attributes: Attributes, x: Value) -> Value:
    """Convert to another type; 64-bit types stay on the host or become 32-bit."""
    import onnx

    kind = onnx.helper.tensor_dtype_to_np_dtype(attributes["to"])
    if on_host(x):
        return np.asarray(x).astype(kind)
    narrower = {"int64": wx.int32, "float64": wx.float32}
    return x.astype(narrower.get(kind.name, kind))


@op("Shape")
def shape(_: Attributes, x: Value) -> Value:
    """Return the extents, which the host knows."""
    return np.asarray(x.shape, np.int64)


@op("ConstantOfShape")
def constant_of_shape(attributes: Attributes, extents: Value) -> Value:
    """Fill a shape with one value."""
    value = attributes.get("value", np.zeros(1, np.float32))
    return np.full(ints(extents), value.reshape(()), value.dtype)


@op("Reshape")
def reshape(_: Attributes, x: Value, extents: Value) -> Value:
    """Change the shape; 0 keeps an extent."""
    wanted = [x.shape[i] if n == 0 else n for i, n in enumerate(ints(extents))]
    return x.reshape(wanted)


@op("Transpose")
def transpose(attributes: Attributes, x: Value) -> Value:
    """Permute the axes."""
    return x.transpose(attributes.get("perm", tuple(reversed(range(x.ndim)))))


@op("Unsqueeze")
def unsqueeze(attributes: Attributes, x: Value, axes: Value = None) -> Value:
    """Insert axes of extent one."""
    places = tuple(ints(attributes["axes"] if axes is None else axes))
    return library(x).expand_dims(x, places)


@op("Squeeze")
def squeeze(attributes: Attributes, x: Value, axes: Value = None) -> Value:
    """Remove axes of extent one."""
    given = attributes.get("axes") if axes is None else axes
    return library(x).squeeze(x, None if given is None else tuple(ints(given)))


@op("Expand")
def expand(_: Attributes, x: Value, extents: Value) -> Value:
    """Repeat to a shape that broadcasts with its own."""
    wanted = np.broadcast_shapes(tuple(x.shape), tuple(ints(extents)))
    return library(x).broadcast_to(x, wanted)


@op("Concat")
def concat(attributes: Attributes, *values: Value) -> Value:
    """Join along an axis."""
    if on_host(*values):
        return np.concatenate([np.atleast_1d(v) for v in values], attributes["axis"])
    return wx.concatenate([wx.asarray(v) for v in values], attributes["axis"])


@op("Split")
def split(attributes: Attributes, x: Value, sizes: Value = None) -> list[Value]:
    """Split along an axis."""
    axis = attributes.get("axis", 0)
    if sizes is None:
        return list(wx.split(x, attributes["num_outputs"], axis))
    return list(wx.split(x, [int(n) for n in np.cumsum(ints(sizes))[:-1]], axis))


@op("Slice")
def slice_(
    _: Attributes, x: Value, starts: Value, ends: Value, axes: Value = None, steps: Value = None
) -> Value:
    """Take ranges of axes."""
    first = ints(starts)
    where = range(len(first)) if axes is None else ints(axes)
    step = [1] * len(first) if steps is None else ints(steps)
    index = [slice(None)] * x.ndim
    for axis, low, high, by in zip(where, first, ints(ends), step, strict=True):
        index[axis] = slice(low, min(high, x.shape[axis]), by)
    return x[tuple(index)]


@op("Gather")
def gather(attributes: Attributes, x: Value, ids: Value) -> Value:
    """Take values of an axis by their indices."""
    axis = attributes.get("axis", 0)
    if on_host(x, ids):
        return np.take(x, ids, axis)
    index = int(ids) if np.ndim(ids) == 0 else wx.asarray(np.asarray(ids, np.int32))
    return x[(slice(None),) * (axis % x.ndim) + (index,)]


@op("Gemm")
def gemm(attributes: Attributes, a: Value, b: Value, c: Value = None) -> Value:
    """Multiply two matrices and add a third."""
    left = a.T if attributes.get("transA") else a
    right = b.T if attributes.get("transB") else b
    y = (left @ right) * attributes.get("alpha", 1.0)
    return y if c is None else y + c * attributes.get("beta", 1.0)


@op("Einsum")
def einsum(attributes: Attributes, *values: Value) -> Value:
    """Sum over named axes."""
    return wx.einsum(attributes["equation"].decode(), *values)


@op("Softmax")
def softmax(attributes: Attributes, x: Value) -> Value:
    """Compute the softmax along an axis."""
    return wx.softmax(x, axis=attributes.get("axis", -1))


@op("ReduceMean")
def reduce_mean(attributes: Attributes, x: Value, axes: Value = None) -> Value:
    """Compute the mean over axes."""
    given = attributes.get("axes") if axes is None else axes
    axis = None if given is None else tuple(ints(given))
    return wx.mean(x, axis=axis, keepdims=bool(attributes.get("keepdims", 1)))


@op("InstanceNormalization")
def instance_norm(attributes: Attributes, x: Value, scale: Value, bias: Value) -> Value:
    """Normalise each channel of each image to mean 0 and variance 1."""
    axes = tuple(range(2, x.ndim))
    wide = (-1, *(1,) * (x.ndim - 2))
    centred = x - wx.mean(x, axis=axes, keepdims=True)
    spread = wx.mean(centred * centred, axis=axes, keepdims=True)
    y = centred * wx.rsqrt(spread + attributes["epsilon"])
    return y * scale.reshape(wide) + bias.reshape(wide)


@op("Conv")
def conv(attributes: Attributes, x: Value, weight: Value, bias: Value = None) -> Value:
    """Convolve over height and width."""
    top, left, bottom, right = attributes.get("pads", (0, 0, 0, 0))
    padding = [(top, bottom), (left, right)]
    y = wx.conv_general(
        x.transpose(0, 2, 3, 1),
        weight.transpose(0, 2, 3, 1),
        stride=tuple(attributes.get("strides", (1, 1))),
        padding=([p[0] for p in padding], [p[1] for p in padding]),
        kernel_dilation=tuple(attributes.get("dilations", (1, 1))),
        groups=attributes.get("group", 1),
    )
    return (y if bias is None else y + bias).transpose(0, 3, 1, 2)


@op("AveragePool")
def average_pool(attributes: Attributes, x: Value) -> Value:
    """Average windows that do not overlap."""
    height, width = attributes["kernel_shape"]
    if tuple(attributes["strides"]) != (height, width) or any(attributes.get("pads", ())):
        raise NotImplementedError("AveragePool: windows that overlap or leave the picture")
    n, c, h, w = x.shape
    return wx.mean(x.reshape(n, c, h // height, height, w // width, width), axis=(3, 5))


@op("Resize")
def resize(attributes: Attributes, x: Value, *sizes: Value) -> Value:
    """Repeat each pixel: ONNX's nearest, for whole factors."""
    if attributes.get("mode", b"nearest") != b"nearest":
        raise NotImplementedError(f"Resize: mode {attributes['mode'].decode()}")
    given = np.asarray(sizes[-1])
    factors = given if len(sizes) == 2 else given / np.asarray(x.shape)
    for axis, factor in enumerate(factors):
        if factor != int(factor):
            raise NotImplementedError(f"Resize: factor {factor}")
        if factor > 1:
            x = wx.repeat(x, int(factor), axis=axis)
    return x


@op("DynamicQuantizeLinear")
def dynamic_quantize(_: Attributes, x: Value) -> list[Value]:
    """Quantise values to 255 steps of their range, and return the step and the zero point."""
    low, high = wx.minimum(wx.min(x), 0.0), wx.maximum(wx.max(x), 0.0)
    scale = (high - low) / 255.0
    zero = wx.round(wx.clip(-low / scale, 0.0, 255.0))
    return [wx.clip(wx.round(x / scale) + zero, 0.0, 255.0), scale, zero]


@op("MatMulInteger")
def matmul_integer(
    _: Attributes, a: Value, b: Value, a_zero: Value = None, b_zero: Value = None
) -> Value:
    """Multiply integer matrices, in float32, which holds the results."""
    left = a if a_zero is None else a - a_zero
    right = b.astype(wx.float32)
    return left @ (right if b_zero is None else right - b_zero.astype(wx.float32))


class OnnxModel:
    """A graph of a file, called with its inputs by name.

    Parameters
    ----------
    path : str or Path

    Raises
    ------
    NotImplementedError
        The graph has ops that are not among `OPS`; the message lists them.
    """

    def __init__(self, path: str | Path) -> None:
        import onnx

        self._graph = onnx.load(str(path)).graph
        unknown = sorted({n.op_type for n in self._graph.node} - OPS.keys())
        if unknown:
            raise NotImplementedError(f"{path}: no op {', '.join(unknown)}")
        self._weights = {
            w.name: _weight(onnx.numpy_helper.to_array(w)) for w in self._graph.initializer
        }
        self._nodes = [(n, _attributes(n)) for n in self._graph.node]
        self.inputs = [i.name for i in self._graph.input if i.name not in self._weights]
        self.outputs = [o.name for o in self._graph.output]
        self.run = wx.compile(self._run)

    def __call__(self, **inputs: Value) -> dict[str, wx.Array]:
        """Return the outputs by name; a call with shapes that were seen before replays."""
        return self.run({n: wx.asarray(v) for n, v in inputs.items()})

    def _run(self, inputs: Mapping[str, wx.Array]) -> dict[str, wx.Array]:
        values: dict[str, Value] = {"": None, **self._weights, **inputs}
        for node, attributes in self._nodes:
            given = [values[name] for name in node.input]
            if node.op_type not in {"Shape", "Constant"} and not on_host(*given):
                given = [_on_device(v) for v in given]
            made = OPS[node.op_type](attributes, *given)
            several = made if isinstance(made, list) else [made]
            values.update(zip(node.output, several, strict=False))
        return {name: values[name] for name in self.outputs}


def _weight(values: np.ndarray[Any, Any]) -> Value:
    """Return a weight on the device; possible shapes and indices stay on the host."""
    return values if values.dtype == np.int64 or values.size == 1 else wx.array(values)


def _on_device(value: Value) -> Value:
    """Convert a float of the host to an array if another operand is one."""
    is_float = on_host(value) and value is not None and np.asarray(value).dtype.kind == "f"
    return wx.array(value) if is_float else value


def _attributes(node: OnnxNode) -> dict[str, Any]:
    import onnx

    found = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    if "value" in found:
        found["value"] = onnx.numpy_helper.to_array(found["value"])
    return found


def main() -> None:
    """Run a file on random inputs and time it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--device")
    options = parser.parse_args()
    if options.device:
        wx.set_default_device(options.device)
    model = OnnxModel(options.model)
    rng = np.random.default_rng(0)
    inputs: dict[str, np.ndarray[Any, Any]] = {}
    for given in model._graph.input:
        extents = [d.dim_value or 1 for d in given.type.tensor_type.shape.dim]
        inputs[given.name] = np.abs(rng.standard_normal(extents, np.float32)) + 0.1
    for _ in range(3):
        start = time.perf_counter()
        found = {name: array.numpy() for name, array in model(**inputs).items()}
        print(f"{time.perf_counter() - start:.3f} s")
    for name, values in found.items():
        print(name, values.shape, float(values.mean()), float(values.std()))


if __name__ == "__main__":
    main()
