"""The block table against a model that keeps, for every slot, what was last written there."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from wgpu_backend.errors import CacheFull
from wgpu_backend.nn.kvcache.blocks import BlockTable

BLOCKS, BLOCK = 6, 4
SEQUENCES = st.integers(0, 3)


@dataclass
class World:
    """Values that a cache would hold, written and copied as the table says."""

    slots: list[int | None] = field(default_factory=lambda: [None] * (BLOCKS * BLOCK))
    written: int = 0

    def write(self, slot: int) -> int:
        self.written += 1
        self.slots[slot] = self.written
        return self.written

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        for old, new in pairs:
            self.slots[new] = self.slots[old]


class Sequences(RuleBasedStateMachine):
    """Every sequence is a plain list of values; what its blocks hold must be that list."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.world = BlockTable(BLOCKS, BLOCK), World()
        self.values: dict[int, list[int]] = {}

    def held(self, sequence: int) -> list[int]:
        return self.values.get(sequence, [])

    def state(self) -> object:
        table = {s: (list(self.table.get_blocks(s)), self.table.length(s)) for s in range(4)}
        return table, self.table.free

    def unchanged(self, before: object) -> None:
        assert self.state() == before

    @rule(sequence=SEQUENCES, count=st.integers(0, 9))
    def extend(self, sequence: int, count: int) -> None:
        before = self.state()
        try:
            slots = self.table.extend(sequence, count)
        except CacheFull:
            total = -(-(len(self.held(sequence)) + count) // BLOCK)
            assert total - len(self.table.get_blocks(sequence)) > self.table.free
            return self.unchanged(before)
        assert len(slots) == len(set(slots)) == count
        new = [self.world.write(slot) for slot in slots]
        self.values[sequence] = self.held(sequence) + new
        return None

    @rule(source=SEQUENCES, into=SEQUENCES, length=st.integers(0, 24))
    def share(self, source: int, into: int, length: int) -> None:
        before = self.state()
        try:
            self.world.copy(self.table.share(source, into, length))
        except CacheFull:
            assert self.table.free == 0
            return self.unchanged(before)
        self.values[into] = self.held(source)[:length]
        return None

    @rule(sequence=SEQUENCES, length=st.integers(0, 24))
    def truncate(self, sequence: int, length: int) -> None:
        before = self.state()
        try:
            self.world.copy(self.table.truncate(sequence, length))
        except CacheFull:
            assert self.table.free == 0
            return self.unchanged(before)
        self.values[sequence] = self.held(sequence)[:length]
        return None

    @rule(sequence=SEQUENCES, begin=st.integers(0, 24), count=st.integers(1, 24))
    def cut_out(self, sequence: int, begin: int, count: int) -> None:
        values, before = self.held(sequence), self.state()
        if begin >= len(values):
            return None
        end = min(begin + count, len(values))
        try:
            copied, moved = self.table.cut_out(sequence, begin, end)
        except CacheFull:
            assert self.table.free < len(self.table.get_blocks(sequence))
            return self.unchanged(before)
        self.world.copy(copied + moved)
        self.values[sequence] = values[:begin] + values[end:]
        return None

    @rule(sequence=SEQUENCES)
    def drop(self, sequence: int) -> None:
        self.table.drop(sequence)
        self.values.pop(sequence, None)

    @invariant()
    def every_sequence_reads_what_was_written_for_it(self) -> None:
        for sequence in range(4):
            blocks, values = self.table.get_blocks(sequence), self.held(sequence)
            assert self.table.length(sequence) == len(values)
            slots = [blocks[i // BLOCK] * BLOCK + i % BLOCK for i in range(len(values))]
            assert [self.world.slots[slot] for slot in slots] == values

    @invariant()
    def every_block_is_free_or_held(self) -> None:
        held = {block for s in range(4) for block in self.table.get_blocks(s)}
        assert len(held) + self.table.free == BLOCKS

    @invariant()
    def no_sequence_holds_more_than_it_needs(self) -> None:
        for sequence in range(4):
            assert len(self.table.get_blocks(sequence)) == -(-len(self.held(sequence)) // BLOCK)


class TestSequences(Sequences.TestCase):
    settings = settings(max_examples=40, stateful_step_count=40, deadline=None)


@pytest.mark.slow
class TestManySequences(Sequences.TestCase):
    settings = settings(max_examples=200, stateful_step_count=40, deadline=None)


def test_whole_blocks_of_a_prefix_are_shared_and_the_rest_is_copied():
    table = BlockTable(8, 4)
    table.extend(0, 11)
    first, second, third = table.get_blocks(0)
    pairs = table.share(0, 1, 10)
    own = table.get_blocks(1)[2]
    assert table.get_blocks(1) == [first, second, own]
    assert pairs == [(third * 4, own * 4), (third * 4 + 1, own * 4 + 1)]
    assert table.free == 4


def test_a_prefix_of_itself_is_a_truncation():
    table = BlockTable(2, 4)
    table.extend(0, 8)
    assert table.share(0, 0, 3) == []
    assert (table.length(0), table.free) == (3, 1)


def test_a_block_that_the_target_gives_up_can_take_the_copy():
    table = BlockTable(2, 4)
    table.extend(0, 3)
    table.extend(1, 4)
    assert len(table.share(0, 1, 2)) == 2
    assert (table.length(0), table.length(1), table.free) == (3, 2, 0)


def test_the_last_freed_block_of_a_range_is_missing():
    table = BlockTable(4, 4)
    table.extend(0, 12)
    table.forget(0, lambda place: place != 0)
    assert table.missing(0, 2, 12) == 0
    assert table.missing(0, 4, 12) is None
    table.forget(0, lambda place: place == 2)
    assert [table.missing(0, 2, 12), table.missing(0, 2, 4), table.missing(0, 8, 12)] == [
        1,
        0,
        None,
    ]


def test_a_full_table_names_what_was_asked_and_what_is_left():
    table = BlockTable(3, 4)
    table.extend(0, 8)
    with pytest.raises(CacheFull, match="9 more positions need 3 blocks of 4, 1 are free"):
        table.extend(1, 9)
    assert table.length(1) == 0
