"""Every architecture against other programs, in every way of asking, as a table.

    python -m tests.zoo [NAMES] [--models FOLDER] [--make PYTHON] [--device DEVICE]
        [--devices DEVICE,DEVICE] [--host-memory] [--figures FILE.jsonl] [--write FILE.md]

The models are the tiny random ones of ``../shared/tools/tiny_models.py``, each beside the logits of
llama.cpp and of transformers, or the last states where it is an encoder; those read whole texts
only, so other ways of asking show a dash. A model's error is the smaller of its two, as each of
them differs from the papers somewhere. With `--make` those that are not in the folder are made, by
a Python that has what the tool's header asks for; without they are left out, and said to be.
`--figures` keeps what was found, model by model, and a run that was broken off goes on behind it.
The last column is the best device's with no more than every one has, whatever the others ran on.
Figures are NMSE (sum of squared differences by sum of squares); one in red missed its limit.

With `--devices` layers are spread evenly over several devices, and figures compare them with the
last of these devices alone. The last column is then the number of tokens of a greedy text that
differ; steps are submitted before the token of the one before was read. With `--host-memory` all
layers and caches are in the host's memory, where the device reads them, and figures compare that
with the device alone.

After a shift no other program is asked, but the model itself, see `tests/models/shifting.py`. A
dash: keys of learned positions, chunks and states cannot move.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.models.llama_cpp import follow_llama_cpp
from tests.models.related import SOURCE
from tests.models.running import Running, running
from tests.models.shifting import shifted_error
from tests.placing import spread
from wgpu_backend.engine.runner import Head, Work
from wgpu_backend.engine.step_sampler import StepSampler
from wgpu_backend.errors import BackendError
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.opening import choose_device
from wgpu_backend.ml.placement import EMBEDDING, Placement
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.nn.model import architectures
from wgpu_backend.ops.sampling.host import SamplingOptions
from wgpu_backend.testing import nmse

TOOL = Path(__file__).parents[2] / "shared" / "tools" / "tiny_models.py"
FOLDER = Path(tempfile.gettempdir()) / "wgpu-backend-zoo"
LIMIT = 1e-9
# Tables of ggml and the arithmetic of both programs bound what can be asked of some.
LOOSE = {"bitnet": 1e-6, "gemma3n": 1e-5}
POSITIONS = 192
LONG, SHIFTED = 100, (21, 60)  # tokens that are shifted, and what goes: no whole block
GREEDY = 12  # tokens of a text
STEP = 7  # tokens of a chunk, neither a power of two nor a divisor of the prompt


@dataclass(frozen=True, slots=True)
class Case:
    """A model, what it is asked, and what others answer."""

    name: str
    path: Path
    tokens: list[int]
    wanted: list[np.ndarray]

    @classmethod
    def of(cls, folder: Path, name: str) -> Case:
        text = (folder / f"{name}.tokens").read_text(encoding="ascii")
        others = [folder / f"{name}.{program}.npy" for program in ("llamacpp", "transformers")]
        wanted = [np.load(path) for path in others if path.exists()]
        return cls(name, folder / f"{name}.gguf", [int(t) for t in text.split(",")], wanted)

    @property
    def limit(self) -> float:
        return LOOSE.get(self.name, LIMIT)

    def error(self, got: np.ndarray, rows: slice = slice(None)) -> float:
        """NMSE of some rows of the answer."""
        return min(nmse(got, wanted[rows]) for wanted in self.wanted)


def exact(model: Running, case: Case) -> float:
    return case.error(model.anew(case.tokens))


def in_chunks(model: Running, case: Case) -> float:
    return case.error(model.anew(case.tokens, STEP))


def by_token(model: Running, case: Case) -> float:
    return case.error(model.anew(case.tokens, 1))


def two_sequences(model: Running, case: Case) -> float:
    """Two prompts in one batch, one of them further on if it may be; the other's are others."""
    if not model.model.causal:
        return case.error(two_texts(model, case))
    first, rest = case.tokens[:STEP], case.tokens[STEP:]
    model.cache.remove(0)
    model.cache.remove(1)
    begun = model.batch({1: case.tokens[::-1], 0: first})[1]
    other = case.tokens[: len(rest) + 1]
    got = np.concatenate([begun, model.batch({0: rest, 2: other})[0]])
    model.cache.remove(1)
    model.cache.remove(2)
    return case.error(got)


