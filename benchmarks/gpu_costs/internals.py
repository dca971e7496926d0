"""Uses of the package's internals, in one file so that renames there affect only this file.

The graphs of a model are recorded without memory, as they are while weights load, and each dispatch
is noted with its operands. The shader then compiles on the device that there is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wgpu_backend.device.adapters import Devices
from wgpu_backend.device.wgsl.module import Shader
from wgpu_backend.dtypes import named
from wgpu_backend.engine.runner import NOTHING, Head, Runner
from wgpu_backend.engine.step_sampler import StepSampler
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.ml.backend import Backend, BackendParams, new_backend
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ml.wgpu.dispatch import Kernel, kernels
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor, DryRunGraph
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ml.wgpu.storage import Part
from wgpu_backend.nn.batch import BatchShape
from wgpu_backend.nn.model import model_class
from wgpu_backend.ops.linear.activation_rounding import EVERY_PRODUCT
from wgpu_backend.ops.sampling.host import SamplingOptions

POSITIONS = 8192  # that the cache has room for; more where a graph needs them
SHORTEST = 256
LINEAR = "linear"  # how names of products with weights begin
_WHOLE = (Part(0, 1, {}),)

Operands = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Dispatched:
    """One dispatch of a graph.

    Parameters
    ----------
    op : str
    shader : Shader
    params : bytes
    groups : (int, int, int)
    operands : tuple of (name, dtype, shape)
    result : tuple of int
        Shape of what it makes.
    weights : int
        Weights that it multiplies by; 0 where it is no product.
    nbytes : int
        Of operands and result, each read or written once; of a cache what is in it.
    """

    op: str
    shader: Shader
    params: bytes
    groups: tuple[int, int, int]
    operands: Operands
    result: tuple[int, ...]
    weights: int
    nbytes: int


@contextmanager
def opened(path: Path, *, exact: bool, coarse: bool, rounded: bool) -> Iterator[Backend]:
    """Open a backend on the null device, with weights without storage.

    Parameters
    ----------
    path : Path
        A GGUF file.
    exact : bool
        Keep activations in f32.
    coarse : bool
        Activations in eight bits alone.
    rounded : bool
        The same, as if tuning had found that they pay for every product.

    Raises
    ------
    LookupError
        There is no null device.
    """
    vulkan = (d for d in Devices() if d.api == "Vulkan" and "mesa" in d.driver.lower())
    info = next(vulkan, None)
    if info is None:
        raise LookupError("the null device did not open")
    backend = new_backend(
        path,
        BackendParams(info, exact=exact, coarse=coarse or rounded, self_test=False),
        name="wgpu",
    )
    try:
        if rounded:
            executor = _executor(backend)
            backend.executor = executor.as_if(replace(executor.capabilities, rounded=EVERY_PRODUCT))
        yield backend
    finally:
        backend.close()


def driver(backend: Backend) -> tuple[str, str]:
    """Return name and driver of the device."""
    info = _executor(backend).info
    return info.name, info.driver


def compiled(backend: Backend, shader: Shader) -> None:
    """Compile a shader now."""
    _executor(backend).device.pipeline(shader)


def _executor(backend: Backend) -> WgpuExecutor:
    assert isinstance(backend.executor, WgpuExecutor)
    return backend.executor


def shape_of(graph: str, positions: int) -> BatchShape:
    """Return the batch of a graph by its name.

    Parameters
    ----------
    graph : str
        ``decode4``: a token of each of four sequences; ``prefill64``: a prompt of 64 tokens;
        ``prefill64at8192``: 64 tokens of a prompt, the last of which is position 8191.
    positions : int
        That the sequences of a decode step have.

    Raises
    ------
    ValueError
        It is no such name.
    """
    for kind in ("decode", "prefill"):
        digits = graph.removeprefix(kind)
        if digits != graph and digits.isdecimal() and int(digits):
            n = int(digits)
            return BatchShape(n, n, n, positions) if kind == "decode" else _prompt(n)
    tokens, _, end = graph.removeprefix("prefill").partition("at")
    if tokens.isdecimal() and end.isdecimal() and 0 < int(tokens) < int(end) > SHORTEST:
        return BatchShape(int(tokens), 1, 1, int(end))
    raise ValueError(
        f"graph {graph!r}: needs decodeN, prefillN or prefillNatM, M above N and {SHORTEST}"
    )


def _prompt(tokens: int) -> BatchShape:
    return BatchShape(tokens, 1, 1, max(tokens, SHORTEST))


def _first_position(shape: BatchShape) -> int:
    """Return the position of a prompt's first token."""
    return shape.longest - shape.tokens if shape.longest > SHORTEST else 0


