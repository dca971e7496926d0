"""A context of a model: sequences, what is computed of them, and its results."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import F16, DType, named
from wgpu_backend.engine.encoding import runner_of
from wgpu_backend.engine.lora import checked as checked_lora
from wgpu_backend.engine.runner import HIDDEN, NOTHING, Head
from wgpu_backend.errors import BackendError, CacheFull, ContextError, ContextFull, OptionError
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.llama.batch import Batch
from wgpu_backend.llama.memory import Memory
from wgpu_backend.llama.model import Closing, Model
from wgpu_backend.llama.passes import Pass, Text, passes, texts
from wgpu_backend.llama.perf import Perf
from wgpu_backend.llama.results import Results
from wgpu_backend.llama.saved_context import SavedContext
from wgpu_backend.nn.batch import Work

Result = TypeVar("Result")
Rows = NDArray[np.float32]
MOST_SEQUENCES = 256  # LLAMA_MAX_SEQ


class Aborted(BackendError):
    """The abort callback asked for the end of a call; sequences are as they were before it."""


class Context(SavedContext, Closing):
    """Sequences of a model, and what is computed of them: llama.h's ``llama_context``.

    Calls from several threads, also to other contexts of the model, take turns. Results are those
    of the last call, so a thread that reads them keeps others from the context meanwhile. Close it,
    or use it as a context manager.

    Parameters
    ----------
    n_ctx : int
        Positions over all sequences; 0 for as many as the model was trained on.
    n_batch : int
        Tokens of one batch at most.
    n_seq_max : int
        Sequences there may be, 1 to 256.
    kv_dtype : str or DType
        Type of the cache: ``f16``, ``f32``, ``q8_0`` or ``q4_0``.
    embeddings : bool
        Give states in place of logits, see `set_embeddings`.
    pooling_type : int
        How the states of a sequence become one: ``LLAMA_POOLING_TYPE_…``; -1 for what the file
        says.
    abort_callback : callable or None
        See `set_abort_callback`.

    Attributes
    ----------
    memory : Memory
        Operations on sequences; the methods here call it in turns.
    perf : Perf
        What calls took.

    Raises
    ------
    ContextFull, OptionError
        A number is out of range.
    OutOfMemory
        The cache does not fit.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int = 512,
        n_batch: int = 2048,
        n_seq_max: int = 1,
        kv_dtype: str | DType = F16,
        embeddings: bool = False,
        pooling_type: int = -1,
        abort_callback: Callable[[], bool] | None = None,
    ) -> None:
        self.model = model
        self._n_ctx = _positions(model, n_ctx)
        self._n_batch = _within("n_batch", n_batch, 1, 1 << 24)
        _within("n_seq_max", n_seq_max, 1, MOST_SEQUENCES)
        self._abort = abort_callback
        self._loras: dict[Path, float] = {}
        self._closed = False
        dtype = named(kv_dtype) if isinstance(kv_dtype, str) else kv_dtype
        self.perf = Perf()
        self.results = Results(model, pooling_type)
        model.alone(lambda: self._open(n_seq_max, dtype))
        self.set_embeddings(embeddings)
        model.keep(self)

    def _open(self, n_seq_max: int, dtype: DType) -> None:
        base = self.model.language.model
        executor = self.model.language.backend.executor
        self._cache = base.make_cache(executor, n_seq_max, self._n_ctx, dtype)
        self._runner = runner_of(base, self._cache)
        self.memory = Memory(self._cache, n_seq_max)
        self._logits = Head("logits", lambda _, hidden: [base.logits(hidden)])
        rows = executor.capabilities.max_binding_nbytes // (4 * self.model.n_vocab())
        self._most_logits = max(1, rows // 2)

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def alone(self, act: Callable[[], Result]) -> Result:
        """Run something while no other thread computes with the model."""

        def checked() -> Result:
            if self._closed:
                raise BackendError(f"{self.model.path}: the context was closed; make another one")
            return act()

        return self.model.alone(checked)

    def n_ctx(self) -> int:
        """Positions over all sequences."""
        return self._n_ctx

    def n_batch(self) -> int:
        """Tokens of one batch at most."""
        return self._n_batch

    def n_seq_max(self) -> int:
        """Sequences there may be."""
        return self.memory.n_seq_max

    def pooling_type(self) -> int:
        """How states of a sequence become one: ``LLAMA_POOLING_TYPE_…``."""
        return self.results.pooling

    # Computing.

    def decode(self, batch: Batch) -> None:
        """Compute the tokens of a batch; results are read with `get_logits` and its kin.

        Raises
        ------
        CacheFull
            There is no room for it. Sequences are as they were, as after every error.
        ContextError
            A token is at another position than the next one of its sequence, or the batch is empty
            or too large.
        TokenizerError
            A token is not in the vocabulary.
        Aborted
            The abort callback said so.
        """
        self.alone(lambda: self._decode(batch))

    def _decode(self, batch: Batch) -> None:
        count = batch.n_tokens()
        if not 0 < count <= self._n_batch:
            raise ContextError(f"decode: {count} tokens, needs 1 to n_batch, {self._n_batch}")
        for entry in batch.entries:
            self.model.token_get_attr(entry.token)
        pooled = self._embeds
        found = texts(batch.entries, self.memory.length, whole=pooled)
        before = {text.sequence: self._cache.length(text.sequence) for text in found}
        self._require_room(found, before)
        begin = time.perf_counter()
        try:
            self._compute(found)
        except BaseException:
            for sequence, length in before.items():
                self._cache.remove(sequence, length)
            self.results.forget()
            raise
        self.perf.count(count, time.perf_counter() - begin)

    def _require_room(self, found: Sequence[Text], before: Mapping[int, int]) -> None:
        for text in found:
            total = before[text.sequence] + len(text.tokens)
            if total > self._n_ctx:
                raise CacheFull(
                    f"decode: sequence {text.sequence} would have {total} positions, the context "
                    f"holds {self._n_ctx}; take some out with seq_rm and seq_add"
                )

    def _compute(self, found: Sequence[Text]) -> None:
        base, embeds = self.model.language.model, self._embeds
        self.model.prepare(self._n_ctx, list(self._loras.items()))
        most = self._runner.chunk
        limit = most if embeds else min(most, self._most_logits)
        self.results.forget()
        for each in passes(found, most, limit, whole=not base.causal):
            if self._abort is not None and self._abort():
                raise Aborted("decode: the abort callback ended it")
            self._run(each)

    def _run(self, each: Pass) -> None:
        wanted = bool(each.places)
        head = (HIDDEN if self._embeds else self._logits) if wanted else NOTHING
        works = each.works
        if not wanted:
            works = [work if i else _with_output(work) for i, work in enumerate(works)]
        result = self._runner.run(works, head, {})
        if wanted:
            self.results.add(each.places, each.sequences, result.wait()[0])

    def encode(self, batch: Batch) -> None:
        """Let an encoder read a batch: for sequences that a decoder answers, or for their states.

        Raises
        ------
        ContextError, CacheFull
            As of `decode`.
        """
        if self.model.language.model.prompt_encoder() is None:
            return self.decode(batch)
        return self.alone(lambda: self._encode(batch))

    def _encode(self, batch: Batch) -> None:
        self.model.prepare(self._n_ctx, list(self._loras.items()))
        for text in texts(batch.entries, self.memory.length):
            self._runner.read(text.sequence, text.tokens)

    def synchronize(self) -> None:
        """Wait for what is under way: nothing is, since `decode` waits for its results."""

    def set_embeddings(self, embeddings: bool) -> None:
        """Give states of all tokens from now on, or logits of those that they are wanted for."""
        self._embeds = embeddings
        self.results.begin(embeddings)

    def set_abort_callback(self, callback: Callable[[], bool] | None) -> None:
        """Ask this before each pass; true ends the call with `Aborted`."""
        self._abort = callback

    # Results of the last call.

    def get_logits(self) -> Rows:
        """Logits of the tokens that results are wanted for: (outputs, vocabulary)."""
        return self.results.rows("logits", states=False)

    def get_logits_ith(self, i: int = -1) -> Rows:
        """Logits of the batch's token `i`, or counted from the last output: (vocabulary,)."""
        return self.results.row("logits", i, states=False)

    def get_embeddings(self) -> Rows:
        """States of all tokens: (tokens, hidden)."""
        return self.results.rows("embeddings", states=True)

    def get_embeddings_ith(self, i: int = -1) -> Rows:
        """State of the batch's token `i`: (hidden,)."""
        return self.results.row("embeddings", i, states=True)

    def get_embeddings_seq(self, sequence: int) -> Rows:
        """State of a sequence, pooled: (hidden,); of a reranker, its scores."""
        return self.alone(lambda: self.results.pooled(sequence))

    # Sequences.

    def seq_rm(self, sequence: int, p0: int = 0, p1: int = -1) -> bool:
        """Forget positions, see `Memory.seq_rm`."""
        return self.alone(lambda: self.memory.seq_rm(sequence, p0, p1))

    def seq_cp(self, source: int, target: int, p0: int = 0, p1: int = -1) -> None:
        """Share the first positions of a sequence with another one, see `Memory.seq_cp`."""
        self.alone(lambda: self.memory.seq_cp(source, target, p0, p1))

    def seq_keep(self, sequence: int) -> None:
        """Forget all sequences but one."""
        self.alone(lambda: self.memory.seq_keep(sequence))

    def seq_add(self, sequence: int, p0: int, p1: int, delta: int) -> None:
        """Close a gap, see `Memory.seq_add`."""
        self.alone(lambda: self.memory.seq_add(sequence, p0, p1, delta))

    def seq_pos_min(self, sequence: int) -> int:
        """First position of a sequence: 0, or -1 where it has none."""
        return self.alone(lambda: self.memory.seq_pos_min(sequence))

    def seq_pos_max(self, sequence: int) -> int:
        """Last position of a sequence; -1 where it has none."""
        return self.alone(lambda: self.memory.seq_pos_max(sequence))

    def can_shift(self) -> bool:
        """Whether positions can be taken out of the middle of sequences."""
        return self.alone(self.memory.can_shift)

    def clear(self) -> None:
        """Forget all sequences."""
        self.alone(self.memory.clear)

    # Adapters.

    def set_adapter_lora(self, path: str | Path, scale: float = 1.0) -> None:
        """Have an adapter change what this context computes from now on.

        What sequences have in memory stays as it was computed, as in llama.cpp.

        Raises
        ------
        GGUFError, ModelError
            The file is damaged, or does not fit the model.
        """
        with open_gguf(path) as file:
            checked_lora(file, self.model.language.backend.file)
        self._loras[Path(path)] = scale

    def rm_adapter_lora(self, path: str | Path) -> bool:
        """Leave an adapter out from now on; whether it was there."""
        return self._loras.pop(Path(path), None) is not None

    def clear_adapter_lora(self) -> None:
        """Leave all adapters out from now on."""
        self._loras.clear()

    def close(self) -> None:
        """Release the cache and recorded graphs; again is harmless."""
        if not self._closed and self.model.language:
            self.model.alone(self._release)

    def _release(self) -> None:
        self._closed = True
        self._runner.close()
        self._cache.close()


def _with_output(work: Work) -> Work:
    return Work(work.sequence, work.tokens, (0,))


def _positions(model: Model, wanted: int) -> int:
    trained = model.n_ctx_train()
    count = wanted or trained
    limit = model.language.model.context_limit() or 1 << 24
    if not 1 <= count <= limit:
        raise ContextFull(f"n_ctx: {count}, needs 1 to {limit}")
    return count


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise OptionError(f"{name}: {value}, needs {low} to {high}")
    return value
