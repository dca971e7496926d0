"""Graphs that the self-test compares with NumPy: the type of a case, and parts of cases.

A graph is a function of a context (`wgpu_backend.ml.context.Context`, a floor above this one) and
random numbers, so that a device and NumPy get the same data.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from gguf import GGMLQuantizationType, quants

from wgpu_backend import dtypes
from wgpu_backend.dtypes import F16, DType
from wgpu_backend.ops.attention.paged import Scores, attention_merge, paged_attention_splits

# NMSE allowed where activations are rounded to eight bits. A correct kernel has some 4e-5.
ROUNDING_ERROR = 1e-3
# The same where pairs of f16 are multiplied, which cost up to 1e-6.
F16_ERROR = 1e-5
# The same for sums in f32. A correct kernel has some 1e-13, a wrong one about 1.
LARGEST_ERROR = 1e-6
# Classes of `ml`, a room above this one, which must not be imported here.
Context = Any
Tensor = Any
# Bytes of a block with a scale in f16, of formats that gguf does not make; any other bytes will do.
_SCALES = {dtypes.Q4_K: [[0, 1], [2, 3]], dtypes.Q6_K: [[208, 209]]}


class FusionCase(NamedTuple):
    """A graph to which a fusion rule applies.

    Parameters
    ----------
    rule : str
        Name of the op that the rule makes.
    largest_error : float
        Normalised mean squared error that rounding explains.
    build : callable
        From a context and random numbers to a tensor.
    before : tuple of str
        Rules without which this one never finds what it looks for.
    in_bytes : bool
        Whether it is tried as if activations in eight bits paid everywhere.
    """

    rule: str
    largest_error: float
    build: Callable[[Context, np.random.Generator], Tensor]
    before: tuple[str, ...] = ()
    in_bytes: bool = True


def attention_into_product(context: Context, rng: np.random.Generator, splits: int = 1) -> Tensor:
    """Build attention that only a product with a block format reads."""
    weight = draw_quantised(context, rng, dtypes.Q4_0)
    return weight.mulmat(attention(context, rng, heads=8, splits=splits).reshape(5, 256))


def by_expert(context: Context, rng: np.random.Generator) -> Tensor:
    """Build products of fifty tokens with two of three experts each, and their biases."""
    experts = draw_quantised(context, rng, dtypes.Q4_0).slice(0, 0, 39).reshape(3, 13, 256)
    ids = context.from_numpy(np.stack([rng.permutation(3)[:2] for _ in range(50)]))
    y = experts.mulmat_id(normal(context, rng, 50, 1, 256), ids)
    return y.add_id(normal(context, rng, 3, 13), ids)


def gated_into_product(context: Context, rng: np.random.Generator) -> Tensor:
    """Build a gated product that only another product reads."""
    both = draw_quantised(context, rng, dtypes.Q4_0, rows=64)
    x = normal(context, rng, 3, 256)
    gate, up = both.slice(0, 0, 32), both.slice(0, 32, 64)
    down = draw_quantised(context, rng, dtypes.Q4_0, values=32)
    return down.mulmat(gate.mulmat(x).swiglu(up.mulmat(x)))


def normed_sum(context: Context, rng: np.random.Generator) -> Tensor:
    """Build a residual sum that is also an output, and the product of its norm."""
    weight, x = draw_quantised(context, rng, dtypes.Q4_0, rows=32), normal(context, rng, 3, 256)
    total = weight.linear(x, normal(context, rng, 3, 32))
    normed = total.rms_norm(normal(context, rng, 32), eps=1e-5)
    return draw_quantised(context, rng, dtypes.Q4_0, values=32).mulmat(normed).concat(total, axis=1)


def normal(context: Context, rng: np.random.Generator, *shape: int) -> Tensor:
    """Draw normal values, f32."""
    return context.from_numpy(rng.standard_normal(shape, np.float32))


def draw_quantised(
    context: Context, rng: np.random.Generator, dtype: DType, rows: int = 40, values: int = 256
) -> Tensor:
    """Draw (rows, values) in a block format."""
    assert dtype.ggml is not None
    if dtype in _SCALES:
        data = rng.integers(0, 256, (rows * values // dtype.block, dtype.block_nbytes), np.uint8)
        scale = np.frombuffer(np.float16(0.01).tobytes(), np.uint8)
        for place in _SCALES[dtype]:
            data[:, place] = scale
    else:
        kind = GGMLQuantizationType(dtype.ggml)
        data = quants.quantize(rng.standard_normal((rows, values), np.float32), kind)
    return context.from_bytes(dtype, data.tobytes(), rows, values)


def f16_weight(context: Context, rng: np.random.Generator, rows: int, values: int) -> Tensor:
    """Draw a weight in f16."""
    data = rng.standard_normal((rows, values), np.float32).astype(np.float16)
    return context.weight(F16, data.tobytes(), rows, values)


def attention(
    context: Context, rng: np.random.Generator, heads: int = 4, tokens: int = 5, splits: int = 1
) -> Tensor:
    """Build attention of tokens of two sequences over a paged f16 cache."""
    keys = normal(context, rng, 96, 64).cast(dtype=F16)
    return attend(
        normal(context, rng, tokens, heads, 32),
        keys,
        normal(context, rng, 96, 64).cast(dtype=F16),
        context.from_ints([63, 13, 40, 0, 63][:tokens]),
        context.from_ints([0, 1, 0, 1, 0][:tokens]),
        context.from_ints([2, 0, 1, 2], 2, 2),
        splits=splits,
    )


def next_token(
    context: Context, rng: np.random.Generator, *, norms: bool = False, splits: int = 1
) -> Tensor:
    """Build a decode step whose query, key and value share one tensor, after two tokens."""
    # A rule fuses the rotation only if the query lies in a tensor of the graph, not in an input:
    # tanh makes one.
    wide = normal(context, rng, 1, 256).tanh()
    ends = ((0, 128), (128, 192), (192, 256))
    q, k, v = (wide.slice(1, start, stop).reshape(1, -1, 32) for start, stop in ends)
    if norms:
        q, k = (x.rms_norm(normal(context, rng, 32), eps=1e-5) for x in (q, k))
    positions, slot = context.from_ints([2]), context.from_ints([34])
    table = positions.rope_table(context.from_numpy(np.float32(0.1) ** np.arange(16)))
    keys = context.zeros(64, 64).set_rows(k.rope(table).reshape(1, -1), slot)
    values = context.zeros(64, 64).set_rows(v.contiguous().reshape(1, -1), slot)
    places = positions, context.from_ints([0]), context.from_ints([1, 0], 1, 2)
    return attend(q.rope(table), keys, values, *places, splits=splits)


def attend(q: Tensor, k: Tensor, v: Tensor, *places: Tensor, splits: int) -> Tensor:
    """Build attention over ranges of positions, and the merge of several ranges."""
    scores = Scores(block=32, scale=0.2, kv_heads=2)
    if splits == 1:
        return q.paged_attention(k, v, *places, scores=scores)
    ranges = paged_attention_splits(q, k, v, *places, scores=scores, splits=splits)
    return attention_merge(ranges)
