"""Measure the memory of an autoencoder that decodes images whole and in tiles, by their side.

    python -m benchmarks.tiling FOLDER [--tile 8] [--device DEVICE] [--write OUT]

FOLDER is a pipeline in diffusers' layout whose latents become pictures by an autoencoder. What a
recording needs is what its plan of memory says, which is what the device allocates.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

import wgpu_backend.array as wx
from benchmarks.plot import Series, lines, picture
from wgpu_backend import images
from wgpu_backend.array import devices
from wgpu_backend.images.pipelines.latent import LatentPipeline

SIDES = (8, 12, 16, 24, 32, 48, 64)  # latents
BOUND = 3.5  # of the largest array of a tile, as `images/tiling.py` states


def peak_nbytes(pipeline: LatentPipeline, side: int, tile: int) -> int:
    """Measure the memory of decoding latents of one side, in tiles of another."""
    pipeline.tile = tile
    traces = pipeline._decode._traces
    traces.clear()
    pipeline.decode(wx.zeros((1, side, side, pipeline.vae.channels)))
    return max(trace._recorded.plan.peak_nbytes for trace in traces.values())


def measured(pipeline: LatentPipeline, tile: int) -> Iterator[tuple[int, int, int]]:
    """Return the pixels of a side, and the bytes for whole images and for tiles."""
    for side in SIDES:
        whole, tiled = (peak_nbytes(pipeline, side, most) for most in (side, tile))
        yield side * pipeline.vae.factor, whole, tiled


def report(rows: Sequence[tuple[int, int, int]], bound: float) -> str:
    """Format the table as Markdown."""
    head = [
        "| pixels a side | whole, KiB | in tiles, KiB | stated bound, KiB |",
        "|--:|--:|--:|--:|",
    ]
    body = [
        f"| {s} | {w / 1024:,.0f} | {t / 1024:,.0f} | {bound / 1024:,.0f} |" for s, w, t in rows
    ]
    return "\n".join([*head, *body]) + "\n"


def plot(rows: Sequence[tuple[int, int, int]], bound: float) -> str:
    """Plot the lines as SVG."""
    series = [
        Series("whole", [(side, whole / 1024) for side, whole, _ in rows]),
        Series("in tiles", [(side, tiled / 1024) for side, _, tiled in rows]),
        Series("stated bound", [(side, bound / 1024) for side, *_ in rows], dashed=True),
    ]
    return picture([lines("Memory of a decoder", "pixels a side", "KiB", series)])


def main() -> None:
    """Decode images of all sides."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--tile", type=int, default=8, help="latents")
    parser.add_argument("--device")
    parser.add_argument("--write", type=Path, metavar="OUT", help="OUT.md and OUT.svg")
    given = parser.parse_args()
    with (
        images.load(given.folder, device=given.device) as pipeline,
        devices.preferring(pipeline.session),
    ):
        if not isinstance(pipeline, LatentPipeline):
            raise SystemExit(f"{given.folder}: its pipeline decodes no latents by an autoencoder")
        bound = BOUND * 4 * pipeline.vae.widest * (given.tile * pipeline.vae.factor) ** 2
        rows = list(measured(pipeline, given.tile))
    text = report(rows, bound)
    print(text)
    if given.write:
        given.write.with_suffix(".md").write_text(text, encoding="utf-8")
        given.write.with_suffix(".svg").write_text(plot(rows, bound), encoding="utf-8")


if __name__ == "__main__":
    main()
