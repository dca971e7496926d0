"""What every family of ops does with nothing, too much, other contexts' tensors and closed ones."""

import numpy as np
import pytest

from wgpu_backend.device.memory import format_bytes
from wgpu_backend.dtypes import F16, I32, Q8_0
from wgpu_backend.errors import (
    BackendError,
    ContextError,
    DeviceError,
    OutOfMemory,
    ShapeError,
)
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor

# Each family of ops, of a matrix `x` and another `y` of its shape.
ONE = {
    "silu": lambda x: x.silu(),
    "gelu": lambda x: x.gelu(),
    "scale": lambda x: x.scale(factor=2.0),
    "exp": lambda x: x.exp(),
    "clamp": lambda x: x.clamp(-1, 1),
    "fill": lambda x: x.fill(3),
    "cast": lambda x: x.cast(dtype=F16),
    "contiguous": lambda x: x.permute(1, 0).contiguous(),
    "pad": lambda x: x.pad(1, 2),
    "repeat": lambda x: x.repeat(0, 3),
    "sum": lambda x: x.sum(-1),
    "sum of columns": lambda x: x.sum(0),
    "mean": lambda x: x.mean(-1),
    "max": lambda x: x.max(-1),
    "min of columns": lambda x: x.min(0),
    "variance": lambda x: x.variance(-1),
    "stddev": lambda x: x.stddev(0),
    "sum_rows": lambda x: x.sum_rows(),
    "argmax": lambda x: x.argmax(),
    "argsort": lambda x: x.argsort(),
    "top_k": lambda x: x.top_k(1),
    "cumsum": lambda x: x.cumsum(),
    "softmax": lambda x: x.softmax(),
    "rms_norm": lambda x: x.rms_norm(eps=1e-6),
    "layer_norm": lambda x: x.layer_norm(eps=1e-6),
    "l2_norm": lambda x: x.l2_norm(eps=1e-6),
    "tri": lambda x: x.tri(0),
    "diag": lambda x: x.diag(),
}
TWO = {
    "add": lambda x, y: x + y,
    "div": lambda x, y: x / y,
    "swiglu": lambda x, y: x.swiglu(y),
    "mulmat": lambda x, y: x.mulmat(y),
    "matmul": lambda x, y: x @ y.permute(1, 0),
    "concat": lambda x, y: x.concat(y, axis=0),
    "stack": lambda x, y: x.stack(1, y, y),
    "copy": lambda x, y: x.copy(y),
    "slice_update": lambda x, y: x.slice_update(y, (0, 0)),
    "take_axes": lambda x, y: x.take_axes(y.cast(dtype=I32).reshape(-1), 0),
    "take_along_axis": lambda x, y: x.take_along_axis(y.cast(dtype=I32), 0),
    "put_along_axis": lambda x, y: x.put_along_axis(y.cast(dtype=I32), y, 0),
    "set_rows": lambda x, y: x.set_rows(
        y, y.cast(dtype=I32)[:, 0] if y.shape[1] else y.sum(-1).cast(dtype=I32)
    ),
}
EMPTY = [(0, 4), (4, 0), (0, 0)]


def outcome(executor, shape, act):
    """Values, or the kind of the error where the op refuses."""
    with Context(executor) as ctx:
        operands = [ctx.zeros(*shape) for _ in range(act.__code__.co_argcount)]
        try:
            return act(*operands).numpy()
        except BackendError as error:
            return type(error)


@pytest.mark.parametrize("shape", EMPTY, ids=str)
@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_nothing_gives_what_it_gives_on_numpy_or_is_refused(gpu, name, shape):
    act = {**ONE, **TWO}[name]
    got, want = outcome(gpu, shape, act), outcome(NumpyExecutor(), shape, act)
    if isinstance(want, type):
        assert got is want is ShapeError
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("name", TWO)
def test_a_tensor_of_another_context_is_refused(executor, name):
    with Context(executor) as ctx, Context(executor) as other:
        x, y = ctx.zeros(4, 4), other.zeros(4, 4)
        with pytest.raises(ContextError, match="tensors of two contexts; copy one over"):
            TWO[name](x, y)


@pytest.mark.parametrize("name", [*ONE, *TWO])
def test_a_tensor_of_a_closed_context_is_refused(executor, name):
    act = {**ONE, **TWO}[name]
    with Context(executor) as ctx:
        operands = [ctx.zeros(4, 4) for _ in range(act.__code__.co_argcount)]
    with pytest.raises(ContextError, match="context: it is closed; make a new one"):
        act(*operands)


def test_values_of_a_closed_context_are_refused(executor):
    with Context(executor) as ctx:
        x = ctx.zeros(4)
        y = x + 1
    for closed in (x, y):
        with pytest.raises(ContextError, match="closed"):
            closed.numpy()


OVER = {
    "pad": lambda x: x.pad(x.shape[0]),
    "repeat": lambda x: x.repeat(0, 2),
    "concat": lambda x: x.concat(x, axis=0),
    "diag": lambda x: x[:7168].diag(),
}


@pytest.fixture
def small_bindings(gpu):
    """A device whose bindings end at 128 MiB, which with the baseline's limits is any."""
    most = gpu.capabilities.max_binding_nbytes
    if most != 128 << 20:
        pytest.skip(f"bindings of {format_bytes(most)} take gigabytes to exceed")
    return gpu


@pytest.mark.parametrize("name", OVER)
def test_results_beyond_a_binding_are_refused_with_both_numbers(small_bindings, name):
    with Context(small_bindings) as ctx:
        x = ctx.zeros(20 << 20)
        with pytest.raises(
            DeviceError, match=r"y: \d+ MiB in one binding, the device allows 128 MiB"
        ):
            OVER[name](x)[0].numpy()


def test_operands_beyond_a_binding_are_refused_with_both_numbers(small_bindings):
    refused = pytest.raises(DeviceError, match=r"x: 160 MiB .* allows 128 MiB")
    with Context(small_bindings) as ctx, refused:
        ctx.zeros(40 << 20).sum().numpy()


def test_tensors_beyond_a_buffer_are_refused_with_both_numbers(gpu):
    most = gpu.capabilities.max_buffer_nbytes
    count, many = most // 4 + (88 << 20), max(5 << 30, most)

    def refused(nbytes):
        sizes = rf"{format_bytes(nbytes)} .* in one buffer, the device allows {format_bytes(most)} "
        return pytest.raises(OutOfMemory, match=sizes)

    with Context(gpu) as ctx:
        with refused(4 * count):
            ctx.zeros(count)
        with refused(4 * many):
            ctx.zeros(1).repeat(0, many)[0].numpy()


@pytest.mark.parametrize("shape", EMPTY, ids=str)
def test_nothing_in_blocks(executor, shape):
    with Context(executor) as ctx:
        x = ctx.from_bytes(Q8_0, b"", *shape[:-1], 32 * shape[-1])
        assert x.numpy().shape == x.shape
        assert x.cast(dtype=F16).numpy().shape == x.shape
        assert x.rows(ctx.zeros(0, dtype=I32)).numpy().shape == (0, x.shape[1])
        assert x.mulmat(ctx.zeros(3, x.shape[1])).numpy().tolist() == [[0] * x.shape[0]] * 3
