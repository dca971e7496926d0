"""Collect one family's figures, in a process where Vulkan shows only RADV's null device."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_costs import assembly, internals, nir, others
from benchmarks.gpu_costs.lint import Lint
from benchmarks.gpu_costs.models import SIZES, sparse_gguf
from benchmarks.gpu_costs.nir_run import Run, Setting
from benchmarks.gpu_costs.tools import MISSING, OLDEST_MESA
from wgpu_backend.ml.backend import Backend

_VERSION = re.compile(r"Mesa (\d+)")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The kernels to compile.

    Parameters
    ----------
    family, model : str
    formats, graphs : tuple of str
    op : str
        How names of ops begin; ``linear`` is every product with weights, and nothing is all.
    positions : int
        That sequences of a decode step have.
    kv : str
        Type of the cache.
    exact, coarse, rounded, lint : bool
    """

    family: str
    model: str
    formats: tuple[str, ...]
    graphs: tuple[str, ...]
    op: str = ""
    positions: int = 4096
    kv: str = "f16"
    exact: bool = False
    coarse: bool = False
    rounded: bool = False
    lint: bool = False

    def takes(self, op: str) -> bool:
        """Return whether an op is included."""
        return op.startswith(internals.LINEAR if self.op == "linear" else self.op)


@dataclass(frozen=True, slots=True)
class Row:
    """One kernel of one graph.

    Parameters
    ----------
    family, model, format, graph, op, kernel : str
    operands : str
        Types and shapes.
    count : int
        Dispatches of it.
    groups : tuple of int
    threads : int
        Of a work group.
    wave : int
        Threads of a wave.
    vgprs, spills : int
        Registers of a lane, and how many of them (scalar ones included) lie in memory.
    scratch, lds : int
        Bytes of memory that stands in for registers, a lane, and of workgroup memory, a group.
    waves : int or None
        That fit on a SIMD; not known of Intel's.
    latency, inverse_throughput : int
        The compiler's estimates, in cycles.
    code : int
        Bytes.
    static_instructions : int
        Of the text.
    instructions : float or None
        That a lane executes, see `assembly.executed`.
    instructions_per_weight : float or None
        Those of all lanes over the weights of a product, prologue and reduction included.
    nbytes : int
        Of operands and result.
    """

    family: str
    model: str
    format: str
    graph: str
    op: str
    kernel: str
    operands: str
    count: int
    groups: tuple[int, int, int]
    threads: int
    wave: int
    vgprs: int
    spills: int
    scratch: int
    lds: int
    waves: int | None
    latency: int
    inverse_throughput: int
    code: int
    static_instructions: int
    instructions: float | None
    instructions_per_weight: float | None
    nbytes: int


@dataclass(frozen=True, slots=True)
class Compiled:
    """The layer's output for a pipeline."""

    statistics: dict[str, Any]
    assembly: str
    program: nir.Program


class Compiler:
    """A compiler of shaders that compiles each once.

    Parameters
    ----------
    backend : Backend
    folder : Path
        Where the layer writes.
    """

    def __init__(self, backend: Backend, folder: Path) -> None:
        self._backend, self._folder = backend, folder
        self._known: dict[tuple[str, object], Compiled] = {}

    def __call__(self, shader: Any) -> Compiled:  # noqa: ANN401
        """Return the compiler's output for a shader."""
        key = (shader.text, shader.bindings)
        if key not in self._known:
            before = set(self._folder.glob("*.json"))
            internals.compiled(self._backend, shader)
            made = max(set(self._folder.glob("*.json")) - before)
            self._known[key] = self._read(made)
        return self._known[key]

    def _read(self, path: Path) -> Compiled:
        program = nir.parse(path.with_suffix(".nir").read_text())
        assembly = path.with_suffix(".s")  # a driver may have been built without a disassembler
        text = assembly.read_text() if assembly.exists() else ""
        return Compiled(json.loads(path.read_text()), text, program)


Found = tuple[Row, list[dict[str, Any]]]


def collected(wanted: Wanted, folder: Path) -> dict[str, Any]:
    """Return the figures and lint findings of every kernel, and the driver's name.

    Parameters
    ----------
    wanted : Wanted
    folder : Path
        Where the layer writes.

    Raises
    ------
    LookupError
        There is no null device, or its Mesa is too old.
    """
    drivers: set[str] = set()
    found = list(_rows(wanted, folder, drivers))
    rows = [{**asdict(row), "lint": lint} for row, lint in found]
    return {"driver": " ".join(drivers), "rows": rows}


def _rows(wanted: Wanted, folder: Path, drivers: set[str]) -> Iterator[Found]:
    if wanted.model == others.OTHERS:
        yield from _other_rows(wanted, folder, drivers)
        return
    shapes = {name: internals.shape_of(name, wanted.positions) for name in wanted.graphs}
    for format in wanted.formats:
        with tempfile.TemporaryDirectory() as name:
            path = sparse_gguf(Path(name) / "model.gguf", SIZES[wanted.model], format)
            opened = internals.opened(
                path, exact=wanted.exact, coarse=wanted.coarse, rounded=wanted.rounded
            )
            with opened as backend:
                drivers.add(_driver(backend))
                compiler = Compiler(backend, folder)
                for graph, made in internals.dispatches(backend, shapes, wanted.kv):
                    yield from _graph(wanted, format, graph, made, compiler)


