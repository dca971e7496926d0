"""Stages of a model on other nodes, as executors of this process.

A `StageExecutor` is a child of a `PlacedExecutor`: graphs of its layers run in a process of another
node, which reads the weights from its own copy of the model's file. Weights and caches stay there.
A run sends the hidden states and positions, and gets back what the next stage needs::

    first node   PlacedExecutor ─ StageExecutor ─ StageLink ══ TCP ══ worker.stage   second node

Answers come in the order of the messages. Whoever waits for an answer reads it from the socket, so
that no thread has to be woken for each token.

A stage that was lost may be opened again: the executor notes what it has sent of weights, states
and graphs, and sends it to the new process. What the caches had is gone.
"""

from __future__ import annotations

import json
import logging
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from wgpu_backend.errors import BackendError, ContextError, DeviceLost, Unclosed, WorkerLost
from wgpu_backend.files.gguf.file_bytes import FileRange
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.graph.memory import MemoryPlan
from wgpu_backend.graph.node import Node, Storage
from wgpu_backend.graph.schedule import schedule
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.backend import BackendParams
from wgpu_backend.ml.executor import (
    Array,
    Pairs,
    Pieces,
    Result,
    WholePausable,
    join_pieces,
    require_turns,
    write_inputs,
)
from wgpu_backend.server.cluster.graphs import (
    GraphEncoder,
    capabilities_from_plain,
    spec_to_plain,
)
from wgpu_backend.server.cluster.link import connect
from wgpu_backend.server.worker.frames import LENGTHS, Message, encode_message
from wgpu_backend.server.worker.messages import StageSpec, from_plain, parse_error

