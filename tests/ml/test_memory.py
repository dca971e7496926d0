import pytest

from tests.builders import tiny_model
from wgpu_backend.errors import ContextError, DeviceError
from wgpu_backend.graph.capabilities import DeviceInfo
from wgpu_backend.ml.backend import BackendParams, backend_memory, new_backend, sum_by_layer


def test_bytes_go_to_the_layers_their_names_have() -> None:
    sizes = {"blk.0.a": 1, "blk.2.b": 2, "blk.2.c": 3, "output.weight": 10, "rope_freqs": 5}

    assert sum_by_layer(sizes) == (1, 0, 5, 15)
    assert sum_by_layer({}) == (0,)


def test_a_report_of_numpy_counts_for_the_cpu() -> None:
    weights = {"token_embd.weight": 7, "blk.0.x": 1}
    gpu = backend_memory(DeviceInfo("vulkan:0", "A GPU", kind="discrete"), weights, {}, 5)
    cpu = backend_memory(DeviceInfo("cpu", "NumPy", kind="cpu"), weights, {"cache.0.key": 2}, 0)

    assert (gpu.size, gpu.cpu.size, gpu.gpus[0].weights, gpu.input_weights) == (13, 0, (1, 7), 7)
    assert (cpu.size, cpu.cpu.cache, cpu.gpus) == (10, (2, 0), ())
    assert "A GPU" in str(gpu)


@pytest.mark.parametrize("name", ["cpu", pytest.param("wgpu", marks=pytest.mark.gpu)])
def test_a_backend_tells_what_its_layers_hold(tmp_path, name) -> None:
    path = tiny_model(tmp_path / "model.gguf", "llama", "f32")
    try:
        backend = new_backend(path, BackendParams(), name=name)
    except DeviceError as error:
        pytest.skip(f"no adapter: {error}")
    with backend:
        backend.load()
        with backend.new_context() as context:
            context.layer(1).zeros(100, 10)
            memory = backend.backend_memory()
        device = memory.cpu if name == "cpu" else memory.gpus[0]
        file_nbytes = sum(info.nbytes for info in backend.file.tensors.values())

        assert sum(device.weights) == file_nbytes
        assert len(device.weights) == backend.config.uint("block_count") + 1
        assert device.cache[1] >= 4000
        assert backend.cache_config().padding == 32
        with pytest.raises(ContextError, match="0 nodes, needs 1 to"):
            backend.new_context_size(0)
        assert backend.new_context_size(5).max_graph_nodes() == 5
