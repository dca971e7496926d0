"""Measurements wait until a GPU's clock is up, and nothing else does."""

from types import SimpleNamespace

import pytest

from wgpu_backend.cli import clocks
from wgpu_backend.cli.clocks import run_at_full_clock
from wgpu_backend.graph.capabilities import Capabilities


@pytest.fixture
def calls(monkeypatch):
    """Calls so far, each of which takes a quarter of the time that a clock takes."""
    made = []
    clock = SimpleNamespace(perf_counter=lambda: len(made) * clocks.SECONDS / 4)
    monkeypatch.setattr(clocks, "time", clock)
    return made


def act(calls):
    calls.append(len(calls))
    return calls[-1]


def test_a_gpu_works_for_a_while_before(calls):
    assert run_at_full_clock(lambda: act(calls), Capabilities(software=False)) == 3


def test_a_rasteriser_works_once(calls):
    assert run_at_full_clock(lambda: act(calls), Capabilities(software=True)) == 0
