"""`pytest tests/ops --count-cases`: how many cases of each op ran and passed, by kind of executor.

A case is an op with operands of certain types, shapes, strides and offsets, as a plan ran it; the
same again counts once, and other options (an axis, a factor) make no other case. Tests that fail
count for nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest

from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ml.numpy_executor import NumpyRecorded
from wgpu_backend.ml.wgpu.executor import WgpuRecorded

Case = tuple[object, ...]


def given(node: Node) -> Node:
    """Operand as the op was given it: kernels that need dense ones get a copy."""
    while node.call is not None and node.launch is not None and node.call.op.name == "contiguous":
        node = node.launch.operands["x"]
    return node


def case_of(launch: Launch) -> Case:
    operands = [*launch.operands.values(), *([launch.into] if launch.into else [])]
    return (launch.out.dtype, launch.out.shape, *(given(n).spec for n in operands))


class CaseCounter:
    """Plugin that looks at what recorded graphs run."""

    def __init__(self) -> None:
        self.kinds: dict[object, str] = {}
        self._passed: dict[tuple[str, str], set[Case]] = defaultdict(set)
        self._now: list[tuple[str, str, Case]] = []
        self._watch(NumpyRecorded, lambda recorded: "numpy")
        self._watch(WgpuRecorded, lambda recorded: self.kinds.get(recorded._device, ""))

    def _watch(self, recorded_type, kind_of) -> None:
        run = recorded_type.run

        def counted(recorded, inputs):
            result = run(recorded, inputs)
            kind = kind_of(recorded)
            self._now += [
                (n.call.op.name, kind, case_of(launch))
                for n, launch in recorded.plan.steps
                if n.call is not None
            ]
            return result

        recorded_type.run = counted

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[None]):
        report = yield
        if report.when == "call":
            # A test on a device compares with NumPy, which is no case of NumPy's own.
            kinds = {kind for _, kind, _ in self._now}
            for name, kind, case in self._now if report.passed else ():
                if kind and (kind != "numpy" or kinds == {"numpy"}):
                    self._passed[name, kind].add(case)
            self._now.clear()
        return report

    def pytest_terminal_summary(self, terminalreporter) -> None:
        for line in self._table():
            terminalreporter.write_line(line)

    def _table(self) -> Iterator[str]:
        kinds = sorted({kind for _, kind in self._passed})
        ops = sorted({name for name, _ in self._passed})
        yield _row("op", kinds)
        for name in ops:
            yield _row(name, [len(self._passed.get((name, kind), ())) for kind in kinds])
        totals = [sum(len(c) for (_, k), c in self._passed.items() if k == kind) for kind in kinds]
        yield _row(f"{len(ops)} ops, {sum(totals)} cases", totals)


def _row(name: str, columns: Sequence[object]) -> str:
    return f"{name:28}" + "".join(f"{column!s:>12}" for column in columns)
