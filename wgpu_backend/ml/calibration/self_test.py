"""The self-test: a check that an adapter computes correctly, made before its first use.

Drivers miscompile. A matrix product, quantised products, softmax and attention are compared with
their NumPy references. If one is wrong, the device is tested again with kernels without subgroups,
and refused if that does not help. Kernels that only fusion rules use are compared before a graph
first uses them, and not used if wrong: a model uses few of them, and a rasteriser would compile
them all for two minutes. The verdicts are stored by adapter, driver, profile and shaders. On a
rasteriser several devices of the same adapter share the work.
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
from wgpu_backend.graph.capabilities import Capabilities, DeviceInfo
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
from wgpu_backend.ml.calibration.device_cache import cache_file, one_process_at_a_time, read, write
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.tensor import Tensor
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ml.wgpu.trust import Trust
from wgpu_backend.ops.attention.paged import Scores
from wgpu_backend.ops.linear.activation_rounding import EVERY_PRODUCT
from wgpu_backend.ops.op import fusions

Make = Callable[[Context, np.random.Generator], Tensor]
# Rules without which the one under test never finds what it looks for.
BEFORE = {
    "linear_gated": ("linear_q8",),
    "q8_weighted": ("linear_q8",),
    "linear_gated_q8": ("linear_q8", "linear_gated"),
    "linear_add_q8": ("linear_q8", "q8_weighted"),
    "rms_norm_pair": ("linear_q8_pair",),
    "q16_weighted": ("linear_q16",),
    "linear_gated_q16": ("linear_q16", "linear_gated"),
    "linear_add_q16": ("linear_q16", "q16_weighted"),
    "rope_attention": ("rope_put",),
    "heads_put": ("rope_put",),
    "latent_put": ("rope_join",),
    "linear_by_expert_tiles": ("linear_by_expert_add",),
    "linear_by_expert_sum": ("expert_sum",),
    **{trial.rule: trial.before for family in FAMILIES for trial in family.cases},
}

# Cases that a graph with one of these ops needs, too: on devices where their rules never apply,
# they run the op's own kernel.
ALSO = {
    "scaled_attention": "scaled_attention_matrix",
    "convolve": "convolve_matrix",
    "linear_by_expert": "linear_by_expert_add",
    "sample_into": "top_k_sample_into",
}

# Rules that apply where eight bits do not pay.
INSTEAD_OF_BYTES = {t.rule for family in FAMILIES for t in family.cases if not t.in_bytes}


def cases() -> Iterator[tuple[str, Make]]:
    """Yield the graphs that every model needs, without fusion."""
    # No tile or vector divides these sizes, so that borders are tried, too.
    yield "matrix product", lambda c, r: normal(c, r, 65, 96).mulmat(normal(c, r, 37, 96))
    yield "strided product", lambda c, r: normal(c, r, 7, 33).mulmat(normal(c, r, 5, 33))
    for dtype in (dtypes.Q8_0, dtypes.Q4_0, dtypes.Q5_1):
        yield (
            f"{dtype} product",
            lambda c, r, d=dtype: draw_quantised(c, r, d).mulmat(normal(c, r, 1, 256)),
        )
    # Prompts have tiles of their own.
    yield (
        "q4_0 product of columns",
        lambda c, r: draw_quantised(c, r, dtypes.Q4_0).mulmat(normal(c, r, 37, 256)),
    )
    yield "softmax", lambda c, r: normal(c, r, 3, 257).softmax()
    yield "rms_norm", lambda c, r: normal(c, r, 3, 257).rms_norm(eps=1e-5)
    yield "attention", attention
    yield "attention of a token a sequence", lambda c, r: attention(c, r, tokens=2)


def fused_cases() -> Iterator[tuple[str, float, Make]]:
    """Yield graphs to which a fusion rule applies, with the op's name and largest allowed error."""
    yield "chain", LARGEST_ERROR, lambda c, r: (normal(c, r, 5, 33).silu().sqr()).tanh()
    yield "linear_q8", ROUNDING_ERROR, _rounded_products
    yield "linear_q8_pair", LARGEST_ERROR, _precise_product
    yield "linear_q8", ROUNDING_ERROR, _rounded_sum
    yield "linear_gated", ROUNDING_ERROR, _gated_product
    yield "q8_weighted", ROUNDING_ERROR, _rounded_norm
    yield "linear_gated_q8", ROUNDING_ERROR, gated_into_product
    yield "linear_add_q8", ROUNDING_ERROR, normed_sum
    yield "rms_norm_pair", LARGEST_ERROR, _split_norm
    yield "linear_q16", LARGEST_ERROR, _precise_product
    yield "q16_weighted", LARGEST_ERROR, _rounded_norm
    # The errors of a gate, of its other factor, and of the product after them add up.
    yield "linear_gated_q16", 3 * LARGEST_ERROR, gated_into_product
    yield "linear_add_q16", LARGEST_ERROR, normed_sum
    yield "rope_put", LARGEST_ERROR, _cached_attention
    yield "rope_attention", LARGEST_ERROR, next_token
    yield "rope_attention", LARGEST_ERROR, lambda c, r: next_token(c, r, norms=True)
    yield "route", LARGEST_ERROR, _expert_routing
    yield "linear_by_expert_add", LARGEST_ERROR, by_expert
    yield "linear_by_expert_tiles", LARGEST_ERROR, by_expert
    yield "heads_put", LARGEST_ERROR, _normed_heads
    yield "rope_join", LARGEST_ERROR, _joined_parts
    yield "latent_put", LARGEST_ERROR, _latent_attention
    yield "rms_norm_add", LARGEST_ERROR, _normed_residual
    yield "norm_chain", LARGEST_ERROR, _gated_norm
    yield (
        "group_norm_silu",
        LARGEST_ERROR,
        lambda c, r: normal(c, r, 2, 33, 12).group_norm(4).silu(),
    )
    yield "linear_by_expert_gated", LARGEST_ERROR, _gated_experts
    yield "expert_sum", LARGEST_ERROR, _summed_experts
    yield "linear_by_expert_sum", LARGEST_ERROR, _summed_products
    for family in FAMILIES:
        yield from ((trial.rule, trial.largest_error, trial.build) for trial in family.cases)


