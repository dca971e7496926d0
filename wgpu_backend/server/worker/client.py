"""The server's side of one worker: pending requests and calls."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from typing import Any

from wgpu_backend import __version__
from wgpu_backend.engine.batching.generation import Generation, Mailbox, Waiter, wake
from wgpu_backend.engine.batching.intake import Intake
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.batching.results import Event
from wgpu_backend.errors import BackendError, DeviceLost, WorkerLost
from wgpu_backend.server.worker.channel import Channel, Exit
from wgpu_backend.server.worker.frames import Message
from wgpu_backend.server.worker.media_messages import list_placed
from wgpu_backend.server.worker.messages import LoadSpec, from_plain, parse_error, to_plain
from wgpu_backend.server.worker.spare import Start

_CLOSE_SECONDS = 10.0
# The pass of a long prompt may take minutes on a slow device.
HANG_SECONDS = 300.0
# Least time for loading: imports, driver start and compilers report nothing meanwhile.
LOADING_SECONDS = 60.0
# Checks within that time.
_BEATS = 4
Reply = tuple[Message, bytes]
Lost = Callable[[BackendError], None]


class Client:
    """A client that starts a worker for a model, and passes its messages to their receivers.

    Parameters
    ----------
    name : str
        Name of the model, for messages.
    lost : callable
        Called once with the error if the device is lost or the process crashes, in a thread of
        the client.
    hang_seconds : float
        Time without an answer after which the worker is ended as lost: a hung device keeps the
        process alive. While it loads, the limit is at least a minute. 0 for no limit.
    start : callable
        Starts the process.

    Attributes
    ----------
    loaded : Future
        Facts about the model, once it is loaded.
    """

    def __init__(
        self,
        name: str,
        spec: LoadSpec,
        lost: Lost,
        hang_seconds: float = HANG_SECONDS,
        start: Start = Channel,
    ) -> None:
        self._name = name
        self._lost = lost
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._boxes: dict[int, tuple[Mailbox, Callable[[int], None]]] = {}
        self.loaded: Future[Reply] = Future()
        self._calls: dict[int, Future[Reply]] = {0: self.loaded}
        self._closing = False
        self._error: BackendError | None = None
        self._heard = time.monotonic()
        self._over = threading.Event()
        self._channel = start(self._receive, self._handle_exit)
        # The channel keeps the order, so no later message can overtake this one.
        self._channel.post({"do": "load", "version": __version__, "spec": to_plain(spec)})
        if hang_seconds:
            watch = threading.Thread(target=self._watch, args=(hang_seconds,), daemon=True)
            watch.name = f"worker {self.pid} watch"
            watch.start()

    @property
    def error(self) -> BackendError | None:
        """The error that ended the worker; None while it is alive."""
        return self._error

    @property
    def pid(self) -> int:
        """Process id of the worker."""
        return self._channel.pid

    # Requests to the worker.

    def submit(
        self, request: Request, intake: Intake, mailbox: Mailbox | None = None
    ) -> Generation:
        """Submit a request; returns at once.

        Parameters
        ----------
        request : Request
            A request whose prompt fits.
        intake : Intake
            Counts its choices while they are in progress.
        mailbox : Mailbox or None
            Receives the events; None for a new one.

        Raises
        ------
        QueueFull
            The queue is full.
        BackendError
            The worker has ended.
        """
        number, box = next(self._numbers), mailbox or Mailbox(request.n)
        message: Message = {"do": "submit", "id": number}
        if request.placed:
            message["placed"] = list_placed(request.placed)
        message["request"] = to_plain(replace(request, placed=()) if request.placed else request)

        def put() -> None:
            with self._lock:
                self._require_alive()
                self._boxes[number] = box, intake.give_back
                self._channel.post(message)

        self._require_alive()
        intake.take(request.n, put)
        return Generation(number, request, box, self._cancel)

    def _cancel(self, number: int) -> None:
        """Cancel a request; finalisers may do so at any moment, so this takes no lock."""
        if number in self._boxes:
            self._channel.post({"do": "cancel", "id": number})

    def ask(self, do: str, seconds: float | None = None, **more: Any) -> Reply:  # noqa: ANN401
        """Ask for something, and wait for the answer.

        Raises
        ------
        BackendError
            The worker has ended, reports an error, or has not answered in time.
        """
        number, found = next(self._numbers), Future[Reply]()
        with self._lock:
            self._require_alive()
            self._calls[number] = found
            self._channel.post({"do": do, "id": number, **more})
        try:
            return found.result(seconds)
        except TimeoutError:
            raise BackendError(
                f"{self._name}: its worker has not answered within {seconds:g} s"
            ) from None
        finally:
            self._calls.pop(number, None)

    def _require_alive(self) -> None:
        if self._error is not None:
            raise self._error

    def _watch(self, seconds: float) -> None:
        """End a worker that stops answering."""
        pause = seconds / _BEATS
        while not self._over.wait(pause):
            if not self.loaded.done():
                most = max(seconds, LOADING_SECONDS)
                if time.monotonic() - self._heard >= most:
                    self._end_hung(f"has reported nothing for {most:g} s while it loaded the model")
                continue
            asked = time.monotonic()
            try:
                self.ask("beat", seconds)
            except BackendError:
                if self._over.is_set() or self._closing:
                    return
                # With another message since then, the worker is slow, not hung.
                if self._heard < asked:
                    self._end_hung(f"has not answered for {seconds:g} s")

    def _end_hung(self, how: str) -> None:
        error = WorkerLost(
            f"{self._name}: its worker {how} and was ended; the model is loaded again, send the "
            "request again",
            hung=True,
        )
        self._end(error)
        self._channel.kill()

    # Messages from the worker.

    def _receive(self, message: Message, raw: bytes) -> None:
        self._heard = time.monotonic()
        number: int = message.get("id", 0)
        match message["type"]:
            case "events":
                wake([each for one in message["events"] for each in self._deliver(*one)])
            case "answer":
                found = self._calls.pop(number, None)
                if found is not None:
                    found.set_result((message, raw))
            case "failed":
                self._fail_request(number, parse_error(message["error"]))
            case "lost":
                error = parse_error(message["error"])
                self._end(self._describe_loss(error), report=isinstance(error, DeviceLost))
            case "loading":
                # Receiving it is enough: it resets the time above.
                pass
            case _:
                logger = logging.getLogger(message["name"])
                logger.log(message["level"], "%s: %s", self._name, message["text"])

    def _deliver(self, number: int, plain: list[Any]) -> list[Waiter]:
        """Deliver an event; the caller wakes those who wait for it."""
        found = self._boxes.get(number)
        if found is None or found[0].ended:
            return []
        # Only the reading thread delivers, so events of a request stay in order.
        mailbox, give_back = found
        event = from_plain(Event, plain)
        if event.finish is not None:
            give_back(1)
        waiters = mailbox.add(event)
        if mailbox.ended:
            self._boxes.pop(number, None)
        return waiters

    def _fail_request(self, number: int, error: BackendError) -> None:
        failure = self._describe_loss(error) if isinstance(error, DeviceLost) else error
        call = self._calls.pop(number, None)
        if call is not None:
            call.set_exception(failure)
        box = self._boxes.pop(number, None)
        if box is not None:
            _fail(*box, failure)
        if isinstance(error, DeviceLost) and number:
            self._end(failure)

    def _describe_loss(self, error: BackendError) -> BackendError:
        if not isinstance(error, DeviceLost):
            return WorkerLost(f"{self._name}: its worker failed: {error}; send the request again")
        return DeviceLost(
            f"{self._name}: the device was lost ({error}); the model is loaded again, "
            "send the request again"
        )

    def _handle_exit(self, ending: Exit) -> None:
        """Fail all pending work; the last call of the channel."""
        # An ending that the server requested is not a loss.
        if self._closing:
            self._end(BackendError(f"{self._name}: the model was unloaded"), report=False)
            return
        error = WorkerLost(
            f"{self._name}: its worker process {ending}; the model is loaded again, "
            "send the request again"
        )
        self._end(error, report=ending.has_crashed)

    def _end(self, error: BackendError, *, report: bool = True) -> None:
        """Fail everything with an error, once."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            self._over.set()
            boxes, calls = list(self._boxes.values()), list(self._calls.values())
            self._boxes.clear()
            self._calls.clear()
        # First, so that a request that is sent again finds the loss counted.
        if report:
            self._lost(error)
        for box in boxes:
            _fail(*box, error)
        for call in calls:
            call.set_exception(error)

    def kill(self) -> None:
        """End the process at once; for a worker that is no longer needed."""
        self._closing = True
        self._channel.kill()

    def close(self) -> None:
        """End the process after the current step. Safe to call twice."""
        self._closing = True
        self._channel.close(_CLOSE_SECONDS)


def _fail(mailbox: Mailbox, give_back: Callable[[int], None], error: BackendError) -> None:
    give_back(mailbox.left)
    mailbox.fail(error)
