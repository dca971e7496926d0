"""Layers, caches and tables in the host's memory, which a device reads there."""

from dataclasses import replace

import numpy as np
import pytest

import wgpu_backend
from tests.builders import Dims, tiny_model
from tests.models.adapters import a_lora
from tests.ops.operands import weight_bytes
from tests.shares import KINDS
from wgpu_backend.device.adapters import Devices
from wgpu_backend.device.device import Device
from wgpu_backend.dtypes import F16, Q4_0
from wgpu_backend.engine.language_model import LanguageModel
from wgpu_backend.engine.loading import bundled
from wgpu_backend.engine.placing import plan_model
from wgpu_backend.errors import DeviceError, OptionError, OutOfMemory
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.graph.capabilities import HOST_FEATURE, DeviceInfo
from wgpu_backend.graph.spec import Spec
from wgpu_backend.kernels import complete
from wgpu_backend.ml.backend import Backend, BackendParams, make_executor
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.placement import EMBEDDING, HOST, Placement, PlacementOptions
from wgpu_backend.ml.tensor import leaf
from wgpu_backend.nn.batch import Work
from wgpu_backend.nn.model import model_class
from wgpu_backend.ops.host_values import dequantise
from wgpu_backend.ops.layouts.planes import plane_nbytes
from wgpu_backend.ops.sampling.host import SamplingOptions

GREEDY = SamplingOptions(temperature=0.0)
# Long enough for products that copy weights to the device first.
PROMPT = [20 + i % 40 for i in range(70)]
EVERYTHING = frozenset({EMBEDDING, 0, 1, 2})
GB = 1 << 30
CARD = DeviceInfo(
    "vulkan:0",
    "Card",
    kind="discrete",
    features=(HOST_FEATURE,),
    free_memory=(512 << 20) + 1_500_000,
)
CPU = DeviceInfo(HOST, "NumPy", kind="cpu", free_memory=8 * GB)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A model with a head of its own."""
    return tiny_model(tmp_path_factory.mktemp("host") / "tiny.gguf", dims=Dims(layers=3))


@pytest.fixture(scope="module")
def adapter(full) -> str:
    """The id of an adapter whose kernels can bind the host's memory."""
    if not full.device.reads_host_memory:
        pytest.skip(f"{full.info.id} cannot read the host's memory: no {HOST_FEATURE}")
    return full.info.id


def on(adapter: str, host: frozenset[int], *, caches: bool = False) -> Placement:
    return Placement((adapter,), (0, 0, 0), 0, 0, host, caches)


def answer(model: LanguageModel) -> tuple[np.ndarray, list[int]]:
    """Logits of a prompt, and the tokens after it."""
    [logits] = model.runner.prompt(0, PROMPT, model._logits, {}).wait()
    return logits, list(model.tokens(PROMPT, GREEDY, num_predict=8))


def by_hand(path, placement: Placement, kind: str, *, tied: bool = False) -> LanguageModel:
    """The model with the kernels of another kind of device."""
    executor = make_executor("wgpu", BackendParams(self_test=False))
    told = replace(executor.device.capabilities, **KINDS[kind])
    executor = executor.as_if(complete(told))
    if placement.uses_host_memory:
        executor.use_host_memory(placement, 0, tied=tied)
        executor.stages = kind == "wide"
    backend = Backend(open_gguf(path), executor)
    backend.load(fused_weights=model_class(backend.config).fused_weights)
    return LanguageModel(backend, 96, F16)


def purposes(model: LanguageModel) -> dict[str, int]:
    device = model.backend.executor.device
    return {use.purpose: use.nbytes for use in device.memory_report().uses}


# What a device computes.


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["full", pytest.param("wide", marks=pytest.mark.slow)])
def test_layers_in_the_host_s_memory_give_the_same_numbers(path, adapter, kind):
    with by_hand(path, on(adapter, frozenset()), kind) as model:
        wanted, tokens = answer(model)
        whole = model.backend.backend_memory()
        assert not {"host weights", "host cache"} & purposes(model).keys()
    some, caches = on(adapter, frozenset({0, 1})), on(adapter, frozenset(), caches=True)
    everything = on(adapter, EVERYTHING)
    # Kernels for hardware take a rasteriser's compiler long.
    for placement in (everything,) if kind == "wide" else (some, everything, caches):
        with by_hand(path, placement, kind) as model:
            assert model.placement == placement
            logits, found = answer(model)
            np.testing.assert_array_equal(logits, wanted)
            assert found == tokens
            memory, used = model.backend.backend_memory(), purposes(model)
        # Nothing is lost, and what is in the host's memory counts for the CPU.
        [gpu] = memory.gpus
        assert memory.size - gpu.graph == whole.size - whole.gpus[0].graph
        for i in range(3):
            far = i in placement.host
            assert (memory.cpu.weights[i] if far else gpu.weights[i]) > 0
            assert (gpu.weights[i] if far else sum(memory.cpu.weights[i : i + 1])) == 0
            cached = far or placement.host_caches
            assert (memory.cpu.cache[i] if cached else gpu.cache[i]) > 0
            assert (gpu.cache[i] if cached else sum(memory.cpu.cache[i : i + 1])) == 0
        assert used["host cache"] == sum(memory.cpu.cache)
        assert ("host weights" in used) == bool(placement.host)


