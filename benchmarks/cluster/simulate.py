"""A discrete-event simulation of replicas that serve one model to many users.

A user sends a turn of a conversation, waits for the answer, thinks, and sends the next one, whose
prompt has the whole conversation. A replica is one node, or a pipeline of `depth` nodes with an
equal share of the layers. It makes a token for each of its sequences in a step, and reads prompts
between steps, as the engine does::

    step of n sequences    base + n / depth · each + depth · hop
    prompt of t tokens     (t / chunk + depth - 1) · (chunk · token / depth + hop)

The sequences of a pipeline go through it in `depth` groups, one in each node at a time. The router
knows which replica has a conversation's prefix in its cache, or takes any.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal

import simpy

Steps = Generator[Any, Any, Any]
Routing = Literal["prefix", "random"]
# A replica with the prefix is left out if it has so many more requests than the least busy one.
PATIENCE = 8
# Replicas that the router looks at for the least busy one.
LOOKED_AT = 16


@dataclass(frozen=True, slots=True)
class Costs:
    """The measured or predicted times of one node with the whole model, in seconds.

    Parameters
    ----------
    base, each : float
        Of a decode step: without sequences, and for each sequence.
    token : float
        Of a prompt's token.
    hop : float
        From one node of a pipeline to the next.
    source : str
        Where the figures are from.
    """

    base: float
    each: float
    token: float
    hop: float
    source: str = ""


@dataclass(frozen=True, slots=True)
class Setup:
    """The nodes, the users and their requests.

    Parameters
    ----------
    nodes, depth, users : int
        Replicas are ``nodes // depth``.
    slots : int
        Sequences of a step, for each node.
    cached : int
        Tokens of ended conversations that a node keeps.
    system, asked, answered : int
        Mean tokens of the first prompt, of each further one, and of an answer. The last two are
        distributed exponentially.
    turns : int
        Of a conversation.
    think : float
        Mean seconds between an answer and the next turn; distributed exponentially.
    routing : str
        ``prefix`` or ``random``.
    mtbf, repair : float
        Mean seconds between failures of a node, 0 for none; until its replica is back.
    seconds, warm : float
        Simulated time, and the part of it that is not counted.
    chunk : int
        Tokens of a pipeline's micro-batch.
    """

    nodes: int
    users: int
    depth: int = 1
    slots: int = 16
    cached: int = 65536
    system: int = 400
    asked: int = 60
    answered: int = 200
    turns: int = 6
    think: float = 20.0
    routing: Routing = "prefix"
    mtbf: float = 0.0
    repair: float = 15.0
    seconds: float = 120.0
    warm: float = 40.0
    chunk: int = 256
    seed: int = 0


@dataclass(slots=True)
class Counts:
    """The results of a simulation.

    Parameters
    ----------
    first, whole : list of float
        Seconds to the first token and to the last one, of each request.
    tokens, prompt_tokens, read_tokens : int
        Generated tokens; tokens of prompts, and those of them that no cache had.
    answered, retried, failed : int
        Requests. `retried` ones had sent nothing and ran again elsewhere; `failed` ones had.
    seconds : float
        Counted time.
    """

    seconds: float
    first: list[float] = field(default_factory=list[float])
    whole: list[float] = field(default_factory=list[float])
    tokens: int = 0
    prompt_tokens: int = 0
    read_tokens: int = 0
    answered: int = 0
    retried: int = 0
    failed: int = 0

    @property
    def throughput(self) -> float:
        """Return generated tokens per second."""
        return self.tokens / self.seconds

    @property
    def cached_share(self) -> float:
        """Return the share of prompts' tokens that caches had."""
        return 1 - self.read_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that so large a share does not exceed; infinite for no values."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)] if ordered else float("inf")


@dataclass(slots=True, eq=False)
class Request:
    """A request in a replica.

    Parameters
    ----------
    user : int
        Whose conversation it is: the key of its prefix.
    history, new : int
        Tokens of the conversation so far, and of this turn.
    answer, left : int
        Tokens of the answer, and those that are still to be generated.
    """

    user: int
    history: int
    new: int
    answer: int
    left: int
    began: float
    done: simpy.Event
    first: float | None = None


