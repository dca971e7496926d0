"""What is written with simple ops runs as fused ones, with the same result."""

import pytest

import wgpu_backend as wb
from tests.ops.fused import titled
from wgpu_backend.graph.fusion import OpNode, as_op_node
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ops import op as ops
from wgpu_backend.ops.check import vec4s
from wgpu_backend.ops.linear.normed import in_whole_groups
from wgpu_backend.ops.op import FUSIONS, REGISTRY, fusions, op
from wgpu_backend.ops.reference import REFERENCES
from wgpu_backend.testing import nmse


def ran(executor, monkeypatch, rules, build):
    """Ops of a graph after fusion, and its value."""
    monkeypatch.setattr(executor, "rules", fusions(rules, exact=True))
    with Context(executor) as context:
        recorded = context.record(build(context))
        try:
            return [titled(n) for n, _ in recorded.plan.steps], recorded.run({}).wait()[0]
        finally:
            recorded.close()


def assert_fused(executor, monkeypatch, rules, build, wanted, limit=1e-13):
    names, got = ran(executor, monkeypatch, rules, build)
    _, want = ran(executor, monkeypatch, (), build)
    assert names == wanted
    assert nmse(got, want) <= limit


@pytest.mark.parametrize("turned", [False, True], ids=["product first", "product last"])
@pytest.mark.parametrize("rows", [1, 5])
def test_a_sum_goes_into_the_product(gpu, monkeypatch, rng, turned, rows):
    weight, x, bias = (rng.standard_normal(s, "f4") for s in ((33, 64), (rows, 64), (33,)))

    def build(context):
        product = context.from_numpy(weight).mulmat(context.from_numpy(x))
        other = context.from_numpy(bias)
        return other + product if turned else product + other

    assert_fused(gpu, monkeypatch, ["linear_add"], build, ["linear add"])


def test_a_sum_of_another_shape_stays(full, monkeypatch, rng):
    weight, x, column = (rng.standard_normal(s, "f4") for s in ((33, 64), (5, 64), (5, 1)))

    def build(context):
        return context.from_numpy(weight).mulmat(context.from_numpy(x)) + context.from_numpy(column)

    assert_fused(full, monkeypatch, ["linear_add"], build, ["linear", "add"])


@pytest.mark.parametrize(
    ("activation", "gated"),
    [
        ("silu", "swiglu"),
        ("gelu", "geglu"),
        ("gelu_erf", "geglu_erf"),
        ("quick_gelu", "geglu_quick"),
        ("relu", "reglu"),
    ],
)
def test_an_activation_times_something_is_a_gated_one(full, monkeypatch, rng, activation, gated):
    x, y = rng.standard_normal((2, 7, 9), "f4")

    def build(context):
        return getattr(context.from_numpy(x), activation)() * context.from_numpy(y)

    assert_fused(full, monkeypatch, [gated], build, [gated])


@pytest.mark.parametrize("rows", [1, 5])
def test_gate_and_projection_in_one_tensor_are_one(gpu, monkeypatch, rng, rows):
    both, x = rng.standard_normal((64, 96), "f4"), rng.standard_normal((rows, 96), "f4")

    def build(context):
        weight, operand = context.from_numpy(both), context.from_numpy(x)
        gate, up = weight.slice(0, 0, 32), weight.slice(0, 32, 64)
        return gate.mulmat(operand).swiglu(up.mulmat(operand))

    assert_fused(gpu, monkeypatch, ["linear_gated"], build, ["linear gated"])


def test_gate_and_projection_that_lie_apart_are_two(full, monkeypatch, rng):
    weights, x = rng.standard_normal((2, 32, 96), "f4"), rng.standard_normal((3, 96), "f4")

    def build(context):
        gate, up = (context.from_numpy(w).mulmat(context.from_numpy(x)) for w in weights)
        return gate.swiglu(up)

    assert_fused(full, monkeypatch, ["linear_gated"], build, ["linear", "linear", "swiglu"])


WGSL = """
// @import formats/load/f32 as x
// @import formats/store/f32 as y
// @import lib/index/grid

const WG: u32 = 64u;

struct Params { size: u32, x_offset: u32 }

@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        let squared = x_load4(params.x_offset + i) * x_load4(params.x_offset + i);
        y_store4(i, squared * squared);
    }
}
"""


@pytest.fixture
def fourth(monkeypatch):
    """An op from outside the package with a rule of its own."""
    for table in (REGISTRY, REFERENCES):
        monkeypatch.setattr(ops, _name_of(table), dict(table))
    monkeypatch.setattr(ops, "FUSIONS", {name: list(rules) for name, rules in FUSIONS.items()})

    @op(source=WGSL, dense=("x",))
    def fourth_power(x: Node) -> Launch:
        out = Spec.dense(x.spec.shape, x.spec.dtype)
        return Launch(out, {"x": x}, threads=vec4s(out.size), params={"size": out.size})

    @fourth_power.fuses("sqr")
    def squares(node: OpNode, graph) -> Node | None:
        inner = graph.single_use_producer(node.operands["x"], "sqr")
        return inner and graph.call(fourth_power, inner.operands["x"])

    return fourth_power


def _name_of(table) -> str:
    return next(name for name, value in vars(ops).items() if value is table)


def test_an_op_from_outside_brings_its_rule(full, monkeypatch, rng, fourth):
    x = rng.standard_normal((5, 33), "f4")

    def build(context):
        return context.from_numpy(x).sqr().sqr()

    assert_fused(full, monkeypatch, ["fourth_power"], build, ["fourth_power"])


def test_norms_that_products_make_are_of_whole_groups_and_begin_at_whole_vectors():
    with wb.context(device="cpu") as ctx:

        def fits(begin=0, weight=0, cols=64):
            x = ctx.zeros(400)[begin : begin + 3 * cols].reshape(3, cols)
            norm = as_op_node(x.rms_norm(ctx.zeros(100)[weight : weight + cols], eps=0.1))
            assert norm is not None
            return in_whole_groups(norm)

        assert all([fits(), fits(begin=4), fits(weight=8), fits(begin=20, weight=12)])
        assert not any([fits(begin=1), fits(begin=5), fits(cols=48)])
