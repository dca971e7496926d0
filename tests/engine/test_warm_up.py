"""What a model needs is compiled when its weights are there, and failing at it harms nothing."""

import threading

import numpy as np
import pytest

import wgpu_backend
from tests.builders import tiny_model
from tests.engine.test_pictures import write_tower
from tests.models.test_audio_towers import KEYS, WIDTH, weights
from tests.models.towers import write_mmproj
from wgpu_backend.device.adapters import Devices
from wgpu_backend.dtypes import F16
from wgpu_backend.engine import loading
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.media import MARKER, Part
from wgpu_backend.engine.towers import Graphs
from wgpu_backend.errors import ContextError, ModelError
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.ml.backend import Backend, BackendParams, LoadCancelled
from wgpu_backend.ml.opening import open_placed
from wgpu_backend.ml.placement import Placement
from wgpu_backend.ml.wgpu.dry_run import DryRunExecutor
from wgpu_backend.nn.model import model_class
from wgpu_backend.ops.sampling.host import SamplingOptions
from wgpu_backend.server.worker.process import _measure_later

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("full")]
PROMPT = list(range(1, 20))


KINDS = [("llama", "q8_0"), ("qwen2", "q8_0"), ("qwen3", "q8_0"), ("qwen2", "f16")]


@pytest.fixture(scope="module", params=KINDS, ids=" ".join)
def path(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("warm_up")
    return tiny_model(folder / "tiny.gguf", *request.param)


@pytest.mark.slow
def test_a_loaded_model_compiles_nothing_more(path):
    with wgpu_backend.load(path, num_ctx=256) as model:
        counters = model.backend.executor.device.counters
        before = counters.pipelines
        for options in (SamplingOptions(seed=1), SamplingOptions(temperature=0.0)):
            assert len(list(model.tokens(PROMPT, options, num_predict=3))) <= 3
        assert counters.pipelines == before > 0


def test_a_named_tower_compiles_nothing_more_for_the_first_picture(tiny, tmp_path):
    mmproj = write_tower(tmp_path / "tower.gguf")
    red = np.full((40, 30, 3), (250, 10, 10), np.uint8)
    made = []
    for each in (mmproj, None):
        with wgpu_backend.load(tiny, num_ctx=256, mmproj=each) as model:
            if each is None:
                # As if the file were found when the picture comes.
                model.towers._mmproj = mmproj
            counters = model.backend.executor.device.counters
            before = counters.pipelines
            prompt = model._raw_prompt("the", [red])
            assert model.towers.encode(prompt.placed[0]).shape == (4, 64)
            made.append(counters.pipelines - before)
    assert made[0] == 0 < made[1]


def test_a_tower_that_is_damaged_is_told_by_the_load_alone(tiny, tmp_path):
    mmproj = write_tower(tmp_path / "tower.gguf", width=32)
    with pytest.raises(ModelError, match="its rows have 32 columns"):
        wgpu_backend.load(tiny, num_ctx=256, mmproj=mmproj)
    assert not [t for t in threading.enumerate() if "compiler" in t.name]


def beside(folder, name="mmproj.gguf", **how):
    """A model whose tower is found in its folder."""
    write_tower(folder / name, **how)
    return tiny_model(folder / "model.gguf", "llama", "q8_0")


def add_listener(folder):
    """A model with Qwen2-Audio's tower for sound in its folder."""
    matrix = {"mm.a.fc.weight": (64, WIDTH), "mm.a.fc.bias": (64,)}
    keys = {**KEYS, "audio.projection_dim": 64, "projector_type": "qwen2a"}
    write_mmproj(folder / "mmproj.gguf", keys, weights(**matrix))
    return tiny_model(folder / "model.gguf", "llama", "q8_0")


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_a_found_tower_has_run_when_the_model_is_loaded(tmp_path, kind):
    path = beside(tmp_path) if kind == "image" else add_listener(tmp_path)
    random = np.random.default_rng(1)
    given = random.integers(0, 256, (40, 30, 3), np.uint8)
    given = given if kind == "image" else random.standard_normal(16_000, np.float32)
    grown, rows = [], []
    for warmup in (True, False):
        with wgpu_backend.load(path, num_ctx=256, warmup=warmup) as model:
            executor = model.backend.executor
            assert (model.towers.backend is not None) == (model.towers.warm_nbytes > 0) == warmup
            before = executor.device.counters.pipelines, executor.graph_nbytes()
            [placed] = model.towers.raw(model.prompter, MARKER, [Part(kind, given)]).placed
            rows.append(model.towers.encode(placed))
            grown.append((executor.device.counters.pipelines - before[0],
                          executor.graph_nbytes() - before[1]))  # fmt: skip
    # The inputs have the shape of the blank ones, so the graph is there, too.
    assert grown[0] == (0, 0)
    assert min(grown[1]) > 0
    assert np.array_equal(*rows)


def test_towers_have_the_same_size_before_and_after_they_are_loaded(tmp_path):
    path, sizes = beside(tmp_path), []
    for warmup in (False, True):
        with wgpu_backend.load(path, num_ctx=256, warmup=warmup) as model:
            sizes.append(model.backend_memory().size + _measure_later(model))
    # The estimate has no parameters of kernels, and no padding.
    assert sizes[0] == pytest.approx(sizes[1], rel=0.03)


def test_on_numpy_a_found_tower_is_left_for_the_first_picture(tmp_path):
    with wgpu_backend.load(beside(tmp_path), device="cpu", warmup=True) as model:
        assert model.towers.backend is None


def test_a_found_tower_that_fails_is_told_by_the_first_picture(tmp_path):
    write_tower(tmp_path / "other-mmproj.gguf")
    red = np.full((40, 30, 3), (250, 10, 10), np.uint8)
    with wgpu_backend.load(beside(tmp_path), num_ctx=256, warmup=True) as model:
        assert model.generate("the", num_predict=2)
        with pytest.raises(ModelError, match="several towers fit it"):
            model.generate("the", images=[red], num_predict=2)


def test_a_load_is_cancelled_between_pieces_of_a_tower(tmp_path, monkeypatch):
    path, begun = beside(tmp_path), []
    begin = Graphs.begin
    monkeypatch.setattr(Graphs, "begin", lambda *a: begun.append(1) or begin(*a))
    with pytest.raises(LoadCancelled, match="while its towers were warmed up"):
        # The first graph is of the dry run.
        wgpu_backend.load(path, warmup=True, cancelled=lambda: len(begun) > 1)
    assert not [t for t in threading.enumerate() if "compiler" in t.name]


@pytest.fixture
def tiny(tmp_path):
    return tiny_model(tmp_path / "tiny.gguf", "llama", "q8_0")


def test_a_failure_on_the_side_is_none_of_the_load(tiny, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("no sketch")

    monkeypatch.setattr(DryRunExecutor, "record", fail)
    with wgpu_backend.load(tiny, num_ctx=256) as model:
        assert len(list(model.tokens(PROMPT, SamplingOptions(seed=1), num_predict=3))) <= 3


def test_a_cancelled_load_compiles_no_further(tiny):
    asked = iter([False, False, True])
    with pytest.raises(LoadCancelled):
        wgpu_backend.load(tiny, cancelled=lambda: next(asked))
    assert not [t for t in threading.enumerate() if "compiler" in t.name]


def test_a_model_that_does_not_fit_together_is_told_once(tiny, monkeypatch):
    found = []
    monkeypatch.setattr(loading._LOG, "debug", lambda *args: found.append(args))

    def refuse(*_):
        raise ModelError("tiny: not today")

    monkeypatch.setattr("wgpu_backend.engine.loading.Runner", refuse)
    monkeypatch.setattr("wgpu_backend.engine.language_model.make_runner", refuse)
    with pytest.raises(ModelError, match="not today"):
        wgpu_backend.load(tiny)
    assert len(found) == 1


def test_on_numpy_there_is_nothing_to_compile(tiny):
    with wgpu_backend.load(tiny, device="cpu") as model:
        kind = type(model.model)
        with loading.warm_up(model.backend, kind, F16):
            assert not [t for t in threading.enumerate() if "compiler" in t.name]


def test_a_sketch_runs_nothing_and_reads_weights_alone(full, tiny):
    dry_run = DryRunExecutor(full, lambda _: None)
    with open_gguf(tiny) as file:
        backend = Backend(file, dry_run)
        backend.load()
        context = backend.new_context()
        norm = backend.require("output_norm.weight")
        assert norm.numpy().shape == norm.shape
        total = context.input("x", norm.shape) + norm
        graph = context.record(total)
        with pytest.raises(ContextError, match=r"\['x'\] is of a dry run"):
            graph.run({"x": norm.numpy()})
        with pytest.raises(ContextError, match="a dry run computes nothing"):
            dry_run.read(total)


def test_each_device_of_a_spread_model_compiles_nothing_more(tiny):
    name = Devices()[0].id
    devices = Placement((name, f"{name}#1"), (0, 1), 0, 1)
    executor = open_placed(devices, BackendParams(self_test=False))
    backend = Backend(open_gguf(tiny), executor)
    kind = model_class(backend.config)
    with loading.warm_up(backend, kind, F16):
        backend.load(fused_weights=kind.fused_weights)
    with LanguageModel(backend, 256, F16) as model:
        counters = [child.device.counters for child in executor.children]
        before = [each.pipelines for each in counters]
        assert len(list(model.tokens(PROMPT, SamplingOptions(seed=1), num_predict=3))) <= 3
        assert [each.pipelines for each in counters] == before
        assert min(before) > 0
