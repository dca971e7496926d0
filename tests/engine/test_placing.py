"""Placement of a model on the devices of a machine: arguments, devices, plans, loading."""

import math
from dataclasses import replace

import numpy as np
import pytest

from wgpu_backend.device import adapters
from wgpu_backend.engine import placing
from wgpu_backend.engine.loading import bundled, load
from wgpu_backend.engine.placing import (
    BUS_SPEED,
    DeviceChoice,
    choose_host,
    find_devices,
    make_budget,
    place_model,
    plan_model,
)
from wgpu_backend.errors import DeviceError, OptionError, OutOfMemory
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.graph.capabilities import HOST_FEATURE, DeviceInfo, MatrixUnit
from wgpu_backend.ml.calibration import host_speed
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.placement import (
    HOST,
    HOST_SPEED,
    LayerNbytes,
    ModelNbytes,
    Placement,
    PlacementOptions,
)
from wgpu_backend.ml.placement_arguments import parse_layers, parse_split

GB = 1 << 30
CARD = DeviceInfo("vulkan:0", "Card", kind="discrete", free_memory=8 * GB, total_memory=8 * GB)
SMALL = DeviceInfo("vulkan:1", "Small", kind="discrete", free_memory=(512 << 20) + 1_500_000)
PHONE = DeviceInfo("vulkan:2", "Phone", kind="integrated", free_memory=None)
CPU = DeviceInfo(HOST, "NumPy", kind="cpu", free_memory=8 * GB)


def plan(devices, **options):
    with open_gguf(bundled()) as file:
        return plan_model(file, devices, PlacementOptions(**options), num_ctx=64)


def test_a_card_with_room_takes_the_whole_model() -> None:
    found = plan([CARD, CPU])
    assert str(found.placement) == "vulkan:0: embedding, layers 0-5, output"
    memory = found.memory()
    assert memory.cpu.size == 0
    assert memory.gpu_size == memory.size == found.uses[0].size
    assert len(memory.gpus[0].weights) == len(memory.gpus[0].cache) == 7


def test_what_does_not_fit_goes_to_the_cpu() -> None:
    found = plan([SMALL, CPU])
    assert found.placement.devices == (HOST, "vulkan:1")
    assert 0 < found.placement.gpu_layers < 7
    memory = found.memory()
    [gpu] = memory.gpus
    assert 0 < gpu.size <= 1_500_000 < memory.size
    # Where a layer is, and only there, are its weights and its cache.
    for layer, on_cpu, on_gpu in zip(range(6), memory.cpu.weights, gpu.weights, strict=False):
        assert (on_cpu == 0) == (found.placement.device(layer) == "vulkan:1") == (on_gpu > 0)
    assert memory.input_weights > 0


def test_integrated_memory_is_the_host_s() -> None:
    assert make_budget(PHONE).memory == make_budget(CPU).memory == HOST
    assert make_budget(CARD).memory == "vulkan:0"
    twin = DeviceInfo("vulkan:0#1", "Card", kind="discrete", free_memory=8 * GB)
    assert make_budget(twin).memory == "vulkan:0"
    tiny = DeviceInfo(HOST, "NumPy", kind="cpu", free_memory=100)
    with pytest.raises(OutOfMemory, match="cpu 100 B"):
        plan([PHONE, tiny])


def test_memory_that_no_platform_reports_has_no_limit() -> None:
    unknown = DeviceInfo("vulkan:0", "Card", kind="discrete")
    assert plan([unknown, CPU]).placement.gpu_layers == 7


@pytest.mark.parametrize("value", [None, "auto", " AUTO "])
def test_auto_layers(value) -> None:
    assert parse_layers(value) == "auto"


def test_layers_and_shares_of_texts() -> None:
    assert parse_layers("All") == "all"
    assert parse_layers("12") == parse_layers(12.0) == 12
    assert parse_split("3,1") == parse_split("3/1") == parse_split([3, 1]) == (3.0, 1.0)
    # llama.cpp takes runs of separators for one, and spaces around a number.
    assert parse_split(" 3 ,, 1/") == parse_split(np.array([3, 1])) == (3.0, 1.0)
    # No split, as in llama-cpp-python.
    assert parse_split(None) == parse_split([]) == parse_split(()) == ()


