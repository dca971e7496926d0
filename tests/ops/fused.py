"""What fusion rules leave of a graph, and what it gives."""

from wgpu_backend.ml.context import Context
from wgpu_backend.ops.linear.attributes import Attributes
from wgpu_backend.ops.op import fusions


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
        words += [f"to_{found.epilogue.form}"] if found.epilogue.rounded else []
        words += [found.precision] if found.precision != "default" else []
    return " ".join(words)
