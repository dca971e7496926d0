"""Pipelines of pictures for a server: one at a time, in a thread of their own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from wgpu_backend.errors import QueueFull
from wgpu_backend.server.wanted import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

    from wgpu_backend.images.pipelines.pipeline import Pipeline
    from wgpu_backend.images.requests import Step

MAX_SIDE = 4096  # pixels, as Ollama has it
_MAX_WAITING = 32  # requests


@dataclass(frozen=True, slots=True)
class Painted:
    """What came of a request.

    Parameters
    ----------
    pngs : list of bytes
    steps : int
        Of each.
    """

    pngs: list[bytes]
    steps: int


Progress = tuple[int, int]  # steps that are done, and all


class Studio:
    """What makes pictures.

    Parameters
    ----------
    folders : mapping of str to Path
        Of pipelines, by the names that requests use.
    device : str or None
        None for the best.
    """

    def __init__(self, folders: Mapping[str, Path], device: str | None = None) -> None:
        self.folders = folders
        self._device = device
        self._open: tuple[str, Pipeline] | None = None
        self._waiting = 0
        self._ended = False
        self._thread = ThreadPoolExecutor(1, "pictures")

    def __contains__(self, name: str) -> bool:
        return name.removesuffix(":latest") in self.folders

    def models(self) -> dict[str, float]:
        """When each model was last changed, in seconds since 1970, by its name."""
        return {n: path.stat().st_mtime for n, path in self.folders.items() if path.exists()}

    @asynccontextmanager
    async def painting(
        self, name: str, prompt: str, options: Mapping[str, Any]
    ) -> AsyncGenerator[tuple[asyncio.Queue[Progress | None], Future[Painted]]]:
        """Pictures that are being made; who leaves early ends that behind the next step.

        Parameters
        ----------
        name : str
            One of `folders`.
        prompt : str
        options : mapping
            Arguments of `Pipeline.generate`.

        Yields
        ------
        queue, future
            Of how far they are, None at the end; of what came of them.

        Raises
        ------
        RequestError
            There is no such model.
        QueueFull
            Too many wait.
        """
        if name not in self:
            raise RequestError(404, f"model '{name}' not found, or makes no pictures")
        if self._waiting >= _MAX_WAITING:
            raise QueueFull(f"{self._waiting} requests for pictures wait already")
        queue: asyncio.Queue[Progress | None] = asyncio.Queue()
        loop, left = asyncio.get_running_loop(), threading.Event()

        def tell(progress: Progress | None) -> None:
            loop.call_soon_threadsafe(queue.put_nowait, progress)

        self._waiting += 1
        made = self._thread.submit(self._painted, name, prompt, options, tell, left)
        try:
            yield queue, made
        finally:
            self._waiting -= 1
            left.set()
            made.cancel()

    def _painted(
        self,
        name: str,
        prompt: str,
        options: Mapping[str, Any],
        tell: Callable[[Progress | None], None],
        left: threading.Event,
    ) -> Painted:
        """Make pictures; in the thread."""
        from wgpu_backend.images.pictures import png_bytes

        steps, done = 0, 0
        count = cast("int", options.get("num_images_per_prompt", 1))

        def step(behind: Step) -> None:
            nonlocal steps, done
            if left.is_set():
                raise RequestError(499, "the client has gone")
            steps, done = behind.count, done + 1
            tell((done, steps * count))

        try:
            if left.is_set():
                raise RequestError(499, "the client has gone")
            pipeline = self._pipeline(name.removesuffix(":latest"))
            made = pipeline.generate(prompt, **options, callback=step)
            images = cast("list[Image]", made.images)
            facts = {"prompt": prompt, "model": name, "steps": steps}
            pngs = [
                png_bytes(image, {**facts, "seed": seed})
                for image, seed in zip(images, made.seeds, strict=True)
            ]
            return Painted(pngs, steps)
        finally:
            tell(None)

    def _pipeline(self, name: str) -> Pipeline:
        """The pipeline of a model; another one is closed first, so that there is room."""
        from wgpu_backend.images.loading import load

        if self._open is not None and self._open[0] != name:
            self._close()
        if self._open is None:
            self._open = name, load(self.folders[name], device=self._device)
        return self._open[1]

    def _close(self) -> None:
        if self._open is not None:
            self._open[1].close()
            self._open = None

    async def close(self) -> None:
        """Give back the pipeline and end the thread; again is harmless."""
        if not self._ended:
            self._ended = True
            await asyncio.wrap_future(self._thread.submit(self._close))
            self._thread.shutdown(wait=False)
