"""Imported by a worker that is to lose devices: all at `SIGUSR1`, second ones at `SIGUSR2`."""

import gc
import signal
import threading

import wgpu_backend as wb
from wgpu_backend.device.device import Device


@wb.architecture("lost")
class Lost(wb.Decoder):
    """Nobody loads it: a file that registers nothing is an error."""

    def layer(self, config: wb.nn.LayerConfig) -> wb.nn.DecoderLayer:
        raise NotImplementedError


def lose(named: str = "") -> None:
    for each in gc.get_objects():
        if isinstance(each, Device) and named in each.info.id:
            each.lose_for_test()


# In a thread: a signal may come while its own thread holds the device's locks.
signal.signal(signal.SIGUSR1, lambda *_: threading.Thread(target=lose).start())
signal.signal(signal.SIGUSR2, lambda *_: threading.Thread(target=lose, args=("#1",)).start())
