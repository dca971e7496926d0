"""The self-test: a check that an adapter computes correctly, made before its first use.

Drivers miscompile. A matrix product, quantised products, softmax and attention are compared with
their NumPy references. If one is wrong, the device is tested again with kernels without subgroups,
and refused if that does not help. Kernels that only fusion rules use are compared, too, and not
used if wrong. The verdict is stored by adapter, driver, profile and shaders. The test takes a few
seconds once; on a rasteriser, which compiles slowly, a minute, so that several devices of the same
adapter share the work.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TypeVar, cast

import numpy as np

from wgpu_backend import dtypes
from wgpu_backend.device.device import Device
from wgpu_backend.device.interrupts import deliver, wait_until
from wgpu_backend.errors import DeviceError
from wgpu_backend.graph.capabilities import Capabilities
from wgpu_backend.kernels import complete
from wgpu_backend.kernels.cases import (
    LARGEST_ERROR,
    ROUNDING_ERROR,
    attention,
    by_expert,
    draw_quantised,
    gated_into_product,
    next_token,
    normal,
    normed_sum,
)
from wgpu_backend.kernels.table import FAMILIES
from wgpu_backend.ml.calibration.device_cache import cache_file, read, write
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.attention.paged import Scores
from wgpu_backend.ops.linear.activation_rounding import EVERY_PRODUCT
from wgpu_backend.ops.op import fusions

# In a verdict: kernels that use them go wrong.
SUBGROUPS = "subgroups"
MATRIX = "matrix units"
TRIAL_SECONDS = 120  # for a process that tries matrix units; drivers take seconds to compile
MOST_DEVICES = 4  # of a rasteriser that share the work: each takes a core and memory
# Rules without which the one under test never finds what it looks for.
# Rules that apply where eight bits do not pay.
    # The errors of a gate, of its other factor, and of the product after them add up.
# A verdict with this word: kernels that use subgroups are wrong.
# Devices of a rasteriser that share the work: each takes a core and memory.
_LOG = logging.getLogger("wgpu_backend.self_test")
Progress = Callable[[float], None]
Case = TypeVar("Case")


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison: the squared error over the squared reference, and the largest allowed."""

    name: str
    error: float
    largest: float = LARGEST_ERROR

    @property
    def passed(self) -> bool:
        """True if rounding explains the error; NaN fails."""
        return self.error <= self.largest

    def __str__(self) -> str:
        return f"{self.name} (NMSE {self.error:.1e}, at most {self.largest:.0e} is rounding)"


def _ignore_progress(share: float) -> None:
    """Ignore the progress."""


class LeftOutWarning(UserWarning):
    """A fast kernel computes wrong values on this device and is not used."""


def self_test(executor: Executor, run: Run | None = None) -> list[Finding]:
    """Compare the device with NumPy, kernel by kernel, without fusion."""
    return (run or Run([executor])).findings([*cases()], _finding)


def fused_test(executor: WgpuExecutor, run: Run | None = None) -> list[Finding]:
    """Compare each op that only rules make, with rounding wherever it is possible."""
    return (run or Run([executor])).findings([*fused_cases()], _fused_finding)


def _finding(executor: Executor, case: tuple[str, Make]) -> Finding:
    name, make = case
    return Finding(name, _error(executor, make))


def _fused_finding(executor: Executor, case: tuple[str, float, Make]) -> Finding:
    assert isinstance(executor, WgpuExecutor)
    name, largest, make = case
    # A device that multiplies packed bytes takes them unless f16 was measured to be faster.
    rounded, unrounded = EVERY_PRODUCT, executor.capabilities.unrounded
    if name in INSTEAD_OF_BYTES:
        rounded, unrounded = frozenset[str](), EVERY_PRODUCT
    known = replace(executor.capabilities, rounded=rounded, unrounded=unrounded)
    tried = executor.as_if(known)
    tried.rules = fusions([*BEFORE.get(name, ()), name], exact=False)
    return Finding(name, _error(tried, make), largest)


def _as_if(executor: Executor, capabilities: Capabilities) -> Executor:
    return executor.as_if(capabilities) if isinstance(executor, WgpuExecutor) else executor