# Most bytes of the text of an answer, and of data that are sent at once outside of runs.
MOST_TEXT, CHUNK = 1 << 20, 16 << 20
# Most bytes of a graph as text.
MOST_GRAPH = 64 << 20
# Least limit of silence while a stage opens.
OPEN_SECONDS = 60.0
# Pause between attempts to open a lost stage again.
PAUSE_SECONDS = 0.2
Reply = tuple[Message, bytes | bytearray]
Lost = Callable[[DeviceLost], None]
_LOG = logging.getLogger("wgpu_backend.cluster")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a stage may take.

    Parameters
    ----------
    beat : float
        Seconds of silence until the stage is asked for a sign of life.
    silent : float
        Seconds of silence after which it counts as lost.
    late : float
        Seconds for one answer after which it does, too.
    """

    beat: float = 2.0
    silent: float = 10.0
    late: float = 300.0


@dataclass(slots=True)
class _Call:
    """A message whose answer is to come.

    Parameters
    ----------
    most : int
        Most bytes of its data.
    """

    most: int
    begun: float
    answer: Reply | BackendError | None = None


class StageLink:
    """The connection to a stage.

    Parameters
    ----------
    sock : socket
        Authenticated; it closes it.
    name : str
        Of the stage, for messages.
    pid : int
        Process id there.
    """

    def __init__(self, sock: socket.socket, name: str, pid: int, patience: Patience) -> None:
        self.name, self.pid = name, pid
        self._socket = sock
        self.set_patience(patience)
        self._lock = threading.RLock()
        self._calls: deque[_Call] = deque()
        self._heard = time.monotonic()
        self.error: DeviceLost | None = None

    def set_patience(self, patience: Patience) -> None:
        """Change the limits of answers from now on."""
        self._patience = patience
        self._socket.settimeout(patience.beat)

    def post(self, message: Message, raw: bytes = b"") -> None:
        """Send a message that has no answer.

        Raises
        ------
        DeviceLost
            The stage is gone.
        """
        with self._lock:
            self._require()
            view = memoryview(encode_message(message, raw))
            begun = time.monotonic()
            while view:
                try:
                    sent = self._socket.send(view)
                except TimeoutError:
                    if time.monotonic() - begun > self._patience.silent:
                        raise self._lose(
                            f"it has taken no data for {self._patience.silent:g} s"
                        ) from None
                except OSError as error:
                    raise self._lose(str(error)) from None
                else:
                    view, begun = view[sent:], time.monotonic()

    def begin(self, message: Message, raw: bytes = b"", *, most: int = 0) -> _Call:
        """Send a message, and return the answer to wait for.

        Parameters
        ----------
        most : int
            Most bytes of data that the answer may have.
        """
        with self._lock:
            self.post(message, raw)
            call = _Call(most, time.monotonic())
            self._calls.append(call)
            return call

    def ask(self, message: Message, raw: bytes = b"", *, most: int = 0) -> Reply:
        """Send a message and wait for the answer; data of more than `CHUNK` go in pieces.

        Raises
        ------
        BackendError
            What the stage reports; DeviceLost if it is gone.
        """
        with self._lock:
            for at in range(0, len(raw) - CHUNK, CHUNK):
                self.post({"do": "data"}, raw[at : at + CHUNK])
            rest = max(0, len(raw) - CHUNK)
            call = self.begin(message, raw[-(-rest // CHUNK) * CHUNK :], most=most)
            return self.wait(call)

    def wait(self, call: _Call) -> Reply:
        """Wait for an answer.

        Raises
        ------
        BackendError
            What the stage reports; DeviceLost if it is gone, or does not answer in time.
        """
        with self._lock:
            while call.answer is None:
                self._require()
                self._require_in_time()
                self._receive()
        if isinstance(call.answer, BackendError):
            raise call.answer
        return call.answer

    def check(self) -> None:
        """Ask for a sign of life, unless another thread waits for an answer."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            # A run that is not waited for yet is a sign of life, too.
            self.wait(self._calls[0] if self._calls else self.begin({"do": "ping"}))
        finally:
            self._lock.release()

    def wait_for_end(self, seconds: float) -> None:
        """Wait until the other side closes the connection, for at most `seconds`.

        What is there to read does not matter, it may be for another thread.
        """
        ended = getattr(select, "POLLRDHUP", 0)
        try:
            if ended:
                waiting = select.poll()
                waiting.register(self._socket, ended)
                waiting.poll(1000 * seconds)
            else:
                self._look_for_end(time.monotonic() + seconds)
        except (OSError, ValueError):
            # The connection was closed here.
            return

    def _look_for_end(self, until: float) -> None:
        """Do as `wait_for_end` on macOS and Windows, which do not tell an end from data."""
        while (left := until - time.monotonic()) > 0:
            readable, _, _ = select.select([self._socket], [], [], left)
            # Only the end can be read without a byte. `recv` would wait for a beat if the thread
            # that the data are for took them meanwhile.
            with suppress(TimeoutError):
                if readable and not self._socket.recv(1, socket.MSG_PEEK):
                    return
            if readable:
                time.sleep(min(left, PAUSE_SECONDS))

    def _require(self) -> None:
        if self.error is not None:
            raise self.error

    def _lose(self, why: str) -> DeviceLost:
        """Give the stage up, and return the error."""
        if self.error is None:
            self.error = DeviceLost(f"stage {self.name} is lost: {why}")
            # Its process ends with the connection.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            self._calls.clear()
        return self.error

    def _receive(self) -> None:
        """Take one message."""
        count, size = LENGTHS.unpack(self._read(LENGTHS.size))
        most = self._calls[0].most if self._calls else 0
        if count > MOST_TEXT or size > most:
            raise self._lose(
                f"it sends {count} bytes of JSON and {size} of data, needs at most {MOST_TEXT} "
                f"and {most}"
            )
        text, raw = self._read(count), self._read(size)
        try:
            message = cast("Message", json.loads(text))
            kind = message["type"]
        except (ValueError, KeyError, TypeError) as error:
            raise self._lose(f"it sends no message: {error}") from None
        if kind == "log":
            logger = logging.getLogger(message["name"])
            logger.log(message["level"], "stage %s: %s", self.name, message["text"])
        elif kind != "beat" and self._calls:
            failed = kind == "failed"
            answer = parse_error(message["error"]) if failed else (message, raw)
            self._calls.popleft().answer = answer

    def _read(self, count: int) -> bytearray:
        """Receive exactly `count` bytes."""
        found, done = bytearray(count), 0
        view = memoryview(found)
        while done < count:
            try:
                got = self._socket.recv_into(view[done:])
            except TimeoutError:
                self._ask_for_life()
                continue
            except OSError as error:
                raise self._lose(str(error)) from None
            if not got:
                raise self._lose("its process ended")
            done += got
            self._heard = time.monotonic()
        return found

    def _ask_for_life(self) -> None:
        now, patience = time.monotonic(), self._patience
        begun = self._calls[0].begun if self._calls else now
        if now - max(self._heard, begun) > patience.silent:
            raise self._lose(f"it has not answered for {patience.silent:g} s")
        self._require_in_time()
        self.post({"do": "beat"})

    def _require_in_time(self) -> None:
        late = self._patience.late
        if self._calls and time.monotonic() - self._calls[0].begun > late:
            raise self._lose(f"one answer has taken more than {late:g} s")

    def close(self) -> None:
        """End the stage; safe to call again."""
        with self._lock:
            with suppress(DeviceLost):
                self.post({"do": "close"})
            self._lose("it was closed")


