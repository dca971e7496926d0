"""Measure the gain of each fusion rule: a decode step and a prompt with all, all but one, and none.

::

    python benchmarks/fusion.py MODEL.gguf
    python benchmarks/fusion.py MODEL.gguf --rounds 5 --prompt 64 --json OUT.json

Graphs of every choice are recorded first and then run in turns, so that other load affects all of
them; the fastest of the rounds counts. "Without" is relative to all rules.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import wgpu_backend
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.runner import Head, Runner, Work
from wgpu_backend.graph.fusion import Rule
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.op import fusions

ALL, NONE, EXACT = "all rules", "no rules", "all but rounding"


@dataclass(slots=True)
class Choice:
    """A subset of the rules, with the graphs that they produce.

    Parameters
    ----------
    name : str
    dispatches : int
        Of a decode step.
    step_ms, prompt_ms : float
        Fastest so far.
    """

    name: str
    dispatches: int = 0
    step_ms: float = float("inf")
    prompt_ms: float = float("inf")


def names() -> list[str]:
    """List the ops that a rule produces."""
    return sorted({rule.name for rules in fusions(exact=False).values() for rule in rules})


def choices() -> Iterator[tuple[str, dict[str, list[Rule]]]]:
    """List the subsets of rules by name."""
    yield ALL, fusions(exact=False)
    for name in names():
        yield f"without {name}", fusions(exact=False, without={name})
    yield EXACT, fusions(exact=True)
    yield NONE, fusions(False, exact=True)


def measured(model: LanguageModel, prompt: int, rounds: int) -> list[Choice]:
    """Measure the times of each subset that changes the graph."""
    executor = model.backend.executor
    assert isinstance(executor, WgpuExecutor), "fusion needs a GPU adapter"
    head = Head("greedy", lambda _, hidden: [model.model.logits(hidden).argmax()])
    tokens = np.random.default_rng(0).integers(0, model.vocabulary, prompt).tolist()
    runners: list[tuple[Choice, Runner]] = []
    for name, rules in choices():
        executor.rules = rules
        runner = Runner(model.model, model.cache)
        choice = Choice(name)
        _step(model, runner, head)
        choice.dispatches = _count_dispatches(model, runner, head)
        _prompt(model, runner, head, tokens)
        runners.append((choice, runner))
    for _ in range(rounds):
        for choice, runner in runners:
            choice.step_ms = min(choice.step_ms, _step(model, runner, head))
            choice.prompt_ms = min(choice.prompt_ms, _prompt(model, runner, head, tokens))
    for _, runner in runners:
        runner.close()
    return [choice for choice, _ in runners]


def _count_dispatches(model: LanguageModel, runner: Runner, head: Head) -> int:
    model.cache.remove(0)
    return runner.recorded(runner.shape_of([Work(0, (0,), (0,))]), head).dispatches


def _step(model: LanguageModel, runner: Runner, head: Head) -> float:
    model.cache.remove(0)
    best = float("inf")
    for token in range(3):
        begin = time.perf_counter()
        runner.run([Work(0, (token,), (0,))], head, {}).wait()
        best = min(best, (time.perf_counter() - begin) * 1e3)
    return best


def _prompt(model: LanguageModel, runner: Runner, head: Head, tokens: list[int]) -> float:
    model.cache.remove(0)
    begin = time.perf_counter()
    runner.run([Work(0, tokens, (len(tokens) - 1,))], head, {}).wait()
    return (time.perf_counter() - begin) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--device")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    with wgpu_backend.load(args.model, device=args.device, num_ctx=512) as model:
        found = measured(model, args.prompt, args.rounds)
        info = model.device
    every = found[0]
    print(f"{args.model.name} on {info.name}, {info.driver}; prompt of {args.prompt} tokens")
    print(f"{'':28}{'dispatches':>11}{'step ms':>9}{'':>7}{'prompt ms':>11}")
    for choice in found:
        print(
            f"{choice.name:28}{choice.dispatches:11}{choice.step_ms:9.1f}"
            f"{choice.step_ms / every.step_ms:6.2f}×{choice.prompt_ms:11.1f}"
            f"{choice.prompt_ms / every.prompt_ms:6.2f}×"
        )
    if args.json:
        what = {"model": args.model.name, "device": info.name, "driver": info.driver}
        rows = [asdict(choice) for choice in found]
        args.json.write_text(json.dumps({**what, "choices": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