def test_an_empty_split_is_no_option() -> None:
    for split in (None, [], (), np.zeros(0)):
        assert DeviceChoice.check("cpu", tensor_split=split).placement is None
        with load(device="cpu", tensor_split=split, num_ctx=16) as model:
            assert model.placement == Placement.single("cpu", 6)


@pytest.mark.parametrize(
    ("name", "values", "kind"),
    [
        ("gpu_layers", (True, 1.5, math.nan, math.inf, [1], "", "3.0", -1), "'all' or 'auto'"),
        ("tensor_split", ([True, 0], {1, 2}, {1: 2}, b"31", 3, True), "needs"),
        ("tensor_split", ("", ",3", "3;1", "True,0", [None], [[1]], [10**400]), "needs numbers"),
        ("tensor_split", ([math.inf, 1], "nan", "-1,2", ["1e400"]), "needs finite numbers"),
        ("main_gpu", (True, 1.5, math.nan, "x", [0]), "needs a whole number"),
        ("op_offload", (1, "yes", 1.0), "needs True or False"),
        ("kv_offload", (0, "no", 0.0, None), "needs True or False"),
        ("spread", (1, "no", None), "needs True or False"),
        ("capped", (1, "no", None), "needs True or False"),
        ("split_mode", ("row", 1, None), "needs 'layer' or 'none'"),
        ("reserve_nbytes", (1.5, True, math.nan, "x", None), "needs a whole number"),
    ],
)
def test_options_of_the_wrong_kind_are_named(name, values, kind) -> None:
    for value in values:
        with pytest.raises(OptionError, match=f"^{name}: .*{kind}"):
            PlacementOptions(**{name: value})


def test_options_are_kept_as_plain_numbers() -> None:
    given = PlacementOptions("3", np.array([3, 1]), np.int64(1), op_offload=np.bool_(True))
    assert given == PlacementOptions(3, (3.0, 1.0), 1, op_offload=True)
    assert PlacementOptions(None, None) == PlacementOptions()


def test_other_programs_name_the_first_gpu_where_there_is_none() -> None:
    for layers in (0, 99, "all"):
        given = {"gpu_layers": layers, "main_gpu": 0, "split_mode": "none"}
        assert plan([CPU], capped=True, **given).placement.devices == (HOST,)
        with pytest.raises(OptionError, match=r"there are none|no GPU among the devices: cpu"):
            plan([CPU], **given)
    with pytest.raises(OptionError, match="main_gpu: 1, there are none"):
        plan([CPU], capped=True, main_gpu=1)


def test_devices_without_a_share_have_none_as_in_llama_cpp() -> None:
    twin = replace(CARD, id="vulkan:0#1")
    alone = plan([CARD, twin], tensor_split=[1], capped=True).placement
    assert alone == plan([CARD, twin], tensor_split=[1, 0, 0], capped=True).placement
    assert alone.devices == ("vulkan:0",)
    with pytest.raises(OptionError, match=r"1 shares for 2 devices: .*; give one for each"):
        plan([CARD, twin], tensor_split=[1])
    with pytest.raises(OptionError, match="3 shares for 2 devices"):
        plan([CARD, twin], tensor_split=[1, 1, 1], capped=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gpu_layers": "many"}, "'many' \\(str\\), needs a number, 'all' or 'auto'"),
        ({"gpu_layers": 1.5}, "gpu_layers"),
        ({"gpu_layers": True}, "gpu_layers"),
        ({"gpu_layers": -1}, "needs 0 or more"),
        ({"gpu_layers": 8, "devices": ["cpu"]}, "the model has 7"),
        ({"gpu_layers": 3, "devices": ["cpu"]}, "there is no GPU"),
        ({"tensor_split": [1, "x"]}, "'x' \\(str\\), needs numbers"),
        ({"tensor_split": 3}, "needs a list of numbers"),
        ({"tensor_split": [0]}, "sum"),
        ({"tensor_split": [-1, 2]}, "-1.0"),
        ({"tensor_split": [math.nan]}, "nan"),
        ({"tensor_split": [1, 1], "devices": ["cpu"]}, "2 shares for 1 devices"),
        ({"main_gpu": 1, "devices": ["cpu"]}, "main_gpu: 1, there are none"),
        ({"main_gpu": "x"}, "main_gpu"),
        ({"device": "cpu", "devices": ["cpu"]}, "give one"),
        ({"placement": 3}, "needs PlacementOptions or a Placement"),
        ({"placement": PlacementOptions(), "gpu_layers": 1}, "placement has gpu_layers, too"),
        ({"placement": Placement.single("cpu", 5)}, "it has 5 layers, the model has 6"),
        (
            {"placement": Placement.single("cpu", 6), "devices": ["cpu#1"]},
            r"layers on \['cpu'\], the devices are \['cpu#1'\]",
        ),
        (
            {"placement": Placement(("cpu#1", "cpu"), (0,) * 6, 0, 1), "device": "cpu"},
            r"layers on \['cpu#1'\], the devices are \['cpu'\]",
        ),
        ({"openers": 3}, r"openers: 3 \(int\), needs functions by the ids"),
        ({"openers": {"cpu": None}}, "openers: None .*for 'cpu', needs a function"),
        (
            {"openers": {"cpu@x": NumpyExecutor}, "placement": Placement.single("cpu", 6)},
            r"openers: functions for \['cpu@x'\], placement names \['cpu'\]",
        ),
        ({"openers": {"cpu": NumpyExecutor}, "devices": ["cpu"]}, r"placement names \[\]"),
    ],
)
def test_arguments_that_do_not_go_together(arguments, message) -> None:
    with pytest.raises(OptionError, match=message):
        load(**{"device": None, **arguments})