def _rounded_products(context: Context, rng: np.random.Generator) -> Tensor:
    """Multiply in several formats, for one column and for several."""
    xs = normal(context, rng, 1, 256), normal(context, rng, 9, 256)
    formats = (dtypes.Q4_0, dtypes.Q6_K)
    made = [draw_quantised(context, rng, d).mulmat(x).reshape(-1) for d in formats for x in xs]
    first, *rest = made
    for tensor in rest:
        first = first.concat(tensor, axis=0)
    return first


def _precise_product(context: Context, rng: np.random.Generator) -> Tensor:
    return draw_quantised(context, rng, dtypes.Q4_0).mulmat_full_prec(normal(context, rng, 1, 256))


def _rounded_sum(context: Context, rng: np.random.Generator) -> Tensor:
    weight, bias = draw_quantised(context, rng, dtypes.Q4_0), normal(context, rng, 40)
    return weight.linear(normal(context, rng, 3, 256), bias)


def _gated_product(context: Context, rng: np.random.Generator) -> Tensor:
    both = draw_quantised(context, rng, dtypes.Q4_0)
    x = normal(context, rng, 3, 256)
    gate, up = both.slice(0, 0, 16), both.slice(0, 16, 32)
    return gate.mulmat(x).swiglu(up.mulmat(x))


def _rounded_norm(context: Context, rng: np.random.Generator) -> Tensor:
    weight, scale = draw_quantised(context, rng, dtypes.Q4_0), normal(context, rng, 256)
    return weight.mulmat(normal(context, rng, 3, 256).rms_norm(scale, eps=1e-5))


def _split_norm(context: Context, rng: np.random.Generator) -> Tensor:
    weight = draw_quantised(context, rng, dtypes.Q4_0)
    return weight.mulmat_full_prec(normal(context, rng, 3, 256).rms_norm(eps=1e-5))


