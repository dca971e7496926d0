"""No leaks: after opening and closing many times, objects and memory are as before.

The collector is off meanwhile: closing frees by itself. `record_property` puts the figures into the
junit report.
"""

import ctypes
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import wgpu

import wgpu_backend
from tests.builders import tiny_model
from wgpu_backend import Context, ShaderError, new_backend, op
from wgpu_backend.dtypes import Q8_0
from wgpu_backend.errors import ContextError, ModelError
from wgpu_backend.graph.node import Launch, Node
from wgpu_backend.graph.spec import Spec
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu.executor import WgpuExecutor

TIMES = 200
MIB = 1 << 20
# Allocators keep pages, drivers grow caches: what counts is that it ends. A backend or a context
# that was never freed would take many times this.
RSS_BOUND = 40 * MIB


def counts() -> dict[str, int]:
    """Objects that wgpu-native keeps, by kind."""
    native = wgpu.diagnostics.wgpu_native_counts.get_dict()
    return {kind: int(entry["count"]) for kind, entry in native.items()}


def rss() -> int:
    """Bytes of this process in memory; 0 where the system does not tell.

    What the allocator keeps for later does not count: each thread that compiles leaves it some.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def nothing_left(record_property: Callable[[str, object], None]) -> Iterator[None]:
    """Compare objects and memory before and after."""
    gc.collect()
    objects, memory = counts(), rss()
    gc.disable()
    try:
        yield
        assert counts() == objects
        growth = rss() - memory
    finally:
        gc.enable()
    record_property("rss_growth_bytes", growth)
    assert growth < RSS_BOUND


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("leaks") / "tiny.gguf", dtype="q8_0")


def round_trip(path: Path) -> None:
    with new_backend(path) as backend:
        backend.load()


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.usefixtures("full")
def test_200_backends_leave_nothing(path, record_property):
    for _ in range(20):  # what drivers keep for the next device is there from now on
        round_trip(path)
    with nothing_left(record_property):
        for _ in range(TIMES):
            round_trip(path)


def compute(executor) -> None:
    """Constants, a state that is written, computed tensors that stay, one that is read."""
    with Context(executor) as context:
        x = context.from_numpy(np.ones((4, 4), "f4"))
        state = context.state((8, 4))
        context.compute(x + x, state.set_rows(x, context.from_ints([0, 2, 4, 6])))
        assert (state + 1).numpy().sum() == 48
        assert (x * 2)[0].numpy().tolist() == [2, 2, 2, 2]


@pytest.mark.slow
@pytest.mark.gpu
def test_200_contexts_leave_nothing(executors, record_property):
    executor: WgpuExecutor = executors("full")

    def state() -> tuple[int, int]:
        executor.device.trim()
        report = executor.device.memory_report()
        return report.nbytes, report.count

    compute(executor)
    before = state()
    with nothing_left(record_property):
        for _ in range(TIMES):
            compute(executor)
        assert state() == before


def test_contexts_on_numpy_leave_nothing():
    executor = NumpyExecutor()
    before = executor.memory_report()
    for _ in range(TIMES):
        compute(executor)
        failing_inputs(executor)
        quantised(executor)
    assert executor.memory_report() == before


def talk(path: Path, times: int) -> None:
    """Load a model, and have it write and embed."""
    for _ in range(times):
        with wgpu_backend.load(path) as model:
            model.generate("hello", num_predict=4)
            model.embed(["hello"])


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.usefixtures("full")
def test_10_language_models_leave_nothing(path):
    # In a process of its own: what threads that compile leave to the allocator grows with what all
    # other tests have made before.
    script = (
        "from pathlib import Path; from tests.test_leaks import nothing_left, talk\n"
        f"path = Path({str(path)!r}); talk(path, 2)\n"
        "with nothing_left(print): talk(path, 10)\n"
    )
    root = Path(__file__).parent.parent
    words = [sys.executable, "-c", script]
    done = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "rss_growth_bytes" in done.stdout


def quantised(executor) -> None:
    """A constant in a block format, which lies where weights lie."""
    blocks = np.zeros((8, 34), "u1")
    blocks[:, 2:] = 1
    with Context(executor) as context:
        weight = context.from_bytes(Q8_0, blocks.tobytes(), 8, 32)
        x = context.from_numpy(np.ones((1, 32), "f4"))
        assert weight.mulmat(x).numpy().tolist() == [[0.0] * 8]


def damaged(executor) -> None:
    """A constant whose scales are NaN: refused when half of it may have been uploaded."""
    with Context(executor) as context, pytest.raises(ModelError, match="NaN"):
        context.from_bytes(Q8_0, b"\xff" * 34, 1, 32)


def failing_inputs(executor) -> None:
    """A graph that waits for an input when it is computed at once."""
    with Context(executor) as context, pytest.raises(ContextError, match="inputs are"):
        context.compute(context.input("x", (4,)) + 1)


@op(shader=Path("no such.wgsl"))
def leaks_without_shader(x: Node) -> Launch:
    """Op whose pipeline cannot be made."""
    return Launch(Spec.dense(x.spec.shape, x.spec.dtype), {"x": x}, threads=1)


def failing_shader(executor) -> None:
    """A graph whose buffers are there when one of its kernels is refused."""
    with Context(executor) as context, pytest.raises(ShaderError, match="no such"):
        leaks_without_shader(context.from_numpy(np.ones(4, "f4")) + 1).numpy()


@pytest.mark.parametrize("run", [quantised, damaged, failing_inputs, failing_shader])
def test_what_is_refused_or_rare_leaves_nothing(full, run):
    run(full)
    before = full.device.memory_report()
    for _ in range(5):
        run(full)
    after = full.device.memory_report()
    assert (after.nbytes, after.count) == (before.nbytes, before.count)


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.usefixtures("full")
def test_a_model_that_is_refused_leaves_nothing(tmp_path, path, record_property):
    damaged = tiny_model(tmp_path / "damaged.gguf", extra={"llama.attention.head_count": 3})

    def refused() -> None:
        with pytest.raises(ModelError):
            wgpu_backend.load(damaged)

    refused()
    gc.collect()
    with nothing_left(record_property):
        for _ in range(3):
            refused()
        gc.collect()  # the exceptions hold their frames
