import dataclasses
import json
from math import inf, isfinite

import numpy as np
import pytest

from wgpu_backend.dtypes import F16, Q4_0
from wgpu_backend.graph.capabilities import Capabilities, Tile
from wgpu_backend.ml.calibration import tuning
from wgpu_backend.ml.calibration.self_test import device_key
from wgpu_backend.ml.calibration.tuning import Compared, Effort, Measured, Tuning, tune
from wgpu_backend.ml.calibration.tuning_cache import add_tuning, remember
from wgpu_backend.ml.context import Context
from wgpu_backend.ops.linear.tiles import TILES, Tiles, candidates, key, select_tile
from wgpu_backend.ops.op import fusions

NAME, MEASURED = key("some_kernel", Q4_0, 1), Tile(2, 1, 32)
TINY = Effort(rows=40, values=256, columns=(1, 9), rounds=1)


@pytest.fixture(autouse=True)
def _kernel(monkeypatch):
    """A kernel that may have one of several tiles, whatever families there are."""
    tiles = Tile(4, 1, 64), MEASURED, Tile(1, 1, 128), Tile(8, 1, 32)
    found = Tiles({"one": tiles}, lambda tile, _: tile.rows < 8)
    monkeypatch.setitem(TILES, "some_kernel", found)


@pytest.fixture
def untuned(executors):
    """An executor of which nothing was measured."""
    executor = executors("full")
    nothing = {"tuned": {}, "rounded": frozenset(), "unrounded": frozenset()}
    return executor.as_if(dataclasses.replace(executor.capabilities, **nothing))


def entries(name):
    return Tuning([Measured(name, MEASURED, 1.0, 1.0, default=False, chosen=True)])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["full", "baseline", "wide"])
@pytest.mark.usefixtures("two_tiles")
def test_every_candidate_is_measured_and_one_of_each_key_chosen(executors, kind):
    executor = executors(kind)
    seen: list[float] = []
    found = tune(executor, [Q4_0], TINY, seen.append).tiles
    keys = list(dict.fromkeys(m.key for m in found))
    caps = executor.capabilities
    for name in keys:
        of_it = [m for m in found if m.key == name]
        assert len({m.tile for m in of_it}) == len(of_it)
        assert {m.tile for m in of_it} >= set(candidates(name, caps))
        assert [m.default for m in of_it] == [True] + [False] * (len(of_it) - 1)
        assert sum(m.chosen for m in of_it) == 1
    assert all(isfinite(m.seconds) for m in found)  # every tile computes the same
    assert seen == sorted(seen)
    assert seen[-1] == pytest.approx(1)


@pytest.mark.slow
@pytest.mark.usefixtures("two_tiles")
def test_rounding_is_measured_where_it_is_a_question(executors):
    found = tune(executors("wide"), [Q4_0, F16], TINY).rounding
    forms = ["q4_0 one", "q4_0 one split", "q4_0 many", "q4_0 many split"]
    assert [c.key for c in found] == forms
    assert all(isfinite(c.rounded_seconds) for c in found)  # the same but for rounding
    assert all(c.chosen == (c.rounded_seconds < 0.9 * c.seconds) for c in found)


def compared(name, *, won):
    return Compared(name, 1.0, 0.5 if won else 2.0, won)


def test_rounding_is_remembered_by_format_and_columns(untuned, tmp_path):
    cache = tmp_path / "tuned.json"
    found = [compared("q4_0 one", won=False), compared("q4_0 many", won=True)]
    remember(untuned, "full", Tuning([], found), cache)
    remember(untuned, "full", Tuning([], [compared("q8_0 many", won=True)]), cache)
    found = add_tuning(untuned.capabilities, untuned, "full", cache)
    assert found.rounded == {"q4_0 many", "q8_0 many"}
    assert found.unrounded == {"q4_0 one"}
    remember(untuned, "full", Tuning([], [compared("q4_0 many", won=False)]), cache)
    found = add_tuning(untuned.capabilities, untuned, "full", cache)
    assert found.rounded == {"q8_0 many"}
    assert found.unrounded == {"q4_0 many", "q4_0 one"}