class StageResult:
    """Outputs of a run on their way here."""

    def __init__(self, link: StageLink, call: _Call) -> None:
        self._link, self._call = link, call

    def wait(self) -> list[Array]:
        """Return the outputs in the order they were recorded."""
        message, raw = self._link.wait(self._call)
        found: list[Array] = []
        at = 0
        for dtype, shape in message["outputs"]:
            found.append(np.ndarray(shape, dtype, raw, at))
            at += found[-1].nbytes
        return found


class StageRecorded:
    """A graph that the stage recorded.

    Parameters
    ----------
    shared, times, read, unread
        See `Executor.record`.
    """

    def __init__(
        self,
        executor: StageExecutor,
        outputs: Sequence[Node],
        *,
        shared: bool,
        times: int,
        read: bool,
        unread: Sequence[Node],
    ) -> None:
        self._executor = executor
        self._outputs = tuple(outputs)
        self.scheduled: Sequence[Node] = schedule([*outputs, *unread])
        graph = GraphEncoder(outputs, unread, executor.number)
        self._index = graph.index
        # Values are at most widened to f32, and complex numbers have eight bytes.
        self._most = sum(max(8 * n.spec.size, n.spec.nbytes) for n in outputs) if read else 0
        self._id = executor.new_id()
        message = {"do": "record", "graph": graph.plain, "id": self._id, "shared": shared}
        facts = executor.make(self._id, {**message, "read": read}, graph.raw)
        self._inputs: list[tuple[str, str, Sequence[int]]] = facts["inputs"]
        self.turns: list[dict[str, Array]] = [
            {name: np.zeros(shape, dtype) for name, dtype, shape in self._inputs}
            for _ in range(times)
        ]
        steps = tuple((n, n.launch) for n in self.scheduled if n.launch is not None)
        peak, live = facts["peak"], facts["live"]
        self.plan = MemoryPlan(steps, {}, (peak,), peak, live)
        self.dispatches: int = facts["dispatches"]

    @property
    def _link(self) -> StageLink:
        return self._executor.link

    @property
    def arrays(self) -> dict[str, Array]:
        """The values of the named inputs for `replay`."""
        return self.turns[0]

    def run(self, inputs: Mapping[str, Array]) -> StageResult:
        """Write the named inputs and run; does not wait."""
        write_inputs(self.arrays, inputs)
        return self.replay()

    def replay(self) -> StageResult:
        """Run with the current values of `arrays`; does not wait."""
        return self._start(self.turns[0])

    def replays(self, count: int) -> list[Result]:
        """Run `count` times, with the inputs in `turns[0]`, `turns[1]`, …; does not wait."""
        require_turns(self.turns, count)
        return [self._start(turn) for turn in self.turns[:count]]

    def _start(self, turn: Mapping[str, Array]) -> StageResult:
        raw = b"".join([turn[name].tobytes() for name, _, _ in self._inputs])
        call = self._link.begin({"do": "run", "id": self._id}, raw, most=self._most)
        return StageResult(self._link, call)

    def timed(self) -> list[tuple[str, str, float]]:
        """Time each dispatch, with the inputs of the last run: op, shader and seconds."""
        found = self._link.ask({"do": "timed", "id": self._id})[0]["found"]
        return [(op, shader, seconds) for op, shader, seconds in found]

    def keep(self, storages: Sequence[Storage]) -> None:
        """Turn these storages into states that outlive the run, then close it."""
        pairs: list[tuple[int, int]] = []
        for storage in storages:
            storage.kind, storage.handle = "state", Kept(self._executor.new_id())
            pairs.append((self._index[storage], storage.handle.id))
        self._link.ask({"do": "keep", "id": self._id, "pairs": pairs})
        self._executor.note_computed([number for _, number in pairs])
        self.close()

    def replay_between(self, before: Pairs, after: Pairs) -> None:
        """Copy tensors, run, and copy outputs through this process."""
        self._executor.copy(before)
        values = self.replay().wait()
        places = {id(node): at for at, node in enumerate(self._outputs)}
        for source, target in after:
            self._executor.write(target, values[places[id(source)]].tobytes())

    def close(self) -> None:
        """Release the memory; calling it again is harmless."""
        self._executor.release({"do": "end", "id": self._id}, self._id)