class Replica:
    """A replica with continuous batching, its queue and its prefix cache."""

    def __init__(self, env: simpy.Environment, setup: Setup, costs: Costs, counts: Counts) -> None:
        self.env, self.setup, self.costs, self.counts = env, setup, costs, counts
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.prefixes: OrderedDict[int, int] = OrderedDict()
        self.up = True
        self._woken = env.event()
        self.process = env.process(self._run())

    @property
    def load(self) -> int:
        """Return the number of requests."""
        return len(self.waiting) + len(self.running)

    def take(self, request: Request) -> None:
        """Queue a request."""
        self.waiting.append(request)
        if not self._woken.triggered:
            self._woken.succeed()

    def fail(self) -> list[Request]:
        """Stop, forget all prefixes, and return the requests, none of which is done."""
        self.up = False
        gone = [*self.running, *self.waiting]
        self.running, self.waiting = [], []
        self.prefixes.clear()
        self.process.interrupt()
        return gone

    def restart(self) -> None:
        """Begin again, empty."""
        self.up = True
        self._woken = self.env.event()
        self.process = self.env.process(self._run())

    def step_seconds(self, count: int) -> float:
        """Return the time of a decode step of so many sequences."""
        c, depth = self.costs, self.setup.depth
        hops = depth * c.hop if depth > 1 else 0.0
        return c.base + count / depth * c.each + hops

    def prompt_seconds(self, tokens: int) -> float:
        """Return the time of reading so many tokens of a prompt."""
        c, s = self.costs, self.setup
        if s.depth == 1:
            return tokens * c.token
        chunks = ceil(tokens / s.chunk)
        return (chunks + s.depth - 1) * (tokens / chunks * c.token / s.depth + c.hop)

    def _run(self) -> Steps:
        try:
            while True:
                if not self.load:
                    self._woken = self.env.event()
                    yield self._woken
                while self.waiting and len(self.running) < self.setup.slots * self.setup.depth:
                    yield from self._read(self.waiting.pop(0))
                yield from self._decode()
        except simpy.Interrupt:
            return

    def _read(self, request: Request) -> Steps:
        self.running.append(request)
        known = min(self.prefixes.pop(request.user, 0), request.history)
        total = request.history + request.new
        if self.env.now >= self.setup.warm:
            self.counts.prompt_tokens += total
            self.counts.read_tokens += total - known
        yield self.env.timeout(self.prompt_seconds(total - known))

    def _decode(self) -> Steps:
        """Run steps until a sequence ends or a request comes that there is room for."""
        step = self.step_seconds(len(self.running))
        steps = min(request.left for request in self.running)
        room = len(self.running) < self.setup.slots * self.setup.depth
        begin, end = self.env.now, self.env.timeout(steps * step)
        if room:
            self._woken = self.env.event()
            yield self._woken | end
            # A request joins at the end of the step that runs.
            made = min(steps, max(1, ceil((self.env.now - begin) / step - 1e-9)))
            yield self.env.timeout(max(0.0, begin + made * step - self.env.now))
        else:
            made = steps
            yield end
        for request in self.running:
            if request.first is None:
                request.first = begin + step
            request.left -= made
        if begin >= self.setup.warm:
            self.counts.tokens += made * len(self.running)
        for request in [each for each in self.running if not each.left]:
            self.running.remove(request)
            self._keep(request)
            request.done.succeed(True)

    def _keep(self, request: Request) -> None:
        """Keep a conversation's tokens; the least recently used go first."""
        self.prefixes[request.user] = request.history + request.new + request.answer
        while sum(self.prefixes.values()) > self.setup.cached * self.setup.depth:
            self.prefixes.popitem(last=False)


class Cluster:
    """A router, its replicas, and the users."""

    def __init__(self, setup: Setup, costs: Costs) -> None:
        self.setup, self.costs = setup, costs
        self.env = simpy.Environment()
        self.random = random.Random(setup.seed)
        self.counts = Counts(setup.seconds - setup.warm)
        count = max(1, setup.nodes // setup.depth)
        self.replicas = [Replica(self.env, setup, costs, self.counts) for _ in range(count)]
        self.homes: dict[int, Replica] = {}
        for user in range(setup.users):
            self.env.process(self._talk(user))
        if setup.mtbf:
            for replica in self.replicas:
                self.env.process(self._break(replica))

    def run(self) -> Counts:
        """Simulate, and return the results."""
        self.env.run(until=self.setup.seconds)
        return self.counts

    def route(self, user: int) -> Replica:
        """Return the replica for a user's next request."""
        some = self.random.sample(self.replicas, min(LOOKED_AT, len(self.replicas)))
        up = [each for each in some if each.up] or [each for each in self.replicas if each.up]
        if self.setup.routing == "random":
            return self.random.choice(up or some)
        least = min(up or some, key=lambda each: each.load)
        home = self.homes.get(user)
        if home is not None and home.up and home.load <= least.load + PATIENCE:
            return home
        return least

    def _talk(self, user: int) -> Steps:
        s, draw = self.setup, self.random.expovariate
        yield self.env.timeout(self.random.uniform(0, s.think))
        while True:
            history, new = 0, s.system
            for _ in range(s.turns):
                answer = 1 + int(draw(1 / s.answered))
                yield from self._ask(user, history, new, answer)
                history += new + answer
                new = 1 + int(draw(1 / s.asked))
                if s.think:
                    yield self.env.timeout(draw(1 / s.think))

    def _ask(self, user: int, history: int, new: int, answer: int) -> Steps:
        began = self.env.now
        while True:
            replica = self.route(user)
            self.homes[user] = replica
            request = Request(user, history, new, answer, answer, began, self.env.event())
            replica.take(request)
            if (yield request.done):
                break
            counted = self.env.now >= self.setup.warm
            # A client has seen a part of the answer, which another replica would not repeat.
            if request.first is not None:
                self.counts.failed += counted
                return
            self.counts.retried += counted
        if began >= self.setup.warm and request.first is not None:
            self.counts.answered += 1
            self.counts.first.append(request.first - began)
            self.counts.whole.append(self.env.now - began)

    def _break(self, replica: Replica) -> Steps:
        s = self.setup
        while True:
            # Any node of a pipeline stops all of it.
            yield self.env.timeout(self.random.expovariate(s.depth / s.mtbf))
            for request in replica.fail():
                request.done.succeed(False)
            yield self.env.timeout(s.repair)
            replica.restart()


def simulate(setup: Setup, costs: Costs) -> Counts:
    """Simulate a setup, and return the results."""
    return Cluster(setup, costs).run()
