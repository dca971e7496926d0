# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
"""A recorded list of dispatches that replays without making anything.

Pipelines and bind groups are ready when the Program is; a replay encodes the flat list again
(wgpu's command buffers can be used once), submits it in bounded portions, and has what was asked
for copied into host-visible buffers that stay. From the third replay on, the list is encoded ahead,
while the host waits for the replay before.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress

from wgpu_backend.device.binds import Binder, Dispatch, Range, padded, resolved
from wgpu_backend.device.buffers import Binding
from wgpu_backend.device.queue import Recording
from wgpu_backend.device.readback import Slot
from wgpu_backend.device.timings import Timing, measure
from wgpu_backend.errors import DeviceError

# A driver gives a device up when one submit runs too long (2 s on Windows). Dispatches that could
# take milliseconds say their work; this many others fit, and a decode step stays one submit, which
# matters on lavapipe: its submit blocks while the one before still runs.
MAX_DISPATCHES_PER_SUBMIT = 1024
# Bytes moved plus operations done by one submit: a third of a second at 100 G/s, a slow GPU.
MAX_WORK_PER_SUBMIT = 1 << 35
Given = tuple[Binding, memoryview]
"""Bytes of the host, a multiple of 4, and where on the device every replay puts them."""

# Replays whose results may be under way at once; the next one first takes the oldest's.
READBACK_SLOTS = 8


class Pending:
    """What a replay will have read, some time.

    Parameters
    ----------
    slot : Slot or None
        Where the bytes arrive; None when the Program reads nothing.
    sizes : sequence of int
        Bytes of each read.
    program : Program
        Whose slot it is, and who lives until the bytes are there.
    """

    def __init__(self, slot: Slot | None, sizes: Sequence[int], program: Program) -> None:
        self._slot = slot
        self._sizes = sizes
        self._label = program.label
        self._program = program if slot else None
        self._data: list[bytes] | None = None if slot else []
        self._lock = threading.RLock()  # a signal handler may close what its thread is reading

    def wait(self) -> list[bytes]:
        """Return the bytes of each of the Program's reads, in order; again gives the same.

        Without reads there is nothing to wait for: the list is empty at once.

        Raises
        ------
        DeviceLost
            The device was lost before they were there.
        DeviceError
            The Program or the device was closed before.
        """
        if (program := self._program) is not None:
            program.prepare()  # not under the lock below, which a replay that holds the queue takes
        with self._lock:
            if self._data is None:
                if self._slot is None:
                    raise DeviceError(f"{self._label}: closed before its results were read")
                data = self._slot.finish(self._label)
                self._slot = self._program = None
                self._data = split(data, self._sizes)
            return self._data

    def drop(self) -> None:
        """Forget the slot, after the read that is under way; what is not read by then never is."""
        with self._lock:
            self._slot = self._program = None


def split(data: bytes, sizes: Sequence[int]) -> list[bytes]:
    """Cut what lies in a slot into the reads; each starts at a multiple of 4."""
    parts: list[bytes] = []
    at = 0
    for size in sizes:
        parts.append(data[at : at + size])
        at += padded(size)
    return parts


def portions(dispatches: Sequence[Dispatch]) -> list[list[Dispatch]]:
    """Cut dispatches into what is submitted at once; at least one portion, maybe empty."""
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


class Program:
    """Dispatches ready to run again and again; immutable.

    Made by ``Device.program``. Each dispatch sees what the ones before it wrote.

    Parameters
    ----------
    binder : Binder
        Makes the bind groups; of this Program alone, it keeps them.
    dispatches : sequence of Dispatch
    reads : sequence of Binding
        Ranges copied to the host after the last dispatch.
    given : tuple of Binding and memoryview, or None
        Bytes of the host copied to the device before the first, as they are at each replay.
    label : str
        Name for messages.
    """

    def __init__(
        self,
        binder: Binder,
        dispatches: Sequence[Dispatch],
        reads: Sequence[Binding] = (),
        given: Given | None = None,
        label: str = "",
    ) -> None:
        self.label = label or "program"
        self.dispatches = tuple(dispatches)
        # Native commands are bare handles: what keeps the groups alive is the binder.
        self._binder = binder
        self._queue, self._pool = binder.queue, binder.pool
        self._reads = [self._copied("read", binding) for binding in reads]
        self._given = given and self._placed(*given)
        self._sizes = tuple(nbytes for _, _, nbytes in self._reads)
        self._portions = [
            [self._queue.command(d.pipeline.raw, binder.group(d), d.groups) for d in portion]
            for portion in portions(self.dispatches)
        ]
        bound = [b.buffer for d in self.dispatches for b in d.bindings]
        copied = [*self._reads, *(self._given[:1] if self._given else ())]
        self._buffers = {*bound, *(buffer for buffer, _, _ in copied)}
        self._epoch = -1
        self._slots: list[Slot] = []
        self._under_way: dict[Slot, weakref.ref[Pending]] = {}  # the oldest first
        self._replays = 0
        self._ahead: tuple[Recording, Slot] | None = None  # the next replay's, and where it reads
        self._closed = False

    def __del__(self) -> None:
        if hasattr(self, "_slots"):  # one that was refused has none
            self._queue.later(self.close)

    def __repr__(self) -> str:
        return f"Program({self.label}, {len(self.dispatches)} dispatches)"

    @property
    def submits(self) -> int:
        """How many submits one replay makes."""
        return len(self._portions)

    def replay(self) -> Pending:
        """Run every dispatch in order, without waiting for the end.

        Returns
        -------
        Pending
            Gives the reads; when `READBACK_SLOTS` replays are unread, the oldest is read first.

        Raises
        ------
        DeviceError
            The Program or its device is closed, or a buffer it uses was released.
        DeviceLost
            The driver gave the device up.
        """
        with self._queue.entered(self.label):
            self._check()
            with self._queue.translated(self.label):
                self._give()
                index, slot = self._submit()
                if slot is not None:
                    slot.start(index, slot.nbytes)
            pending = Pending(slot, self._sizes, self)
            if slot is not None:
                self._under_way.pop(slot, None)
                self._under_way[slot] = weakref.ref(pending)
            return pending

    @property
    def prepared(self) -> bool:
        """Whether the next replay's commands are recorded already."""
        return self._ahead is not None

    def prepare(self) -> None:
        """Record the next replay's commands: who waits for the device has the time for it.

        Only for what was replayed twice, and not while somebody else is at the queue. What fails
        here the next replay will say, which then records for itself. Several portions, as large
        prompts have, are recorded when they are due.
        """
        queue = self._queue
        if self._replays < 2 or not queue.lock.acquire(blocking=False):
            return
        try:
            with suppress(DeviceError), queue.entered(self.label), queue.translated(self.label):
                slot = self._idle_slot() if len(self._portions) == 1 and not self._ahead else None
                if slot is not None:
                    self._ahead = self._record(slot), slot
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
        with self._queue.entered(self.label):
            self._check()
            with self._queue.translated(self.label):
                seconds = [
                    s
                    for portion in self._portions
                    for s in measure(self._queue, self._pool, portion)
                ]
        named = zip(self.dispatches, seconds, strict=True)
        return [Timing(d.name, d.pipeline.label, s) for d, s in named]

    def close(self) -> None:
        """Drop bind groups and readback buffers; again is harmless.

        Another thread that is reading results gets them first.
        """
        if self._queue.forked:
            return
        with self._queue.lock:
            self._closed = True
            readers = [reader() for reader in self._under_way.values()]
        for pending in readers:
            if pending is not None:
                pending.drop()
        with self._queue.lock:
            self._release()

    def _release(self) -> None:
        self._portions = []
        if self._ahead is not None:
            self._queue.drop(self._ahead[0])
            self._ahead = None
        self._binder.close()
        for slot in self._slots:
            slot.release()
        self._slots, self._under_way = [], {}

    def _copied(self, what: str, binding: Binding) -> Range:
        """Check what is read or given; copies start and end at multiples of 4."""
        subject = f"{self.label}: {what}"
        buffer, offset, nbytes = resolved(subject, binding, self._pool)
        if offset % 4:
            raise DeviceError(f"{subject}: offset {offset}, a multiple of 4 is needed")
        return buffer, offset, nbytes

    def _placed(self, binding: Binding, data: memoryview) -> tuple[Range, memoryview]:
        """Check what is given."""
        place = self._copied("given", binding)
        if data.nbytes != place[2] or data.nbytes % 4:
            raise DeviceError(
                f"{self.label}: given {data.nbytes} bytes for {place[2]}, a multiple of 4 is needed"
            )
        return place, data

    def _check(self) -> None:
        """Refuse to replay what would abort the process.

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
        """Return a slot to read into; where all are under way, one is read first."""
        if (idle := self._idle_slot()) is not None:
            return idle
        oldest = next(iter([*self._abandoned(), *self._under_way]))
        pending = self._under_way[oldest]()
        if pending is None:
            oldest.finish(self.label)
        else:
            pending.wait()
        return oldest

    def _idle_slot(self) -> Slot | None:
        """Return a slot that needs no waiting: a free one, or a new one if no reader is gone."""
        for slot in self._slots:
            if not slot.busy:
                return slot
        if len(self._slots) == READBACK_SLOTS or self._abandoned():
            return None
        return self._new_slot()

    def _abandoned(self) -> list[Slot]:
        """Slots under way whose readers are gone, the oldest first."""
        return [slot for slot, reader in self._under_way.items() if reader() is None]

    def _new_slot(self) -> Slot:
        slot = Slot(self._queue, self._pool, sum(padded(size) for size in self._sizes))
        slot.take(self._reads)
        self._slots.append(slot)
        return slot

    def _give(self) -> None:
        """Copy what is given to the device."""
        if self._given is not None:
            (buffer, offset, _), data = self._given
            self._queue.write(buffer.raw, offset, data)

    def _record(self, slot: Slot | None) -> Recording:
        """Commands of the last portion, and the copies behind it."""
        return self._queue.record(self._portions[-1], slot.copies if slot else ())

    def _submit(self) -> tuple[object, Slot | None]:
        """Submit every portion; returns what to wait for, and where the reads will be."""
        queue, ahead = self._queue, self._ahead
        queue.counters.dispatches += len(self.dispatches)
        self._replays += 1
        if ahead is not None:
            self._ahead = None
            return queue.send(ahead[0]), ahead[1]
        slot = self._free_slot() if self._reads else None
        for portion in self._portions[:-1]:
            queue.run(portion)
        return queue.send(self._record(slot)), slot
