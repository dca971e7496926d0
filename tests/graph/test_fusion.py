"""Rules rewrite a schedule; what they may not touch stays. No device, no shader."""

import pytest

from tests.graph.graphs import Graph as Builder
from wgpu_backend.dtypes import I32
from wgpu_backend.errors import BackendError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Rule, fuse_nodes
from wgpu_backend.graph.memory import plan
from wgpu_backend.graph.node import Storage
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.ops.elementwise.activation import relu, silu, swiglu, tanh
from wgpu_backend.ops.elementwise.arithmetic import add, mul, scale
from wgpu_backend.ops.index.indexing import set_rows


def gate(node, graph):
    """silu(a) · b becomes swiglu(a, b)."""
    first, second = node.operands["a"], node.operands["b"]
    made = graph.single_use_producer(first, "silu")
    return made and graph.call(swiglu, made.operands["x"], second)


GATE = {"mul": [Rule("swiglu", gate)]}


def names(nodes):
    return [n.call.op.name for n in nodes]


def run(rules, *outputs):
    return fuse_nodes(
        schedule(outputs),
        outputs,
        rules,
        Capabilities(),
        lambda spec: Storage(spec.nbytes, "intermediate"),
    )


@pytest.fixture
def graph():
    return Builder()


def test_a_rule_replaces_the_last_op_and_what_only_it_needed(graph):
    x, y = graph.leaf(4, 8), graph.leaf(4, 8)
    result = mul(silu(relu(x)), y)
    after = run(GATE, result)
    assert names(after) == ["relu", "swiglu"]
    assert after[-1].storage is result.storage


def test_what_is_shared_runs_before_all_who_share_it(graph):
    x = graph.leaf(4, 8)
    first, last = silu(x), silu(x)
    waiting = [first.storage]

    def late(node, graph):
        """Of the first only when it is asked for again."""
        if node.node.storage in waiting:
            waiting.remove(node.node.storage)
            return None
        return graph.call(tanh, graph.shared(relu, node.operands["x"]))

    after = run({"silu": [Rule("tanh", late)]}, first, last)
    assert names(after) == ["relu", "tanh", "relu", "tanh"]


@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("other", [silu, relu])
def test_a_rule_may_ask_who_reads_a_result(graph, other, wanted):
    x, y = graph.leaf(4, 8), graph.leaf(4, 8)
    read = tanh(x)
    outputs = mul(silu(read), y), other(read), *([read] if wanted else [])
    found = []

    def ask(node, graph):
        found.append(graph.serves_only(node.operands["x"], lambda reader: reader.op == "silu"))

    run({"silu": [Rule("nothing", ask)]}, *outputs)
    assert set(found) == {other is silu and not wanted}


def test_readers_of_a_replaced_node_find_its_storage(graph):
    x, y = graph.leaf(4, 8), graph.leaf(4, 8)
    product = mul(silu(x), y)
    after = run(GATE, tanh(product))
    assert names(after) == ["swiglu", "tanh"]
    (operand,) = after[1].launch.operands.values()
    assert operand.storage is after[0].storage
    assert plan(after, [after[1]]).peak_nbytes > 0


def test_a_result_that_others_read_is_not_done_away_with(graph):
    x, y = graph.leaf(4, 8), graph.leaf(4, 8)
    shared = silu(x)
    assert names(run(GATE, add(mul(shared, y), shared))) == ["silu", "mul", "add"]


def test_an_output_is_not_done_away_with(graph):
    x, y = graph.leaf(4, 8), graph.leaf(4, 8)
    shared = silu(x)
    assert names(run(GATE, shared, mul(shared, y))) == ["silu", "mul"]


def test_a_part_of_a_result_is_not_the_result(graph):
    x, y = graph.leaf(4, 8), graph.leaf(2, 8)
    whole = silu(x)
    part = graph.view(whole, type(whole.spec).dense((2, 8), whole.spec.dtype))
    assert names(run(GATE, mul(part, y))) == ["silu", "mul"]


def test_the_nodes_of_the_caller_are_left_as_they_were(graph):
    x, y = graph.leaf(4, 8), graph.leaf(4, 8)
    result = mul(silu(x), y)
    before = result.launch
    run(GATE, result)
    assert result.launch is before
    assert names(run({}, result)) == ["silu", "mul"]


def test_rules_feed_each_other_until_none_answers(graph):
    def twice(node, graph):
        made = graph.single_use_producer(node.operands["x"], "scale")
        if made is None:
            return None
        factor = node.call.kwargs["factor"] * made.call.kwargs["factor"]
        return graph.call(scale, made.operands["x"], factor=factor)

    x = graph.leaf(4, 8)
    result = scale(scale(scale(scale(x, factor=2.0), factor=3.0), factor=5.0), factor=7.0)
    (node,) = run({"scale": [Rule("scale", twice)]}, result)
    assert node.call.kwargs["factor"] == 210.0


def test_one_new_node_serves_all_who_ask_for_the_same(graph):
    def rounded(node, graph):
        operand = node.operands["a"]
        if graph.producer(operand, "relu"):
            return None
        return graph.call(mul, graph.shared(relu, operand), node.operands["b"])

    x, y, z = graph.leaf(4, 8), graph.leaf(4, 8), graph.leaf(4, 8)
    h = tanh(x)
    after = run({"mul": [Rule("mul", rounded)]}, add(mul(h, y), mul(h, z)))
    assert names(after) == ["tanh", "relu", "mul", "mul", "add"]


def test_a_read_does_not_move_beyond_a_write(graph):
    state, x, ids = graph.leaf(4, 8, kind="state"), graph.leaf(2, 8), graph.leaf(2)
    ids.spec = type(ids.spec).dense((2,), I32)
    before = silu(state)
    written = set_rows(state, x, ids)
    assert names(run(GATE, mul(before, written))) == ["silu", "set_rows", "mul"]


def test_a_rule_that_makes_something_else_is_told(graph):
    def wrong(node, graph):
        return graph.call(relu, node.operands["b"])

    x, row = graph.leaf(4, 8), graph.leaf(8)
    with pytest.raises(BackendError, match=r"fusion relu: it makes \(8,\).* of \(4, 8\)"):
        run({"mul": [Rule("relu", wrong)]}, mul(x, row))
