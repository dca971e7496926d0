"""A discrete-event simulation of replicas that serve one model to many users.

A user sends a turn of a conversation, waits for the answer, thinks, and sends the next one, whose
prompt has the whole conversation. A replica is one node, or a pipeline of `depth` nodes with an
equal share of the layers. Its engine plans passes as the real one does, by the same functions:
parts of prompts next to a token for each answer, rows padded to a power of two, and in a pipeline
groups of answers with a pass of each in flight. A pass goes through the stages in order::

    stage 0      waits for the stage; if its tokens are in flight, for their passes, too
    stage k      waits for the stage, and for what the first node passes on to it
    each stage   profile[padded rows] / depth
    hop          to each stage but the first, and back

The router knows which replica has a conversation's prefix in its cache, or takes any.
"""

from __future__ import annotations

import random
from collections import OrderedDict, deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Literal

import simpy

from benchmarks.cluster.profile import Profile
from wgpu_backend.engine.batching.core import STEPS_AHEAD
from wgpu_backend.engine.batching.loop import step_shares
from wgpu_backend.engine.batching.pace import Groups
from wgpu_backend.engine.runner import CHUNK, PASSES, SHORT_CHUNK, bucket

Steps = Generator[Any, Any, Any]
Routing = Literal["prefix", "random"]
# A replica with the prefix is left out if it has so many more requests than the least busy one.
PATIENCE = 8
# Replicas that the router looks at for the least busy one.
LOOKED_AT = 16
# Most steps that are simulated at once: their tokens count when they end.
LEAP = 50


@dataclass(frozen=True, slots=True)
class Setup:
    """The nodes, the users and their requests.

    Parameters
    ----------
    nodes, depth, users : int
        Replicas are ``nodes // depth``.
    groups : int
        Most groups of a pipeline's answers; 0 for as many as the engine finds fastest.
    slots : int
        Sequences of a step, for each node.
    cached : int
        Tokens of ended conversations that a node keeps.
    system, asked, answered : int
        Mean tokens of the first prompt, of each further one, and of an answer. The last two are
        distributed exponentially.
    longest : int
        Most tokens of an answer.
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
    budget, alone : int
        Most tokens of a pass, and of one of a request that is alone.
    """

    nodes: int
    users: int
    depth: int = 1
    slots: int = 16
    cached: int = 65536
    system: int = 400
    asked: int = 60
    answered: int = 200
    longest: int = 1 << 30
    turns: int = 6
    think: float = 20.0
    routing: Routing = "prefix"
    mtbf: float = 0.0
    repair: float = 15.0
    seconds: float = 120.0
    warm: float = 40.0
    budget: int = CHUNK
    alone: int = CHUNK
    groups: int = 0
    seed: int = 0

    @property
    def seats(self) -> int:
        """Return the most requests that a replica answers at once."""
        return self.slots * self.depth

    def answers(self, user: int) -> Iterator[int]:
        """Draw the tokens of each answer of a user, the same ones at any speed."""
        draw = random.Random(f"{self.seed} {user}")
        while True:
            yield min(1 + int(draw.expovariate(1 / self.answered)), self.longest)


@dataclass(slots=True)
class Counts:
    """The results of a simulation.

    Parameters
    ----------
    first, whole : list of float
        Seconds to the first token and to the last one, of each request.
    tokens, ended_tokens, prompt_tokens, read_tokens : int
        Generated tokens, and those of answers that ended; tokens of prompts, and those of them that
        no cache had.
    answered, retried, failed : int
        Requests. `retried` ones had sent nothing and ran again elsewhere; `failed` ones had.
    seconds : float
        Counted time.
    """

    seconds: float
    first: list[float] = field(default_factory=list[float])
    whole: list[float] = field(default_factory=list[float])
    tokens: int = 0
    ended_tokens: int = 0
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
    answer : int
        Tokens of the answer.
    prompt : int
        Tokens of the prompt that no pass has read.
    left, ahead : int
        Tokens of the answer that are still to be generated, and those of them in flight.
    known : float
        When the newest token in flight is known.
    served : int
        Number of the last pass that had it.
    """

    user: int
    history: int
    new: int
    answer: int
    began: float
    done: simpy.Event
    prompt: int = 0
    left: int = 0
    ahead: int = 0
    known: float = 0.0
    served: int = 0
    first: float | None = None

    @property
    def pending(self) -> int:
        """Return the tokens that a pass could compute now."""
        return self.prompt or min(1, self.left - self.ahead)


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass in flight: when its results are there, and the requests that get a token."""

    end: float
    chosen: Sequence[Request]


