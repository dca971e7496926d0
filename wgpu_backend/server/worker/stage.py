"""The process of a stage: it runs graphs of another node's model, see `cluster.stages`.

A thread reads messages and answers beats at once; the main thread does what they ask for, in their
order. The process ends with its connection.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np

from wgpu_backend import __version__
from wgpu_backend.errors import BackendError, DeviceLost, ModelError
from wgpu_backend.files.gguf.file_bytes import FileBytes, FileRange, Source
from wgpu_backend.graph.node import Node, Storage
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.executor import Array, Executor, Recorded, Result
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.opening import choose_device
from wgpu_backend.server.cluster.files import digest_file
from wgpu_backend.server.cluster.graphs import (
    GraphDecoder,
    capabilities_to_plain,
    spec_from_plain,
)
from wgpu_backend.server.cluster.stages import CHUNK, MOST_GRAPH
from wgpu_backend.server.worker.event_sender import send_logs
from wgpu_backend.server.worker.frames import (
    Message,
    encode_message,
    make_reader,
    open_socket,
    read_message,
)
from wgpu_backend.server.worker.messages import error_to_plain, to_plain

Reply = tuple[Message, bytes]
# Runs that are submitted before the first is waited for.
_MOST_UNDER_WAY = 3


def main(handle: str) -> None:
    """Serve on an inherited socket.

    Parameters
    ----------
    handle : str
        See `frames.open_socket`.
    """
    # As in `event_sender.connect`.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sock = open_socket(handle)
    source, sender = make_reader(sock), Sender(sock)
    send_logs(sender.send)
    inbox: SimpleQueue[Reply] = SimpleQueue()
    service = Service(sender)
    threading.Thread(
        target=_read_messages, args=(source, inbox, service), name="reader", daemon=True
    ).start()
    try:
        service.serve(inbox)
    finally:
        # Without cleaning up: calls into the driver of a lost device may crash.
        os._exit(0)


class Sender:
    """A sender that sends at once, in the thread that has a message."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket, self._lock = sock, threading.Lock()

    def send(self, message: Message, raw: bytes = b"") -> None:
        """Send a message."""
        data = encode_message(message, raw)
        # If the first node is gone, the reader ends the process.
        with self._lock, suppress(OSError):
            self._socket.sendall(data)


def _read_messages(source: BufferedReader, inbox: SimpleQueue[Reply], service: Service) -> None:
    """Read messages; exit when the first node is gone, whatever this process is doing."""
    try:
        while (found := read_message(source, MOST_GRAPH, service.most_nbytes)) is not None:
            if found[0]["do"] == "beat":
                service.sender.send({"type": "beat"})
            else:
                inbox.put(found)
    finally:
        os._exit(0)


