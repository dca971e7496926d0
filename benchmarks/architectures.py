"""Compare what a decode step reads and dispatches, by architecture, with a Llama of its size.

::

    python -m benchmarks.architectures FOLDER [--write OUT]

FOLDER has GGUF files, such as the tiny models of ``tests/zoo.py``. Nothing is run: graphs of a step
are recorded for a GPU that is described below, without its memory, and what their dispatches bind
is added up. Of experts only those count that a token has chosen, of an embedding its row. What a
step needs are the weights in the file, each once. With `--write` OUT.md and OUT.svg are written.

The estimate is of a model whose layers are those of an 8B one in four bits, on a card that reads
960 GB/s and takes 3 microseconds from a dispatch to the next, as ``benchmarks.gpu_costs`` has it:
how much longer a step takes than that of a Llama with as many bytes.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.plot import Series, lines, picture
from wgpu_backend.dtypes import F16
from wgpu_backend.engine.runner import Head, Runner
from wgpu_backend.files.gguf.reader import GGUFFile, open_gguf
from wgpu_backend.graph.capabilities import Capabilities, DeviceInfo
from wgpu_backend.graph.node import Launch, Storage
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels import complete
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ml.wgpu.dispatch import kernels
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor
from wgpu_backend.ml.wgpu.storage import Part
from wgpu_backend.nn.batch import BatchArrays, BatchShape, Work, all_input_specs
from wgpu_backend.nn.kvcache.cache import Cache
from wgpu_backend.nn.kvcache.factory import make_cache
from wgpu_backend.nn.kvcache.layered import LayeredCache
from wgpu_backend.nn.kvcache.layers import LayerCache, LayerShape, StateShape, iterate_entries
from wgpu_backend.nn.kvcache.recurrent import Checkpoints
from wgpu_backend.nn.model import Model, model_class
from wgpu_backend.ops.linear.gates import joined_rows
from wgpu_backend.ops.op import fusions

PLACES = tuple(1 << n for n in range(8, 16))  # positions up to 32k
NEAR, FAR = PLACES[2], PLACES[-1]
PASS = 256
LAYER_US, GAP_US = 218e6 * 0.5625 / 960e3, 3.0
LIMIT = 1.15
PLOTTED = ("llama", "gemma3", "gpt-oss", "mamba", "qwen3next", "rwkv7")
LOOKED_UP = ("rows", "rows_of_tokens")
TABLES = ("token_embd.", "position_embd", "per_layer_token_embd")
WHOLE = (Part(0, 1, {}),)
NAMED = 4  # ops that a model above the limit has more of


class Described:
    """A GPU that does not exist, with the members that `DryRunExecutor` uses."""

    info = DeviceInfo("none", "described", kind="discrete")
    capabilities = complete(
        Capabilities(
            subgroups=True,
            f16=True,
            fused=True,
            max_binding_nbytes=1 << 31,
            max_buffer_nbytes=1 << 32,
            max_workgroup_nbytes=32768,
            max_workgroup_invocations=1024,
        )
    )

    def __init__(self) -> None:
        self.rules = fusions(exact=True)

    def reserve_weight(self, spec: Spec, label: str) -> Storage:
        """Reserve storage of a weight, in planes."""
        return Storage(spec.nbytes, "weight", label)


@dataclass(frozen=True, slots=True)
class Row:
    """The figures of a model.

    Parameters
    ----------
    name, architecture : str
    layers : int
    needed, read : int
        Bytes of weights that a step needs, and that its dispatches bind.
    ops : tuple of Counter
        Dispatches of the layers by op, at `NEAR` and at `FAR`.
    past : tuple of int
        Bytes that a step reads of the cache, and writes of states, at each of `PLACES`.
    memory : tuple of int
        Bytes of a cache for one sequence of each of `PLACES`.
    """

    name: str
    architecture: str
    layers: int
    needed: int
    read: int
    ops: tuple[Counter[str], Counter[str]]
    past: tuple[int, ...]
    memory: tuple[int, ...]

    @property
    def reads(self) -> float:
        """Bytes bound relative to bytes needed."""
        return self.read / self.needed

    @property
    def dispatches(self) -> tuple[float, float]:
        """Dispatches of a layer, at `NEAR` and at `FAR`."""
        near, far = (ops.total() / self.layers for ops in self.ops)
        return near, far

    def estimate(self, llama: Row) -> float:
        """Estimate the time of a step of real size, relative to a Llama with as many bytes."""
        own, other = (GAP_US * row.dispatches[0] for row in (self, llama))
        return (LAYER_US * self.reads + own) / (LAYER_US * llama.reads + other)


def measured(path: Path) -> Row | None:
    """Record a model's steps; None for an encoder, which has none."""
    with open_gguf(path) as file:
        kind = model_class(Backend(file, NumpyExecutor()).config)
        executor = DryRunExecutor(Described(), lambda shader: None)  # pyright: ignore[reportArgumentType]
        backend = Backend(file, executor)
        backend.load(fused_weights=kind.fused_weights)
        model = kind(backend)
        if not model.causal or not model.has_logits:
            return None
        steps = [step(model, executor, place) for place in (NEAR, FAR)]
        layers = model.cache_layers()
        caches = [make_cache(executor, layers, 1, place) for place in PLACES]
        return Row(
            path.stem,
            backend.config.architecture,
            len(layers),
            needed(file),
            steps[0][0],
            (steps[0][1], steps[1][1]),
            tuple(past(layers, caches[-1], place) for place in PLACES),
            tuple(sum(t.spec.nbytes for t in tensors(cache)) for cache in caches),
        )


