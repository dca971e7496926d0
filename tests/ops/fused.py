"""What fusion rules leave of a graph, and what it gives."""

from wgpu_backend.ml.context import Context
from wgpu_backend.ops.op import fusions


def ran(executor, monkeypatch, rules, build, *, exact=True):
    """Ops of a graph after fusion by these rules, and its values."""
    monkeypatch.setattr(executor, "rules", fusions(rules, exact=exact))
    with Context(executor) as ctx:
        recorded = ctx.record(*build(ctx))
        try:
            return [node.call.op.name for node, _ in recorded.plan.steps], recorded.run({}).wait()
        finally:
            recorded.close()