class _Listing(DryRunExecutor):
    """A recorder that lists each kernel of a graph."""

    def __init__(self, executor: WgpuExecutor) -> None:
        super().__init__(executor, lambda shader: None)
        self.found: list[tuple[str, Launch, Sequence[Kernel]]] = []

    def record(
        self,
        outputs: Sequence[Node],
        *,
        shared: bool = True,
        times: int = 1,
        read: bool = True,
        unread: Sequence[Node] = (),
    ) -> DryRunGraph:
        """List the kernels of a graph."""
        done = self.plan(outputs, times, unread)
        for node, launch in done.plan.steps:
            assert node.call is not None
            made = kernels(node.call.op, launch, self.capabilities, lambda _: _WHOLE)
            self.found.append((node.call.op.name, launch, list(made)))
        return done


def dispatches(
    backend: Backend, graphs: Mapping[str, BatchShape], kv_dtype: str
) -> Iterator[tuple[str, list[Dispatched]]]:
    """List each graph's dispatches of a model, in order.

    Parameters
    ----------
    backend : Backend
    graphs : mapping of str to BatchShape
    kv_dtype : str
        Of the cache.
    """
    listing = _Listing(_executor(backend))
    draft = Backend(backend.file, listing)
    kind = model_class(backend.config)
    draft.load(fused_weights=kind.fused_weights)
    model = kind(draft)
    room = max(POSITIONS, *(shape.longest for shape in graphs.values()))
    runner = Runner(model, model.make_cache(listing, 1, room, named(kv_dtype)))
    sampler = StepSampler(SamplingOptions(), draft.require("token_embd.weight").shape[0])
    head = Head("costs", sampler.head(model, runner.token_slots))
    try:
        for name, shape in graphs.items():
            listing.found.clear()
            runner.recorded(shape, head if shape.outputs == shape.tokens else NOTHING)
            yield name, [each for found in listing.found for each in _dispatched(*found, shape)]
    finally:
        runner.close()


def graph_dispatches(backend: Backend, build: Callable[[Context], Tensor]) -> list[Dispatched]:
    """List the dispatches of a graph that a function builds, in order."""
    listing = _Listing(_executor(backend))
    with Context(listing) as context:
        context.record(build(context))
    return [each for found in listing.found for each in _dispatched(*found, None)]


def _dispatched(
    op: str, launch: Launch, made: Sequence[Kernel], shape: BatchShape | None
) -> Iterator[Dispatched]:
    operands = tuple(
        (name, node.spec.dtype.name, tuple(node.spec.shape))
        for name, node in launch.operands.items()
    )
    # Of experts' matrices only some are multiplied, and which is not known.
    product = op.startswith(LINEAR) and "ids" not in launch.operands
    weights = launch.operands.get("weights") if product else None
    count = weights.spec.size // len(made) if weights is not None else 0
    nbytes = _nbytes(op, launch, shape) // len(made)
    for kernel in made:
        yield Dispatched(
            op, kernel.shader, kernel.params, kernel.groups, operands,
            tuple(launch.out.shape), count, nbytes,
        )  # fmt: skip


def _nbytes(op: str, launch: Launch, shape: BatchShape | None) -> int:
    total = launch.out.nbytes if launch.into is None else 0
    once = {(id(node.storage), node.spec): (name, node) for name, node in launch.operands.items()}
    for name, node in once.values():
        nbytes: int = node.spec.nbytes
        if shape and "attention" in op and name in ("k", "v"):
            nbytes = nbytes * shape.longest * shape.sequences // node.spec.shape[0]
        elif launch.into is not None or op == "rows":
            nbytes = min(nbytes, launch.out.nbytes)
        total += nbytes
    return total


def contents(each: Dispatched, shape: BatchShape | None) -> dict[int, Any]:
    """Return the assumed contents of buffers that loops and addresses depend on, by binding.

    Tokens of a decode step are the last of their sequences, those of a prompt follow one another,
    and blocks of the cache lie in order.
    """
    if shape is None:
        return {}
    last = shape.longest - 1
    prompt, first = shape.outputs != shape.tokens, _first_position(shape)
    assumed = {
        "positions": lambda i: i + first if prompt else i * 0 + last,
        "sequences": lambda i: i * 0 if prompt else i,
        "table": lambda i: i,
        "slots": lambda i: i,
    }
    return {b.index: assumed[b.name] for b in each.shader.bindings if b.name in assumed}


def binding_names(shader: Shader) -> dict[int, str]:
    """Return the names of a shader's bindings by number."""
    return {binding.index: binding.name for binding in shader.bindings}


def params_binding(shader: Shader) -> int:
    """Return the number of the parameters' binding, or -1."""
    return next((b.index for b in shader.bindings if b.access == "uniform"), -1)


def kernels_of(backend: Backend, result: Node) -> list[Kernel]:
    """Return the kernels that compute a tensor from its operands, on a backend's device."""
    while result.launch is None:
        assert result.source is not None
        result = result.source
    assert result.call is not None
    capabilities = _executor(backend).capabilities
    return list(kernels(result.call.op, result.launch, capabilities, lambda _: _WHOLE))
