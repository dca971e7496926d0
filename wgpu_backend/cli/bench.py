"""`wgpu-backend bench`: tokens per second, host time and bandwidth."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from wgpu_backend.cli.clocks import at_full_clock
from wgpu_backend.cli.console import answer, human_bytes, human_count, note, print_table
from wgpu_backend.cli.failures import UsageError, brief
from wgpu_backend.cli.loading import open_model
from wgpu_backend.cli.names import exists, model_path
from wgpu_backend.cli.options import Settings
from wgpu_backend.cli.parameters import MAX_CONTEXT
from wgpu_backend.cli.prediction import predicted
from wgpu_backend.cli.roof import read_roof
from wgpu_backend.cli.show import parameters, quantisation, weight_nbytes
from wgpu_backend.engine.generation import Session, TokenStream
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.runner import Head
from wgpu_backend.engine.step_sampler import StepSampler
from wgpu_backend.files.gguf.reader import GGUFFile
from wgpu_backend.files.quantize.mixes import main_type
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.ops.sampling.host import SamplingOptions

SEQUENCE = 0
_DIGITS = 10  # longer numbers exceed every limit
HOST_TOKENS = 16  # tokens over which host time is measured


@dataclass(frozen=True, slots=True)
class Plan:
    """The tests to run.

    Parameters
    ----------
    prompts : tuple of int
        Tokens of each prompt test; 0 leaves it out.
    generates : tuple of int
        Tokens of each generation test; 0 leaves it out.
    """

    prompts: tuple[int, ...]
    generates: tuple[int, ...]
    repetitions: int

    @property
    def longest(self) -> int:
        """Tokens of the longest test."""
        return max(*self.prompts, *self.generates)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one test of one model: a row of the table, an object of the JSON.

    Parameters
    ----------
    model : str
        As the user named it.
    size_nbytes, parameters : int
        Bytes and number of the weights.
    test : str
        ``pp128``: a prompt of 128 tokens; ``tg32``: 32 tokens generated one by one.
    tokens_per_second, stddev : float
        Mean over the repetitions, and their standard deviation.
    dispatches_per_token, host_us_per_token : float
        Host time is the time of Python and the driver until a pass is submitted, without their
        work while the device computes.
    bandwidth_fraction : float or None
        Bytes of weights read per second, relative to the device's read bandwidth; for generation
        on a device whose bandwidth can be measured.
    predicted_tokens_per_second : float or None
        Prediction from static costs; None for unknown cards and models, and if not requested.
    """

    model: str
    size_nbytes: int
    parameters: int
    quantisation: str
    device: str
    device_name: str
    test: str
    repetitions: int
    tokens_per_second: float
    stddev: float
    dispatches_per_token: float
    host_us_per_token: float
    bandwidth_fraction: float | None
    predicted_tokens_per_second: float | None = None


def token_counts(option: str, lists: Sequence[str]) -> tuple[int, ...]:
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


def model_names(words: Sequence[str], lists: Sequence[str]) -> list[str]:
    """Collect models from words and from lists such as ``a.gguf,b.gguf``.

    Raises
    ------
    UsageError
        No model is given.
    """
    named = [[word] if exists(word) else word.split(",") for word in lists]
    names = [*words, *(name for each in named for name in each)]
    if not names:
        raise UsageError("bench: needs MODEL, or -m MODEL")
    return names


def bench(
    names: Sequence[str], plan: Plan, settings: Settings, *, as_json: bool, compares: bool = False
) -> None:
    """Measure models and print a table or JSON.

    Parameters
    ----------
    names : sequence of str
        Models.
    compares : bool
        Look up the predictions for each test.

    Raises
    ------
    UsageError
        Both tests are left out.
    """
    if not plan.longest:
        raise UsageError("bench: -p 0 and -n 0 leave nothing to measure")
    paths = [model_path(name) for name in names]  # a wrong name is reported before minutes of work
    results: list[Result] = []
    for name, path in zip(names, paths, strict=True):
        room = replace(settings, num_ctx=settings.num_ctx or plan.longest)
        with open_model(path, room) as model:
            found = list(measured(model, name, plan))
            results += with_predictions(model, found) if compares else found
    if as_json:
        answer(json.dumps([asdict(result) for result in results], indent=2) + "\n")
    else:
        _print(results, compares=compares)


def with_predictions(model: LanguageModel, results: Sequence[Result]) -> Iterator[Result]:
    """Add predictions to results, and print a note for each."""
    config, file = model.backend.config, model.backend.file
    for result in results:
        found = predicted(config, main_type(file), result.device_name, result.test)
        if isinstance(found, str):
            note(f"{result.test}: no prediction: {found}")
            yield result
        else:
            note(f"{result.test}: {found.summary}")
            yield replace(result, predicted_tokens_per_second=found.tokens_per_second)


