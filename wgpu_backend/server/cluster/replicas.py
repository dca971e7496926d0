"""A model with a replica on each of several nodes, as the server uses it.

A request goes to the replica that has most of its prompt in its cache, unless that one is much
busier than another. If a replica is lost, requests that have sent nothing yet run again on another
one, the others fail, and a thread opens the replica again.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from itertools import count
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.engine.batching.generation import Generation, Mailbox, Waiter
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import EngineStatus, Event
from wgpu_backend.engine.media import Part, Prepared
from wgpu_backend.errors import BackendError, DeviceLost, QueueFull, WorkerLost
from wgpu_backend.server.worker.remote import WorkerEngine, WorkerModel

_LOG = logging.getLogger("wgpu_backend.cluster")
OpenReplica = Callable[[int], WorkerModel]
"""A function that opens the replica of a number, on a node that is alive; waits."""
# How long a request waits for a replica if all are lost.
WAIT_SECONDS = 60.0
# Tokens of a block of a prompt, and the blocks of a replica that the router remembers.
BLOCK, MOST_BLOCKS = 32, 1 << 16
# Seconds between attempts to open a replica again; the first ones while its node does not answer,
# which costs nothing to ask.
PAUSES = (0.5, 1.0, 2.0, 4.0)
_UNANSWERED = 1
MOST_MEDIA = 256
# How often a request runs that has sent nothing: what it asks for may be what ends the workers.
MOST_RUNS = 5


class Prefixes:
    """The latest prompts that a replica has read, as hashes of their blocks."""

    def __init__(self) -> None:
        self._known: OrderedDict[int, None] = OrderedDict()

    def add(self, hashes: Sequence[int]) -> None:
        """Add a prompt."""
        for each in hashes:
            self._known[each] = None
            self._known.move_to_end(each)
        while len(self._known) > MOST_BLOCKS:
            self._known.popitem(last=False)

    def measure(self, hashes: Sequence[int]) -> int:
        """Return the number of a prompt's first blocks that are known."""
        return next((i for i, each in enumerate(hashes) if each not in self._known), len(hashes))


def hash_blocks(tokens: Sequence[int]) -> list[int]:
    """Return a hash of each whole block of a prompt and all before it."""
    found: list[int] = []
    for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
        found.append(hash((found[-1] if found else 0, *tokens[start : start + BLOCK])))
    return found


class Replica:
    """A replica, or the place of one that is being opened again."""

    def __init__(self, number: int, model: WorkerModel) -> None:
        self.number = number
        self.model: WorkerModel | None = model
        self.prefixes = Prefixes()
        self.busy = 0

    @property
    def is_up(self) -> bool:
        """Return whether the replica takes requests."""
        return self.model is not None and self.model.lost is None


class Relay(Mailbox):
    """The mailbox of a request, which another replica continues to fill if the first is lost."""

    def __init__(self, request: Request, engine: ClusterEngine) -> None:
        super().__init__(request.n)
        self.request = request
        self._engine = engine
        self.replica: Replica | None = None
        self.inner: Generation | None = None
        self.is_cancelled = False
        self._runs = 1
        # Not `events`, from which a server takes what it sends.
        self._has_begun = False

    def add(self, event: Event) -> list[Waiter]:
        """Add an event; from the first one on, no other replica may begin again."""
        self._has_begun = True
        return super().add(event)

    def fail(self, error: Exception) -> None:
        """End with an error, or run again elsewhere if nothing was sent."""
        lost = isinstance(error, WorkerLost | DeviceLost) and self._runs < MOST_RUNS
        if lost and not self._has_begun and not self.request.placed and not self.is_cancelled:
            self._runs += 1
            try:
                self._engine.run(self)
            except BackendError as found:
                error = found
            else:
                return
        super().fail(error)

    def cancel(self) -> None:
        """Cancel the request, wherever it runs."""
        self.is_cancelled = True
        if self.inner is not None:
            self.inner.cancel()


