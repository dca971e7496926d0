"""Comparison with llama-server, on one file and device."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from statistics import median

from benchmarks.serving.bare import EIGHT, TALE
from benchmarks.serving.by_http import CONTEXT, NAME, Server, ask, free_port, serving, started
from benchmarks.serving.measuring import Figures, Given, percentile
from wgpu_backend.engine.loading import bundled

EACH = 4  # requests of a client, in sequence


def peer(given: Given) -> Figures:
    """Compare throughput and the slow end of latency at eight clients with llama-server's."""
    port = free_port()
    file = given.model or str(bundled())
    command = [
        *(given.peer, "-m", str(Path(file).absolute()), "--port", str(port), "-ngl", "99"),
        *("-np", str(EIGHT), "-c", str(CONTEXT * EIGHT), "--no-webui"),
    ]
    env = {"GGML_VK_VISIBLE_DEVICES": os.environ.get("GGML_VK_VISIBLE_DEVICES", "0")}
    turns: list[tuple[float, float]] = []
    with serving(given) as own, started(command, port, env, "/health") as other:
        pairs = [(own, NAME if given.model else "story"), (Server(other.process, port), "peer")]
        for turn in range(given.repeats + 1):
            (mine, my_slow), (theirs, slow) = [measured(*each, given) for each in pairs]
            if turn:
                turns.append((mine / theirs, my_slow / slow))
    return {
        "throughput over llama-server's": round(median(t for t, _ in turns), 2),
        "p95 latency over llama-server's": round(median(s for _, s in turns), 2),
    }


def measured(server: Server, name: str, given: Given) -> tuple[float, float]:
    """Measure tokens per second, and the 95th percentile of the latency."""
    latencies: list[float] = []
    begin = time.perf_counter()
    asyncio.run(all_clients(server.port, name, given, latencies))
    taken = time.perf_counter() - begin
    return EIGHT * EACH * given.tokens / taken, percentile(latencies, 0.95)


async def all_clients(port: int, name: str, given: Given, latencies: list[float]) -> None:
    """Run eight clients, each with some requests in sequence."""

    async def client(number: int) -> None:
        for turn in range(EACH):
            begin = time.perf_counter()
            body = {
                "model": name,
                "prompt": f"{TALE}{number} {turn}",
                "max_tokens": given.tokens,
                "seed": number * EACH + turn,
                "temperature": 0.8,
                "logit_bias": {},
            }
            status, text = await ask(port, "/v1/completions", body)
            assert status == 200, text[-300:]
            latencies.append(time.perf_counter() - begin)

    await asyncio.gather(*(client(number) for number in range(EIGHT)))
