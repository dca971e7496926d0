"""What fusion rules leave of a graph, and what it gives."""

import numpy as np

from wgpu_backend.ml.context import Context
from wgpu_backend.ops.linear.attributes import Attributes
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse

# WGSL lets a product be fused with the sum behind it where both are in one kernel; then a last bit
# may differ, and what it goes into: 6e-8 of a value, squared, and some of these.
FUSED_SUMS = 1e-12
# Of a cache in f16, where that bit may take one value of thousands to its neighbour.
ROTATED_KEYS = 1e-9


def same_but_for_fused_sums(got, want, most=FUSED_SUMS):
    """Values of a kernel are those of the ops it stands for, but for the rounding of products."""
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        found = nmse(a, b)
        assert found <= most, f"NMSE {found:.3g}"


def same_but_for_what_is_turned(got, want):
    """A result and keys but for the rounding of products, values bit for bit."""
    same_but_for_fused_sums(got[:1], want[:1])
    same_but_for_fused_sums(got[1:2], want[1:2], ROTATED_KEYS)
    for a, b in zip(got[2:], want[2:], strict=True):
        np.testing.assert_array_equal(a, b)


def ran(executor, monkeypatch, rules, build, *, exact=True, coarse=True):
    """Ops of a graph after fusion by these rules, and its values."""
    monkeypatch.setattr(executor, "rules", fusions(rules, exact=exact, coarse=coarse))
    with Context(executor) as ctx:
        recorded = ctx.record(*build(ctx))
        try:
            return [titled(node) for node, _ in recorded.plan.steps], recorded.run({}).wait()
        finally:
            recorded.close()


def titled(node):
    """Name of a node's op, and of a product what comes before and behind its sums."""
    launch, found = node.launch, node.launch.attributes
    words = [node.call.op.name]
    if isinstance(found, Attributes):
        words += [found.prologue.form] if found.prologue.form != "values" else []
        words += ["normed"] if found.prologue.norm else []
        words += ["tiles"] if launch.choices.get("ids") == "lib/experts/tiles" else []
        words += ["gated"] if found.epilogue.activation else []
        words += ["add"] if launch.choices.get("ADDS") else []
        words += ["to_norm"] if found.epilogue.norm else []
        words += [f"to_{found.epilogue.form}"] if found.epilogue.is_rounded else []
        words += [found.precision] if found.precision != "default" else []
    return " ".join(words)
