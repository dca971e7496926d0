"""The choice between wgpu-native and Dawn, by a short benchmark whose result is kept in a file.

Dawn supports matrix units (tensor cores), which speed up prompts; wgpu-native does not. Which is
faster depends on the driver, so ``auto`` measures both once: a product of a prompt's columns, and a
chain of products of one column, as in decoding. The benchmark has its own process, since a fault in
a driver's support of matrix units may end it.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import cast

import numpy as np

from wgpu_backend.device.adapters import IMPLEMENTATIONS, describe, requested_implementation
from wgpu_backend.device.device import Device
from wgpu_backend.dtypes import Q4_0
from wgpu_backend.graph.capabilities import DeviceInfo, Profile
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.calibration.device_cache import cache_file, read, write
from wgpu_backend.ml.calibration.probe import probe_capabilities
from wgpu_backend.ml.calibration.self_test import LeftOutWarning, adapter_key
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Array, Executor, Recorded
from wgpu_backend.ml.tensor import Tensor, leaf
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.op import fusions

REMEMBERED = "implementations.json"
# Dawn is chosen if prompts take at most 0.8 and decoding at most 1.1 of wgpu-native's time.
PROMPT_GAIN, DECODE_LOSS = 0.8, 1.1
# Squared error of Dawn's product relative to wgpu-native's. Both may round to f16.
LARGEST_ERROR = 1e-5
TRIAL_SECONDS = 300.0
_LOG = logging.getLogger("wgpu_backend")


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes of the measured products.

    Parameters
    ----------
    width : int
        Rows and columns of the weight, a multiple of 256.
    tokens : int
        Columns of the prompt's product.
    layers : int
        Products of the chain that imitates decoding.
    rounds : int
        Repetitions, of which the fastest counts.
    """

    width: int = 4096
    tokens: int = 512
    layers: int = 48
    rounds: int = 8


@dataclass(frozen=True, slots=True)
class Race:
    """The times of both implementations on a device.

    Parameters
    ----------
    prompt, decode : mapping of str to float
        Seconds of the product of many columns, and of the chain, by implementation.
    error : float
        NMSE of Dawn's product relative to wgpu-native's.
    failure : str
        The reason if there are no times, otherwise empty.
    """

    prompt: Mapping[str, float]
    decode: Mapping[str, float]
    error: float = 0.0
    failure: str = ""

    @property
    def winner(self) -> str:
        """Return ``dawn`` if its prompts are clearly faster and decoding is about as fast."""
        if self.failure or not self.error <= LARGEST_ERROR:
            return "wgpu"
        faster = self.prompt["dawn"] < PROMPT_GAIN * self.prompt["wgpu"]
        steady = self.decode["dawn"] < DECODE_LOSS * self.decode["wgpu"]
        return "dawn" if faster and steady else "wgpu"


def pick_implementation(
    info: DeviceInfo, implementation: str | None, profile: Profile, *, race: bool
) -> str | None:
    """Return the implementation to open a device with; measure if neither is known to be faster.

    Parameters
    ----------
    implementation : str or None
        The caller's choice, see `find_adapter`.
    race : bool
        Whether to measure; otherwise only a stored result counts.

    Returns
    -------
    str or None
        None to leave the choice to `find_adapter`: the caller named an implementation, only one
        fits, or there is no result.

    Warns
    -----
    LeftOutWarning
        The measurement failed, so Dawn is not used. Only ``tune`` repeats it.
    """
    if not has_choice(info) or requested_implementation(info, implementation) != "auto":
        return None
    if known := recall(info, profile):
        return known.winner
    if not race:
        return None
    _LOG.warning("first use of %s: comparing wgpu-native and Dawn, takes some seconds", info.name)
    found = run_race(info, profile)
    if found.failure:
        warnings.warn(
            f"device {info.id}: Dawn is not used, {found.failure}; `wgpu-backend tune` tries again",
            LeftOutWarning,
            stacklevel=5,
        )
    # Without a writable cache, the benchmark runs at each start.
    with suppress(OSError):
        remember(info, profile, found)
    return found.winner


def has_choice(info: DeviceInfo) -> bool:
    """Return whether both implementations support a GPU, and Dawn its matrix units."""
    # A software rasteriser emulates matrix units, so that Dawn is always slower there.
    both = set(IMPLEMENTATIONS) <= set(info.implementations)
    return both and info.matrix is not None and info.kind != "software"


def run_race(info: DeviceInfo, profile: Profile) -> Race:
    """Measure both implementations in a separate process."""
    command = [sys.executable, "-m", __name__, info.id, profile]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Race({}, {}, failure=f"the benchmark did not finish: {type(error).__name__}")
    found = _parse(done.stdout) if done.returncode == 0 else None
    if found is None:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Race({}, {}, failure=f"the benchmark's process ended with {done.returncode}: {last}")
    return found


def recall(info: DeviceInfo, profile: Profile, cache: Path | None = None) -> Race | None:
    """Return the stored race of an adapter, driver, profile and versions; None if there is none."""
    found = read(cache or cache_file(REMEMBERED)).get(_key(info, profile))
    return _parse(json.dumps(found)) if found else None


