"""Models by the kernels for matrix units beside NumPy in f32, as a table.

    python -m tests.units [NAMES] [--seed S] [--simulate] [--figures FILE.jsonl] [--write FILE.md]

Models are random: those of `tests.models.outlines` and `tests.models.recurrent_cases`. Matrices are
in f16 but for those that converters keep in f32. Both read a prompt of 48 tokens, with a cache in
f16. With `--pipelines` they are those of `tests.images.tiny` that are there, with weights in f16.

Figures are NMSE (sum of squared differences by sum of squares) of logits, of states where a model
is an encoder, or of pictures, and how many positions have another best token. "products",
"experts", "attention" and "convolutions" count dispatches by matrix units, each of which computes.

Rounding may change which experts a router chooses where scores nearly tie; then a position differs
by much, and so do those that see it. "other experts" counts the choices that differ. Those of the
first layer that has some differ by rounding alone, and the largest difference of their scores is
named, as a share of the token's largest. "same experts" is the NMSE beside NumPy with the choices
of the device.

It needs Dawn and an adapter with units; a rasteriser that has them, lavapipe from Mesa 26 on, is
taken for a GPU. `--simulate` takes NumPy with the same rounding instead, and counts nothing.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

import numpy as np

from tests.files.huggingface.folders import safetensors
from tests.images import stages
from tests.images.tiny import FOLDER, Pipeline
from tests.models.outlines import outlines, written
from tests.models.recurrent_cases import recurrent
from tests.models.related import SOURCE
from tests.models.running import running
from wgpu_backend.array.devices import preferring
from wgpu_backend.array.session import Session
from wgpu_backend.device.adapters import Devices
from wgpu_backend.device.device import Device
from wgpu_backend.device.pipelines import Pipeline as Compiled
from wgpu_backend.device.pipelines import Pipelines
from wgpu_backend.device.wgsl.module import Shader
from wgpu_backend.dtypes import F16
from wgpu_backend.engine.runner import Head, Work
from wgpu_backend.errors import BackendError
from wgpu_backend.graph.capabilities import Capabilities, MatrixUnit
from wgpu_backend.images import load
from wgpu_backend.kernels import complete
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.nn.mlp import Routing
from wgpu_backend.ops.op import fusions
from wgpu_backend.testing import nmse

PROMPT = 48
KERNELS = ("matmul_matrix", "matmul_matrix_by_expert", "attention_matrix", "conv_matrix")
TITLES = (
    "model", "products", "experts", "attention", "convolutions", "NMSE", "other best tokens",
    "other experts", "same experts",
)  # fmt: skip
# A device with units of the smallest size, for NumPy.
UNITS = Capabilities(
    subgroups=True,
    f16=True,
    matrix=MatrixUnit(8, 8, 8, 8),
    max_workgroup_nbytes=32 << 10,
    max_workgroup_invocations=1024,
)


@dataclass(frozen=True, slots=True)
class Choice:
    """The experts of a layer.

    Parameters
    ----------
    routing : Routing
    scores : (tokens, experts)
        By which experts are ranked.
    """

    routing: Routing
    scores: np.ndarray

    @property
    def groups(self) -> np.ndarray:
        """(tokens, groups), the scores of groups: the sum of their two best."""
        each = self.scores.reshape(len(self.scores), self.routing.groups, -1)
        return np.sort(each, axis=-1)[..., -2:].sum(-1)

    @property
    def used_groups(self) -> np.ndarray:
        """(tokens, groups_used), the best first."""
        return _best(self.groups, self.routing.groups_used)

    @property
    def ids(self) -> np.ndarray:
        """(tokens, used), the best first."""
        scores, size = self.scores.copy(), self.routing.experts // self.routing.groups
        for row, used in zip(scores, self.used_groups, strict=True):
            row[~np.isin(np.arange(len(row)) // size, used)] = -np.inf
        return _best(scores, self.routing.used)

    def apart(self, other: Choice) -> tuple[int, float]:
        """How many choices differ, and the largest share by which their scores do here."""
        count, gap = _differing(self.scores, self.ids, other.ids)
        # Experts of another group differ by as much as they like; then the groups nearly tie.
        groups, group_gap = _differing(self.groups, self.used_groups, other.used_groups)
        return count, group_gap if groups else gap


def _best(scores: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(-scores, axis=-1, kind="stable")[:, :count].astype("i4")


def _differing(scores: np.ndarray, one: np.ndarray, two: np.ndarray) -> tuple[int, float]:
    """How many indices of `two` are not in `one`, and the largest share by which scores differ."""
    count, gap = 0, 0.0
    for row, a, b in zip(scores, one.tolist(), two.tolist(), strict=True):
        lost, won = sorted({*a} - {*b}), sorted({*b} - {*a})
        if lost:
            count += len(lost)
            gap = max(gap, float((row[lost].max() - row[won].min()) / np.abs(row).max()))
    return count, gap


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of a model.

    Parameters
    ----------
    name : str
    dispatches : tuple of int
        Of each of `KERNELS`.
    error : float
    best : int or None
        Other best tokens; None for states.
    others : int or None
        Other choices of experts; None without experts.
    gap : float
        Largest difference of the scores of choices, as a share of the token's largest score, in the
        first layer where any differ.
    same : float or None
        Error beside NumPy with the same experts, where some differ.
    """

    name: str
    dispatches: tuple[int, ...]
    error: float
    best: int | None = None
    others: int | None = None
    gap: float = 0.0
    same: float | None = None

    def line(self) -> str:
        """Row of the table."""
        others = "–" if self.others is None else str(self.others)
        if self.others:
            others += f", {self.gap:.0e} apart"
        same = "–" if self.same is None else f"{self.same:.1e}"
        best = "–" if self.best is None else str(self.best)
        cells = [self.name, *map(str, self.dispatches), f"{self.error:.1e}", best, others, same]
        return f"| {' | '.join(cells)} |"