def _cached_attention(context: Context, rng: np.random.Generator, *, norms: bool = False) -> Tensor:
    """Rotate three tokens, put them into a cache of two blocks, and attend to them."""
    positions = context.from_ints([0, 1, 2])
    table = positions.rope_table(context.from_numpy(np.float32(0.1) ** np.arange(16)))
    wide = normal(context, rng, 3, 256)
    heads = [wide.slice(1, a, b).reshape(3, -1, 32) for a, b in ((0, 128), (128, 192))]
    if norms:
        heads = [x.rms_norm(normal(context, rng, 32), eps=1e-5) for x in heads]
    q, k = (x.rope(table) for x in heads)
    v = wide.slice(1, 192, 256).contiguous().reshape(3, 2, 32)
    slots = context.from_ints([33, 34, 35])
    keys = context.zeros(64, 64).set_rows(k.reshape(3, -1), slots)
    values = context.zeros(64, 64).set_rows(v.reshape(3, -1), slots)
    return q.paged_attention(
        keys,
        values,
        positions,
        context.from_ints([0, 0, 0]),
        context.from_ints([1, 0], 1, 2),
        scores=Scores(block=32, scale=0.2, kv_heads=2),
    )


def _normed_heads(context: Context, rng: np.random.Generator) -> Tensor:
    return _cached_attention(context, rng, norms=True)


def _expert_routing(context: Context, rng: np.random.Generator) -> Tensor:
    """Route five tokens: the weights and ids of their experts."""
    scores = normal(context, rng, 5, 33).softmax()
    ids = scores.top_k(4)
    weights = scores.reshape(5, 33, 1).rows(ids).reshape(5, 4)
    return (weights / weights.sum_rows()).concat(ids.cast(dtype=dtypes.F32), axis=1)


def _summed_experts(context: Context, rng: np.random.Generator) -> Tensor:
    rows, weights = normal(context, rng, 5, 3, 36), normal(context, rng, 5, 3, 1)
    return normal(context, rng, 5, 36).add((rows * weights).sum(1).scale(factor=0.5))


def _summed_products(context: Context, rng: np.random.Generator) -> Tensor:
    """Multiply with three of five experts of twelve rows for four tokens, and add a residual."""
    matrices = draw_quantised(context, rng, dtypes.Q4_0, rows=60).reshape(5, 12, 256)
    ids = context.from_numpy(np.stack([rng.permutation(5)[:3] for _ in range(4)]))
    rows = matrices.mulmat_id(normal(context, rng, 4, 3, 256), ids)
    return normal(context, rng, 4, 12).add((rows * normal(context, rng, 4, 3, 1)).sum(1))


def _gated_experts(context: Context, rng: np.random.Generator) -> Tensor:
    """Multiply with three experts of 13 rows, each with gate rows above projection rows."""
    both = draw_quantised(context, rng, dtypes.Q4_0, rows=78).reshape(3, 26, 256)
    ids = context.from_numpy(np.stack([rng.permutation(3)[:2] for _ in range(4)]))
    gate, up = both.mulmat_id(normal(context, rng, 4, 1, 256), ids).chunk(2, 13)
    return gate.swiglu(up)


def _normed_residual(context: Context, rng: np.random.Generator) -> Tensor:
    x, residual, weight = (normal(context, rng, *shape) for shape in ((5, 260), (5, 260), (260,)))
    return residual.add(x.rms_norm(weight, eps=1e-5))


def _gated_norm(context: Context, rng: np.random.Generator) -> Tensor:
    """Gate normed heads."""
    x, gate, weight = (normal(context, rng, *shape) for shape in ((5, 3, 64), (5, 192), (64,)))
    return gate.sigmoid().mul(x.rms_norm(weight, eps=1e-5).reshape(5, 192))


def _latent_attention(context: Context, rng: np.random.Generator) -> Tensor:
    """Attend two tokens to latents of 64 plain and 16 rotated values, shared by all heads."""
    frequencies = context.from_numpy(np.float32(0.1) ** np.arange(8))
    table = context.from_ints([0, 1]).rope_table(frequencies)
    wide, heads = normal(context, rng, 2, 84), normal(context, rng, 2, 3, 80)
    latents = wide.slice(1, 0, 64).rms_norm(normal(context, rng, 64), eps=1e-5).reshape(2, 1, 64)
    keys = latents.concat(wide.slice(1, 64, 80).reshape(2, 1, 16).rope(table), axis=2)
    cache = context.zeros(64, 80).set_rows(keys.reshape(2, 80), context.from_ints([33, 34]))
    own, rest = heads.chunk_sections(-1, 64, 16)
    return own.concat(rest.rope(table), axis=2).paged_attention(
        cache,
        cache,
        context.from_ints([0, 1]),
        context.from_ints([0, 0]),
        context.from_ints([1, 0], 1, 2),
        scores=Scores(block=32, scale=0.2, kv_heads=1, v_cols=64),
    )


