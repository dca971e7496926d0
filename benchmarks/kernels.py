"""Measure products with weights in each format against the device's best read and multiply rates.

::

    python benchmarks/kernels.py                            every format, 1 to 256 columns
    python benchmarks/kernels.py --only q4_0,q6_k --columns 1,32 --json kernels.json
    python benchmarks/kernels.py --experts                  by the chosen expert, as in gpt-oss

All times are of one run in one process: the kernels of a format take turns with the roofs, and the
fastest of some repetitions counts, so that other load affects all of them. Of `q8` the product
alone is timed, not the rounding of activations before it. A multiply-add counts as one.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import F16, F32, MXFP4, Q4_0, U32, DType, named
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.linear.attributes import Q8, VALUES
from wgpu_backend.ops.linear.linear import linear
from wgpu_backend.ops.linear.q8 import FORMATS, q8_activations
from wgpu_backend.ops.op import fusions, op

HERE = Path(__file__).parent
EXPERTS, USED, EXPERT = 32, 4, (2880, 2880)  # of gpt-oss 20b: all, chosen by a token, rows of one
TOKENS = (1, 16, 64, 256)
FFN, DOWN, HEAD = (4864, 1024), (1024, 4864), (151936, 896)
ROOF_THREADS, ROOF_ITERATIONS = 8192, 256
READ_NBYTES, READ_VECTORS = 64 << 20, 32  # vectors a thread
# Multiply-adds of a turn of each roof's loop.
FMA_ITERATION, DOT_ITERATION = 64, 256


def roof_launch(x: Node, turns: int, dtype: DType) -> Launch:
    threads = x.spec.size // 4
    return Launch(
        Spec.dense(x.spec.shape, dtype),
        {"x": x},
        threads=threads,
        params={"threads": threads, "turns": turns},
        work=threads * turns * DOT_ITERATION,
    )


@op(shader=HERE / "fma_roof.wgsl", trusted=True)
def fma_roof(x: Node) -> Launch:
    """Multiply and add f32 vectors in registers."""
    return roof_launch(x, ROOF_ITERATIONS, F32)


@op(shader=HERE / "dot_roof.wgsl", trusted=True)
def dot_roof(x: Node) -> Launch:
    """Multiply and add packed bytes in registers."""
    return roof_launch(x, ROOF_ITERATIONS, U32)


@op(shader="roof_read", trusted=True)
def read_roof(x: Node) -> Launch:
    """Read vectors of four words once."""
    vectors = x.spec.size // 4
    threads = vectors // READ_VECTORS
    return Launch(
        Spec.dense((threads, 4), F32),
        {"x": x},
        threads=threads,
        params={"vectors": vectors, "threads": threads},
        work=x.spec.nbytes,
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; rates in 10⁹ a second."""

    kernel: str
    dtype: str
    m: int
    k: int
    columns: int
    microseconds: float
    gbytes: float
    gmacs: float


@dataclass(slots=True)
class Case:
    """A recorded product and its fastest time so far."""

    kernel: str
    dtype: DType
    m: int
    k: int
    columns: int
    run: Callable[[], float]
    seconds: float = float("inf")

    def row(self) -> Row:
        """Return the rates of the fastest time."""
        macs = self.m * self.k * self.columns
        nbytes = self.dtype.nbytes(self.m * self.k)
        rates = (nbytes / self.seconds / 1e9, macs / self.seconds / 1e9)
        return Row(
            self.kernel, self.dtype.name, self.m, self.k, self.columns, self.seconds * 1e6, *rates
        )