class ClusterEngine:
    """The engines of all replicas, as one."""

    def __init__(self, model: ClusterModel) -> None:
        self.model = model
        first = model.first_engine
        self._each = first.num_parallel
        self.num_parallel = self._each * len(model.replicas)
        self.max_queue = first.max_queue * len(model.replicas)
        self._numbers = count(1)
        self._relays: weakref.WeakValueDictionary[int, Relay] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self._media: OrderedDict[bytes, Replica] = OrderedDict()
        # Requests that wait for a replica to be opened again, and when they began to.
        self._waiting: list[tuple[float, Relay]] = []

    @property
    def num_ctx(self) -> int:
        """Return the positions of a request's context."""
        return self.model.num_ctx

    def submit(self, request: Request) -> Generation:
        """Submit a request to a replica; see `Engine.submit`.

        Raises
        ------
        BackendError
            The prompt does not fit, too many wait on each replica, or no replica is left.
        """
        request.fitting(self.num_ctx, self.model.vocabulary)
        relay, number = Relay(request, self), next(self._numbers)
        self.run(relay)
        self._relays[number] = relay
        return Generation(number, request, relay, self._cancel)

    def _cancel(self, number: int) -> None:
        relay = self._relays.get(number)
        if relay is not None:
            relay.cancel()

    def run(self, relay: Relay) -> None:
        """Run a request on the best replica that takes it, or once there is one again.

        Raises
        ------
        BackendError
            No replica takes it, or too many wait.
        """
        failure = self._lost()
        for replica in self.rank(relay.request):
            model = replica.model
            if model is None or model.engine is None:
                continue
            relay.replica = replica
            try:
                relay.inner = model.engine.submit(relay.request, relay)
            except (WorkerLost, DeviceLost, QueueFull) as error:
                failure = error
                continue
            replica.prefixes.add(hash_blocks(relay.request.tokens))
            if relay.is_cancelled:
                relay.inner.cancel()
            return
        with self._lock:
            if isinstance(failure, QueueFull) or len(self._waiting) >= self.max_queue:
                raise failure
            self._waiting.append((time.monotonic(), relay))

    def _lost(self) -> BackendError:
        return WorkerLost(
            f"{self.model.name}: no replica is left; they are opened again, send the request again"
        )

    def run_waiting(self, *, last: bool = False) -> None:
        """Run the requests that waited for a replica; fail those that waited too long.

        Parameters
        ----------
        last : bool
            Whether no replica will be opened any more.
        """
        if not self._waiting:
            return
        with self._lock:
            waiting, self._waiting = self._waiting, []
        for since, relay in waiting:
            if last or relay.is_cancelled or time.monotonic() - since > WAIT_SECONDS:
                Mailbox.fail(relay, self._lost())
                continue
            if not any(each.is_up for each in self.model.replicas):
                with self._lock:
                    self._waiting.append((since, relay))
                continue
            try:
                self.run(relay)
            except BackendError as error:
                Mailbox.fail(relay, error)

    def rank(self, request: Request) -> list[Replica]:
        """Return the replicas that take requests, the best for this one first."""
        up = [each for each in self.model.replicas if each.is_up]
        if request.placed:
            # A picture was prepared on one replica, and the others do not have it.
            with self._lock:
                found = [self._media.get(each.media.digest) for each in request.placed]
            return [each for each in up if each in found]
        hashes = hash_blocks(request.tokens)
        loads = {each: self._count(each) for each in up}
        least = min(loads.values(), default=0)
        near = [each for each in up if loads[each] < least + max(self._each, 1)]
        near.sort(key=lambda each: (-each.prefixes.measure(hashes), loads[each]))
        return near + sorted((each for each in up if each not in near), key=loads.__getitem__)

    def _count(self, replica: Replica) -> int:
        """Return the requests in progress on a replica."""
        relays = list(self._relays.values())
        return sum(each.replica is replica and not each.ended for each in relays)

    def note_media(self, digest: bytes, replica: Replica) -> None:
        """Note where a picture or sound was prepared."""
        with self._lock:
            self._media[digest] = replica
            self._media.move_to_end(digest)
            while len(self._media) > MOST_MEDIA:
                self._media.popitem(last=False)

    def status(self) -> EngineStatus:
        """Return the slots of all replicas, and the sums of their counters."""
        found = [engine.status() for engine in self.engines()]
        slots = tuple(slot for each in found for slot in each.slots)
        sums: dict[str, Any] = {
            each.name: sum(getattr(status, each.name) for status in found)
            for each in fields(EngineStatus)
            if each.name not in ("slots", "longest")
        }
        longest = max((each.longest for each in found), default=0)
        return EngineStatus(slots, longest=longest, **sums)

    def engines(self) -> list[WorkerEngine]:
        """Return the engines of the replicas that take requests."""
        models = [each.model for each in self.model.replicas if each.is_up]
        return [each.engine for each in models if each is not None and each.engine is not None]

    def drop_prefix(self, tokens: Sequence[int]) -> int:
        """Drop the cached prefix of a text on all replicas; see `Engine.drop_prefix`."""
        return sum(engine.drop_prefix(tokens) for engine in self.engines())

    def save_slot(self, tokens: Sequence[int], path: str) -> int:
        """Refuse: the file would be on one of the nodes."""
        raise BackendError("slots: a cluster saves none, as each node has files of its own")

    def restore_slot(self, path: str) -> list[int]:
        """Refuse, as `save_slot` does."""
        raise BackendError("slots: a cluster restores none, as each node has files of its own")


