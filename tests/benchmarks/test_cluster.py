"""The simulator of clusters, against times that follow from its formulas and the engine's."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

pytest.importorskip("simpy", reason="the simulator needs simpy")

from benchmarks.cluster import groups, stages
from benchmarks.cluster.__main__ import MEASURED, PAGE, join_sections, keep_measured, split_sections
from benchmarks.cluster.profile import Profile
from benchmarks.cluster.simulate import Setup, percentile, simulate
from wgpu_backend.engine.batching.pace import Groups

# A line through two points: 10 ms and a millisecond for each row; for prompts half of that.
STEPS, READS = {1: 0.011, 256: 0.266}, {1: 0.0105, 256: 0.138}
PROFILE = Profile(STEPS, READS, hop=0.002)
ALONE = Setup(1, 1, think=0.0, turns=1, system=100, answered=50, seconds=400.0, warm=0.0)
# A prompt of 100 tokens has the rows of 128.
READ = 0.01 + 128 * 0.0005


def test_a_profile_is_read_as_it_was_written(tmp_path):
    made = Profile({1: 0.5, 2: 0.75}, {8: 1.25}, 0.125, "a test")
    made.write(tmp_path / "profile.json")
    assert Profile.read(tmp_path / "profile.json") == made


def test_rows_that_were_not_measured_are_on_the_line_through_the_nearest():
    made = Profile({1: 1.0, 4: 4.0, 8: 6.0}, {8: 1.0})
    found = [made.seconds(rows, reading=False) for rows in (1, 2, 4, 6, 8, 16)]
    assert found == pytest.approx([1.0, 2.0, 4.0, 5.0, 6.0, 10.0])
    assert made.seconds(64, reading=True) == 1.0


def test_a_user_alone_waits_for_the_prompt_and_its_own_steps():
    found = simulate(ALONE, PROFILE)
    assert found.first == pytest.approx([READ] * len(found.first))
    # Answers have 50 tokens and a half on average: 1 + int of an exponential of mean 50. The
    # prompt's pass makes the first of them.
    a_turn = READ + 49.5 * 0.011
    assert found.answered == pytest.approx(400 / a_turn, rel=0.1)
    assert found.throughput == pytest.approx(50.5 / a_turn, rel=0.1)


@pytest.mark.parametrize(("users", "rows"), [(2, 2), (3, 4), (4, 4), (5, 8), (12, 16)])
def test_steps_have_the_rows_that_the_engine_pads_them_to(users, rows):
    setup = replace(ALONE, users=users, system=1, answered=1 << 20, longest=9000, seconds=90.0)
    assert simulate(setup, PROFILE).throughput == pytest.approx(
        users / (0.01 + rows * 0.001), rel=0.02
    )


def test_prompts_beyond_the_budget_go_in_several_passes():
    setup = replace(ALONE, users=2, system=1000, longest=1, seconds=2.0)
    found = simulate(setup, PROFILE)
    # Both prompts share passes of 256 rows, the last of which has what is left.
    assert found.first == pytest.approx([8 * PROFILE.seconds(256, reading=True)] * 2)


def test_a_token_of_a_request_alone_goes_through_all_stages_and_links():
    setup = replace(ALONE, nodes=4, depth=4, system=1, answered=1 << 20, longest=3000)
    # Each stage but the first is asked by the first one, and answers it.
    a_token = 0.011 + 2 * 3 * 0.002
    assert simulate(setup, PROFILE).throughput == pytest.approx(1 / a_token, rel=0.01)


def test_parts_of_a_prompt_keep_the_stages_of_a_pipeline_busy():
    one = simulate(replace(ALONE, system=512, alone=512), PROFILE)
    four = simulate(replace(ALONE, nodes=4, depth=4, system=512, alone=512), PROFILE)
    # Four parts of 128 through four stages, a quarter of the layers each.
    stage = READ / 4
    assert percentile(four.first, 0.5) == pytest.approx((4 + 3) * stage + 6 * 0.002, rel=0.1)
    assert percentile(four.first, 0.5) < percentile(one.first, 0.5)


def test_groups_keep_both_stages_busy_and_one_group_only_one():
    setup = replace(
        ALONE, nodes=2, depth=2, users=2, system=1, answered=1 << 20, longest=3000, seconds=200.0
    )
    profile = replace(PROFILE, hop=0.0)
    # Of two answers each is a group: one is in each stage. As one group they go through together.
    assert simulate(replace(setup, groups=1), profile).throughput == pytest.approx(
        2 / 0.012, rel=0.02
    )
    assert simulate(setup, profile).throughput == pytest.approx(1 / (0.011 / 2), rel=0.05)


def test_the_groups_are_chosen_as_the_engine_chooses_them(monkeypatch):
    asked = []
    choose = Groups.choose
    monkeypatch.setattr(Groups, "choose", lambda g, n: asked.append(n) or choose(g, n))
    simulate(replace(ALONE, nodes=2, depth=2, users=3, seconds=20.0), PROFILE)
    assert set(asked) == {1, 2, 3} or set(asked) == {3, 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(groups.KINDS))
def test_the_engine_has_the_throughput_and_the_waits_that_are_simulated(tmp_path, name):
    """On devices that take a set time, by a clock that goes on with them."""
    setup = replace(groups.KINDS[name], users=5, seconds=40.0)
    found = groups.measure(groups.make_model(tmp_path), setup)
    wanted = simulate(setup, groups.PROFILE)
    assert len(found.waits) > 5
    assert wanted.ended_tokens / wanted.seconds == pytest.approx(found.rate, rel=0.1)
    late = percentile(found.waits, 0.95)
    assert percentile(wanted.whole, 0.95) == pytest.approx(late, rel=0.2)


def test_runs_of_a_stage_follow_each_other_next_to_the_host():
    """By a clock that stands still but for waits, on a stage that takes 0.5 s for a run."""
    clock = groups.Clock()
    clock.engine, clock.asking = SimpleNamespace(_core=SimpleNamespace(totals=Totals())), 0
    stage = SimpleNamespace(clock=clock, ready=0.0, spent=iter_times(0.5))
    inner = SimpleNamespace(replay=lambda: SimpleNamespace(wait=lambda: ["values"]), other=3)
    recorded = stages._Recorded(inner, stage)
    assert recorded.other == 3
    clock.now = 1.0
    first, clock.now = recorded.replay(), 1.25
    second = recorded.replay()
    # Both were begun without waiting, and the second one waits for the first.
    assert (clock.now, first.ready, second.ready) == (1.25, 1.5, 2.0)
    assert second.wait() == ["values"]
    assert clock.now == 2.0
    first.wait()
    assert clock.now == 2.0
    third = recorded.replay()
    third.wait()
    assert clock.now == 2.5


class Totals:
    """The totals of an engine that nobody has asked."""

    finished = 0


def iter_times(step):
    """Return a clock that shows the same time twice, then `step` more at each second call."""
    shown = (step * ((n + 1) // 2) for n in itertools.count())
    return lambda: next(shown)


def test_the_clock_of_processors_goes_on_with_work_and_with_waits():
    clock = stages.ProcessorClock()
    before = clock.now
    clock.now += 5.0
    assert 5.0 <= clock.now - before < 6.0
    assert clock.perf_counter() == pytest.approx(clock.now, abs=1.0)


def test_a_page_keeps_the_measured_section_of_another_run():
    text = PAGE.read_text("utf-8")
    head, sections = split_sections(text)
    assert join_sections(head, sections) == text
    assert "Nodes and users" in sections
    assert keep_measured({MEASURED: "a table", "Nodes and users": "old"}) == {MEASURED: "a table"}
    assert keep_measured({"Nodes and users": "old"}) == {}


def test_prefixes_are_found_where_the_router_knows_them():
    setup = Setup(8, 80, seconds=60.0, warm=20.0)
    knowing, random = (simulate(replace(setup, routing=r), PROFILE) for r in ("prefix", "random"))
    assert knowing.cached_share > 0.6 > 0.3 > random.cached_share
    assert percentile(knowing.first, 0.95) < percentile(random.first, 0.95)


def test_requests_of_failed_nodes_run_again_or_fail_and_the_rest_goes_on():
    setup = Setup(8, 80, think=1.0, seconds=120.0, warm=0.0)
    well, ill = simulate(setup, PROFILE), simulate(replace(setup, mtbf=60.0), PROFILE)
    assert (well.retried, well.failed) == (0, 0)
    assert ill.retried > 0
    assert ill.failed > 0
    assert ill.answered > well.answered / 2


@pytest.mark.parametrize("depth", [1, 2])
def test_the_same_seed_gives_the_same_results(depth):
    setup = Setup(4, 40, depth, seconds=30.0, warm=5.0, mtbf=20.0)
    assert simulate(setup, PROFILE) == simulate(setup, PROFILE)


def test_all_requests_are_answered_after_all_replicas_failed():
    """Requests that come while none is up wait until one is."""
    setup = Setup(1, 4, think=0.0, seconds=200.0, warm=0.0, mtbf=20.0, repair=5.0)
    found = simulate(setup, PROFILE)
    assert found.failed + found.retried > 0
    # Each user goes on asking: none waits for a request that nobody has.
    assert max(found.whole) < 60.0
    assert found.answered > 4
