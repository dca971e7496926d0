"""What decode steps read and dispatch, counted without a device."""

import pytest

from benchmarks.architectures import CHATS, PLACES, measured, read_again, report
from tests.models.outlines import outlines, written


@pytest.fixture
def row(tmp_path):
    found = outlines()
    return lambda name: measured(written(tmp_path / f"{name}.gguf", found[name]))


@pytest.mark.parametrize("name", ["llama", "mixtral", "gpt-oss", "deepseek3"])
def test_a_step_reads_each_weight_once_and_of_experts_the_chosen(row, name):
    assert row(name).reads == pytest.approx(1, abs=0.02)


def test_what_a_window_reads_and_keeps_stops_growing(row):
    window, everything = row("gpt-oss"), row("llama")
    assert window.past[-1] < 128 * window.past[0]  # as half of the layers have one
    assert everything.past[-1] == 128 * everything.past[0]
    assert len(window.memory) == len(PLACES)


def test_encoders_have_no_steps(row):
    assert row("bert") is None


@pytest.mark.slow
def test_the_report_names_what_takes_longer_than_a_llama(row):
    text = "\n".join(report([row("llama"), row("mixtral")]))
    assert "| llama | llama | 1.000 |" in text
    assert "2 of 2 at most" in text or "- mixtral" in text


@pytest.mark.parametrize("layers", CHATS.values(), ids=list(CHATS))
def test_a_chat_that_goes_on_reads_an_interval_again_at_most(layers):
    most, mean, interval = read_again(layers, 4096)
    assert 0 <= mean <= most <= interval == 512
