"""The server's side of the image process, which may crash without ending the server."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import count

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


class ImageWorker:
    """A process for images, started by the first request, or by the first after it died.

    After three losses of the device within a minute, see `Health`, it is not started again.

    Parameters
    ----------
    device : str or None
        None for the best.
    hang_seconds : float
        Time without a message after which the process is ended as lost: a hung device keeps it
        alive. 0 for no limit.
    """

    def __init__(self, device: str | None = None, hang_seconds: float = HANG_SECONDS) -> None:
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

    def generate(
        self, order: ImageRequest, report: ReportStep, left: threading.Event
    ) -> ImageResult:
        """Generate images, and wait for them; one request at a time.

        Parameters
        ----------
        left : Event
            Set before a call of `cancel`, when the client has gone.

        Raises
        ------
        BackendError
            As `Pipeline.generate`; the process ended, or the request was cancelled.
        """
        while True:
            child, fresh = self._get_process()
            found = child.generate(order, self._device, report, left)
            if found is not None:
                return found
            # The process had ended unnoticed before this request.
            if fresh and child.error is not None:
                raise child.error

    def _get_process(self) -> tuple[_Process, bool]:
        """Return the process, and whether it was just started."""
        with self._lock:
            if self._closed:
                raise BackendError("pictures: the server ends")
            # Raises after too many losses.
            self._health.choose()
            if self._child is not None and self._child.error is None:
                return self._child, False
            self._child = _Process(self._lost, self._hang_seconds)
            return self._child, True

    def _lost(self, error: BackendError) -> None:
        self._health.lost(self._device or "the device", error)

    def cancel(self, order: ImageRequest) -> None:
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


class _Job:
    """A request in progress."""

    def __init__(self, number: int, order: ImageRequest, report: ReportStep) -> None:
        self.number = number
        self.order = order
        self.report = report
        self.begun = False
        self.pngs: list[bytes] = []
        self.found: Future[ImageResult] = Future()


class _Process:
    """A process, and its current request.

    Parameters
    ----------
    lost : callable
        Called with the error if the device is lost or the process crashes.
    hang_seconds : float
        See `ImageWorker`.

    Attributes
    ----------
    error : BackendError or None
        The error that ended the process.
    """

    def __init__(self, lost: Callable[[BackendError], None], hang_seconds: float) -> None:
        self._lost = lost
        self._hang_seconds = hang_seconds
        self._heard = time.monotonic()
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._asked: _Job | None = None
        self._closing = False
        self.error: BackendError | None = None
        self._channel = Channel(self._receive, self._handle_exit, "image_process")
        self.pid = self._channel.pid

    def generate(
        self, order: ImageRequest, device: str | None, report: ReportStep, left: threading.Event
    ) -> ImageResult | None:
        """Return the images of a request; None if the process ended before it began with it."""
        plain, raw = image_request_to_plain(order)
        asked = _Job(next(self._numbers), order, report)
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

    def _wait_for(self, asked: _Job) -> ImageResult:
        """Return the images of a request; end a process that reports nothing for too long."""
        while True:
            try:
                return asked.found.result(self._hang_seconds / _LOOKS or None)
            except TimeoutError:
                if time.monotonic() - self._heard >= self._hang_seconds:
                    self._end_hung()

    def _end_hung(self) -> None:
        message = (
            f"{self._name}: its worker has told nothing for {self._hang_seconds:g} s and was "
            "ended; send the request again, or have it wait longer (WGPU_BACKEND_HANG_SECONDS)"
        )
        self._end(WorkerLost(message, hung=True), lost=True)
        self._channel.kill()

    def cancel(self, order: ImageRequest) -> None:
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
                _handle_message(asked, what, message, raw)
            case _:
                # A late message of a request that has ended.
                pass

    @property
    def _name(self) -> str:
        return "pictures" if self._asked is None else self._asked.order.name

    def _handle_exit(self, ending: Exit) -> None:
        if self._closing:
            self._end(BackendError("pictures: the server ends"), lost=False)
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


def _handle_message(asked: _Job, what: str, message: Message, raw: bytes) -> None:
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
