"""The opener of models on a cluster: on each node a worker with its own copy of the files."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from wgpu_backend.dtypes import named
from wgpu_backend.engine.sizes import measure_model
from wgpu_backend.errors import BackendError, ModelError, OutOfMemory, WorkerLost
from wgpu_backend.files.gguf.one_file import text_part
from wgpu_backend.files.gguf.reader import PART_NAME
from wgpu_backend.files.huggingface.folder import open_model_file
from wgpu_backend.files.store.stored import Stored
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.placement import ModelNbytes
from wgpu_backend.server.cluster.files import digest_file
from wgpu_backend.server.cluster.link import Address, RemoteChannel, make_ticket
from wgpu_backend.server.cluster.pipelines import StageBudget, share_layers
from wgpu_backend.server.cluster.replicas import ClusterModel
from wgpu_backend.server.core.model_api import ModelInterface
from wgpu_backend.server.worker.client import HANG_SECONDS, Client
from wgpu_backend.server.worker.messages import LoadSpec, PipelineSpec, StageSpec
from wgpu_backend.server.worker.remote import WorkerModel, open_worker

MakeSpec = Callable[[Stored, int | None], LoadSpec]
Reserve = Callable[[str, int, float], Sequence["Node"]]
"""A function that reserves nodes for a pipeline, given its name, their number and bytes on each."""
Release = Callable[[str], None]
"""A function that gives a pipeline's nodes back, given its name."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node reports before a model is opened on it.

    Parameters
    ----------
    name : str
        Of the node, for messages.
    version : str
        Of this package.
    device : DeviceInfo
        Its best device.
    address : (str, int)
        Of its listener.
    """

    name: str
    version: str
    device: DeviceInfo
    address: Address


class Node(Protocol):
    """A node that is alive; each method waits for an answer, and raises WorkerLost without one."""

    def describe(self, device: str | None = None) -> NodeFacts:
        """Return the node's facts, with the device of an id, or its best one for None.

        Raises
        ------
        DeviceError
            It has no such device.
        """
        ...

    def find(self, path: str, digest: str) -> str | None:
        """Return the node's own copy of a file, see `find_copy`; None if it has none."""
        ...


class Nodes(Protocol):
    """The nodes of a cluster."""

    token: str

    def list(self) -> Sequence[Node]:
        """Return the nodes that are alive, always in the same order.

        Raises
        ------
        WorkerLost
            The cluster does not answer, or has no node with an adapter.
        """
        ...


