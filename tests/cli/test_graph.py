"""The graph in words, in a table and on a page that a browser shows."""

import html
import json
import re
import subprocess

import pytest

from tests.browser import HEADLESS, needs_browser
from tests.graph.graphs import Graph as Builder
from tests.patience import PATIENCE
from wgpu_backend.cli.commands.graph import render_page
from wgpu_backend.engine.graph_facts import describe_pass
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.fusion import Rule, fuse_nodes
from wgpu_backend.graph.memory import plan
from wgpu_backend.graph.node import Storage
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.ops.elementwise.activation import relu, silu, swiglu, tanh
from wgpu_backend.ops.elementwise.arithmetic import add, mul


def gate(node, graph):
    """silu(a) · b becomes swiglu(a, b)."""
    made = graph.single_use_producer(node.launch.operands["a"], "silu")
    return made and graph.call(swiglu, made.launch.operands["x"], node.launch.operands["b"])


def passed(*outputs, rules=None, name="a pass"):
    before = schedule(outputs)
    after = fuse_nodes(
        before,
        outputs,
        rules or {"mul": [Rule("swiglu", gate)]},
        Capabilities(),
        lambda spec: Storage(spec.nbytes, "intermediate"),
    )
    return describe_pass(name, before, plan(after, outputs), outputs, len(after), Capabilities())


@pytest.fixture
def gated():
    """relu → silu → mul → add, whose two in the middle become one."""
    graph = Builder()
    x, y = graph.leaf(4, 8), graph.leaf(4, 8)
    return passed(add(mul(silu(relu(x)), y), y))


def test_a_fused_step_says_what_it_stands_for(gated):
    assert [step.op for step in gated.before.steps] == ["relu", "silu", "mul", "add"]
    assert [step.made_of for step in gated.after.steps] == [
        ("relu",),
        ("silu", "mul"),
        ("add",),
    ]
    assert gated.dispatches == 3


def test_a_step_that_feeds_a_fused_one_stands_for_what_it_took_over():
    """silu(relu(x)) · weight becomes swiglu(fresh(x), weight): relu went into the fresh step."""

    def replace(node, graph):
        made = graph.single_use_producer(node.launch.operands["a"], "silu")
        first = made and graph.single_use_producer(made.launch.operands["x"], "relu")
        if not first:
            return None
        fed = graph.call(tanh, first.launch.operands["x"])
        return graph.call(swiglu, fed, node.launch.operands["b"])

    graph = Builder()
    x, y = graph.leaf(4, 8), graph.leaf(4, 8, kind="weight")
    each = passed(mul(silu(relu(x)), y), rules={"mul": [Rule("swiglu", replace)]})
    assert [(s.op, s.made_of) for s in each.after.steps] == [
        ("tanh", ("relu",)),
        ("swiglu", ("silu", "mul")),
    ]


def test_operands_are_named_by_the_step_that_made_them(gated):
    _, product, total = gated.after.steps
    assert [(o.name, o.what) for o in product.operands] == [("a", "%0"), ("b", "input")]
    assert [o.what for o in total.operands] == ["%1", "input"]
    assert (total.shape, total.dtype, total.nbytes) == ((4, 8), "f32", 4 * 8 * 4)


def test_an_intermediate_lives_from_its_step_to_its_last_reader():
    graph = Builder()
    x = graph.leaf(4, 8)
    first = relu(x)
    each = passed(add(silu(add(first, x)), first))
    (life,) = (life for life in each.before.lives if life.place == "%0")
    assert (life.first, life.last, life.nbytes) == (0, 3, 128)
    for one in each.before.lives:
        for other in each.before.lives:
            apart = one.slot != other.slot or one.last <= other.first or other.last <= one.first
            assert apart or one is other, "two lives share a slot and a step"


def test_an_overwritten_operand_is_still_shown(gated):
    overwriting = [step for step in gated.before.steps if step.over]
    assert overwriting
    for step in overwriting:
        assert step.over in {operand.name for operand in step.operands}


