"""Pictures and speech of a server: one request of each at a time, in worker processes.

A thread passes requests to a worker process (`wgpu_backend.server.worker`), since a lost device
may end the process that uses it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from wgpu_backend.errors import BackendError, QueueFull
from wgpu_backend.server.core.request import RequestError
from wgpu_backend.server.worker.image_messages import ImageRequest, ImageResult
from wgpu_backend.server.worker.image_worker import (
    HANG_SECONDS,
    ImageWorker,
    JobWorker,
    Order,
)
from wgpu_backend.server.worker.speech_messages import SPEECH

# Pixels; Ollama's limit.
MAX_SIDE = 4096
# Requests that wait for the one image process.
_MAX_WAITING = 32
Progress = tuple[int, int]
"""Steps that are done, and their total."""


class JobQueue:
    """A queue of requests, and the process that serves them.

    Parameters
    ----------
    worker : JobWorker
        The process.
    what : str
        Results of the process, for messages.
    """

    def __init__(self, worker: JobWorker, what: str) -> None:
        self._worker = worker
        self._what = what
        self._waiting = 0
        self._ended = False
        self._thread = ThreadPoolExecutor(1, what)

    @property
    def pid(self) -> int | None:
        """Process id of the worker; None if there is none."""
        return self._worker.pid

    @asynccontextmanager
    async def wait(self, order: Order) -> AsyncGenerator[tuple[asyncio.Queue[Any], Future[Any]]]:
        """Run a request; leaving the block early cancels it after the next step.

        Yields
        ------
        queue, future
            Of the progress, ended by None; of the result.

        Raises
        ------
        QueueFull
            Too many requests wait.
        """
        if self._waiting >= _MAX_WAITING:
            raise QueueFull(
                f"{self._waiting} requests for {self._what} are waiting, the limit is reached; "
                "try again later"
            )
        queue: asyncio.Queue[Any] = asyncio.Queue()
        loop, left = asyncio.get_running_loop(), threading.Event()

        def report(*progress: Any) -> None:  # noqa: ANN401
            # A closed loop has no listener any more.
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(queue.put_nowait, progress or None)

        self._waiting += 1
        made = self._thread.submit(self._run, order, report, left)
        try:
            yield queue, made
        finally:
            self._waiting -= 1
            left.set()
            made.cancel()
            self._worker.cancel(order)

    def _run(self, order: Order, report: Callable[..., None], left: threading.Event) -> Any:  # noqa: ANN401
        """Run a request; runs in the thread, which waits for it."""
        try:
            if left.is_set():
                raise RequestError(499, "the client has gone")
            return self._worker.run(order, report, left)
        except BackendError:
            if left.is_set():
                raise RequestError(499, "the client has gone") from None
            raise
        finally:
            report()

    async def close(self) -> None:
        """End the process and the thread. Safe to call twice."""
        if not self._ended:
            self._ended = True
            await asyncio.to_thread(self._worker.close)
            self._thread.shutdown(wait=False)


class ImageQueue(JobQueue):
    """A queue of image requests.

    Parameters
    ----------
    folders : mapping of str to Path
        Folders of pipelines, by the names that requests use.
    device : str or None
        None for the best.
    hang_seconds : float
        See `ImageWorker`.
    """

    def __init__(
        self,
        folders: Mapping[str, Path],
        device: str | None = None,
        hang_seconds: float = HANG_SECONDS,
    ) -> None:
        self.folders = folders
        super().__init__(ImageWorker(device, hang_seconds), "pictures")

    def __contains__(self, name: str) -> bool:
        return name.removesuffix(":latest") in self.folders

    def models(self) -> dict[str, float]:
        """Return when each model was last changed, in seconds since 1970, by its name."""
        return {n: path.stat().st_mtime for n, path in self.folders.items() if path.exists()}

    @asynccontextmanager
    async def submit(
        self, name: str, prompt: str, options: Mapping[str, Any]
    ) -> AsyncGenerator[tuple[asyncio.Queue[Progress | None], Future[ImageResult]]]:
        """Generate images; leaving the block early cancels the request after the next step.

        Parameters
        ----------
        name : str
            One of `folders`.
        options : mapping
            Arguments of `Pipeline.generate`.

        Yields
        ------
        queue, future
            Of the progress, ended by None; of the result.

        Raises
        ------
        RequestError
            There is no such model.
        QueueFull
            Too many requests wait.
        """
        if name not in self:
            raise RequestError(404, f"model '{name}' not found, or not an image model")
        folder = str(self.folders[name.removesuffix(":latest")])
        async with self.wait(ImageRequest(name, folder, prompt, options)) as found:
            yield found


class SpeechQueue(JobQueue):
    """A queue of sounds to transcribe."""

    def __init__(self, device: str | None = None, hang_seconds: float = HANG_SECONDS) -> None:
        super().__init__(JobWorker(SPEECH, device, hang_seconds), "speech")
