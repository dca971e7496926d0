"""Sides alternate, failures are reported, ratios are taken within a round. The sides are fakes."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks.compare import (
    CPU,
    OURS,
    VULKAN,
    Comparison,
    Side,
    SideError,
    compared,
    our_rates,
    peer_device,
    peer_rates,
    plot,
    report,
    table,
)

MODEL = Path("model.gguf")


def fake(name, code, **environment):
    """A side that is a line of Python."""
    return Side(name, lambda path: [sys.executable, "-c", code], our_rates, environment)


def saying(rate):
    return f'print(\'[{{"test": "tg8", "tokens_per_second": {rate}}}]\')'


def test_sides_take_turns_and_each_round_is_kept(tmp_path):
    log = tmp_path / "log"
    note = f"open({str(log)!r}, 'a').write('{{}} ');"
    sides = [
        fake(OURS, note.format("ours") + saying(6.0)),
        fake(VULKAN, note.format("theirs") + saying(2.0)),
    ]
    (each,), failures = compared([MODEL], sides, 3, 60)
    assert log.read_text().split() == ["ours", "theirs"] * 3
    assert each.rounds == [{OURS: 6.0, VULKAN: 2.0}] * 3
    assert failures == []


def test_a_ratio_compares_within_a_round():
    rounds = [{OURS: 10.0, CPU: 5.0}, {OURS: 1.0, CPU: 1.0}, {OURS: 9.0, CPU: 3.0}, {OURS: 7.0}]
    each = Comparison("m", "tg8", rounds)
    assert each.ratio(CPU) == (1.0, 2.0, 3.0)
    assert each.rate(OURS) == 8.0
    assert each.ratio(VULKAN) is None


@pytest.mark.slow
def test_a_side_that_hangs_is_killed_and_left_out_from_then_on():
    sides = [fake(OURS, saying(6.0)), fake(VULKAN, "import time; time.sleep(60)")]
    (each,), failures = compared([MODEL], sides, 2, 2)
    assert each.rounds == [{OURS: 6.0}] * 2
    assert failures == [f"{VULKAN}, model.gguf: took more than 2 s and was killed"]


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (
            "import sys; print('ggml: no memory', file=sys.stderr); sys.exit(3)",
            "3: ggml: no memory",
        ),
        ("print('Segmentation fault')", "JSON was not understood"),
        ("print('[{}]')", "JSON was not understood"),
    ],
)
def test_a_side_that_fails_says_why(code, message):
    with pytest.raises(SideError, match=message):
        fake(VULKAN, code).measure(MODEL, 60)


def test_a_program_that_is_not_there_is_told():
    with pytest.raises(SideError, match="No such file"):
        Side(VULKAN, lambda path: ["./no-such-program"], our_rates, {}).measure(MODEL, 60)


def test_a_side_gets_its_environment():
    code = "import os; r = os.environ['RATE'];" + saying("' + r + '")
    assert fake(VULKAN, code, RATE="7").measure(MODEL, 60) == {"tg8": 7.0}


def test_figures_of_llama_bench_are_read():
    rows = [
        {"n_prompt": 64, "n_gen": 0, "samples_ts": [11.5, 25.9, 26.0], "backends": "Vulkan"},
        {"n_prompt": 0, "n_gen": 16, "samples_ts": [7.8], "backends": "Vulkan"},
    ]
    assert peer_rates(json.dumps(rows)) == {"pp64": 25.9, "tg16": 7.8}


def test_the_table_has_a_dash_where_a_side_failed():
    found = [Comparison("m", "tg8", [{OURS: 6.0, CPU: 60.0}] * 2)]
    heads, row = table(found, [VULKAN, CPU]).splitlines()
    assert heads.split()[:3] == ["model", "test", OURS]
    assert row.split() == ["m", "tg8", "6.00", "–", "–", "60.00", "0.1", "(0.1", "–", "0.1)"]
    assert report(found, [CPU])[0]["ratios"] == {CPU: pytest.approx((0.1, 0.1, 0.1))}


def test_the_plot_has_a_mark_for_every_ratio():
    found = [Comparison(f"m{i}", "tg8", [{OURS: 6.0, VULKAN: 2.0 + i}]) for i in range(3)]
    assert plot(found, [VULKAN, CPU], "a device").count("<circle") == 3


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_the_device_of_the_peer_is_named_or_why_not(tmp_path):
    peer = tmp_path / "llama-bench"
    peer.write_text(
        '#!/bin/sh\necho "Available devices:"\n'
        'test "$GGML_VK_VISIBLE_DEVICES" = 0 && echo "  Vulkan0: a card (8 MiB)"\n'
    )
    peer.chmod(0o755)
    assert peer_device(peer, "0") == "Vulkan0: a card (8 MiB)"
    assert peer_device(peer, "1") == "no Vulkan device"
    assert peer_device(tmp_path / "nothing", "0").startswith("unknown, ")
