"""Every family of ops with empty, oversized, foreign and closed operands."""

import pytest

from wgpu_backend.device.memory import format_bytes
from wgpu_backend.dtypes import F16, I32, Q8_0
from wgpu_backend.errors import (
    ContextError,
    DeviceError,
    OutOfMemory,
)
from wgpu_backend.ml.context import Context

EMPTY = [(0, 4), (4, 0), (0, 0)]


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
def test_results_beyond_a_binding_are_refused(small_bindings, name):
    with Context(small_bindings) as ctx:
        x = ctx.zeros(20 << 20)
        with pytest.raises(
            DeviceError, match=r"y: \d+ MiB in one binding, the device allows 128 MiB"
        ):
            OVER[name](x)[0].numpy()


def test_operands_beyond_a_binding_are_refused(small_bindings):
    refused = pytest.raises(DeviceError, match=r"x: 160 MiB .* allows 128 MiB")
    with Context(small_bindings) as ctx, refused:
        ctx.zeros(40 << 20).sum().numpy()


def test_tensors_beyond_a_buffer_are_refused(gpu):
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