class Bench:
    """A maker of weights of any format, which records products with them."""

    def __init__(self, executor: WgpuExecutor) -> None:
        self.executor = executor
        self.context = Context(executor)
        self.rng = np.random.default_rng(1)

    def weight(self, m: int, k: int, dtype: DType, *, rounded: bool = False) -> Tensor:
        """Make a matrix of random bytes."""
        spec = Spec.dense((m, k), dtype)
        data = self._bytes(spec)
        # Where a weight lies may hang on whether products round activations.
        self.executor.rules = fusions(["linear_q8"] if rounded else [], exact=False)
        try:
            return leaf(spec, self.executor.weight(spec, data.data, "weight", alone=True))
        finally:
            self.executor.rules = {}

    def columns(self, n: int, k: int) -> Tensor:
        """Make activations of `n` columns."""
        return self.context.from_numpy(self.rng.standard_normal((n, k), np.float32))

    def case(self, kernel: str, dtype: DType, shape: tuple[int, int], n: int) -> Case:
        """Record a product; its kernel is the last of the dispatches that its op makes."""
        m, k = shape
        weight = self.weight(m, k, dtype, rounded=kernel == "q8")
        x = self.columns(n, k)
        rows, prologue = (q8_activations(x), Q8) if kernel == "q8" else (x, VALUES)
        product = cast("Tensor", linear(weight, rows, prologue=prologue))
        recorded = self.context.record(product)
        return Case(
            kernel, dtype, m, k, n, lambda: sum(t for o, _, t in recorded.timed() if o == "linear")
        )

    def experts(self, dtype: DType) -> Tensor:
        """Make the weights of all experts, (experts, m, k)."""
        spec = Spec.dense((EXPERTS, *EXPERT), dtype)
        data = self._bytes(spec).data
        return leaf(spec, self.executor.weight(spec, data, "experts", alone=True))

    def _bytes(self, spec: Spec) -> NDArray[np.uint8]:
        """Draw random bytes, any two of which are a finite f16; their values do not matter."""
        data = self.rng.integers(0, 128, spec.nbytes, np.uint8) & np.uint8(0x3B)
        if spec.dtype == MXFP4:  # small exponents would make subnormal sums, dear for a core
            data.reshape(-1, MXFP4.block_nbytes)[:, 0] |= np.uint8(64)
        return data

    def expert_case(self, weights: Tensor, tokens: int, *rules: str) -> Case:
        """Record a product of tokens with the experts they chose, with some fusion rules."""
        m, k = EXPERT
        chosen = np.stack([self.rng.permutation(EXPERTS)[:USED] for _ in range(tokens)])
        x = self.columns(tokens, k).reshape(tokens, 1, k)
        self.executor.rules = fusions(rules, exact=False)
        recorded = self.context.record(weights.mulmat_id(x, self.context.from_numpy(chosen)))
        self.executor.rules = {}
        # The lists of pairs belong to the product, the rounding of activations does not.
        wanted = ("linear_by_expert", "expert_tiles")
        return Case(
            ("q8" if any("q8" in rule for rule in rules) else "f32")
            + (" tiles" if "linear_by_expert_tiles" in rules else " each"),
            weights.dtype,
            m,
            k,
            tokens * USED,
            lambda: sum(t for o, _, t in recorded.timed() if o.startswith(wanted)),
        )

    def roof(self, act: Callable[[Tensor], Node], values: np.ndarray, amount: float) -> Roof:
        """Record a kernel that is bound by one resource, of which it uses `amount`."""
        made = cast("Tensor", act(self.context.from_numpy(values)))
        recorded = self.context.record(made)
        return Roof(amount, lambda: sum(t for _, _, t in recorded.timed()))


@dataclass(slots=True)
class Roof:
    """A kernel that uses one resource at the device's best rate, in 10⁹ a second."""

    amount: float
    run: Callable[[], float]
    rate: float = 0.0

    def turn(self) -> None:
        """Run it once more."""
        self.rate = max(self.rate, self.amount / self.run() / 1e9)


Roofs = dict[str, Roof]


