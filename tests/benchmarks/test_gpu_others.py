"""Graphs of ops that Llama does not have, of which GPU costs are taken."""

import pytest

from benchmarks.gpu_costs import others
from benchmarks.gpu_costs.__main__ import MODELS, arguments
from wgpu_backend.ml.calibration.self_test import fused_cases
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor


@pytest.fixture(scope="module")
def ops(executors):
    """Names of ops by graph, as a device without rules that round has them."""
    return {name: recorded(executors("wide"), build) for name, build in others.builds().items()}


def recorded(executor, build):
    with Context(DryRunExecutor(executor, lambda shader: None)) as context:
        return [node.call.op.name for node, _ in context.record(build(context)).plan.steps]


@pytest.mark.parametrize(
    ("graph", "op"),
    [
        ("experts1", "linear_by_expert"),
        ("experts512", "linear_by_expert"),
        ("routed64", "route"),
        ("latent1", "rope_join"),
        ("delta1", "gated_delta"),
        ("channel decay64", "gated_delta"),
        ("rwkv61", "gated_linear"),
        ("rwkv764", "wkv7"),
        ("mamba1", "selective_scan"),
        ("short conv64", "short_conv"),
        ("token shift1", "token_shift"),
        ("masked", "mask_logits"),
        ("conv 1×1", "convolve"),
    ],
)
def test_a_graph_has_the_op_that_it_is_named_after(ops, graph, op):
    assert op in ops[graph]


def test_every_rule_of_the_self_test_has_a_graph(ops):
    rules = [name for name in ops if name.startswith("rule ")]
    assert len(rules) == len(list(fused_cases()))
    assert all(ops[name] for name in rules)


def test_models_are_meant_where_a_graph_or_a_format_is_chosen():
    assert arguments([]).model == MODELS
    assert arguments(["--graph", "decode1"]).model == ("8b",)
    assert arguments(["--formats", "q4_k_m"]).model == ("8b",)
    assert arguments(["--model", "others", "--graph", "masked"]).model == ("others",)


def test_an_unknown_model_is_refused_with_those_that_there_are(capsys):
    with pytest.raises(SystemExit):
        arguments(["--model", "9b"])
    assert "9b is none of 8b, 1b" in capsys.readouterr().err
