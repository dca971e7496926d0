"""Runs forward passes: a graph is recorded once for each shape of batch, then replayed.

The runner knows token ids, sequences and the cache; it knows nothing of text. A step whose shape
has been seen fills a few arrays, writes them with one call and replays; no op code runs.

A token may be a reference to one of `Runner.token_slots`, which a pass before fills, so passes
can be submitted before the tokens they go on from are known on the host, several at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

from wgpu_backend.device.interrupts import uninterrupted
from wgpu_backend.dtypes import I32
from wgpu_backend.errors import ContextError, ContextFull
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Array, Recorded, Result, write_inputs
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.nn.batch import Batch, BatchArrays, BatchShape, Work, all_input_specs
from wgpu_backend.nn.kvcache.cache import Cache, GraphInputs
from wgpu_backend.nn.model import Model
from wgpu_backend.nn.model_inputs import find_unknown
from wgpu_backend.ops.sampling.sampling import resolve_tokens

CHUNK = 256  # tokens of one pass: longer prompts are cut, which bounds what a pass takes
SHORTEST = 256  # fewer positions than this are not worth a graph of their own
TOKEN_SLOTS = 256  # chosen tokens that stay on the device: 8 of each of 32 sequences

Build = Callable[[Batch, Tensor], Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Head:
    """What is made of the hidden states.

    Parameters
    ----------
    name : str
        For people.
    build : callable
        From the batch and (outputs, cols) states to the tensors that are read back. Recorded graphs
        are kept by it: one that is made anew for each call should be equal, and hash alike, where
        it builds the same.
    times : int
        Passes that a `BatchedSubmit` may submit together.
    """

    name: str
    build: Build
    times: int = 1


class Pass(NamedTuple):
    """A recorded graph and what each run of it is given.

    Parameters
    ----------
    context : Context
        Keeps what the graph is made of.
    recorded : Recorded
    steps : list of StepInputs
        Inputs of each of the runs that are submitted together.
    """

    context: Context
    recorded: Recorded
    steps: list[StepInputs]

    def close(self) -> None:
        """Release what the graph holds."""
        self.recorded.close()
        self.context.close()


class StepInputs(NamedTuple):
    """Inputs of one run.

    Parameters
    ----------
    batch : BatchArrays
    extra : mapping of str to ndarray
        Those that the head declared.
    """

    batch: BatchArrays
    extra: Mapping[str, Array]

    @classmethod
    def of(
        cls, shape: BatchShape, arrays: Mapping[str, Array], cache: Cache, model: Model
    ) -> StepInputs:
        """Tell a batch's arrays from those of its head."""
        batch = BatchArrays(shape, arrays, cache, model.inputs(), causal=model.causal)
        return cls(batch, {n: a for n, a in arrays.items() if n not in batch.names})


@dataclass(slots=True)
class Clock:
    """Where the host's time goes, summed over steps; seconds.

    Parameters
    ----------
    steps, recorded : int
        Passes, and graphs recorded for them.
    host : float
        Until passes were submitted.
    waiting : float
        For results, while which the next pass is prepared.
    """

    steps: int = 0
    recorded: int = 0
    host: float = 0.0
    waiting: float = 0.0


def bucket(count: int, least: int = 1) -> int:
    """Smallest power of two that holds `count`, at least `least`."""
    return max(least, 1 << max(count - 1, 0).bit_length())


