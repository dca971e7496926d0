"""Objects dropped without `close` are freed at once, without the collector, with one warning."""

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import wgpu

import wgpu_backend
from tests.builders import tiny_model
from wgpu_backend import Context, ModelError, new_backend, open_gguf
from wgpu_backend.dtypes import F16, Q8_0
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.errors import Unclosed
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.nn.kvcache.layers import LayerShape
from wgpu_backend.nn.kvcache.paged import PagedCache
from wgpu_backend.ops.attention.options import RopeOptions

KINDS = ["cpu", pytest.param(None, marks=pytest.mark.gpu)]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("dropped") / "tiny.gguf", dtype="q8_0")


@contextmanager
def warned() -> Iterator[list[str]]:
    """Collect warnings while nothing is collected."""
    said: list[str] = []
    gc.collect()
    gc.disable()
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ResourceWarning)
            yield said
        said += [str(w.message) for w in caught if w.category is ResourceWarning]
    finally:
        gc.enable()


def counts() -> dict[str, int]:
    """Objects that wgpu-native keeps, by kind."""
    native = wgpu.diagnostics.wgpu_native_counts.get_dict()
    return {kind: int(entry["count"]) for kind, entry in native.items()}


def parts(model: LanguageModel) -> dict[str, weakref.ref[object]]:
    """What a model holds memory by."""
    executor = model.backend.executor
    found: dict[str, object] = {
        "model": model, "backend": model.backend, "executor": executor, "cache": model.cache,
        "runner": model.runner, "weights": model.model,
    }  # fmt: skip
    if isinstance(executor, WgpuExecutor):
        found |= {"device": executor.device, "queue": executor.device._queue}
    return {name: weakref.ref(part) for name, part in found.items()}


@pytest.mark.slow
@pytest.mark.parametrize("device", KINDS)
def test_a_dropped_model_goes_at_once_and_says_so_once(request, path, device):
    if device is None:
        request.getfixturevalue("full")

    def use(model: LanguageModel) -> None:
        model.generate("hello", num_predict=3)
        model.embed(["hello"])
        model.logits([1, 2, 3])

    with wgpu_backend.load(path, device=device) as model:  # what drivers keep is there from now on
        use(model)
    del model
    with warned() as said:
        before = counts()
        model = wgpu_backend.load(path, device=device)
        use(model)
        held = parts(model)
        del model
        assert [name for name, part in held.items() if part() is not None] == []
        assert counts() == before
    assert said == [f"unclosed model {path}; close it, or use it in a with statement"]


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.usefixtures("full")
def test_a_stream_keeps_its_model_as_long_as_it_runs(path):
    with warned() as said:
        before = counts()
        stream = wgpu_backend.load(path).generate("hello", num_predict=3, stream=True)
        assert isinstance("".join(stream), str)
        del stream
        assert counts() == before
    assert len(said) == 1


@pytest.mark.gpu
@pytest.mark.usefixtures("full")
def test_a_model_that_is_refused_keeps_nothing(tmp_path):
    damaged = tiny_model(tmp_path / "damaged.gguf", extra={"llama.block_count": 9})
    with warned() as said:
        before = counts()
        with pytest.raises(ModelError):
            wgpu_backend.load(damaged)
        assert counts() == before
    assert said == []


def unclosed_file(path: Path) -> Callable[[], None]:
    return open_gguf(path).close


def unclosed_backend(path: Path) -> Callable[[], None]:
    return new_backend(path, name="cpu").close


@pytest.mark.parametrize(
    ("make", "said"),
    [(unclosed_file, "unclosed file {}; close"), (unclosed_backend, "unclosed backend of {}; clo")],
)
def test_what_is_dropped_open_names_its_file_and_what_is_closed_is_silent(path, make, said):
    with warned() as dropped:
        make(path)
    with warned() as closed:
        make(path)()
    assert len(dropped) == 1
    assert dropped[0].startswith(said.format(path))
    assert closed == []


def test_an_owner_speaks_for_its_parts():
    class Part:
        def __init__(self) -> None:
            self.unclosed = Unclosed("part")

    with warned() as said:
        part = Part()
        whole = Unclosed("whole", part)
        del part
        del whole
    assert said == ["unclosed whole; close it, or use it in a with statement"]


@pytest.fixture
def figure(full: WgpuExecutor) -> Callable[[], tuple[int, int]]:
    def now() -> tuple[int, int]:
        report = full.device.memory_report()
        return report.nbytes, report.count

    return now


def test_a_dropped_context_gives_its_memory_back(full, figure, rng):
    with Context(full) as context:  # what the host reads with stays
        (context.zeros(2, 64) + 1).numpy()
    before = figure()

    def work() -> None:
        context = Context(full)
        state = context.state((1024, 64))
        rows = context.from_numpy(rng.standard_normal((2, 64), "f4"))
        context.compute(state.set_rows(rows, context.from_ints([0, 1])), rows * 2)
        heads = rows.reshape(2, 1, 64)
        turned = heads.rope_with(context.from_ints([0, 1]), RopeOptions(64))
        assert turned.numpy().shape == (2, 1, 64)
        weight = context.from_bytes(Q8_0, bytes(34 * 64), 64, 32)
        assert figure()[0] > before[0]
        assert weight.shape == (64, 32)

    with warned() as said:
        work()
        assert figure() == before
    assert said == []


def test_a_dropped_graph_gives_its_memory_back(full, figure):
    def work() -> None:
        context = Context(full)
        x = context.input("x", (4096,))
        y = context.from_numpy(np.ones(4096, "f4"))
        recorded = context.record(x + y, times=2)
        assert recorded.run({"x": np.ones(4096, "f4")}).wait()[0].sum() == 8192
        assert figure()[1] > before[1]

    with Context(full) as context:  # slots that graphs share stay
        x = context.input("x", (4096,))
        context.record(x + x).close()
    before = figure()
    with warned():
        work()
        assert figure() == before


def test_a_dropped_cache_gives_its_memory_back(full, figure):
    before = figure()
    labels = full.cache_nbytes()
    with warned():
        cache = PagedCache(full, [LayerShape(64, 64)], 256, F16)
        assert figure()[0] > before[0]
        del cache
        assert figure() == before
        assert full.cache_nbytes() == labels


def test_a_dropped_context_on_numpy_gives_its_memory_back():
    executor = NumpyExecutor()
    before = executor.memory_report()
    with warned():
        context = Context(executor)
        context.state((1 << 20,))
        context.from_bytes(Q8_0, bytes(34 << 15), 1 << 15, 32)
        assert executor.memory_report() != before
        del context
        assert executor.memory_report() == before
