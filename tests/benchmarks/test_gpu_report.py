"""The report of a machine with a GPU: its models, its page, and the time that it keeps to."""

import json
import os
import subprocess
import sys
import time

import gguf
import numpy as np
import pytest

from benchmarks import gpu_report
from benchmarks.gpu_costs.models import SIZES
from benchmarks.gpu_report import Report, Row, markdown, random_gguf


@pytest.fixture
def engines(monkeypatch):
    """Ours and llama-bench, without running any."""
    found = {"wgpu": (["ours"], {}), "llama.cpp, KHR": (["llama-bench"], {})}
    monkeypatch.setattr(gpu_report, "engines", lambda: found)


def answers(command, *_):
    """What the commands print."""
    if command[0] == "llama-bench":
        found = [
            {"n_prompt": 16, "n_gen": 0, "avg_ts": 200.0, "stddev_ts": 2.0},
            {"n_prompt": 0, "n_gen": 4, "avg_ts": 50.0, "stddev_ts": 1.0},
        ]
    elif command[0] == "ours":
        found = [
            {"test": "pp16", "tokens_per_second": 100.0, "stddev": 1.0},
            {"test": "tg4", "tokens_per_second": 75.0, "stddev": 0.5},
        ]
    else:
        return subprocess.CompletedProcess(command, 0, "vulkan:0 a card", "")
    return subprocess.CompletedProcess(command, 0, "a remark\n" + json.dumps(found), "")


@pytest.mark.parametrize("format", ["q4_0", "q4_k_m", "f16"])
def test_weights_are_random_and_where_the_header_says(tmp_path, format):
    path = random_gguf(tmp_path / "m.gguf", SIZES["tiny"], format)
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.isfinite(values).all()
        assert values.std() == pytest.approx(1 / 64, rel=0.2)


@pytest.mark.usefixtures("engines")
def test_every_model_is_measured_by_every_engine(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(gpu_report, "run_command", answers)
    words = ["a-card", "--sizes", "tiny,tiny:f16", "--prompts", "16", "--tokens", "4"]
    assert gpu_report.main([*words, "--out", str(tmp_path), "--no-tests"]) == 0
    page = (tmp_path / "a-card.md").read_text("utf-8")
    assert "| tiny q4_0 | pp16 | wgpu | 100.0 ± 1.0 | 0.50 |" in page
    assert "| tiny f16 | tg4 | wgpu | 75.0 ± 0.5 | 1.50 |" in page
    assert "vulkan:0 a card" in page
    assert page == capsys.readouterr().out.rstrip("\n") + "\n"


@pytest.mark.usefixtures("engines")
def test_what_fails_or_does_not_fit_is_listed(monkeypatch, tmp_path):
    def fails(command, *_):
        if command[0] == "ours":
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(command, 1, "", "no such device\n")

    monkeypatch.setattr(gpu_report, "run_command", fails)
    words = ["card", "--sizes", "tiny", "--out", str(tmp_path), "--no-tests"]
    assert gpu_report.main(words) == 1
    page = (tmp_path / "card.md").read_text("utf-8")
    assert "- tiny q4_0 by wgpu: not done after" in page
    assert "- tiny q4_0 by llama.cpp, KHR: ended with 1, no such device" in page


def test_engines_that_are_not_there_have_a_reason(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu_report.shutil, "which", lambda _: None)
    monkeypatch.setattr(gpu_report, "find_spec", lambda _: None)
    assert [line.split(":")[0] for line in gpu_report.missing()] == ["dawn", "llama.cpp", "tests"]
    monkeypatch.setattr(gpu_report, "run_command", answers)
    gpu_report.main(["card", "--sizes", "tiny", "--out", str(tmp_path), "--no-tests"])
    page = (tmp_path / "card.md").read_text("utf-8")
    assert "- llama.cpp: llama-bench is not on the path" in page


@pytest.mark.skipif(os.name != "posix", reason="needs groups of processes")
def test_processes_of_a_command_end_with_it():
    # The second process holds the pipe of the first.
    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '30'])"]
    report, start = Report(time.monotonic() + 6), time.monotonic()
    assert report.run("a test", command, {}, 5.5) is None
    assert time.monotonic() - start < 20
    assert report.left_out == ["a test: not done after 6 s"]


def test_nothing_begins_when_time_is_up():
    report = Report(time.monotonic() + 1)
    assert report.run("a test", ["false"], {}) is None
    assert report.left_out == ["a test: no time was left"]


def test_a_model_that_is_not_written_in_time_leaves_no_file(tmp_path):
    path = tmp_path / "m.gguf"
    with pytest.raises(TimeoutError, match=r"m\.gguf: not written in time"):
        random_gguf(path, SIZES["tiny"], "q4_0", time.monotonic() - 1)
    assert not path.exists()


