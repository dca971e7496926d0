"""Report in some minutes what a machine with a GPU computes, and how fast: one command, one page.

::

    python -m benchmarks.gpu_report NAME                        writes benchmarks/results/NAME.md
    python -m benchmarks.gpu_report NAME --seconds 600 --device nvidia --keep /tmp/models
    python -m benchmarks.gpu_report NAME --sizes tiny --prompts 16,32 --tokens 4    a trial

In order, until the time is up: the list of devices; the self-test, by the first use of each
implementation of WebGPU that is installed; the tests of the kernels for GPUs; then ``bench`` of
models in the sizes of Llama 3.1 8B and 3.2 1B by each implementation, and by ``llama-bench`` where
it is on the path, with NVIDIA's second generation of cooperative matrices and without. The page is
written anew after each part, so that a run that is ended leaves what it has. No command takes more
than a share of the time, and what did not fit is listed. Weights are random, of one drawn piece
that repeats: zeros would cost less power.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gpu_costs.models import ALIGNMENT, SIZES, Sizes, Weight, sparse_gguf, weights
from wgpu_backend.dtypes import named
from wgpu_backend.files.quantize import quantize_rows

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
# The order in which models are measured: what matters most first.
MODELS = (("8b", "q4_0"), ("1b", "q4_0"), ("8b", "q4_k_m"), ("8b", "f16"), ("1b", "q4_k_m"))
TESTS = (
    "test_matrix.py",
    "test_matrix_by_expert.py",
    "test_pairs.py",
    "test_attention_matrix.py",
    "test_attention_tiled.py",
    "test_conv_matrix.py",
)
# Of the time, at most: for all tests, for a first use, and for a model by one engine.
TESTS_SHARE, SELF_TEST_SHARE, MODEL_SHARE = 0.25, 0.15, 0.25
PIECE = 1 << 20  # values of a weight's drawn piece
LEAST_SECONDS = 5.0  # nothing begins with less time than this


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement.

    Parameters
    ----------
    model, engine, test : str
    speed, deviation : float
        Tokens a second.
    """

    model: str
    engine: str
    test: str
    speed: float
    deviation: float


@dataclass(slots=True)
class Report:
    """What was found, and the time that is left.

    Parameters
    ----------
    end : float
        When time is up, by `time.monotonic`.
    seconds : float
        The time that there was at first.
    """

    end: float
    seconds: float = 360.0
    devices: str = ""
    tests: list[str] = field(default_factory=list[str])
    rows: list[Row] = field(default_factory=list[Row])
    left_out: list[str] = field(default_factory=list[str])

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.end - time.monotonic()

    def run(
        self, what: str, command: Sequence[str], more: Mapping[str, str], most: float | None = None
    ) -> subprocess.CompletedProcess[str] | None:
        """Run a command in the time that is left; if it fails or does not fit, note why."""
        seconds = self.left if most is None else min(self.left, most)
        if seconds < LEAST_SECONDS:
            self.left_out.append(f"{what}: no time was left")
            return None
        try:
            done = run_command(command, more, seconds)
        except subprocess.TimeoutExpired:
            self.left_out.append(f"{what}: not done after {seconds:.0f} s")
            return None
        except OSError as error:
            self.left_out.append(f"{what}: {error}")
            return None
        if done.returncode:
            lines = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
            self.left_out.append(f"{what}: ended with {done.returncode}, {lines[-1][:200]}")
        return done


def run_command(
    command: Sequence[str], more: Mapping[str, str], seconds: float
) -> subprocess.CompletedProcess[str]:
    """Run a command; end it and all processes it started when time is up.

    Raises
    ------
    TimeoutExpired
        It took longer than `seconds`.
    OSError
        It cannot be started.
    """
    own_group = os.name == "posix"
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **more},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=own_group,
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except BaseException:
            # Workers of tests hold the pipes: waiting for those would take as long as they do.
            if own_group:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            raise
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def random_gguf(path: Path, sizes: Sizes, format: str, end: float = math.inf) -> Path:
    """Write a model's file with random weights, see `sparse_gguf`.

    Raises
    ------
    TimeoutError
        It is not written at `end`, by `time.monotonic`; there is no file then.
    """
    sparse_gguf(path, sizes, format, tokenizer="gpt2")
    rng = np.random.default_rng(0)
    pieces: dict[str, bytes] = {}
    each = list(weights(sizes, format))
    start = path.stat().st_size - ALIGNMENT - sum(_aligned(w) for w in each)
    with path.open("r+b") as file:
        for weight in each:
            if time.monotonic() > end:
                path.unlink()
                raise TimeoutError(f"{path.name}: not written in time")
            piece = pieces.setdefault(weight.dtype, _piece(rng, weight.dtype))
            file.seek(start)
            start += _aligned(weight)
            whole, rest = divmod(weight.nbytes, len(piece))
            for _ in range(whole):
                file.write(piece)
            file.write(piece[:rest])
    return path


