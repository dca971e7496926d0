"""`wgpu-backend op check`: compare ops with their references, and compile shaders."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from wgpu_backend.cli.console import print_facts, print_table, print_text, remark
from wgpu_backend.cli.failures import FAILED, UsageError
from wgpu_backend.cli.interrupts import Interrupts
from wgpu_backend.cli.loading import find_gpu
from wgpu_backend.cli.op_files import OpFile, require_op_file
from wgpu_backend.cli.progress import bar
from wgpu_backend.device.wgsl.module import Choice, Shader, imports, load
from wgpu_backend.errors import BackendError, ShaderError
from wgpu_backend.graph.wgsl_source import alternatives
from wgpu_backend.ml.testing.cases import Trial, get_trials
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.op import Op
from wgpu_backend.testing import (
    Case,
    count_cases,
    find_hint,
    has_reference,
    open_executors,
    run_trial,
)

# Polling needs no library of the platform, and finds changes that editors make by renaming.
POLL_SECONDS = 0.25
SHOWN_PROBLEMS = 5
# Snippets of these folders are interchangeable for these types; others have another layout.
FLOATS = ("f32", "f16", "bf16")
FLOAT_FOLDERS = ("formats/load", "formats/store", "formats/vec4")


def check_file(path: Path, device: str | None) -> int:
    """Check a file once.

    Parameters
    ----------
    path : Path
        Python file that registers ops, or a WGSL file.

    Returns
    -------
    int
        Exit code: 1 if anything failed.

    Raises
    ------
    UsageError
        There is no such file, or it holds nothing to check.
    """
    require_op_file(path, ".py", ".wgsl")
    with ExitStack() as stack:
        checker = _Checker(path, open_executors(stack, find_gpu(device)))
        stack.callback(checker.file.forget)
        return 0 if checker.check() else FAILED


def check_forever(path: Path, device: str | None) -> int:
    """Check a file whenever it or another file of its folder changes, until Ctrl-C."""
    require_op_file(path, ".py", ".wgsl")
    with ExitStack() as stack, Interrupts() as interrupts:
        checker = _Checker(path, open_executors(stack, find_gpu(device)))
        stack.callback(checker.file.forget)
        seen: dict[Path, int] = {}
        while not interrupts.requested:
            now = read_change_times(path.resolve().parent)
            # The first pass finds an empty `seen`, and so checks at once.
            if now == seen:
                time.sleep(POLL_SECONDS)
                continue
            seen = now
            passed = checker.check()
            print_text(f"\n{time.strftime('%X')} {'passed' if passed else 'FAILED'}, waiting …\n\n")
    return 0


def read_change_times(folder: Path) -> dict[Path, int]:
    """Return the times of the last changes of a folder's Python and WGSL files."""
    found: dict[Path, int] = {}
    for pattern in ("*.py", "*.wgsl"):
        for path in folder.glob(pattern):
            try:
                found[path] = path.stat().st_mtime_ns
            except FileNotFoundError:
                # An editor is replacing the file.
                continue
    return found


class _Checker:
    """A checker of one file, which can run repeatedly."""

    def __init__(self, path: Path, executors: dict[str, WgpuExecutor]) -> None:
        self.file = OpFile(path)
        self._executors = executors

    def check(self) -> bool:
        """Check the file, print the findings, and return whether all passed."""
        try:
            if self.file.path.suffix == ".wgsl":
                self.file.forget()
                return _check_shader(self.file.path, self._executors)
            ops = self.file.read()
        except (BackendError, UsageError) as error:
            remark(str(error))
            return False
        results = [self._check_op(op) for op in ops]
        return all(results)

    def _check_op(self, op: Op[Any]) -> bool:
        try:
            trials = get_trials(op)
        except BackendError as error:
            # The other ops of the file are checked all the same.
            remark(str(error))
            return False
        cases = self._run(op, trials)
        print_table(COLUMNS, _make_rows(cases), right=COLUMNS[3:])
        failed = [c for c in cases if c.problem and not c.refused]
        _print_problems(failed)
        if advice := find_hint(cases):
            remark(f"{op.name}: {advice}")
        if not has_reference(op):
            remark(
                f"{op.name}: it has no NumPy reference, so its values were compared with "
                f"nothing; write one under @{op.name}.reference"
            )
        if all(c.refused for c in cases):
            remark(f"{op.name}: every case is refused: {cases[0].problem}")
            return False
        return not failed

    def _run(self, op: Op[Any], trials: Sequence[Trial]) -> list[Case]:
        cases: list[Case] = []
        with bar(f"Checking {op.name}") as progress:
            total = sum(count_cases(t, self._executors) for t in trials) if progress else 1
            for case in (c for t in trials for c in run_trial(t, self._executors)):
                cases.append(case)
                if progress:
                    progress(len(cases) / total)
        return cases