def measured(model: LanguageModel, name: str, plan: Plan) -> Iterator[Result]:
    """Run the tests of one model and yield their results."""
    executor = model.backend.executor
    roof = None
    if isinstance(executor, WgpuExecutor):
        roof = read_roof(executor.device)
        note(f"{model.device.id} reads {roof / 1e9:.1f} GB/s at best")
    bench = Bench(model, name, roof)
    for tokens in filter(None, plan.prompts):
        yield bench.test(f"pp{tokens}", tokens, plan.repetitions, bench.read)
    for tokens in filter(None, plan.generates):
        yield bench.test(f"tg{tokens}", tokens, plan.repetitions, bench.write)


class Bench:
    """A benchmark of one model; each run begins with an empty cache.

    Parameters
    ----------
    roof : float or None
        Read bandwidth of the device in bytes per second.
    """

    def __init__(self, model: LanguageModel, name: str, roof: float | None) -> None:
        self._model = model
        self._name = name
        self._roof = roof
        self._random = np.random.default_rng(0)
        self._greedy = Head("bench", self._most_likely)

    def _most_likely(self, batch: Batch, hidden: Tensor) -> Sequence[Tensor]:
        return [self._model.model.logits(hidden).argmax()]

    def read(self, tokens: int) -> None:
        """Run a prompt of random tokens."""
        ids = self._random.integers(0, self._model.vocabulary, tokens).tolist()
        self._model.runner.prefill(SEQUENCE, ids, self._greedy, {})

    def write(self, tokens: int) -> None:
        """Generate tokens one by one, with steps submitted ahead as in a generation."""
        self._stream(tokens, self._model.depth)

    def host_seconds(self, tokens: int) -> float:
        """Measure the seconds of Python and the driver per token, each step read before the next.

        A rasteriser's submit waits for the former step, which would count if steps ran ahead.
        """
        clock, tokens = self._model.runner.clock, min(tokens, HOST_TOKENS)
        self._model.cache.remove(SEQUENCE)
        before = clock.host
        self._stream(tokens, 1)
        return (clock.host - before) / tokens

    def _stream(self, tokens: int, depth: int) -> None:
        model = self._model
        sampler = StepSampler(SamplingOptions(temperature=0), model.vocabulary)
        room = model.cache.positions
        stream = TokenStream(
            model.runner, Session(SEQUENCE), sampler, frozenset(), room, tokens, depth
        )
        first = int(self._random.integers(0, model.vocabulary))
        for _ in stream.run([first]):
            pass

    def test(self, label: str, tokens: int, repetitions: int, run: Callable[[int], None]) -> Result:
        """Warm up, then time a number of runs."""
        capabilities = self._model.backend.executor.capabilities
        at_full_clock(lambda: self._timed(run, tokens), capabilities)
        dispatches, host = self._dispatches(), self._model.runner.clock.host
        rates = [tokens / self._timed(run, tokens) for _ in range(repetitions)]
        made = tokens * repetitions
        dispatches = self._dispatches() - dispatches
        host = (self._model.runner.clock.host - host) / made
        if run == self.write and self._model.depth > 1:
            host = self.host_seconds(tokens)
        mean = statistics.fmean(rates)
        file, device = self._model.backend.file, self._model.device
        return Result(
            model=self._name,
            size_nbytes=weight_nbytes(file),
            parameters=parameters(file),
            quantisation=quantisation(file),
            device=device.id,
            device_name=device.name,
            test=label,
            repetitions=repetitions,
            tokens_per_second=mean,
            stddev=statistics.stdev(rates) if repetitions > 1 else 0.0,
            dispatches_per_token=dispatches / made,
            host_us_per_token=host * 1e6,
            bandwidth_fraction=self._share(mean) if label.startswith("tg") else None,
        )

    def _timed(self, run: Callable[[int], None], tokens: int) -> float:
        self._model.cache.remove(SEQUENCE)
        begin = time.perf_counter()
        run(tokens)
        return time.perf_counter() - begin

    def _dispatches(self) -> int:
        executor = self._model.backend.executor
        return executor.device.counters.dispatches if isinstance(executor, WgpuExecutor) else 0

    def _share(self, tokens_per_second: float) -> float | None:
        if self._roof is None:
            return None
        return read_per_token(self._model.backend.file) * tokens_per_second / self._roof


def read_per_token(file: GGUFFile) -> int:
    """Return the bytes of weights read per token; an untied embedding counts as one row."""
    untied = "output.weight" in file.tensors
    skipped = file.tensors["token_embd.weight"].nbytes if untied else 0
    return weight_nbytes(file) - skipped


def _print(results: Sequence[Result], *, compares: bool) -> None:
    columns = (
        "model", "size", "params", "device", "test", "t/s", "dispatches/t", "host µs/t",
        "% of peak bandwidth",
    )  # fmt: skip
    rows = [_row(result) for result in results]
    if compares:
        columns = (*columns, "predicted t/s", "% of predicted")
        rows = [(*row, *_compared(result)) for row, result in zip(rows, results, strict=True)]
    print_table(columns, rows, right=(*columns[1:3], *columns[5:]))


def _compared(result: Result) -> tuple[str, str]:
    wanted = result.predicted_tokens_per_second
    if wanted is None:
        return ("–", "–")
    return (f"{wanted:g}", f"{100 * result.tokens_per_second / wanted:.0f}")


def _row(result: Result) -> tuple[str, ...]:
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
