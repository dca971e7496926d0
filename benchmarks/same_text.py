"""Compare seeded answers alone and among 31 others, and measure the cost of equal answers.

::

    python -m benchmarks.same_text
    python -m benchmarks.same_text --requests 40 --tokens 12 --json out.json

One engine makes every answer by itself, then all of them, 32 at a time; with ``deterministic`` and
without. Costs are ratios of seconds in one run, the two kinds in turn.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import wgpu_backend
from wgpu_backend import Engine, LanguageModel, Request

SLOTS = 32
ANIMALS = ("fox", "bear", "owl", "cat", "dog", "hen", "frog", "mouse")
PROMPTS = (
    "Once upon a time there was a {}",
    "Tell me a story about a {}.",
    "One day the {}",
    "A {}",
)
KINDS = {"deterministic": True, "plain": False}


def requests_of(model: LanguageModel, count: int, tokens: int) -> list[Request]:
    """Make requests with different prompts and seeds."""
    texts = [p.format(a) for a in ANIMALS for p in PROMPTS]
    return [
        Request.of(
            model.prompter.raw(texts[i % len(texts)]),
            options={"seed": i, "temperature": 1.0},
            max_tokens=tokens,
            ignore_eos=True,
        )
        for i in range(count)
    ]


def answers(engine: Engine, requests: Sequence[Request]) -> list[Sequence[int]]:
    """Return the tokens of requests that are submitted together."""
    made = [engine.submit(each) for each in requests]
    return [each.result().choices[0].tokens for each in made]


def differences(model: LanguageModel, requests: Sequence[Request], *, deterministic: bool) -> int:
    """Count the answers that differ between alone and together."""
    with Engine(model, deterministic=deterministic, prefix_cache=False) as engine:
        alone = [answers(engine, [each])[0] for each in requests]
        together = answers(engine, requests)
    return sum(a != b for a, b in zip(alone, together, strict=True))


def seconds(act: Callable[[], object]) -> float:
    """Measure the seconds of a call."""
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def cost(model: LanguageModel, requests: Sequence[Request], repeats: int) -> float:
    """Return the time of `requests` with ``deterministic`` relative to without: median of turns."""
    engines = {name: Engine(model, deterministic=on) for name, on in KINDS.items()}
    found: list[float] = []
    try:
        for turn in range(repeats + 1):
            took = {n: seconds(lambda e=e: answers(e, requests)) for n, e in engines.items()}
            if turn:  # the first records graphs
                found.append(took["deterministic"] / took["plain"])
    finally:
        for engine in engines.values():
            engine.close()
    return sorted(found)[len(found) // 2]


def main() -> None:
    """Measure, print and optionally store."""
    parser = argparse.ArgumentParser(description="Seeded answers alone and in company.")
    parser.add_argument("--model", default=None, help="a GGUF file; the story model by default")
    parser.add_argument("--device", default=None)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--plain", action="store_true", help="count without deterministic, too")
    parser.add_argument("--json", type=Path, default=None)
    given = parser.parse_args()
    with wgpu_backend.load(
        given.model, device=given.device, num_ctx=256, num_parallel=SLOTS
    ) as model:
        many = requests_of(model, given.requests, given.tokens)
        found: dict[str, object] = {
            "device": model.device.name,
            "requests": len(many),
            "tokens": given.tokens,
        }
        for slots in (1, 8, SLOTS):
            ratio = cost(model, many[:slots], given.repeats)
            found[f"cost of {slots} at once"] = round(ratio, 2)
            print(f"{slots} at once: deterministic takes {ratio:.2f} times as long", flush=True)
        for name, on in KINDS.items():
            if on or given.plain:
                found[f"differences {name}"] = differences(model, many, deterministic=on)
                print(f"{name}: {found[f'differences {name}']} of {len(many)} differ", flush=True)
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