def remember(info: DeviceInfo, profile: Profile, found: Race, cache: Path | None = None) -> Path:
    """Write a race to the file that `pick_implementation` reads.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    path = cache or cache_file(REMEMBERED)
    everything = read(path)
    key = _key(info, profile)
    # Moved to the end, since a full file drops its first entries.
    everything.pop(key, None)
    return write(path, {**everything, key: asdict(found)})


def _key(info: DeviceInfo, profile: Profile) -> str:
    return f"{adapter_key(info, profile)}|{_version('wgpu')}|{_version('wgpudawn')}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _parse(text: str) -> Race | None:
    """Read a race from JSON; None if it is damaged."""
    try:
        found = cast("dict[str, object]", json.loads(text.strip().splitlines()[-1]))
        race = Race(**found)  # pyright: ignore[reportArgumentType] checked below
        times = (race.prompt, race.decode)
        sound = race.failure or all(float(t[name]) > 0 for t in times for name in IMPLEMENTATIONS)
        return race if sound and isinstance(race.error, float) else None
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None


def measure(
    device: str, profile: Profile, sizes: Sizes | None = None, *, self_test: bool = True
) -> Race:
    """Measure both implementations in this process, one after the other.

    Parameters
    ----------
    self_test : bool
        Whether to test the kernels of each first, if that was not done yet.
    """
    sizes = sizes or Sizes()
    prompt: list[Recorded] = []
    decode: list[Recorded] = []
    with ExitStack() as stack:
        for name in IMPLEMENTATIONS:
            opened = WgpuExecutor(Device.open(device, profile=profile, implementation=name))
            stack.callback(opened.close)
            # Measured with the kernels and rules that a model would use later.
            known, wrong, trust = probe_capabilities(opened, profile, self_test=self_test)
            executor = opened.as_if(known)
            executor.rules = fusions(True, exact=False, without=wrong)
            executor.trust = trust
            prompt.append(record_products(executor, stack, sizes, sizes.tokens, 1))
            decode.append(record_products(executor, stack, sizes, 1, sizes.layers))
        wanted, found = (graph.run({}).wait()[0] for graph in prompt)
        times = [_time_in_turn(graphs, sizes.rounds) for graphs in (prompt, decode)]
    return Race(*times, error=_error(found, wanted))


def record_products(
    executor: Executor,
    stack: ExitStack,
    sizes: Sizes,
    tokens: int,
    layers: int,
    weights: int = 1,
) -> Recorded:
    """Record a chain of products with weights that take turns.

    They are scaled so that values neither grow nor shrink.

    Parameters
    ----------
    stack : ExitStack
        Releases the graph and the weights.
    tokens : int
        Columns of the products.
    layers : int
        Products.
    weights : int
        Weights; all have the same values.
    """
    rng = np.random.default_rng(1)
    spec = Spec.dense((sizes.width, sizes.width), Q4_0)
    blocks = rng.integers(0, 256, (spec.nbytes // 18, 18), np.uint8)
    # A scale of about 1 / (4.6 · √width) keeps the variance of the products at that of x.
    blocks[:, :2] = np.array([1 / (4.6 * sizes.width**0.5)], np.float16).view(np.uint8)
    data = memoryview(blocks.tobytes())
    own = [leaf(spec, executor.weight(spec, data, "weight", alone=True)) for _ in range(weights)]
    for weight in own:
        stack.callback(executor.free, weight.storage)
    context = stack.enter_context(Context(executor))
    x: Tensor = context.from_numpy(rng.standard_normal((tokens, sizes.width), np.float32))
    for layer in range(layers):
        x = own[layer % weights].mulmat(x)
    graph = context.record(x)
    stack.callback(graph.close)
    return graph


def _time_in_turn(graphs: Sequence[Recorded], rounds: int) -> dict[str, float]:
    """Return the least wall-clock time of each graph in seconds, with the host's part."""
    best: dict[str, float] = {name: float("inf") for name in IMPLEMENTATIONS}
    for _ in range(rounds):
        # Alternating, so that a busy moment or a change of clock affects both.
        for name, graph in zip(IMPLEMENTATIONS, graphs, strict=True):
            begin = time.perf_counter()
            graph.replay().wait()
            best[name] = min(best[name], time.perf_counter() - begin)
    return best


def _error(found: Array, wanted: Array) -> float:
    exact = wanted.astype(np.float64)
    return float(np.sum((found.astype(np.float64) - exact) ** 2) / np.sum(exact**2))


def explain(info: DeviceInfo, race: Race) -> str:
    """Describe a race in one line."""
    if race.failure:
        return f"{describe(info)}: {race.failure}; auto uses wgpu"
    ratios = [times["wgpu"] / times["dawn"] for times in (race.prompt, race.decode)]
    return (
        f"{describe(info)}: Dawn is {ratios[0]:.2f} x wgpu-native in prompts and {ratios[1]:.2f} x "
        f"in decoding; auto uses {race.winner}"
    )


def _main(device: str, profile: str) -> None:
    sys.stdout.write(json.dumps(asdict(measure(device, cast("Profile", profile)))))


if __name__ == "__main__":
    _main(*sys.argv[1:])
