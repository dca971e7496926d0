"""The image process: it serves one request after another until its socket closes.

Its answers have one ``type``: step, image, and those of `job_runner`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from wgpu_backend.images.loading import load
from wgpu_backend.images.pictures import png_bytes
from wgpu_backend.images.pipelines.pipeline import Pipeline
from wgpu_backend.images.requests import Step
from wgpu_backend.ops.plugins import import_file
from wgpu_backend.server.worker.event_sender import EventSender
from wgpu_backend.server.worker.frames import Message
from wgpu_backend.server.worker.image_messages import ImageRequest, parse_image_request
from wgpu_backend.server.worker.job_runner import JobRunner, serve_socket

if TYPE_CHECKING:
    from PIL.Image import Image


def main(handle: str) -> None:
    """Serve image requests from a socket.

    Parameters
    ----------
    handle : str
        See `frames.open_socket`.
    """
    serve_socket(handle, ImageGenerator)


class ImageGenerator(JobRunner):
    """A generator of images that keeps the pipeline of the last request open."""

    def __init__(self, sender: EventSender) -> None:
        super().__init__(sender)
        self._open: tuple[str, Pipeline] | None = None

    def serve(self, message: Message, raw: bytes) -> None:
        """Generate the images of a request, and send them."""
        number, order = message["id"], parse_image_request(message, raw)
        for path in message["imports"]:
            import_file(path)
        pipeline = self._pipeline(order.folder, message["device"])
        steps = 0

        def report(done: int, step: Step) -> None:
            nonlocal steps
            self.require_client(number)
            steps = step.count
            every = steps * cast("int", order.options.get("num_images_per_prompt", 1))
            self._sender.send({"type": "step", "id": number, "done": done, "all": every})

        made = pipeline.generate(order.prompt, **order.options, callback=_count_steps(report))
        images = cast("list[Image]", made.images)
        for image, seed in zip(images, made.seeds, strict=True):
            png = png_bytes(image, _make_metadata(order, steps, seed))
            self._sender.send({"type": "image", "id": number}, png)
        self._sender.send({"type": "finished", "id": number, "steps": steps})

    def _pipeline(self, folder: str, device: str | None) -> Pipeline:
        """Return the pipeline of a folder; close another one first, to make room."""
        if self._open is not None and self._open[0] != folder:
            self.close()
        if self._open is None:
            self._open = folder, load(folder, device=device)
        return self._open[1]

    def close(self) -> None:
        """Close the open pipeline, if there is one."""
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
