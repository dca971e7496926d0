"""Layers on several devices against all of them on one, in turn, as ratios of medians.

    python benchmarks/devices.py [MODEL] [--devices vulkan:0,vulkan:0#1] [--prompt 512]
        [--tokens 64] [--rounds 5] [--json FILE]

By default two devices on the best adapter, so that the same hardware does the same work and what is
left is the cost of the border: a submit more for each pass, and hidden states that cross through
the host. A transfer is measured alone, too: the processor time of this thread for a graph that does
nothing but cross, less that for the same two parts where nothing crosses. What is left is the
host's work to read a state from one device and to give it to the other. Thousands of runs take
turns, in blocks.

A border costs a token the same whatever the model, so the share depends on the time of a step. Of
decoding, processor time is compared, too, which other work on the machine changes less: on a
rasteriser it includes the device's. The calls that Python makes for a token are counted; other
work does not change them at all.

Then all layers of the first device in the host's memory, which it reads over the bus, against its
own memory; and their caches alone.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from types import FrameType

import numpy as np
from rich.console import Console
from rich.table import Table

import wgpu_backend
from wgpu_backend.device.adapters import Devices
from wgpu_backend.dtypes import F32
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Recorded
from wgpu_backend.ml.placed_executor import PlacedExecutor
from wgpu_backend.ml.placement import Placement
from wgpu_backend.ml.tensor import leaf
from wgpu_backend.ml.wgpu.executor import WgpuExecutor

# Numbers of a hidden state.
WIDTH = 4096
# Blocks of crossings, and the crossings of each.
BLOCKS, WARM, CROSSINGS = 160, 10, 20
# Tokens of the two answers whose difference is counted.
SHORT, LONG = 16, 48


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", nargs="?", help="GGUF file; the bundled story model by default")
    parser.add_argument("--devices", help="with commas; two on the best adapter by default")
    parser.add_argument("--prompt", type=int, default=512, help="tokens of a prompt")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of an answer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="write the figures there")
    return parser.parse_args()


def seconds(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def read_prompt(model: LanguageModel, tokens: list[int]) -> None:
    """Read a prompt that nothing of is in the cache."""
    model.cache.remove(0)
    model.runner.prompt(0, tokens, model._logits, {}).wait()


def decode(model: LanguageModel, count: int) -> None:
    """Generate greedily after a short prompt."""
    model.generate("Once upon a time", num_predict=count, options={"temperature": 0}, raw=True)


def ratios(models: list[LanguageModel], act: Callable[[LanguageModel], None], rounds: int) -> float:
    """Return the speed of the second model by that of the first, measured in turn."""
    for model in models:
        act(model)
    times = [[seconds(lambda m=model: act(m)) for model in models] for _ in range(rounds)]
    return median(one / several for one, several in times)


def processor_times(
    models: list[LanguageModel], act: Callable[[LanguageModel], None], rounds: int
) -> list[float]:
    """Return the median seconds that processors work for each model, measured in turn."""

    def spent(model: LanguageModel) -> float:
        begin = time.process_time()
        act(model)
        return time.process_time() - begin

    times = [[spent(model) for model in models] for _ in range(rounds)]
    return [median(column) for column in zip(*times, strict=True)]


def count_calls(model: LanguageModel) -> float:
    """Return the calls that this thread makes for a token, of functions in Python and in C."""
    counted = 0

    def count(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal counted
        counted += event in ("call", "c_call")

    # What an answer takes besides its tokens is in both; the first one records graphs.
    decode(model, LONG)
    found: list[int] = []
    for tokens in (SHORT, LONG):
        before = counted
        sys.setprofile(count)
        try:
            decode(model, tokens)
        finally:
            sys.setprofile(None)
        found.append(counted - before)
    return (found[1] - found[0]) / (LONG - SHORT)


def transfer(executor: PlacedExecutor) -> list[float]:
    """Return the host's seconds of a hidden state's way to the other device: three quartiles."""
    last = len(executor.placement.layers) - 1
    values = {"x": np.ones((1, WIDTH), "f4")}
    spec = Spec.dense((1, WIDTH), F32)
    kept = leaf(spec, executor.state(spec, "cache.0.key"))
    with Context(executor) as ctx:
        graphs: list[Recorded] = []
        for crosses in (False, True):
            x = ctx.input("x", (1, WIDTH))
            first = ctx.layer(0).zeros(1, WIDTH).add(x)
            # Both graphs have this part, though nobody reads the state.
            ctx.forward(first.copy(kept))
            second = ctx.layer(last).zeros(1, WIDTH).add(first if crosses else x)
            graphs.append(ctx.record(second))

        def spent(recorded: Recorded) -> float:
            begin = time.thread_time()
            for _ in range(CROSSINGS):
                recorded.run(values).wait()
            return (time.thread_time() - begin) / CROSSINGS

        pairs = [[spent(each) for each in graphs] for _ in range(BLOCKS)]
        for each in graphs:
            each.close()
    executor.free(kept.storage)
    return quantiles([crossing - none for none, crossing in pairs[WARM:]], n=4)


def host_memory(
    path: str | None, device: str, tokens: list[int], options: argparse.Namespace, num_ctx: int
) -> dict[str, float]:
    """Return the speed with layers, and with caches, in the host's memory, by that without."""
    found: dict[str, float] = {}
    for name in ("layers", "caches"):
        # A model of its own for each: prompts leave tokens in the cache that no session knows of.
        with wgpu_backend.load(path, device=device, num_ctx=num_ctx) as one:
            layers = len(one.placement.layers)
            far = frozenset(range(layers)) if name == "layers" else frozenset[int]()
            placement = Placement((device,), (0,) * layers, 0, 0, far, host_caches=True)
            with wgpu_backend.load(path, placement=placement, num_ctx=num_ctx) as other:
                pair, rounds = [one, other], options.rounds
                decoding = ratios(pair, lambda m: decode(m, options.tokens), rounds)
                found[f"decode, {name} in host memory"] = decoding
                prompts = ratios(pair, lambda m: read_prompt(m, tokens), rounds)
                found[f"prompt, {name} in host memory"] = prompts
    return found