@dataclass(frozen=True, slots=True)
class Kept:
    """The handle of a weight or a state: its number on the stage."""

    id: int


class StageExecutor:
    """An executor that runs in a process of another node.

    Parameters
    ----------
    connect : callable
        Opens the stage: returns the link, and what the stage answered.
    files : mapping of str to int
        Numbers of the files that it has a copy of, by their paths here.
    reopen_seconds : float
        For how long `reopen` tries; 0 if it is not opened again.
    """

    def __init__(
        self,
        connect: Callable[[], tuple[StageLink, Message]],
        files: Mapping[str, int],
        reopen_seconds: float = 0.0,
    ) -> None:
        self._connect, self._files, self._reopen_seconds = connect, files, reopen_seconds
        self.link, facts = connect()
        # What a new process needs, by number, in the order it was made.
        self._made: dict[int, tuple[Message, Pieces]] = {}
        self._writes: dict[int, dict[str, tuple[Message, bytes]]] = {}
        self._computed: set[int] = set()
        self.info = from_plain(DeviceInfo, facts["device"])
        self.capabilities = capabilities_from_plain(facts["capabilities"])
        self._last = 0
        self._cache: dict[int, tuple[str, int]] = {}
        self._closed = threading.Event()
        self.unclosed = Unclosed(f"stage {self.link.name}")
        self._watcher: threading.Thread | None = None

    def watch(self, seconds: float, lost: Lost) -> None:
        """Watch the stage while nothing runs, so that a loss is noticed at once."""
        name = f"stage {self.link.name}"
        self._watcher = threading.Thread(target=self._watch, args=(seconds, lost), name=name)
        self._watcher.daemon = True
        self._watcher.start()

    def _watch(self, seconds: float, lost: Lost) -> None:
        while not self._closed.is_set():
            link = self.link
            link.wait_for_end(seconds)
            try:
                link.check()
            except DeviceLost as error:
                if self._closed.is_set():
                    return
                lost(error)
                if not self._reopen_seconds:
                    return
                # Until it is open again, or closed.
                while link is self.link and not self._closed.wait(PAUSE_SECONDS):
                    continue
            except BackendError:
                # Of a run, for whoever waits for it.
                continue

    @property
    def lost(self) -> DeviceLost | None:
        """Return the error with which the stage was lost, if it was and may be opened again."""
        return self.link.error if self._reopen_seconds else None

    def reopen(self) -> None:
        """Open the stage in another process, with its weights and graphs and with empty caches.

        Raises
        ------
        DeviceLost
            Its node does not answer in time, or has lost what cannot be made again.
        """
        error = self.link.error
        if self._computed:
            raise error or DeviceLost(f"stage {self.link.name}: it has results that are kept")
        begun = time.monotonic()
        while True:
            try:
                self._open_again()
                break
            except (WorkerLost, DeviceLost) as failure:
                if time.monotonic() - begun > self._reopen_seconds or self._closed.is_set():
                    raise DeviceLost(f"{error}; it was not opened again: {failure}") from failure
                self._closed.wait(PAUSE_SECONDS)
        seconds = time.monotonic() - begun
        _LOG.warning("stage %s is open again after %.1f s", self.link.name, seconds)

    def _open_again(self) -> None:
        """Make weights, states and graphs again in a new process."""
        link, _ = self._connect()
        try:
            for message, data in [*self._made.values()]:
                link.ask(message, bytes(join_pieces(data)))
            for writes in [*self._writes.values()]:
                for message, data in writes.values():
                    link.ask(message, data)
        except BaseException:
            link.close()
            raise
        self.link = link

    def make(self, number: int, message: Message, data: Pieces | bytes = b"") -> Message:
        """Make an object on the stage, and keep the message to repeat it in another process."""
        given = memoryview(data) if isinstance(data, bytes) else data
        found = self.link.ask(message, bytes(join_pieces(given)))[0]
        if self._reopen_seconds:
            self._made[number] = message, given
        return found

    def note_computed(self, numbers: Sequence[int]) -> None:
        """Note states that a graph computed, which another process would not have."""
        self._computed.update(numbers)

    def new_id(self) -> int:
        """Return a number for another graph or storage."""
        self._last += 1
        return self._last

    def number(self, storage: Storage) -> int:
        """Return the number of a weight or a state on the stage.

        Raises
        ------
        ContextError
            It was released.
        """
        if not isinstance(storage.handle, Kept):
            raise ContextError(f"{storage.label or storage.kind}: it was released")
        return storage.handle.id

    def release(self, message: Message, number: int) -> None:
        """Send a message that releases an object, unless the stage is lost."""
        self._made.pop(number, None)
        self._writes.pop(number, None)
        self._computed.discard(number)
        with suppress(DeviceLost):
            self.link.post(message)

    def weight(self, spec: Spec, data: Pieces, label: str, *, alone: bool = False) -> Storage:
        """Store a weight on the stage, from the stage's own copy of the file if it has one."""
        number = self.new_id()
        message = {"do": "weight", "id": number, "spec": spec_to_plain(spec), "label": label}
        places = self._find(data)
        found = self.make(
            number, {**message, "alone": alone, "places": places}, b"" if places else data
        )
        return Storage(found["nbytes"], "weight", label, Kept(number))

    def _find(self, data: Pieces) -> list[tuple[int, int, int]]:
        """Return file, offset and size of each piece; nothing if one is in no shared file."""
        if isinstance(data, memoryview):
            return []
        found: list[tuple[int, int, int]] = []
        for piece in data:
            number = self._files.get(str(piece.path)) if isinstance(piece, FileRange) else None
            if number is None or not isinstance(piece, FileRange):
                return []
            found.append((number, piece.offset, piece.nbytes))
        return found

    def state(self, spec: Spec, label: str, *, zeroed: bool = True) -> Storage:
        """Return storage on the stage that outlives graphs."""
        number = self.new_id()
        message = {"do": "state", "id": number, "spec": spec_to_plain(spec), "label": label}
        nbytes: int = self.make(number, {**message, "zeroed": zeroed})["nbytes"]
        self._cache[number] = label, nbytes
        return Storage(nbytes, "state", label, Kept(number))

    def free(self, storage: Storage) -> None:
        """Release the bytes of a state, or of an `alone` weight; calling it again is harmless."""
        if isinstance(storage.handle, Kept):
            self._cache.pop(storage.handle.id, None)
            self.release({"do": "free", "id": storage.handle.id}, storage.handle.id)
        storage.handle = None

    def record(
        self,
        outputs: Sequence[Node],
        *,
        shared: bool = True,
        times: int = 1,
        read: bool = True,
        unread: Sequence[Node] = (),
    ) -> StageRecorded:
        """Have the stage record a graph for running."""
        return StageRecorded(self, outputs, shared=shared, times=times, read=read, unread=unread)

    def record_pausable(self, outputs: Sequence[Node], *, at_once: bool = True) -> WholePausable:
        """Record a graph on the stage, which runs it whole."""
        return WholePausable(self.record(outputs))

    def copy(self, pairs: Pairs) -> None:
        """Copy dense tensors on the stage, each into one of the same size."""
        plain = [(self._encode(source), self._encode(target)) for source, target in pairs]
        self.link.ask({"do": "copy", "pairs": plain})

    def _encode(self, node: Node) -> list[Any]:
        return [self.number(node.storage), node.storage.kind, spec_to_plain(node.spec)]

    def drop(self, handle: object) -> None:
        """Do nothing: what is collected here stays until the stage closes."""

    def cached_nbytes(self, keep: int | None = None) -> int:
        """Return the released bytes kept for reuse, after reducing them to `keep`."""
        return self.link.ask({"do": "cached", "keep": keep})[0]["found"]

    def read(self, node: Node) -> Array:
        """Return the values of a computed node or a weight."""
        most = max(8 * node.spec.size, node.spec.nbytes)
        call = self.link.begin({"do": "read", "node": self._encode(node)}, most=most)
        return StageResult(self.link, call).wait()[0]

    def write(self, node: Node, data: bytes) -> None:
        """Write bytes into a dense state."""
        message = {"do": "write", "node": self._encode(node)}
        self.link.ask(message, data)
        # Caches are empty in another process, but the scales of adapters stay.
        if self._reopen_seconds and not node.storage.label.startswith("cache."):
            writes = self._writes.setdefault(self.number(node.storage), {})
            writes[str(message["node"])] = message, data

    def memory_report(self) -> str:
        """Return the stage's use of memory, as a table."""
        return self.link.ask({"do": "memory"})[0]["report"]

    def cache_nbytes(self) -> dict[str, int]:
        """Return the bytes of states, by label."""
        total: dict[str, int] = {}
        for label, nbytes in list(self._cache.values()):
            total[label] = total.get(label, 0) + nbytes
        return total

    def graph_nbytes(self) -> int:
        """Return the bytes of intermediates, inputs and parameters."""
        return self.link.ask({"do": "memory"})[0]["graphs"]

    def close(self) -> None:
        """End the stage; calling it again is harmless."""
        self.unclosed.silence()
        self._closed.set()
        self.link.close()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()


