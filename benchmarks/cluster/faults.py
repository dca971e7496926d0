"""Faults of a pipeline over two nodes: what becomes of requests, counted.

    python -m benchmarks.cluster.faults [--requests 100] [--faults 20] [--delay 0.05]
        [--proxies]

Each node is a network namespace of this machine (Linux, as root, with `ip`) with a store of its
own; elsewhere, a process. A proxy delays what is sent to it. In each round some requests begin,
two of which run while the others wait; then a node is killed, or a link is down for three seconds.
Every answer is compared with that of one process, and what was sent of a failed one is its begin.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from benchmarks.cluster.links import Address, Link
from wgpu_backend import __version__
from wgpu_backend.cli.names import BUNDLED
from wgpu_backend.device.adapters import numpy_device
from wgpu_backend.engine.batching.generation import Generation, Waiter
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import Event
from wgpu_backend.errors import BackendError
from wgpu_backend.server.cluster.files import digest_file, find_copy
from wgpu_backend.server.cluster.opener import ClusterOpener, NodeFacts
from wgpu_backend.server.cluster.replicas import ClusterEngine, Relay
from wgpu_backend.server.worker.messages import LoadSpec

STORY = str(BUNDLED["story"])
SLOTS, CONTEXT, TOKENS = 2, 512, 40
DOWN_SECONDS, HANG_SECONDS, ON_ITS_WAY = 3.0, 90.0, 0.3
LISTEN = "benchmarks.cluster.listen"
PORT, BRIDGE = 7801, "10.87.0.1"
THINGS = ("fox", "dragon", "witch", "koala", "heron", "king", "boat", "moon", "river", "baker")


class Node(ABC):
    """A node: a process that listens, and a folder with its own copy of the model.

    Parameters
    ----------
    home : Path
        Folder of its store.
    """

    def __init__(self, number: int, token: str, home: Path) -> None:
        self.number, self.token, self.store = number, token, home / f"node{number}"
        self.store.mkdir()
        shutil.copy(STORY, self.store / f"sha256-{digest_file(STORY)}")
        self.address = self.prepare()
        self.start()

    @abstractmethod
    def prepare(self) -> Address:
        """Return the address by which others reach it."""

    def command(self) -> list[str]:
        """Return the words before the command of its process."""
        return []

    def listen(self) -> Address:
        """Return the address that it listens at."""
        return self.address

    def start(self) -> None:
        """Start its process, as Ray does after it has died."""
        host, port = self.listen()
        line = [*self.command(), sys.executable, "-m", LISTEN, host, str(port)]
        self.process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(self.token.encode() + b"\n")
        self.process.stdin.flush()
        self.process.stdout.readline()

    @abstractmethod
    def kill(self) -> None:
        """Kill all its processes."""

    def restart(self) -> None:
        """Kill all its processes, and start the first again."""
        self.kill()
        self.killed = time.monotonic()
        self.process.communicate()
        self.start()

    @abstractmethod
    def set_link(self, *, up: bool) -> None:
        """Take the link down, or up again."""

    def describe(self, device: str | None = None) -> NodeFacts:
        """Return its facts."""
        return NodeFacts(f"node{self.number}", __version__, numpy_device(), self.address)

    def find(self, path: str, digest: str) -> str | None:
        """Return its own copy of a file."""
        return find_copy(f"/none/{Path(path).name}", digest, [self.store])

    def close(self) -> None:
        """End it."""
        self.kill()
        self.process.communicate()


class Namespace(Node):
    """A node in a network namespace of its own, on a bridge with the server."""

    delay = 0.0

    @property
    def name(self) -> str:
        """The namespace, and the end of its link at the bridge."""
        return f"wbnode{self.number}"

    def prepare(self) -> Address:
        """Make the namespace and its link."""
        name, host = self.name, f"10.87.0.{10 + self.number}"
        ip("netns", "add", name)
        ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("link", "set", name, "master", "wbbridge", "up")
        for words in (
            ["addr", "add", f"{host}/24", "dev", "eth0"],
            ["link", "set", "eth0", "up"],
            ["link", "set", "lo", "up"],
        ):
            ip("-n", name, *words)
        # Not every kernel has delays of its own.
        self.link = Link((host, PORT), self.delay / 2, BRIDGE)
        return self.link.address

    def listen(self) -> Address:
        """Return the address in the namespace."""
        return self.link.to

    def command(self) -> list[str]:
        """Return the words that run a command in the namespace."""
        return ["ip", "netns", "exec", self.name]

    def kill(self) -> None:
        """Kill all processes of the namespace."""
        found = subprocess.run(
            ["ip", "netns", "pids", self.name], check=True, capture_output=True, text=True
        )
        for pid in found.stdout.split():
            os.kill(int(pid), signal.SIGKILL)

    def set_link(self, *, up: bool) -> None:
        """Take the link down, or up again."""
        ip("link", "set", self.name, "up" if up else "down")

    def close(self) -> None:
        """End it, and remove the namespace with its link."""
        super().close()
        self.link.close()
        ip("netns", "del", self.name)


def ip(*words: str) -> None:
    """Run the command `ip`."""
    subprocess.run(["ip", *words], check=True)


class Proxied(Node):
    """A node that is reached through a proxy."""

    delay = 0.0

    def prepare(self) -> Address:
        """Start the proxy."""
        self.link = Link(("127.0.0.1", PORT + self.number), self.delay / 2)
        return self.link.address

    def listen(self) -> Address:
        """Return the address behind the proxy."""
        return self.link.to

    def kill(self) -> None:
        """Kill its process; the others end with their connections."""
        self.process.kill()
        self.link.cut()

    def set_link(self, *, up: bool) -> None:
        """Take the link down, or up again."""
        if up:
            self.link.go_on()
        else:
            self.link.stop()

    def close(self) -> None:
        """End it and the proxy."""
        super().close()
        self.link.close()


@contextmanager
def two_nodes(token: str, delay: float, *, proxies: bool) -> Iterator[tuple[str, list[Node]]]:
    """Make two nodes, in namespaces if this machine has them."""
    able = not proxies and sys.platform == "linux" and os.geteuid() == 0 and shutil.which("ip")
    kind: type[Namespace | Proxied] = Namespace if able else Proxied
    kind.delay = delay
    nodes: list[Node] = []
    with tempfile.TemporaryDirectory() as home:
        try:
            if able:
                ip("link", "add", "wbbridge", "type", "bridge")
                ip("addr", "add", f"{BRIDGE}/24", "dev", "wbbridge")
                ip("link", "set", "wbbridge", "up")
            # One by one, so that those before one that fails are closed.
            for number in range(2):
                nodes.append(kind(number, token, Path(home)))  # noqa: PERF401
            yield "network namespaces" if able else "proxies", nodes
        finally:
            for node in nodes:
                node.close()
            if able:
                ip("link", "del", "wbbridge")


@dataclass
class Counts:
    """What became of requests.

    Parameters
    ----------
    waits : list of float
        Seconds from a kill until a request got a token again.
    """

    answered: int = 0
    retried: int = 0
    hung: int = 0
    wrong: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    waits: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        failed = sum(self.reasons.values())
        lines = [
            f"answered {self.answered}, of which {self.retried} ran again; failed {failed}; "
            f"hung {self.hung}; texts that differ {self.wrong}"
        ]
        lines += [f"  {count} × {reason}" for reason, count in self.reasons.most_common()]
        if self.waits:
            lines.append(
                f"  open again after {max(self.waits):.1f} s at most, "
                f"{sorted(self.waits)[len(self.waits) // 2]:.1f} s in the middle"
            )
        return "\n".join(lines)


class Trial:
    """Requests to a cluster while it has faults."""

    def __init__(self, model: Any, wanted: dict[str, str], nodes: list[Node]) -> None:  # noqa: ANN401
        self.model, self.wanted, self.nodes = model, wanted, nodes
        self.counts, self._draw = Counts(), random.Random(7)
        self._runs: Counter[int] = Counter()
        self._heard = 0.0

    def count_runs(self) -> None:
        """Count how often each request is given to a replica, and note when tokens come."""
        run = ClusterEngine.run

        def counted(engine: ClusterEngine, relay: Relay) -> None:
            self._runs[id(relay)] += 1
            run(engine, relay)

        ClusterEngine.run = counted  # type: ignore[method-assign]
        add = Relay.add

        def heard(relay: Relay, event: Event) -> list[Waiter]:
            self._heard = time.monotonic()
            return add(relay, event)

        Relay.add = heard  # type: ignore[method-assign]

    def round(self, number: int, count: int, fault: Callable[[Node], None] | None) -> None:
        """Begin requests, have a fault, and wait for all."""
        prompts = [self._draw.choice(list(self.wanted)) for _ in range(count)]
        made = [(p, self.model.engine.submit(request(self.model, p))) for p in prompts]
        if fault is not None:
            time.sleep(self._draw.uniform(0.1, 4.0))
            fault(self.nodes[number // 2 % 2])
        end = time.monotonic() + HANG_SECONDS
        for prompt, generation in made:
            self._take(prompt, generation, end)

    def _take(self, prompt: str, generation: Generation, end: float) -> None:
        counts, wanted = self.counts, self.wanted[prompt]
        try:
            text = generation.result(max(0.1, end - time.monotonic())).text
        except TimeoutError:
            counts.hung += 1
        except BackendError as error:
            reason = re.sub(r":\d+|\d+\.\d+\.\d+\.\d+", "", str(error))
            counts.reasons[reason] += 1
        else:
            counts.answered += 1
            counts.retried += self._runs[id(generation._mailbox)] > 1
            counts.wrong += text != wanted

    def kill(self, node: Node) -> None:
        """Kill a node, start it again, and time until a request gets its next token."""
        # There may be no other by now.
        more = self.model.engine.submit(request(self.model, "Once", 1))
        node.restart()
        end = node.killed + HANG_SECONDS
        # What was on its way came soon.
        while self._heard < node.killed + ON_ITS_WAY and time.monotonic() < end:
            time.sleep(0.02)
        self.counts.waits.append(self._heard - node.killed)
        with suppress(BackendError):
            more.result(HANG_SECONDS)

    def take_link_down(self, node: Node) -> None:
        """Take a link down for three seconds."""
        node.set_link(up=False)
        time.sleep(DOWN_SECONDS)
        node.set_link(up=True)


def request(model: Any, prompt: str, tokens: int = TOKENS) -> Request:  # noqa: ANN401
    """Make a greedy request."""
    ids, options = model.prompter.raw(prompt), {"temperature": 0}
    return Request.of(ids, ignore_eos=True, options=options, max_tokens=tokens)


def open_model(token: str, nodes: list[Node], stages: int) -> Any:  # noqa: ANN401
    """Open the bundled model on some of the nodes."""
    listed: Any = SimpleNamespace(token=token, list=lambda: nodes[:stages])
    spec = LoadSpec(STORY, "cpu", num_ctx=CONTEXT, num_parallel=SLOTS)
    opener = ClusterOpener(listed, lambda *_: spec, __version__, 64, stages=stages)
    return opener(SimpleNamespace(entry=SimpleNamespace(name="story")), None)  # type: ignore[arg-type]


def main() -> int:
    """Run all rounds, and print the counts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--faults", type=int, default=20, help="half kills, half links down")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds of a round trip")
    parser.add_argument("--proxies", action="store_true", help="make no network namespaces")
    options = parser.parse_args()
    token = secrets.token_urlsafe(32)
    with two_nodes(token, options.delay, proxies=options.proxies) as (how, nodes):
        prompts = [f"Once upon a time a {thing}" for thing in THINGS]
        alone = open_model(token, nodes, 1)
        wanted = {p: alone.engine.submit(request(alone, p)).result().text for p in prompts}
        alone.close()
        model = open_model(token, nodes, 2)
        print(f"{model.placement}; {how}; {1000 * options.delay:g} ms")
        trial = Trial(model, wanted, nodes)
        trial.count_runs()
        rounds = options.faults or 1
        for number in range(rounds):
            count = (number + 1) * options.requests // rounds - number * options.requests // rounds
            fault = (trial.kill, trial.take_link_down)[number % 2] if options.faults else None
            trial.round(number, count, fault)
            print(f"round {number + 1}: {str(trial.counts).splitlines()[0]}", flush=True)
        print(trial.counts)
        model.close()
    return int(bool(trial.counts.hung or trial.counts.wrong))


if __name__ == "__main__":
    sys.exit(main())
