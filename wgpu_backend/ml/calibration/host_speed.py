"""The speed of devices that compute on the CPU: NumPy, and software adapters.

Layers that no GPU takes and that none can read in the host's memory are computed by one of these.
Which is faster depends on the processor: NumPy reads weights as f32, a software adapter as they are
in the file.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np

from wgpu_backend.dtypes import F32, Q4_0
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.calibration.device_cache import cache_file, read, write
from wgpu_backend.ml.calibration.implementations import Sizes, record_products
from wgpu_backend.ml.calibration.self_test import adapter_key

REMEMBERED = "host_speeds.json"
# Weights of 38 MB in four bits, and eight times that in f32: more than caches of processors hold.
SIZES = Sizes(width=4096, layers=4, rounds=5)


def measure_speed(info: DeviceInfo, sizes: Sizes = SIZES, *, self_test: bool = True) -> float:
    """Return the bytes of weights per second that a step of one token reads on a device.

    Parameters
    ----------
    info : DeviceInfo
        The NumPy device or a software adapter.
    sizes : Sizes
        Sizes of the products, each with a weight of its own.
    self_test : bool
        Whether to test the kernels first, if that was not done yet.
    """
    from wgpu_backend.ml.backend import BackendParams, make_executor

    on_numpy = info.kind == "cpu"
    params = BackendParams(info, exact=False, self_test=self_test)
    executor = make_executor("cpu" if on_numpy else "wgpu", params)
    with ExitStack() as stack:
        stack.callback(executor.close)
        graph = record_products(executor, stack, sizes, 1, sizes.layers, sizes.layers)
        least = float("inf")
        for _ in range(sizes.rounds):
            begin = time.perf_counter()
            graph.replay().wait()
            least = min(least, time.perf_counter() - begin)
    stored = F32 if on_numpy else Q4_0
    return sizes.layers * stored.nbytes(sizes.width**2) / least


def recall_speed(info: DeviceInfo, cache: Path | None = None) -> float | None:
    """Return the stored speed of a device, in bytes per second; None if it was not measured."""
    found = read(cache or cache_file(REMEMBERED)).get(_key(info))
    return found if isinstance(found, float) and 0 < found < float("inf") else None


def remember_speed(info: DeviceInfo, speed: float, cache: Path | None = None) -> Path:
    """Write a speed to the file that `recall_speed` reads.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    path = cache or cache_file(REMEMBERED)
    everything, key = read(path), _key(info)
    # Moved to the end, since a full file drops its first entries.
    everything.pop(key, None)
    return write(path, {**everything, key: speed})


def _key(info: DeviceInfo) -> str:
    cores = f"{os.cpu_count()} cores"
    if info.kind == "cpu":
        return f"NumPy {np.__version__}|{cores}"
    return f"{adapter_key(info, 'full')}|{cores}"