def _joined_parts(context: Context, rng: np.random.Generator) -> Tensor:
    """Put keys of three tokens, a normed and a rotated part, into a cache."""
    frequencies = context.from_numpy(np.float32(0.1) ** np.arange(8))
    table = context.from_ints([3, 1, 2]).rope_table(frequencies)
    wide = normal(context, rng, 3, 84)
    latents = wide.slice(1, 0, 64).rms_norm(normal(context, rng, 64), eps=1e-5).reshape(3, 1, 64)
    shared = wide.slice(1, 64, 80).reshape(3, 1, 16).rope(table)
    keys = latents.concat(shared, axis=2).reshape(3, 80)
    return context.zeros(8, 80).set_rows(keys, context.from_ints([5, -1, 2]))


# A verdict with these words: kernels that use subgroups, or matrix units, are wrong.
SUBGROUPS = "subgroups"
# The kernels without which nothing goes; a verdict on a device has it if they were tested.
PORTABLE = "portable kernels"
MATRIX = "matrix units"
# For a process that tries matrix units; drivers take seconds to compile.
TRIAL_SECONDS = 120
# Until another process has tested a device; then this one tests it as well.
TURN_SECONDS = 300
# Devices of a rasteriser that share the work: each takes a core and memory.
MOST_DEVICES = 4
_LOG = logging.getLogger("wgpu_backend.self_test")
Progress = Callable[[float], None]
# By rule or by one of the words above, whether it is right.
Verdict = dict[str, bool]
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


def fused_test(
    executor: WgpuExecutor, run: Run | None = None, names: Collection[str] | None = None
) -> list[Finding]:
    """Compare ops that only fusion rules make, with rounding wherever it is possible.

    Parameters
    ----------
    names : collection of str or None
        Of their rules; None for all.
    """
    wanted = [case for case in fused_cases() if names is None or case[0] in names]
    return (run or Run([executor])).findings(wanted, _fused_finding)


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

    def as_if(self, capabilities: Capabilities) -> None:
        """Choose kernels by these capabilities from now on."""
        self._executors = [_as_if(executor, capabilities) for executor in self._executors]

    def findings(
        self, wanted: Sequence[Case], find: Callable[[Executor, Case], Finding]
    ) -> list[Finding]:
        """Return the results of the comparisons, in their order."""
        # Each device takes the next case when it is done: kernels differ much in compilation time.
        waiting = deque(enumerate(wanted))
        found: dict[int, Finding] = {}

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
            self._progress(len(found) / len(wanted))

        first, *others = self._executors
        with ThreadPoolExecutor(max(len(others), 1), "wgpu_backend self-test") as pool:
            # Only this thread calls `progress`, which need not be thread-safe.
            helping = [pool.submit(work, other, lambda: None) for other in others]
            try:
                work(first, tell)
                for each in helping:
                    wait_until(lambda pause, one=each: wait([one], pause).done)
                    each.result()
                    tell()
            finally:
                # After a failure, the other threads find no more cases.
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
        Ops of fusion rules to leave out, as they were found to compute wrong values here, and
        `SUBGROUPS` where kernels have to do without them, see `apply_verdict`.

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

    def test(known: Verdict) -> Verdict:
        wrong = _test_device(executor, path, progress or _ignore_progress)
        return {PORTABLE: True, **dict.fromkeys(wrong, False)}

    return _list_wrong(_judge(device_key(executor, profile), {PORTABLE}, path, test))


