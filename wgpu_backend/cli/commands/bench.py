"""`wgpu-backend bench`: tokens per second, host time and bandwidth."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wgpu_backend.cli.completion import complete_model
from wgpu_backend.cli.console import human_bytes, human_count, note, print_table, print_text
from wgpu_backend.cli.failures import UsageError, brief
from wgpu_backend.cli.names import exists, find_model
from wgpu_backend.cli.options import Json, ModelSettings, with_model_options
from wgpu_backend.cli.parameters import MAX_CONTEXT

if TYPE_CHECKING:
    from wgpu_backend.cli.benchmark import Result
    from wgpu_backend.engine.language_model import LanguageModel

# Longer numbers exceed every limit, and int() raises for thousands of digits.
_DIGITS = 10


@with_model_options
def bench(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help="GGUF files, folders, or `story`.",
            autocompletion=complete_model,
        ),
    ] = None,
    named: Annotated[
        list[str] | None,
        typer.Option(
            "-m",
            "--model",
            metavar="MODEL,…",
            help="Models, as MODEL.",
            autocompletion=complete_model,
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(
            "-p",
            "--n-prompt",
            metavar="N,…",
            help="Tokens of each prompt test. [default: 128]",
        ),
    ] = None,
    generate: Annotated[
        list[str] | None,
        typer.Option(
            "-n", "--n-gen", metavar="N,…", help="Tokens of each generation test. [default: 32]"
        ),
    ] = None,
    repetitions: Annotated[
        int,
        typer.Option(
            "-r", "--repetitions", metavar="N", min=1, max=1000, help="Runs of each test."
        ),
    ] = 5,
    compare_prediction: Annotated[
        bool,
        typer.Option(
            "--compare-prediction", help="Also show the speed predicted from static costs."
        ),
    ] = False,
    as_json: Json = False,
    *,
    settings: ModelSettings,
) -> None:
    """Measure tokens per second, host time and bandwidth of a model."""
    from wgpu_backend.cli.benchmark import Plan, run_benchmarks
    from wgpu_backend.cli.loading import open_model

    prompts = parse_token_counts("-p", prompt or ["128"])
    plan = Plan(prompts, parse_token_counts("-n", generate or ["32"]), repetitions)
    names = split_model_names(models or [], named or [])
    if not plan.longest:
        raise UsageError("bench: -p 0 and -n 0 leave nothing to measure; give a number above 0")
    # A wrong name is reported before minutes of work.
    paths = [find_model(name) for name in names]
    results: list[Result] = []
    for name, path in zip(names, paths, strict=True):
        # A larger cache would only take memory: no test is longer.
        room = replace(settings, num_ctx=settings.num_ctx or plan.longest)
        with open_model(path, room) as model:
            found = list(run_benchmarks(model, name, plan))
            results += _add_predictions(model, found) if compare_prediction else found
    if as_json:
        print_text(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    else:
        _print(results, compares=compare_prediction)


def parse_token_counts(option: str, lists: Sequence[str]) -> tuple[int, ...]:
    """Parse numbers such as ``128,512``, which may be given several times, as in llama-bench.

    Raises
    ------
    UsageError
        A word is not a number of tokens.
    """
    words = [word.strip() for words in lists for word in words.split(",")]
    for word in words:
        digits = word.isascii() and word.isdecimal() and len(word) < _DIGITS
        if not digits or int(word) > MAX_CONTEXT:
            raise UsageError(
                f"{option}: {brief(word)}, needs whole numbers from 0 to {MAX_CONTEXT}"
            )
    return tuple(map(int, words))


def split_model_names(words: Sequence[str], lists: Sequence[str]) -> list[str]:
    """Collect models from words and from lists such as ``a.gguf,b.gguf``.

    Raises
    ------
    UsageError
        No model is given.
    """
    # A file's name may contain commas.
    named = [[word] if exists(word) else word.split(",") for word in lists]
    names = [*words, *(name for each in named for name in each)]
    if not names:
        raise UsageError("bench: needs MODEL, or -m MODEL")
    return names


def _add_predictions(model: LanguageModel, results: Sequence[Result]) -> Iterator[Result]:
    """Add predictions to results, and print a note for each."""
    from wgpu_backend.cli.prediction import find_prediction
    from wgpu_backend.files.quantize.mixes import main_type

    config, file = model.backend.config, model.backend.file
    for result in results:
        found = find_prediction(config, main_type(file), result.device_name, result.test)
        if isinstance(found, str):
            note(f"{result.test}: no prediction: {found}")
            yield result
        else:
            note(f"{result.test}: {found.summary}")
            yield replace(result, predicted_tokens_per_second=found.tokens_per_second)


def _print(results: Sequence[Result], *, compares: bool) -> None:
    columns = (
        "model", "size", "params", "device", "test", "t/s", "dispatches/t", "host µs/t",
        "% of peak bandwidth",
    )  # fmt: skip
    rows = [_make_row(result) for result in results]
    if compares:
        columns = (*columns, "predicted t/s", "% of predicted")
        rows = [
            (*row, *_format_prediction(result)) for row, result in zip(rows, results, strict=True)
        ]
    print_table(columns, rows, right=(*columns[1:3], *columns[5:]))


def _format_prediction(result: Result) -> tuple[str, str]:
    predicted = result.predicted_tokens_per_second
    if predicted is None:
        return ("–", "–")
    return (f"{predicted:g}", f"{100 * result.tokens_per_second / predicted:.0f}")


def _make_row(result: Result) -> tuple[str, ...]:
    share = result.bandwidth_fraction
    return (
        Path(result.model).name,
        human_bytes(result.size_nbytes),
        human_count(result.parameters),
        result.device,
        result.test,
        f"{result.tokens_per_second:.2f} ± {result.stddev:.2f}",
        f"{result.dispatches_per_token:.1f}",
        f"{result.host_us_per_token:.0f}",
        "–" if share is None else f"{100 * share:.1f}",
    )
