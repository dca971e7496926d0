import json
from functools import partial
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from wgpu_backend.cli import loading
from wgpu_backend.kernels.table import FAMILIES
from wgpu_backend.ml.calibration import host_speed, tuning, tuning_cache
from wgpu_backend.ml.calibration.tuning import Effort

# On a software device it is the kernels of this family that leave a choice.
needs_tiles = pytest.mark.skipif(
    "rasteriser" not in {family.name for family in FAMILIES}, reason="needs the family rasteriser"
)
TINY = Effort(rows=32, values=256, columns=(1,), rounds=1)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Products of a moment's time, and a cache of the test's own."""
    measure = tuning.tune
    monkeypatch.setattr(
        tuning, "tune", lambda ex, formats, effort, progress: measure(ex, formats, TINY, progress)
    )
    path = tmp_path / "tuned.json"
    monkeypatch.setattr(tuning_cache, "remember", partial(tuning_cache.remember, cache=path))
    monkeypatch.setattr(host_speed, "measure_speed", lambda info: 1e9 + len(info.id))
    hosts = partial(host_speed.remember_speed, cache=tmp_path / "hosts.json")
    monkeypatch.setattr(host_speed, "remember_speed", hosts)
    return path


@pytest.mark.gpu
@pytest.mark.slow
@needs_tiles
def test_a_table_says_what_is_chosen(cli: Cli, adapter: str, tiny: Path) -> None:
    done = cli("tune", "-d", adapter, "--only", "q4_0")
    assert done.code == 0
    lines = done.out.splitlines()
    assert lines[1].split() == [
        *("kernel", "format", "columns", "rows", "×", "columns", "threads", "time", "GB/s"),
    ]
    rows = [line for line in lines if " q4_0 " in line]
    assert len(rows) >= 2
    assert sum(line.endswith("chosen") for line in rows) == len({r.split()[0] for r in rows})
    assert f"stored in {tiny}" in done.err.replace("\n", "")
    assert "cpu: reads 1.0 GB/s of weights on the CPU" in done.err
    kept = json.loads((tiny.parent / "hosts.json").read_text())
    assert min(kept.values()) == 1e9 + len("cpu")


@pytest.mark.gpu
@pytest.mark.slow
@needs_tiles
def test_json_has_every_candidate(cli: Cli, adapter: str, tiny: Path) -> None:
    done = cli("tune", "-d", adapter, "--only", "q4_0", "--json")
    found = json.loads(done.out)
    rounding = found["rounding"]
    # A device that is software always rounds.
    software = loading.choose_device(adapter)[1].kind == "software"
    assert (rounding == []) == software
    assert {r["key"].split(" ")[0] for r in rounding} <= {"q4_0"}
    rows = found["tiles"]
    assert {r["key"].split(" ")[1] for r in rows} == {"q4_0"}
    assert all(r["seconds"] > 0 and r["tile"]["threads"] for r in rows)
    kept = json.loads(tiny.read_text())
    (of_device,) = kept.values()
    chosen = {r["key"]: [*r["tile"].values()] for r in rows if r["chosen"]}
    answers = {
        name: sorted(r["key"] for r in rounding if r["chosen"] is rounds)
        for name, rounds in (("rounded", True), ("unrounded", False))
    }
    assert of_device == {**chosen, **answers}


@pytest.mark.parametrize(
    ("formats", "message"),
    [("q9", "--only: dtype 'q9'"), ("i32", "--only: i32, needs some of q4_0")],
)
def test_formats_that_are_none_are_a_usage_error(cli: Cli, formats: str, message: str) -> None:
    done = cli("tune", "--only", formats)
    assert done.code == 2
    assert message in done.err


@pytest.mark.gpu
@needs_tiles
def test_what_was_measured_is_shown_even_if_it_cannot_be_kept(
    cli: Cli, adapter: str, tiny: Path
) -> None:
    tiny.mkdir()
    done = cli("tune", "-d", adapter, "--only", "q4_0")
    assert done.code == 1
    assert "chosen" in done.out
    assert done.err.splitlines()[-1].startswith(f"wgpu-backend: {tiny}: ")