class Service:
    """A dispatcher of messages to an executor.

    Attributes
    ----------
    most_nbytes : int
        Most bytes of data that a message may have: the inputs of the largest graph.
    """

    def __init__(self, sender: Sender) -> None:
        self.sender = sender
        self.most_nbytes = CHUNK
        self._executor: Executor | None = None
        self._files: list[FileBytes] = []
        self._kept: dict[int, Storage] = {}
        self._graphs: dict[int, tuple[Recorded, GraphDecoder]] = {}
        self._runs: deque[Result] = deque()
        # Pieces of data that are too long for one message.
        self._data = bytearray()
        self._acts: Mapping[str, Callable[[Message, bytes], Reply]] = {
            "open": self._open, "weight": self._weight, "state": self._state,
            "record": self._record, "timed": self._timed, "keep": self._keep, "copy": self._copy,
            "read": self._read, "write": self._write, "cached": self._cached,
            "memory": self._memory, "ping": lambda _, __: ({}, b""),
        }  # fmt: skip

    def serve(self, inbox: SimpleQueue[Reply]) -> None:
        """Handle messages until the first node closes the stage, or the device is lost."""
        while True:
            try:
                message, raw = inbox.get_nowait()
            except Empty:
                if self._runs:
                    self._answer_run()
                    continue
                message, raw = inbox.get()
            if message["do"] == "close":
                return
            self._take(message, raw)

    def _take(self, message: Message, raw: bytes) -> None:
        match message["do"]:
            case "run":
                self._run(message["id"], raw)
            case "data":
                self._data += raw
            case "free":
                self._executor_free(message["id"])
            case "end":
                found = self._graphs.pop(message["id"], None)
                if found is not None:
                    self._drain()
                    found[0].close()
            case what:
                # Answers have the order of the messages.
                self._drain()
                whole = bytes(self._data) + raw
                self._data.clear()
                self._reply(lambda: self._acts[what](message, whole))

    def _reply(self, act: Callable[[], Reply]) -> None:
        try:
            message, raw = act()
        except DeviceLost as error:
            self._fail(error)
            raise
        except Exception as error:
            # The first node raises it for the caller.
            self._fail(error)
        else:
            self.sender.send({"type": "answer", **message}, raw)

    def _fail(self, error: BaseException) -> None:
        self.sender.send({"type": "failed", "error": error_to_plain(error)})

    # Runs.

    def _run(self, number: int, raw: bytes) -> None:
        while len(self._runs) >= _MOST_UNDER_WAY:
            self._answer_run()
        try:
            recorded, at = self._graphs[number][0], 0
            for values in recorded.arrays.values():
                given = np.frombuffer(raw, values.dtype, values.size, at)
                values[...] = given.reshape(values.shape)
                at += values.nbytes
            self._runs.append(recorded.replay())
        except Exception as error:
            self._drain()
            self._fail(error)
        # NumPy has computed it by now; the next stage need not wait for the next run.
        if isinstance(self._executor, NumpyExecutor):
            self._drain()

    def _answer_run(self) -> None:
        result = self._runs.popleft()
        self._reply(lambda: encode_arrays(result.wait()))

    def _drain(self) -> None:
        while self._runs:
            self._answer_run()

    # What is done once.

    def _require(self) -> Executor:
        if self._executor is None:
            raise BackendError("stage: it has no device yet")
        return self._executor

    def _open(self, message: Message, _: bytes) -> Reply:
        if message["version"] != __version__:
            raise ModelError(
                f"cluster: the first node has version {message['version']}, this stage's node has "
                f"{__version__}; install the same"
            )
        files: list[tuple[str, str]] = message["files"]
        for path, digest in files:
            self._files.append(open_copy(path, digest))
        kind, info = choose_device(message["device"])
        names = ("profile", "exact", "coarse", "self_test", "fusion")
        options = {name: message[name] for name in names}
        executor = self._executor = make_executor(kind, BackendParams(info, **options))
        known = capabilities_to_plain(executor.capabilities)
        return {"device": to_plain(executor.info), "capabilities": known}, b""

    def _weight(self, message: Message, raw: bytes) -> Reply:
        label, alone = message["label"], message["alone"]
        places: list[tuple[int, int, int]] = message["places"]
        pieces: list[Source] = [
            FileRange(self._files[number], label, offset, nbytes)
            for number, offset, nbytes in places
        ]
        spec = spec_from_plain(message["spec"])
        data = pieces or memoryview(raw)
        storage = self._require().weight(spec, data, label, alone=alone)
        self._kept[message["id"]] = storage
        return {"nbytes": storage.nbytes}, b""

    def _state(self, message: Message, _: bytes) -> Reply:
        spec, zeroed = spec_from_plain(message["spec"]), message["zeroed"]
        storage = self._require().state(spec, message["label"], zeroed=zeroed)
        self._kept[message["id"]] = storage
        return {"nbytes": storage.nbytes}, b""

    def _executor_free(self, number: int) -> None:
        storage = self._kept.pop(number, None)
        if storage is not None:
            self._drain()
            self._require().free(storage)

    def _record(self, message: Message, raw: bytes) -> Reply:
        graph = GraphDecoder(message["graph"], raw, self._kept)
        shared, read = message["shared"], message["read"]
        recorded = self._require().record(
            graph.outputs, shared=shared, read=read, unread=graph.unread
        )
        self._graphs[message["id"]] = recorded, graph
        inputs = [(name, a.dtype.str, a.shape) for name, a in recorded.arrays.items()]
        self.most_nbytes = max(self.most_nbytes, sum(a.nbytes for a in recorded.arrays.values()))
        plan = recorded.plan
        facts = {"peak": plan.peak_nbytes, "live": plan.live_nbytes}
        return {"inputs": inputs, "dispatches": recorded.dispatches, **facts}, b""

    def _timed(self, message: Message, _: bytes) -> Reply:
        return {"found": self._graphs[message["id"]][0].timed()}, b""

    def _keep(self, message: Message, _: bytes) -> Reply:
        recorded, graph = self._graphs[message["id"]]
        given: list[tuple[int, int]] = message["pairs"]
        pairs = [(graph.storages[at], number) for at, number in given]
        recorded.keep([storage for storage, _ in pairs])
        self._kept |= {number: storage for storage, number in pairs}
        return {}, b""

    def _node(self, plain: Any) -> Node:  # noqa: ANN401
        number, _, spec = plain
        return Node(spec_from_plain(spec), self._kept[number])

    def _copy(self, message: Message, _: bytes) -> Reply:
        self._require().copy([(self._node(a), self._node(b)) for a, b in message["pairs"]])
        return {}, b""

    def _read(self, message: Message, _: bytes) -> Reply:
        return encode_arrays([self._require().read(self._node(message["node"]))])

    def _write(self, message: Message, raw: bytes) -> Reply:
        self._require().write(self._node(message["node"]), raw)
        return {}, b""

    def _cached(self, message: Message, _: bytes) -> Reply:
        return {"found": self._require().cached_nbytes(message["keep"])}, b""

    def _memory(self, message: Message, _: bytes) -> Reply:
        executor = self._require()
        return {"report": executor.memory_report(), "graphs": executor.graph_nbytes()}, b""


def open_copy(path: str, digest: str) -> FileBytes:
    """Open this node's copy of a file.

    Raises
    ------
    ModelError
        It is another file.
    """
    found = FileBytes(Path(path))
    own = digest_file(path)
    if own != digest:
        found.close()
        raise ModelError(
            f"{path}: the stage's file has SHA-256 {own}, the first node's has {digest}; pull or "
            "create the model there again"
        )
    return found


def encode_arrays(arrays: list[Array]) -> Reply:
    """Return arrays as a message and its data."""
    outputs = [(array.dtype.str, array.shape) for array in arrays]
    return {"outputs": outputs}, b"".join([array.tobytes() for array in arrays])