def open_stage(
    spec: StageSpec,
    params: BackendParams,
    patience: Patience | None = None,
    lost: Lost = lambda _: None,
    reopen_seconds: float = 0.0,
) -> StageExecutor:
    """Open a stage: connect to its node, which compares version and files before it loads anything.

    Parameters
    ----------
    lost : callable
        Called with the error, in a thread, if the stage is lost while nothing runs.
    reopen_seconds : float
        See `StageExecutor`.

    Raises
    ------
    WorkerLost, DeviceLost
        The node does not answer.
    BackendError
        It has another version or another file, or cannot open its device.
    """
    wait = patience or Patience(late=spec.late_seconds)
    options = {name: getattr(params, name) for name in ("profile", "exact", "coarse", "self_test")}
    rules = params.fusion if isinstance(params.fusion, bool) else [*params.fusion]
    files = [(there, digest) for _, there, digest in spec.files]
    message = {
        "do": "open", "version": spec.version, "device": spec.device, "files": files,
        "fusion": rules, **options,
    }  # fmt: skip

    def begin() -> tuple[StageLink, Message]:
        sock, pid = connect(spec.address, spec.ticket, ticket=True)
        # The process imports the package and starts a driver before it can give a sign of life.
        long = replace(wait, silent=max(wait.silent, OPEN_SECONDS))
        link = StageLink(sock, spec.id, pid, long)
        try:
            facts = link.ask(message)[0]
            link.set_patience(wait)
        except BaseException:
            link.close()
            raise
        return link, facts

    own = {here: number for number, (here, _, _) in enumerate(spec.files)}
    made = StageExecutor(begin, own, reopen_seconds)
    made.watch(wait.beat, lost)
    return made