class Runner:
    """Runs a model over a cache.

    Parameters
    ----------
    model : Model
    cache : Cache
    chunk : int or None
        Tokens of one pass at most; None for what suits the model.

    Attributes
    ----------
    token_slots : (slots,), i32
        State for tokens that heads choose; see `wgpu_backend.ops.sampling.sampling.reference`.
    """

    def __init__(self, model: Model, cache: Cache, chunk: int | None = None) -> None:
        self.model = model
        self.cache = cache
        # What sees ahead cannot be cut.
        self.chunk = chunk or (CHUNK if model.causal else cache.positions)
        self.clock = Clock()
        self._executor = model.backend.executor
        spec = Spec.dense((TOKEN_SLOTS,), I32)
        self.token_slots = leaf(spec, self._executor.state(spec, "chosen tokens"))
        self._passes: dict[tuple[Hashable, BatchShape, Build, int], Pass] = {}

    def prefill(
        self, sequence: int, tokens: Sequence[int], head: Head, extra: Mapping[str, Array]
    ) -> list[Array]:
        """Run a prompt in chunks; results are for its last token.

        Raises
        ------
        CacheFull
            The cache has no room for it.
        """
        return self.prompt(sequence, tokens, head, extra).wait()

    def begins(self, prompt: Sequence[int]) -> Sequence[int]:
        """Tokens that a sequence begins with: those of the prompt, where no encoder reads it."""
        return prompt

    def read(self, sequence: int, prompt: Sequence[int]) -> None:
        """Let an encoder read a prompt for a sequence that has nothing yet; there is none here."""

    def prompt(
        self, sequence: int, tokens: Sequence[int], head: Head, extra: Mapping[str, Array]
    ) -> TimedResult:
        """`prefill` that does not wait for the last chunk."""
        for start in range(0, len(tokens) - self.chunk, self.chunk):
            part = tokens[start : start + self.chunk]
            self.run([Work(sequence, part, (0,))], NOTHING, {})
        rest = tokens[(len(tokens) - 1) // self.chunk * self.chunk :]
        return self.run([Work(sequence, rest, (len(rest) - 1,))], head, extra)

    @uninterrupted
    def run(
        self,
        works: Sequence[Work],
        head: Head,
        extra: Mapping[str, Array],
        shape: BatchShape | None = None,
    ) -> TimedResult:
        """One pass over tokens of several sequences; does not wait.

        Parameters
        ----------
        works : sequence of Work
        head : Head
        extra : mapping
            Values of the inputs that `head` declared.
        shape : BatchShape or None
            Of the graph, which has room for all of it; None for what `shape_of` says.

        Returns
        -------
        TimedResult
            ``wait()`` gives the head's tensors, padded rows included.

        Raises
        ------
        CacheFull
            There is no room for all of it; every sequence is as it was, as after any failure.
        """
        batch = self.batched_submit(head, 1, shape)
        batch.add(works, extra)
        return batch.submit()[0]

    def batched_submit(
        self, head: Head, count: int, shape: BatchShape | None = None
    ) -> BatchedSubmit:
        """Begin passes that are submitted together, at most `head.times` of them."""
        return BatchedSubmit(self, head, count, shape)

    def restore(self, lengths: Sequence[tuple[int, int]]) -> None:
        """Cut sequences back to the lengths that go with them."""
        for sequence, length in lengths:
            self.cache.remove(sequence, length)

    def recorded(self, shape: BatchShape, head: Head) -> Recorded:
        """Graph of a shape, recorded the first time."""
        return self.made_for(shape, head).recorded

    def shape_of(self, works: Sequence[Work], count: int = 1) -> BatchShape:
        """Shape of so many passes of the size of these works.

        It is that of the last pass, whose cache is longest.

        Raises
        ------
        ContextFull
            There are more tokens than one pass takes.
        """
        tokens = outputs = longest = 0
        for work in works:
            size = len(work.tokens)
            tokens += size
            outputs += len(work.outputs)
            longest = max(longest, self.cache.length(work.sequence) + size * count)
        if tokens > self.chunk:
            raise ContextFull(f"run: {tokens} tokens in one pass, at most {self.chunk}")
        rows, results = bucket(tokens), bucket(outputs)
        if results == rows and not all(work.whole for work in works):
            results *= 2  # as many as rows would say that all are wanted
        longest = self.cache.reach(bucket(longest, SHORTEST), rows)
        given = tuple(sorted({name for work in works for name in work.inputs}))
        spans = any(work.spans for work in works)
        return BatchShape(rows, results, bucket(len(works)), longest, given, spans)

    def made_for(self, shape: BatchShape, head: Head) -> Pass:
        """Graph of a shape with what each run is given, recorded the first time."""
        key = (self.model.variant, shape, head.build, head.times)
        found = self._passes.get(key)
        if found is None:
            self.clock.recorded += 1
            found = self._passes[key] = self._record(shape, head)
        return found

    def _record(self, shape: BatchShape, head: Head) -> Pass:
        context = Context(self._executor)
        self._require_known(shape)
        batch = self._batch(context, shape)
        times = head.times if shape.tokens == shape.sequences else 1  # steps of a generation
        recorded = context.record(*head.build(batch, self.model.hidden(batch)), times=times)
        steps = [StepInputs.of(shape, arrays, self.cache, self.model) for arrays in recorded.turns]
        return Pass(context, recorded, steps)

    def _require_known(self, shape: BatchShape) -> None:
        """Refuse inputs that the model did not declare."""
        known = self.model.inputs()
        if wrong := find_unknown(shape.inputs, known):
            raise ContextError(
                f"run: input {wrong[0]!r} is unknown to {type(self.model).__name__}, "
                f"which takes {', '.join(known) or 'tokens alone'}"
            )

    def _batch(self, context: Context, shape: BatchShape) -> Batch:
        declared = all_input_specs(shape, self.cache, self.model.inputs())
        inputs = GraphInputs(
            context,
            declared,
            tokens=shape.tokens,
            longest=shape.longest,
            sees_ahead=shape.spans or not self.model.causal,
        )
        tokens = cast("Tensor", resolve_tokens(inputs["tokens"], self.token_slots))
        return Batch(context, shape, tokens, inputs, self.cache)

    @uninterrupted
    def forget_variants(self) -> None:
        """Release graphs that were recorded for other variants of the model than the present."""
        for key in [key for key in self._passes if key[0] != self.model.variant]:
            self._passes.pop(key).close()

    @uninterrupted
    def close(self) -> None:
        """Release what recorded graphs hold; again is harmless."""
        for made in self._passes.values():
            made.close()
        self._passes.clear()
        self._executor.free(self.token_slots.storage)


class BatchedSubmit:
    """Passes of the same sequences that are submitted together.

    Parameters
    ----------
    runner : Runner
    head : Head
    count : int
        Passes there will be at most.
    shape : BatchShape or None
        Of their graph; None for what suits the first.
    """

    def __init__(self, runner: Runner, head: Head, count: int, shape: BatchShape | None) -> None:
        self._runner = runner
        self._shape = shape
        self._head = head
        self._count = count
        self._pass: Pass | None = None
        self._before: list[tuple[int, int]] = []
        self._filled = 0

    @uninterrupted
    def add(self, works: Sequence[Work], extra: Mapping[str, Array]) -> None:
        """Take slots in the cache and write down the inputs of one more pass.

        Parameters
        ----------
        works : sequence of Work
            With as many tokens as in the passes before.
        extra : mapping
            Values of the inputs that the head declared; they may be written over afterwards.

        Raises
        ------
        CacheFull
            There is no room for all of it; every sequence is as it was, as after any failure.
        """
        begin = time.perf_counter()
        runner, cache = self._runner, self._runner.cache
        if self._pass is None:
            shape = self._shape or runner.shape_of(works, self._count)
            self._pass = runner.made_for(shape, self._head)
        before = [(w.sequence, cache.length(w.sequence)) for w in works]
        step = self._pass.steps[self._filled]
        try:
            step.batch.fill(works)
            write_inputs(step.extra, extra)
        except BaseException:
            runner.restore(before)
            raise
        self._before = self._before or before
        self._filled += 1
        runner.clock.host += time.perf_counter() - begin

    @uninterrupted
    def submit(self) -> list[TimedResult]:
        """Submit the passes without waiting; after a failure sequences are as before the first."""
        begin = time.perf_counter()
        if self._pass is None:
            return []
        clock = self._runner.clock
        try:
            results = self._pass.recorded.replays(self._filled)
        except BaseException:
            self._runner.restore(self._before)
            raise
        clock.steps += self._filled
        clock.host += time.perf_counter() - begin
        return [TimedResult(result, clock) for result in results]


@dataclass(frozen=True, slots=True)
class TimedResult:
    """Results of a pass; waiting for them is put on the clock."""

    result: Result
    clock: Clock

    def wait(self) -> list[Array]:
        """Tensors of the head."""
        begin = time.perf_counter()
        arrays = self.result.wait()
        self.clock.waiting += time.perf_counter() - begin
        return arrays


# A graph has outputs; nobody waits for those of `NOTHING`, which share the graph of `HIDDEN`.
NOTHING = HIDDEN = Head("hidden", lambda batch, hidden: [hidden])
