"""Measure the steps of eight streams, by HTTP and of the engine alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from math import ceil
from statistics import median, quantiles

from benchmarks.serving.bare import EIGHT, TALE, loaded
from benchmarks.serving.by_http import CONTEXT, NAME, SLOTS, Server, request_of, serving
from benchmarks.serving.measuring import Figures, Given
from wgpu_backend import Engine

PAIRS = 32  # for each repeat
_TRIES = 10
LONGER = 32  # tokens that the other seven make more, so that none ends before the eighth
Stream = Callable[[int, int], AsyncIterator[object]]
"""Makes so many tokens of a prompt's number; gives something for each piece, the end at last."""


@dataclass(frozen=True, slots=True)
class Turns:
    """The results of all turns of one side.

    Parameters
    ----------
    steps : list of float
        Seconds of a step, of each turn.
    processor : list of float
        Processor seconds: of the server's first process, and of all that answers.
    """

    steps: list[float] = field(default_factory=list[float])
    processor: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def add(self, stream: Stream, tokens: int, spent: Callable[[], tuple[float, float]]) -> None:
        """Run one turn; again if other load ended a stream before the last one began."""
        for _ in range(_TRIES):
            before = spent()
            taken = asyncio.run(step(stream, tokens))
            if taken is None:
                continue
            self.steps.append(taken)
            for place, (now, then) in enumerate(zip(spent(), before, strict=True)):
                self.processor[place] += now - then
            return
        raise RuntimeError(f"streams ended before the one that is measured, {_TRIES} times")


def overhead(given: Given) -> Figures:
    """Compare eight streams by HTTP with the engine alone, for the same requests.

    Other load of the machine, and of its neighbours, changes within seconds and by more than
    what is to be shown, so turns are short, those of both sides follow one another, and there are
    many. One process may be some percent slower than another of the same program for all of its
    life, so both sides are loaded anew for each repeat.
    """
    alone, served = Turns(), Turns()
    medians: list[float] = []
    for _ in range(given.repeats):
        alternate(given, alone, served)
        medians.append(median(over(alone, served)[-PAIRS:]))
        print(f"of {PAIRS} pairs: {medians[-1]:.1%}", flush=True)
    pairs = sorted(over(alone, served))
    low, middle, high = quantiles(pairs, n=4)
    least, most = around_median(pairs)
    first, all_of_them = (spent / alone.processor[1] for spent in served.processor)
    return {
        "milliseconds of a step of eight streams": round(1000 * median(alone.steps), 2),
        "such a step by HTTP over the engine's, less one": f"{middle:.1%}",
        "the same, 95 % sure": f"{least:.1%} to {most:.1%}",
        "the same, half of the pairs": f"{low:.1%} to {high:.1%}",
        "the same, by loads": ", ".join(f"{each:.1%}" for each in medians),
        "pairs": len(pairs),
        "processor time over the engine's, less one": f"{all_of_them - 1:.1%}",
        "processor time of the server's own process over the engine's": f"{first:.1%}",
    }


def over(alone: Turns, served: Turns) -> list[float]:
    """Return the extra time of a step by HTTP, in each pair."""
    return [s / a - 1 for s, a in zip(served.steps, alone.steps, strict=True)]


def around_median(ordered: list[float]) -> tuple[float, float]:
    """Return the interval of the median, 19 times of 20, for any distribution.

    Of so many values the number of those below the median is binomial, which is near to normal
    from ten on.
    """
    rank = max(ceil(len(ordered) / 2 - 0.98 * len(ordered) ** 0.5) - 1, 0)
    return ordered[rank], ordered[-1 - rank]


def alternate(given: Given, alone: Turns, served: Turns) -> None:
    """Alternate between an engine and a server, both loaded; the first turns do not count."""
    with (
        serving(given) as server,
        loaded(given, CONTEXT, SLOTS) as model,
        Engine(model) as engine,
    ):
        sides = [
            (alone, of_engine(engine), lambda: (0.0, time.process_time())),
            (served, by_http(server, given), lambda: server.seconds),
        ]
        for turn in range(PAIRS + 1):
            for turns, stream, spent in sides:
                (turns if turn else Turns()).add(stream, given.tokens, spent)
            sides.reverse()


def of_engine(engine: Engine) -> Stream:
    """Run streams of the engine in this process."""

    async def stream(number: int, tokens: int) -> AsyncIterator[object]:
        prompt, options = f"{TALE}{number}", {"seed": number}
        made = engine.complete(prompt, max_tokens=tokens, ignore_eos=True, options=options)
        async for event in made:
            yield event

    return stream


def by_http(server: Server, given: Given) -> Stream:
    """Run streams of a server."""

    async def stream(number: int, tokens: int) -> AsyncIterator[object]:
        body = {
            "model": NAME if given.model else "story",
            "prompt": f"{TALE}{number}",
            "n_predict": tokens,
            "ignore_eos": True,
            "seed": number,
            "stream": True,
        }
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        try:
            writer.write(request_of(server.port, "/completion", body))
            last = b""
            async for line in reader:
                if line.startswith(b"data:"):
                    last = line
                    yield line
            assert b'"stop": true' in last, last
        finally:
            writer.close()

    return stream


async def step(stream: Stream, tokens: int) -> float | None:
    """Measure a step of eight streams; None if one ended before the eighth began.

    Seven have begun before the eighth does, and end after it, so nothing else is in its steps.
    Its first piece comes at once, and so does its end, while those between may come together.
    """
    begun = [asyncio.Event() for _ in range(EIGHT - 1)]
    ends: list[float] = []

    async def run_other(number: int) -> None:
        async for _ in stream(number, tokens + LONGER):
            begun[number].set()
        ends.append(time.perf_counter())

    async with asyncio.TaskGroup() as group:
        for number in range(EIGHT - 1):
            group.create_task(run_other(number))
        for each in begun:
            await each.wait()
        times = [time.perf_counter() async for _ in stream(EIGHT - 1, tokens)]
    return (times[-1] - times[0]) / (tokens - 1) if min(ends) > times[-1] else None