def main() -> int:
    options = arguments()
    best = Devices()[0].id
    names = options.devices.split(",") if options.devices else [best, f"{best}#1"]
    common = {"num_ctx": max(options.prompt, options.tokens) + 64}
    with (
        wgpu_backend.load(options.model, device=names[0], **common) as one,
        wgpu_backend.load(
            options.model, devices=names, tensor_split=[1] * len(names), **common
        ) as several,
    ):
        assert isinstance(several.backend.executor, PlacedExecutor)
        rng = np.random.default_rng(1)
        tokens = rng.integers(5, one.tokenizer.vocab_size, options.prompt).tolist()
        pair = [one, several]

        def answer(model: LanguageModel) -> None:
            decode(model, options.tokens)

        found = {"decode": ratios(pair, answer, options.rounds)}
        one_s, several_s = processor_times(pair, answer, options.rounds)
        found |= {
            "decode, processor time": one_s / several_s,
            "decode, processor ms of a token": one_s * 1e3 / options.tokens,
            "decode, processor ms added to a token": (several_s - one_s) * 1e3 / options.tokens,
            "decode, calls of a token": count_calls(one),
            "decode, calls added to a token": count_calls(several) - count_calls(one),
            # After decoding: prompts leave tokens in the cache that no session knows of.
            "prompt": ratios(pair, lambda m: read_prompt(m, tokens), options.rounds),
        }
        low, middle, high = transfer(several.backend.executor)
        found |= {"transfer, µs of the host": middle * 1e6}
        found |= {"transfer, lower quartile": low * 1e6, "transfer, upper quartile": high * 1e6}
        executor = one.backend.executor
        if isinstance(executor, WgpuExecutor) and executor.device.reads_host_memory:
            found |= host_memory(options.model, names[0], tokens, options, common["num_ctx"])
        table = Table("", "figure", title=str(several.backend.executor.placement))
        for name, value in found.items():
            table.add_row(name, f"{value:.3g}")
        Console().print(table)
    if options.json:
        options.json.write_text(json.dumps(found) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
