"""Measure the bandwidth of ops relative to a copy kernel on the same device, and against NumPy.

::

    python benchmarks/ops.py                    the best device
    python benchmarks/ops.py --device vulkan:1 --repetitions 20 --only sum,argsort
    python benchmarks/ops.py --json ops.json

Columns:

    in+out    bytes of operands and result, each counted once however often an op passes over
              them, per second, as a share of what `plain_copy` reaches, a thread a vector
    passes    the same with the bytes that all dispatches of the op read and write; for sorts
    aim       what one of the two is to reach: `passes` for sorts, `in+out` for all others
    far copy  in+out as a share of `far_copy`'s: each thread copies many vectors, so that starting
              threads costs nothing; no aim, but what memory could give
    of NumPy  how many times faster than the NumPy reference

A sort moves every key once or twice for each digit, on any device; held against in+out its aim
would ask for more than the memory has, so it is held against what its passes move.

Kernels take turns with the copies, and the fastest of some repetitions counts, so that other load
affects all of them.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

import numpy as np

from wgpu_backend.cli.op_bench import COPY
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops.op import op

WIDE, LONG, DEEP = (4096, 1024), (16, 262144), (64, 64, 1024)  # 16 MiB of f32 each
TALL = (8192, 1024)  # of two operands of that size
VECTORS_A_THREAD = 64
# Words that a kernel with passes of its own moves for each key. `sort_rows_lanes.wgsl` reads values
# twice, writes and reads keys three times, and writes columns; hardware's merges move more.
WORDS_A_KEY = {"sort_rows": 9}
HEADER = f"{'op':20}{'ms':>8}{'in+out':>8}{'passes':>8}{'aim':>6}{'far copy':>10}{'of NumPy':>10}"
Act = Callable[[Tensor], Node]


def far_threads(launch: Launch, capabilities: Capabilities) -> Launch:
    """Choose work groups as small as the device prefers for threads that loop."""
    return replace(launch, choices={"WG": 8 if capabilities.software else 64})


@op(source=COPY, dense=("x",), trusted=True)
def plain_copy(x: Node) -> Launch:
    """Copy whole vectors.

    Parameters
    ----------
    x : (...), f32, a multiple of four values
    """
    vectors = x.spec.size // 4
    return Launch(
        Spec.dense(x.spec.shape, x.spec.dtype),
        {"x": x},
        threads=vectors,
        params={"vectors": vectors},
        work=2 * x.spec.nbytes,
    )


@op(
    shader=Path(__file__).with_name("copy_far.wgsl"),
    select=far_threads,
    dense=("x",),
    trusted=True,
)
def far_copy(x: Node) -> Launch:
    """Copy whole vectors, many per thread.

    Parameters
    ----------
    x : (...), f32, a multiple of four values
    """
    vectors = x.spec.size // 4
    threads = -(-vectors // VECTORS_A_THREAD)
    return Launch(
        Spec.dense(x.spec.shape, x.spec.dtype),
        {"x": x},
        threads=threads,
        params={"vectors": vectors, "threads": threads},
        work=2 * x.spec.nbytes,
    )


@dataclass(frozen=True, slots=True)
class Case:
    """An op on operands of a shape, and the share of a copy's bandwidth that it should reach."""

    name: str
    act: Act
    shape: tuple[int, ...] = WIDE
    aim: float = 0.6
    by_passes: bool = False


