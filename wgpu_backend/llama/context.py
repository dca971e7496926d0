"""A context of a model: its sequences, the computation of their tokens, and the results."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from wgpu_backend.dtypes import F16, DType, named
from wgpu_backend.engine.adapters import check_lora as checked_lora
from wgpu_backend.engine.pooling import BY_NUMBER, pool_states
from wgpu_backend.engine.runner import HIDDEN, NOTHING, Head, make_runner
from wgpu_backend.errors import BackendError, CacheFull, ContextError, ContextFull, OptionError
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.llama.batch import (
    Batch,
    Pass,
    SequenceTokens,
    group_by_sequence,
    split_into_passes,
)
from wgpu_backend.llama.constants import LLAMA_POOLING_TYPE_UNSPECIFIED
from wgpu_backend.llama.memory import Memory
from wgpu_backend.llama.model import Closable, Model
from wgpu_backend.llama.perf import Perf
from wgpu_backend.llama.states import (
    Layout,
    SavedSequence,
    StateError,
    pack_state,
    unpack_state,
)
from wgpu_backend.ml.context import Context as Graph
from wgpu_backend.nn.batch import Work

Result = TypeVar("Result")
Rows = NDArray[np.float32]
# LLAMA_MAX_SEQ of llama.cpp.
MOST_SEQUENCES = 256
# Upper bound of n_batch, and of n_ctx if the model has none.
MOST_POSITIONS = 1 << 24


class Aborted(BackendError):
    """An error: the abort callback ended a call. Sequences are as they were before it."""


class Results:
    """The rows of results of the last batch.

    Parameters
    ----------
    pooling : int
        ``LLAMA_POOLING_TYPE_…``; -1 for the file's pooling, or none.

    Raises
    ------
    OptionError
        There is no such pooling.
    """

    def __init__(self, model: Model, pooling: int) -> None:
        self._model = model
        own = model.config.uint("pooling_type", 0)
        self.pooling = own if pooling == LLAMA_POOLING_TYPE_UNSPECIFIED else pooling
        if not 0 <= self.pooling < len(BY_NUMBER):
            raise OptionError(f"pooling_type: {pooling}, needs -1 to {len(BY_NUMBER) - 1}")
        self.begin(False)

    def begin(self, states: bool) -> None:
        """Forget all rows; the next ones are hidden states, or else logits."""
        self.forget()
        self.states = states

    def forget(self) -> None:
        """Forget all rows."""
        self._rows: list[Rows] = []
        self._places: list[int] = []
        self._sequences: list[int] = []

    def add(self, places: Sequence[int], sequences: Sequence[int], rows: Rows) -> None:
        """Add the rows of a pass, which may be followed by padding."""
        # A copy, since a view would keep the whole result with its padding in memory.
        self._rows.extend(np.array(rows[: len(places)]))
        self._places.extend(places)
        self._sequences.extend(sequences)

    def rows(self, what: str, *, states: bool) -> Rows:
        """Return all rows in the order of the batch."""
        self._require(what, states)
        # A place of -1 has a row for pooling alone: another sequence has the token's results.
        order = sorted(i for i, place in enumerate(self._places) if place >= 0)
        order.sort(key=lambda i: self._places[i])
        return np.stack([self._rows[i] for i in order])

    def row(self, what: str, i: int, *, states: bool) -> Rows:
        """Return the row of a token by its place in the batch; negative from the last row."""
        self._require(what, states)
        places = sorted(place for place in self._places if place >= 0)
        if i < 0 and -i <= len(places):
            i = places[i]
        if i not in places:
            raise ContextError(
                f"{what}: token {i} has no results, the batch requested those of "
                f"{len(places)} tokens: {places[:8]}"
            )
        return self._rows[self._places.index(i)]

    def _require(self, what: str, states: bool) -> None:
        if not self._rows:
            raise ContextError(f"{what}: no batch with results was computed")
        if states != self.states:
            kind = "embeddings" if self.states else "logits"
            raise ContextError(f"{what}: the context computes {kind}; call set_embeddings first")

    def pool(self, sequence: int) -> Rows:
        """Return the pooled state of a sequence, or a reranker's scores.

        Raises
        ------
        ContextError
            The batch has no token of it, or states are not pooled.
        """
        rows = [
            row for row, each in zip(self._rows, self._sequences, strict=True) if each == sequence
        ]
        name = BY_NUMBER[self.pooling]
        if name == "none":
            raise ContextError("embeddings: pooling is none, needs a pooling_type")
        if not rows:
            raise ContextError(f"embeddings: the last batch has no tokens of sequence {sequence}")
        base = self._model.language.model
        # A reranker scores one pooled state; its architecture defines which.
        pooling = base.scored_pooling if name == "rank" else name
        state = pool_states(np.stack(rows), pooling)[None]
        with Graph(self._model.language.backend.executor) as graph:
            x = graph.from_numpy(state)
            made = base.score(x) if name == "rank" else base.vector(x)
            # Most models have no layers after pooling: there is nothing to compute then.
            return state[0] if made is x else made.numpy()[0]


class Context(Closable):
    """Sequences of a model and the computation of their tokens: llama.h's ``llama_context``.

    Calls from several threads, also to other contexts of the model, run one after the other.
    Results are those of the last call: a thread that reads them must keep others from the context
    meanwhile. Close it, or use it as a context manager.

    Parameters
    ----------
    n_ctx : int
        Positions of all sequences together; 0 for as many as the model was trained on.
    n_batch : int
        Most tokens of one batch.
    n_seq_max : int
        Number of sequences, 1 to 256.
    kv_dtype : str or DType
        Element type of the cache: ``f16``, ``f32``, ``q8_0`` or ``q4_0``.
    embeddings : bool
        Compute hidden states in place of logits, see `set_embeddings`.
    pooling_type : int
        How the states of a sequence become one: ``LLAMA_POOLING_TYPE_…``; -1 for the file's.
    abort_callback : callable or None
        See `set_abort_callback`.

    Attributes
    ----------
    memory : Memory
        Operations on sequences, without the lock that the methods here take.
    perf : Perf
        Tokens and times of the calls.

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
        # All options are checked before memory is taken.
        self.model = model
        self._n_ctx = _choose_positions(model, n_ctx)
        self._n_batch = _within("n_batch", n_batch, 1, MOST_POSITIONS)
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
        self._runner = make_runner(base, self._cache)
        self.memory = Memory(self._cache, n_seq_max)
        self._logits = Head("logits", lambda _, hidden: [base.logits(hidden)])
        # The logits of a pass (outputs, vocabulary), f32, must fit in one binding. Half of that,
        # since a pass pads its outputs to a power of two.
        rows = executor.capabilities.max_binding_nbytes // (4 * self.model.n_vocab())
        self._most_logits = max(1, rows // 2)

    def close(self) -> None:
        """Release the cache and recorded graphs. Calling it again does nothing."""
        if not self._closed and self.model.language:
            self.model.alone(self._release)

    def _release(self) -> None:
        self._closed = True
        self._runner.close()
        self._cache.close()

    def __enter__(self) -> Context:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def alone(self, act: Callable[[], Result]) -> Result:
        """Run a function while no other thread computes with the model."""

        def run() -> Result:
            # Checked with the lock held: another thread may close the context in the meantime.
            if self._closed:
                raise BackendError(f"{self.model.path}: the context was closed; make another one")
            return act()

        return self.model.alone(run)

    def n_ctx(self) -> int:
        """Return the number of positions of all sequences together."""
        return self._n_ctx

    def n_batch(self) -> int:
        """Return the most tokens of one batch."""
        return self._n_batch

    def n_seq_max(self) -> int:
        """Return the number of sequences."""
        return self.memory.n_seq_max

    def pooling_type(self) -> int:
        """Return how states of a sequence become one: ``LLAMA_POOLING_TYPE_…``."""
        return self.results.pooling

    # Computation.

    def decode(self, batch: Batch) -> None:
        """Compute the tokens of a batch. `get_logits` and `get_embeddings` return the results.

        Raises
        ------
        CacheFull
            There is no room for it. After this and any other error, sequences are as they were.
        ContextError
            A token is at another position than the next one of its sequence, or the batch is empty
            or too large.
        TokenizerError
            A token is not in the vocabulary.
        Aborted
            The abort callback returned true.
        """
        self.alone(lambda: self._decode(batch))

    def _decode(self, batch: Batch) -> None:
        count = batch.n_tokens()
        if not 0 < count <= self._n_batch:
            raise ContextError(f"decode: {count} tokens, needs 1 to n_batch, {self._n_batch}")
        for entry in batch.entries:
            # Raises for a token that is not in the vocabulary.
            self.model.token_get_attr(entry.token)
        texts = group_by_sequence(batch.entries, self.memory.length, all_outputs=self._embeds)
        before = {text.sequence: self._cache.length(text.sequence) for text in texts}
        self._require_room(texts, before)
        begin = time.perf_counter()
        try:
            self._compute(texts)
        except BaseException:
            # Also after a Ctrl-C: earlier passes of the batch have extended some sequences.
            for sequence, length in before.items():
                self._cache.remove(sequence, length)
            self.results.forget()
            raise
        self.perf.count(count, time.perf_counter() - begin)

    def _require_room(self, texts: Sequence[SequenceTokens], before: Mapping[int, int]) -> None:
        for text in texts:
            total = before[text.sequence] + len(text.tokens)
            if total > self._n_ctx:
                raise CacheFull(
                    f"decode: sequence {text.sequence} would have {total} positions, the context "
                    f"holds {self._n_ctx}; remove some with seq_rm and seq_add"
                )

    def _compute(self, texts: Sequence[SequenceTokens]) -> None:
        base, embeds = self.model.language.model, self._embeds
        # Another context of the model may have set other adapters or another length.
        self.model.prepare(self._n_ctx, list(self._loras.items()))
        most = self._runner.chunk
        limit = most if embeds else min(most, self._most_logits)
        self.results.forget()
        for each in split_into_passes(texts, most, limit, whole=not base.causal):
            if self._abort is not None and self._abort():
                raise Aborted("decode: the abort callback ended it")
            self._run(each)

    def _run(self, each: Pass) -> None:
        has_outputs = bool(each.places)
        works = each.works
        if has_outputs:
            head = HIDDEN if self._embeds else self._logits
        else:
            # A graph needs an output, even if its results are not read.
            head = NOTHING
            works = [work if i else _add_output(work) for i, work in enumerate(works)]
        result = self._runner.run(works, head, {})
        if has_outputs:
            self.results.add(each.places, each.sequences, result.wait()[0])

    def encode(self, batch: Batch) -> None:
        """Run the model's encoder on a batch; without a decoder, compute hidden states.

        Raises
        ------
        ContextError, CacheFull
            As in `decode`.
        """
        if self.model.language.model.prompt_encoder() is None:
            return self.decode(batch)
        return self.alone(lambda: self._encode(batch))

    def _encode(self, batch: Batch) -> None:
        self.model.prepare(self._n_ctx, list(self._loras.items()))
        for text in group_by_sequence(batch.entries, self.memory.length):
            self._runner.read(text.sequence, text.tokens)

    def synchronize(self) -> None:
        """Do nothing: `decode` waits for its results."""

    def set_embeddings(self, embeddings: bool) -> None:
        """Set whether batches give hidden states of all tokens, or logits of requested ones."""
        self._embeds = embeddings
        self.results.begin(embeddings)

    def set_abort_callback(self, callback: Callable[[], bool] | None) -> None:
        """Set a function that is called before each pass; true ends the call with `Aborted`."""
        self._abort = callback

    # Results of the last call.

    def get_logits(self) -> Rows:
        """Return the logits of the tokens with results: (outputs, vocabulary)."""
        return self.results.rows("logits", states=False)

    def get_logits_ith(self, i: int = -1) -> Rows:
        """Return the logits of token `i` of the batch; negative from the last: (vocabulary,)."""
        return self.results.row("logits", i, states=False)

    def get_embeddings(self) -> Rows:
        """Return the hidden states of all tokens: (tokens, hidden)."""
        return self.results.rows("embeddings", states=True)

    def get_embeddings_ith(self, i: int = -1) -> Rows:
        """Return the hidden state of token `i` of the batch: (hidden,)."""
        return self.results.row("embeddings", i, states=True)

    def get_embeddings_seq(self, sequence: int) -> Rows:
        """Return the pooled state of a sequence: (hidden,); for a reranker, its scores."""
        return self.alone(lambda: self.results.pool(sequence))

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
        """Shift positions back to close a gap after `seq_rm`; see `Memory.seq_add`."""
        self.alone(lambda: self.memory.seq_add(sequence, p0, p1, delta))

    def seq_pos_min(self, sequence: int) -> int:
        """Return the first position of a sequence: 0, or -1 if it is empty."""
        return self.alone(lambda: self.memory.seq_pos_min(sequence))

    def seq_pos_max(self, sequence: int) -> int:
        """Return the last position of a sequence; -1 if it is empty."""
        return self.alone(lambda: self.memory.seq_pos_max(sequence))

    def can_shift(self) -> bool:
        """Return whether positions can be removed from the middle of sequences."""
        return self.alone(self.memory.can_shift)

    def clear(self) -> None:
        """Forget all sequences."""
        self.alone(self.memory.clear)

    # Adapters.

    def set_adapter_lora(self, path: str | Path, scale: float = 1.0) -> None:
        """Apply an adapter to later computations of this context.

        Cached positions stay as they were computed, as in llama.cpp.

        Raises
        ------
        GGUFError, ModelError
            The file is damaged, or does not fit the model.
        """
        # The file is checked here, so that an error comes with this call and not in decode().
        with open_gguf(path) as file:
            checked_lora(file, self.model.language.backend.file)
        self._loras[Path(path)] = scale

    def rm_adapter_lora(self, path: str | Path) -> bool:
        """Stop applying an adapter; return whether it was set."""
        return self._loras.pop(Path(path), None) is not None

    def clear_adapter_lora(self) -> None:
        """Stop applying all adapters."""
        self._loras.clear()

    # Saved state: llama.h's ``llama_state_…``. Sequences that share a prefix are each saved whole.
    # Of recurrent layers only the newest state is saved. Logits are not saved: a restored sequence
    # gives them with its next token.

    def state_get_data(self) -> bytes:
        """Return all sequences as bytes."""
        return self.alone(lambda: self._pack(range(self.memory.n_seq_max), ()))

    def state_get_size(self) -> int:
        """Return the bytes of all sequences."""
        return len(self.state_get_data())

    def state_set_data(self, data: bytes) -> int:
        """Replace all sequences by saved ones.

        Returns
        -------
        int
            Bytes that were read.

        Raises
        ------
        StateError
            The bytes are damaged, or of another model, type of cache or number of sequences;
            nothing has changed.
        CacheFull
            There is no room for them; the context is then empty.
        """
        self._set_all(data)
        return len(data)

    def state_seq_get_data(self, sequence: int) -> bytes:
        """Return one sequence as bytes."""
        return self.alone(lambda: self._pack([self.memory.require_known(sequence)], ()))

    def state_seq_get_size(self, sequence: int) -> int:
        """Return the bytes of one sequence."""
        return len(self.state_seq_get_data(sequence))

    def state_seq_set_data(self, data: bytes, sequence: int) -> int:
        """Replace a sequence by a saved one, whose sequence id may differ.

        Raises
        ------
        StateError
            The bytes are damaged, or not one sequence of this model; nothing has changed.
        CacheFull
            There is no room for it; the sequence is then empty.
        """
        self._set_one(data, sequence)
        return len(data)

    def state_save_file(self, path: str | Path, tokens: Sequence[int] = ()) -> None:
        """Write all sequences to a file, with tokens that `state_load_file` returns.

        The file is complete or does not exist.
        """
        _write(path, self.alone(lambda: self._pack(range(self.memory.n_seq_max), tokens)))

    def state_load_file(self, path: str | Path) -> list[int]:
        """Replace all sequences by those of a file; errors are those of `state_set_data`.

        Returns
        -------
        list of int
            Tokens of the file.
        """
        return self._set_all(Path(path).read_bytes())

    def state_seq_save_file(
        self, path: str | Path, sequence: int, tokens: Sequence[int] = ()
    ) -> int:
        """Write one sequence to a file, with tokens; return the number of bytes."""
        data = self.alone(lambda: self._pack([self.memory.require_known(sequence)], tokens))
        _write(path, data)
        return len(data)

    def state_seq_load_file(self, path: str | Path, sequence: int) -> list[int]:
        """Replace a sequence by that of a file; errors are those of `state_seq_set_data`.

        Returns
        -------
        list of int
            Tokens of the file.
        """
        return self._set_one(Path(path).read_bytes(), sequence)

    def _pack(self, sequences: Sequence[int], tokens: Sequence[int]) -> bytes:
        found: list[SavedSequence] = []
        for sequence in sequences:
            self.memory.require_whole(sequence)
            # Empty sequences are left out, unless one alone is saved: restoring that empties it.
            if self._cache.length(sequence) or len(sequences) == 1:
                found.append(SavedSequence(sequence, self._cache.save(sequence)))
        return pack_state(self._make_layout(), found, tokens)

    def _make_layout(self) -> Layout:
        model = {
            "architecture": self.model.config.architecture,
            "name": str(self.model.meta_val_str("general.name")),
            "layers": self.model.n_layer(),
            "width": self.model.n_embd(),
            "vocabulary": self.model.n_vocab(),
        }
        return Layout.from_cache(model, self._cache)

    def _set_all(self, data: bytes) -> list[int]:
        found, tokens = unpack_state(bytes(data), self._make_layout())
        wrong = [each.number for each in found if each.number >= self.memory.n_seq_max]
        if wrong:
            raise StateError(f"state: sequence {wrong[0]}, the context has {self.memory.n_seq_max}")
        self.alone(lambda: self._restore_all(found))
        return tokens

    def _restore_all(self, found: Sequence[SavedSequence]) -> None:
        for each in found:
            self._require_fitting(each)
        self.memory.clear()
        try:
            for each in found:
                self._cache.restore(each.number, each.saved)
        except BaseException:
            # Half of the sequences would be a state that nobody saved.
            self.memory.clear()
            raise

    def _set_one(self, data: bytes, sequence: int) -> list[int]:
        found, tokens = unpack_state(bytes(data), self._make_layout())
        if len(found) != 1:
            raise StateError(f"state: {len(found)} sequences, needs one")
        self.memory.require_known(sequence)
        self.alone(lambda: self._restore_one(found[0], sequence))
        return tokens

    def _restore_one(self, each: SavedSequence, sequence: int) -> None:
        self._require_fitting(each)
        self._cache.restore(sequence, each.saved)
        self.memory.forget_gap(sequence)

    def _require_fitting(self, each: SavedSequence) -> None:
        """Raise for a sequence that the cache cannot hold, before anything is forgotten."""
        length = max((part.length for part in each.saved), default=0)
        if length > self._cache.positions:
            raise CacheFull(
                f"state: a sequence of {length} positions, the context holds "
                f"{self._cache.positions}"
            )
        try:
            self._cache.require_saved(each.saved)
        except ValueError as error:
            raise StateError(f"state: {error}") from None


def _add_output(work: Work) -> Work:
    return Work(work.sequence, work.tokens, (0,))


def _choose_positions(model: Model, n_ctx: int) -> int:
    count = n_ctx or model.n_ctx_train()
    limit = model.language.model.context_limit() or MOST_POSITIONS
    if not 1 <= count <= limit:
        raise ContextFull(f"n_ctx: {count}, needs 1 to {limit}")
    return count


def _within(name: str, value: int, low: int, high: int) -> int:
    if not low <= value <= high:
        raise OptionError(f"{name}: {value}, needs {low} to {high}")
    return value


def _write(path: str | Path, data: bytes) -> None:
    """Write a file under another name, and rename it when it is complete."""
    whole = Path(path)
    part = whole.with_name(f"{whole.name}.{os.getpid()}.part")
    try:
        part.write_bytes(data)
        part.replace(whole)
    finally:
        part.unlink(missing_ok=True)