def two_texts(model: Running, case: Case) -> np.ndarray:
    """A whole text, in a batch behind another one, longer by a token."""
    model.cache.remove(0)
    model.cache.remove(1)
    found = model.batch({1: [*case.tokens[::-1], case.tokens[0]], 0: case.tokens})[1]
    model.cache.remove(1)
    return found


def beyond_windows(model: Running, case: Case) -> float | None:
    """Rows of tokens that do not see the first one any more."""
    window = model.model.config.metadata.get(
        f"{model.model.config.architecture}.attention.sliding_window", 0
    )
    if not isinstance(window, int) or not 0 < window < len(case.tokens):
        return None
    rows = slice(window, None)
    return case.error(model.anew(case.tokens, STEP)[rows], rows)


def after_copy(model: Running, case: Case) -> float:
    """Half of the prompt of another sequence, then one's own tokens."""
    half = len(case.tokens) // 2
    begun = model.anew(case.tokens[:half])
    model.cache.remove(1)
    model.cache.copy_prefix(0, 1, half)
    model.ask(case.tokens[:STEP])  # the first goes another way
    got = np.concatenate([begun, model.ask(case.tokens[half:], sequence=1)])
    model.cache.remove(1)
    return case.error(got)


def after_cut(model: Running, case: Case) -> float | None:
    """The end of a sequence taken back, and read again."""
    half = len(case.tokens) // 2
    begun = model.anew(case.tokens)
    if not model.cache.can_resume(0, half):
        return None
    model.cache.remove(0, half)
    return case.error(np.concatenate([begun[:half], model.ask(case.tokens[half:])]))


def after_shift(model: Running, case: Case) -> float | None:
    """Tokens behind a sequence that was shifted, and behind one that never had what went."""
    told = [*case.tokens, *case.tokens[::-1], *case.tokens][:LONG]
    return shifted_error(model, told, SHIFTED, case.tokens[:STEP])


Column = Callable[[Running, Case], float | None]
# Of models that are spread over devices, whose single steps are those of the greedy text.
OF_SPREAD = ("whole", "chunks", "two at once", "copied prefix", "shift")
# What an encoder is asked, too.
OF_WHOLE_TEXTS: tuple[Column, ...] = (exact, two_sequences)
COLUMNS: dict[str, Column] = {
    "whole": exact,
    "chunks": in_chunks,
    "tokens": by_token,
    "two at once": two_sequences,
    "beyond window": beyond_windows,
    "cut": after_cut,
    "copied prefix": after_copy,
    "shift": after_shift,
}


def figures(case: Case, executor: Executor, baseline: Executor) -> list[float | None]:
    """A figure for each column, and that of the baseline profile."""
    with running(case.path, executor, POSITIONS) as model:
        found = [asked(column, model, case) for column in COLUMNS.values()]
    with running(case.path, baseline, POSITIONS) as model:
        chunks = asked(in_chunks, model, case) or 0.0
        return [*found, max(exact(model, case), chunks)]


def spread_figures(case: Case, children: Sequence[Executor]) -> list[float | None]:
    """A figure for each column, and the tokens of a greedy text that differ."""
    return compared(case, children[-1], spread(children, case.path))


def far_figures(case: Case, executor: WgpuExecutor) -> list[float | None]:
    """The same of a device whose layers and caches are in the host's memory."""
    with open_gguf(case.path) as file:
        layers = file.config.uint("block_count")
        tied = "output.weight" not in file.tensors
    host = frozenset(range(EMBEDDING, layers))
    placed = Placement((executor.info.id,), (0,) * layers, 0, 0, host, host_caches=True)
    far = executor.as_if(executor.capabilities)
    far.use_host_memory(placed, 0, tied=tied)
    return compared(case, executor, far)


