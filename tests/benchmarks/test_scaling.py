"""Exponents, budgets, and the work of each sweep on a tiny model."""

import time
from xml.etree import ElementTree

import pytest

from benchmarks.scaling import (
    Meter,
    Model,
    Point,
    Sweep,
    doubled,
    explore,
    improve,
    plot,
    swept,
    table,
)
from tests.builders import tiny_model
from wgpu_backend.engine.loading import load

METER = Meter(time.perf_counter, lambda: 0.0)


def sweep(costs, limit=1, run=None):
    points = [Point(2**i, cost, cost / 10) for i, cost in enumerate(costs)]
    return Sweep("a sweep", "tokens", [p.size for p in points], run, limit, points)


def test_sizes_double():
    assert doubled(1, 32) == [1, 2, 4, 8, 16, 32]
    assert doubled(256, 1000) == [256, 512]


@pytest.mark.parametrize(("power", "steep"), [(0, False), (1, False), (1.5, True), (2, True)])
def test_growth_above_the_limit_is_found(power, steep):
    each = sweep([0.1 * 2 ** (power * i) for i in range(6)])
    assert each.exponent == pytest.approx(power, abs=1e-9)
    assert each.too_steep == steep


def test_only_the_last_points_tell_the_exponent():
    assert sweep([5, 5, 5, 5, 1, 2, 4, 8]).exponent == pytest.approx(1)
    assert sweep([1, 2, 3]).exponent is None
    assert not sweep([1, 20, 300]).too_steep


def test_a_step_behind_a_long_context_is_compared():
    each = sweep([1 + i for i in range(13)])
    assert each.growth is None
    each.name = "decode step"
    assert each.growth == pytest.approx(13 / 9)
    assert "behind 4096 positions 1.44 times behind 256" in table(each)
    each.points.pop()
    assert each.growth is None


def test_a_sweep_ends_with_its_budget():
    each = sweep([], run=lambda size: lambda: time.sleep(0.02 * size))
    each.sizes = doubled(1, 1 << 20)
    begin = time.perf_counter()
    swept(each, METER, 1.0)
    assert time.perf_counter() - begin < 2
    assert 2 <= len(each.points) < 8


def test_the_first_run_counts_only_where_there_is_no_time_for_another():
    taken = iter([0.2, *[0.01] * 10])
    each = sweep([], run=lambda size: lambda: time.sleep(next(taken)))
    each.sizes = [1]
    explore(each, METER, time.perf_counter() + 10)
    assert each.points[0].seconds < 0.1
    each = sweep([], run=lambda size: lambda: time.sleep(0.2))
    each.sizes = [1]
    explore(each, METER, time.perf_counter())
    assert each.points[0].seconds >= 0.2


def test_a_slow_moment_is_made_up_for():
    taken = iter([0.01, 0.02, 0.2, 0.03])  # sizes 1, 2 and 1, 2 again
    each = sweep([0.3, 0.04], run=lambda size: lambda: time.sleep(next(taken, 0.05)))
    improve(each, METER, time.perf_counter() + 0.6)
    assert [0.01 <= p.seconds < 0.035 for p in each.points] == [True, True]


def test_every_sweep_runs_and_leaves_the_cache_empty(tmp_path):
    with load(
        tiny_model(tmp_path / "tiny.gguf"), device="cpu", num_ctx=Model.positions(64, 4)
    ) as model:
        work = Model(model, 64, 4)
        for each in work.sweeps():
            sizes = each.sizes
            for size in (sizes[0], sizes[-1]):
                each.run(size)()
                before = model.cache.free_positions
                each.run(size)()
                assert model.cache.free_positions == before
        assert work.host_seconds() > 0


def test_the_plot_has_a_panel_for_each_sweep():
    root = ElementTree.fromstring(plot([sweep([1, 2, 4, 8]), sweep([1, 2])], "wall clock"))
    assert len(root.findall("{http://www.w3.org/2000/svg}g")) == 2