def _other_rows(wanted: Wanted, folder: Path, drivers: set[str]) -> Iterator[Found]:
    """Return the rows of `others`, of any format: the file only opens the device."""
    known = {**others.builds(), **others.towers()}
    chosen = {n: known[n] for n in wanted.graphs if n in known} or others.builds()
    with tempfile.TemporaryDirectory() as name:
        path = sparse_gguf(Path(name) / "model.gguf", SIZES["tiny"], "f16")
        opened = internals.opened(
            path, exact=wanted.exact, coarse=wanted.coarse, rounded=wanted.rounded
        )
        with opened as backend:
            drivers.add(_driver(backend))
            compiler = Compiler(backend, folder)
            for graph, build in chosen.items():
                made = internals.graph_dispatches(backend, build)
                yield from _graph(wanted, "", graph, made, compiler)


def _driver(backend: Backend) -> str:
    name, driver = internals.driver(backend)
    version = _VERSION.search(driver)
    if version is None or int(version[1]) < OLDEST_MESA:
        raise LookupError(f"{name} has the driver {driver}, needs Mesa {OLDEST_MESA} or newer")
    return driver


def _graph(
    wanted: Wanted,
    format: str,
    graph: str,
    made: list[internals.Dispatched],
    compiler: Compiler,
) -> Iterator[Found]:
    same: dict[Any, list[internals.Dispatched]] = {}
    for each in made:
        if wanted.takes(each.op):
            key = (each.op, each.shader.text, each.groups, each.operands)
            same.setdefault(key, []).append(each)
    for found in same.values():
        yield _row(wanted, format, graph, found, compiler(found[0].shader))


def _row(
    wanted: Wanted, format: str, graph: str, found: list[internals.Dispatched], done: Compiled
) -> Found:
    each, stats = found[0], done.statistics
    setting = _setting(wanted, graph, each, done)
    trips = Run(done.program, setting).run()
    executed = assembly.executed(done.assembly, trips, [x.depth for x in done.program.loops])
    lint = Lint(internals.binding_names(each.shader))
    groups, threads = each.groups, done.program.threads
    lanes = groups[0] * groups[1] * groups[2] * threads
    a_weight = executed * lanes / each.weights if executed and each.weights else None
    row = Row(
        family=wanted.family,
        model=wanted.model,
        format=format,
        graph=graph,
        op=each.op,
        kernel=each.shader.label,
        operands=" ".join(f"{n}:{t}{list(s)}".replace(", ", "×") for n, t, s in each.operands),
        count=len(found),
        groups=groups,
        threads=threads,
        wave=stats["Subgroup size"],
        **_figures(stats),
        static_instructions=assembly.static(done.assembly),
        instructions=executed and round(executed, 1),
        instructions_per_weight=a_weight and round(a_weight, 3),
        nbytes=each.nbytes,
    )
    return row, lint.look(done.program, setting, trips) if wanted.lint else []


def _figures(stats: dict[str, Any]) -> dict[str, Any]:
    """Map the columns to the names that a driver uses.

    Intel's compiler reports live registers instead of registers, one estimate of cycles, and
    instructions instead of bytes of code; how many waves fit depends on nothing that it chooses.
    """
    if "VGPRs" in stats:
        return {
            "vgprs": stats["VGPRs"],
            "spills": stats["Spilled VGPRs"] + stats["Spilled SGPRs"],
            "scratch": stats["Scratch size"],
            "lds": stats["LDS size"],
            "waves": stats["Subgroups per SIMD"],
            "latency": stats["Latency"],
            "inverse_throughput": stats["Inverse Throughput"],
            "code": stats["Code size"],
        }
    return {
        "vgprs": stats["Max live registers"],
        "spills": stats["Spill Count"] + stats["Fill Count"],
        "scratch": stats["Scratch Memory Size"],
        "lds": stats["Workgroup Memory Size"],
        "waves": None,
        "latency": stats["Cycle Count"],
        "inverse_throughput": stats["Cycle Count"],
        "code": stats["Instruction Count"],
    }


def _setting(wanted: Wanted, graph: str, each: internals.Dispatched, done: Compiled) -> Setting:
    known = wanted.model != others.OTHERS
    shape = internals.shape_of(graph, wanted.positions) if known else None
    return Setting(
        each.params,
        internals.params_binding(each.shader),
        each.groups,
        done.statistics["Subgroup size"],
        internals.contents(each, shape),
    )


def main() -> None:
    wanted = Wanted(**json.loads(sys.argv[1]))
    try:
        found = collected(wanted, Path(os.environ["GPU_COSTS_OUT"]))
    except LookupError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(MISSING)
    Path(sys.argv[2]).write_text(json.dumps(found), "utf-8")


if __name__ == "__main__":
    main()
