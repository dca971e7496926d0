"""A window that shows images in sequence, and ways to run without one.

The pictures are bitmaps: rendercanvas brings them to the screen, so an example has no drawing code.
"""

import argparse
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Picture = NDArray[np.uint8]  # (rows, columns, 3)
Pictures = Iterator[tuple[Picture, str]]  # each with a caption
BACKGROUND = (18, 18, 24)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--frames", type=int, default=0, help="close after so many pictures")
    parser.add_argument("--screenshot", type=Path, metavar="FILE.png", help="save the last picture")
    parser.add_argument("--offscreen", action="store_true", help="open no window")


def show(pictures: Pictures, args: argparse.Namespace, size: tuple[int, int], title: str) -> None:
    """Show images, each as soon as the one before is on the screen.

    Parameters
    ----------
    pictures : iterator of (picture, caption)
        The last one stays until the window is closed.
    args : Namespace
        With what `add_options` added.
    size : (int, int)
        Columns and rows of the window.
    title : str
        Stands in the window's title, before the caption.
    """
    slides = Slides(pictures, size, args.frames)
    if args.offscreen:
        _show_offscreen(slides, size)
    else:
        _show_window(slides, size, title)
    if slides.error is not None:
        raise slides.error
    if args.screenshot:
        args.screenshot.write_bytes(png(slides.bitmap[..., :3]))


class Slides:
    """A sequence of images scaled to a window; `done` at its end, or after a number of images."""

    def __init__(self, pictures: Pictures, size: tuple[int, int], frames: int) -> None:
        self.bitmap = fitted(np.zeros((1, 1, 3), np.uint8), size)
        self.caption = ""
        self.done = False
        self.error: Exception | None = None
        self.limited = frames > 0
        self._size, self._left = size, frames
        self._pictures = pictures

    def step(self) -> Picture:
        """Return the bitmap of the next image, RGBA; the last one again at the end."""
        found = None if self.done else self._next()
        if found is not None:
            self.bitmap, self.caption = fitted(found[0], self._size), found[1]
        self._left -= 1
        self.done = self.done or found is None or self._left == 0
        return self.bitmap

    def _next(self) -> tuple[Picture, str] | None:
        try:
            return next(self._pictures, None)
        except Exception as error:  # rendercanvas would log it and go on
            self.error = error
            return None


def _show_offscreen(slides: Slides, size: tuple[int, int]) -> None:
    from rendercanvas.offscreen import RenderCanvas

    canvas = RenderCanvas(size=size)
    context = canvas.get_bitmap_context()
    canvas.request_draw(lambda: context.set_bitmap(slides.step()))
    while not slides.done:
        canvas.draw()
    canvas.close()


def _show_window(slides: Slides, size: tuple[int, int], title: str) -> None:
    import glfw

    with warnings.catch_warnings():  # the screen's own words are in the message
        warnings.simplefilter("ignore", glfw.GLFWError)
        opened = glfw.init()
    if not opened:  # glfw would abort the process at the next call
        _, reason = glfw.get_error()
        raise SystemExit(f"no window: {(reason or b'').decode()}; --offscreen needs none")
    from rendercanvas.glfw import RenderCanvas, loop

    canvas = RenderCanvas(size=size, title=title, update_mode="continuous", max_fps=60)
    context = canvas.get_bitmap_context()
    stays = not slides.limited

    def draw() -> None:
        context.set_bitmap(slides.step())
        canvas.set_title(f"{title}: {slides.caption}")
        if slides.error or (slides.done and not stays):
            # No picture is on its way to a window that is gone: the driver would end the process.
            canvas.set_update_mode("manual")
            loop.call_later(0.3, canvas.close)  # once it has been seen

    canvas.request_draw(draw)
    loop.run()


def fitted(picture: Picture, size: tuple[int, int]) -> Picture:
    """Enlarge by a whole factor and centre: (rows, columns, 4) of a window."""
    columns, rows = size
    factor = max(1, min(rows // picture.shape[0], columns // picture.shape[1]))
    large = picture.repeat(factor, axis=0).repeat(factor, axis=1)[:rows, :columns]
    bitmap = np.empty((rows, columns, 4), np.uint8)
    bitmap[:] = (*BACKGROUND, 255)
    top, left = (rows - large.shape[0]) // 2, (columns - large.shape[1]) // 2
    bitmap[top : top + large.shape[0], left : left + large.shape[1], :3] = large
    return bitmap


def png(picture: Picture) -> bytes:
    """Encode (rows, columns, 3) as a PNG file."""
    rows, columns, _ = picture.shape
    lines = np.zeros((rows, 1 + 3 * columns), np.uint8)  # each begins with its filter: none
    lines[:, 1:] = picture.reshape(rows, -1)

    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", columns, rows, 8, 2, 0, 0, 0)
    data = zlib.compress(lines.tobytes())
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")
    )
