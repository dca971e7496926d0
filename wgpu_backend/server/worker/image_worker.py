"""The server's side of the processes for pictures and speech, which may crash on their own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

from wgpu_backend.errors import BackendError, DeviceLost, WorkerLost
from wgpu_backend.ops.plugins import imported_files
from wgpu_backend.server.worker.channel import Channel, Exit
from wgpu_backend.server.worker.frames import Message
from wgpu_backend.server.worker.health import Health
from wgpu_backend.server.worker.image_messages import (
    ImageRequest,
    ImageResult,
    image_request_to_plain,
)
from wgpu_backend.server.worker.messages import parse_error

_CLOSE_SECONDS = 10.0
# Steps and loads are reported at their end, and may take minutes.
HANG_SECONDS = 1200.0
# Checks within that time.
_LOOKS = 4
ReportStep = Callable[[int, int], None]
"""A function that is called after each step with the finished steps and their total."""


class Order(Protocol):
    """A request for a process."""

    @property
    def name(self) -> str:
        """Return the name of the model, as in the request."""
        ...


class Job:
    """A request in progress.

    Parameters
    ----------
    report : callable
        Called with the progress, which each kind of request has in its own way.
    """

    def __init__(self, number: int, order: Order, report: Callable[..., object]) -> None:
        self.number = number
        self.order = order
        self.report = report
        self.begun = False
        self.pngs: list[bytes] = []
        self.found: Future[Any] = Future()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of process.

    Parameters
    ----------
    what : str
        Its results, for messages.
    module : str
        Module of the process.
    to_plain : callable
        Returns a request as plain data and bytes.
    handle : callable
        Handles a message about a request: its type, its data and its bytes.
    """

    what: str
    module: str
    to_plain: Callable[[Any], tuple[dict[str, Any], bytes]]
    handle: Callable[[Job, str, Message, bytes], None]


class JobWorker:
    """A process, started by the first request, or by the first after it died.

    After three losses of the device within a minute, see `Health`, it is not started again.

    Parameters
    ----------
    kind : Kind
        Kind of the process.
    device : str or None
        None for the best.
    hang_seconds : float
        Time without a message after which the process is ended as lost: a hung device keeps it
        alive. 0 for no limit.
    """

    def __init__(
        self, kind: Kind, device: str | None = None, hang_seconds: float = HANG_SECONDS
    ) -> None:
        self._kind = kind
        self._device = device
        self._hang_seconds = hang_seconds
        self._health = Health([device or "the device"])
        self._lock = threading.Lock()
        self._child: _Process | None = None
        self._closed = False

    @property
    def pid(self) -> int | None:
        """Process id; None if there is no process."""
        child = self._child
        return None if child is None or child.error is not None else child.pid

    def run(self, order: Order, report: Callable[..., object], left: threading.Event) -> Any:  # noqa: ANN401
        """Send a request, and wait for its result; one request at a time.

        Parameters
        ----------
        left : Event
            Set before a call of `cancel`, when the client has gone.

        Raises
        ------
        BackendError
            The request failed, the process ended, or the request was cancelled.
        """
        while True:
            child, fresh = self._get_process()
            found = child.run(order, self._device, report, left)
            if found is not None:
                return found
            # The process had ended unnoticed before this request.
            if fresh and child.error is not None:
                raise child.error

    def _get_process(self) -> tuple[_Process, bool]:
        """Return the process, and whether it was just started."""
        with self._lock:
            if self._closed:
                raise BackendError(f"{self._kind.what}: the server is shutting down")
            # Raises after too many losses.
            self._health.choose()
            if self._child is not None and self._child.error is None:
                return self._child, False
            self._child = _Process(self._kind, self._lost, self._hang_seconds)
            return self._child, True

    def _lost(self, error: BackendError) -> None:
        self._health.lost(self._device or "the device", error)

    def cancel(self, order: Order) -> None:
        """Cancel a request after the current step, if it has begun; returns at once."""
        child = self._child
        if child is not None:
            child.cancel(order)

    def close(self) -> None:
        """End the process after the current step. Safe to call twice."""
        with self._lock:
            self._closed = True
            child = self._child
        if child is not None:
            child.close()


class ImageWorker(JobWorker):
    """A process for images."""

    def __init__(self, device: str | None = None, hang_seconds: float = HANG_SECONDS) -> None:
        super().__init__(PICTURES, device, hang_seconds)

    def generate(
        self, order: ImageRequest, report: ReportStep, left: threading.Event
    ) -> ImageResult:
        """Generate images, and wait for them; raises like `run`."""
        return self.run(order, report, left)