class Run:
    """A run of comparisons, on one device or on several of the same adapter, with its progress.

    Parameters
    ----------
    executors : sequence of Executor
        The first is the one that is asked about; the others only help.
    progress : callable or None
        Called with the share that is done, by the waiting thread.
    """

    def __init__(self, executors: Sequence[Executor], progress: Progress | None = None) -> None:
        self._executors = executors
        self._progress = progress or _ignore_progress
        self._done = 0
        self._total = len([*cases(), *fused_cases()])

    def as_if(self, capabilities: Capabilities) -> None:
        """Choose kernels by these capabilities from now on."""
        self._executors = [_as_if(executor, capabilities) for executor in self._executors]

    def findings(
        self, wanted: Sequence[Case], find: Callable[[Executor, Case], Finding]
    ) -> list[Finding]:
        """Return the results of the comparisons, in their order."""
        waiting = deque(enumerate(wanted))
        found: dict[int, Finding] = {}
        before = self._done

        def work(executor: Executor, tell: Callable[[], None]) -> None:
            while True:
                try:
                    number, case = waiting.popleft()
                except IndexError:
                    return
                deliver()
                found[number] = find(executor, case)
                tell()

        def tell() -> None:
            self._done = before + len(found)
            self._progress(min(self._done / self._total, 1.0))

        first, *others = self._executors
        with ThreadPoolExecutor(max(len(others), 1), "wgpu_backend self-test") as pool:
            helping = [pool.submit(work, other, lambda: None) for other in others]
            try:
                work(first, tell)
                for each in helping:
                    wait_until(lambda pause, one=each: wait([one], pause).done)
                    each.result()
                    tell()
            finally:
                waiting.clear()
        return [found[number] for number in range(len(wanted))]