def test_devices_that_are_unknown_missing_or_named_twice() -> None:
    with pytest.raises(DeviceError, match="no such device"):
        load(devices=["cpu", "vulkan:77"])
    with pytest.raises(DeviceError, match="'cpu' and 'numpy' are one device, cpu"):
        load(devices=["cpu", "numpy"])
    with pytest.raises(DeviceError, match="empty"):
        find_devices([])
    for names in (3, True, {"cpu"}, {"cpu": 1}, b"cpu"):
        with pytest.raises(DeviceError, match="needs a list of names, best first"):
            find_devices(names)
    for name in (True, 1.0, None, []):
        with pytest.raises(DeviceError, match="names no device"):
            find_devices([name])
    # llama.cpp's word for the CPU alone.
    assert [info.id for info in find_devices(["none"])] == ["cpu"]
    assert [info.id for info in find_devices("cpu")] == ["cpu"]


OTHER = "cpu@10.0.0.2:9"


def test_a_placement_names_a_device_that_no_function_opens() -> None:
    placement = Placement((OTHER, "cpu"), (0,) * 3 + (1,) * 3, 0, 1)
    with pytest.raises(DeviceError, match=f"'{OTHER}': no such device"):
        load(placement=placement)
    with pytest.raises(DeviceError, match=f"'{OTHER}': no such device"):
        load(placement=placement, openers={"cpu": lambda _: NumpyExecutor()})
    with pytest.raises(DeviceError, match=r"devices \[\], needs each device once"):
        Placement((), (), 0, 0)
    for names in ("cpu", (1,)):
        with pytest.raises(DeviceError, match="needs a tuple of ids"):
            Placement(names, (0,), 0, 0)


