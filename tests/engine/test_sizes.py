"""Sizes of a model by layer against what loading takes."""

import pytest

from wgpu_backend.dtypes import F16, Q8_0
from wgpu_backend.engine.loading import bundled, load
from wgpu_backend.engine.sizes import measure_model
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
