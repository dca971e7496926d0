"""Whether an adapter computes what it should, asked before it is first trusted.

Drivers miscompile. A matrix product, quantised products, softmax and attention are compared with
their NumPy twins. A device that gets one wrong is tried again with kernels that do without its
subgroups, and refused if that does not help. Kernels that only fusion rules use are compared, too;
one that is wrong is left out. The verdict is remembered by adapter, driver, profile and shaders, so
that it costs a few seconds once.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import cast

import numpy as np

from wgpu_backend.errors import DeviceError
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.self_test_cases import BEFORE, LARGEST_ERROR, Make, cases, fused_cases
from wgpu_backend.ml.user_cache import cache_file, read, write
from wgpu_backend.ml.wgpu_executor import WgpuExecutor
from wgpu_backend.ops.op import fusions
from wgpu_backend.ops.rounding import EVERY_PRODUCT

SUBGROUPS = "subgroups"  # in a verdict: kernels that use them go wrong


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison: the squared error over the squared reference, and the largest allowed."""

    name: str
    error: float
    largest: float = LARGEST_ERROR

    @property
    def passed(self) -> bool:
        """Whether the error is what rounding explains; NaN is not."""
        return self.error <= self.largest

    def __str__(self) -> str:
        return f"{self.name} (NMSE {self.error:.1e}, at most {self.largest:.0e} is rounding)"


class LeftOutWarning(UserWarning):
    """A fast kernel computes wrong values on this device and is not used."""


def self_test(executor: Executor) -> list[Finding]:
    """Compare the device with NumPy, kernel by kernel, as they are without fusion."""
    return [Finding(name, _error(executor, make)) for name, make in cases()]


def fused_test(executor: WgpuExecutor) -> list[Finding]:
    """Compare each op that only rules make, by its name; rounding as if it paid everywhere."""
    found: list[Finding] = []
    device = executor.device
    before = device.capabilities
    device.capabilities = replace(before, rounded=EVERY_PRODUCT)
    try:
        for name, largest, make in fused_cases():
            executor.rules = fusions([*BEFORE.get(name, ()), name], exact=False)
            found.append(Finding(name, _error(executor, make), largest))
    finally:
        executor.rules = {}
        device.capabilities = before
    return found


def require_trust(executor: Executor, profile: str, cache: Path | None = None) -> frozenset[str]:
    """Run the self-test unless this adapter, driver and set of shaders have a verdict already.

    Parameters
    ----------
    executor : Executor
        Without fusion rules.
    profile : str
    cache : Path or None
        File that remembers verdicts; None for one in the user's cache folder.

    Returns
    -------
    frozenset of str
        Ops of fusion rules to leave out, as they compute wrong values here, and `SUBGROUPS` where
        the executor does without them from now on.

    Raises
    ------
    DeviceError
        A kernel without which nothing goes computes wrong values.

    Warns
    -----
    LeftOutWarning
        For each thing that is left out, when it is found; not when it is remembered.
    """
    path = cache or cache_file("trusted.json")
    key = device_key(executor, profile)
    verdicts = _verdicts(path)
    if key not in verdicts:
        verdicts[key] = [*_features_left_out(executor), *_left_out(executor)]
        with suppress(OSError):  # where nothing can be remembered, it is tested each time
            write(path, verdicts)
    if SUBGROUPS in verdicts[key]:
        _do_without_subgroups(executor)
    return frozenset(verdicts[key])


def _features_left_out(executor: Executor) -> list[str]:
    """Features of the device that the executor has to do without."""
    info, wrong = executor.info, _wrong(executor)
    if not wrong:
        return []
    if executor.capabilities.subgroups and _do_without_subgroups(executor) and not _wrong(executor):
        _warn(f"device {info.id}: kernels with subgroups are not used, as they fail in {wrong}")
        return [SUBGROUPS]
    raise DeviceError(
        f"device {info.id}: {info.name} with {info.driver} computes wrong values in {wrong}; "
        "update the driver or choose another device"
    )


def _wrong(executor: Executor) -> str:
    return ", ".join(str(f) for f in self_test(executor) if not f.passed)


def _do_without_subgroups(executor: Executor) -> bool:
    """Choose kernels as for a device without subgroups; False where there are no such kernels."""
    if not isinstance(executor, WgpuExecutor):
        return False
    device = executor.device
    device.capabilities = replace(device.capabilities, subgroups=False, lanes=0)
    return True


def _warn(message: str) -> None:
    warnings.warn(message, LeftOutWarning, stacklevel=5)


def _left_out(executor: Executor) -> list[str]:
    if not isinstance(executor, WgpuExecutor):
        return []
    wrong = [f for f in fused_test(executor) if not f.passed]
    for finding in wrong:
        _warn(f"device {executor.info.id}: {finding} is not used, the ops it fuses run one by one")
    return [f.name for f in wrong]


def device_key(executor: Executor, profile: str) -> str:
    """Name of all that a verdict, or a measurement, hangs on: adapter, driver, profile, shaders."""
    info = executor.info
    digest = sha256()
    for name, text in sorted(_shaders(files("wgpu_backend.shaders"), "")):
        digest.update(name.encode() + b"\0" + text)
    return f"{info.api}|{info.name}|{info.driver}|{profile}|{digest.hexdigest()[:16]}"


def _shaders(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _shaders(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(".wgsl"):
            yield prefix + entry.name, entry.read_bytes()


def _verdicts(path: Path | None) -> dict[str, list[str]]:
    found = {key: cast("list[object]", v) for key, v in read(path).items() if isinstance(v, list)}
    return {key: [str(name) for name in names] for key, names in found.items()}


def _error(executor: Executor, make: Make) -> float:
    """NMSE of a case, NaN where the device gives one."""
    wanted = _values(NumpyExecutor(), make).astype(np.float64)
    found = _values(executor, make).astype(np.float64)
    return float(np.sum((found - wanted) ** 2) / np.sum(wanted**2))


def _values(executor: Executor, make: Make) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    with Context(executor) as context:
        return make(context, np.random.default_rng(1)).numpy()