@pytest.mark.parametrize("names", [("cpu",), (OTHER,), ("cpu", OTHER), (OTHER, "cpu")])
@pytest.mark.parametrize("local", [True, False])
def test_a_placement_on_devices_that_functions_open(names, local) -> None:
    """Of devices that functions open, any may be the first, and the only one."""
    layers = tuple(layer * len(names) // 6 for layer in range(6))
    placement = Placement(names, layers, 0, len(names) - 1)
    opened: dict[str, NumpyExecutor] = {}

    def open_as(name):
        def open_it(_):
            assert name not in opened
            opened[name] = NumpyExecutor()
            return opened[name]

        return open_it

    functions = {name: open_as(name) for name in names if local or name == OTHER}
    with load(num_ctx=64, exact=True, device="cpu") as alone:
        wanted = alone.generate("A dragon", num_predict=8, options={"temperature": 0})
    with load(num_ctx=64, exact=True, placement=placement, openers=functions) as model:
        assert opened.keys() == functions.keys()
        assert model.placement == placement
        assert [info.id for info in model.backend.backend_devices()] == [*names]
        found = model.generate("A dragon", num_predict=8, options={"temperature": 0})
    assert found == wanted


def test_a_placement_by_other_names_of_devices(adapter) -> None:
    kind = find_devices([adapter])[0].kind
    with load(num_ctx=64, placement=Placement((kind,), (0,) * 6, 0, 0)) as model:
        assert model.placement.devices == (model.device.id,)
        assert model.device.kind == kind
    with load(num_ctx=64, placement=Placement(("numpy", "cpu#1"), (0,) * 6, 0, 1)) as model:
        assert model.placement.devices == ("cpu", "cpu#1")
    same = Placement(("cpu", "numpy"), (0,) * 6, 0, 1)
    with pytest.raises(DeviceError, match="'cpu' and 'numpy' are one device, cpu"):
        load(placement=same)


@pytest.mark.parametrize("far", [frozenset({2}), frozenset()])
def test_a_device_that_a_function_opens_has_its_own_memory(far) -> None:
    placement = Placement((OTHER,), (0,) * 6, 0, 0, far, host_caches=not far)
    what = r"layers \[2\]" if far else "caches"
    with pytest.raises(DeviceError, match=f"placement: {what} of '{OTHER}' in host memory"):
        load(placement=placement, openers={OTHER: lambda _: NumpyExecutor()})


def test_a_model_on_the_cpu_by_each_of_its_names() -> None:
    for arguments in (
        {"devices": ["cpu"]},
        {"devices": ["cpu"], "gpu_layers": 0},
        {"devices": ["cpu"], "placement": PlacementOptions(gpu_layers=99, capped=True)},
        {"placement": Placement.single("cpu", 6)},
    ):
        with load(num_ctx=64, **arguments) as model:
            assert model.device.id == "cpu"
            assert model.placement == Placement.single("cpu", 6)
            assert model.placement.gpu_layers == 0


def test_without_options_only_gpus_of_known_memory_are_planned(monkeypatch) -> None:
    software = DeviceInfo("vulkan:9", "soft", kind="software", free_memory=8 * GB)
    for info, planned in ((CARD, True), (software, False), (PHONE, False), (CPU, False)):
        monkeypatch.setattr(placing, "find_devices", lambda _, info=info: [info])
        wanted = DeviceChoice.check()
        assert (wanted.placement is not None) == planned
        assert DeviceChoice.check(device=info).placement is None
        placed = place_model(bundled(), wanted, 64)
        assert (placed.placement is not None) == planned


def test_integrated_gpus_are_for_machines_without_others(monkeypatch) -> None:
    soft = DeviceInfo("vulkan:9", "soft", kind="software", free_memory=8 * GB)
    for infos, wanted in (
        ([CARD, SMALL, PHONE, soft, CPU], [CARD, SMALL]),
        ([PHONE, soft, CPU], [PHONE]),
        ([soft, CPU], [soft]),
        ([CPU], [CPU]),
    ):
        monkeypatch.setattr(adapters, "Devices", lambda infos=infos: infos)
        assert find_devices(None) == wanted


def test_a_table_stays_on_a_card_that_dawn_may_open() -> None:
    both = replace(
        CARD,
        features=(HOST_FEATURE,),
        implementations=("wgpu", "dawn"),
        matrix=MatrixUnit(16, 16, 16, 32),
    )
    assert make_budget(both, implementation="auto").keeps_table
    assert not make_budget(both, implementation="wgpu").keeps_table
    assert not make_budget(replace(both, matrix=None), implementation="auto").keeps_table
    buses = [make_budget(both, implementation=name).bus for name in ("auto", "wgpu", "dawn")]
    assert buses == [BUS_SPEED, BUS_SPEED, None]


def test_the_faster_of_the_cpu_s_devices_has_what_no_gpu_takes(monkeypatch) -> None:
    """By bytes that each stores: NumPy has block formats as f32."""
    soft = DeviceInfo("vulkan:9", "soft", kind="software", implementations=("wgpu",))
    slow = DeviceInfo("vulkan:8", "slow", kind="software", implementations=("wgpu",))
    speeds = {HOST: 7e9, "vulkan:9": 1.1e9, "vulkan:8": 0.5e9}
    of = ModelNbytes((LayerNbytes(100, host_weights=700),) * 2)
    monkeypatch.setattr(adapters, "Devices", lambda: [CARD, slow, soft, CPU])
    monkeypatch.setattr(host_speed, "recall_speed", lambda info: speeds.get(info.id))

    def chosen(*devices, **options):
        info, budget = choose_host(devices, of, **options)
        return info.id, budget.id, budget.speed, budget.memory, budget.bus

    assert chosen(CARD) == ("vulkan:9", "vulkan:9", 1.1e9, HOST, None)
    # Those that the caller names, machines without a GPU, and another implementation.
    assert chosen(CARD, CPU)[0] == HOST
    assert chosen(CARD, soft)[:3] == (HOST, HOST, 7e9)
    assert chosen(slow)[0] == HOST
    assert chosen(CARD, implementation="dawn")[0] == HOST
    # Only what was measured is compared.
    speeds["vulkan:9"] = 0.9e9
    assert chosen(CARD)[:3] == (HOST, HOST, 7e9)
    speeds[HOST] = None
    assert chosen(CARD)[:3] == (HOST, HOST, HOST_SPEED)


# Several devices.

STORY = "Once upon a time"


@pytest.fixture(scope="module")
def adapter(full) -> str:
    """The id of an adapter; the fixture skips where there is none."""
    return full.info.id


def halves(**more):
    """The story model on an adapter and NumPy."""
    return load(num_ctx=64, exact=True, self_test=False, **more)


@pytest.mark.gpu
def test_layers_on_two_devices_give_the_same_text_and_each_its_memory(adapter) -> None:
    with load(device="cpu", num_ctx=64) as model:
        wanted = model.generate(STORY, num_predict=8, options={"temperature": 0})
        whole = model.backend.backend_memory()
    with halves(device=adapter, gpu_layers=3) as model:
        assert str(model.placement) == f"cpu: embedding, layers 0-3; {adapter}: layers 4-5, output"
        assert model.generate(STORY, num_predict=8, options={"temperature": 0}) == wanted
        memory = model.backend.backend_memory()
        assert [info.id for info in model.backend.backend_devices()] == ["cpu", adapter]
    [gpu] = memory.gpus
    assert memory.cpu.cache[:4] == whole.cpu.cache[:4]
    assert memory.cpu.cache[4:6] == (0, 0)
    assert gpu.cache[:4] == (0, 0, 0, 0)
    # Buffers of a device are padded.
    assert all(0 <= a - b <= 1024 for a, b in zip(gpu.cache, whole.cpu.cache, strict=True) if a)
    assert all(memory.cpu.weights[:4])
    assert not any(memory.cpu.weights[4:6])
    assert 0 < memory.gpu_size < memory.size


@pytest.mark.gpu
def test_the_plan_predicts_what_loading_takes(adapter) -> None:
    options = PlacementOptions(gpu_layers=3)
    with open_gguf(bundled()) as file:
        predicted = plan_model(file, find_devices([adapter]), options, num_ctx=64).memory()
    with halves(device=adapter, gpu_layers=3) as model:
        model.generate(STORY, num_predict=2)
        memory = model.backend.backend_memory()
    assert predicted.input_weights == memory.input_weights
    assert predicted.cpu.cache[:6] == memory.cpu.cache[:6]
    pairs = zip(memory.gpus[0].cache[:6], predicted.gpus[0].cache[:6], strict=True)
    assert all(0 <= a - b <= 1024 for a, b in pairs)
    for found, wanted in ((memory.cpu, predicted.cpu), (memory.gpus[0], predicted.gpus[0])):
        # Small weights that no layer owns are on every device.
        pairs = zip(found.weights, wanted.weights, strict=True)
        assert all(abs(a - b) <= 0.05 * max(b, 1) for a, b in pairs)


@pytest.mark.gpu
def test_a_split_names_both_devices(adapter) -> None:
    with halves(devices=[adapter, "cpu"], tensor_split=[1, 1]) as model:
        assert str(model.placement) == f"{adapter}: embedding, layers 0-3; cpu: layers 4-5, output"
        assert model.placement.gpu_layers == 4
        assert model.generate(STORY, num_predict=2)