def step(model: Model, executor: DryRunExecutor, place: int) -> tuple[int, Counter[str]]:
    """Return the weight bytes that a step at a position binds, and dispatches of its layers."""
    runner = Runner(model, model.make_cache(executor, 1, place, F16))
    head = Head("greedy", lambda _, hidden: [model.logits(hidden).argmax()])
    recorded = runner.recorded(BatchShape(1, 1, 1, runner.cache.reach(place, 1)), head)
    nbytes, found, layers = 0, list[tuple[str, int]](), list[int]()
    for number, (node, launch) in enumerate(recorded.plan.steps):
        assert node.call is not None
        operands = launch.operands.values()
        op = node.call.op
        nbytes += sum(bound(op.name, launch, name) for name in launch.operands)
        made = kernels(op, launch, executor.capabilities, lambda _: WHOLE)
        found.append((op.name, sum(1 for _ in made)))
        if any("blk." in n.storage.label for n in operands):
            layers.append(number)
    ops = Counter[str]()
    for name, count in found[layers[0] : layers[-1] + 1]:
        ops[name] += count
    return nbytes, ops


def bound(op: str, launch: Launch, name: str) -> int:
    """Return the bytes of a weight that a dispatch reads; 0 for other tensors."""
    node, ids = launch.operands[name], launch.operands.get("ids")
    spec, rows = node.spec, math.prod(node.spec.shape[:-1])
    if node.storage.kind != "weight":
        return 0
    if op in LOOKED_UP:
        return spec.nbytes * launch.out.shape[0] // rows
    if ids is None or not op.startswith("linear_by_expert"):
        return spec.nbytes
    # Experts' matrices lie below each other; their biases have a row each.
    each = 1 if name == "bias" else joined_rows(launch) * launch.count("m")
    chosen = ids.spec.size * each
    return spec.nbytes * min(rows, chosen) // rows


def needed(file: GGUFFile) -> int:
    """Return the weight bytes that a token needs: rows of tables, experts that it chooses."""
    config = file.config
    experts, used = config.uint("expert_count", 0), config.uint("expert_used_count", 0)
    tied = "output.weight" not in file.tensors
    total = 0.0
    for name, info in file.tensors.items():
        whole = Spec.dense(info.shape, info.dtype).nbytes
        if name.startswith(TABLES) and not (tied and name.startswith("token_embd")):
            whole /= info.shape[0]
        elif "_exps." in name and experts:
            whole *= used / experts
        total += whole
    return round(total)


def past(layers: Sequence[LayerCache], cache: Cache, place: int) -> int:
    """Return the bytes of the past that a step at a position reads, and the states it writes."""
    total = 0
    for number, kept in iterate_entries(layers):
        if isinstance(kept, StateShape):
            total += sum(2 * 4 * math.prod(shape) for shape in kept.shapes.values())
        elif isinstance(kept, LayerShape):
            part = part_of(cache, number)
            total += part.reach(place, 1) * F16.nbytes(sum(kept.columns.values()))
    return total


def part_of(cache: Cache, layer: int) -> Cache:
    """Return the part of a cache that has a layer's keys."""
    return cache._part(layer) if isinstance(cache, LayeredCache) else cache  # pyright: ignore


def tensors(cache: Cache) -> Iterator[Tensor]:
    """List a cache's tensors on a device."""
    parts = cache.parts if isinstance(cache, LayeredCache) else (cache,)
    for part in parts:
        yield from part.tensors  # pyright: ignore


