"""Graphs without a device: a builder of nodes, a transformer, and random ones."""

from __future__ import annotations

import numpy as np

from wgpu_backend.dtypes import F16, F32, I32, DType
from wgpu_backend.graph.node import Call, Launch, Node, Storage
from wgpu_backend.graph.spec import Spec, reshape, slice_axis
from wgpu_backend.ops.attention.paged import Scores, paged_attention
from wgpu_backend.ops.attention.position import rope
from wgpu_backend.ops.elementwise.activation import relu, swiglu, tanh
from wgpu_backend.ops.elementwise.arithmetic import add, mul, scale, sub
from wgpu_backend.ops.index.indexing import rows, set_rows
from wgpu_backend.ops.linear.linear import mulmat
from wgpu_backend.ops.reduce.norm import rms_norm, softmax
from wgpu_backend.ops.shape.copying import cast, concat, contiguous


class Graph:
    """What ops add nodes to when nothing is going to run."""

    def add(self, call: Call, launch: Launch) -> Node:
        """Node for the result of an op."""
        storage = launch.into.storage if launch.into else Storage(launch.out.nbytes, "intermediate")
        return Node(launch.out, storage, builder=self, call=call, launch=launch)

    def view(self, source: Node, spec: Spec) -> Node:
        """Node that looks at the storage of another."""
        return Node(spec, source.storage, builder=self, source=source)

    def leaf(self, *shape: int, kind="input", dtype: DType = F32) -> Node:
        """Node that no op fills."""
        spec = Spec.dense(shape, dtype)
        return Node(spec, Storage(spec.nbytes, kind), builder=self)


def transformer(graph, *, layers=4, tokens=64, width=256, heads=8, feed_forward=704, vocab=4000):
    """Logits of a llama-like model with a paged cache, and the last writes into it."""
    cols, slots = width // heads, 512
    positions, table = graph.leaf(tokens, dtype=I32), graph.leaf(1, slots // 16, dtype=I32)
    angles, ids = graph.leaf(tokens, cols // 2, 2), graph.leaf(tokens, dtype=I32)

    def weight(*shape):
        return graph.leaf(*shape, kind="weight")

    def in_heads(x):
        return graph.view(x, reshape(x.spec, (tokens, heads, cols)))

    x = rows(weight(vocab, width), ids)
    for _ in range(layers):
        h = rms_norm(x, weight(width), eps=1e-5)
        q, k, v = (mulmat(weight(width, width), h) for _ in range(3))
        q, k = rope(in_heads(q), angles), rope(in_heads(k), angles)
        k = graph.view(k, reshape(k.spec, (tokens, width)))
        caches = [graph.leaf(slots, width, kind="state", dtype=F16) for _ in range(2)]
        keys, values = set_rows(caches[0], k, ids), set_rows(caches[1], v, ids)
        scores = Scores(16, cols**-0.5, heads)
        a = paged_attention(q, keys, values, positions, positions, table, scores=scores)
        a = graph.view(a, reshape(a.spec, (tokens, width)))
        x = add(mulmat(weight(width, width), a), x)
        h = rms_norm(x, weight(width), eps=1e-5)
        gate, up = (mulmat(weight(feed_forward, width), h) for _ in range(2))
        x = add(mulmat(weight(width, feed_forward), swiglu(gate, up)), x)
    return mulmat(weight(vocab, width), rms_norm(x, weight(width), eps=1e-5))


def random_graph(graph, rng: np.random.Generator, leaves: list[Node], size: int) -> list[Node]:
    """Some of the results of `size` random ops on matrices, which stay within a few units."""
    made = list(leaves)
    for _ in range(size):
        made.append(_random_op(graph, rng, made))
    results = [n for n in made if n.launch is not None]
    count = min(int(rng.integers(1, 4)), len(results))
    picked = rng.choice(len(results), count, replace=False)
    return [results[i] for i in sorted({*picked.tolist(), len(results) - 1})]


def _random_op(graph, rng, made: list[Node]) -> Node:
    # The latest nodes are the likeliest operands, as in a model, but old ones come back too.
    back = min(int(rng.geometric(0.35)), len(made))
    x = made[-back]
    kind = int(rng.integers(0, 12))
    like = [n for n in made if n.spec.shape == x.spec.shape and n.spec.dtype == F32]
    y = like[int(rng.integers(len(like)))]
    if kind < 3:
        return (add, sub, mul)[kind](tanh(x), y)
    if kind < 6:
        return (relu, tanh, softmax)[kind - 3](x)
    return _random_mover(graph, rng, kind, x, y)


def _random_mover(graph, rng, kind: int, x: Node, y: Node) -> Node:
    n, cols = x.spec.shape
    if kind == 6:
        return scale(x, factor=float(rng.uniform(-1, 1)), bias=0.1)
    if kind == 7:
        return cast(cast(x, dtype=F16), dtype=F32)
    if kind == 8 and n * cols <= 4096:
        return concat(x, y, axis=int(rng.integers(2)))
    if kind == 9:
        return contiguous(graph.view(x, reshape(x.spec, (cols, n)) or x.spec))
    if kind == 10 and n > 1:
        return relu(graph.view(x, slice_axis(x.spec, 0, n // 2, n)))
    return scale(mulmat(y, x), factor=1 / cols)
