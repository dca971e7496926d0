"""The self-test's cases for this family's rules."""

import numpy as np
import pytest

from tests.ops.fused import titled
from wgpu_backend.kernels.rasteriser.cases import CASES
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor
from wgpu_backend.ops.op import fusions


def ops_of(executor, trial, rules):
    """Ops of a graph as these rules leave it."""
    asked = executor.as_if(executor.capabilities)
    asked.rules = fusions(rules, exact=False)
    with Context(DryRunExecutor(asked, lambda shader: None)) as context:
        recorded = context.record(trial.build(context, np.random.default_rng(1)))
        return [titled(node) for node, _ in recorded.plan.steps]


@pytest.mark.parametrize("trial", CASES, ids=lambda trial: trial.rule)
def test_a_rule_applies_in_its_graph(shuffling, trial):
    with_it = ops_of(shuffling, trial, [*trial.before, trial.rule])
    assert with_it != ops_of(shuffling, trial, trial.before)


def test_every_rule_of_the_family_has_a_graph():
    own = "wgpu_backend.kernels.rasteriser."
    rules = {rule for named in fusions(exact=False).values() for rule in named}
    made = {rule.name for rule in rules if rule.replace.__module__.startswith(own)}
    assert made - {"rope_attention"} == {trial.rule for trial in CASES}
