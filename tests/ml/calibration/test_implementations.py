"""The choice between wgpu-native and Dawn: who has one, which wins, what is stored."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from wgpu_backend.device import dawn
from wgpu_backend.graph.capabilities import DeviceInfo, MatrixUnit
from wgpu_backend.ml.calibration import implementations
from wgpu_backend.ml.calibration.implementations import (
    Race,
    Sizes,
    explain,
    has_choice,
    measure,
    pick_implementation,
    recall,
    remember,
)
from wgpu_backend.ml.calibration.self_test import LeftOutWarning

CARD = DeviceInfo(
    "vulkan:0",
    "card",
    kind="discrete",
    api="Vulkan",
    driver="driver 1",
    implementations=("wgpu", "dawn"),
    matrix=MatrixUnit(16, 16, 16, 32),
)


def race(prompt=0.5, decode=1.0, error=1e-7):
    return Race({"wgpu": 1.0, "dawn": prompt}, {"wgpu": 1.0, "dawn": decode}, error)


@pytest.fixture(autouse=True)
def _cache(monkeypatch, tmp_path):
    monkeypatch.setattr(implementations, "cache_file", lambda name: tmp_path / name)
    monkeypatch.delenv("WGPU_BACKEND_IMPLEMENTATION", raising=False)


@pytest.fixture
def raced(monkeypatch):
    """The races that are run, each with the same result."""
    ran = []
    monkeypatch.setattr(implementations, "run_race", lambda *given: ran.append(given) or race())
    return ran


@pytest.mark.parametrize(
    ("found", "winner"),
    [
        (race(), "dawn"),
        (race(prompt=0.81), "wgpu"),
        (race(decode=1.11), "wgpu"),
        (race(error=1e-4), "wgpu"),
        (race(error=float("nan")), "wgpu"),
        (Race({}, {}, failure="it ended with -11"), "wgpu"),
    ],
)
def test_dawn_wins_only_with_faster_prompts_steady_decoding_and_right_values(found, winner):
    assert found.winner == winner
    assert explain(CARD, found).endswith(f"auto uses {winner}")


@pytest.mark.parametrize(
    "info",
    [
        replace(CARD, kind="software"),
        replace(CARD, matrix=None),
        replace(CARD, implementations=("wgpu",)),
    ],
)
def test_a_device_without_a_choice_is_not_measured(raced, info):
    assert not has_choice(info)
    assert pick_implementation(info, None, "full", race=True) is None
    assert not raced


@pytest.mark.parametrize("named", ["wgpu", "dawn"])
def test_a_named_implementation_is_not_measured(raced, named, monkeypatch):
    assert pick_implementation(CARD, named, "full", race=True) is None
    monkeypatch.setenv("WGPU_BACKEND_IMPLEMENTATION", named)
    assert pick_implementation(CARD, None, "full", race=True) is None
    opened = replace(CARD, implementation=named)
    assert pick_implementation(opened, None, "full", race=True) is None
    assert not raced


def test_the_first_use_is_measured_and_the_next_is_not(raced):
    picked = [pick_implementation(CARD, None, "full", race=True) for _ in range(2)]
    assert picked == ["dawn", "dawn"]
    assert len(raced) == 1
    assert pick_implementation(CARD, "auto", "full", race=False) == "dawn"


def test_another_driver_profile_or_version_is_measured_again(monkeypatch):
    remember(CARD, "full", race())
    assert recall(CARD, "full") == race()
    assert recall(CARD, "baseline") is None
    assert recall(replace(CARD, driver="driver 2"), "full") is None
    monkeypatch.setattr(implementations, "version", lambda package: "99")
    assert recall(CARD, "full") is None


def test_without_a_self_test_only_what_is_remembered_counts(raced):
    assert pick_implementation(CARD, None, "full", race=False) is None
    assert not raced


@pytest.mark.parametrize("damage", [None, [], 5, {"prompt": {"wgpu": 1}}, {"error": "x"}])
def test_a_damaged_entry_is_as_none(damage):
    path = remember(CARD, "full", race())
    [key] = json.loads(path.read_text())
    path.write_text(json.dumps({key: damage}))
    assert recall(CARD, "full") is None


def test_a_comparison_that_crashes_is_a_warning_and_not_repeated(monkeypatch):
    crash = [sys.executable, "-c", "import os, sys; print('gone', file=sys.stderr); os._exit(7)"]
    run = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda command, **options: run(crash, **options))
    with pytest.warns(
        LeftOutWarning, match="Dawn is not used, the benchmark's process ended with 7: gone"
    ):
        assert pick_implementation(CARD, None, "full", race=True) == "wgpu"
    assert pick_implementation(CARD, None, "full", race=True) == "wgpu"


@pytest.mark.gpu
def test_both_implementations_are_measured_and_agree(full):
    if not dawn.is_installed():
        pytest.skip('needs the package wgpudawn: pip install ".[dawn]"')
    sizes = Sizes(width=256, tokens=16, layers=2, rounds=1)
    found = measure(full.info.id, "full", sizes, self_test=False)
    assert found.error < 1e-6
    assert set(found.prompt) == set(found.decode) == {"wgpu", "dawn"}
    assert all(seconds > 0 for times in (found.prompt, found.decode) for seconds in times.values())
