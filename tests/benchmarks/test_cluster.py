"""The simulator of clusters, against times that follow from its formulas."""

from dataclasses import replace

import pytest

pytest.importorskip("simpy", reason="the simulator needs simpy")

from benchmarks.cluster.simulate import Costs, Setup, percentile, simulate

COSTS = Costs(base=0.01, each=0.001, token=0.0005, hop=0.002)
ALONE = Setup(1, 1, think=0.0, turns=1, system=100, answered=50, seconds=400.0, warm=0.0)


def test_a_user_alone_waits_for_the_prompt_and_its_own_steps():
    found = simulate(ALONE, COSTS)
    # A prompt of 100 tokens, and the first step.
    assert found.first == pytest.approx([100 * 0.0005 + 0.011] * len(found.first))
    # Answers have 50 tokens and a half on average: 1 + int of an exponential of mean 50.
    a_turn = 0.05 + 50.5 * 0.011
    assert found.answered == pytest.approx(400 / a_turn, rel=0.1)
    assert found.throughput == pytest.approx(50.5 / a_turn, rel=0.1)


def test_a_step_of_a_pipeline_is_longer_by_its_hops_and_its_prompts_are_shorter():
    one = simulate(ALONE, COSTS)
    four = simulate(replace(ALONE, nodes=4, depth=4, chunk=25), COSTS)
    # Four micro-batches of 25 tokens through four stages; a quarter of `each` for one sequence.
    prompt = (4 + 3) * (25 * 0.0005 / 4 + 0.002)
    assert four.first == pytest.approx([prompt + 0.01 + 0.00025 + 0.008] * len(four.first))
    assert prompt < 100 * 0.0005
    assert four.throughput < one.throughput


def test_prefixes_are_found_where_the_router_knows_them():
    setup = Setup(8, 80, seconds=60.0, warm=20.0)
    knowing, random = (simulate(replace(setup, routing=r), COSTS) for r in ("prefix", "random"))
    assert knowing.cached_share > 0.6 > 0.3 > random.cached_share
    assert percentile(knowing.first, 0.95) < percentile(random.first, 0.95)


def test_requests_of_failed_nodes_run_again_or_fail_and_the_rest_goes_on():
    setup = Setup(8, 80, think=1.0, seconds=120.0, warm=0.0)
    well, ill = simulate(setup, COSTS), simulate(replace(setup, mtbf=60.0), COSTS)
    assert (well.retried, well.failed) == (0, 0)
    assert ill.retried > 0
    assert ill.failed > 0
    assert ill.answered > well.answered / 2


def test_the_same_seed_gives_the_same_results():
    setup = Setup(4, 40, seconds=30.0, warm=5.0, mtbf=20.0)
    assert simulate(setup, COSTS) == simulate(setup, COSTS)