def make_trust(executor: WgpuExecutor, profile: str, cache: Path | None = None) -> Trust:
    """Make the tests of fusion rules that graphs first use, see `fuse_nodes`.

    Parameters
    ----------
    executor : WgpuExecutor
        As in `require_trust`, with a verdict applied.
    """
    path = cache or cache_file("trusted.json")
    tested = frozenset(case[0] for case in fused_cases())
    executor = _plain(executor)

    def test(names: Collection[str], progress: Progress | None) -> Collection[str]:
        rules = tested & {*names, *(ALSO[name] for name in names if name in ALSO)}
        if not rules:
            return ()

        def test_new(known: Verdict) -> Verdict:
            return _test_rules(executor, rules - known.keys(), progress or _ignore_progress)

        return _list_wrong(_judge(device_key(executor, profile), rules, path, test_new))

    return Trust(test)


def _plain(executor: WgpuExecutor) -> WgpuExecutor:
    """Return an executor of the same device without rules, and so without trust in them."""
    plain = executor.as_if(executor.capabilities)
    plain.rules, plain.trust = {}, None
    return plain


def _judge(
    key: str, names: Collection[str], path: Path | None, test: Callable[[Verdict], Verdict]
) -> Verdict:
    """Return the verdict on a device that covers these names, after tests of what it lacks."""
    known = _verdicts(path).get(key, {})
    if known.keys() >= set(names):
        return known
    with one_process_at_a_time(path, TURN_SECONDS):
        # The process that had its turn before may have tested this device.
        known = _verdicts(path).get(key, {})
        if not known.keys() >= set(names):
            known = known | test(known)
            # Without a writable cache, the device is tested at each start.
            with suppress(OSError):
                write(path, {**_verdicts(path), key: known})
    return known


def remembered_trust(executor: Executor, profile: str, cache: Path | None = None) -> frozenset[str]:
    """Return the remembered verdict, or an empty one, for uses that do not need the test."""
    verdicts = _verdicts(cache or cache_file("trusted.json"))
    return _list_wrong(verdicts.get(device_key(executor, profile), {}))


def _list_wrong(verdict: Verdict) -> frozenset[str]:
    return frozenset(name for name, is_right in verdict.items() if not is_right)


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
    takes = "up to a minute" if info.kind == "software" else "some seconds"
    kept = f"remembered in {path.parent}" if path else "not remembered, as there is no home folder"
    _LOG.warning("first use of %s: testing its kernels, %s; %s", info.name, takes, kept)
    progress(0.0)
    with ExitStack() as stack:
        run = Run([executor, *_helpers(executor, stack)], progress)
        units = _find_wrong_units(executor, run)
        verdict = [*units, *_find_wrong_features(executor, run, units)]
    _LOG.warning("%s is tested, %.0f s", info.name, time.perf_counter() - begin)
    return verdict


def _helpers(executor: Executor, stack: ExitStack) -> Iterator[WgpuExecutor]:
    """Open more devices of a rasteriser to compile in parallel: one queue compiles serially."""
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
    """Try matrix units in a separate process, since a driver's fault may end it."""
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


def _test_rules(executor: WgpuExecutor, names: Collection[str], progress: Progress) -> Verdict:
    """Test the cases of rules, and warn of those that compute wrong values."""
    info, begin = executor.info, time.perf_counter()
    with ExitStack() as stack:
        helpers = _helpers(executor, stack) if len(names) > 1 else ()
        found = fused_test(executor, Run([executor, *helpers], progress), names)
    for finding in found:
        if not finding.passed:
            text = f"{finding} is not used, the ops it fuses run one by one"
            _warn(f"device {info.id}: {text}")
    seconds = time.perf_counter() - begin
    _LOG.info("%s: tested %s, %.0f s", info.name, ", ".join(sorted(names)), seconds)
    return {name: all(f.passed for f in found if f.name == name) for name in names}


def device_key(executor: Executor, profile: str) -> str:
    """Return the key of verdicts and measurements: adapter, driver, profile and shaders."""
    return adapter_key(executor.info, profile)


def adapter_key(info: DeviceInfo, profile: str) -> str:
    """Return the key of an adapter that need not be open; see `device_key`."""
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


def _verdicts(path: Path | None) -> dict[str, Verdict]:
    found = {key: cast("Verdict", v) for key, v in read(path).items() if isinstance(v, dict)}
    return {
        key: {name: is_right is True for name, is_right in v.items()} for key, v in found.items()
    }


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