COLUMNS = ("op", "profile", "dtype", "cases", "refused", "failed", "worst NMSE")


def _make_rows(cases: Sequence[Case]) -> Iterator[tuple[str, ...]]:
    # In order of first appearance, as a set would not keep it.
    groups = dict.fromkeys((c.op, c.profile, c.dtype) for c in cases)
    for op, profile, dtype in groups:
        here = [c for c in cases if (c.op, c.profile, c.dtype) == (op, profile, dtype)]
        errors = [c.error for c in here if not c.problem and not math.isnan(c.error)]
        failed = sum(bool(c.problem) and not c.refused for c in here)
        worst = f"{max(errors):.1e}" if errors else "–"
        refused = sum(c.refused for c in here)
        yield op, profile, dtype, str(len(here)), str(refused), str(failed), worst


def _print_problems(failed: Sequence[Case]) -> None:
    """Print each problem once: a shader that does not compile fails all cases."""
    same = Counter(_extract_compile_error(c) or c.problem for c in failed)
    first = {c.problem: str(c) for c in reversed(failed)}
    for text, count in list(same.items())[:SHOWN_PROBLEMS]:
        remark(first.get(text, text) + (f"\n({count} cases)" if count > 1 else ""))
    if len(same) > SHOWN_PROBLEMS:
        remark(f"… and {len(same) - SHOWN_PROBLEMS} more")


def _extract_compile_error(case: Case) -> str:
    """Return a compiler's message without the variant of the shader; empty for others."""
    _, bar, _ = case.problem.partition(" │ ")
    return case.problem.partition(": ")[2] if bar else ""


def _check_shader(path: Path, executors: dict[str, WgpuExecutor]) -> bool:
    shader = load(path)
    print_facts(_list_interface(path, shader))
    print_text("\n")
    problems: dict[str, str] = {}
    rows = list(_compile_variants(path, executors, problems))
    print_table(("choices", *executors), rows)
    for problem in list(problems)[:SHOWN_PROBLEMS]:
        remark(problem)
    return not problems


def _list_interface(path: Path, shader: Shader) -> Iterator[tuple[str, str]]:
    yield "file", str(path)
    for binding in shader.bindings:
        yield f"binding {binding.index}", f"{binding.name} ({binding.access})"
    for field in shader.params:
        yield "Params", f"{field.name}: {field.type} at byte {field.offset}"
    declared = imports(path)
    for name, default in declared.modules.items():
        yield "import", f"{name}, {default} unless chosen"
    if declared.parameters:
        yield "parameters", ", ".join(sorted(declared.parameters))


def _compile_variants(
    path: Path, executors: dict[str, WgpuExecutor], problems: dict[str, str]
) -> Iterator[tuple[str, ...]]:
    for choices in _list_variants(path):
        named = ", ".join(f"{name} = {value}" for name, value in choices.items()) or "defaults"
        results: list[str] = []
        for executor in executors.values():
            try:
                executor.device.pipeline(load(path, choices))
                results.append("compiles")
            except ShaderError as error:
                problems.setdefault(str(error), named)
                results.append("FAILS")
        yield (named, *results)


def _list_variants(path: Path) -> Iterable[dict[str, Choice]]:
    """Yield the default choices, then every other file for each named import."""
    yield {}
    for name, default in imports(path).modules.items():
        folder, _, own = default.rpartition("/")
        if folder in FLOAT_FOLDERS and own in FLOATS:
            others = [f"{folder}/{dtype}" for dtype in FLOATS if dtype != own]
        else:
            others = alternatives(default)
        for other in others:
            yield {name: other}
