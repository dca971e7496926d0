"""Devices for tests: one executor of each kind, opened once a session and shared.

A pipeline costs some 30 ms on a software rasteriser and is cached by its device, so tests do not
open devices of their own without need.
"""

from __future__ import annotations

import dataclasses
import gc
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from tests.count_cases import CaseCounter
from wgpu_backend.errors import DeviceError
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu_executor import WgpuExecutor
from wgpu_backend.testing import Build, check_graph

# What each kind of executor overrides: `wide` takes the kernels meant for hardware on whatever
# device there is, `split` spreads weights over many bindings.
KINDS: dict[str, dict[str, object]] = {
    "full": {},
    "baseline": {},
    "wide": {"software": False},
    "split": {"max_binding_nbytes": 64 << 10},
    "split wide": {"max_binding_nbytes": 64 << 10, "software": False},
}
GPU_FIXTURES = {"executors", "gpu", "any_gpu", "full", "split"}

Executors = Callable[[str], WgpuExecutor]


COUNTER: list[CaseCounter] = []  # the one of this run, where it was asked for


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--count-cases", action="store_true", help="table of cases by op and profile")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--count-cases"):
        COUNTER.append(CaseCounter())
        config.pluginmanager.register(COUNTER[0])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if GPU_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("gpu")
        if spared(item):
            item.add_marker("variants")


def spared(item: pytest.Item) -> bool:
    """Whether a case is a variant on the kind of executor that it asks for."""
    kinds = {kind for mark in item.iter_markers("variants_on") for kind in mark.args}
    assert kinds <= KINDS.keys(), f"{item.nodeid}: variants_on {kinds}, there are {list(KINDS)}"
    params = item.callspec.params.values() if isinstance(item, pytest.Function) and kinds else ()
    return any(isinstance(param, str) and param in kinds for param in params)


def pytest_collection_finish() -> None:
    """Take the tests, which stay to the end, out of what is looked through for garbage."""
    gc.collect()
    gc.freeze()


def opened(kind: str) -> WgpuExecutor:
    profile = "baseline" if kind == "baseline" else "full"
    try:
        executor = make_executor("wgpu", BackendParams(profile=profile))
    except DeviceError as error:
        pytest.skip(f"needs an adapter: {error}")
    assert isinstance(executor, WgpuExecutor)
    device = executor.device
    device.capabilities = dataclasses.replace(device.capabilities, **KINDS[kind])
    return executor


@pytest.fixture(scope="session")
def executors() -> Iterator[Executors]:
    """Executor by kind, opened at its first use."""
    known: dict[str, WgpuExecutor] = {}
    with ExitStack() as stack:

        def executor(kind: str) -> WgpuExecutor:
            if kind not in known:
                known[kind] = opened(kind)
                stack.callback(known[kind].close)
                for counter in COUNTER:
                    counter.kinds[known[kind].device] = kind
            return known[kind]

        yield executor


@pytest.fixture(scope="session", params=["full", "baseline"])
def gpu(request: pytest.FixtureRequest, executors: Executors) -> WgpuExecutor:
    """Each profile in turn."""
    return executors(request.param)


@pytest.fixture(scope="session", params=["full", "baseline", "wide"])
def any_gpu(request: pytest.FixtureRequest, executors: Executors) -> WgpuExecutor:
    """Each profile, and the kernels for hardware."""
    return executors(request.param)


def with_numpy(*kinds: str) -> list[Any]:
    """Parameters of a fixture: NumPy, which needs no adapter, and kinds that do."""
    return ["numpy", *(pytest.param(kind, marks=pytest.mark.gpu) for kind in kinds)]


def requested(request: pytest.FixtureRequest) -> Executor:
    if request.param == "numpy":
        return NumpyExecutor()
    executors: Executors = request.getfixturevalue("executors")
    return executors(request.param)


@pytest.fixture(params=with_numpy("full", "baseline"))
def executor(request: pytest.FixtureRequest) -> Executor:
    """NumPy, and each profile of the adapter: the same test for all."""
    return requested(request)


@pytest.fixture(params=with_numpy("full", "baseline", "wide"))
def any_executor(request: pytest.FixtureRequest) -> Executor:
    """NumPy, each profile, and the kernels for hardware."""
    return requested(request)


@pytest.fixture(scope="session")
def full(executors: Executors) -> WgpuExecutor:
    return executors("full")


@pytest.fixture(scope="session", params=["split", "split wide"])
def split(request: pytest.FixtureRequest, executors: Executors) -> WgpuExecutor:
    """Weights of more than 64 KiB lie in several parts."""
    return executors(request.param)


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> np.random.Generator:
    """Random numbers seeded by the name of the test."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture
def check(request: pytest.FixtureRequest) -> Callable[..., float]:
    """`check_graph` whose NMSE ends up in the junit report of the run.

    It compares with NumPy, so of NumPy itself it shows that the op runs there and no more.
    """

    def checked(executor: Executor, build: Build, *, limit: float = 1e-7) -> float:
        found = check_graph(executor, build, limit=limit)
        # `record_property` does this and then warns about the junit schema, which is an error here.
        request.node.user_properties.append(("nmse", found))
        return found

    return checked