def compared(case: Case, one: Executor, other: Executor) -> list[float | None]:
    """A figure for each column, and the tokens of a greedy text that differ."""
    with running(case.path, one, POSITIONS) as alone:
        wanted = Case(case.name, case.path, case.tokens, [alone.anew(case.tokens)])
        text = greedy_text(alone, case)
    with running(case.path, other, POSITIONS) as model:
        found = [
            asked(column, model, wanted) if name in OF_SPREAD else None
            for name, column in COLUMNS.items()
        ]
        pairs = zip(greedy_text(model, case), text, strict=True)
    return [*found, sum(a != b for a, b in pairs)]


def greedy_text(model: Running, case: Case) -> list[int]:
    """Tokens after the prompt, each step submitted before the former one's token is known."""
    if not model.model.has_logits:
        return []
    runner = model.runner
    model.cache.remove(0)
    runner.read(0, SOURCE)
    vocabulary = model.model.backend.require("token_embd.weight").shape[0]
    sampler = StepSampler(SamplingOptions(temperature=0.0), vocabulary)
    sampler.start(case.tokens)
    head = Head("greedy", sampler.head(model.model, runner.token_slots))
    results, tokens = [runner.prompt(0, case.tokens, head, sampler.inputs())], list[int]()
    sampler.advance()
    for _ in range(GREEDY - 1):
        work = Work(0, [sampler.newest], (0,))
        results.append(runner.run([work], head, sampler.inputs()))
        sampler.advance()
        tokens.append(sampler.token(results.pop(0).wait()))
    return [*tokens, sampler.token(results.pop(0).wait())]


def asked(column: Column, model: Running, case: Case) -> float | None:
    """Figure of a column; None where a model is not asked so."""
    return column(model, case) if model.model.causal or column in OF_WHOLE_TEXTS else None


def names_of(folder: Path, patterns: Sequence[str]) -> list[str]:
    """Models that are there, or that the tool can make."""
    known = [path.stem for path in folder.glob("*.gguf")]
    if TOOL.exists():
        listed = subprocess.run(
            [sys.executable, TOOL, "list"], capture_output=True, text=True, check=True
        ).stdout
        known += [
            line.split()[0] for line in listed.splitlines() if not line.startswith("missing:")
        ]
    wanted = patterns or ("*",)
    return sorted({name for name in known if any(fnmatch(name, p) for p in wanted)})


