"""Benchmarks of a model: tests of prompts and of generation, and the device's bandwidth."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np

from wgpu_backend.cli.clocks import run_at_full_clock
from wgpu_backend.cli.console import note
from wgpu_backend.cli.model_facts import count_parameters, describe_quantisation, weight_nbytes
from wgpu_backend.device.binds import Dispatch
from wgpu_backend.device.buffers import Binding, Buffer
from wgpu_backend.device.device import Device
from wgpu_backend.device.memory import Purpose
from wgpu_backend.device.program import Program
from wgpu_backend.device.wgsl import module
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.runner import Head
from wgpu_backend.files.gguf.reader import GGUFFile
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.nn.batch import Batch
from wgpu_backend.ops.sampling.host import SamplingOptions

SEQUENCE = 0
# Tokens over which host time is measured: enough for a mean, few since steps wait for each other.
HOST_TOKENS = 16
# Larger than any cache: the last-level caches of large GPUs reach 96 MiB.
READ_NBYTES = 512 << 20
SOFTWARE_READ_NBYTES = 128 << 20
VECTOR_NBYTES = 16
VECTORS_A_THREAD = 32
WORKGROUP = 256
READ_RUNS = 8


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


def run_benchmarks(model: LanguageModel, name: str, plan: Plan) -> Iterator[Result]:
    """Run the tests of one model and yield their results."""
    executor = model.backend.executor
    peak = None
    if isinstance(executor, WgpuExecutor):
        peak = measure_read_bandwidth(executor.device)
        note(f"{model.device.id} reads {peak / 1e9:.1f} GB/s at best")
    bench = Bench(model, name, peak)
    for tokens in filter(None, plan.prompts):
        yield bench.test(f"pp{tokens}", tokens, plan.repetitions, bench.read)
    for tokens in filter(None, plan.generates):
        yield bench.test(f"tg{tokens}", tokens, plan.repetitions, bench.write)


class Bench:
    """A benchmark of one model; each run begins with an empty cache.

    Parameters
    ----------
    peak : float or None
        Read bandwidth of the device in bytes per second.
    """

    def __init__(self, model: LanguageModel, name: str, peak: float | None) -> None:
        self._model = model
        self._name = name
        self._peak = peak
        # The same tokens in every run, so that runs can be compared.
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
        first = int(self._random.integers(0, model.vocabulary))
        greedy = SamplingOptions(temperature=0)
        request = Request([first], greedy, tokens, ignore_eos=True)
        for _ in model.events(request, depth=depth):
            pass

    def test(self, label: str, tokens: int, repetitions: int, run: Callable[[int], None]) -> Result:
        """Warm up, then time a number of runs."""
        capabilities = self._model.backend.executor.capabilities
        # The first run also compiles the shaders.
        run_at_full_clock(lambda: self._time(run, tokens), capabilities)
        # Counters run on for the life of the device, so differences count.
        dispatches, host = self._dispatches(), self._model.runner.clock.host
        rates = [tokens / self._time(run, tokens) for _ in range(repetitions)]
        total = tokens * repetitions
        dispatches = self._dispatches() - dispatches
        host = (self._model.runner.clock.host - host) / total
        if run == self.write and self._model.depth > 1:
            host = self.host_seconds(tokens)
        mean = statistics.fmean(rates)
        file, device = self._model.backend.file, self._model.device
        return Result(
            model=self._name,
            size_nbytes=weight_nbytes(file),
            parameters=count_parameters(file),
            quantisation=describe_quantisation(file),
            device=device.id,
            device_name=device.name,
            test=label,
            repetitions=repetitions,
            tokens_per_second=mean,
            stddev=statistics.stdev(rates) if repetitions > 1 else 0.0,
            dispatches_per_token=dispatches / total,
            host_us_per_token=host * 1e6,
            # Prompts are bound by arithmetic, so only generation is compared with the bandwidth.
            bandwidth_fraction=self._share(mean) if label.startswith("tg") else None,
        )

    def _time(self, run: Callable[[int], None], tokens: int) -> float:
        self._model.cache.remove(SEQUENCE)
        begin = time.perf_counter()
        run(tokens)
        return time.perf_counter() - begin

    def _dispatches(self) -> int:
        executor = self._model.backend.executor
        return executor.device.counters.dispatches if isinstance(executor, WgpuExecutor) else 0

    def _share(self, tokens_per_second: float) -> float | None:
        if self._peak is None:
            return None
        return read_nbytes_per_token(self._model.backend.file) * tokens_per_second / self._peak


def read_nbytes_per_token(file: GGUFFile) -> int:
    """Return the bytes of weights read per token; an untied embedding counts as one row."""
    untied = "output.weight" in file.tensors
    # One row of an embedding is read per token; a tied one is read whole for the logits.
    skipped = file.tensors["token_embd.weight"].nbytes if untied else 0
    return weight_nbytes(file) - skipped


def measure_read_bandwidth(device: Device) -> float:
    """Measure the bandwidth as the fastest of several reads of a large buffer.

    Returns
    -------
    float
        Bytes per second.
    """
    nbytes = SOFTWARE_READ_NBYTES if device.capabilities.software else READ_NBYTES
    groups = _count_groups(min(nbytes, device.capabilities.max_binding_nbytes))
    threads = groups * WORKGROUP
    nbytes = threads * VECTORS_A_THREAD * VECTOR_NBYTES
    with ExitStack() as stack:

        def allocate(size: int, purpose: Purpose) -> Buffer:
            buffer = device.buffer(size, purpose=purpose, label="roof")
            stack.callback(buffer.release)
            return buffer

        program = _make_program(
            device,
            allocate(nbytes, "weights"),
            allocate(threads * VECTOR_NBYTES, "activations"),
            allocate(WORKGROUP, "params"),
            groups,
        )
        stack.callback(program.close)
        run_at_full_clock(program.timed, device.capabilities)
        # Other work only makes runs slower, so the fastest is nearest to the device's limit.
        return nbytes / min(program.timed()[0].seconds for _ in range(READ_RUNS))


def _count_groups(nbytes: int) -> int:
    return nbytes // (WORKGROUP * VECTORS_A_THREAD * VECTOR_NBYTES)


def _make_program(device: Device, x: Buffer, y: Buffer, params: Buffer, groups: int) -> Program:
    threads = groups * WORKGROUP
    kernel = module.load("roof_read", {"WG": WORKGROUP}, trusted=True)
    packed = kernel.pack({"vectors": threads * VECTORS_A_THREAD, "threads": threads})
    device.clear(x)
    device.write(params, packed)
    bindings = (Binding(x), Binding(y), Binding(params, 0, len(packed)))
    dispatch = Dispatch(device.pipeline(kernel), bindings, (groups, 1, 1), "roof")
    return device.program([dispatch], label="roof")
