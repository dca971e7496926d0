"""Roofs are worked out from a kernel's figures, and the page shows the data the command has."""

import json

import pytest

from benchmarks.gpu_costs import predict
from benchmarks.gpu_costs.predict import (
    INTEL_FAMILY,
    Card,
    Prediction,
    dispatch_times,
    pass_time,
    predictions,
)

CARD = Card("card", 1000, 10, 100, 2.0, 5.0, "made up")


def row(**other):
    return {
        "family": "navi31", "model": "8b", "format": "q4_0", "graph": "decode1", "count": 3,
        "groups": [100, 1, 1], "threads": 64, "instructions": 1000.0, "static_instructions": 250,
        "nbytes": 85_000_000, "lint": [],
    } | other  # fmt: skip


def test_each_roof_is_a_time_in_microseconds():
    access = {"times": 10, "took": 32.0, "least": 4.0}
    unknown = {"times": 10, "took": None, "least": None}
    times = dispatch_times(row(lint=[access, unknown]), CARD)
    assert times["bytes"] == pytest.approx(100)
    # 6,400 threads of 1,000 instructions on 1,000 lanes at 2 GHz and 80 %.
    assert times["instructions"] == pytest.approx(4)
    # Two halves of 32 lanes, ten times 32 lines, a hundred groups on ten cores.
    assert times["accesses"] == pytest.approx(3.2)
    assert times["one wave"] == pytest.approx(2)


def test_instructions_run_a_few_times_where_loops_depend_on_data():
    times = dispatch_times(row(instructions=None), CARD)
    assert times["one wave"] == pytest.approx(250 * 10 * 4 / 2e3)


def test_a_pass_is_its_longest_roofs_and_the_gaps():
    time, bound = pass_time([row(), row(nbytes=0, count=1)], CARD)
    assert time == pytest.approx(3 * 105 + 4 + 5)
    assert bound == "bytes"
    assert pass_time([row(nbytes=0)], CARD)[1] == "gaps"


def test_tokens_a_second_follow_from_passes():
    prompt = row(graph="prefill256", nbytes=0, instructions=1e6, count=1)
    intel = [each | {"family": INTEL_FAMILY} for each in (row(), prompt)]
    found = {(each.test, each.card): each for each in predictions([row(), prompt, *intel])}
    assert {test for test, _ in found} == {"tg", "pp512"}
    assert len(found) == 2 * len(predict.CARDS)
    h200 = next(card for card in predict.CARDS if card.name == "H200")
    time, _ = pass_time([prompt], h200)
    assert found["pp512", "H200"].tokens_per_second == pytest.approx(256e6 / time, rel=0.05)


def test_the_page_is_of_the_data_that_the_command_has():
    data = json.loads(predict.DATA.read_text("utf-8"))
    found = [Prediction(*each) for each in data["predictions"]]
    assert predict.page(found) == predict.PAGE.read_text("utf-8")
    assert predict.text_of(predict.data(found)) == predict.DATA.read_text("utf-8")


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("H200", 67),
        ("RTX 4090", 82.6),
        ("RX 7900 XTX", 61.4 / 2),
        ("Arc B580", 13.67),
        ("M3 Max", 14.3),
    ],
)
def test_figures_of_a_card_agree_with_its_published_peak(name, peak):
    card = next(card for card in predict.CARDS if card.name == name)
    assert card.peak == pytest.approx(peak, rel=0.005)


def test_the_page_says_that_nothing_was_measured():
    text = predict.PAGE.read_text("utf-8")
    assert "None of these cards was measured" in text
    for card in predict.CARDS:
        assert f"| {card.name} | {card.bandwidth:g} |" in text