def require_trust(
    executor: Executor,
    profile: str,
    cache: Path | None = None,
    *,
    progress: Progress | None = None,
) -> frozenset[str]:
    """Return the verdict on this adapter, driver and shaders; run the self-test if there is none.

    Parameters
    ----------
    executor : Executor
        Without fusion rules.
    cache : Path or None
        File that remembers verdicts; None for one in the user's cache folder.
    progress : callable or None
        Called with the share that is done, if the test runs; an error it raises ends the test.

    Returns
    -------
    frozenset of str
        Ops of fusion rules to leave out, as they compute wrong values here, and `SUBGROUPS` where
        kernels have to do without them, see `apply_verdict`.

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
        verdicts[key] = _test_device(executor, path, progress or _ignore_progress)
        # Without a writable cache, the device is tested at each start.
        with suppress(OSError):
            write(path, verdicts)
    return frozenset(verdicts[key])


def remembered_trust(executor: Executor, profile: str, cache: Path | None = None) -> frozenset[str]:
    """Return the remembered verdict, or an empty one, for uses that do not need the test."""
    verdicts = _verdicts(cache or cache_file("trusted.json"))
    return frozenset(verdicts.get(device_key(executor, profile), []))


def apply_verdict(capabilities: Capabilities, verdict: Collection[str]) -> Capabilities:
    """Return what kernels may use after a verdict."""
    if MATRIX in verdict:
        capabilities = replace(capabilities, matrix=None)
    if SUBGROUPS in verdict:
        capabilities = replace(capabilities, subgroups=False, lanes=0, matrix=None)
    return capabilities


def _test_device(executor: Executor, path: Path | None, progress: Progress) -> list[str]:
    """Test a device and report the progress, as it takes long."""
    info, begin = executor.info, time.perf_counter()
    takes = "about a minute" if info.kind == "software" else "some seconds"
    kept = f"remembered in {path.parent}" if path else "not remembered, as there is no home folder"
    _LOG.warning("first use of %s: testing its kernels, %s; %s", info.name, takes, kept)
    progress(0.0)
    with ExitStack() as stack:
        run = Run([executor, *_helpers(executor, stack)], progress)
        units = _find_wrong_units(executor, run)
        features = [*units, *_find_wrong_features(executor, run, units)]
        verdict = [*features, *_find_wrong_rules(executor, run)]
    _LOG.warning("%s is tested, %.0f s", info.name, time.perf_counter() - begin)
    return verdict


def _helpers(executor: Executor, stack: ExitStack) -> Iterator[WgpuExecutor]:
    """Open more devices of a rasteriser, whose queue compiles one kernel after another."""
    if executor.info.kind != "software" or not isinstance(executor, WgpuExecutor):
        return
    device = executor.device
    for _ in range(min(os.cpu_count() or 1, MOST_DEVICES) - 1):
        try:
            opened = Device.open(executor.info, profile=device.profile)
            helper = WgpuExecutor(opened, executor.capabilities)
        # Then fewer devices share the work.
        except DeviceError:
            return
        stack.callback(helper.close)
        yield helper


def _find_wrong_units(executor: Executor, run: Run) -> list[str]:
    """Try matrix units in a process of its own, as young drivers may end it."""
    known = executor.capabilities
    if known.matrix is None or known.software or not isinstance(executor, WgpuExecutor):
        return []
    module, info = "wgpu_backend.ml.calibration.self_test", executor.info
    command = [sys.executable, "-m", module, info.id, info.implementation]
    try:
        tried = subprocess.run(command, capture_output=True, timeout=TRIAL_SECONDS, check=False)
        why = "" if tried.returncode == 0 else f"a trial ended with {tried.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"a trial did not end: {type(error).__name__}"
    if not why:
        return []
    _warn(f"device {info.id}: matrix units are not used, {why}")
    run.as_if(complete(apply_verdict(known, [MATRIX])))
    return [MATRIX]


def _find_wrong_features(executor: Executor, run: Run, units: Sequence[str]) -> list[str]:
    """Return the features that kernels must not use, and stop using them in this run."""
    info, wrong = executor.info, _wrong(executor, run)
    if not wrong:
        return []
    if executor.capabilities.subgroups and isinstance(executor, WgpuExecutor):
        run.as_if(complete(apply_verdict(executor.capabilities, [*units, SUBGROUPS])))
        if not _wrong(executor, run):
            _warn(f"device {info.id}: kernels with subgroups are not used, as they fail in {wrong}")
            return [SUBGROUPS]
    raise DeviceError(
        f"device {info.id}: {info.name} with {info.driver} computes wrong values in {wrong}; "
        "update the driver or choose another device"
    )


def _wrong(executor: Executor, run: Run) -> str:
    return ", ".join(str(f) for f in self_test(executor, run) if not f.passed)


def _warn(message: str) -> None:
    warnings.warn(message, LeftOutWarning, stacklevel=6)


def _find_wrong_rules(executor: Executor, run: Run) -> list[str]:
    if not isinstance(executor, WgpuExecutor):
        return []
    wrong = [f for f in fused_test(executor, run) if not f.passed]
    for finding in wrong:
        _warn(f"device {executor.info.id}: {finding} is not used, the ops it fuses run one by one")
    return [f.name for f in wrong]


def device_key(executor: Executor, profile: str) -> str:
    """Return the key of verdicts and measurements: adapter, driver, profile and shaders."""
    info = executor.info
    digest = sha256()
    for name, text in sorted(_shaders(files("wgpu_backend.shaders"), "")):
        digest.update(name.encode() + b"\0" + text)
    # wgpu-native's keys are as they were before there was another implementation.
    other = f"|{info.implementation}" if info.implementation == "dawn" else ""
    return f"{info.api}|{info.name}|{info.driver}{other}|{profile}|{digest.hexdigest()[:16]}"


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
    """Return the NMSE of a case, NaN if the device gives one."""
    wanted = _values(NumpyExecutor(), make).astype(np.float64)
    found = _values(executor, make).astype(np.float64)
    return float(np.sum((found - wanted) ** 2) / np.sum(wanted**2))


def _values(executor: Executor, make: Make) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    with Context(executor) as context:
        return make(context, np.random.default_rng(1)).numpy()


def _try_matrix_units(device: str, implementation: str) -> bool:
    """Multiply by matrix units once, and return whether the product is right."""
    opened = Device.open(device, implementation=implementation)
    executor = WgpuExecutor(opened).as_if(complete(opened.capabilities))
    try:
        cases = [case for case in fused_cases() if case[0] == "linear_matrix"]
        return all(_fused_finding(executor, case).passed for case in cases)
    finally:
        executor.close()


if __name__ == "__main__":
    sys.exit(0 if _try_matrix_units(*sys.argv[1:]) else 1)