def roofs_of(bench: Bench) -> Roofs:
    """Make the roofs: reads, and multiply-adds in f32 and in packed bytes."""
    floats = np.zeros((ROOF_THREADS, 4), np.float32)
    macs = ROOF_THREADS * ROOF_ITERATIONS
    return {
        "read GB/s": bench.roof(read_roof, np.zeros(READ_NBYTES // 4, np.float32), READ_NBYTES),
        "f32 GMAC/s": bench.roof(fma_roof, floats, FMA_ITERATION * macs),
        "packed bytes GMAC/s": bench.roof(dot_roof, floats.view(np.uint32), DOT_ITERATION * macs),
    }


def take_turns(cases: Iterable[Case], roofs: Roofs, repetitions: int) -> None:
    """Let cases and roofs take turns, so that other load affects all of them."""
    cases = list(cases)
    for _ in range(repetitions):
        for roof in roofs.values():
            roof.turn()
        for case in cases:
            case.seconds = min(case.seconds, case.run())


def cases_of(bench: Bench, dtype: DType, columns: Iterable[int]) -> list[Case]:
    """Make the products of a format: of one column in both shapes, of several in one."""
    found: list[Case] = []
    kernels = ("q8", "f32") if dtype in FORMATS else ("f32",)
    for kernel in kernels:
        for n in columns:
            shapes = (FFN, DOWN) if n == 1 else (FFN,)
            if n == 1 and dtype.name == "q4_0":
                shapes = (*shapes, HEAD)
            found += [bench.case(kernel, dtype, shape, n) for shape in shapes]
    return found


def expert_cases(bench: Bench, dtype: DType) -> list[Case]:
    """Make products by the chosen expert: pair by pair, and by tiles with the same expert."""
    weights = bench.experts(dtype)
    rounded, together = "linear_by_expert_q8", "linear_by_expert_tiles"
    found: list[Case] = []
    for tokens in TOKENS:
        found += [bench.expert_case(weights, tokens, *r) for r in ((), (rounded,))]
        if tokens > 1:
            both = (together,), (together, rounded)
            found += [bench.expert_case(weights, tokens, *rules) for rules in both]
    return found


def show_experts(case: Case, roofs: Roofs) -> Row:
    """Print a line; bytes are those of the experts that tokens chose, one by one."""
    row = case.row()
    gbytes = row.gbytes * (row.columns if row.columns == USED else 0)
    share = f"{gbytes:8.2f}{gbytes / roofs['read GB/s'].rate:7.0%}" if gbytes else " " * 15
    print(
        f"{row.dtype:8}{row.kernel:11}{row.columns // USED:6}{row.microseconds:10.0f}{share}"
        f"{row.gmacs:9.2f}",
        flush=True,
    )
    return row


def show(row: Row, roofs: Roofs) -> None:
    share = row.gbytes / roofs["read GB/s"].rate
    print(
        f"{row.dtype:8}{row.kernel:4}{row.m:7} x{row.k:5}{row.columns:5}{row.microseconds:10.0f}"
        f"{row.gbytes:8.2f}{share:7.0%}{row.gmacs:9.2f}",
        flush=True,
    )


def products_measured(
    bench: Bench, roofs: Roofs, formats: list[DType], columns: list[int], repetitions: int
) -> list[Row]:
    """Print and return the times of products with one weight."""
    print("format  act      weights  columns        us    GB/s  of read  GMAC/s")
    rows: list[Row] = []
    for dtype in formats:
        cases = cases_of(bench, dtype, columns)
        take_turns(cases, roofs, repetitions)
        rows += (found := [case.row() for case in cases])
        for row in found:
            show(row, roofs)
    return rows


def experts_measured(
    bench: Bench, roofs: Roofs, formats: list[DType], _: list[int], repetitions: int
) -> list[Row]:
    """Print and return the times of products by the chosen expert."""
    print(f"{EXPERTS} experts of {EXPERT[0]} x {EXPERT[1]}, {USED} chosen by a token")
    print("format  kernel     tokens        us    GB/s of read   GMAC/s")
    rows: list[Row] = []
    for dtype in formats:
        cases = expert_cases(bench, dtype)
        take_turns(cases, roofs, repetitions)
        rows += [show_experts(case, roofs) for case in cases]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="")
    parser.add_argument("--repetitions", type=int, default=8)
    parser.add_argument("--only", default="", help="formats, separated by commas")
    parser.add_argument("--columns", default="1,32,128,256")
    parser.add_argument("--experts", action="store_true", help="products by the chosen expert")
    parser.add_argument("--json", type=Path, help="also write the figures there")
    options = parser.parse_args()
    every = [MXFP4, Q4_0] if options.experts else [*FORMATS, F16]
    formats = [named(f) for f in options.only.split(",") if f] or every
    columns = [int(n) for n in options.columns.split(",")]
    with_device = {"device": options.device} if options.device else {}
    executor = make_executor("wgpu", BackendParams(**with_device))
    assert isinstance(executor, WgpuExecutor)
    try:
        bench = Bench(executor)
        roofs = roofs_of(bench)
        print(executor.info.name)
        measure = experts_measured if options.experts else products_measured
        rows = measure(bench, roofs, formats, columns, options.repetitions)
        rates = {name: roof.rate for name, roof in roofs.items()}
        print("roofs:", *(f"{name} {rate:.1f}" for name, rate in rates.items()), sep="  ")
        if options.json:
            figures = {"device": executor.info.name, "roofs": rates, "rows": [*map(asdict, rows)]}
            options.json.write_text(json.dumps(figures, indent=1), encoding="utf-8")
    finally:
        executor.close()


if __name__ == "__main__":
    main()
