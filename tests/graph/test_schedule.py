import numpy as np
import pytest

from tests.graph.graphs import Graph, random_graph, transformer
from wgpu_backend.dtypes import I32
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.graph.spec import permute
from wgpu_backend.ops.elementwise.activation import relu
from wgpu_backend.ops.elementwise.arithmetic import add
from wgpu_backend.ops.index.indexing import rows, set_rows


def names(nodes):
    return [node.call.op.name for node in nodes]


def test_only_what_outputs_need_is_run():
    graph = Graph()
    a = relu(graph.leaf(3))
    relu(a)
    b = add(a, a)
    assert schedule([b]) == [a, b]


def test_leaves_need_no_run():
    graph = Graph()
    assert schedule([graph.leaf(3)]) == []


def test_a_view_brings_what_it_looks_at():
    graph = Graph()
    a = relu(graph.leaf(3, 4))
    assert schedule([graph.view(a, permute(a.spec, (1, 0)))]) == [a]


def test_reads_before_and_after_a_write_stay_on_their_side():
    graph = Graph()
    cache, ids = graph.leaf(9, 4, kind="state"), graph.leaf(2, dtype=I32)
    before = rows(cache, ids)
    written = set_rows(cache, graph.leaf(2, 4), ids)
    after = rows(written, ids)
    assert names(schedule([after, add(before, before)])) == ["rows", "set_rows", "rows", "add"]


def test_two_writes_into_one_state_keep_their_order():
    graph = Graph()
    cache, ids = graph.leaf(9, 4, kind="state"), graph.leaf(2, dtype=I32)
    first = set_rows(cache, graph.leaf(2, 4), ids)
    second = set_rows(cache, graph.leaf(2, 4), ids)
    assert schedule([second, first]) == [first, second]


@pytest.mark.parametrize("seed", range(20))
def test_every_operand_is_made_before_it_is_used(seed):
    graph, rng = Graph(), np.random.default_rng(seed)
    outputs = random_graph(graph, rng, [graph.leaf(8, 16), graph.leaf(4, 4)], 40)
    done = set()
    for node in schedule(outputs):
        assert all(n.launch is None or n in done for n in node.launch.operands.values())
        done.add(node)
    assert done.issuperset(outputs)


def test_a_deep_graph_does_not_exhaust_the_stack():
    graph = Graph()
    x = graph.leaf(3)
    for _ in range(5000):
        x = relu(x)
    assert len(schedule([x])) == 5000


def test_a_transformer_runs_each_op_once():
    nodes = schedule([transformer(Graph(), layers=2)])
    assert len(nodes) == len(set(nodes)) == 2 * 17 + 3