class Replica:
    """A replica with continuous batching, its queue and its prefix cache."""

    def __init__(
        self, env: simpy.Environment, setup: Setup, profile: Profile, counts: Counts
    ) -> None:
        self.env, self.setup, self.profile, self.counts = env, setup, profile, counts
        self.up = True
        self.waiting: deque[Request] = deque()
        self._begin()

    def _begin(self) -> None:
        self.running: list[Request] = []
        self.prefixes: OrderedDict[int, int] = OrderedDict()
        self._kept = 0
        self._in_flight: deque[Pass] = deque()
        self._free = [0.0] * self.setup.depth
        self._groups = Groups(self.setup.groups or self.setup.depth)
        self._passes = 0
        self._woken = self.env.event()
        self.process = self.env.process(self._run())

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
        """Stop, and return the requests, none of which is done."""
        self.up = False
        gone = [*self.running, *self.waiting]
        self.running, self.waiting = [], deque()
        self.process.interrupt()
        return gone

    def restart(self) -> None:
        """Begin again, empty."""
        self.up = True
        self._begin()

    def _run(self) -> Steps:
        try:
            while True:
                if not self.load:
                    self._woken = self.env.event()
                    yield self._woken
                while self.waiting and len(self.running) < self.setup.seats:
                    self._admit(self.waiting.popleft())
                if self.setup.depth == 1 and not any(each.prompt for each in self.running):
                    yield from self._leap()
                else:
                    yield from self._step()
        except simpy.Interrupt:
            return

    def _admit(self, request: Request) -> None:
        """Give a request a seat, with what the cache has of its prompt."""
        self.running.append(request)
        had = self.prefixes.pop(request.user, 0)
        self._kept -= had
        known, total = min(had, request.history), request.history + request.new
        request.prompt, request.left = total - known, request.answer
        if self.env.now >= self.setup.warm:
            self.counts.prompt_tokens += total
            self.counts.read_tokens += total - known

    # Passes, as `wgpu_backend.engine.batching.loop` has them.

    def _step(self) -> Steps:
        """Submit the next pass, or read the oldest one if enough are in flight."""
        depth, flight = self.setup.depth, self._in_flight
        groups = self._groups.choose(len(self.running))
        most = groups if groups > 1 else min(depth, STEPS_AHEAD)
        if groups == 1 and any(each.prompt for each in self.running):
            # Parts of a prompt follow each other through the stages.
            most = max(most, depth)
        planned = self._plan(groups) if len(flight) < most else []
        if planned:
            flight.append(self._submit(planned))
        if sum(count for _, count in planned) > self.setup.seats:
            while len(flight) >= depth:
                yield from self._read()
            self._groups.skip()
        elif flight and (not planned or len(flight) >= most):
            yield from self._read()

    def _plan(self, groups: int) -> list[tuple[Request, int]]:
        """Return the requests of the next pass with their tokens."""
        seated, setup = self.running, self.setup
        if groups > 1 and len(seated) > 1:
            wanting = [each for each in seated if each.ahead or each.pending]
            ready = [each for each in wanting if not each.ahead and each.pending]
            ready.sort(key=lambda each: each.served)
            seated = ready[: ceil(len(wanting) / groups)]
        self._passes += 1
        for each in seated:
            each.served = self._passes
        pending, most = [each.pending for each in seated], setup.budget
        if len(self.running) == 1:
            most = setup.alone
            if setup.depth > 1:
                most = min(most, max(SHORT_CHUNK, bucket(ceil(sum(pending) / PASSES))))
        shares = step_shares(pending, most) if max(pending, default=0) > 1 else pending
        return [(each, count) for each, count in zip(seated, shares, strict=True) if count]

    def _submit(self, planned: Sequence[tuple[Request, int]]) -> Pass:
        """Put a pass into the stages' queues."""
        depth, hop = self.setup.depth, self.profile.hop
        reading = any(each.prompt for each, _ in planned)
        rows = bucket(sum(count for _, count in planned))
        seconds = self.profile.seconds(rows, reading=reading) / depth
        # A token in flight is of the last stage, and comes to the first one through the host.
        at = max(self.env.now, *(each.known for each, _ in planned))
        for stage in range(depth):
            self._free[stage] = max(self._free[stage], at + hop * bool(stage)) + seconds
            at = self._free[stage] + hop * bool(stage)
        chosen: list[Request] = []
        for each, count in planned:
            if each.prompt:
                each.prompt -= count
            if not each.prompt:
                chosen.append(each)
                each.ahead += 1
                each.known = at
        return Pass(at, chosen)

    def _read(self) -> Steps:
        """Wait for the oldest pass, and give each request its token."""
        found = self._in_flight.popleft()
        if found.end > self.env.now:
            yield self.env.timeout(found.end - self.env.now)
        running = len(self.running)
        if running > 1 and found.chosen:
            self._groups.count(running, len(found.chosen), self.env.now)
        for each in found.chosen:
            each.ahead -= 1
        self._give(found.chosen, 1)

    def _leap(self) -> Steps:
        """Run steps of one device until an answer ends or a request comes that has a seat."""
        running, env = self.running, self.env
        step = self.profile.seconds(bucket(len(running)), reading=False)
        steps, begin = min(LEAP, *(each.left for each in running)), env.now
        end = env.timeout(steps * step)
        if len(running) < self.setup.seats:
            self._woken = env.event()
            yield self._woken | end
            # A request joins at the end of the step that runs.
            steps = min(steps, max(1, ceil((env.now - begin) / step - 1e-9)))
            yield env.timeout(max(0.0, begin + steps * step - env.now))
        else:
            yield end
        self._give(running, steps)

    def _give(self, chosen: Sequence[Request], tokens: int) -> None:
        """Give each of some requests so many tokens."""
        for each in chosen:
            if each.first is None:
                each.first = self.env.now
            each.left -= tokens
        if self.env.now >= self.setup.warm:
            self.counts.tokens += tokens * len(chosen)
        for each in [each for each in chosen if not each.left]:
            self.running.remove(each)
            self._keep(each)
            each.done.succeed(True)

    def _keep(self, request: Request) -> None:
        """Keep a conversation's tokens; the least recently used go first."""
        self.prefixes[request.user] = request.history + request.new + request.answer
        self._kept += self.prefixes[request.user]
        while self._kept > self.setup.cached * self.setup.depth:
            self._kept -= self.prefixes.popitem(last=False)[1]


class Cluster:
    """A router, its replicas, and the users."""

    def __init__(self, setup: Setup, profile: Profile) -> None:
        self.setup = setup
        self.env = simpy.Environment()
        self.random = random.Random(setup.seed)
        self.counts = Counts(setup.seconds - setup.warm)
        count = max(1, setup.nodes // setup.depth)
        self.replicas = [Replica(self.env, setup, profile, self.counts) for _ in range(count)]
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
        answers = s.answers(user)
        yield self.env.timeout(self.random.uniform(0, s.think))
        while True:
            history, new = 0, s.system
            for _ in range(s.turns):
                answer = next(answers)
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
            request = Request(user, history, new, answer, began, self.env.event())
            replica.take(request)
            if (yield request.done):
                break
            counted = self.env.now >= self.setup.warm
            # A client has seen a part of the answer, which another replica would not repeat.
            if request.first is not None:
                self.counts.failed += counted
                return
            self.counts.retried += counted
        if self.env.now >= self.setup.warm:
            self.counts.ended_tokens += answer
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


def simulate(setup: Setup, profile: Profile) -> Counts:
    """Simulate a setup, and return the results."""
    return Cluster(setup, profile).run()