def _aligned(weight: Weight) -> int:
    return -(-weight.nbytes // ALIGNMENT) * ALIGNMENT


def _piece(rng: np.random.Generator, name: str) -> bytes:
    """Draw values of a model's size, and write them in a format."""
    values = rng.standard_normal((PIECE // 256, 256), np.float32) / np.float32(64)
    if name in ("f32", "f16"):
        return values.astype(name.replace("f32", "f4").replace("f16", "f2")).tobytes()
    return quantize_rows(values, named(name))


def engines() -> dict[str, tuple[Sequence[str], dict[str, str]]]:
    """Return the engines of this machine: the command of each up to the model, and variables."""
    ours = [sys.executable, "-m", "wgpu_backend", "bench"]
    found: dict[str, tuple[Sequence[str], dict[str, str]]] = {
        name: (ours, {"WGPU_BACKEND_IMPLEMENTATION": name})
        for name in ("dawn", "wgpu")
        if name == "wgpu" or find_spec("wgpudawn")
    }
    peer = shutil.which("llama-bench")
    if peer:
        found["llama.cpp, KHR"] = [peer, "-o", "json"], {"GGML_VK_DISABLE_COOPMAT2": "1"}
        found["llama.cpp"] = [peer, "-o", "json"], {}
    return found


def missing() -> list[str]:
    """Return a line for each engine that this machine lacks."""
    lines: list[str] = []
    if not find_spec("wgpudawn"):
        lines.append('dawn: wgpudawn is not installed, needs pip install -e ".[dawn]"')
    if not shutil.which("llama-bench"):
        lines.append("llama.cpp: llama-bench is not on the path, Debian has it in llama.cpp")
    if not find_spec("pytest") or not find_spec("xdist"):
        lines.append('tests: pytest or xdist is not installed, needs pip install -e ".[dev]"')
    return lines


def measured(report: Report, options: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Measure every model by every engine, as long as there is time."""
    for size, format in MODELS if options.sizes is None else options.sizes:
        name = f"{size} {format}"
        if report.left < LEAST_SECONDS:
            report.left_out.append(f"{name}: no time was left")
            continue
        path = folder / f"{size}-{format}.gguf"
        try:
            if not path.exists():
                random_gguf(path, SIZES[size], format, report.end)
        # Its time was up, or the disk is full.
        except OSError as error:
            report.left_out.append(f"{name}: {error}")
            continue
        for engine, (command, more) in engines().items():
            yield from _by_one(report, options, (name, engine), [*command, "-m", str(path)], more)
        if options.keep is None:
            path.unlink()


def _by_one(
    report: Report,
    options: argparse.Namespace,
    names: tuple[str, str],
    command: Sequence[str],
    more: Mapping[str, str],
) -> Iterator[Row]:
    """Measure a model by one engine."""
    is_peer = names[1].startswith("llama")
    words = ["-p", options.prompts, "-n", str(options.tokens), "-r", str(options.repetitions)]
    words += (
        [] if is_peer else ["--json", *(["--device", options.device] if options.device else [])]
    )
    most = MODEL_SHARE * report.seconds
    what = " by ".join(names)
    done = report.run(what, [*command, *words], more, most)
    if done is None or done.returncode:
        return
    for found in _read_list(report, what, done.stdout):
        try:
            row = Row(*names, *(_of_peer(found) if is_peer else _of_ours(found)))
        # Another version of the program: the other parts still count.
        except (KeyError, TypeError, ValueError) as error:
            report.left_out.append(f"{what}: a result without {error}: {str(found)[:200]}")
        else:
            yield row


def _read_list(report: Report, what: str, text: str) -> list[Mapping[str, Any]]:
    """Return the list in JSON at the end of an output; if there is none, note that."""
    try:
        return json.loads(text[text.index("[") :])
    except ValueError:
        report.left_out.append(f"{what}: printed no list in JSON but {_last(text)[:200]!r}")
        return []


def _of_ours(found: Mapping[str, Any]) -> tuple[str, float, float]:
    """Return the test of a result of ``bench --json``, its mean and deviation."""
    return str(found["test"]), float(found["tokens_per_second"]), float(found["stddev"])


def _of_peer(found: Mapping[str, Any]) -> tuple[str, float, float]:
    """Return the test of a result of ``llama-bench -o json``, its mean and deviation."""
    test = f"pp{found['n_prompt']}" if found["n_prompt"] else f"tg{found['n_gen']}"
    return test, float(found["avg_ts"]), float(found["stddev_ts"])


def tested(report: Report, options: argparse.Namespace, end: float) -> Iterator[str]:
    """Use each implementation once, which runs the self-test, and run tests of kernels."""
    cli = [sys.executable, "-m", "wgpu_backend"]
    chosen = ["--device", options.device] if options.device else []
    for name, (_, more) in engines().items():
        if name.startswith("llama"):
            continue
        command = [*cli, "bench", "story", *chosen, "-p", "16", "-n", "4", "-r", "1"]
        before = time.monotonic()
        done = report.run(f"self-test, {name}", command, more, SELF_TEST_SHARE * report.seconds)
        if done is not None and not done.returncode:
            took = time.monotonic() - before
            yield f"first use by {name}, self-test included: {took:.0f} s"
    for name in TESTS:
        yield from _by_tests(report, name, end)


def _by_tests(report: Report, name: str, end: float) -> Iterator[str]:
    """Run a file of tests by each implementation, until `end` at the latest."""
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(os.cpu_count() or 1)]
    for engine, (_, more) in engines().items():
        if not engine.startswith("llama"):
            command = [sys.executable, *words, f"tests/kernels/gpu/{name}"]
            done = report.run(f"{name}, {engine}", command, more, end - time.monotonic())
            if done is not None:
                yield f"{name}, {engine}: {_last(done.stdout)}"


def _last(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def markdown(name: str, report: Report) -> str:
    """Format the report as a page; ratios are to llama.cpp with KHR's cooperative matrices."""
    base = {(r.model, r.test): r.speed for r in report.rows if r.engine == "llama.cpp, KHR"}
    lines = [f"# {name}", "", "By `python -m benchmarks.gpu_report`.", ""]
    lines += ["```", report.devices.strip() or "no list of devices", "```", ""]
    lines += [f"- {line}" for line in report.tests]
    lines += [
        "",
        "Tokens a second, mean ± deviation. `pp512` is a prompt of 512 tokens, `tg128` 128 tokens",
        "one by one. Weights are random, in the sizes of Llama 3.1 8B and 3.2 1B.",
        "",
        "| model | test | engine | tokens a second | of llama.cpp with KHR's matrices |",
        "|---|---|---|---:|---:|",
    ]
    for row in report.rows:
        peer = base.get((row.model, row.test))
        ratio = f"{row.speed / peer:.2f}" if peer else "–"
        speed = f"{row.speed:,.1f} ± {row.deviation:,.1f}"
        lines.append(f"| {row.model} | {row.test} | {row.engine} | {speed} | {ratio} |")
    if report.left_out:
        lines += ["", "Left out:", "", *(f"- {line}" for line in report.left_out)]
    return "\n".join(lines) + "\n"


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the options of the command."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("gpu_report", description=__doc__, formatter_class=formatter)
    parser.add_argument("name", help="of the page: letters, digits, dots and dashes")
    parser.add_argument("--seconds", type=float, default=360.0)
    parser.add_argument("--device", default="", help="as Devices().find understands it")
    parser.add_argument("--sizes", type=_sizes, help="SIZE or SIZE:FORMAT, separated by commas")
    parser.add_argument("--prompts", default="64,512,4096")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="for models, to use again")
    parser.add_argument("--out", type=Path, default=RESULTS, metavar="FOLDER")
    parser.add_argument("--no-tests", action="store_true")
    options = parser.parse_args(words)
    if not options.name.replace("-", "").replace(".", "").isalnum():
        parser.error(f"name: {options.name!r}, needs letters, digits, dots and dashes")
    return options


def _sizes(text: str) -> list[tuple[str, str]]:
    parts = (word.partition(":") for word in text.split(","))
    found = [(size, format or "q4_0") for size, _, format in parts]
    strange = [size for size, _ in found if size not in SIZES]
    if strange:
        raise argparse.ArgumentTypeError(f"{strange[0]!r}, needs some of {', '.join(SIZES)}")
    return found


def main(words: Sequence[str] | None = None) -> int:
    """Test, measure and write the page; return 1 if nothing was measured."""
    options = arguments(words)
    report = Report(time.monotonic() + options.seconds, options.seconds)
    report.left_out += missing()
    done = report.run("devices", [sys.executable, "-m", "wgpu_backend", "devices"], {})
    report.devices = done.stdout if done is not None else ""
    _write(report, options)
    if not options.no_tests:
        end = time.monotonic() + TESTS_SHARE * options.seconds
        for line in tested(report, options, end):
            report.tests.append(line)
            _write(report, options)
    with ExitStack() as stack:
        folder = options.keep or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        for row in measured(report, options, folder):
            print(row, file=sys.stderr, flush=True)
            report.rows.append(row)
            _write(report, options)
    print(_write(report, options))
    return int(not report.rows)


def _write(report: Report, options: argparse.Namespace) -> str:
    """Write the page of what was found so far, and return it."""
    page = markdown(options.name, report)
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / f"{options.name}.md").write_text(page, encoding="utf-8")
    return page


if __name__ == "__main__":
    sys.exit(main())
