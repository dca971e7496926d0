"""Show the image of a WGSL file in a window; saving the file changes the image.

::

    $ python examples/playground.py
    examples/playground/reaction.wgsl: edit it while the window is open

Drops grow into a labyrinth. ``playground/mandelbrot.wgsl`` and ``playground/life.wgsl`` are two
more files to start from, and your own file works as well: the shader is an op defined outside the
package, whose operand is the previous image. An error is shown with file, line and caret, and the
image stays. Options: ``--device``, ``--side``, ``--steps``, and ``--frames``, ``--screenshot``,
``--offscreen``.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
from picture.window import Pictures, add_options, show

import wgpu_backend as wb

Graph = Callable[[wb.Context], wb.Recorded]
DEFAULT = Path(__file__).parent / "playground" / "reaction.wgsl"
NUMBERS = 8  # of a pixel: red, green, blue, alpha, and four of its own


def main() -> None:
    args = arguments()
    print(f"{args.shader}: edit it while the window is open", flush=True)
    with wb.context(args.device) as context:
        graph = Reloading(context, args.shader, graph_of(args.shader, args.side, args.steps))
        show(painted(graph, args), args, (args.window, args.window), args.shader.stem)
        graph.close()


def graph_of(path: Path, side: int, steps: int) -> Graph:
    """Make the function that records several steps of a shader's image in one graph."""

    @wb.op(shader=path)
    def paint(x: wb.Node, clock: wb.Node, *, step: int) -> wb.Launch:
        """Compute the image after `x`: (side, side, 8), f32; `clock` is (1,), u32."""
        out = wb.Spec.dense(x.spec.shape, x.spec.dtype)
        params = {"side": side, "step": step}
        return wb.Launch(out, {"x": x, "clock": clock}, threads=side * side, params=params)

    def graph(context: wb.Context) -> wb.Recorded:
        pixels = context.input("pixels", (side, side, NUMBERS))
        clock = context.input("clock", (1,), wb.u32)
        for step in range(steps):
            pixels = cast("wb.Tensor", paint(pixels, clock, step=step))
        return context.record(pixels)

    return graph


class Reloading:
    """A recorded graph that is recorded again whenever a file in the shader's folder changes."""

    def __init__(self, context: wb.Context, path: Path, graph: Graph) -> None:
        self._context, self._folder, self._graph = context, path.parent, graph
        self._seen: dict[Path, int] = {}
        self._recorded: wb.Recorded | None = None

    def get(self) -> wb.Recorded | None:
        """Return the newest graph that compiles; None before the first."""
        now = {path: path.stat().st_mtime_ns for path in self._folder.glob("*.wgsl")}
        if now != self._seen:
            self._seen = now
            wb.reload_shaders()
            self._reload()
        return self._recorded

    def _reload(self) -> None:
        try:
            recorded = self._graph(self._context)
        except wb.ShaderError as error:
            print(error, file=sys.stderr, flush=True)
            return
        self.close()
        self._recorded = recorded

    def close(self) -> None:
        """Release the graph's memory."""
        if self._recorded is not None:
            self._recorded.close()


def painted(graph: Reloading, args: argparse.Namespace) -> Pictures:
    pixels = np.zeros((args.side, args.side, NUMBERS), np.float32)
    frame = 0
    while True:
        recorded = graph.get()
        if recorded is not None:
            clock = np.array([frame * args.steps], np.uint32)
            [pixels] = recorded.run({"pixels": pixels, "clock": clock}).wait()
            frame += 1
        colours = np.clip(pixels[..., :3], 0, 1) * 255
        yield colours.astype(np.uint8), f"frame {frame}"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("shader", nargs="?", type=Path, default=DEFAULT)
    parser.add_argument("--device", help="as in the table of devices.py; the best one by default")
    parser.add_argument("--side", type=int, default=256, help="pixels along an edge")
    parser.add_argument("--window", type=int, default=768, help="the same, of the window")
    parser.add_argument("--steps", type=int, default=8, help="from one picture to the next")
    add_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
