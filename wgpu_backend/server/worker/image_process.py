"""The image process: it serves one request after another until its socket closes.

Requests have one ``do``: generate, cancel, close. Answers have one ``type``: begun, step, image,
finished, failed, lost, log.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable
from io import BufferedReader
from queue import SimpleQueue
from typing import TYPE_CHECKING, cast

from wgpu_backend.errors import BackendError, DeviceLost
from wgpu_backend.images.loading import load
from wgpu_backend.images.pictures import png_bytes
from wgpu_backend.images.pipelines.pipeline import Pipeline
from wgpu_backend.images.requests import Step
from wgpu_backend.ops.plugins import describe_mistake, import_file
from wgpu_backend.server.worker.event_sender import EventSender, connect
from wgpu_backend.server.worker.frames import Message, read_message
from wgpu_backend.server.worker.image_messages import ImageRequest, parse_image_request
from wgpu_backend.server.worker.messages import error_to_plain

if TYPE_CHECKING:
    from PIL.Image import Image

_LOG = logging.getLogger("wgpu_backend.worker")


class _Cancelled(BackendError):
    """The client of this request has gone."""


def main(handle: str) -> None:
    """Serve image requests from a socket.

    Parameters
    ----------
    handle : str
        See `frames.open_socket`.
    """
    source, sender = connect(handle)
    generator = ImageGenerator(sender)
    threading.Thread(
        target=_read_messages, args=(source, generator), name="reader", daemon=True
    ).start()
    code = generator.run()
    sender.close()
    # Exit without cleaning up: calls into the driver of a lost device may crash.
    os._exit(code)


def _read_messages(source: BufferedReader, generator: ImageGenerator) -> None:
    """Read messages; exit when the server is gone, whatever this process is doing."""
    try:
        while (found := read_message(source)) is not None:
            generator.take(*found)
    finally:
        os._exit(0)


class ImageGenerator:
    """A generator of images that keeps the pipeline of the last request open."""

    def __init__(self, sender: EventSender) -> None:
        self._sender = sender
        self._inbox: SimpleQueue[tuple[Message, bytes] | None] = SimpleQueue()
        # Requests up to this number were cancelled.
        self._left = -1
        self._open: tuple[str, Pipeline] | None = None

    def take(self, message: Message, raw: bytes) -> None:
        """Handle a message; runs in the reading thread."""
        match message["do"]:
            case "generate":
                self._sender.send({"type": "begun", "id": message["id"]})
                self._inbox.put((message, raw))
            case "cancel":
                self._left = message["id"]
            case _:
                self._left = sys.maxsize
                self._inbox.put(None)

    def run(self) -> int:
        """Generate images until the process has to end; return its exit code."""
        while (found := self._inbox.get()) is not None:
            message, raw = found
            number: int = message["id"]
            try:
                self._generate(message, raw)
            except DeviceLost as error:
                self._sender.send({"type": "lost", "error": error_to_plain(error)})
                return 1
            except Exception as error:
                # The server reports it to the client.
                plain = _error_to_plain(error)
                self._sender.send({"type": "failed", "id": number, "error": plain})
        self._close()
        return 0

    def _generate(self, message: Message, raw: bytes) -> None:
        number, order = message["id"], parse_image_request(message, raw)
        self._require_waited_for(number)
        for path in message["imports"]:
            import_file(path)
        pipeline = self._pipeline(order.folder, message["device"])
        steps = 0

        def report(done: int, step: Step) -> None:
            nonlocal steps
            self._require_waited_for(number)
            steps = step.count
            every = steps * cast("int", order.options.get("num_images_per_prompt", 1))
            self._sender.send({"type": "step", "id": number, "done": done, "all": every})

        made = pipeline.generate(order.prompt, **order.options, callback=_count_steps(report))
        images = cast("list[Image]", made.images)
        for image, seed in zip(images, made.seeds, strict=True):
            png = png_bytes(image, _make_metadata(order, steps, seed))
            self._sender.send({"type": "image", "id": number}, png)
        self._sender.send({"type": "finished", "id": number, "steps": steps})

    def _require_waited_for(self, number: int) -> None:
        if number <= self._left:
            raise _Cancelled("nobody waits for the pictures any more")

    def _pipeline(self, folder: str, device: str | None) -> Pipeline:
        """Return the pipeline of a folder; close another one first, to make room."""
        if self._open is not None and self._open[0] != folder:
            self._close()
        if self._open is None:
            self._open = folder, load(folder, device=device)
        return self._open[1]

    def _close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None


def _count_steps(report: Callable[[int, Step], None]) -> Callable[[Step], None]:
    """Return a step callback that counts the steps of all images."""
    done = 0

    def count(step: Step) -> None:
        nonlocal done
        done += 1
        report(done, step)

    return count


def _make_metadata(order: ImageRequest, steps: int, seed: int) -> dict[str, object]:
    """Return the metadata of an image file."""
    return {"prompt": order.prompt, "model": order.name, "steps": steps, "seed": seed}


def _error_to_plain(error: Exception) -> dict[str, str]:
    """Return an error as plain data; tracebacks of unexpected errors go to the log only."""
    if isinstance(error, BackendError) or describe_mistake(error):
        return error_to_plain(error)
    _LOG.error("%s", "".join(traceback.format_exception(error)).rstrip())
    text = f"internal error: {type(error).__name__}"
    if isinstance(error, OSError) and error.strerror:
        text = error.strerror
    return {"kind": "BackendError", "message": text}