def ready(folder: Path, names: Sequence[str], maker: str | None) -> Iterator[Case]:
    """Models in the folder, made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        path = folder / f"{name}.gguf"
        if not path.exists() and maker is not None:
            subprocess.run([maker, TOOL, "make", name, path], check=True, stdout=sys.stderr)
        if path.exists():
            yield Case.of(folder, name)


def row(case: Case, cells: Sequence[float | None]) -> list[str]:
    """Figures as text; red where they are above the limit, or no number."""
    bad = [cell is not None and not cell <= case.limit for cell in cells]
    return [f"[red]{t}[/red]" if b else t for t, b in zip(plain(cells), bad, strict=True)]


def plain(cells: Sequence[float | None]) -> list[str]:
    """Figures as text."""
    return ["–" if cell is None else f"{cell:.0e}" for cell in cells]


def kept(path: Path | None) -> dict[str, list[float | None]]:
    """Figures by model that earlier runs have kept."""
    if path is None or not path.exists():
        return {}
    return dict(json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())


def write(path: Path, lines: Sequence[str], missed: Sequence[str]) -> None:
    """Write the table as Markdown."""
    titles = ["model", "architecture", *COLUMNS, "baseline"]
    said = f"not right: {', '.join(missed)}" if missed else "all are right"
    path.write_text(
        "# The zoo\n\nNMSE of logits, or of states where a model is an encoder, by\n"
        f"`tests/zoo.py`, which says what is compared with what. {len(lines)} models, {said}.\n\n"
        f"| {' | '.join(titles)} |\n|{'---|' * len(titles)}\n" + "\n".join(lines) + "\n",
        encoding="utf-8",
    )


def executors(device: str | None) -> tuple[Executor, Executor]:
    """The device as it is, and with no more than every one has; the best one beside NumPy."""
    if device == "cpu":
        full = make_executor("cpu", BackendParams())
    else:
        full = make_executor("wgpu", BackendParams(device, self_test=False))
    adapter = None if device == "cpu" else device
    return full, make_executor("wgpu", BackendParams(adapter, "baseline", self_test=False))


def open_each(names: str) -> list[Executor]:
    """Open the devices of a list, without tests of their kernels."""
    found = map(choose_device, names.split(","))
    return [make_executor(kind, BackendParams(info, self_test=False)) for kind, info in found]


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.zoo", description=__doc__)
    parser.add_argument("names", nargs="*", help="models, with * and ?; all without")
    parser.add_argument("--models", type=Path, default=FOLDER, help="where they are, or go")
    parser.add_argument("--make", metavar="PYTHON", help="Python that makes those not there")
    parser.add_argument("--device", help="cpu for NumPy; the best one by default")
    parser.add_argument("--devices", help="spread layers over these, with commas between them")
    parser.add_argument("--host-memory", action="store_true", help="have layers and caches there")
    parser.add_argument("--figures", type=Path, metavar="FILE", help="keep and read figures there")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the table, as Markdown")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    # As the references of the tool are.
    with pytest.MonkeyPatch.context() as patch:
        follow_llama_cpp(patch)
        return compare(arguments(given))


def compare(options: argparse.Namespace) -> int:
    """Print the table; return whether a model missed its limit."""
    console = Console()
    names = names_of(options.models, options.names)
    cases = list(ready(options.models, names, options.make))
    known = architectures()
    last = "other tokens" if options.devices or options.host_memory else "baseline"
    table = Table("model", "architecture", *COLUMNS, last, title="NMSE of logits or states")
    missed: list[str] = []
    runnable = [case for case in cases if architecture_of(case) in known]
    compute = figure_maker(options)
    known_figures, lines = kept(options.figures), list[str]()
    for case in track(runnable, "models", console=Console(stderr=True)):
        try:
            cells = known_figures.get(case.name) or compute(case)
        except BackendError as error:
            missed.append(case.name)
            table.add_row(case.name, f"[red]{type(error).__name__}: {error}[/red]")
            continue
        if options.figures and case.name not in known_figures:
            with options.figures.open("a", encoding="utf-8") as file:
                file.write(json.dumps([case.name, cells]) + "\n")
        lines.append(" | ".join(["", case.name, architecture_of(case), *plain(cells), ""]).strip())
        table.add_row(case.name, architecture_of(case), *row(case, cells))
        if any(cell is not None and not cell <= case.limit for cell in cells):
            missed.append(case.name)
    console.print(table)
    if options.write:
        write(options.write, lines, missed)
    unknown = [case.name for case in cases if case not in runnable]
    report(console, names, cases, unknown, missed)
    return bool(missed)


def figure_maker(options: argparse.Namespace) -> Callable[[Case], list[float | None]]:
    """What gives the figures of a case, on the devices of the command line."""
    if options.devices:
        children = open_each(options.devices)
        return lambda case: spread_figures(case, children)
    executor, baseline = executors(options.device)
    if options.host_memory:
        baseline.close()
        assert isinstance(executor, WgpuExecutor), "needs an adapter"
        return lambda case: far_figures(case, executor)
    return lambda case: figures(case, executor, baseline)


def architecture_of(case: Case) -> str:
    with open_gguf(case.path) as file:
        return file.config.architecture


def report(
    console: Console,
    names: Sequence[str],
    cases: Sequence[Case],
    unknown: Sequence[str],
    missed: Sequence[str],
) -> None:
    """What was not in the table, and what it says."""
    there = {case.name for case in cases}
    left_out = [name for name in names if name not in there]
    if left_out:
        console.print(f"not made, so left out ({len(left_out)}): {', '.join(left_out)}; see --make")
    if unknown:
        console.print(
            f"of an architecture that is not known ({len(unknown)}): {', '.join(unknown)}"
        )
    ran = len(cases) - len(unknown)
    console.print(
        f"{ran - len(missed)} of {ran} models are right"
        + (f"; {', '.join(missed)} are not" if missed else "")
    )


if __name__ == "__main__":
    sys.exit(main())
