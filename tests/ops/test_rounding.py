"""Norms and pairs in eight bits, by what their groups stand for."""

import dataclasses

import pytest

from tests.ops.fused import ran, titled
from tests.ops.operands import tensor, weight, weight_bytes
from wgpu_backend.dtypes import F16, IQ2_S, IQ4_XS, Q2_K, Q4_0, Q6_K, Q8_0
from wgpu_backend.errors import ShapeError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ops.linear.activation_rounding import (
    EVERY_PRODUCT,
    is_faster,
    q8_pair,
    rms_norm_pair,
    rounding_key,
)
from wgpu_backend.ops.linear.q8_rounding import PLANAR_COLUMNS
from wgpu_backend.ops.linear.q8_rounding import q8_values as decoded
from wgpu_backend.ops.op import fusions
from wgpu_backend.ops.reduce.norm import rms_norm
from wgpu_backend.testing import nmse, values_of

# A value between two quants may be rounded to either: a 127th of the largest of its group.
ROUNDING = 1e-5
SHAPES = [(1, 32), (3, 96), (2, 896), (5, 2080)]


def groups(executor, build):
    return decoded(values_of(executor, build))


def in_both(executor, build):
    """What the groups stand for, on a device and in NumPy."""
    return groups(executor, build), groups(NumpyExecutor(), build)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_both_rows_of_a_pair_add_up_to_fifteen_bits(gpu, rng, shape):
    x = 5 * rng.standard_normal(shape, "f4")
    got, want = in_both(gpu, lambda ctx: q8_pair(tensor(ctx, x)))
    assert got.shape == (shape[0], 2, shape[1])
    assert nmse(got[:, 0], want[:, 0]) <= ROUNDING
    assert nmse(got.sum(axis=1), x) < 1e-9


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("weighted", [False, True])
def test_a_norm_is_split(gpu, rng, shape, weighted):
    x, w = 5 * rng.standard_normal(shape, "f4"), rng.standard_normal(shape[-1], "f4")

    def normed(ctx, norm):
        return norm(tensor(ctx, x), tensor(ctx, w) if weighted else None, eps=1e-5)

    got, want = in_both(gpu, lambda ctx: normed(ctx, rms_norm_pair))
    exact = values_of(NumpyExecutor(), lambda ctx: normed(ctx, rms_norm))
    assert got.shape == (shape[0], 2, shape[1])
    assert nmse(got[:, 0], want[:, 0]) <= ROUNDING
    assert nmse(got.sum(axis=1), exact) < 1e-9


def test_rows_of_other_lengths_are_refused(full):
    with Context(full) as ctx:
        with pytest.raises(ShapeError, match=r"rows of x have 33 values, needs a multiple of 32"):
            rms_norm_pair(ctx.zeros(2, 33), eps=1e-5)
        with pytest.raises(ShapeError, match=r"weight is \(32,\), rows have 64 values"):
            rms_norm_pair(ctx.zeros(2, 64), ctx.zeros(32), eps=1e-5)


@pytest.mark.parametrize("others", [False, True], ids=["alone", "and others"])
@pytest.mark.parametrize("rows", [1, 3])
def test_a_norm_that_logits_alone_read_is_split_in_one_op(full, monkeypatch, rng, rows, others):
    full = full.as_if(dataclasses.replace(full.capabilities, rounded=EVERY_PRODUCT))
    data, x = weight_bytes(rng, 40, 256, Q4_0), rng.standard_normal((rows, 256), "f4")

    def ran(rules):
        """Ops of logits after fusion, and their values."""
        monkeypatch.setattr(full, "rules", fusions(rules, exact=False))
        with Context(full) as ctx:
            normed = tensor(ctx, x).rms_norm(eps=1e-5)
            logits = weight(full, 40, 256, Q4_0, data).mulmat_full_prec(normed)
            recorded = ctx.record(logits, *([normed] if others else []))
            values = recorded.run({}).wait()[0]
            recorded.close()
            return [titled(node) for node, _ in recorded.plan.steps], values

    names, got = ran(["linear_q8_pair", "rms_norm_pair"])
    norm = ["rms_norm", "q8_pair"] if others else ["rms_norm_pair"]
    assert names == [*norm, "linear q8_pair full"]
    assert nmse(got, ran([])[1]) < 1e-8


@pytest.mark.parametrize("columns", [1, 8, 64])
def test_formats_of_four_bits_multiply_in_bytes(columns):
    fast = Capabilities(integer_dot=True)
    assert all(is_faster(dtype, columns, fast) for dtype in (Q4_0, IQ4_XS, Q6_K, Q8_0))
    assert not any(is_faster(dtype, columns, fast) for dtype in (Q2_K, IQ2_S, F16))
    assert not is_faster(Q4_0, columns, Capabilities())


def test_measurements_outrank_defaults():
    one = frozenset({rounding_key(Q4_0, 1)})
    assert not is_faster(Q4_0, 1, Capabilities(integer_dot=True, unrounded=one))
    assert is_faster(Q4_0, 8, Capabilities(integer_dot=True, unrounded=one))
    assert is_faster(Q4_0, 1, Capabilities(rounded=one))


@pytest.mark.parametrize("rows", [3, 20])
@pytest.mark.parametrize("kind", ["wide", "full", "baseline"])
def test_products_of_a_layer_take_two_parts(executors, monkeypatch, rng, kind, rows):
    known = dataclasses.replace(executors(kind).capabilities, rounded=EVERY_PRODUCT, f16=False)
    device = executors(kind).as_if(known)
    first, second = weight_bytes(rng, 192, 64, Q4_0), weight_bytes(rng, 64, 96, Q4_0)
    x, gain = rng.standard_normal((rows, 64), "f4"), rng.standard_normal(64).astype("f4")
    gain[::32] *= 60  # eight bits alone would leave little of the others

    def layer(ctx):
        rest, both = tensor(ctx, x), weight(ctx.executor, 192, 64, Q4_0, first)
        normed = rest.rms_norm(tensor(ctx, gain), eps=1e-5)
        gate, up = (both.slice(0, i, i + 96).mulmat(normed) for i in (0, 96))
        last = weight(ctx.executor, 64, 96, Q4_0, second)
        return [last.mulmat(gate.swiglu(up)).add(rest)]

    names, got = ran(device, monkeypatch, True, layer, exact=False, coarse=False)
    _, want = ran(NumpyExecutor(), monkeypatch, False, layer)
    parts = ["rms_norm_pair", "linear q8_pair gated", "q8_pair", "linear q8_pair add"]
    # Of few columns both parts have one scale on hardware, and a product rounds its result.
    joined = ["q16_weighted", "linear q16 gated to_q16", "linear q16 add"]
    hardware = not device.capabilities.software
    assert names == (joined if hardware and rows <= PLANAR_COLUMNS else parts)
    assert nmse(got[0], want[0]) < 1e-7