@pytest.mark.slow
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [F16, Q4_0])
def test_products_of_many_rows_copy_weights_to_the_device_first(adapter, dtype):
    """Three weights in a row take turns in two slots."""
    rng = np.random.default_rng(7)
    width, rows = 64, 70
    data = [weight_bytes(rng, width, width, dtype, std=0.125) for _ in range(3)]
    wide = [dequantise(dtype, each, Spec.dense((width, width), dtype)) for each in data]
    x = rng.standard_normal((rows, width), np.float32)
    executor = make_executor("wgpu", BackendParams(self_test=False, fusion=False))
    executor = executor.as_if(complete(replace(executor.device.capabilities, **KINDS["wide"])))
    executor.use_host_memory(on(adapter, frozenset({0, 1, 2})), 0)
    assert not executor.stages
    with Context(executor) as ctx:
        spec = Spec.dense((width, width), dtype)
        weights = [
            leaf(spec, executor.weight(spec, memoryview(each), f"blk.{i}.ffn_up.weight"), ctx)
            for i, each in enumerate(data)
        ]

        def product(count, *, stages):
            executor.stages = stages
            y = ctx.input("x", (count, width))
            for weight in weights:
                y = weight.mulmat(y)
            recorded = ctx.record(y)
            found = [recorded.run({"x": x[:count]}).wait()[0] for _ in range(2)]
            np.testing.assert_array_equal(*found)
            return found[0], recorded.dispatches

        direct, dispatches = product(rows, stages=False)
        copied, more = product(rows, stages=True)
        planes = len(plane_nbytes(dtype))
        assert more == dispatches + 3 * planes
        np.testing.assert_array_equal(copied, direct)
        exact = x.astype(np.float64)
        for each in wide:
            exact = exact @ each.T
        np.testing.assert_allclose(copied, exact, rtol=1e-3, atol=1e-4)
        # A few rows read a weight once.
        assert product(4, stages=True)[1] == product(4, stages=False)[1]
    executor.close()


@pytest.mark.gpu
def test_a_table_that_is_the_head_stays_on_the_device(tmp_path, adapter):
    tied = tiny_model(tmp_path / "tied.gguf", dims=Dims(layers=3), tied=True)
    with by_hand(tied, on(adapter, EVERYTHING), "full", tied=True) as model:
        memory = model.backend.backend_memory()
    assert memory.gpus[0].weights[3] >= memory.input_weights > 0
    assert memory.cpu.weights[3] == 0


@pytest.mark.gpu
def test_arguments_of_loading_leave_layers_and_caches_in_the_host_s_memory(path, adapter):
    common = {"num_ctx": 96, "exact": True, "self_test": False}
    with wgpu_backend.load(path, device=adapter, **common) as model:
        wanted = list(model.tokens(PROMPT, GREEDY, num_predict=8))
    with wgpu_backend.load(
        path, device=adapter, gpu_layers=2, op_offload=True, kv_offload=False, **common
    ) as model:
        assert model.placement == on(adapter, frozenset({EMBEDDING, 0, 1}), caches=True)
        assert model.placement.gpu_layers == 2
        assert list(model.tokens(PROMPT, GREEDY, num_predict=8)) == wanted
        memory = model.backend.backend_memory()
    options = PlacementOptions(gpu_layers=2, op_offload=True, kv_offload=False)
    with open_gguf(path) as file:
        predicted = plan_model(file, Devices()[:1], options, num_ctx=96).memory()
    for found, planned in ((memory.cpu, predicted.cpu), (memory.gpus[0], predicted.gpus[0])):
        assert found.weights == planned.weights
        # Buffers of a device are padded.
        pairs = zip(found.cache[:3], planned.cache[:3], strict=True)
        assert all(0 <= a - b <= 1024 for a, b in pairs)


@pytest.mark.gpu
def test_a_cache_in_the_host_s_memory_is_copied_saved_and_restored(path, adapter):
    with wgpu_backend.load(
        path, device=adapter, kv_offload=False, num_ctx=96, num_parallel=2, self_test=False
    ) as model:
        assert model.placement == on(adapter, frozenset(), caches=True)

        def ask(sequence: int) -> np.ndarray:
            work = Work(sequence, [7], (0,))
            return model.runner.run([work], model._logits, {}).wait()[0][0]

        model.runner.prompt(0, PROMPT, model._logits, {}).wait()
        model.cache.copy_prefix(0, 1, len(PROMPT))
        wanted = ask(1)
        saved = model.cache.save(0)
        model.cache.remove(0)
        model.cache.restore(0, saved)
        assert model.cache.length(0) == len(PROMPT)
        np.testing.assert_array_equal(ask(0), wanted)
        model.cache.remove(0, len(PROMPT))
        np.testing.assert_array_equal(ask(0), wanted)