def test_the_command_counts_ops_before_and_after(cli, tiny):
    done = cli("graph", str(tiny), "--device", "cpu", "-p", "20")
    assert done.code == 0, done.err
    assert "decode step at 20" in done.out
    assert "prompt of 20 tokens" in done.out
    totals = re.findall(r"^all +(\d+) +(\d+) ", done.out, re.MULTILINE)
    assert len(totals) == 2
    assert all(0 < int(after) <= int(before) for before, after in totals)


def test_the_command_lists_steps_with_their_operands(cli, tiny):
    done = cli("graph", str(tiny), "--device", "cpu", "--steps")
    assert "weight blk.1.ffn_down.weight" in done.out
    assert "state cache.0.key" in done.out


def test_the_command_writes_a_page_that_needs_no_other_file(cli, tiny, tmp_path):
    path = tmp_path / "graph.html"
    done = cli("graph", str(tiny), "--device", "cpu", "--html", str(path))
    assert str(path) in done.err
    text = path.read_text("utf-8")
    assert not re.search(
        r"""(src|href)\s*=|url\(|@import|https?://(?!www\.w3\.org/2000/svg)""", text
    )
    (data,) = re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)
    passes = json.loads(data)["passes"]
    assert [len(each["after"]["steps"]) > 10 for each in passes] == [True, True]


def test_a_page_in_a_folder_that_is_not_there_is_refused_before_the_work(cli, tiny, tmp_path):
    done = cli("graph", str(tiny), "--html", str(tmp_path / "no" / "graph.html"))
    assert done.code == 2
    assert "no such folder" in done.err


def test_no_name_in_a_file_becomes_a_part_of_the_page(gated):
    text = render_page("</script><script>alert(1)</script>", [gated])
    assert "<script>alert" not in text
    assert text.count("</script>") == 2


# Asks the page of the browser what a person would see, after each thing a person may do.
PROBE = """<script>
const seen = [], rows = () => document.querySelectorAll("#steps tr").length;
const swiglu = () =>
  [...document.querySelectorAll("#ops button")].find((b) => b.textContent.startsWith("swiglu"));
const bars = () => document.querySelectorAll("#slots rect.life").length;
seen.push(["opened", rows(), bars(), document.title]);
document.getElementById("before").click();
seen.push(["before", rows(), bars()]);
document.getElementById("after").click();
swiglu().click();
seen.push(["op", rows(), document.querySelectorAll("rect.life.dim").length]);
swiglu().click();
const find = document.getElementById("find");
find.value = "%1"; find.dispatchEvent(new Event("input"));
seen.push(["found", rows()]);
find.value = ""; find.dispatchEvent(new Event("input"));
document.querySelector('rect.life[data-place="%1"]').dispatchEvent(new Event("mouseenter"));
const note = document.getElementById("note").textContent;
seen.push(["lit", document.querySelectorAll("tr.on").length, note]);
document.querySelectorAll("#passes button")[1].click();
seen.push(["second", rows()]);
document.body.replaceChildren(JSON.stringify(seen));
</script>"""


@needs_browser
def test_a_browser_shows_filters_and_lights_up(gated, tmp_path):
    graph = Builder()
    other = passed(relu(graph.leaf(2, 2)), name="another")
    path = tmp_path / "graph.html"
    path.write_text(
        render_page("A <b>model</b>", [gated, other]).replace("</body>", f"{PROBE}</body>")
    )
    done = subprocess.run(
        [
            *HEADLESS,
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--dump-dom",
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=True,
    )
    (body,) = re.findall(r"<body>(.*?)</body>", done.stdout, re.DOTALL)
    seen = {name: rest for name, *rest in json.loads(html.unescape(body))}
    assert seen["opened"] == [3, 3, "A <b>model</b>"]
    assert seen["before"] == [4, 4]
    assert seen["op"] == [1, 2]
    assert seen["found"] == [2]  # the step that makes it, and the one that reads it
    assert seen["lit"][0] == 2
    assert seen["lit"][1].startswith("%1: swiglu, 4×8 f32, 128 B in slot")
    assert seen["second"] == [1]
