"""Shares of a copy's bandwidth are counted from the right bytes."""

import json

import pytest

from benchmarks import ops
from benchmarks.ops import Case, Measured, measured, moved
from wgpu_backend.ml.numpy_executor import NumpyExecutor

ROWS, COLS = 3, 70000
VALUES = 4 * ROWS * COLS


@pytest.fixture
def found():
    return Measured("argsort", (3, 4), 2.0, 100, 600, 0.25, 0.1, 0.6, 0.04, 3.0)


def test_operand_and_result_count_once_however_often_they_are_read():
    case = Case("softmax", lambda x: (x + x).softmax(), (ROWS, COLS))
    assert moved(NumpyExecutor(), case) == (2 * VALUES, 0)


def test_an_operand_that_is_not_read_does_not_count():
    assert moved(NumpyExecutor(), Case("fill", lambda x: x.fill(1), (ROWS, COLS)))[0] == VALUES


def test_passes_of_a_sort_count_what_each_moves():
    case = Case("argsort", lambda x: x.argsort(), (ROWS, COLS), by_passes=True)
    in_out, passes = moved(NumpyExecutor(), case)
    keys_alone = (1 + 1 + 2) + (2 + 2 + 1) + (1 + 1 + 1)
    assert in_out == 2 * VALUES
    assert keys_alone * VALUES < passes < 2 * keys_alone * VALUES


def test_a_sort_in_one_kernel_counts_its_own_passes():
    case = Case("argsort", lambda x: x.argsort(), (5, 1000), by_passes=True)
    assert moved(NumpyExecutor(), case) == (2 * 4 * 5000, 9 * 4 * 5000)


@pytest.mark.slow
def test_shares_fit_together(full):
    got = measured(full, Case("sqr", lambda x: x.sqr(), (64, 64)), 2)
    assert got.passes_nbytes == 0
    assert got.milliseconds > 0
    assert got.of_copy > 0
    assert got.of_numpy > 0


def test_a_line_has_a_column_for_each_word_of_the_header(found):
    assert len(found.line) == len(ops.HEADER)
    assert found.line.split() == ["argsort", "2.00", "10%", "60%", "25%", "4%", "3.0x"]


def test_figures_go_into_a_file(full, monkeypatch, tmp_path):
    path = tmp_path / "ops.json"
    monkeypatch.setattr(ops, "CASES", (Case("sqr", lambda x: x.sqr(), (64, 64)),))
    monkeypatch.setattr("sys.argv", ["ops.py", "--only", "sqr", "--json", str(path)])
    ops.main()
    result = json.loads(path.read_text("utf-8"))
    assert result["device"] == full.info.name
    assert [one["op"] for one in result["ops"]] == ["sqr"]