@pytest.mark.slow
@pytest.mark.gpu
def test_adapters_of_layers_in_the_host_s_memory(tmp_path, path, adapter):
    lora = a_lora(tmp_path / "lora.gguf", path)
    common = {"num_ctx": 96, "self_test": False, "exact": True, "adapters": [lora]}
    with wgpu_backend.load(path, device=adapter, **common) as model:
        wanted = list(model.tokens(PROMPT, GREEDY, num_predict=6))
    with wgpu_backend.load(path, placement=on(adapter, EVERYTHING), **common) as model:
        assert list(model.tokens(PROMPT, GREEDY, num_predict=6)) == wanted
        before = purposes(model)["host weights"]
        model.set_adapters([])
        # Those of the adapter are released, the model's are not.
        assert 0 < purposes(model)["host weights"] <= before
        assert len(list(model.tokens(PROMPT, GREEDY, num_predict=6))) <= 6


@pytest.mark.gpu
def test_two_devices_with_a_part_in_the_host_s_memory(path, adapter):
    with wgpu_backend.load(path, device="cpu", num_ctx=96) as model:
        wanted = list(model.tokens(PROMPT, GREEDY, num_predict=8))
    twin = f"{adapter}#1"
    placement = Placement((adapter, twin), (0, 0, 1), 0, 1, frozenset({EMBEDDING, 0}))
    with wgpu_backend.load(path, placement=placement, num_ctx=96, exact=True) as model:
        assert list(model.tokens(PROMPT, GREEDY, num_predict=8)) == wanted
        memory = model.backend.backend_memory()
    assert [bool(nbytes) for nbytes in memory.cpu.weights] == [True, False, False, True]
    assert [gpu.weights[0] for gpu in memory.gpus] == [0, 0]


# What is refused.


@pytest.mark.gpu
def test_a_device_without_the_feature_is_refused(path, adapter):
    with pytest.raises(DeviceError, match=f"cannot read the host's memory.*{HOST_FEATURE}"):
        wgpu_backend.load(path, placement=on(adapter, EVERYTHING), profile="baseline")
    # A plan for it has the CPU compute.
    with pytest.raises(OptionError, match="kv_offload"):
        wgpu_backend.load(path, device=adapter, kv_offload=False, profile="baseline")


@pytest.mark.gpu
def test_more_than_the_host_has_is_refused(adapter):
    with Device.open(adapter) as device:
        device._pool._host = lambda live: live + (1 << 20)
        buffer = device.buffer(1 << 20, purpose="host weights", label="blk.0")
        with pytest.raises(OutOfMemory, match="2 MiB of the host's memory with 1 MiB in use"):
            device.buffer(2 << 20, purpose="host cache")
        # It returns to the host, not to the pool.
        buffer.release()
        assert device.memory_report().pool_nbytes == 0


# Plans, which need no device.


def plan(*devices: DeviceInfo, profile: str = "full", **options: object):
    with open_gguf(bundled()) as file:
        chosen = PlacementOptions(**options)
        return plan_model(file, devices, chosen, num_ctx=64, profile=profile)


def test_a_plan_counts_the_host_s_memory_for_the_cpu() -> None:
    found = plan(CARD, CPU)
    host = found.placement.host
    assert found.placement.devices == ("vulkan:0",)
    assert EMBEDDING in host
    assert found.placement.gpu_layers == 7 - len(host - {EMBEDDING}) < 7
    memory = found.memory()
    [gpu] = memory.gpus
    assert 0 < gpu.size <= 1_500_000 < memory.size
    for layer in range(6):
        assert (gpu.weights[layer] == 0) == (layer in host) == (memory.cpu.weights[layer] > 0)
    # Four bits on the bus against f32 on the CPU.
    assert found.step_seconds < found.seconds_otherwise()
    by_cpu = plan(CARD, CPU, op_offload=False)
    assert by_cpu.placement.devices == (HOST, "vulkan:0")
    assert by_cpu.seconds_otherwise() == found.step_seconds
    assert plan(replace(CARD, free_memory=8 * GB), CPU).seconds_otherwise() is None


def test_a_plan_of_what_cannot_read_the_host_s_memory(monkeypatch) -> None:
    def by_cpu(**options: object) -> bool:
        return plan(CARD, CPU, **options).placement.devices == (HOST, "vulkan:0")

    assert not by_cpu()
    assert by_cpu(profile="baseline")
    monkeypatch.setenv("WGPU_BACKEND_IMPLEMENTATION", "dawn")
    assert by_cpu()


def test_a_host_with_too_little_memory_is_one_error() -> None:
    little = replace(CPU, free_memory=(512 << 20) + 100_000)
    with pytest.raises(OutOfMemory, match=r"does not fit.*free are vulkan:0 .*, cpu "):
        plan(CARD, little)


@pytest.mark.parametrize("name", ["op_offload", "kv_offload"])
def test_a_flag_is_true_or_false(name) -> None:
    with pytest.raises(OptionError, match=f"{name}: 1 \\(int\\), needs True or False"):
        wgpu_backend.load(**{name: 1})
