"""Operands for tests of ops: any dtype, and equal values laid out in different ways."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np

from tests.builders import WEIGHT_TYPES, quantised
from wgpu_backend.dtypes import ALL, BF16, BOOL, F16, F32, Q6_K, DType, f32_to_bf16, named
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ml.testing import operands as layouts
from wgpu_backend.ml.wgpu.executor import WgpuExecutor

FLOATS = (F32, F16, BF16)
WEIGHTS = tuple(named(name) for name in WEIGHT_TYPES)
PLAIN_WEIGHTS = (F32, F16, BF16)
PLAIN = tuple(dtype for dtype in ALL if not dtype.quantised)
# Of results that were rounded to a type: where two devices round a tie-like value differently the
# square of one step is 2⁻²⁰ (f16) or 2⁻¹⁴ (bf16) of the value's, in a few values of a thousand.
ROUNDED = {F32: 1e-12, F16: 1e-8, BF16: 1e-6}


def without_fractions(values: np.ndarray, dtype: DType) -> np.ndarray:
    """The values as a type holds them: whole if it is one of integers."""
    whole = dtype.numpy is not None and dtype.numpy.kind in "iu"
    return np.trunc(values) if whole else values


def tensor(ctx: Context, values: np.ndarray, dtype: DType = F32) -> Tensor:
    """Dense tensor of a plain type; integers are without the fractions of the values."""
    if dtype == BF16:
        return ctx.from_bytes(BF16, f32_to_bf16(values).tobytes(), *values.shape)
    return ctx.from_numpy(without_fractions(values, dtype), dtype)


def anything(rng: np.random.Generator, dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    """Bits of values of a plain type, as integers of its width; no NaN, which hosts change."""
    word = np.dtype(f"u{dtype.block_nbytes}")
    if dtype == BOOL:
        return rng.integers(0, 2, shape, word)
    values = rng.integers(0, np.iinfo(word).max, shape, word, endpoint=True)
    exponents = {"f32": 0xBFFFFFFF, "f16": 0xBFFF, "bf16": 0xBFFF, "f64": 0xBFFF_FFFF_FFFF_FFFF}
    mask = exponents.get(dtype.name, np.iinfo(word).max)
    return values & word.type(0xBFFF_FFFF_BFFF_FFFF if dtype.name == "complex64" else mask)


def plain(ctx: Context, values: np.ndarray, dtype: DType) -> Tensor:
    """Dense tensor of a plain type from its bits."""
    return ctx.from_bytes(dtype, values.tobytes(), *values.shape)


def bits(found: Tensor) -> np.ndarray:
    """Values of a tensor of a plain type as integers of its width."""
    values = found.contiguous().numpy()
    if found.dtype == BF16:
        values = f32_to_bf16(values)
    return np.ascontiguousarray(values).view(f"u{found.dtype.block_nbytes}")


Layout = Callable[..., Tensor]


def laid_out(name: str) -> Layout:
    """A layout of `wgpu_backend.testing`, of values that integers take without their fractions."""

    def make(ctx: Context, values: np.ndarray, dtype: DType = F32) -> Tensor:
        return layouts.LAYOUTS[name](ctx, without_fractions(values, dtype), dtype)

    return make


LAYOUTS: dict[str, Layout] = {"tensor": tensor} | {
    name: laid_out(name) for name in ("permuted", "sliced", "stepped", "shifted")
}
# Each layout with a type in turn, for ops that `tests/ops/table.py` has no row of.
VIEWS = tuple(zip(LAYOUTS, cycle(FLOATS), strict=False))


def beside_ties(x: np.ndarray) -> np.ndarray:
    """Rows of which no value is just between two of 127 steps of its group's largest.

    WGSL lets a quotient be 2.5 units off, by which a device may round such a value the other way.
    """
    groups = x.reshape(*x.shape[:-1], -1, 32)
    step = np.abs(groups).max(axis=-1, keepdims=True) / 127
    near = between(groups / step, 0.01)
    return np.where(near, groups + 0.02 * step, groups).astype(x.dtype).reshape(x.shape)


def between(steps: np.ndarray, by: float = 1e-4) -> np.ndarray:
    """Which numbers of steps lie so near to a half that the driver may round them either way."""
    return np.abs(steps - np.floor(steps) - 0.5) < by


# Of products in eight bits: integers are summed exactly, and f32 in another order than NumPy's.
# Tiles of Q6_K on a device that fuses take 3 · 2²² times both scales off at once, and lose half
# of the larger one, where sums of 32 products are some thousands of it: 4e-9.
SUMMED, TAKEN_OFF = 1e-10, 1e-8


def limit_of_bytes(executor: Executor, dtype: DType) -> float:
    """Largest NMSE of a product of many columns in eight bits."""
    fused = isinstance(executor, WgpuExecutor) and executor.capabilities.fused
    return TAKEN_OFF if fused and dtype == Q6_K else SUMMED


def weight_bytes(
    rng: np.random.Generator, rows: int, cols: int, dtype: DType, std: float = 1.0
) -> bytes:
    """A random matrix as it lies in a GGUF file."""
    return quantised(rng, (rows, cols), dtype.name, std).tobytes()


def weight(executor, rows: int, cols: int, dtype: DType, data: bytes) -> Tensor:
    """A matrix the executor holds as a weight, as those of a model are."""
    from wgpu_backend.graph.spec import Spec
    from wgpu_backend.ml.tensor import leaf

    spec = Spec.dense((rows, cols), dtype)
    return leaf(spec, executor.weight(spec, memoryview(data), "weight"))
