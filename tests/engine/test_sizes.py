"""Sizes of a model by layer against what loading takes."""

import numpy as np
import pytest

from tests.engine.test_pictures import write_seer
from wgpu_backend.dtypes import F16, Q8_0
from wgpu_backend.engine.loading import bundled, load
from wgpu_backend.engine.media import Part
from wgpu_backend.engine.sizes import PICTURE, TowerSizes, measure_model, measure_towers
from wgpu_backend.errors import ContextFull
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.ml.placement import HOST, Placement, device_uses


@pytest.mark.parametrize(("parallel", "kv_dtype"), [(1, F16), (3, Q8_0)])
def test_weights_and_cache_are_those_of_a_loaded_model(parallel, kv_dtype) -> None:
    with open_gguf(bundled()) as file:
        sizes = measure_model(file, 200, parallel, kv_dtype)
    with load(device="cpu", num_ctx=200, num_parallel=parallel, kv_dtype=kv_dtype) as model:
        memory = model.backend.backend_memory().cpu
    [use] = device_uses(sizes.nbytes, Placement.single(HOST, len(sizes.nbytes.layers)))
    # The NumPy device also has states that no layer owns, at the end.
    assert use.cache == memory.cache[:-1]
    assert use.weights[:-1] == memory.weights[:-1]
    assert use.weights[-1] == memory.weights[-1]


def test_a_tied_table_is_counted_as_embedding_and_as_head() -> None:
    with open_gguf(bundled()) as file:
        table = file.tensors["token_embd.weight"].nbytes
        sizes = measure_model(file).nbytes
        total = sum(info.nbytes for info in file.tensors.values())
    assert sizes.tied.weights == table == sizes.embedding.weights
    assert table < sizes.output.weights < 2 * table
    parts = sum(layer.weights for layer in sizes.layers) + sizes.output.weights
    assert parts == total


def test_a_tower_is_counted_with_the_head(tmp_path) -> None:
    path = write_seer(tmp_path)
    with open_gguf(path) as file, open_gguf(tmp_path / "mmproj.gguf") as tower:
        own = sum(info.nbytes for info in tower.tensors.values())
        (tmp_path / "away").mkdir()
        (tmp_path / "mmproj.gguf").rename(tmp_path / "away" / "t.gguf")
        alone = measure_model(file).nbytes
        sizes = measure_model(file, mmproj=tmp_path / "away" / "t.gguf").nbytes
        assert measure_towers(file) == TowerSizes()
        # A file that is no tower is reported with the first picture.
        assert measure_towers(file, path) == measure_towers(file, tmp_path / "no") == TowerSizes()
        found = measure_towers(file, tmp_path / "away" / "t.gguf")
    assert (found.weights, found.host_weights) == (own, own)
    assert sizes.output.weights - alone.output.weights == own
    assert sizes.output.read_on("gpu") == alone.output.read_on("gpu")
    assert sizes.logits - alone.logits == found.graph
    with load(path, device="cpu", mmproj=tmp_path / "away" / "t.gguf") as model:
        assert model.backend_memory().size - model.backend.backend_memory().size == own
        assert model.memory()["weights"] == sum(model.backend_memory().cpu.weights)
        media, _ = model.towers.prepare(Part("image", np.zeros(PICTURE, np.uint8)))
        inputs = sum(array.nbytes for array in media.arrays.values())
    assert inputs + 4 * media.rows * 64 < found.graph < 20 * inputs


@pytest.mark.gpu
def test_a_tower_s_graph_takes_what_was_measured(tmp_path, full) -> None:
    """Slots of buffers are rounded up, so that a graph takes a little more."""
    path = write_seer(tmp_path)
    with open_gguf(path) as file:
        expected = measure_towers(file)
    with load(path, device=full.info) as model:
        assert model.backend_memory().gpu_size == model.backend.backend_memory().gpu_size
        [placed] = model._raw_prompt("<__media__>", [np.zeros(PICTURE, np.uint8)]).placed
        before = model.backend_memory().gpus[0]
        assert sum(before.weights) - sum(model.backend.backend_memory().gpus[0].weights) == (
            pytest.approx(expected.weights, rel=0.1)
        )
        model.alone(lambda: model.towers._graphs[id(placed.tower)].run(placed.media))
        assert model.backend_memory().gpus[0].graph - before.graph == pytest.approx(
            expected.graph, rel=0.1
        )


def test_nothing_is_read_but_the_header(tmp_path, monkeypatch) -> None:
    from wgpu_backend.files.gguf.file_bytes import FileRange

    def read_into(*_: object) -> None:
        raise AssertionError("a tensor was read")

    monkeypatch.setattr(FileRange, "read_into", read_into)
    with open_gguf(bundled()) as file:
        assert measure_model(file).nbytes.compute > 0


def test_the_context_is_the_default_or_the_one_asked_for() -> None:
    with open_gguf(bundled()) as file:
        assert measure_model(file).num_ctx == file.config.uint("context_length")
        short, long = (measure_model(file, n).nbytes.layers[0].cache for n in (64, 256))
        assert long == 4 * short
        with pytest.raises(ContextFull, match="num_ctx: 0"):
            measure_model(file, 0)