def test_products_round_where_that_was_measured_to_pay(executors):
    executor = executors("wide")
    known = {"rounded": frozenset({"q4_0 many"}), "integer_dot": False}
    executor = executor.as_if(dataclasses.replace(executor.capabilities, **known))
    executor.rules = fusions(exact=False)
    assert "q8_activations" not in kernels_of_a_product(executor, 1)
    assert "q8_activations" in kernels_of_a_product(executor, 9)
    executor.rules = fusions(exact=True)
    assert "q8_activations" not in kernels_of_a_product(executor, 9)


def kernels_of_a_product(executor, columns):
    data = np.zeros(Q4_0.nbytes(64 * 256), np.uint8).tobytes()
    with Context(executor) as ctx:
        y = ctx.from_bytes(Q4_0, data, 64, 256).mulmat(ctx.zeros(columns, 256))
        recorded = ctx.record(y)
        names = [op for op, _, _ in recorded.timed()]
        recorded.close()
    return names


@pytest.mark.usefixtures("two_tiles")
def test_measuring_leaves_the_device_as_it_was(untuned):
    before, rules = untuned.capabilities, untuned.rules
    tune(untuned, [Q4_0], TINY)
    assert untuned.capabilities is before
    assert untuned.rules is rules


def test_a_tile_that_is_not_clearly_faster_is_not_chosen():
    case = tuning._Case("k", [Tile(2, 1, 8), Tile(4, 1, 8)], lambda context: None, 100)  # type: ignore[arg-type]
    assert [m.chosen for m in tuning._choose_tile(case, [1.0, 0.98])] == [True, False]
    assert [m.chosen for m in tuning._choose_tile(case, [1.0, 0.9])] == [False, True]
    assert [m.chosen for m in tuning._choose_tile(case, [1.0, inf])] == [True, False]


def test_another_profile_remembers_its_own(untuned, tmp_path):
    cache = remember(untuned, "full", entries(NAME), tmp_path / "tuned.json")
    assert not add_tuning(untuned.capabilities, untuned, "baseline", cache).tuned


def test_formats_tuned_later_join_those_before(untuned, tmp_path):
    cache = tmp_path / "tuned.json"
    names = [key("some_kernel", dtype, 1) for dtype in (Q4_0, F16)]
    for name in names:
        remember(untuned, "full", entries(name), cache)
    assert [*add_tuning(untuned.capabilities, untuned, "full", cache).tuned] == names


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{KEY: 3}", "{KEY: [1]}", "{KEY: {NAME: 4}}", "{KEY: {NAME: [64, 1, 8]}}",
     '{KEY: {"rounded": 3}}', '{KEY: {"rounded": [[1], null, "q4_0 most", "f16 one"]}}',
     '{KEY: {"unrounded": "q4_0 one"}}', '{KEY: {"matvec q4_0": [4, 1, 8]}}',
     '{KEY: {"": [4, 1, 8]}}'],
)  # fmt: skip
def test_a_damaged_cache_is_ignored(untuned, tmp_path, text):
    cache = tmp_path / "tuned.json"
    known = json.dumps(device_key(untuned, "full"))
    cache.write_text(text.replace("KEY", known).replace("NAME", json.dumps(NAME)))
    found = add_tuning(untuned.capabilities, untuned, "full", cache)
    assert not found.tuned
    assert not found.rounded | found.unrounded
    remember(untuned, "full", entries(NAME), cache)
    assert add_tuning(untuned.capabilities, untuned, "full", cache).tuned == {NAME: MEASURED}


def test_without_a_cache_defaults_hold(untuned, tmp_path):
    found = add_tuning(untuned.capabilities, untuned, "full", tmp_path / "none.json")
    assert found is untuned.capabilities
    assert select_tile(found, "some_kernel", Q4_0, 1) == candidates(NAME, found)[0]


def test_groups_that_a_device_cannot_run_are_no_candidates():
    small = Capabilities(max_workgroup_invocations=64)
    assert candidates("some_kernel q4_0 one", small) == (Tile(4, 1, 64), MEASURED)
    assert candidates("some_kernel q4_0 many", small) == ()
    assert candidates("other_kernel q4_0 one", small) == ()
