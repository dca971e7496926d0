"""Forward passes: a graph is recorded once for each batch shape, then replayed.

The runner handles token ids, sequences and the cache, not text. A step of a known shape fills a few
arrays, writes them with one call and replays the graph; no op code runs.

A token may be a reference to one of `Runner.token_slots`, which an earlier pass fills. So several
passes can be submitted before the host knows the tokens they continue from.

The encoder of an encoder-decoder model reads a prompt once, and the answer attends to it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from wgpu_backend.device.interrupts import uninterrupted
from wgpu_backend.dtypes import F32, I32
from wgpu_backend.errors import ContextError, ContextFull
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Array, Recorded, Result, write_inputs
from wgpu_backend.ml.placed_executor import PlacedExecutor, PlacedRecorded
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.nn.batch import Batch, BatchArrays, BatchShape, Work, all_input_specs
from wgpu_backend.nn.kvcache.cache import Cache, GraphInputs
from wgpu_backend.nn.kvcache.encoded import EncodedCache
from wgpu_backend.nn.kvcache.layered import LayeredCache
from wgpu_backend.nn.kvcache.pictures import PicturesCache
from wgpu_backend.nn.model import Model, PromptEncoder
from wgpu_backend.nn.model_inputs import STATES, AttendedInput, find_unknown
from wgpu_backend.ops.sampling.sampling import reference, resolve_tokens

# Tokens of one pass: longer prompts are split, which bounds the memory and time of a pass.
CHUNK = 256
# On a GPU, while no other sequence waits for its next token: weights are unpacked half as often.
LONG_CHUNK = 512
# A prompt on several processors goes in so many passes, but none of fewer tokens than the second:
# one computes the second pass while another computes the first. Products of fewer rows would lose
# more than that wins.
PASSES, SHORT_CHUNK = 4, 128
# Graphs are recorded for at least this many positions; fewer would not be faster.
SHORTEST = 256
# Chosen tokens that stay on the device: 8 for each of 32 sequences.
TOKEN_SLOTS = 256
# References to slots are ids from here down.
NEWEST = reference(0)
# Rows of a picture whose keys and values are written together.
ROWS_TOGETHER = 256

Build = Callable[[Batch, Tensor], Sequence[Tensor]]


@dataclass(frozen=True, slots=True)
class Head:
    """A head of the graph: the computation from hidden states to outputs.

    Parameters
    ----------
    name : str
        Name for profiles and messages.
    build : callable
        Maps the batch and (outputs, cols) states to the tensors that are read back. It is part of
        the key of recorded graphs: callables that build the same graph should compare equal.
    times : int
        Passes that a `BatchedSubmit` may submit together.
    """

    name: str
    build: Build
    times: int = 1


class Pass(NamedTuple):
    """A recorded graph and the inputs of its runs.

    Parameters
    ----------
    context : Context
        Owns the graph's tensors.
    steps : list of StepInputs
        Inputs of each run of one submit.
    """

    context: Context
    recorded: Recorded
    steps: list[StepInputs]

    def close(self) -> None:
        """Release the graph."""
        self.recorded.close()
        self.context.close()


class StepInputs(NamedTuple):
    """The inputs of one run.

    Parameters
    ----------
    extra : mapping of str to ndarray
        Inputs that the head declared.
    """

    batch: BatchArrays
    extra: Mapping[str, Array]

    @classmethod
    def of(
        cls, shape: BatchShape, arrays: Mapping[str, Array], cache: Cache, model: Model
    ) -> StepInputs:
        """Separate the arrays of a batch from those of its head."""
        batch = BatchArrays(shape, arrays, cache, model.inputs(), causal=model.causal)
        return cls(batch, {n: a for n, a in arrays.items() if n not in batch.names})


@dataclass(slots=True)
class Clock:
    """The host's time in seconds, summed over steps.

    Parameters
    ----------
    steps, recorded : int
        Number of passes, and of graphs recorded for them.
    host : float
        Time to prepare and submit passes.
    waiting : float
        Time spent waiting for results.
    """

    steps: int = 0
    recorded: int = 0
    host: float = 0.0
    waiting: float = 0.0


def bucket(count: int, least: int = 1) -> int:
    """Return the smallest power of two that is at least `count`, and at least `least`."""
    # Powers of two: a few graphs cover all sizes, and less than half of a pass is padding.
    return max(least, 1 << max(count - 1, 0).bit_length())


class Runner:
    """A runner of a model's passes over a KV cache.

    Parameters
    ----------
    chunk : int or None
        Most tokens of one pass; None for all positions where later tokens are seen, else for
        `LONG_CHUNK` on GPUs and `CHUNK` elsewhere.

    Attributes
    ----------
    token_slots : (slots,), i32
        State for the tokens that heads choose; see `wgpu_backend.ops.sampling.sampling.reference`.
    """

    def __init__(self, model: Model, cache: Cache, chunk: int | None = None) -> None:
        self.model = model
        self.cache = cache
        # Without a causal mask tokens attend to later ones, so a prompt cannot be split.
        software = model.backend.executor.capabilities.software
        usual = CHUNK if software else LONG_CHUNK
        self.chunk = chunk or (usual if model.causal else cache.positions)
        self.clock = Clock()
        self._executor = model.backend.executor
        executor = self._executor
        self.processors = executor.processors if isinstance(executor, PlacedExecutor) else 1
        self._parallel: bool = self.processors > 1 and model.causal
        spec = Spec.dense((TOKEN_SLOTS,), I32)
        self.token_slots = leaf(spec, self._executor.state(spec, "chosen tokens"))
        self._passes: dict[tuple[Hashable, BatchShape, Build, int], Pass] = {}
        self.pictures = _PictureWriter.make(model, cache)

    def prefill(
        self, sequence: int, tokens: Sequence[int], head: Head, extra: Mapping[str, Array]
    ) -> list[Array]:
        """Run a prompt in chunks and return the results for its last token.

        Raises
        ------
        CacheFull
            The cache has no room for the prompt.
        """
        return self.prompt(sequence, tokens, head, extra).wait()

    def begins(self, prompt: Sequence[int]) -> Sequence[int]:
        """Return the tokens that a sequence begins with: the prompt, if no encoder reads it."""
        return prompt

    def read(self, sequence: int, prompt: Sequence[int]) -> None:
        """Run the encoder on a prompt for an empty sequence; does nothing without an encoder."""

    def prompt(
        self, sequence: int, tokens: Sequence[int], head: Head, extra: Mapping[str, Array]
    ) -> TimedResult:
        """Submit a prompt in chunks, without waiting for the last one; see `prefill`."""
        step = self.portion(len(tokens))
        # At least one token is left for the last pass, since its logits choose the next token.
        for start in range(0, len(tokens) - step, step):
            part = tokens[start : start + step]
            self.run([Work(sequence, part, (0,))], NOTHING, {})
        rest = tokens[(len(tokens) - 1) // step * step :]
        return self.run([Work(sequence, rest, (len(rest) - 1,))], head, extra)

    def portion(self, tokens: int) -> int:
        """Return how many tokens one pass takes of a prompt that is alone."""
        if not self._parallel:
            return self.chunk
        return min(self.chunk, max(SHORT_CHUNK, bucket(-(-tokens // PASSES))))

    @uninterrupted
    def run(
        self,
        works: Sequence[Work],
        head: Head,
        extra: Mapping[str, Array],
        shape: BatchShape | None = None,
    ) -> TimedResult:
        """Submit one pass over tokens of several sequences, without waiting.

        Parameters
        ----------
        extra : mapping
            Values of the head's inputs.
        shape : BatchShape or None
            Shape of a graph that has room for all of it; None for `shape_of`.

        Returns
        -------
        TimedResult
            ``wait()`` returns the head's tensors, including padding rows.

        Raises
        ------
        CacheFull
            The cache has no room; all sequences are unchanged, as after any failure.
        """
        batch = self.batched_submit(head, 1, shape)
        batch.add(works, extra)
        return batch.submit()[0]

    def batched_submit(
        self, head: Head, count: int, shape: BatchShape | None = None
    ) -> BatchedSubmit:
        """Begin a submit of several passes, at most `head.times`."""
        return BatchedSubmit(self, head, count, shape)

    def restore(self, lengths: Sequence[tuple[int, int]]) -> None:
        """Cut sequences back to the given lengths."""
        for sequence, length in lengths:
            self.cache.remove(sequence, length)

    def recorded(self, shape: BatchShape, head: Head) -> Recorded:
        """Return the graph of a shape, recorded on the first use."""
        return self.made_for(shape, head).recorded

    def shape_of(self, works: Sequence[Work], count: int = 1) -> BatchShape:
        """Choose the graph's shape for `count` passes over `works`.

        The shape fits the last pass, which reads the longest cache.

        Raises
        ------
        ContextFull
            There are more tokens than fit in one pass.
        """
        tokens = outputs = longest = 0
        for work in works:
            size = len(work.tokens)
            tokens += size
            outputs += len(work.outputs)
            longest = max(longest, self.cache.length(work.sequence) + size * count)
        # Rows that see each other are one pass, however many they are.
        if tokens > self.chunk and not any(work.spans for work in works):
            raise ContextFull(f"run: {tokens} tokens in one pass, at most {self.chunk}")
        rows, results = bucket(tokens), bucket(outputs)
        if results == rows and not all(work.whole for work in works):
            # Equal counts would mean that all rows are wanted.
            results *= 2
        longest = self.cache.reach(bucket(longest, SHORTEST), rows)
        given = {name for work in works for name in work.inputs}
        if self.pictures is not None and self.pictures.has_any(works):
            given.add(STATES)
        spans = any(work.spans for work in works)
        names = tuple(sorted(given))
        return BatchShape(rows, results, bucket(len(works)), longest, names, spans)

    def made_for(self, shape: BatchShape, head: Head) -> Pass:
        """Return the graph of a shape with the inputs of its runs, recorded on the first use."""
        # `times` counts, because a graph has input arrays for each of its runs.
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
        # Only decode steps, with one token for each sequence, are submitted several at a time.
        times = head.times if shape.tokens == shape.sequences else 1
        recorded = context.record(*head.build(batch, self.model.hidden(batch)), times=times)
        steps = [StepInputs.of(shape, arrays, self.cache, self.model) for arrays in recorded.turns]
        return Pass(context, recorded, steps)

    def _require_known(self, shape: BatchShape) -> None:
        """Raise if an input is not declared by the model."""
        known = self.model.inputs()
        if wrong := find_unknown(shape.inputs, known):
            raise ContextError(
                f"run: input {wrong[0]!r} is unknown to {type(self.model).__name__}, "
                f"which takes {', '.join(known) or 'only tokens'}"
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
        """Release graphs that were recorded for variants other than the current one."""
        for key in [key for key in self._passes if key[0] != self.model.variant]:
            self._passes.pop(key).close()
        if self.pictures is not None:
            self.pictures.close()

    @uninterrupted
    def close(self) -> None:
        """Release all recorded graphs; safe to call again."""
        for made in self._passes.values():
            made.close()
        self._passes.clear()
        if self.pictures is not None:
            self.pictures.close()
        self._executor.free(self.token_slots.storage)


class BatchedSubmit:
    """A submit of several passes of the same sequences.

    Parameters
    ----------
    count : int
        Most passes of the submit.
    shape : BatchShape or None
        Shape of the graph; None to fit the first pass.
    """

    def __init__(self, runner: Runner, head: Head, count: int, shape: BatchShape | None) -> None:
        self._runner = runner
        self._shape = shape
        self._head = head
        self._count = count
        self._pass: Pass | None = None
        self._before: list[tuple[int, int]] = []
        self._filled = 0
        self._refers = False

    @uninterrupted
    def add(self, works: Sequence[Work], extra: Mapping[str, Array]) -> None:
        """Reserve cache slots for one more pass and fill its inputs.

        Parameters
        ----------
        works : sequence of Work
            Works with as many tokens as in the former passes.
        extra : mapping
            Values of the head's inputs; copied.

        Raises
        ------
        CacheFull
            The cache has no room; all sequences are unchanged, as after any failure.
        """
        begin = time.perf_counter()
        runner, cache = self._runner, self._runner.cache
        if self._pass is None:
            shape = self._shape or runner.shape_of(works, self._count)
            self._pass = runner.made_for(shape, self._head)
        before = [(w.sequence, cache.length(w.sequence)) for w in works]
        step = self._pass.steps[self._filled]
        try:
            if runner.pictures is None:
                step.batch.fill(works)
            else:
                runner.pictures.fill(step.batch, works)
            write_inputs(step.extra, extra)
        except BaseException:
            runner.restore(before)
            raise
        # The lengths before the first pass: if the submit fails, none of its passes has run.
        self._before = self._before or before
        self._filled += 1
        self._refers = self._refers or any(t <= NEWEST for w in works for t in w.tokens)
        runner.clock.host += time.perf_counter() - begin

    @uninterrupted
    def submit(self) -> list[TimedResult]:
        """Submit the passes without waiting; a failure restores the sequences."""
        begin = time.perf_counter()
        if self._pass is None:
            return []
        clock, recorded = self._runner.clock, self._pass.recorded
        if isinstance(recorded, PlacedRecorded):
            # Tokens that the host knows need not wait for those that other passes choose.
            recorded.unused = () if self._refers else (self._runner.token_slots.storage,)
        try:
            results = recorded.replays(self._filled)
        except BaseException:
            self._runner.restore(self._before)
            raise
        clock.steps += self._filled
        clock.host += time.perf_counter() - begin
        return [TimedResult(result, clock) for result in results]


class _PictureWriter:
    """A writer of the keys and values of pictures, for models that attend to them.

    Parameters
    ----------
    cols : int
        Columns of a picture's rows.
    """

    def __init__(self, model: Model, cache: Cache, pictures: PicturesCache, cols: int) -> None:
        self._model = model
        self._cache = cache
        self._pictures = pictures
        self._cols = cols
        self._made: tuple[Context, Recorded] | None = None

    @classmethod
    def make(cls, model: Model, cache: Cache) -> _PictureWriter | None:
        """Make a writer; None for other models."""
        known = model.inputs().get(STATES)
        parts = cache.parts if isinstance(cache, LayeredCache) else ()
        found = next((part for part in parts if isinstance(part, PicturesCache)), None)
        if found is None or not isinstance(known, AttendedInput):
            return None
        return cls(model, cache, found, known.cols)

    def has_any(self, works: Sequence[Work]) -> bool:
        """Return whether tokens of some sequence attend to a picture."""
        return any(self._pictures.has(work.sequence) for work in works)

    def fill(self, batch: BatchArrays, works: Sequence[Work]) -> None:
        """Fill a pass, with the pictures that the first tokens of its sequences stand for."""
        given = [(work.sequence, work.inputs[STATES]) for work in works if STATES in work.inputs]
        try:
            for sequence, rows in given:
                self._pictures.announce(sequence, self._cache.length(sequence), len(rows))
            batch.fill(works)
        finally:
            self._pictures.forget_announced()
        for sequence, rows in given:
            self._write(rows, self._pictures.newest_slots(sequence))

    def _write(self, rows: Array, slots: Array) -> None:
        """Write the keys and values of rows, (rows, cols), into these slots."""
        self._made = self._made or self._record()
        for at in range(0, len(rows), ROWS_TOGETHER):
            part = rows[at : at + ROWS_TOGETHER]
            padded = np.zeros((ROWS_TOGETHER, self._cols), np.float32)
            # Padding is written nowhere.
            places = np.full(ROWS_TOGETHER, -1, np.int32)
            padded[: len(part)], places[: len(part)] = part, slots[at : at + ROWS_TOGETHER]
            self._made[1].run({STATES: padded, SLOTS: places})

    def _record(self) -> tuple[Context, Recorded]:
        context = Context(self._model.backend.executor)
        try:
            rows = context.input(STATES, (ROWS_TOGETHER, self._cols), F32)
            slots = context.input(SLOTS, (ROWS_TOGETHER,), I32)
            for layer, (key, value) in self._model.project_rows(rows).items():
                context.forward(*self._pictures.write(layer, key, value, slots))
            # The graph needs an output.
            return context, context.record(rows.slice(0, 0, 1).contiguous())
        except BaseException:
            context.close()
            raise

    def close(self) -> None:
        """Release the recorded graph; it is made again on the next use."""
        if self._made is not None:
            context, recorded = self._made
            self._made = None
            recorded.close()
            context.close()


@dataclass(frozen=True, slots=True)
class TimedResult:
    """The results of a pass; the time spent waiting for them is added to the clock."""

    result: Result
    clock: Clock

    def wait(self) -> list[Array]:
        """Wait for the head's tensors and return them."""
        begin = time.perf_counter()
        arrays = self.result.wait()
        self.clock.waiting += time.perf_counter() - begin
        return arrays


