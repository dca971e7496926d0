"""`wgpu-backend op`: its reports on ops and shaders, good and broken ones."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.implementations import by_compiler
from tests.patience import PATIENCE
from wgpu_backend.device.wgsl import loop_counters
from wgpu_backend.ops.op import REGISTRY

PASSED, FAILED, USAGE = 0, 1, 2
ROOT = Path(__file__).parent.parent.parent

SHADER = """\
// @import formats/load/f32 as x
// @import formats/store/f32 as y
// @import lib/index/grid
const WG: u32 = 64u;
struct Params { size: u32, x_offset: u32 }
@group(0) @binding(0) var<uniform> params: Params;

@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG) * 4u;
    if i < params.size {
        y_store4(i, 3.0 * x_load4(params.x_offset + i));
    }
}
"""
OPS = """\
from pathlib import Path

from wgpu_backend import op
from wgpu_backend.dtypes import F32
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.testing import trial


@op(shader=Path(__file__).with_name("thrice.wgsl"), dense=("x",))
def thrice(x: Node) -> Launch:
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    return Launch(out, {"x": x}, threads=-(-out.size // 4), params={"size": out.size})


@thrice.reference
def numpy_thrice(x):
    return 3 * x


trial(thrice, "n", dtypes=(F32,))
"""


@pytest.fixture
def file(tmp_path: Path, adapter: str) -> Path:
    """A file with an op that is right, its shader beside it."""
    (tmp_path / "thrice.wgsl").write_text(SHADER, encoding="utf-8")
    path = tmp_path / "thrice.py"
    path.write_text(OPS, encoding="utf-8")
    return path


def change(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_an_op_that_is_right_passes_and_is_forgotten(cli: Cli, file: Path) -> None:
    done = cli("op", "check", str(file))
    assert (done.code, done.err) == (PASSED, "")
    rows = [line.split() for line in done.out.splitlines() if line.startswith("thrice")]
    assert [row[:6] for row in rows] == [
        ["thrice", profile, "f32", "43", "0", "0"] for profile in ("full", "baseline")
    ]
    assert "thrice" not in REGISTRY


def test_an_op_that_computes_something_else_fails_with_the_place(cli: Cli, file: Path) -> None:
    change(file, "3 * x", "3.001 * x")
    done = cli("op", "check", str(file))
    assert done.code == FAILED
    assert "thrice of (1,) on" in done.err
    assert "NMSE 1.11e-07, at most 1e-07" in done.err
    assert re.search(r"… and \d+ more", done.err)


def test_a_shader_that_does_not_compile_fails_once_with_line_and_caret(
    cli: Cli, file: Path
) -> None:
    change(file.with_name("thrice.wgsl"), "x_load4", "x_laod4")
    done = cli("op", "check", str(file))
    assert done.code == FAILED
    lines = done.err.splitlines()
    unknown = by_compiler("no definition in scope", "unresolved call target 'x_laod4'")
    assert lines[0].startswith(f"{file.with_name('thrice.wgsl')}:12: {unknown}")
    assert lines[1].startswith("12 │ ")
    assert lines[1][lines[2].index("^") :].startswith("x_laod4")
    assert lines[3:] == ["(86 cases)"]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "return 3 * x",
            "return 3 * z",
            "its reference fails, NameError: name 'z' is not defined (",
        ),
        ("return 3 * x", "return x[:0]", "thrice: its reference gives shape (0,), needs (1,)"),
        ("    return Launch(", "    Launch(", "thrice: it returns None, needs a Launch"),
        ("threads=-(-out.size // 4)", "threads=[4]", "the op fails, TypeError: "),
        ("3 * x", "3 * x +", "thrice.py:18: invalid syntax\n18 │     return 3 * x +"),
        ("trial(thrice", "trial(twice", "thrice.py:21: NameError: name 'twice' is not defined"),
    ],
)
def test_a_slip_in_the_python_is_told_shortly(
    cli: Cli, file: Path, old: str, new: str, said: str
) -> None:
    change(file, old, new)
    done = cli("op", "check", str(file))
    assert done.code == FAILED
    assert said in done.err
    assert len(done.err) < 2000


def test_without_a_reference_nothing_is_compared(cli: Cli, file: Path) -> None:
    change(file, "@thrice.reference\n", "")
    done = cli("op", "check", str(file))
    assert done.code == PASSED
    assert "it has no NumPy reference, so its values were compared with nothing" in done.err
    assert [line.split()[-1] for line in done.out.splitlines()[2:]] == ["–", "–"]


def test_options_of_a_trial_that_the_op_does_not_take_are_told_at_their_line(
    cli: Cli, file: Path
) -> None:
    change(file, '"n", dtypes', '"n", options={"alpha": 1}, dtypes')
    done = cli("op", "check", str(file))
    assert done.code == FAILED
    assert "thrice.py:21: BackendError: trial of thrice: options are ['alpha'], the op" in done.err


def test_an_op_that_needs_a_trial_does_not_keep_the_others_from_being_checked(
    cli: Cli, file: Path
) -> None:
    text = file.read_text(encoding="utf-8")
    scaled = text[text.index("@op(") : text.index("@thrice.reference")]
    scaled = scaled.replace("thrice(x: Node)", "a_scaled(x: Node, *, by: float)")
    text = text.replace("@op(", f"{scaled}\n\n@op(", 1)
    file.write_text(text, encoding="utf-8")
    done = cli("op", "check", str(file))
    assert done.code == FAILED
    assert "op a_scaled: it needs by, so register a trial" in done.err
    assert [line.split()[:2] for line in done.out.splitlines() if "thrice" in line] == [
        ["thrice", "full"], ["thrice", "baseline"],
    ]  # fmt: skip


def test_a_kernel_that_forgets_the_offset_gets_a_hint(cli: Cli, file: Path) -> None:
    change(file.with_name("thrice.wgsl"), "params.x_offset + i", "i")
    change(file, ', dense=("x",)', "")
    change(file, '"n"', '"1"')  # whose strides do not matter
    done = cli("op", "check", str(file))
    assert done.code == FAILED
    assert "thrice: only operands that begin after the start of their buffer fail" in done.err


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_a_person_sees_how_far_the_check_is(file: Path) -> None:
    from tests.cli.terminal import Terminal

    with Terminal("op", "check", str(file)) as terminal:
        terminal.expect("worst NMSE")
        assert "Checking thrice" in terminal.text


def test_a_write_outside_is_found(cli: Cli, file: Path) -> None:
    change(file.with_name("thrice.wgsl"), "if i <", "if i <=")
    done = cli("op", "check", str(file))
    assert done.code == FAILED
    assert "it writes outside the result: to index 16 of y, which has 16 values" in done.err


@pytest.mark.slow
def test_a_loop_that_does_not_end_is_found_once_with_its_line(
    cli: Cli, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop_counters, "MAX_ITERATIONS", 1 << 12)
    change(file.with_name("thrice.wgsl"), "    if i <", "    while i < 99999u { }\n    if i <")
    done = cli("op", "check", str(file))
    assert done.code == FAILED
    lines = done.err.splitlines()
    assert lines[0] == f"{file.with_name('thrice.wgsl')}:11: loop ran more than 4096 iterations"
    assert lines[1:] == ["11 │     while i < 99999u { }", "         ^", "(86 cases)"]


def test_a_shader_alone_shows_its_interface_and_compiles_with_each_choice(
    cli: Cli, file: Path
) -> None:
    done = cli("op", "check", str(file.with_name("thrice.wgsl")))
    assert (done.code, done.err) == (PASSED, "")
    assert "binding 1   y (read_write)" in done.out
    assert "Params      x_offset: u32 at byte 4" in done.out
    compiled = [line for line in done.out.splitlines() if line.endswith("compiles   compiles")]
    assert [line.partition("   ")[0] for line in compiled] == [
        "defaults", "x = formats/load/f16", "x = formats/load/bf16",
        "y = formats/store/f16", "y = formats/store/bf16",
    ]  # fmt: skip


def test_a_shader_alone_that_does_not_compile_fails(cli: Cli, file: Path) -> None:
    change(file.with_name("thrice.wgsl"), "3.0 *", "3.0 */")
    done = cli("op", "check", str(file.with_name("thrice.wgsl")))
    assert done.code == FAILED
    assert "FAILS" in done.out
    assert f"{file.with_name('thrice.wgsl')}:12: " in done.err


@pytest.mark.parametrize("command", ["check", "bench"])
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("none.py", "none.py: no such file"),
        (".", "a directory"),
        ("notes.txt", "the name ends in '.txt', needs .py"),
    ],
)
def test_what_is_no_file_of_ops_is_a_usage_error(
    cli: Cli, tmp_path: Path, command: str, name: str, said: str
) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    done = cli("op", command, str(tmp_path / name))
    assert (done.code, done.out) == (USAGE, "")
    assert said in done.err


def test_a_file_without_ops_says_so(cli: Cli, tmp_path: Path, adapter: str) -> None:
    path = tmp_path / "empty.py"
    path.write_text("x = 1\n")
    done = cli("op", "check", str(path))
    assert done.code == FAILED
    assert "empty.py: it registers no op, needs a function under @op" in done.err


def test_bench_gives_the_share_of_a_copy(cli: Cli, file: Path) -> None:
    done = cli("op", "bench", str(file), "--size", "1", "--json")
    assert (done.code, done.err) == (PASSED, "")
    [row] = json.loads(done.out)
    assert (row["op"], row["shapes"], row["nbytes"]) == ("thrice", [[1 << 18]], 2 << 20)
    assert row["ratio"] == pytest.approx(row["copy_seconds"] / row["seconds"])


@pytest.mark.slow
def test_the_example_passes(cli: Cli, adapter: str) -> None:
    done = cli("op", "check", str(ROOT / "examples" / "custom_op.py"))
    assert (done.code, done.err) == (PASSED, "")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="sends SIGINT")
def test_watch_checks_again_when_the_shader_changes_and_ends_on_ctrl_c(file: Path) -> None:
    words = [sys.executable, "-m", "wgpu_backend", "op", "check", str(file), "--watch"]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", env=environment
    ) as process:
        assert process.stdout is not None

        def verdict() -> str:
            """The next line that ends a check."""
            return next(line for line in process.stdout if "waiting" in line)

        assert "passed, waiting" in verdict()
        change(file.with_name("thrice.wgsl"), "3.0 *", "4.0 *")
        assert "FAILED, waiting" in verdict()
        change(file, "3 * x", "4 * x")
        assert "passed, waiting" in verdict()
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=PATIENCE) == 0
