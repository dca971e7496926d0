"""Bandwidth of ops as a share of a copy kernel's, on one device in one run; and against NumPy.

::

    python benchmarks/ops.py                    the best device
    python benchmarks/ops.py --device vulkan:1 --repetitions 20 --only sum,argsort

Bytes are those of operands and result, each counted once, however often an op passes over them.
The fastest of some repetitions counts, and the copy is measured again before each op, so that other
work on the machine hits both alike.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ops.op import op

WIDE, LONG = (4096, 1024), (16, 262144)  # 16 MiB of f32 each


@op(shader=Path(__file__).with_name("copy.wgsl"), dense=("x",), trusted=True)
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


@dataclass(frozen=True, slots=True)
class Case:
    """An op on operands of a shape, and the share of a copy's bandwidth it is to reach."""

    name: str
    act: Callable[[Tensor], Tensor]
    shape: tuple[int, int] = WIDE
    wanted: float = 0.6


CASES = (
    *(
        Case(name, lambda x, name=name: getattr(x, name)())
        for name in ("sqr", "sqrt", "exp", "neg", "sin", "cos", "softplus", "silu", "gelu", "tanh")
    ),
    Case("scale", lambda x: x.scale(factor=2.0)),
    Case("clamp", lambda x: x.clamp(-1, 1)),
    Case("fill", lambda x: x.fill(1.0)),
    Case("add", lambda x: x + x),
    Case("mul row", lambda x: x.mul(x.slice(0, 0, 1))),
    Case("rms_norm", lambda x: x.rms_norm(eps=1e-6)),
    Case("layer_norm", lambda x: x.layer_norm(eps=1e-6)),
    Case("l2_norm", lambda x: x.l2_norm(eps=1e-6)),
    Case("softmax", lambda x: x.softmax()),
    Case("sum rows", lambda x: x.sum(-1), wanted=0.25),
    Case("sum columns", lambda x: x.sum(0), wanted=0.25),
    Case("sum all", lambda x: x.sum(), wanted=0.25),
    Case("max rows", lambda x: x.max(-1), wanted=0.25),
    Case("max columns", lambda x: x.max(0), wanted=0.25),
    Case("variance rows", lambda x: x.variance(-1), wanted=0.25),
    Case("cumsum", lambda x: x.cumsum(), wanted=0.25),
    Case("cumsum long", lambda x: x.cumsum(), LONG, 0.25),
    Case("argsort", lambda x: x.argsort(), wanted=0.25),
    Case("argsort long", lambda x: x.argsort(), LONG, 0.25),
    Case("top_k 40 long", lambda x: x.top_k(40), LONG, 0.25),
    Case("top_k 1000 long", lambda x: x.top_k(1000), LONG, 0.25),
    Case("contiguous turned", lambda x: x.permute(1, 0).contiguous(), wanted=0.0),
    Case("pad", lambda x: x.pad(4, 4), wanted=0.0),
    Case("take_axes", lambda x: x.take_axes(x.argmax(), 0), wanted=0.0),
)


def seconds(
    executor: Executor, values: np.ndarray, act: Callable[[Tensor], Tensor], runs: int
) -> tuple[float, int]:
    """Fastest time of an op's dispatches, and the bytes of its operand and result."""
    with Context(executor) as context:
        x = context.from_numpy(values)
        y = act(x)
        recorded = context.record(y)
        best = min(sum(t for _, _, t in recorded.timed()) for _ in range(runs))
        recorded.close()
        read = 0 if y.launch is not None and not y.launch.operands else x.spec.nbytes
        return best, read + y.spec.nbytes


def measured(executor: Executor, case: Case, runs: int) -> tuple[float, float]:
    """Share of the copy's bandwidth, and how many times faster than the NumPy twins."""
    values = np.random.default_rng(1).standard_normal(case.shape, np.float32)
    copied, copied_nbytes = seconds(executor, values, plain_copy, runs)
    taken, nbytes = seconds(executor, values, case.act, runs)
    on_host, _ = seconds(NumpyExecutor(), values, case.act, 2)
    return (nbytes / taken) / (copied_nbytes / copied), on_host / taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--only", default="", help="beginnings of names, separated by commas")
    options = parser.parse_args()
    wanted = tuple(options.only.split(","))
    with_device = {"device": options.device} if options.device else {}
    executor = make_executor("wgpu", BackendParams(**with_device))
    print(f"{executor.info.name}, 16 MiB of f32")
    print(f"{'op':20}{'of a copy':>10}{'aim':>6}{'of NumPy':>10}")
    try:
        for case in CASES:
            if case.name.startswith(wanted):
                share, gain = measured(executor, case, options.repetitions)
                aim = f"{case.wanted:.0%}" if case.wanted else ""
                print(f"{case.name:20}{share:10.0%}{aim:>6}{gain:9.1f}x", flush=True)
    finally:
        executor.close()


if __name__ == "__main__":
    main()