# A graph needs outputs. Those of `NOTHING` are never read, so it can share the graph of `HIDDEN`.
NOTHING = HIDDEN = Head("hidden", lambda batch, hidden: [hidden])


SLOTS = "encoded.slots"


class EncodingRunner(Runner):
    """A runner of the decoder whose `read` runs the encoder.

    Parameters
    ----------
    prompt_encoder : PromptEncoder
        The model's encoder, and the projection of its states for the decoder.
    cache : Cache
        The decoder's cache, with a part for encoded texts.
    chunk : int or None
        See `Runner`.
    """

    def __init__(
        self, model: Model, prompt_encoder: PromptEncoder, cache: Cache, chunk: int | None = None
    ) -> None:
        super().__init__(model, cache, chunk)
        self._prompt_encoder = prompt_encoder
        self._texts = texts = _find_encoded_texts(cache)
        executor, dtype = model.backend.executor, texts.tensors[0].dtype
        own = prompt_encoder.encoder.make_cache(executor, 1, texts.positions, dtype)
        self._encoder = Runner(prompt_encoder.encoder, own)

        def build(batch: Batch, hidden: Tensor) -> Sequence[Tensor]:
            slots = batch.context.input(SLOTS, (batch.shape.tokens,), I32)
            for layer, (key, value) in enumerate(prompt_encoder.project_states(hidden)):
                batch.context.forward(*texts.write(layer, key, value, slots))
            # The graph needs an output for the host to wait for.
            return [hidden.slice(0, 0, 1)]

        self._head = Head("encoded", build)

    def begins(self, prompt: Sequence[int]) -> Sequence[int]:
        """Return the token that answers begin with."""
        return [self._prompt_encoder.start]

    @uninterrupted
    def read(self, sequence: int, prompt: Sequence[int]) -> None:
        """Encode a prompt for a sequence's answer to attend to.

        Raises
        ------
        CacheFull
            The cache has no room for the prompt.
        """
        work = Work(0, prompt, range(len(prompt)))
        self.encode(sequence, work, bucket(len(prompt)))

    @uninterrupted
    def encode(self, sequence: int, work: Work, rows: int) -> TimedResult:
        """Submit a pass of the encoder, and cache its keys and values for the decoder's sequence.

        Parameters
        ----------
        sequence : int
            The decoder's sequence.
        work : Work
            All tokens of the encoder's sequence 0, each of them an output.
        rows : int
            Rows of the graph, padding included.

        Raises
        ------
        CacheFull
            The cache has no room for the tokens.
        """
        # -1 marks padding, whose keys and values are not written.
        slots = np.full(rows, -1, np.int32)
        slots[: len(work.tokens)] = self._texts.begin(sequence, len(work.tokens))
        # The encoder's own cache holds one text at a time; states of the former one must be gone.
        cache = self._encoder.cache
        cache.remove(0)
        longest = cache.reach(bucket(len(work.tokens), SHORTEST), rows)
        shape = BatchShape(rows, rows, 1, longest, tuple(sorted(work.inputs)))
        return self._encoder.run([work], self._head, {SLOTS: slots}, shape)

    @uninterrupted
    def forget_variants(self) -> None:
        """Release graphs for other variants of the model and of its encoder."""
        super().forget_variants()
        self._encoder.forget_variants()

    @uninterrupted
    def close(self) -> None:
        """Release the recorded graphs and the encoder's cache; safe to call again."""
        self._encoder.close()
        self._encoder.cache.close()
        super().close()


def make_runner(model: Model, cache: Cache) -> Runner:
    """Make the runner of a model, including its encoder if it has one."""
    encoder = model.prompt_encoder()
    return Runner(model, cache) if encoder is None else EncodingRunner(model, encoder, cache)


def _find_encoded_texts(cache: Cache) -> EncodedCache:
    parts = cache.parts if isinstance(cache, LayeredCache) else ()
    [found] = (part for part in parts if isinstance(part, EncodedCache))
    return found