CASES = (
    *(
        Case(name, lambda x, name=name: getattr(x, name)())
        for name in ("sqr", "sqrt", "exp", "neg", "sin", "cos", "softplus", "silu", "gelu", "tanh")
    ),
    Case("scale", lambda x: x.scale(factor=2.0)),
    Case("clamp", lambda x: x.clamp(-1, 1)),
    Case("fill", lambda x: x.fill(1.0)),
    Case("add", lambda x: x.slice(0, 0, 4096) + x.slice(0, 4096, 8192), TALL),
    Case("mul row", lambda x: x.mul(x.slice(0, 0, 1))),
    Case("rms_norm", lambda x: x.rms_norm(eps=1e-6)),
    Case("layer_norm", lambda x: x.layer_norm(eps=1e-6)),
    Case("l2_norm", lambda x: x.l2_norm(eps=1e-6)),
    Case("softmax", lambda x: x.softmax()),
    Case("sum rows", lambda x: x.sum(-1), aim=0.25),
    Case("sum columns", lambda x: x.sum(0), aim=0.25),
    Case("sum middle", lambda x: x.sum(1), DEEP, 0.25),
    Case("sum all", lambda x: x.sum(), aim=0.25),
    Case("mean rows", lambda x: x.mean(-1), aim=0.25),
    Case("max rows", lambda x: x.max(-1), aim=0.25),
    Case("max columns", lambda x: x.max(0), aim=0.25),
    Case("variance rows", lambda x: x.variance(-1), aim=0.25),
    Case("variance columns", lambda x: x.variance(0), aim=0.25),
    Case("cumsum", lambda x: x.cumsum(), aim=0.25),
    Case("cumsum long", lambda x: x.cumsum(), LONG, 0.25),
    Case("argsort", lambda x: x.argsort(), aim=0.25, by_passes=True),
    Case("argsort long", lambda x: x.argsort(), LONG, 0.25, by_passes=True),
    Case("top_k 40 long", lambda x: x.top_k(40), LONG, 0.25),
    Case("top_k 1000 long", lambda x: x.top_k(1000), LONG, 0.25),
    Case("contiguous turned", lambda x: x.permute(1, 0).contiguous(), aim=0.0),
    Case("pad", lambda x: x.pad(4, 4), aim=0.0),
    Case("take_axes", lambda x: x.take_axes(x.argmax(), 0), aim=0.0),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures that a case reached.

    Parameters
    ----------
    op, aim
        Of the case.
    shape : sequence of int
        Of its operand, f32.
    milliseconds : float
        The fastest repetition, dispatches only.
    in_out_nbytes, passes_nbytes : int
        Bytes of operand and result, and of all that its dispatches read and write; the latter 0
        but for sorts.
    of_copy, passes_of_copy, of_far_copy : float
        Shares of the bandwidth of the copies.
    of_numpy : float
        Times the twin's speed.
    """

    op: str
    shape: Sequence[int]
    milliseconds: float
    in_out_nbytes: int
    passes_nbytes: int
    aim: float
    of_copy: float
    passes_of_copy: float
    of_far_copy: float
    of_numpy: float

    @property
    def line(self) -> str:
        """Format a line of the table."""
        passes = f"{self.passes_of_copy:.0%}" if self.passes_nbytes else ""
        aim = f"{self.aim:.0%}" if self.aim else ""
        return (
            f"{self.op:20}{self.milliseconds:8.2f}{self.of_copy:8.0%}{passes:>8}{aim:>6}"
            f"{self.of_far_copy:10.0%}{self.of_numpy:9.1f}x"
        )


def seconds(executor: Executor, values: np.ndarray, acts: Sequence[Act], runs: int) -> list[float]:
    """Return the fastest time of the dispatches of each act, which take turns."""
    with Context(executor) as context:
        x = context.from_numpy(values)
        recorded = [context.record(cast("Tensor", act(x))) for act in acts]
        times = [[sum(t for *_, t in r.timed()) for r in recorded] for _ in range(runs)]
        for one in recorded:
            one.close()
        return [min(column) for column in zip(*times, strict=True)]


def moved(executor: Executor, case: Case) -> tuple[int, int]:
    """Return the bytes of operands and result, and of all reads and writes of the passes."""
    with Context(executor) as context:
        x = context.zeros(*case.shape)
        y = case.act(x)
        made = [node for node in schedule([y]) if node.launch is not None]
        launches = [node.launch for node in made if node.launch is not None]
        is_read = any(x.storage is n.storage for m in launches for n in m.operands.values())
        in_out = x.spec.nbytes * is_read + y.spec.nbytes
        return in_out, sum(map(dispatched_nbytes, made)) if case.by_passes else 0


def dispatched_nbytes(node: Node) -> int:
    """Return the bytes that the dispatch of a node reads and writes."""
    assert node.launch is not None
    assert node.call is not None
    words = WORDS_A_KEY.get(node.call.op.name)
    if words:
        return 4 * words * node.spec.size
    operands = {id(n.storage): n.spec.nbytes for n in node.launch.operands.values()}
    return node.spec.nbytes + sum(operands.values())


def measured(executor: Executor, case: Case, runs: int) -> Measured:
    """Measure one case, with its copies in between."""
    values = np.random.default_rng(1).standard_normal(case.shape, np.float32)
    copied, far, taken = seconds(executor, values, (plain_copy, far_copy, case.act), runs)
    (on_host,) = seconds(NumpyExecutor(), values, (case.act,), 2)
    in_out, passes = moved(executor, case)
    copy_rate, far_rate = 2 * values.nbytes / copied, 2 * values.nbytes / far
    return Measured(
        case.name,
        case.shape,
        taken * 1e3,
        in_out,
        passes,
        case.aim,
        in_out / taken / copy_rate,
        passes / taken / copy_rate,
        in_out / taken / far_rate,
        on_host / taken,
    )


def convolution_gain(executor: Executor, runs: int) -> float:
    """Return conv2d's speed relative to im2col and a product, 3×3 over 64 channels."""
    values = np.random.default_rng(1).standard_normal((1, 64, 64, 64), np.float32)
    taps = np.random.default_rng(2).standard_normal((64, 3, 3, 64), np.float32)

    def direct(x: Tensor) -> Tensor:
        return x.conv2d(x.context.from_numpy(taps), paddings=(1, 1))

    def product(x: Tensor) -> Tensor:
        weight = x.context.from_numpy(taps.reshape(64, -1))
        return weight.mulmat(x.im2col((3, 3), paddings=(1, 1)).reshape(64 * 64, -1))

    whole, by_product = seconds(executor, values, (direct, product), runs)
    return by_product / whole


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", default="", help="beginnings of names, separated by commas")
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the figures there")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    wanted = tuple(options.only.split(","))
    with_device = {"device": options.device} if options.device else {}
    executor = make_executor("wgpu", BackendParams(**with_device))
    info = executor.info
    result: dict[str, object] = {"device": info.name, "api": info.api, "driver": info.driver}
    print(f"{info.name}, 16 MiB of f32\n{HEADER}")
    try:
        found: list[Measured] = []
        for case in CASES:
            if case.name.startswith(wanted):
                found.append(measured(executor, case, options.repetitions))
                print(found[-1].line, flush=True)
        result["ops"] = [asdict(one) for one in found]
        if "conv2d".startswith(wanted):
            gain = convolution_gain(executor, options.repetitions)
            result["conv2d_of_im2col_and_mulmat"] = gain
            print(f"conv2d: {gain:.1f} times the speed of im2col and mulmat (aim 1.0)")
    finally:
        executor.close()
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
