"""Show in a window how images form from noise, step by step, with the bundled picture model.

::

    $ python examples/imagine_window.py "a red circle left of a blue square"
    a red circle left of a blue square: seeds 1 to 6

The squares are images of one prompt with several seeds. A thread generates them and queues a
preview after each step, in the pipeline's callback; the window shows it as it comes. Options:
``--model`` for another pipeline's folder, ``--count``, ``--steps``, ``--seed``, ``--device``, and
``--frames``, ``--screenshot``, ``--offscreen``.
"""

import argparse
import math
import queue
import threading
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from picture.window import BACKGROUND, Pictures, add_options, show

from wgpu_backend import images
from wgpu_backend.images import Step

SIZE = (792, 536)
GAP = 4  # pixels between two pictures
Frame = tuple[NDArray[np.uint8], int, str]  # a picture, its place, and how far it is


def main() -> None:
    args = arguments()
    last = args.seed + args.count - 1
    print(f"{args.prompt}: seeds {args.seed} to {last}")
    show(pictures(args), args, SIZE, "Imagine")


def pictures(args: argparse.Namespace) -> Pictures:
    """Yield all images side by side, whenever one of them changes."""
    columns = math.ceil(math.sqrt(args.count * SIZE[0] / SIZE[1]))
    sheet = None
    for picture, place, caption in frames(args):
        height, width = picture.shape[:2]
        if sheet is None:
            rows = math.ceil(args.count / columns)
            size = (rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, 3)
            sheet = np.full(size, BACKGROUND, np.uint8)
        row, column = divmod(place, columns)
        top, left = GAP + row * (height + GAP), GAP + column * (width + GAP)
        sheet[top : top + height, left : left + width] = picture
        yield sheet, caption


def frames(args: argparse.Namespace) -> Iterator[Frame]:
    """Yield previews as a thread makes them; the thread ends with the window."""
    made: queue.Queue[Frame | Exception | None] = queue.Queue(maxsize=2)
    closed = threading.Event()
    thread = threading.Thread(target=generate, args=(args, made, closed), daemon=True)
    thread.start()
    try:
        while (frame := made.get()) is not None:
            if isinstance(frame, Exception):
                raise frame
            yield frame
    finally:
        closed.set()
        thread.join()


class Closed(Exception):
    """The window is closed, so that no more images are needed."""


def generate(args: argparse.Namespace, made: queue.Queue, closed: threading.Event) -> None:
    """Generate images and queue a preview after each step."""
    place = -1

    def hand_over(item: Frame | Exception | None) -> None:
        while not closed.is_set():
            try:
                made.put(item, timeout=0.1)
                return
            except queue.Full:
                continue
        raise Closed

    def preview(step: Step) -> None:
        nonlocal place
        place += step.index == 0
        picture = (step.preview() * 255).round().astype(np.uint8)
        hand_over((picture, place, f"{args.prompt}, step {step.index + 1} of {step.count}"))

    try:
        with images.load(args.model, device=args.device) as pipeline:
            pipeline.generate(
                args.prompt,
                num_inference_steps=args.steps,
                num_images_per_prompt=args.count,
                seed=args.seed,
                callback=preview,
            )
        hand_over(None)
    except Closed:
        pass
    except Exception as error:  # goes on in the thread that shows pictures
        made.put(error)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("prompt", nargs="?", default="a red circle left of a blue square")
    parser.add_argument("--model", default="pictures", help="folder with model_index.json")
    parser.add_argument("--count", type=int, default=6, help="pictures")
    parser.add_argument("--steps", type=int, help="of each; without it, the model's own number")
    parser.add_argument("--seed", type=int, default=1, help="of the first picture")
    parser.add_argument("--device", help="as wgpu-backend devices lists them; the best without it")
    add_options(parser)
    return parser.parse_args()


if __name__ == "__main__":
    main()
