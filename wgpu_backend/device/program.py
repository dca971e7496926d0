# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""A recorded list of dispatches that is replayed without making new objects.

Pipelines and bind groups are made with the Program. A replay encodes the flat list again, as wgpu's
command buffers can be used once, submits it in bounded portions, and copies the reads into
host-visible buffers that are kept. From the third replay on, the list is encoded in advance, while
the host waits for the replay before.

Several replays may go in one submit, which costs the host less than one each. Their inputs are
written to a ring at once, and each replay copies its own::

    write ring ─ submit (fetch 0, dispatches, copy reads ─ fetch 1, dispatches, copy reads) ─ map
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain

import wgpu

from wgpu_backend.device.binds import Binder, Dispatch, check_copy, make_copy, round_up
from wgpu_backend.device.buffers import Binding
from wgpu_backend.device.ending import delay_if_over
from wgpu_backend.device.interrupts import uninterrupted
from wgpu_backend.device.pending import Pending, Reading
from wgpu_backend.device.queue import Pass, Queue, Recording
from wgpu_backend.device.readback import Slot, Timing, measure
from wgpu_backend.device.ring import Given, Ring
from wgpu_backend.errors import DeviceError

# A driver gives a device up when one submit runs too long (2 s on Windows). Dispatches that could
# take milliseconds say their work; this many others fit, and a decode step stays one submit, which
# matters on lavapipe: its submit blocks while the one before still runs.
MAX_DISPATCHES_PER_SUBMIT = 1024
# Bytes moved plus operations done by one submit: a third of a second at 100 G/s, a slow GPU.
MAX_WORK_PER_SUBMIT = 1 << 35

# Submissions whose results may be in flight at once; the next one first takes the oldest's.
READBACK_SLOTS = 8


def split_portions(dispatches: Sequence[Dispatch]) -> list[list[Dispatch]]:
    """Split dispatches into portions of one submit each; at least one portion, perhaps empty."""
    result: list[list[Dispatch]] = [[]]
    work = 0
    for dispatch in dispatches:
        full = len(result[-1]) == MAX_DISPATCHES_PER_SUBMIT
        if result[-1] and (full or work + dispatch.work > MAX_WORK_PER_SUBMIT):
            result.append([])
            work = 0
        result[-1].append(dispatch)
        work += dispatch.work
    return result


@dataclass(frozen=True, slots=True)
class Submitted:
    """A range of a Program's dispatches that was submitted.

    Parameters
    ----------
    reads : Pending or None
        The Program's reads, if the range is the last one.
    """

    label: str
    queue: Queue
    index: object
    reads: Pending | None

    @uninterrupted
    def wait(self) -> None:
        """Wait until the device has run the range.

        Raises
        ------
        DeviceError
            The device was closed, or lost before.
        """
        delay_if_over()
        self.queue.guard(self.label)
        with self.queue.translate_errors(self.label):
            self.queue.wait(self.index)


