"""The opener of models on a cluster: on each node a worker with its own copy of the files."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from wgpu_backend.errors import ModelError, WorkerLost
from wgpu_backend.files.store.stored import Stored
from wgpu_backend.server.cluster.files import digest_file
from wgpu_backend.server.cluster.link import Address, RemoteChannel
from wgpu_backend.server.cluster.replicas import ClusterModel
from wgpu_backend.server.core.model_api import ModelInterface
from wgpu_backend.server.worker.client import HANG_SECONDS, Client
from wgpu_backend.server.worker.messages import LoadSpec
from wgpu_backend.server.worker.remote import WorkerModel, open_worker

MakeSpec = Callable[[Stored, int | None], LoadSpec]


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node reports before a model is opened on it.

    Parameters
    ----------
    name : str
        Of the node, for messages.
    version : str
        Of this package.
    device : str
        Id of its best device.
    address : (str, int)
        Of its listener.
    """

    name: str
    version: str
    device: str
    address: Address


class Node(Protocol):
    """A node that is alive; each method waits for an answer, and raises WorkerLost without one."""

    def describe(self) -> NodeFacts:
        """Return its facts."""
        ...

    def find(self, path: str, digest: str) -> str | None:
        """Return its own copy of a file, see `find_copy`; None if it has none."""
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
    """An opener of models with a replica on each node.

    Parameters
    ----------
    nodes : Nodes
    make_spec : callable
        Makes the spec of a model with a context length, for this machine.
    version : str
        Of this package; nodes need the same.
    device : str or None
        Device to use on every node; None for each node's best one.
    """

    def __init__(
        self,
        nodes: Nodes,
        make_spec: MakeSpec,
        version: str,
        max_queue: int,
        hang_seconds: float = HANG_SECONDS,
        device: str | None = None,
    ) -> None:
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
        digests = {path: digest_file(path) for path in _list_paths(spec)}
        opened = partial(self._open, name, spec, digests)
        return ClusterModel(name, opened, len(self._nodes.list()))

    def _open(
        self, name: str, spec: LoadSpec, digests: Mapping[str, str], number: int
    ) -> WorkerModel:
        nodes = self._nodes.list()
        node = nodes[number % len(nodes)]
        facts = node.describe()
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
        start = partial(RemoteChannel, address=facts.address, token=self._nodes.token)
        clients: list[Client] = []

        def register(client: Client) -> None:
            clients.append(client)
            with self._lock:
                if self._closed:
                    raise WorkerLost(f"{name}: the server ends")
                self._starting.add(client)

        there = _move(spec, found, self._device or facts.device)
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
    return [spec.path, *others, *([] if spec.mmproj is None else [spec.mmproj])]


def _move(spec: LoadSpec, found: Mapping[str, str], device: str) -> LoadSpec:
    """Return a spec with a node's own paths and device."""
    return replace(
        spec,
        path=found[spec.path],
        device=device,
        adapters=tuple((found[path], scale) for path, scale in spec.adapters),
        control_vectors=tuple((found[path], scale) for path, scale in spec.control_vectors),
        mmproj=None if spec.mmproj is None else found[spec.mmproj],
    )
