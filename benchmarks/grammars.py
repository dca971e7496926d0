"""Measure the cost of a grammar per step of an engine, and the time of masks of many tokens.

    python -m benchmarks.grammars --device software --json results.json

The ways are on one model and take turns. A ratio is of a step and its neighbours in time without a
grammar; it is given with the 95 % interval of its median. A second part makes masks of a vocabulary
of 128,000 tokens, of a schema and of JSON in GBNF.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import wgpu_backend
from wgpu_backend import Grammar
from wgpu_backend.text.grammar import GrammarVocabulary
from wgpu_backend.text.tokenizer import Tokenizer
from wgpu_backend.text.tokenizer.pieces import ALPHABET

TEXT = Grammar.regex(r"[a-zA-Z ,.!?']{2000}")
TEXT_GBNF = Grammar.gbnf("root ::= word+\nword ::= [a-zA-Z ,.!?'] word | [a-zA-Z]")
JSON_GBNF = Grammar.gbnf(r"""
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}" ws
array  ::= "[" ws (value ("," ws value)*)? "]" ws
string ::= "\"" ([^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" ws
number ::= "-"? ([0-9] | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? ws
ws     ::= | " " | "\n" [ \t]{0,20}
""")
SCHEMA = Grammar.json_schema(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 20}, "maxItems": 5},
            "age": {"type": "integer"},
            "ok": {"enum": ["yes", "no", "perhaps"]},
        },
        "required": ["name", "tags", "age", "ok"],
        "additionalProperties": False,
    }
)


def token_seconds(
    engine: wgpu_backend.Engine, grammar: Grammar | None, tokens: int, parallel: int
) -> float:
    """Measure the seconds per token of an answer, next to others with the same grammar."""
    options = {"seed": 1, "temperature": 1.0}
    many = [
        engine.complete(
            "Once there was", grammar=grammar, options=options, max_tokens=tokens, ignore_eos=True
        )
        for _ in range(parallel)
    ]
    found = [each.result(600) for each in many]
    return max(each.usage.seconds / each.usage.completion_tokens for each in found)


class Times(NamedTuple):
    """The milliseconds of a step: by the clock, and of all threads of the process."""

    clock: float
    processor: float


def step_ratios(
    path: Path | None, device: str, tokens: int, rounds: int, parallel: int
) -> dict[str, float]:
    """Compare a step with a grammar to the steps without one right before and after it.

    A busy machine slows neighbours alike, so their ratio varies less than either.
    """
    grammars = {"schema": TEXT, "gbnf": TEXT_GBNF}
    found = {"without": list[Times](), **{name: list[Times]() for name in grammars}}
    ratios = {name: list[Times]() for name in grammars}
    with (
        wgpu_backend.load(path, device=device, num_parallel=parallel, num_ctx=1024) as model,
        wgpu_backend.Engine(model, prefix_cache=False) as engine,
    ):

        def measure(grammar: Grammar | None) -> Times:
            begin = time.process_time()
            seconds = token_seconds(engine, grammar, tokens, parallel)
            return Times(1e3 * seconds, 1e3 * (time.process_time() - begin) / tokens)

        for grammar in (*grammars.values(), None):
            measure(grammar)  # records graphs
        before = measure(None)
        for _ in range(rounds):
            for name, grammar in grammars.items():
                found[name].append(measure(grammar))
                after = measure(None)
                pairs = zip(found[name][-1], before, after, strict=True)
                ratios[name].append(Times(*(2 * x / (one + other) for x, one, other in pairs)))
                found["without"].append(after)
                before = after
    result = {name: statistics.median(each.clock for each in of) for name, of in found.items()}
    for name, pairs in ratios.items():
        for kind in Times._fields:
            low, middle, high = interval([getattr(each, kind) for each in pairs])
            key = f"{name} ratio, {kind}"
            result |= {key: middle, f"{key}, from": low, f"{key}, to": high}
    return result


def interval(values: list[float]) -> tuple[float, float, float]:
    """Return the median between the bounds of its 95 % interval, by 2,000 drawn samples."""
    rng = np.random.default_rng(0)
    medians = np.median(rng.choice(values, (2000, len(values))), axis=1)
    low, high = np.percentile(medians, (2.5, 97.5))
    return float(low), statistics.median(values), float(high)


def large_vocabulary(count: int) -> Tokenizer:
    """Make a byte-pair vocabulary of so many tokens, with random merges."""
    rng = random.Random(0)
    tokens, known, merges = [*ALPHABET], {*ALPHABET}, list[str]()
    letters = [*"etaoinshrdlucmfwypvbgkjqxz"] * 3 + [*'ETAOINS0123456789"{}[],:.-_'] + ["Ġ"] * 8
    while len(tokens) < count - 1:
        left = rng.choice(tokens[-20_000:] if rng.random() < 0.5 else letters)
        right = rng.choice(letters if rng.random() < 0.6 else tokens[-20_000:])
        if len(left + right) < 15 and left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
            merges.append(f"{left} {right}")
    return Tokenizer.from_metadata(
        {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": "gpt-2",
            "tokenizer.ggml.tokens": [*tokens, "</s>"],
            "tokenizer.ggml.token_type": np.array([1] * len(tokens) + [3], np.int32),
            "tokenizer.ggml.merges": merges,
            "tokenizer.ggml.eos_token_id": len(tokens),
        }
    )


def mask_microseconds(grammar: Grammar, count: int, answers: int) -> dict[str, float]:
    """Measure the time of a grammar's masks, along random answers."""
    tokenizer = large_vocabulary(count)
    vocabulary = GrammarVocabulary(tokenizer, count)
    vocabulary.matcher(grammar)
    found: list[float] = []
    for number in range(answers):
        rng, matcher = np.random.default_rng(number), vocabulary.matcher(grammar)
        for _ in range(120):
            begin = time.perf_counter()
            mask = matcher.mask()
            found.append(1e6 * (time.perf_counter() - begin))
            bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")
            token = int(rng.choice(np.flatnonzero(bits)))
            if token in tokenizer.eog_ids:
                break
            matcher.take(token)
            if matcher.is_ended:
                break
    return {
        "median": statistics.median(found),
        "p95": float(np.percentile(found, 95)),
        "largest": max(found),
        "masks": len(found),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="software")
    parser.add_argument("--model", type=Path, help="a GGUF file in place of the story model")
    parser.add_argument("--tokens", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--vocabulary", type=int, default=128_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found: dict[str, Any] = {
        f"step, {parallel} at once": step_ratios(
            given.model, given.device, given.tokens, given.rounds, parallel
        )
        for parallel in (1, 4)
    }
    for name, grammar in (("schema", SCHEMA), ("gbnf", JSON_GBNF)):
        found[f"mask, {name}, µs"] = mask_microseconds(grammar, given.vocabulary, 8)
    for name, values in found.items():
        print(name)
        print(*(f"    {key}: {value:.3g}" for key, value in values.items()), sep="\n")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
