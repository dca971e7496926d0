"""The cost of having a stage in another process: against two devices in one, in turn.

    python -m benchmarks.cluster.pipeline [MODEL] [--device cpu] [--tokens 64] [--rounds 9]

`token` is a token's time with the last half of the layers on a stage, less that with both halves in
this process. `crossing` is the same for a graph that does nothing but cross, so that what the
machine does otherwise matters less.
"""

from __future__ import annotations

import argparse
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from statistics import median

import numpy as np

import wgpu_backend
from benchmarks.devices import CROSSINGS, WARM, WIDTH, decode, seconds
from wgpu_backend import __version__
from wgpu_backend.cli.names import BUNDLED
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.placement import Placement
from wgpu_backend.server.cluster.files import digest_file
from wgpu_backend.server.cluster.link import Listener, make_ticket
from wgpu_backend.server.cluster.stages import open_stage
from wgpu_backend.server.worker.messages import StageSpec

STAGE = "stage"


@contextmanager
def node(path: str, device: str) -> Iterator[StageSpec]:
    """Make a node of this machine, for a stage of a model."""
    token = secrets.token_urlsafe(32)
    listener = Listener(token)
    files = ((path, path, digest_file(path)),)
    ticket = make_ticket(token)
    yield StageSpec(STAGE, device, listener.address, ticket, __version__, files)
    listener.close()


def crossing(executor: Executor, last: int) -> float:
    """Return the seconds of a run that does nothing but cross to the layer `last`."""
    with Context(executor) as ctx:
        x = ctx.layer(0).zeros(1, WIDTH).add(ctx.input("x", (1, WIDTH)))
        recorded = ctx.record(ctx.layer(last).zeros(1, WIDTH).add(x))
        values = {"x": np.ones((1, WIDTH), "f4")}
        times = [seconds(lambda: recorded.run(values).wait()) for _ in range(CROSSINGS)]
        recorded.close()
        return median(times[WARM:])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", default=str(BUNDLED["story"]))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    with open_gguf(options.model) as file:
        layers = file.config.uint("block_count")
    halves = tuple(2 * layer // layers for layer in range(layers))
    places = [
        Placement((options.device, other), halves, 0, 1) for other in (f"{options.device}#1", STAGE)
    ]
    with node(options.model, options.device) as spec:
        openers = {STAGE: partial(open_stage, spec)}
        load = partial(wgpu_backend.load, options.model, num_ctx=512)
        with (
            load(placement=places[0]) as near,
            load(placement=places[1], openers=openers) as far,
        ):
            models = [near, far]
            for model in models:
                decode(model, options.tokens)
            found = [
                [seconds(lambda m=model: decode(m, options.tokens)) for model in models]
                for _ in range(options.rounds)
            ]
            ms = [1000 * median(column) / options.tokens for column in zip(*found, strict=True)]
            apart = 1000 * median(b - a for a, b in found) / options.tokens
            print(f"token: {ms[0]:.2f} ms in one process, {ms[1]:.2f} ms in two, {apart:+.2f} ms")
            each = [
                [crossing(model.backend.executor, layers - 1) for model in models]
                for _ in range(options.rounds)
            ]
            us = [1e6 * median(column) for column in zip(*each, strict=True)]
            print(f"crossing: {us[0]:.0f} µs in one process, {us[1]:.0f} µs in two")
    return 0


if __name__ == "__main__":
    sys.exit(main())
