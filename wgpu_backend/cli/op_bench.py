"""`wgpu-backend op bench`: an op compared with a copy of as many bytes on one device."""

from __future__ import annotations

import json
import math
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np

from wgpu_backend.cli.console import human_bytes, human_seconds, print_table, print_text
from wgpu_backend.cli.loading import find_gpu
from wgpu_backend.cli.op_files import OpFile, require_op_file
from wgpu_backend.dtypes import F32, DType, named
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.graph.wgsl_source import Inline
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor, Recorded
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ml.testing.cases import Trial, get_trials
from wgpu_backend.ops.check import vec4s
from wgpu_backend.ops.op import Op

RUNS = 7
COPY = """\
// y = x, a vector a thread: as plain as a kernel can be.
// @import lib/index/grid
const WG: u32 = 64u;
struct Params { vectors: u32 }
@group(0) @binding(0) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(1) var<storage, read_write> y: array<vec4<f32>>;
@group(0) @binding(2) var<uniform> params: Params;
@compute @workgroup_size(WG)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {
    let i = grid_index(id, groups, WG);
    if i < params.vectors {
        y[i] = x[i];
    }
}
"""
# Values of a row: long enough that reductions work, as in the rows of models.
ROW = 1024


def _copy(x: Node) -> Launch:
    vectors = vec4s(x.spec.size)
    out = Spec.dense(x.spec.shape, x.spec.dtype)
    return Launch(out, {"x": x}, threads=vectors, params={"vectors": vectors})


copy = Op(_copy, name="copy", shader=Inline("copy", COPY), trusted=True)


@dataclass(frozen=True, slots=True)
class OpTimes:
    """The times of an op and of a copy of as many bytes.

    Parameters
    ----------
    nbytes : int
        Bytes of the operands and the result.
    seconds, copy_seconds : float
        The fastest of several alternating runs.
    """

    op: str
    shapes: list[list[int]]
    nbytes: int
    seconds: float
    copy_seconds: float
    device: str

    @property
    def ratio(self) -> float:
        """Speed of the op relative to the copy."""
        return self.copy_seconds / self.seconds


def bench_file(path: Path, nbytes: int, device: str | None, *, as_json: bool) -> None:
    """Measure every op of a file, and print a table or JSON.

    Parameters
    ----------
    path : Path
        Python file.
    nbytes : int
        Approximate bytes of the largest operand, as f32.

    Raises
    ------
    UsageError
        The file does not exist, or it registers no op.
    """
    require_op_file(path, ".py")
    with ExitStack() as stack:
        executor = make_executor("wgpu", BackendParams(find_gpu(device), self_test=False))
        stack.callback(executor.close)
        file = OpFile(path)
        stack.callback(file.forget)
        trials = [t for op in file.read() for t in get_trials(op)]
        times = [_measure(executor, trial, nbytes) for trial in trials]
    if as_json:
        rows = [{**asdict(m), "ratio": m.ratio} for m in times]
        print_text(json.dumps(rows, indent=2) + "\n")
        return
    columns = ("op", "operands", "bytes", "time", "GB/s", "copy GB/s", "of a copy")
    print_table(columns, map(_make_row, times), right=columns[2:], title=executor.info.name)


def _make_row(m: OpTimes) -> tuple[str, ...]:
    operands = ", ".join("×".join(map(str, shape)) for shape in m.shapes)
    speeds = (f"{m.nbytes / s / 1e9:.2f}" for s in (m.seconds, m.copy_seconds))
    return (m.op, operands, human_bytes(m.nbytes), human_seconds(m.seconds), *speeds,
            f"{m.ratio:.0%}")  # fmt: skip


def _measure(executor: Executor, trial: Trial, nbytes: int) -> OpTimes:
    shapes = _choose_shapes(trial, nbytes // F32.block_nbytes)
    with Context(executor) as context, ExitStack() as stack:

        def record(tensor: Tensor) -> Recorded:
            graph = context.record(tensor)
            stack.callback(graph.close)
            return graph

        operands = [
            _make_operand(context, text, shape)
            for text, shape in zip(trial.shapes, shapes, strict=True)
        ]
        y = cast("Tensor", trial.op(*operands, **trial.options))
        moved = sum(t.spec.nbytes for t in (*operands, y))
        # A copy reads and writes, so half of the op's bytes give the same traffic.
        x = context.from_numpy(np.zeros(moved // 2 // F32.block_nbytes, np.float32))
        pair = record(y), record(cast("Tensor", copy(x)))
        # Alternating runs, so that a change of the clock rate affects op and copy alike.
        times = [[_sum_seconds(graph) for graph in pair] for _ in range(RUNS)]
    # Other work only makes runs slower, so the fastest says most about the kernel.
    own, copied = (min(column) for column in zip(*times, strict=True))
    extents = [list(shape) for shape in shapes]
    return OpTimes(trial.op.name, extents, moved, own, copied, executor.info.name)


def _sum_seconds(graph: Recorded) -> float:
    return sum(seconds for _, _, seconds in graph.timed())


def _make_operand(context: Context, text: str, shape: tuple[int, ...]) -> Tensor:
    dtype: DType = named(text.partition(":")[2]) if ":" in text else F32
    return context.from_numpy(np.zeros(shape, np.float32), dtype)


def _choose_shapes(trial: Trial, values: int) -> list[tuple[int, ...]]:
    """Choose extents: rows of a fixed length, and as many rows as fill the largest operand."""
    words = [text.partition(":")[0].split() for text in trial.shapes]
    largest = max(words, key=lambda ws: (len(ws), [w for w in ws if not w.isdigit()]))
    value = {w: int(w) if w.isdigit() else ROW for ws in words for w in ws}
    free = [w for w in largest if not w.isdigit()]
    if free:
        rest = math.prod(value[w] for w in largest) // ROW
        value[free[0]] = max(1, values // rest)
    return [tuple(value[w] for w in ws) for ws in words]
