"""Imported by a worker that is to lose devices: all at `SIGUSR1`, second ones at `SIGUSR2`."""

import signal
import threading
from functools import wraps
from weakref import WeakSet

import wgpu_backend as wb
from wgpu_backend.device.device import Device


@wb.architecture("lost")
class Lost(wb.Decoder):
    """Nobody loads it: a file that registers nothing is an error."""

    def layer(self, config: wb.nn.LayerConfig) -> wb.nn.DecoderLayer:
        raise NotImplementedError


# The collector's list has them, too, but reading it refers to tuples that other threads are making,
# where CPython then fails with a SystemError.
opened: WeakSet[Device] = WeakSet()
open_device = Device.__init__


@wraps(open_device)
def note(self: Device, *args: object, **options: object) -> None:
    open_device(self, *args, **options)
    opened.add(self)


Device.__init__ = note


def lose(named: str = "") -> None:
    for each in list(opened):
        if named in each.info.id:
            each.lose_for_test()


# In a thread: a signal may come while its own thread holds the device's locks.
signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=lose).start())
signal.signal(signal.SIGUSR2, lambda *_: threading.Thread(target=lose, args=("#1",)).start())