class Program:
    """Dispatches ready to run again and again; immutable.

    Made by ``Device.program``. Each dispatch sees what the ones before it wrote.

    Parameters
    ----------
    binder : Binder
        Makes the bind groups; of this Program alone, it keeps them.
    reads : sequence of Binding
        Ranges copied to the host after the last dispatch.
    given : tuple of Binding and memoryview, or None
        Bytes of the host copied to the device before the first, as they are at each replay: for
        each of `times` replays, one after the other.
    label : str
        Name for messages.
    times : int
        Replays that may go in one submit.
    """

    def __init__(
        self,
        binder: Binder,
        dispatches: Sequence[Dispatch],
        reads: Sequence[Binding] = (),
        given: Given | None = None,
        label: str = "",
        times: int = 1,
    ) -> None:
        self.label = label or "program"
        self.times = times
        self.dispatches = tuple(dispatches)
        # Native commands are bare handles: what keeps the groups alive is the binder.
        self._binder = binder
        self._queue, self._pool = binder.queue, binder.pool
        self._reads = [check_copy(f"{self.label}: read", binding, binder.pool) for binding in reads]
        self._sizes = tuple(nbytes for _, _, nbytes in self._reads)
        self._stride = sum(round_up(size) for size in self._sizes)
        self._portions = [
            [self._queue.command(d.pipeline.raw, binder.group(d), d.groups) for d in portion]
            for portion in split_portions(self.dispatches)
        ]
        # All of them, for ranges.
        self._commands = [command for portion in self._portions for command in portion]
        self._ring = Ring(self.label, binder, given, times) if given else None
        bound = [b.buffer for d in self.dispatches for b in d.bindings]
        ranges = [*self._reads, *([self._ring.place] if self._ring else [])]
        # A submit with a destroyed buffer aborts the process, so `_check` looks at each.
        self._buffers = {*bound, *(buffer for buffer, _, _ in ranges)}
        self._epoch = -1
        self._together = self._count_replays_per_submit()
        self._slots: list[Slot] = []
        # The oldest first. Weak, so that a result that nothing waits for frees its slot.
        self._under_way: dict[Slot, weakref.ref[Reading]] = {}
        self._replays = 0
        # Replays of the last submit. The next submit is expected to have as many.
        self._count = 1
        # The recorded next submit, its slot, and its number of replays.
        self._ahead: tuple[Recording, Slot, int] | None = None
        self._closed = False

    def __del__(self) -> None:
        # A program whose constructor raised has none.
        if hasattr(self, "_slots"):
            self._queue.later(self.close)

    def __repr__(self) -> str:
        return f"Program({self.label}, {len(self.dispatches)} dispatches)"

    @property
    def submits(self) -> int:
        """The number of submits of one replay."""
        return len(self._portions)

    def replay(self) -> Pending:
        """Run every dispatch in order, without waiting for the end.

        Returns
        -------
        Pending
            Gives the reads; when `READBACK_SLOTS` submissions are unread, the oldest is read first.

        Raises
        ------
        DeviceError
            The Program or its device is closed, or a buffer it uses was released.
        DeviceLost
            The driver gave the device up.
        """
        return self.replays(1)[0]

    def replays(self, count: int) -> list[Pending]:
        """Replay several times, in one submit unless a driver might time out over it.

        Parameters
        ----------
        count : int
            1 to `times`.

        Returns
        -------
        list of Pending
            One of each replay; their reads arrive together.

        Raises
        ------
        DeviceError, DeviceLost
            As `replay`; of several submits some may have been made.
        """
        if not 1 <= count <= self.times:
            raise DeviceError(f"{self.label}: {count} replays at once, needs 1 to {self.times}")
        with self._queue.enter(self.label):
            self._check()
            with self._queue.translate_errors(self.label):
                if self._ring is not None:
                    self._ring.write(count)
                index, slot = self._submit(count)
                if slot is not None:
                    slot.start(index, count * self._stride)
            return self._pending(slot, count)

    @uninterrupted
    def replay_range(self, first: int, stop: int) -> Submitted:
        """Run some of the dispatches, without waiting for the end.

        The caller runs all ranges in order. Between two of them other Programs may run, if they
        leave this one's buffers alone. The first range takes the inputs; the reads come after the
        last one.

        Raises
        ------
        DeviceError, DeviceLost
            As `replay`.
        """
        queue, ends = self._queue, stop == len(self.dispatches)
        with queue.enter(self.label):
            self._check()
            with queue.translate_errors(self.label):
                if self._ring is not None and first == 0:
                    self._ring.write(1)
                # Its slot could be the one that is free for this run.
                self._forget_ahead()
                slot = self._free_slot() if self._reads and ends else None
                at, index = first, None
                for portion in split_portions(self.dispatches[first:stop]):
                    last = at + len(portion) == stop
                    copies = slot.copies[0] if slot is not None and last else ()
                    index = queue.send(
                        queue.record((self._commands[at : at + len(portion)], copies))
                    )
                    at += len(portion)
                queue.counters.dispatches += stop - first
                if slot is not None:
                    slot.start(index, self._stride)
            return Submitted(self.label, queue, index, self._pending(slot, 1)[0] if ends else None)

    def replay_between(
        self, before: Sequence[tuple[Binding, Binding]], after: Sequence[tuple[Binding, Binding]]
    ) -> None:
        """Copy ranges, run every dispatch, and copy other ranges, in as few submits as possible.

        No data passes through the host.

        Raises
        ------
        DeviceError, DeviceLost
            As `replay`, and as `Device.copy`.
        """
        queue = self._queue
        with queue.enter(self.label):
            self._check()
            first, last = (
                [make_copy(*pair, self._pool, queue) for pair in p] for p in (before, after)
            )
            submits: list[list[Pass]] = [[(portion, ())] for portion in self._portions]
            submits[0].insert(0, ((), first))
            submits[-1].append(((), last))
            with queue.translate_errors(self.label):
                queue.counters.dispatches += len(self.dispatches)
                for passes in submits:
                    queue.send(queue.record(*passes))

    def _pending(self, slot: Slot | None, count: int) -> list[Pending]:
        if slot is None:
            return [Pending(None, 0, ())] * count
        reading = Reading(slot, self)
        self._under_way.pop(slot, None)
        self._under_way[slot] = weakref.ref(reading)
        return [Pending(reading, turn * self._stride, self._sizes) for turn in range(count)]

    @property
    def prepared(self) -> bool:
        """True if the next replay's commands are recorded already."""
        return self._ahead is not None

    @uninterrupted
    def prepare(self) -> None:
        """Record the next replay's commands while the host waits for the device.

        Only after two replays, and not while another thread holds the queue. Errors are ignored:
        the next replay records again and raises them. Several portions, as large prompts have, are
        recorded when they are due.
        """
        queue = self._queue
        # A graph that runs once or twice would be recorded in vain.
        if self._replays < 2 or not queue.lock.acquire(blocking=False):
            return
        try:
            with suppress(DeviceError), queue.enter(self.label), queue.translate_errors(self.label):
                whole = self._count <= self._together and not self._ahead
                slot = self._idle_slot() if whole else None
                if slot is not None:
                    self._ahead = self._record(slot, self._count), slot, self._count
        finally:
            queue.lock.release()

    def seal(self) -> bool:
        """Finish the commands that `prepare` recorded, if the next replay is certain to come.

        Submitting them takes less time then. Errors are left to the next replay. The caller has
        interrupts held: each token comes here, so this is shorter than `prepare`.

        Returns
        -------
        bool
            Whether they are finished; otherwise none were recorded yet.
        """
        queue = self._queue
        # The write of its inputs finds out whether the device is lost.
        if not self.prepared or self._ring is None or queue.forked:
            return False
        delay_if_over()
        if not queue.lock.acquire(blocking=False):
            return False
        try:
            ahead, self._ahead = self._ahead, None
            # Another thread may have sent them.
            if ahead is None or queue.closed or queue.lost:
                return False
            with suppress(wgpu.GPUError):
                self._ahead = queue.seal(ahead[0]), ahead[1], ahead[2]
            return self._ahead is not None
        finally:
            queue.lock.release()

    def timed(self) -> list[Timing]:
        """Run once, measuring each dispatch, and wait for the end.

        The device's clock is read before and after each dispatch where it has one; elsewhere each
        is submitted alone, and the host's clock includes the submit.

        Raises
        ------
        DeviceError, DeviceLost
            As `replay`.
        """
        with self._queue.enter(self.label):
            self._check()
            with self._queue.translate_errors(self.label):
                seconds = [
                    s
                    for portion in self._portions
                    for s in measure(self._queue, self._pool, portion)
                ]
        named = zip(self.dispatches, seconds, strict=True)
        return [Timing(d.name, d.pipeline.label, s) for d, s in named]

    @uninterrupted
    def close(self) -> None:
        """Drop bind groups and readback buffers; calling it again is harmless.

        Another thread that is reading results gets them first.
        """
        if self._queue.forked:
            return
        with self._queue.lock:
            self._closed = True
            readers = [reader() for reader in self._under_way.values()]
        for reading in readers:
            if reading is not None:
                reading.drop()
        with self._queue.lock:
            self._release()

    def _release(self) -> None:
        self._portions = []
        self._forget_ahead()
        self._binder.close()
        for slot in self._slots:
            slot.release()
        self._slots, self._under_way = [], {}
        if self._ring is not None:
            self._ring.release()

    def _forget_ahead(self) -> None:
        if self._ahead is not None:
            self._queue.drop(self._ahead[0])
            self._ahead = None

    def _count_replays_per_submit(self) -> int:
        """Return the number of replays that fit one submit; 0 if one needs several."""
        if len(self._portions) > 1:
            return 0
        work = sum(dispatch.work for dispatch in self.dispatches)
        most = MAX_DISPATCHES_PER_SUBMIT // max(len(self.dispatches), 1)
        return max(1, min(most, MAX_WORK_PER_SUBMIT // max(work, 1)))

    def _check(self) -> None:
        """Refuse a replay that would abort the process.

        Whether all buffers live is asked again only when some buffer was released since.
        """
        if self._closed:
            raise DeviceError(f"{self.label}: the program is closed")
        if self._epoch != self._pool.epoch:
            for buffer in self._buffers:
                if not buffer.alive:
                    raise DeviceError(f"{self.label}: {buffer} is used after its release")
            self._epoch = self._pool.epoch

    def _free_slot(self) -> Slot:
        """Return a slot to read into; if all are in flight, read one first."""
        if (idle := self._idle_slot()) is not None:
            return idle
        oldest = next(iter([*self._find_abandoned(), *self._under_way]))
        reading = self._under_way[oldest]()
        if reading is None:
            oldest.finish(self.label)
        else:
            reading.wait()
        return oldest

    def _idle_slot(self) -> Slot | None:
        """Return a slot that needs no waiting: a free one, or a new one if all are in use."""
        for slot in self._slots:
            if not slot.busy:
                return slot
        if len(self._slots) == READBACK_SLOTS or self._find_abandoned():
            return None
        return self._new_slot()

    def _find_abandoned(self) -> list[Slot]:
        """Return the in-flight slots whose readers were collected, the oldest first."""
        return [slot for slot, reader in self._under_way.items() if reader() is None]

    def _new_slot(self) -> Slot:
        slot = Slot(self._queue, self._pool, self.times * self._stride)
        slot.take(self._reads, self.times)
        self._slots.append(slot)
        return slot

    def _make_passes(self, slot: Slot | None, turn: int, count: int) -> list[list[Pass]]:
        """Return the passes of one of several replays, a list for each of its portions."""
        submits: list[list[Pass]] = [[(portion, ())] for portion in self._portions]
        if slot is not None:
            submits[-1] = [(self._portions[-1], slot.copies[turn])]
        if count > 1 and self._ring is not None:
            submits[0].insert(0, ((), self._ring.fetch(turn)))
        return submits

    def _record(self, slot: Slot | None, count: int) -> Recording:
        """Record replays that fit one submit."""
        turns = [self._make_passes(slot, turn, count)[0] for turn in range(count)]
        return self._queue.record(*chain.from_iterable(turns))

    def _submit(self, count: int) -> tuple[object, Slot | None]:
        """Submit all replays; return the index to wait for, and the slot of the reads."""
        queue, ahead = self._queue, self._ahead
        queue.counters.dispatches += count * len(self.dispatches)
        self._replays += 1
        self._count = count
        if ahead is not None and ahead[2] == count:
            self._ahead = None
            return queue.send(ahead[0]), ahead[1]
        self._forget_ahead()
        slot = self._free_slot() if self._reads else None
        if count <= self._together:
            return queue.send(self._record(slot, count)), slot
        index: object = None
        for turn in range(count):
            for passes in self._make_passes(slot, turn, count):
                index = queue.send(queue.record(*passes))
        return index, slot