class _Given:
    """Scores whose best are known before."""

    def __init__(self, scores: Tensor, ids: np.ndarray) -> None:
        self.scores, self.ids = scores, ids

    def top_k(self, k: int) -> Tensor:
        rows = np.zeros((self.scores.shape[0], k), np.int32)
        rows[: len(self.ids)] = self.ids
        return self.scores.context.from_numpy(rows)


@contextmanager
def routers(seen: list[tuple[Routing, Tensor]], given: Sequence[np.ndarray] = ()) -> Iterator[None]:
    """Note the scores of every router that is traced; `given` are choices to make, by layer."""
    masked = Routing._mask_groups

    def noted(routing: Routing, ranked: Tensor) -> Tensor | _Given:
        seen.append((routing, ranked))
        return _Given(ranked, given[len(seen) - 1]) if given else masked(routing, ranked)

    Routing._mask_groups = noted
    try:
        yield
    finally:
        Routing._mask_groups = masked


def asked(
    path: Path,
    executor: Executor,
    tokens: Sequence[int],
    given: Sequence[np.ndarray] = (),
    *,
    alone: bool = False,
) -> tuple[np.ndarray, list[Choice], bool]:
    """Logits or states of a prompt, its experts, unless `alone`, and whether it has logits."""
    seen: list[tuple[Routing, Tensor]] = []
    routings: list[Routing] = []
    with running(path, executor, dtype=F16) as model, routers(seen, given):

        def outputs(_, hidden: Tensor) -> list[Tensor]:
            routings[:] = [] if alone else [routing for routing, _ in seen]
            scores = [] if alone else [each for _, each in seen]
            seen.clear()
            return [model.model.logits(hidden) if model.model.has_logits else hidden, *scores]

        model.runner.read(0, SOURCE)
        work = Work(0, tokens, range(len(tokens)))
        found = model.runner.run([work], Head("units", outputs), {}).wait()
        has_logits = model.model.has_logits
    rows, *scores = (np.asarray(each)[: len(tokens)] for each in found)
    return rows, [Choice(*each) for each in zip(routings, scores, strict=True)], has_logits


def compared(path: Path, executor: Executor, tokens: Sequence[int], counted: Counter[str]) -> Row:
    """Figures of a model."""
    counted.clear()
    got, _, has_logits = asked(path, executor, tokens, alone=True)
    dispatches = tuple(counted[name] for name in KERNELS)
    wanted, exact, _ = asked(path, NumpyExecutor(), tokens)
    best = int((got.argmax(-1) != wanted.argmax(-1)).sum()) if has_logits else None
    row = Row(path.stem, dispatches, nmse(got, wanted), best)
    if not exact:
        return row
    again, chosen, _ = asked(path, executor, tokens)
    each = [one.apart(other) for one, other in zip(exact, chosen, strict=True)]
    row = replace(row, others=sum(count for count, _ in each))
    if not row.others:
        return row
    fixed, *_ = asked(path, NumpyExecutor(), tokens, [choice.ids for choice in chosen])
    return replace(row, gap=next(gap for count, gap in each if count), same=nmse(again, fixed))


