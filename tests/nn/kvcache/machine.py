"""A cache of any kind against plain lists: each pass reads what its tokens may see, and no more.

What kernels do with a cache is done here in NumPy on its storage, by the inputs that it fills: new
keys go into their slots, every token looks up the positions it sees, states are folded from their
source row into their target. Keys know their position, and a shift has to turn that. What nobody
holds is poisoned after each operation.

::

    python -m tests.nn.kvcache.machine --operations 10000
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from wgpu_backend.dtypes import F32
from wgpu_backend.errors import CacheFull, ContextError
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.nn.batch import BatchArrays, BatchShape, Work, all_input_specs
from wgpu_backend.nn.kvcache.cache import GraphInputs, KeyValues
from wgpu_backend.nn.kvcache.factory import make_cache
from wgpu_backend.nn.kvcache.layered import LayeredCache
from wgpu_backend.nn.kvcache.layers import (
    LayerCache,
    LayerShape,
    SharedLayer,
    StateShape,
    iterate_entries,
    paged_layers,
)
from wgpu_backend.nn.kvcache.paged import BLOCK, PagedCache
from wgpu_backend.nn.kvcache.recurrent import Checkpoints, RecurrentCache

INTERVAL, REWIND, MOST = 48, 3, 40  # tokens between checkpoints, passes back, tokens of a pass
SEQUENCES = range(4)
FOLD = 65521  # states stay whole numbers that f32 holds


@dataclass(frozen=True)
class Kind:
    """A cache that is tried, and how much there is room for."""

    layers: Sequence[LayerCache]
    positions: int = 16 * BLOCK
    sequences: int = 4

    @property
    def roomy(self) -> bool:
        """Whether no checkpoint is ever given up for room."""
        return self.sequences > len(SEQUENCES)


def moved(keys: Tensor, by: int) -> Tensor:
    """Keys whose first value is their position, so many further on."""
    return keys.add(keys.context.from_floats([by] + [0] * (keys.shape[1] - 1)))


ALL = LayerShape(4, 8, turn=moved)
NEAR, OTHER, CHUNKED = (
    LayerShape(4, 4, window=40, turn=moved),
    LayerShape(4, 4, window=3, turn=moved),
    LayerShape(4, 4, 0, 24, turn=moved),
)
STATE = StateShape(conv=(2,), ssm=(1, 3))
HYBRID = [(ALL, STATE), STATE, NEAR, None, SharedLayer(2), CHUNKED, OTHER, SharedLayer(0)]
KINDS = {
    "causal": Kind([ALL, ALL]),
    "values among keys": Kind([LayerShape(8, None, turn=moved)]),
    "window": Kind([NEAR, NEAR]),
    "window, short": Kind([NEAR], 8 * BLOCK, 1),
    "window of one": Kind([LayerShape(4, 4, window=1, turn=moved)]),
    "chunk": Kind([CHUNKED]),
    "chunk of blocks": Kind([LayerShape(4, 4, chunk=2 * BLOCK, turn=moved)]),
    "two windows": Kind([NEAR, ALL, OTHER, SharedLayer(0)]),
    "recurrent": Kind([STATE, None, STATE]),
    "recurrent, short": Kind([STATE], sequences=1),
    "states and keys": Kind([STATE, ALL]),
    "everything": Kind(HYBRID),
    "everything, roomy": Kind(HYBRID, 200 * BLOCK, 100),
}


def seen(shape: LayerShape, position: int) -> range:
    """Positions that a token sees, as attention takes them."""
    first = max(0, position - shape.window + 1) if shape.window else 0
    return range(position - position % shape.chunk if shape.chunk else first, position + 1)


def folded(state: float, values: Sequence[int]) -> float:
    """State after some tokens."""
    for value in values:
        state = (state * 31 + value) % FOLD
    return state


def readers(layers: Sequence[LayerCache]) -> dict[int, tuple[int, LayerShape]]:
    """Layers that attend, with the one whose keys each reads."""
    own = paged_layers(layers)
    shared = {i: kept.layer for i, kept in iterate_entries(layers) if isinstance(kept, SharedLayer)}
    return {i: (of, own[of]) for i, of in ({i: i for i in own} | shared).items()}


class Names(GraphInputs):
    """Gives the names of inputs where graphs get tensors."""

    def __init__(self, shape: BatchShape) -> None:
        self.tokens, self.longest, self.sees_ahead = shape.tokens, shape.longest, False

    def pages(self, of: object, make: Callable[[], Any]) -> Any:
        return make()

    def __getitem__(self, name: str) -> Any:
        return name


class World:
    """A cache, and the tokens that each of its sequences was given."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.cache: Any = make_cache(
            NumpyExecutor(),
            kind.layers,
            kind.sequences,
            kind.positions,
            F32,
            Checkpoints(INTERVAL, REWIND),
        )
        self.parts = self.cache.parts if isinstance(self.cache, LayeredCache) else (self.cache,)
        self.tokens: dict[int, list[int]] = {sequence: [] for sequence in SEQUENCES}
        self.written = 0
        self.poisoned: dict[int, set[int]] = {}
        self.poison()

    def run(self, counts: Sequence[tuple[int, int]]) -> None:
        """One pass; every token finds what its sequence has been given."""
        works = [Work(sequence, self._new(count)) for sequence, count in counts]
        shape, arrays = self._filled(works)
        for work in works:
            self.tokens[work.sequence] = [*self.tokens[work.sequence], *work.tokens]
        for layer, (of, _) in readers(self.kind.layers).items():
            stored = self.cache.key_values(layer, Names(shape))
            if layer == of:
                self._write(stored, arrays, of)
        for layer, (of, kept) in readers(self.kind.layers).items():
            self._look(self.cache.key_values(layer, Names(shape)), kept, of, arrays, works)
        for part in self.parts:
            if isinstance(part, RecurrentCache):
                self._fold(part, arrays["state.runs"], works)
        self.poison()

    def _new(self, count: int) -> list[int]:
        self.written += count
        return [(self.written - i) % 10007 + 1 for i in range(count)]

    def _filled(self, works: Sequence[Work]) -> tuple[BatchShape, dict[str, Any]]:
        """Inputs of a pass, in arrays that are left from a fuller batch."""
        rows = padded(sum(len(work.tokens) for work in works))
        longest = max(self.cache.length(w.sequence) + len(w.tokens) for w in works)
        reach = self.cache.reach(padded(longest), rows)
        shape = BatchShape(rows, rows, padded(len(works)), reach)
        declared = all_input_specs(shape, self.cache, {})
        arrays = {n: np.full(extents, 1, dtype.numpy) for n, (extents, dtype) in declared.items()}
        if rows == 1:
            arrays["sequences"][0] = 0
        arrays["starts"][0] = 0
        BatchArrays(shape, arrays, self.cache, {}).fill(works)
        return shape, arrays

    def _write(self, stored: KeyValues, arrays: dict[str, Any], of: int) -> None:
        """Put keys and values into their slots, as a graph does."""
        slots = arrays[str(stored.pages.table).replace("table", "slots")]
        taken = slots[slots >= 0]
        assert len(set(taken)) == len(taken) == (arrays["positions"] >= 0).sum()
        for tensor in (stored.values, stored.keys):  # which may be the same
            values(tensor)[taken] = (arrays["tokens"][slots >= 0] + of / 4)[:, None]
        values(stored.keys)[taken, 0] = arrays["positions"][slots >= 0]

    def _look(
        self,
        stored: KeyValues,
        kept: LayerShape,
        of: int,
        arrays: dict[str, Any],
        works: list[Work],
    ) -> None:
        """Look up all that each token sees by the block table and the positions of the layer."""
        table, positions, ends = (
            arrays[str(name)] for name in (stored.pages.table, stored.pages.positions, stored.ends)
        )
        for row, position in enumerate(arrays["positions"]):
            if position < 0:
                assert positions[row] < 0
                continue
            assert ends[row] == positions[row] < stored.longest <= table.shape[1] * BLOCK
            sequence = int(arrays["sequences"][row])
            near = np.array(seen(kept, int(positions[row])))
            slots = table[sequence, near // BLOCK] * BLOCK + near % BLOCK
            at = np.array(seen(kept, int(position)))
            told = np.array(self.tokens[works[sequence].sequence])[at]
            np.testing.assert_array_equal(values(stored.keys)[slots, 0], at)
            for tensor in (stored.keys, stored.values):
                found = values(tensor)[slots, 1:]
                np.testing.assert_array_equal(
                    found, np.repeat(told[:, None] + of / 4, found.shape[1], 1)
                )

    def _fold(self, part: RecurrentCache, runs: Any, works: Sequence[Work]) -> None:
        """Fold the tokens of each run into its state, as a graph does."""
        at = 0
        for (first, count, source, target), work in zip(runs, works, strict=False):
            assert (first, count) == (at, len(work.tokens))
            before = folded(0, self.tokens[work.sequence][:-count])
            for tensor in part.tensors:
                rows = values(tensor)
                assert source != target > 0
                assert not rows[0].any()
                np.testing.assert_array_equal(rows[source], before)
                rows[target] = folded(before, work.tokens)
            at += count
        assert all(tuple(run) == (at, 0, -1, -1) for run in runs[len(works) :])

    def poison(self) -> None:
        """Fill what nobody holds any more with NaN."""
        for i, part in enumerate(self.parts):
            size, free = BLOCK if isinstance(part, PagedCache) else 1, set(part.free_list())
            for each in free - self.poisoned.get(i, set()):
                for tensor in part.tensors:
                    values(tensor)[each * size : (each + 1) * size] = np.nan
            self.poisoned[i] = free

    def cut(self, sequence: int, left: int) -> None:
        """Take in that a sequence has so many positions now."""
        del self.tokens[sequence][left:]


def values(tensor: Any) -> Any:
    """Storage of a state, as rows."""
    return tensor.storage.handle.reshape(tensor.spec.shape)


def padded(count: int) -> int:
    """Rows of a batch."""
    return 1 << (count - 1).bit_length()


COUNTS = st.dictionaries(st.sampled_from(SEQUENCES), st.integers(1, MOST), min_size=1, max_size=3)
PLACES = st.integers(0, 400)


class Machine(RuleBasedStateMachine):
    """What those who manage sequences do, in any order."""

    kind: Kind
    done = shifts = 0

    def __init__(self) -> None:
        super().__init__()
        self.world = World(self.kind)

    def lengths(self) -> list[int]:
        return [self.world.cache.length(sequence) for sequence in SEQUENCES]

    def refused(self, before: list[int]) -> None:
        """After CacheFull: sequences can be cut back to what they were."""
        for sequence, length in enumerate(before):
            assert self.world.cache.remove(sequence, length) == length

    def count(self) -> None:
        type(self).done += 1

    @rule(counts=COUNTS)
    def a_pass(self, counts: dict[int, int]) -> None:
        self.count()
        before = self.lengths()
        try:
            self.world.run(list(counts.items()))
        except CacheFull:
            self.refused(before)

    @rule(sequence=st.sampled_from(SEQUENCES), steps=st.integers(1, 70))
    def a_generation(self, sequence: int, steps: int) -> None:
        for _ in range(steps):
            self.a_pass({sequence: 1})

    @rule(counts=COUNTS, passes=st.integers(1, REWIND))
    def passes_taken_back(self, counts: dict[int, int], passes: int) -> None:
        """The last passes of sequences can always be undone."""
        self.count()
        before = self.lengths()
        try:
            for _ in range(passes):
                self.world.run(list(counts.items()))
        except CacheFull:
            pass
        for sequence in counts:
            assert self.world.cache.remove(sequence, before[sequence]) == before[sequence]
            self.world.cut(sequence, before[sequence])

    @rule(sequence=st.sampled_from(SEQUENCES), begin=PLACES)
    def remove(self, sequence: int, begin: int) -> None:
        self.count()
        cache, before = self.world.cache, self.lengths()
        point = cache.resume_point(sequence, begin)
        self.near(point, min(begin, before[sequence]))
        try:
            left = cache.remove(sequence, begin)
        except CacheFull:
            assert self.lengths() == before
            return
        assert left == cache.length(sequence) == point
        assert cache.can_resume(sequence, left)
        self.world.cut(sequence, left)

    @rule(pair=st.permutations(SEQUENCES), length=PLACES)
    def copy(self, pair: list[int], length: int) -> None:
        self.count()
        source, target = pair[:2]
        cache, before = self.world.cache, self.lengths()
        try:
            left = cache.copy_prefix(source, target, length)
        except CacheFull:
            assert self.lengths() == before
            return
        assert left == cache.length(target) <= min(length, before[source])
        self.near(left, min(length, before[source]))
        self.world.tokens[target] = self.world.tokens[source][:left]

    @rule(sequence=st.sampled_from(SEQUENCES), begin=PLACES, count=PLACES)
    def shift(self, sequence: int, begin: int, count: int) -> None:
        self.count()
        cache, before = self.world.cache, self.lengths()
        begin %= before[sequence] + 1
        end = begin + count % (before[sequence] - begin + 1)
        if not cache.can_shift(sequence, begin, end):
            with pytest.raises(ContextError):
                cache.shift(sequence, begin, end)
            return
        try:
            cache.shift(sequence, begin, end)
        except CacheFull:
            assert self.lengths() == before
            return
        type(self).shifts += end > begin
        del self.world.tokens[sequence][begin:end]

    def near(self, point: int, wanted: int) -> None:
        """Tokens between are read again: at most an interval, where no room was short."""
        assert 0 <= point <= wanted
        if self.kind.roomy:
            assert wanted - point <= INTERVAL

    @invariant()
    def lengths_are_those_of_the_tokens(self) -> None:
        for part in self.world.parts:
            assert [part.length(s) for s in SEQUENCES] == [
                len(self.world.tokens[s]) for s in SEQUENCES
            ]

    @invariant()
    def poisoned(self) -> None:
        self.world.poison()

    def teardown(self) -> None:
        """Nothing stays held once every sequence is gone."""
        for sequence in SEQUENCES:
            self.world.cache.remove(sequence)
        for part in self.world.parts:
            rows = part.tensors[0].shape[0]
            size = BLOCK if isinstance(part, PagedCache) else 1
            zeros = isinstance(part, RecurrentCache)
            assert len(part.free_list()) == rows // size - zeros


def machine(kind: Kind) -> type[Machine]:
    """State machine of one kind."""
    return type("OfKind", (Machine,), {"kind": kind, "done": 0, "shifts": 0})


def main(arguments: Sequence[str] | None = None) -> None:
    """Run so many operations of each kind, and tell what was done."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--operations", type=int, default=10_000)
    parser.add_argument("--kinds", nargs="+", default=[*KINDS], choices=[*KINDS])
    given = parser.parse_args(arguments)
    for name in given.kinds:
        kind, begin = machine(KINDS[name]), time.perf_counter()
        while kind.done < given.operations:
            run_state_machine_as_test(
                kind,
                settings=settings(
                    max_examples=10, stateful_step_count=40, deadline=None, database=None
                ),
            )
        took = time.perf_counter() - begin
        print(  # noqa: T201
            f"{name:20} {kind.done:7} operations, {kind.shifts:5} shifts, 0 differences  "
            f"{took:6.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