class ClusterModel:
    """A model with several replicas, with the methods of `LanguageModel` that a server needs.

    Parameters
    ----------
    name : str
        Name of the model, for messages.
    open_replica : callable
        Opens a replica; called again in a thread for one that was lost.
    size : int
        Replicas, at least 1.
    pauses : sequence of float
        Seconds before each attempt to open a replica again; the last one repeats.
    release : callable
        Gives back what was reserved for the replicas, once they are closed.

    Raises
    ------
    BackendError
        No replica could be opened; the message is that of the last one.
    """

    def __init__(
        self,
        name: str,
        open_replica: OpenReplica,
        size: int,
        pauses: Sequence[float] = PAUSES,
        release: Callable[[], None] = lambda: None,
    ) -> None:
        self.name, self._release = name, release
        self._open, self._pauses = open_replica, pauses
        self._closed = threading.Event()
        self._scales: Sequence[float] | None = None
        self.replicas: list[Replica] = []
        failure: BackendError | None = None
        for number in range(size):
            try:
                self.replicas.append(Replica(number, open_replica(number)))
            except BackendError as error:
                _LOG.warning("%s: replica %d was not opened: %s", name, number, error)
                failure = error
        if not self.replicas:
            release()
            raise failure or WorkerLost(f"{name}: a cluster needs at least one node")
        self._first = next(each.model for each in self.replicas if each.model is not None)
        first = self._first
        self.config, self.tokenizer, self.prompter = first.config, first.tokenizer, first.prompter
        self.num_ctx, self.vocabulary = first.num_ctx, first.vocabulary
        self.loras, self.takes, self.device = first.loras, first.takes, first.device
        self.num_parallel = first.num_parallel * len(self.replicas)
        self.placement, self.gpu_layers = first.placement, first.gpu_layers
        self._engine = None if first.engine is None else ClusterEngine(self)
        self._watchers = [
            threading.Thread(target=self._watch, args=(each,), name=f"{name} replica", daemon=True)
            for each in self.replicas
        ]
        for watcher in self._watchers:
            watcher.start()

    @property
    def first_engine(self) -> WorkerEngine:
        """Return the engine of the first replica."""
        assert self._first.engine is not None
        return self._first.engine

    @property
    def engine(self) -> ClusterEngine | None:
        """Return the engine; None for a model that does not generate text."""
        return self._engine

    @property
    def nbytes(self) -> int:
        """Return the bytes that the replicas take on their devices."""
        return sum(each.model.nbytes for each in self.replicas if each.model is not None)

    @property
    def vram_nbytes(self) -> int:
        """Return the bytes that the replicas take in the memory of adapters."""
        return sum(each.model.vram_nbytes for each in self.replicas if each.model is not None)

    @property
    def lost(self) -> BackendError | None:
        """Return None: replicas that are lost are opened again here."""
        return None

    def _watch(self, replica: Replica) -> None:
        """Open a replica again whenever it is lost, until the model is closed."""
        tries = 0
        while not self._closed.wait(self._pauses[0] / 2):
            if not replica.is_up:
                self._closed.wait(self._pauses[min(tries, len(self._pauses) - 1)])
                error = self._renew(replica)
                tries = 0 if error is None else tries + 1
                if isinstance(error, WorkerLost):
                    tries = min(tries, _UNANSWERED)
            if self._engine is not None:
                self._engine.run_waiting()

    def _renew(self, replica: Replica) -> BackendError | None:
        """Open a replica again; return the error if that fails."""
        old, replica.model = replica.model, None
        if old is not None:
            old.close()
        try:
            made = self._open(replica.number)
            if self._scales is not None:
                made.set_lora_scales(self._scales)
        except BackendError as error:
            _LOG.warning("%s: replica %d: %s", self.name, replica.number, error)
            return error
        if self._closed.is_set():
            made.close()
            return None
        replica.prefixes, replica.model = Prefixes(), made
        _LOG.info("%s: replica %d is open again", self.name, replica.number)
        return None

    def _any(self) -> tuple[Replica, WorkerModel]:
        """Return the replica with the fewest requests of this kind."""
        up = [(each, each.model) for each in self.replicas if each.is_up and each.model is not None]
        if not up:
            raise WorkerLost(f"{self.name}: no replica is left; send the request again")
        found = min(up, key=lambda pair: pair[0].busy)
        return found[0], found[1]

    def _ask(self, act: Callable[[WorkerModel], Any]) -> Any:  # noqa: ANN401  of any method
        replica, model = self._any()
        replica.busy += 1
        try:
            return act(model)
        finally:
            replica.busy -= 1

    def embed(
        self,
        texts: str | Sequence[str] = (),
        *,
        images: Sequence[bytes] = (),
        pooling: str | None = None,
    ) -> NDArray[np.float32]:
        """Return the embeddings of texts and pictures, from one replica."""
        return self._ask(lambda model: model.embed(texts, images=images, pooling=pooling))

    def states(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the state of each token, from one replica."""
        return self._ask(lambda model: model.states(tokens))

    def rerank(self, query: str, texts: str | Sequence[str]) -> NDArray[np.float32]:
        """Return how well each text answers a query, from one replica."""
        return self._ask(lambda model: model.rerank(query, texts))

    def set_lora_scales(self, scales: Sequence[float]) -> None:
        """Change the scales of the LoRA adapters on all replicas."""
        self._scales = scales
        for each in self.replicas:
            if each.is_up and each.model is not None:
                each.model.set_lora_scales(scales)

    def prepare(self, part: Part) -> Prepared:
        """Prepare a picture or sound on one replica, which then gets its request."""
        replica, model = self._any()
        made = model.prepare(part)
        if self._engine is not None:
            self._engine.note_media(made[0].digest, replica)
        return made

    def inspect(self, what: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parts of the model that the page shows, from one replica."""
        return self._ask(lambda model: model.inspect(what, given))

    def close(self) -> None:
        """End all replicas. Safe to call twice."""
        self._closed.set()
        for each in self.replicas:
            if each.model is not None:
                with suppress(BackendError):
                    each.model.close()
        for watcher in self._watchers:
            watcher.join()
        if self._engine is not None:
            self._engine.run_waiting(last=True)
        self._release()