def halved(path: Path) -> bytes:
    """Return a safetensors file with its tensors in f16."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    kinds = {"F32": "f4", "F16": "f2", "I64": "i8"}
    tensors: dict[str, np.ndarray] = {}
    for name, entry in header.items():
        if name != "__metadata__":
            first, last = entry["data_offsets"]
            values = np.frombuffer(data[start + first : start + last], kinds[entry["dtype"]])
            narrow = values.astype("f2") if values.dtype == np.float32 else values
            tensors[name] = narrow.reshape(entry["shape"])
    return safetensors(tensors)


def pictured(path: Path, executor: Executor, counted: Counter[str]) -> Row:
    """Figures of a pipeline whose weights are f16."""
    tiny = Pipeline(path)
    with tempfile.TemporaryDirectory() as folder:
        narrow = Path(shutil.copytree(path, Path(folder) / path.name))
        for file in narrow.glob("*/*.safetensors"):
            file.write_bytes(halved(file))
        made: list[np.ndarray] = []
        for each in (executor, NumpyExecutor()):
            counted.clear()
            with preferring(Session(each)), load(narrow) as pipeline:
                made.append(pipeline.generate(**stages.arguments(pipeline, tiny)).images)
            if each is executor:
                dispatches = tuple(counted[name] for name in KERNELS)
    return Row(path.name, dispatches, nmse(*made))


def simulated() -> NumpyExecutor:
    """NumPy with the rounding of a device with units."""
    executor = NumpyExecutor(complete(UNITS))
    executor.rules = fusions(exact=False)
    return executor


def with_units() -> WgpuExecutor:
    """An executor with matrix units and the rules that round for them."""
    best = Devices()[0]
    if best.matrix is None or "dawn" not in best.implementations:
        raise SystemExit(f"{best.name} has no matrix units, or Dawn does not open it")
    plain = WgpuExecutor(Device.open(best, implementation="dawn"))
    known = replace(
        plain.device.capabilities, software=False, lanes=0, fused=False, integer_dot=False
    )
    executor = plain.as_if(complete(known))
    executor.rules = fusions(exact=False)
    return executor


@contextmanager
def counting(counted: Counter[str]) -> Iterator[None]:
    """Count the dispatches that are recorded, by the name of their shader."""
    requested = Pipelines.get

    def get(pipelines: Pipelines, shader: Shader) -> Compiled:
        counted[shader.label.split("(")[0].split("/")[-1]] += 1
        return requested(pipelines, shader)

    Pipelines.get = get
    try:
        yield
    finally:
        Pipelines.get = requested


def writers() -> dict[str, Callable[[Path], object]]:
    """What writes each model's file, by name."""
    found: dict[str, Callable[[Path], object]] = {}
    for name, outline in outlines().items():
        found[name] = lambda path, outline=outline: written(path, outline, narrow=True)
    for name, case in recurrent().items():
        found[name] = lambda path, case=case: case.write(path, narrow=True)
    return found


def prompt(seed: int) -> list[int]:
    """Tokens of a prompt."""
    return np.random.default_rng(seed).integers(4, 250, PROMPT).tolist()


def main(given: Sequence[str] | None = None) -> int:
    """Print a row for each model; return whether one could not be run."""
    parser = argparse.ArgumentParser(prog="python -m tests.units", description=__doc__)
    parser.add_argument("names", nargs="*", default=["*"], help="models, with * and ?")
    parser.add_argument("--seed", type=int, default=0, help="of the prompt")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--pipelines", action="store_true", help="pipelines in place of models")
    parser.add_argument("--figures", type=Path, metavar="FILE", help="keep and read figures there")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the table, as Markdown")
    options = parser.parse_args(given)
    known = kept(options.figures)
    executor: Executor = simulated() if options.simulate else with_units()
    places = {p.parent.parent.name: p.parent.parent for p in FOLDER.glob("*/reference/*.npz")}
    makers = {} if options.pipelines else writers()
    names = [*(places if options.pipelines else makers)]
    counted, lines, failed = Counter[str](), list[str](), list[str]()
    with counting(counted):
        for name in sorted(n for n in names if any(fnmatch(n, p) for p in options.names)):
            try:
                if name not in known and options.pipelines:
                    known[name] = pictured(places[name], executor, counted)
                    keep(options.figures, known[name])
                elif name not in known:
                    with tempfile.TemporaryDirectory() as folder:
                        path = Path(folder) / f"{name}.gguf"
                        makers[name](path)
                        known[name] = compared(path, executor, prompt(options.seed), counted)
                    keep(options.figures, known[name])
            except BackendError as error:
                failed.append(f"{name}: {error}")
                continue
            lines.append(known[name].line())
            sys.stdout.write(f"{lines[-1]}\n")
            sys.stdout.flush()
    executor.close()
    sys.stdout.write("".join(f"{line}\n" for line in failed))
    if options.write:
        head = f"| {' | '.join(TITLES)} |\n|{'---|' * len(TITLES)}\n"
        options.write.write_text(head + "\n".join(lines) + "\n", encoding="utf-8")
    return bool(failed)


def kept(path: Path | None) -> dict[str, Row]:
    """Figures by model that earlier runs have kept."""
    lines = path.read_text("utf-8").splitlines() if path and path.exists() else []
    rows = (json.loads(line) for line in lines)
    return {r["name"]: Row(**{**r, "dispatches": tuple(r["dispatches"])}) for r in rows}


def keep(path: Path | None, row: Row) -> None:
    """Add a model's figures to those that are kept."""
    if path:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")


if __name__ == "__main__":
    sys.exit(main())