def read_again(layers: Sequence[LayerCache], length: int) -> tuple[int, float, int]:
    """Count tokens read again if a chat goes on from any position: most, mean and an interval."""
    interval = max(2 * PASS, length // 8)
    cache = make_cache(NumpyExecutor(), layers, 1, length, F16, Checkpoints(interval, 3))
    for count in [PASS] * ((length - 200) // PASS) + [1] * 200:  # a prompt, and an answer
        one_pass(cache, count)
    again = [at - cache.resume_point(0, at) for at in range(cache.length(0) + 1)]
    cache.close()
    return max(again), float(np.mean(again)), interval


def one_pass(cache: Cache, count: int) -> None:
    """Pass tokens through a cache."""
    shape = BatchShape(count, count, 1, cache.reach(cache.length(0) + count, count))
    declared = all_input_specs(shape, cache, {})
    arrays = {name: np.zeros(size, dtype.numpy) for name, (size, dtype) in declared.items()}
    BatchArrays(shape, arrays, cache, {}).fill([Work(0, [1] * count)])


CHATS: dict[str, list[LayerCache]] = {
    "sliding window of 1024, every sixth layer sees all": [
        *[LayerShape(64, 64, window=1024)] * 5,
        LayerShape(64, 64),
    ],
    "hybrid: states, every fourth layer attends": [
        *[StateShape(conv=(3, 64), memory=(4, 16, 16))] * 3,
        LayerShape(64, 64),
    ],
}


def report(rows: Sequence[Row]) -> Iterator[str]:
    """Format all figures as Markdown."""
    llama = next(row for row in rows if row.name == "llama")
    assert __doc__ is not None
    yield "# Decode steps by architecture\n"
    yield "By `benchmarks/architectures.py`, whose head says how; counted, not measured anywhere.\n"
    yield "![Past](architectures.svg)\n"
    yield (
        "| model | architecture | weights read / needed | dispatches a layer | at 32k | "
        "estimated / Llama | past at 1k | past at 32k |\n|---|---|---|---|---|---|---|---|"
    )
    for row in rows:
        near, far = row.dispatches
        ratio = row.estimate(llama)
        text = f"**{ratio:.2f}**" if ratio > LIMIT else f"{ratio:.2f}"
        yield (
            f"| {row.name} | {row.architecture} | {row.reads:.3f} | {near:.1f} | {far:.1f} | "
            f"{text} | {size(row.past[2])} | {size(row.past[-1])} |"
        )
    yield from above(rows, llama)
    yield "\n## A chat that goes on\n"
    yield "Tokens that are read again, over all positions that it may go on from.\n"
    yield "| layers | context | most | mean | checkpoint interval |\n|---|---|---|---|---|"
    for name, layers in CHATS.items():
        for length in (4096, 32768):
            most, mean, interval = read_again(layers, length)
            yield f"| {name} | {length} | {most} | {mean:.0f} | {interval} |"


def above(rows: Sequence[Row], llama: Row) -> Iterator[str]:
    """List the models above the limit, with the ops that put them there."""
    over = [row for row in rows if row.estimate(llama) > LIMIT]
    yield f"\n{len(rows) - len(over)} of {len(rows)} at most {LIMIT} times a Llama."
    yield "Above, with the ops of which a layer has more dispatches than a Llama's:\n"
    for row in over:
        twice = f"weights are read {row.reads:.2f} times; " if row.reads > LIMIT else ""
        more = {
            op: n / row.layers - llama.ops[0][op] / llama.layers for op, n in row.ops[0].items()
        }
        most = sorted(more, key=lambda op: -more[op])[:NAMED]
        extra = ", ".join(f"{op} {more[op]:.1f}" for op in most)
        yield f"- {row.name} {row.estimate(llama):.2f}: {twice}{extra}"


def size(nbytes: float) -> str:
    """Format bytes in few letters."""
    return f"{nbytes / 1024:,.0f} KiB"


def plot(rows: Sequence[Row]) -> str:
    """Plot the bytes of the past by position, and the memory by context."""
    chosen = [row for row in rows if row.name in PLOTTED]
    panels = [
        lines(
            title,
            x,
            "KiB",
            [
                Series(row.name, list(zip(PLACES, (v / 1024 for v in values(row)), strict=True)))
                for row in chosen
            ],
        )
        for title, x, values in (
            ("Read of the past in a step", "position", lambda row: row.past),
            ("Memory of a cache", "context", lambda row: row.memory),
        )
    ]
    return picture(panels)


def main() -> None:
    """Measure every model of a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path, metavar="OUT", help="OUT.md and OUT.svg")
    given = parser.parse_args()
    found = [measured(path) for path in sorted(given.folder.glob("*.gguf"))]
    rows = [row for row in found if row is not None]
    text = "\n".join(report(rows)) + "\n"
    print(text)
    if given.write:
        given.write.with_suffix(".md").write_text(text, encoding="utf-8")
        given.write.with_suffix(".svg").write_text(plot(rows), encoding="utf-8")


if __name__ == "__main__":
    main()
