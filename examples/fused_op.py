"""Define a fusion rule: two ops of the package become one that computes the same values.

::

    $ python examples/fused_op.py
    (a - b)² runs as square_apart
    NMSE of 10007 values: 0.0e+00

The op builds on ``lib/elementwise/binary`` and defines only its formula. A device as the
only argument runs it there; ``cpu``, which has no rules, computes the two.
"""

import sys

import numpy as np

import wgpu_backend as wb


@wb.op(
    source="""
// @import lib/elementwise/binary
fn apply(a: vec4<f32>, b: vec4<f32>) -> vec4<f32> { return (a - b) * (a - b); }
"""
)
def square_apart(a: wb.Node, b: wb.Node) -> wb.Launch:
    """Square the difference of two tensors, with broadcasting, in the dtype of `a`."""
    out = wb.Spec.dense(wb.broadcast_shape("square_apart", a.spec, b.spec), a.spec.dtype)
    return wb.Launch(out, {"a": a, "b": b}, threads=wb.ceil_div(out.size, 4))


@square_apart.reference
def numpy_square_apart(a: wb.Array, b: wb.Array) -> wb.Array:
    return (a - b) ** 2


@square_apart.fuses("sqr")
def square_of_a_difference(node: wb.OpNode, graph: wb.Graph) -> wb.Node | None:
    difference = graph.single_use_producer(node.operands["x"], "sub")
    if difference is None:
        return None
    return graph.call(square_apart, difference.operands["a"], difference.operands["b"])


def main(device: str | None = None) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((2, 10_007), np.float32)
    with wb.context(device) as context:
        x, y = context.input("a", a.shape), context.input("b", b.shape)
        recorded = context.record(x.sub(y).sqr())
        [got] = recorded.run({"a": a, "b": b}).wait()
        print("(a - b)² runs as", ", ".join(op for op, _, _ in recorded.timed()))
        recorded.close()
    print(f"NMSE of {got.size} values: {wb.testing.nmse(got, (a - b) ** 2):.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
