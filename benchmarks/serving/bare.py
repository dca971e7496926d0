"""Measurements of the engine without the server."""

from __future__ import annotations

import random
import threading
import time
from statistics import median

import wgpu_backend
from benchmarks.serving.measuring import Figures, Given, in_turns
from wgpu_backend import Engine, Generation, LanguageModel

EIGHT = 8
LONG, PREFIX = 4096, 1024
TALE = "Once upon a time there was a fox named Pip. "


def loaded(given: Given, num_ctx: int, slots: int = EIGHT) -> LanguageModel:
    """Load the model, with a context of so many positions for each slot."""
    return wgpu_backend.load(
        given.model or None, device=given.device or None, num_ctx=num_ctx, num_parallel=slots
    )


def prompt_of(model: LanguageModel, tokens: int, salt: int) -> list[int]:
    """Make a prompt of so many tokens whose beginning is unique."""
    text = model.prompter.raw(TALE)
    own = [5 + salt * 7 % 200, 6 + salt % 100]
    return [*own, *(text * (tokens // len(text) + 1))][:tokens]


def answer(engine: Engine, count: int, tokens: int) -> list[Generation]:
    """Run so many answers at once, to their ends."""
    made = [
        engine.complete(f"{TALE}{i}", max_tokens=tokens, ignore_eos=True, options={"seed": i})
        for i in range(count)
    ]
    for each in made:
        each.result()
    return made


def engine(given: Given) -> Figures:
    """Measure eight sequences over one, a prefix that was read before, and parallel prompts."""
    with loaded(given, 2 * LONG) as model, Engine(model) as made:
        one, eight = in_turns(
            given.repeats,
            lambda: answer(made, 1, given.tokens),
            lambda: answer(made, EIGHT, given.tokens),
        )
        first, again = prefix(made, given.repeats)
        return {
            "device": model.device.name,
            "eight sequences over one, tokens/s": round(EIGHT * one / eight, 2),
            "a repeated prefix of 1k over its first prefill": round(again / first, 3),
            **beside_a_long_prompt(made, given.repeats),
        }


def prefix(engine: Engine, repeats: int) -> tuple[float, float]:
    """Measure the seconds until the first token of a prompt of 1k, when new and when cached."""
    taken: tuple[list[float], list[float]] = ([], [])
    for salt in range(repeats + 1):
        prompt = prompt_of(engine.model, PREFIX, 1000 + salt)
        for found in taken:
            usage = engine.complete(prompt, max_tokens=1).result().usage
            found.append(usage.prompt_seconds)
    return median(taken[0][1:]), median(taken[1][1:])


def beside_a_long_prompt(engine: Engine, repeats: int) -> Figures:
    """Measure a short prompt's first token, alone and while a prompt of 4k is read."""
    alone: list[float] = []
    late: list[float] = []
    chance = random.Random(0)
    pause = threading.Event()
    for salt in range(4 * repeats + 1):
        alone.append(first_token(engine, 2000 + salt))
        before = engine.status().steps
        reading = engine.complete(prompt_of(engine.model, LONG, 3000 + salt), max_tokens=1)
        wait_for_steps(engine, before + 3)
        begin, begun = time.perf_counter(), engine.status().steps
        wait_for_steps(engine, begun + 2)
        step = (time.perf_counter() - begin) / (engine.status().steps - begun)
        pause.wait(chance.random() * step)
        beside = first_token(engine, 2500 + salt)
        assert not reading.done
        late.append((beside - alone[-1]) / step)
        reading.cancel()
        reading.result()
    return {"steps that a short prompt is later beside 4k": round(median(late[1:]), 2)}


def first_token(engine: Engine, salt: int) -> float:
    """Measure the seconds until a short prompt's first token."""
    usage = engine.complete(prompt_of(engine.model, 12, salt), max_tokens=1).result().usage
    return usage.queue_seconds + usage.prompt_seconds


def wait_for_steps(engine: Engine, count: int) -> None:
    """Wait until the engine has made so many passes."""
    pause = threading.Event()
    while engine.status().steps < count:
        pause.wait(0.001)


def drafts(given: Given) -> Figures:
    """Measure answers with drafts over those without; of stories, and of a repeated prompt."""
    found: Figures = {}
    with loaded(given, 2048, 4) as model, loaded(given, 2048, 4) as small:
        told = [model.prompter.raw(f"{TALE}{i}") for i in range(4)]
        text = model.prompter.raw(TALE)
        with Engine(model) as plain:
            tale = plain.complete(text, max_tokens=120, options={"temperature": 0.0}).result()
        again = [*text, *tale.choices[0].tokens, *text]
        for name, prompts in {"four stories": told, "one again": [again]}.items():
            for draft in ("ngram", small):
                kind = draft if isinstance(draft, str) else "itself"
                ratio, right = with_draft(model, prompts, draft, given)
                found[f"{name}, {kind}: guessed right"] = f"{right:.0%}"
                found[f"{name}, {kind}: speed over none"] = round(ratio, 2)
    return found


def with_draft(
    model: LanguageModel, prompts: list[list[int]], draft: LanguageModel | str, given: Given
) -> tuple[float, float]:
    """Return the speed with a draft over that without, and the share of accepted drafts."""

    def tell(engine: Engine) -> None:
        made = [
            engine.complete(p, max_tokens=given.tokens, options={"temperature": 0.0})
            for p in prompts
        ]
        for each in made:
            each.result()

    with Engine(model) as plain, Engine(model, draft=draft) as drafting:  # type: ignore[arg-type]
        without, with_it = in_turns(given.repeats, lambda: tell(plain), lambda: tell(drafting))
        status = drafting.status()
    return without / with_it, status.right_guesses / max(status.guessed_tokens, 1)
