"""The nodes of a Ray cluster, for ``serve --cluster``.

Ray finds the nodes, starts an agent on each, and starts it again if it dies. The agent listens for
the server's connections; tokens and prompts do not go through Ray. Ray knows no WebGPU adapters, so
a node states its own as custom resources when it is started. The stages of a pipeline have agents
of their own in a placement group, one a node, which reserves their share of the memory::

    ray start --head --resources "$(python -m wgpu_backend.cli.commands.serve.cluster)"
"""

from __future__ import annotations

import importlib
import json
import secrets
from collections.abc import Sequence
from typing import Any

from wgpu_backend import __version__
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.names import BUNDLED, STORY
from wgpu_backend.cli.store import open_store
from wgpu_backend.errors import WorkerLost
from wgpu_backend.server.cluster.files import find_copy
from wgpu_backend.server.cluster.link import Listener, choose_port
from wgpu_backend.server.cluster.opener import NodeFacts

ADAPTER, MEMORY = "wgpu_adapter", "wgpu_memory"
NAMESPACE = "wgpu_backend"
# What agents take of a node's adapter: one for all models, and one for each stage of a pipeline.
AGENT_SHARE, STAGE_SHARE = 0.5, 0.05
# Starting an agent takes seconds, as its process imports this package.
_ANSWER_SECONDS = 60.0
_RESERVE_SECONDS = 10.0


def list_resources() -> dict[str, float]:
    """Return the resources of this node for Ray: one adapter, and its bytes of memory.

    The adapter is the best of `Devices`; NumPy counts as one.
    """
    from wgpu_backend.device.adapters import Devices

    best = Devices()[0]
    return {ADAPTER: 1.0, MEMORY: float(best.total_memory or 0)}


class Agent:
    """A node's agent, which Ray runs as an actor.

    Parameters
    ----------
    token : str
        Token that connections must have.
    group : str
        Name of the pipeline that it has a stage of; empty for the node's agent.
    spare : bool
        See `Listener`.
    """

    def __init__(self, token: str, group: str = "", *, spare: bool = True) -> None:
        util: Any = importlib.import_module("ray.util")
        self._host: str = util.get_node_ip_address()
        try:
            self._listener = Listener(token, self._host, choose_port(token, group), spare=spare)
        except OSError:
            # Another node of this machine has it.
            self._listener = Listener(token, self._host, spare=spare)

    def describe(self, device: str | None = None) -> NodeFacts:
        """Return the node's facts, see `opener.Node`."""
        from wgpu_backend.device.adapters import Devices

        found = Devices()[0] if device is None else Devices().find(device)
        return NodeFacts(self._host, __version__, found, self._listener.address)

    def find(self, path: str, digest: str) -> str | None:
        """Return the node's copy of a file: of its store, of the package, or at the same path."""
        return find_copy(path, digest, [open_store().root / "blobs", BUNDLED[STORY].parent])


class RayNode:
    """A node with a running agent."""

    def __init__(self, ray: Any, actor: Any) -> None:  # noqa: ANN401  Ray has no types of its own
        self._ray, self._actor = ray, actor

    def describe(self, device: str | None = None) -> NodeFacts:
        """Return the node's facts, see `opener.Node`."""
        return self._get(self._actor.describe.remote(device))

    def find(self, path: str, digest: str) -> str | None:
        """Return the node's copy of a file."""
        return self._get(self._actor.find.remote(path, digest))

    def _get(self, reference: Any) -> Any:  # noqa: ANN401
        try:
            return self._ray.get(reference, timeout=_ANSWER_SECONDS)
        except self._ray.exceptions.RayError as error:
            text = str(error).strip().splitlines()
            raise WorkerLost(f"cluster: a node does not answer: {text[0][:200]}") from None


