"""Caches of every kind under random use; `python -m tests.nn.kvcache.machine` does it at length."""

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from tests.nn.kvcache.machine import KINDS, machine


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
def test_every_pass_reads_what_its_tokens_may_see(name):
    few = settings(max_examples=8, stateful_step_count=15, deadline=None, database=None)
    run_state_machine_as_test(machine(KINDS[name]), settings=few)
