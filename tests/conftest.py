"""Devices for tests: one executor of each kind, opened once a session and shared.

A pipeline costs some 30 ms on a software rasteriser and is cached by its device, so tests do not
open devices of their own without need.
"""

from __future__ import annotations

import dataclasses
import gc
import random
import secrets
import signal
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from tests.count_cases import CaseCounter
from tests.placing import TwoNumpyDevices
from tests.rasterisers import as_rasteriser
from tests.shares import GPU_FIXTURES, KINDS, SECOND_DRIVER, SHARES, choose
from wgpu_backend.device.adapters import adapters
from wgpu_backend.errors import DeviceError
from wgpu_backend.kernels import complete
from wgpu_backend.ml import backend
from wgpu_backend.ml.backend import BackendParams, make_executor
from wgpu_backend.ml.calibration import host_speed
from wgpu_backend.ml.executor import Executor
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.linear.tiles import TILES
from wgpu_backend.testing import Build, check_graph

# A machine with other work to do draws a few values in seconds, which says nothing of the code.
settings.register_profile(
    "any machine", suppress_health_check=[HealthCheck.too_slow], deadline=None
)
settings.load_profile("any machine")

Executors = Callable[[str], WgpuExecutor]


COUNTER: list[CaseCounter] = []  # the one of this run, where it was asked for


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--count-cases", action="store_true", help="table of cases by op and profile")
    parser.addoption(
        "--every-case", action="store_true", help="whole grids and rare cases, not a few of them"
    )
    parser.addoption(
        "--seed", type=int, help="of drawn cases and operands; by default another in each run"
    )
    parser.addoption(
        "--two-devices", action="store_true", help="models on the CPU have layers on two of them"
    )
    parser.addoption("--draws", type=int, help="drawn operands for each case; by default 1")
    parser.addoption("--chat-templates", metavar="FOLDER", help="more templates to compare with")
    parser.addoption(
        "--share",
        choices=SHARES,
        help="a few cases of every test; those for a second driver; of the others, those for a "
        "rasteriser of four lanes; what that leaves",
    )


def pytest_configure(config: pytest.Config) -> None:
    # A shell that begins tests in the background has SIGINT ignored, which children inherit.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    representative = config.option.share == "representative"
    if config.option.seed is None:
        drawn = 0 if representative else secrets.randbelow(1 << 31)
        config.option.seed = getattr(config, "workerinput", {}).get("seed", drawn)
    if config.option.draws is None:
        config.option.draws = 1
    if config.getoption("--count-cases"):
        COUNTER.append(CaseCounter())
        config.pluginmanager.register(COUNTER[0])


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a process that pytest-xdist starts the seed, which chooses the cases as well."""
    node.workerinput["seed"] = node.config.option.seed


def pytest_report_header(config: pytest.Config) -> str:
    return f"drawn cases, and operands of tests/ops/test_table.py: --seed {config.option.seed}"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    items.sort(key=entry_of)  # whichever end this process has started at
    for item in items:
        if GPU_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("gpu")
    told = config.option
    taken = choose(items, told.share, told.seed, every_case=told.every_case)
    config.hook.pytest_deselected(items=[item for item in items if item not in taken])
    items[:] = [item for item in items if item in taken]


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Look for no garbage meanwhile: nearly all that is made stays, and looking takes seconds."""
    read_listed(session.config)
    start_elsewhere(session.config)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Look for garbage among no tests, which stay to the end, and less often than Python does."""
    gc.freeze()
    gc.set_threshold(5_000)


def read_listed(config: pytest.Config) -> None:
    """Read only the files that the share for a second driver has tests of."""
    if config.option.share == "second" and config.args == ["tests"]:
        config.args[:] = sorted({start.partition("::")[0] for start in SECOND_DRIVER})


def start_elsewhere(config: pytest.Config) -> None:
    """Let every second process of pytest-xdist read the last folder first.

    Without a cache, pytest rewrites the asserts of every file, which is half of what collecting
    takes. Two processes that start at both ends each find what the other has rewritten.
    """
    number = getattr(config, "workerinput", {}).get("workerid", "gw0").removeprefix("gw")
    if int(number) % 2 and config.args == ["tests"]:
        entries = [p for p in (config.rootpath / "tests").iterdir() if holds_tests(p)]
        config.args[:] = [f"tests/{p.name}" for p in sorted(entries, reverse=True)]


def holds_tests(path: Path) -> bool:
    """Whether pytest finds tests in a file or a folder right below ``tests``."""
    return path.match("test_*.py") or (path.is_dir() and any(path.rglob("test_*.py")))


def entry_of(item: pytest.Item) -> str:
    """Name of the file or folder right below ``tests`` that a case is in."""
    return item.nodeid.partition("::")[0].split("/")[1]


@pytest.fixture(scope="session", autouse=True)
def no_host_speeds() -> Iterator[None]:
    """Plans do not depend on what `tune` found on this machine, nor do tests add to that."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_speed, "cache_file", lambda _: None)
        yield


@pytest.fixture(autouse=True)
def open_seeds(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw the seeds that samplers choose themselves from the name of the test.

    Otherwise a text of drawn tokens ends early in one run of a hundred, and a test with it.
    """
    numbers = random.Random(zlib.crc32(request.node.nodeid.encode()))
    monkeypatch.setattr(secrets, "randbits", numbers.getrandbits)


@pytest.fixture(scope="session", autouse=True)
def two_devices(request: pytest.FixtureRequest) -> Iterator[None]:
    """With ``--two-devices``, every model on the CPU has its first layer on one of two."""
    if not request.config.option.two_devices:
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(backend._BACKENDS, "cpu", lambda _: TwoNumpyDevices())
        yield


def opened(kind: str) -> WgpuExecutor:
    profile = "baseline" if kind == "baseline" else "full"
    try:
        executor = make_executor("wgpu", BackendParams(profile=profile))
    except DeviceError as error:
        # Wrong values are no reason to skip: a fault in a kernel would hide itself.
        if adapters():
            raise
        pytest.skip(f"needs an adapter: {error}")
    assert isinstance(executor, WgpuExecutor)
    found = executor.capabilities
    told = dataclasses.replace(
        executor.device.capabilities, subgroups=found.subgroups, lanes=found.lanes, **KINDS[kind]
    )
    return executor.as_if(complete(told))


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


@pytest.fixture
def two_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """No kernel has more than two tiles to choose from: tuning compiles each of them."""
    for name, tiles in TILES.items():
        few = {columns: several[:2] for columns, several in tiles.by_class.items()}
        monkeypatch.setitem(TILES, name, tiles._replace(by_class=few))


@pytest.fixture(scope="session")
def full(executors: Executors) -> WgpuExecutor:
    return executors("full")


@pytest.fixture(scope="session")
def rasteriser(full: WgpuExecutor) -> WgpuExecutor:
    """What has the kernels of rasterisers, on a GPU of one whose lanes do not shuffle."""
    return as_rasteriser(full)


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


@pytest.fixture
def tower_runs(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The digest of each picture that a tower reads."""
    from wgpu_backend.engine.towers import Graphs

    found: list[bytes] = []
    begin = Graphs.begin

    def noted(self: Graphs, media: Any) -> Any:
        found.append(media.digest)
        return begin(self, media)

    monkeypatch.setattr(Graphs, "begin", noted)
    return found