class RayNodes:
    """The nodes of a Ray cluster that have an adapter.

    Parameters
    ----------
    address : str
        Address of the cluster's head, ``HOST:PORT``, or ``auto`` for one on this machine.
    spare : bool
        Whether a process waits on each node with its imports done, for models that are on one node.

    Raises
    ------
    UsageError
        Ray is not installed, or no cluster answers.
    """

    def __init__(self, address: str, *, spare: bool = True) -> None:
        self._spare = spare
        try:
            self._ray: Any = importlib.import_module("ray")
            self._groups: Any = importlib.import_module("ray.util.placement_group")
            strategies: Any = importlib.import_module("ray.util.scheduling_strategies")
        except ImportError:
            raise UsageError(
                "--cluster: needs Ray; `pip install '.[cluster]'` in the checkout"
            ) from None
        self._affinity: Any = strategies.NodeAffinitySchedulingStrategy
        self._in_group: Any = strategies.PlacementGroupSchedulingStrategy
        # Placement groups of pipelines and their agents, by name.
        self._reserved: dict[str, tuple[Any, list[Any]]] = {}
        self.token = secrets.token_urlsafe(32)
        self._agents: dict[str, Any] = {}
        try:
            self._ray.init(
                address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False
            )
        except (ConnectionError, ValueError, RuntimeError) as error:
            text = str(error).strip().splitlines()
            raise UsageError(f"--cluster: {address}: {text[0][:200]}") from None

    def list(self) -> Sequence[RayNode]:
        """Return the nodes that are alive and have an adapter, by their ids.

        Raises
        ------
        WorkerLost
            There is none.
        """
        alive = {
            node["NodeID"]: node["NodeManagerAddress"]
            for node in self._ray.nodes()
            if node["Alive"] and node["Resources"].get(ADAPTER)
        }
        if not alive:
            raise WorkerLost(
                f"cluster: no node has the resource {ADAPTER}; start nodes with "
                'ray start --resources "$(python -m wgpu_backend.cli.commands.serve.cluster)"'
            )
        self._agents = {key: agent for key, agent in self._agents.items() if key in alive}
        for key in sorted(alive):
            if key not in self._agents:
                self._agents[key] = self._start(key)
        return [RayNode(self._ray, self._agents[key]) for key in sorted(alive)]

    def _start(self, node: str) -> Any:  # noqa: ANN401
        kind = self._ray.remote(Agent).options(
            num_cpus=0,
            resources={ADAPTER: AGENT_SHARE},
            max_restarts=-1,
            scheduling_strategy=self._affinity(node, soft=False),
        )
        return kind.remote(self.token, spare=self._spare)

    def reserve(self, name: str, count: int, nbytes: float) -> Sequence[RayNode]:
        """Return the nodes of a pipeline's stages, each with an agent for it in a placement group.

        Ray restarts the agents, on other nodes where one is gone.

        Parameters
        ----------
        name : str
            Name of the pipeline; one that is opened again has its nodes still.
        count : int
            Stages, each on another node.
        nbytes : float
            Bytes of memory that each takes, if the nodes state theirs.

        Raises
        ------
        WorkerLost
            Not so many nodes have that much free.
        """
        if name not in self._reserved:
            self._reserved[name] = self._make_group(name, count, nbytes)
        return [RayNode(self._ray, agent) for agent in self._reserved[name][1]]

    def _make_group(self, name: str, count: int, nbytes: float) -> tuple[Any, list[Any]]:
        bundle = {ADAPTER: STAGE_SHARE}
        if all(node["Resources"].get(MEMORY) for node in self._ray.nodes() if node["Alive"]):
            bundle[MEMORY] = nbytes
        group = self._groups.placement_group([bundle] * count, strategy="STRICT_SPREAD")
        if not group.wait(_RESERVE_SECONDS):
            self._groups.remove_placement_group(group)
            raise WorkerLost(
                f"cluster: {name}: needs {count} nodes with {bundle} free, there are "
                f"{self._ray.available_resources().get(ADAPTER, 0):g} {ADAPTER} in all"
            )
        agents: list[Any] = []
        for at in range(count):
            kind = self._ray.remote(Agent).options(
                num_cpus=0,
                resources=bundle,
                max_restarts=-1,
                scheduling_strategy=self._in_group(group, placement_group_bundle_index=at),
            )
            agents.append(kind.remote(self.token, f"{name} {at}"))
        return group, agents

    def release(self, name: str) -> None:
        """Give a pipeline's nodes back, and end its agents; does nothing if it has none."""
        found = self._reserved.pop(name, None)
        if found is not None:
            # Its agents end with it.
            self._groups.remove_placement_group(found[0])


if __name__ == "__main__":
    print(json.dumps(list_resources()))  # noqa: T201  for a shell
