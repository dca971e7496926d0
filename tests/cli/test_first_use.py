"""The first use of a device is slow: the command reports that, and skips what it can."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import wgpu_backend
from tests.cli.conftest import Cli
from tests.cli.terminal import ESCAPES, environment
from wgpu_backend.ml import backend
from wgpu_backend.ml.backend import LoadCancelled
from wgpu_backend.ml.calibration import self_test

# Two cases of the test are enough to see what it says.
COMMAND = """
import sys
from wgpu_backend.ml.calibration import self_test
some = [*self_test.cases()][6:8]
self_test.cases = lambda: iter(some)
self_test.fused_cases = lambda: iter([])
from wgpu_backend.cli import main
sys.exit(main(sys.argv[1:]))
"""
FIRST = r"first use of .+: testing its kernels, (up to a minute|some seconds); remembered in "


def command(adapter: str, folder: Path, **streams: Any) -> subprocess.Popen[bytes]:
    words = ["run", "story", "Tell", "--device", adapter, "--num-predict", "1"]
    return subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words],
        stdin=subprocess.DEVNULL,
        env=environment(XDG_CACHE_HOME=str(folder), TERM="xterm"),
        **streams,
    )


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(sys.platform != "linux", reason="caches lie elsewhere")
def test_a_piped_run_says_what_happens_the_first_time_and_no_more(
    adapter: str, tmp_path: Path
) -> None:
    with command(adapter, tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr
        first, last = process.stderr.read().decode().splitlines()
    assert process.returncode == 0
    assert re.fullmatch(f"wgpu-backend: {FIRST}{tmp_path}/wgpu-backend", first)
    assert re.fullmatch(r"wgpu-backend: .+ is tested, \d+ s", last)
    assert (tmp_path / "wgpu-backend" / "trusted.json").exists()
    with command(adapter, tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr
        assert process.stderr.read() == b""


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.skipif(sys.platform != "linux", reason="needs a pseudo-terminal")
def test_on_a_terminal_a_bar_moves_below_the_line(adapter: str, tmp_path: Path) -> None:
    ours, theirs = os.openpty()
    with command(adapter, tmp_path, stdout=subprocess.DEVNULL, stderr=theirs):
        os.close(theirs)
        seen = read_all(ours)
    text = ESCAPES.sub("", " ".join(seen.split()))
    assert re.search(FIRST, text)
    shares = [int(share) for share in re.findall(r"Loading story\.gguf\S* \S+ +(\d+)%", text)]
    assert shares[0] == 0  # in between, a frame of the thread that prints a line may come late
    assert 100 in shares


def read_all(terminal: int) -> str:
    data = b""
    try:
        while part := os.read(terminal, 65536):
            data += part
    except OSError:  # Linux says so when the other end is closed
        pass
    os.close(terminal)
    return data.decode()


@pytest.fixture
def untested(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """An adapter that was never used; what runs of its test."""
    ran: list[str] = []
    few = [*self_test.cases()][6:8]

    def remembered(name: str) -> Path:
        return tmp_path / name

    def cases() -> Any:
        ran.append("test")
        return iter(few)

    monkeypatch.setattr(self_test, "cache_file", remembered)
    monkeypatch.setattr(self_test, "cases", cases)
    monkeypatch.setattr(self_test, "fused_cases", lambda: iter([]))
    return ran


@pytest.mark.gpu
def test_what_runs_no_model_does_not_wait_for_the_test(
    cli: Cli, adapter: str, tiny: Path, untested: list[str], tmp_path: Path
) -> None:
    op = tmp_path / "double.wgsl"
    op.write_text(
        "@group(0) @binding(0) var<storage, read_write> y: array<f32>;\n"
        "@compute @workgroup_size(1) fn main() { y[0] = 2.0; }\n"
    )
    assert cli("devices").code == 0
    assert cli("show", str(tiny)).code == 0
    assert cli("tokenize", str(tiny), "in").code == 0
    assert cli("graph", str(tiny), "--device", adapter, "-p", "4").code == 0
    cli("op", "check", str(op), "--device", adapter)
    assert untested == []
    assert not (tmp_path / "trusted.json").exists()


@pytest.mark.gpu
def test_progress_is_one_from_the_test_to_the_last_weight(
    adapter: str, tiny: Path, untested: list[str]
) -> None:
    first: list[float] = []
    wgpu_backend.load(tiny, device=adapter, progress=first.append).close()
    assert untested
    assert first == sorted(first)
    assert (first[0], first[-1]) == (0.0, 1.0)
    assert 0 < first[1] <= 0.9  # a helper may have finished all others meanwhile
    again: list[float] = []
    wgpu_backend.load(tiny, device=adapter, progress=again.append).close()
    assert (again[0] < 0.9, again[-1]) == (True, 1.0)


@pytest.mark.gpu
def test_loading_is_called_off_between_two_tests(
    adapter: str, tiny: Path, untested: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend.Backend, "load", lambda *_, **__: pytest.fail("went on"))
    asked: list[bool] = []

    def cancelled() -> bool:
        asked.append(len(asked) > 0)
        return asked[-1]

    with pytest.raises(LoadCancelled, match="cancelled while the device was tested"):
        wgpu_backend.load(tiny, device=adapter, cancelled=cancelled)