@pytest.mark.usefixtures("engines")
def test_no_command_takes_all_the_time(monkeypatch, tmp_path):
    given = {}

    def noted(command, more, seconds):
        given.setdefault("story" if "story" in command else command[0], seconds)
        return answers(command)

    monkeypatch.setattr(gpu_report, "run_command", noted)
    words = ["card", "--sizes", "tiny", "--seconds", "100", "--out", str(tmp_path)]
    assert gpu_report.main(words) == 0
    assert given["story"] == pytest.approx(15)  # the first use, with the self-test
    assert given["ours"] == given["llama-bench"] == pytest.approx(25)


@pytest.mark.usefixtures("engines")
def test_a_result_of_another_form_costs_no_other(monkeypatch, tmp_path):
    def renamed(command, *_):
        if command[0] == "ours":
            found = json.dumps([{"test": "pp16", "speed": 1.0}, 3])
            return subprocess.CompletedProcess(command, 0, found, "")
        return answers(command)

    monkeypatch.setattr(gpu_report, "run_command", renamed)
    words = ["card", "--sizes", "tiny", "--out", str(tmp_path), "--no-tests"]
    assert gpu_report.main(words) == 0
    page = (tmp_path / "card.md").read_text("utf-8")
    assert "- tiny q4_0 by wgpu: a result without 'tokens_per_second': {'test': 'pp16'" in page
    assert "| tiny q4_0 | tg4 | llama.cpp, KHR | 50.0 ± 1.0 |" in page


@pytest.mark.usefixtures("engines")
def test_a_model_that_cannot_be_written_costs_no_other(monkeypatch, tmp_path):
    def write(path, sizes, format, end):
        if format == "f16":
            raise OSError(28, "No space left on device", str(path))
        return random_gguf(path, sizes, format, end)

    monkeypatch.setattr(gpu_report, "random_gguf", write)
    monkeypatch.setattr(gpu_report, "run_command", answers)
    words = ["card", "--sizes", "tiny:f16,tiny", "--out", str(tmp_path), "--no-tests"]
    assert gpu_report.main(words) == 0
    page = (tmp_path / "card.md").read_text("utf-8")
    assert "- tiny f16: [Errno 28] No space left on device" in page
    assert "| tiny q4_0 | tg4 | wgpu | 75.0 ± 0.5 |" in page


@pytest.mark.usefixtures("engines")
def test_a_run_that_is_ended_leaves_what_it_has(monkeypatch, tmp_path):
    def ended(command, *_):
        if command[0] == "llama-bench":
            raise KeyboardInterrupt
        return answers(command)

    monkeypatch.setattr(gpu_report, "run_command", ended)
    words = ["card", "--sizes", "tiny", "--out", str(tmp_path), "--no-tests"]
    with pytest.raises(KeyboardInterrupt):
        gpu_report.main(words)
    page = (tmp_path / "card.md").read_text("utf-8")
    assert "vulkan:0 a card" in page
    assert "| tiny q4_0 | tg4 | wgpu | 75.0 ± 0.5 |" in page


def test_without_a_peer_there_is_no_ratio():
    report = Report(0.0, rows=[Row("1b q4_0", "dawn", "pp512", 1234.5, 6.0)])
    assert "| 1b q4_0 | pp512 | dawn | 1,234.5 ± 6.0 | – |" in markdown("card", report)


@pytest.mark.parametrize("words", [["a/b"], ["card", "--sizes", "70b"]])
def test_wrong_arguments_are_refused(words, capsys):
    with pytest.raises(SystemExit):
        gpu_report.arguments(words)
    assert "needs" in capsys.readouterr().err


@pytest.mark.usefixtures("engines")
def test_each_file_of_tests_has_its_line_and_time(monkeypatch, tmp_path):
    def tests(command, *_):
        if "pytest" not in command:
            return answers(command)
        if command[-1].endswith("test_matrix.py"):
            raise subprocess.TimeoutExpired(command, 1)
        return subprocess.CompletedProcess(command, 0, "....\n7 passed in 2.00s\n", "")

    monkeypatch.setattr(gpu_report, "run_command", tests)
    words = ["card", "--sizes", "tiny", "--out", str(tmp_path)]
    assert gpu_report.main(words) == 0
    page = (tmp_path / "card.md").read_text("utf-8")
    assert "- test_pairs.py, wgpu: 7 passed in 2.00s" in page
    assert "- test_matrix.py, wgpu: not done after" in page


@pytest.mark.usefixtures("engines")
def test_output_without_a_list_is_noted(monkeypatch, tmp_path):
    def remarks(command, *_):
        return subprocess.CompletedProcess(command, 0, "only a remark\n", "")

    monkeypatch.setattr(gpu_report, "run_command", remarks)
    words = ["card", "--sizes", "tiny", "--out", str(tmp_path), "--no-tests"]
    assert gpu_report.main(words) == 1
    page = (tmp_path / "card.md").read_text("utf-8")
    assert "- tiny q4_0 by wgpu: printed no list in JSON but 'only a remark'" in page