class ClusterOpener:
    """An opener of models with a replica on each node, or on several that share its layers.

    Parameters
    ----------
    nodes : Nodes
    make_spec : callable
        Makes the spec of a model with a context length, for this machine.
    version : str
        Of this package; nodes need the same.
    device : str or None
        Device to use on every node; None for each node's best one.
    stages : int or None
        Nodes that share the layers of each model; None for as many as its memory needs, as far as
        that of the nodes is known.
    reserve, release : callable or None
        Reserves the nodes of a pipeline, the same ones if it is opened again, and gives them back;
        None to take them in turns.
    """

    def __init__(
        self,
        nodes: Nodes,
        make_spec: MakeSpec,
        version: str,
        max_queue: int,
        hang_seconds: float = HANG_SECONDS,
        device: str | None = None,
        stages: int | None = None,
        reserve: Reserve | None = None,
        release: Release | None = None,
    ) -> None:
        self._stages, self._reserve, self._release = stages, reserve, release
        self._nodes, self._make_spec, self._version = nodes, make_spec, version
        self._max_queue, self._hang_seconds, self._device = max_queue, hang_seconds, device
        self._starting: set[Client] = set()
        self._lock = threading.Lock()
        self._closed = False

    def __call__(self, stored: Stored, num_ctx: int | None) -> ModelInterface:
        """Open a model on all nodes, and wait for it.

        Raises
        ------
        BackendError
            No node is alive, or none could open it.
        """
        spec, name = self._make_spec(stored, num_ctx), str(stored.entry.name)
        if spec.imports:
            raise ModelError(f"{name}: a cluster loads no files of --import; install a package")
        # Nodes have their own copies of the files, so equal names say nothing.
        digests = {path: digest_file(path) for path in _list_paths(spec)}
        nodes = self._nodes.list()
        stages = self._stages or self._count_stages(spec, nodes)
        sizes = _measure(spec) if stages > 1 else None
        opened = partial(self._open, name, spec, digests, sizes, stages)
        size = max(1, len(nodes) // stages)

        def release() -> None:
            if self._release is not None:
                for number in range(size):
                    self._release(f"{name} {number}")

        return ClusterModel(name, opened, size, release=release)

    def _count_stages(self, spec: LoadSpec, nodes: Sequence[Node]) -> int:
        """Return the number of nodes that a model's memory needs; 1 if that is not known."""
        if len(nodes) == 1:
            return 1
        facts = [node.describe(self._device) for node in nodes]
        if any(each.device.free_memory is None for each in facts):
            return 1
        try:
            sizes = _measure(spec)
        except BackendError:
            # Loading reports it.
            return 1
        # The fewest nodes: each further stage adds a trip over the network to every token.
        for count in range(1, min(len(facts), len(sizes.layers)) + 1):
            with suppress(OutOfMemory):
                share_layers(sizes, [_make_budget(each) for each in facts[:count]])
                return count
        return 1

    def _open(
        self,
        name: str,
        spec: LoadSpec,
        digests: Mapping[str, str],
        sizes: ModelNbytes | None,
        stages: int,
        number: int,
    ) -> WorkerModel:
        nodes = self._nodes.list()
        if len(nodes) < stages:
            raise WorkerLost(f"{name}: {len(nodes)} nodes are alive, needs {stages} of them")
        chosen: Sequence[Node]
        if stages > 1 and self._reserve is not None:
            assert sizes is not None
            chosen = self._reserve(f"{name} {number}", stages, _count_nbytes(sizes) / stages)
        else:
            # Replicas take nodes in turns; the list has the same order on every call.
            chosen = [nodes[(number * stages + at) % len(nodes)] for at in range(stages)]
        each = [self._look_at(name, node, digests) for node in chosen]
        facts, found = each[0]
        there = _move(spec, found, facts.device.id)
        if stages > 1:
            assert sizes is not None
            there = replace(there, pipeline=self._make_pipeline(sizes, digests, each))
        return self._start(name, spec, there, facts)

    def _look_at(
        self, name: str, node: Node, digests: Mapping[str, str]
    ) -> tuple[NodeFacts, dict[str, str]]:
        """Return a node's facts and its own paths of files, after comparing both."""
        facts = node.describe(self._device)
        if facts.version != self._version:
            raise ModelError(
                f"cluster: node {facts.name} has version {facts.version}, this server has "
                f"{self._version}; install the same"
            )
        found: dict[str, str] = {}
        for path, digest in digests.items():
            own = node.find(path, digest)
            if own is None:
                raise ModelError(
                    f"{name}: node {facts.name} lacks the file with SHA-256 {digest}; pull or "
                    "create the model there"
                )
            found[path] = own
        return facts, found

    def _make_pipeline(
        self,
        sizes: ModelNbytes,
        digests: Mapping[str, str],
        each: Sequence[tuple[NodeFacts, dict[str, str]]],
    ) -> PipelineSpec:
        """Share the layers over nodes, the first of which has the engine."""
        first = StageBudget(each[0][0].device.id, *_memory(each[0][0]))
        budgets = [first, *(_make_budget(facts) for facts, _ in each[1:])]
        ticket = make_ticket(self._nodes.token)
        stages = tuple(
            StageSpec(
                budget.id, facts.device.id, facts.address, ticket, facts.version,
                tuple((each[0][1][path], own, digests[path]) for path, own in found.items()),
                self._hang_seconds or math.inf,
            )
            for budget, (facts, found) in zip(budgets[1:], each[1:], strict=True)
        )  # fmt: skip
        shared = share_layers(sizes, budgets)
        return PipelineSpec(shared.devices, shared.layers, stages)

    def _start(self, name: str, spec: LoadSpec, there: LoadSpec, facts: NodeFacts) -> WorkerModel:
        """Open a model in a worker on a node."""
        start = partial(RemoteChannel, address=facts.address, token=self._nodes.token)
        clients: list[Client] = []

        def register(client: Client) -> None:
            clients.append(client)
            with self._lock:
                if self._closed:
                    raise WorkerLost(f"{name}: the server is shutting down")
                self._starting.add(client)

        try:
            return open_worker(
                name, there, self._max_queue, lambda _: None, register, self._hang_seconds, start,
                texts=spec.path,
            )  # fmt: skip
        finally:
            with self._lock:
                self._starting.difference_update(clients)

    def close(self) -> None:
        """Open no more models, and end those that are loading."""
        with self._lock:
            self._closed = True
            starting = list(self._starting)
        for client in starting:
            client.kill()


def _measure(spec: LoadSpec) -> ModelNbytes:
    """Return the memory of a model by layer."""
    with open_model_file(spec.path) as opened:
        dtype = named(spec.kv_dtype)
        found = measure_model(text_part(opened), spec.num_ctx, spec.num_parallel, dtype)
        return found.nbytes


def _count_nbytes(sizes: ModelNbytes) -> float:
    """Return the bytes of all parts of a model on GPUs."""
    parts = (sizes.embedding, *sizes.layers, sizes.output)
    return float(sum(each.size_on("") for each in parts))


def _memory(facts: NodeFacts) -> tuple[int | None, bool]:
    return facts.device.free_memory, facts.device.kind == "cpu"


def _make_budget(facts: NodeFacts) -> StageBudget:
    host, port = facts.address
    return StageBudget(f"{facts.device.id}@{host}:{port}", *_memory(facts))


def _list_paths(spec: LoadSpec) -> list[str]:
    """Return the files that a spec names.

    Raises
    ------
    ModelError
        The model is a folder, which has no digest.
    """
    if Path(spec.path).is_dir():
        raise ModelError(f"{spec.path}: a cluster loads GGUF files; make one with create")
    draft = spec.engine.get("draft")
    if draft is not None and Path(draft).is_file():
        raise ModelError("draft: a cluster takes only ngram, a draft model would be another file")
    others = [path for path, _ in (*spec.adapters, *spec.control_vectors)]
    parts = list_parts(spec.path)
    return [spec.path, *parts, *others, *([] if spec.mmproj is None else [spec.mmproj])]


def list_parts(path: str) -> list[str]:
    """Return the other parts of a split model that are there; none for one in one file."""
    found = PART_NAME.fullmatch(Path(path).name)
    if found is None:
        return []
    names = [f"{found[1]}-{n:05}-of-{found[3]}.gguf" for n in range(1, int(found[3]) + 1)]
    others = [Path(path).with_name(name) for name in names]
    # Opening the model names parts that are missing.
    return [str(each) for each in others if str(each) != path and each.is_file()]


def _move(spec: LoadSpec, found: Mapping[str, str], device: str) -> LoadSpec:
    """Return a spec with a node's own paths and device.

    Raises
    ------
    ModelError
        The parts of a split model are not in one folder there.
    """
    for part in list_parts(spec.path):
        beside = Path(found[spec.path]).with_name(Path(part).name)
        if str(beside) != found[part]:
            raise ModelError(
                f"{found[part]}: a part of a split model, needs to be at {beside} on the first node"
            )
    return replace(
        spec,
        path=found[spec.path],
        device=device,
        adapters=tuple((found[path], scale) for path, scale in spec.adapters),
        control_vectors=tuple((found[path], scale) for path, scale in spec.control_vectors),
        mmproj=None if spec.mmproj is None else found[spec.mmproj],
    )