class _Process:
    """A process, and its current request.

    Parameters
    ----------
    kind : Kind
        Kind of the process.
    lost : callable
        Called with the error if the device is lost or the process crashes.
    hang_seconds : float
        See `ImageWorker`.

    Attributes
    ----------
    error : BackendError or None
        The error that ended the process.
    """

    def __init__(
        self, kind: Kind, lost: Callable[[BackendError], None], hang_seconds: float
    ) -> None:
        self._kind = kind
        self._lost = lost
        self._hang_seconds = hang_seconds
        self._heard = time.monotonic()
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._asked: Job | None = None
        self._closing = False
        self.error: BackendError | None = None
        self._channel = Channel(self._receive, self._handle_exit, kind.module)
        self.pid = self._channel.pid

    def run(
        self,
        order: Order,
        device: str | None,
        report: Callable[..., object],
        left: threading.Event,
    ) -> Any:  # noqa: ANN401
        """Return the result of a request; None if the process ended before it began with it."""
        plain, raw = self._kind.to_plain(order)
        asked = Job(next(self._numbers), order, report)
        message = {"do": "generate", "id": asked.number, "device": device, **plain}
        message["imports"] = list(map(str, imported_files()))
        with self._lock:
            if self.error is not None:
                return None
            self._heard = time.monotonic()
            self._channel.post(message, raw)
            self._asked = asked
        # `cancel` was called before the request was registered.
        if left.is_set():
            self.cancel(order)
        try:
            return self._wait_for(asked)
        except BackendError:
            if asked.begun:
                raise
            return None
        finally:
            self._asked = None

    def _wait_for(self, asked: Job) -> Any:  # noqa: ANN401
        """Return the result of a request; end a process that reports nothing for too long."""
        while True:
            try:
                return asked.found.result(self._hang_seconds / _LOOKS or None)
            except TimeoutError:
                if time.monotonic() - self._heard >= self._hang_seconds:
                    self._end_hung()

    def _end_hung(self) -> None:
        message = (
            f"{self._name}: its worker has reported nothing for {self._hang_seconds:g} s and was "
            "ended; send the request again, or have it wait longer (WGPU_BACKEND_HANG_SECONDS)"
        )
        self._end(WorkerLost(message, hung=True), lost=True)
        self._channel.kill()

    def cancel(self, order: Order) -> None:
        asked = self._asked
        if asked is not None and asked.order is order:
            self._channel.post({"do": "cancel", "id": asked.number})

    def _receive(self, message: Message, raw: bytes) -> None:
        self._heard = time.monotonic()
        with self._lock:
            asked = self._asked
        match message["type"]:
            case "log":
                logging.getLogger(message["name"]).log(message["level"], "%s", message["text"])
            case "lost":
                error = f"the device was lost ({parse_error(message['error'])})"
                self._end(DeviceLost(f"{self._name}: {error}; send the request again"), lost=True)
            case what if asked is not None and asked.number == message["id"]:
                self._kind.handle(asked, what, message, raw)
            case _:
                # A late message of a request that has ended.
                pass

    @property
    def _name(self) -> str:
        return self._kind.what if self._asked is None else self._asked.order.name

    def _handle_exit(self, ending: Exit) -> None:
        if self._closing:
            self._end(BackendError(f"{self._kind.what}: the server is shutting down"), lost=False)
            return
        message = f"{self._name}: its worker process {ending}; send the request again"
        self._end(WorkerLost(message), lost=ending.has_crashed)

    def _end(self, error: BackendError, *, lost: bool) -> None:
        """Fail the current request, once."""
        with self._lock:
            if self.error is not None:
                return
            self.error = error
            asked = self._asked
        if lost:
            self._lost(error)
        if asked is not None and not asked.found.done():
            asked.found.set_exception(error)

    def close(self) -> None:
        self._closing = True
        self._channel.close(_CLOSE_SECONDS)


def _handle_message(asked: Job, what: str, message: Message, raw: bytes) -> None:
    """Handle a message about a request."""
    match what:
        case "begun":
            asked.begun = True
        case "step":
            asked.report(message["done"], message["all"])
        case "image":
            asked.pngs.append(raw)
        case "finished":
            asked.found.set_result(ImageResult(asked.pngs, message["steps"]))
        case _:
            asked.found.set_exception(parse_error(message["error"]))


PICTURES = Kind("pictures", "image_process", image_request_to_plain, _handle_message)
