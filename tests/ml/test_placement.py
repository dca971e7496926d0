"""Placement plans on imaginary machines: never over a budget, whole, contiguous, monotone."""

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from wgpu_backend.errors import DeviceError, OptionError, OutOfMemory
from wgpu_backend.ml.placement import (
    EMBEDDING,
    HOST,
    DeviceBudget,
    HostMemory,
    LayerNbytes,
    ModelNbytes,
    Placement,
    PlacementOptions,
    device_uses,
    step_seconds,
)
from wgpu_backend.ml.planner import LARGE_TABLE_NBYTES, plan_placement

MB = 1 << 20
GB = 1 << 30
NO_RESERVE = PlacementOptions(reserve_nbytes=0)


def model(
    layers: int = 4, each: int = 100, *, embedding: int = 50, output: int = 50, **rest: object
) -> ModelNbytes:
    ends = LayerNbytes(embedding), LayerNbytes(output)
    return ModelNbytes((LayerNbytes(each),) * layers, *ends, **rest)


def sizes(placement: Placement, of: ModelNbytes) -> dict[str, int]:
    return {use.id: use.size for use in device_uses(of, placement)}


# Random machines and models.

SPEEDS = st.sampled_from([20e9, 100e9, 400e9, 1000e9])
BUSES = st.sampled_from([None, 10e9, 40e9])
NBYTES = st.integers(0, 60)


@st.composite
def models(draw: st.DrawFn) -> ModelNbytes:
    on_host = draw(st.sampled_from([None, 2]))

    def weights(nbytes: int, cache: int = 0) -> LayerNbytes:
        wide = (nbytes, cache) if on_host is None else (on_host * nbytes, on_host * cache)
        return LayerNbytes(nbytes, cache, None, *wide)

    layers = draw(st.lists(st.builds(weights, NBYTES, st.integers(0, 20)), max_size=9))
    table, rest = weights(draw(NBYTES)), draw(NBYTES)
    tied = table if draw(st.booleans()) else LayerNbytes()
    output = weights(tied.weights + rest)
    table = weights(table.weights + draw(NBYTES))
    compute, logits = draw(st.integers(0, 15)), draw(st.integers(0, 15))
    staging = draw(st.integers(0, 10))
    return ModelNbytes(tuple(layers), table, output, tied, compute, logits, staging)


@st.composite
def machines(draw: st.DrawFn) -> tuple[list[DeviceBudget], DeviceBudget]:
    """Up to three GPUs with memory of their own, at most one with the host's, and the host."""
    own = draw(st.lists(st.one_of(st.none(), st.integers(0, 300)), max_size=3))
    gpus = [
        DeviceBudget(f"gpu:{i}", free, draw(SPEEDS), bus=draw(BUSES)) for i, free in enumerate(own)
    ]
    host = draw(st.integers(0, 700))
    if not gpus or draw(st.booleans()):
        free = draw(st.integers(0, host))
        shared = DeviceBudget("shared:0", free, draw(SPEEDS), HOST, bus=draw(BUSES))
        gpus.insert(draw(st.integers(0, len(gpus))), shared)
    # A software adapter has the host's memory, too.
    name = draw(st.sampled_from([HOST, "soft:0"]))
    return gpus, DeviceBudget(name, host, 20e9, HOST)


@st.composite
def choices(draw: st.DrawFn, layers: int, gpus: list[DeviceBudget]) -> PlacementOptions:
    split: tuple[float, ...] = ()
    if draw(st.booleans()):
        shares = st.lists(st.floats(0, 5), min_size=len(gpus), max_size=len(gpus))
        split = tuple(draw(shares.filter(lambda s: sum(s) > 0)))
    buses = [gpu.bus is not None for gpu in gpus]
    return PlacementOptions(
        gpu_layers=draw(st.one_of(st.sampled_from(["auto", "all"]), st.integers(0, layers + 1))),
        tensor_split=split,
        main_gpu=draw(st.one_of(st.none(), st.integers(0, len(gpus) - 1))),
        spread=draw(st.booleans()),
        reserve_nbytes=draw(st.integers(0, 20)),
        op_offload=draw(st.sampled_from([None, False, True] if all(buses) else [None, False])),
        kv_offload=draw(st.booleans()) if all(buses) else True,
    )


@st.composite
def cases(
    draw: st.DrawFn,
) -> tuple[ModelNbytes, list[DeviceBudget], DeviceBudget, PlacementOptions]:
    of = draw(models())
    gpus, host = draw(machines())
    return of, gpus, host, draw(choices(len(of.layers), gpus))


@given(cases())
@settings(deadline=None, max_examples=60)
def test_a_plan_is_whole_contiguous_and_within_every_budget(case) -> None:
    of, gpus, host, options = case
    try:
        placement = plan_placement(of, gpus, options, host=host)
    except OutOfMemory:
        return
    assert len(placement.layers) == len(of.layers)
    assert list(placement.layers) == sorted(placement.layers)
    ranges = [placement.layers_on(device) for device in placement.devices]
    assert sorted(i for layers in ranges for i in layers) == list(range(len(of.layers)))
    assert placement.output == len(placement.devices) - 1
    uses = device_uses(of, placement)
    used = {use.id: use.size for use in uses}
    budgets = {device.id: device for device in (*gpus, host)}
    for device, nbytes in used.items():
        free = budgets[device].free_nbytes
        assert free is None or nbytes <= free - options.reserve_nbytes
    shared = sum(n for device, n in used.items() if budgets[device].memory == HOST)
    shared += sum(use.host_size for use in uses)
    assert host.free_nbytes is not None
    assert shared <= max(0, host.free_nbytes - options.reserve_nbytes)
    # What is in the host's memory is read by a GPU that can.
    far = [use for use in uses if use.host_size]
    assert all(budgets[use.id].bus is not None for use in far)
    assert not far or options.op_offload is not False or placement.host_caches
    # Every weight and every cache is somewhere, and once.
    for i, layer in enumerate(of.layers):
        home, on_host = placement.device(i), i in placement.host
        wanted = [(home, layer.weights_on(home))] * (layer.weights > 0)
        near = [(use.id, use.weights[i]) for use in uses if use.weights[i]]
        read = [(use.id, use.host_weights[i]) for use in uses if use.host_weights[i]]
        assert (near, read) == (([], wanted) if on_host else (wanted, []))
        assert sum(use.cache[i] + use.host_cache[i] for use in uses) == layer.cache_on(home)
        cached_far = placement.host_caches and home != host.id
        assert all(not use.cache[i] for use in uses if on_host or cached_far)


@given(cases(), st.data())
@settings(deadline=None, max_examples=60)
def test_a_smaller_budget_never_places_more_on_gpus(case, data) -> None:
    of, gpus, host, options = case
    assume(options.gpu_layers == "auto")
    which = data.draw(st.integers(0, len(gpus) - 1))
    before = gpus[which].free_nbytes
    less = data.draw(st.integers(0, 300 if before is None else before))
    smaller = [*gpus]
    smaller[which] = replace(gpus[which], free_nbytes=less)
    counts = []
    for devices in (gpus, smaller):
        try:
            counts.append(plan_placement(of, devices, options, host=host).gpu_layers)
        except OutOfMemory:
            counts.append(-1)
    assert counts[1] <= counts[0] or counts[0] == -1 == counts[1]


@given(models(), machines())
@settings(deadline=None, max_examples=60)
def test_auto_finds_a_plan_wherever_the_host_has_room(of, machine) -> None:
    gpus, host = machine
    roomy = DeviceBudget(HOST, of.size_on(HOST), host.speed)
    plan_placement(of, [g for g in gpus if g.pool != HOST] or gpus, NO_RESERVE, host=roomy)


@given(cases())
@settings(deadline=None, max_examples=60)
def test_the_number_of_layers_is_the_one_that_was_asked_for(case) -> None:
    of, gpus, host, options = case
    try:
        placement = plan_placement(of, gpus, options, host=host)
    except OutOfMemory:
        return
    if isinstance(options.gpu_layers, int):
        assert placement.gpu_layers == options.gpu_layers
    elif options.gpu_layers == "all":
        assert placement.gpu_layers == len(of.layers) + 1


@given(st.integers(1, 40), st.lists(st.integers(0, 9), min_size=1, max_size=4))
@settings(deadline=None)
def test_a_split_gives_each_device_its_share_to_within_a_layer(layers, shares) -> None:
    assume(sum(shares) > 0)
    gpus = [DeviceBudget(f"gpu:{i}") for i in range(len(shares))]
    options = PlacementOptions(tensor_split=tuple(map(float, shares)))
    placement = plan_placement(model(layers), gpus, options)
    for gpu, share in zip(gpus, shares, strict=True):
        got = len(placement.layers_on(gpu.id)) + (placement.devices[placement.output] == gpu.id)
        assert math.isclose(got, share / sum(shares) * (layers + 1), abs_tol=1.0)
        assert share or not got


# Cases by hand.


def test_one_device_with_room_takes_everything() -> None:
    placement = plan_placement(model(), [DeviceBudget("gpu:0", 600)], NO_RESERVE)
    assert placement == Placement(("gpu:0",), (0, 0, 0, 0), 0, 0)
    assert str(placement) == "gpu:0: embedding, layers 0-3, output"


def test_the_embedding_leaves_the_gpu_before_a_layer_does() -> None:
    host = DeviceBudget(HOST, 1000)
    placement = plan_placement(model(), [DeviceBudget("gpu:0", 460)], NO_RESERVE, host=host)
    assert str(placement) == "cpu: embedding; gpu:0: layers 0-3, output"


def test_first_layers_go_to_the_cpu() -> None:
    host = DeviceBudget(HOST, 1000)
    placement = plan_placement(model(), [DeviceBudget("gpu:0", 270)], NO_RESERVE, host=host)
    assert str(placement) == "cpu: embedding, layers 0-1; gpu:0: layers 2-3, output"
    assert placement.gpu_layers == 3
    assert [placement.device(i) for i in range(4)] == ["cpu", "cpu", "gpu:0", "gpu:0"]


def test_the_best_device_is_filled_first_and_has_the_last_layers() -> None:
    gpus = [DeviceBudget("gpu:0", 300, 1e12), DeviceBudget("gpu:1", 400, 5e11)]
    placement = plan_placement(model(), gpus, NO_RESERVE, host=DeviceBudget(HOST, 1000))
    assert str(placement) == "gpu:1: embedding, layers 0-1; gpu:0: layers 2-3, output"


def test_one_slow_device_with_room_is_used_where_a_crossing_costs_more() -> None:
    gpus = [DeviceBudget("gpu:0", 300, 1e12), DeviceBudget("gpu:1", 900, 5e11)]
    placement = plan_placement(model(), gpus, NO_RESERVE)
    assert placement.devices == ("gpu:1",)


def test_two_devices_are_used_where_one_with_room_is_predicted_slower() -> None:
    gpus = [DeviceBudget("gpu:0", 6 * GB, 4e11), DeviceBudget("gpu:1", 64 * GB, 6e10)]
    placement = plan_placement(model(8, GB), gpus, NO_RESERVE)
    assert placement.devices == ("gpu:1", "gpu:0")


def test_spread_uses_all_gpus_evenly() -> None:
    gpus = [DeviceBudget(f"gpu:{i}", 1000) for i in range(2)]
    options = PlacementOptions(spread=True, reserve_nbytes=0)
    placement = plan_placement(model(8), gpus, options)
    assert [len(placement.layers_on(f"gpu:{i}")) for i in range(2)] == [4, 4]


def test_a_gpu_has_the_table_alone_only_where_there_is_no_host() -> None:
    gpus = [DeviceBudget("gpu:0", 450, 1e12), DeviceBudget("gpu:1", 450)]
    with_host = plan_placement(model(), gpus, NO_RESERVE, host=DeviceBudget(HOST, 50))
    assert with_host.devices == (HOST, "gpu:0")
    assert plan_placement(model(), gpus, NO_RESERVE).devices == ("gpu:1", "gpu:0")


def test_unified_memory_counts_once() -> None:
    gpu, host = DeviceBudget("metal:0", 400, pool=HOST), DeviceBudget(HOST, 500)
    with pytest.raises(OutOfMemory, match=r"fewer gpu_layers"):
        plan_placement(model(), [gpu], PlacementOptions(), host=host)
    with pytest.raises(OutOfMemory):
        plan_placement(model(5), [gpu], NO_RESERVE, host=host)
    placement = plan_placement(model(), [gpu], NO_RESERVE, host=host)
    assert placement.gpu_layers == 4


def test_a_tied_table_is_stored_once_on_a_device_and_twice_on_two() -> None:
    of = model(2, embedding=70, output=50, tied=LayerNbytes(50))
    one = plan_placement(of, [DeviceBudget("gpu:0", 270)], NO_RESERVE)
    assert sizes(one, of) == {"gpu:0": 270}
    host = DeviceBudget(HOST, 500)
    two = plan_placement(of, [DeviceBudget("gpu:0", 160)], NO_RESERVE, host=host)
    assert sizes(two, of) == {HOST: 170, "gpu:0": 150}


def test_the_main_gpu_has_the_output_head() -> None:
    gpus = [DeviceBudget("gpu:0", 300), DeviceBudget("gpu:1", 300)]
    options = PlacementOptions(main_gpu=1, reserve_nbytes=0)
    assert plan_placement(model(), gpus, options).devices == ("gpu:0", "gpu:1")
    alone = PlacementOptions(main_gpu=1, split_mode="none", reserve_nbytes=0)
    placement = plan_placement(model(), gpus, alone, host=DeviceBudget(HOST, 1000))
    assert placement.devices == ("cpu", "gpu:1")


def test_a_split_may_name_the_cpu() -> None:
    devices = [DeviceBudget("gpu:0", 1000), DeviceBudget(HOST, 1000)]
    options = PlacementOptions(tensor_split=(3, 2), reserve_nbytes=0)
    placement = plan_placement(model(), devices, options)
    assert str(placement) == "gpu:0: embedding, layers 0-2; cpu: layer 3, output"


def test_experts_that_a_step_does_not_read_cost_no_time() -> None:
    of = ModelNbytes((LayerNbytes(1000, read=100),))
    uses = device_uses(of, Placement.single("gpu:0", 1), [DeviceBudget("gpu:0", speed=100.0)])
    assert step_seconds(uses) == 1.0


def test_the_cpu_holds_weights_as_f32() -> None:
    four_bits = LayerNbytes(100, host_weights=800)
    of = ModelNbytes((four_bits,) * 2)
    options, gpu = PlacementOptions(gpu_layers=2, reserve_nbytes=0), DeviceBudget("gpu:0", 500)
    placement = plan_placement(of, [gpu], options, host=DeviceBudget(HOST, 900))
    assert sizes(placement, of) == {HOST: 800, "gpu:0": 100}
    with pytest.raises(OutOfMemory, match=r"200 B of weights \(1.6 KiB on cpu\)"):
        plan_placement(of, [gpu], options, host=DeviceBudget(HOST, 700))


# Host memory.

CARD = DeviceBudget("gpu:0", 270, 1e12, bus=1e10)
ROOM = DeviceBudget(HOST, 1000)


def test_a_card_reads_the_first_layers_from_the_host_s_memory() -> None:
    placement = plan_placement(model(), [CARD], NO_RESERVE, host=ROOM)
    assert placement.devices == ("gpu:0",)
    assert placement.host == {EMBEDDING, 0, 1}
    assert placement.gpu_layers == 3
    wanted = "gpu:0: embedding in host memory, layers 0-1 in host memory, layers 2-3, output"
    assert str(placement) == wanted
    [use] = device_uses(model(), placement, [CARD])
    assert (use.size, use.host_size) == (250, 250)
    assert use.host_weights == (100, 100, 0, 0, 50)
    assert math.isclose(use.host_seconds, 200 / 1e10)
    assert math.isclose(use.seconds, 200 / 1e10 + 250 / 1e12)


def test_slots_for_layers_in_the_host_s_memory_take_room_on_the_card() -> None:
    of = model(staging=30)
    placement = plan_placement(of, [CARD], NO_RESERVE, host=ROOM)
    assert placement.host == {EMBEDDING, 0, 1, 2}
    assert [use.size for use in device_uses(of, placement)] == [180]
    # They are for layers only, not for the table.
    card = replace(CARD, free_nbytes=450)
    assert plan_placement(of, [card], NO_RESERVE, host=ROOM).host == {EMBEDDING}


@pytest.mark.parametrize(
    ("gpu", "options"),
    [
        (replace(CARD, bus=None), {}),
        (CARD, {"op_offload": False}),
        # Memory of the host: nothing is won.
        (replace(CARD, pool=HOST), {}),
    ],
)
def test_the_cpu_computes_where_no_gpu_can_or_should(gpu, options) -> None:
    options = PlacementOptions(reserve_nbytes=0, **options)
    placement = plan_placement(model(), [gpu], options, host=ROOM)
    assert placement.devices == (HOST, "gpu:0")
    assert not placement.uses_host_memory


def test_a_gpu_with_the_host_s_memory_reads_it_if_told_to() -> None:
    gpu, options = replace(CARD, pool=HOST), PlacementOptions(op_offload=True, reserve_nbytes=0)
    placement = plan_placement(model(), [gpu], options, host=ROOM)
    assert (placement.devices, placement.host) == (("gpu:0",), {EMBEDDING, 0, 1})
    with pytest.raises(OutOfMemory):
        plan_placement(model(), [gpu], options, host=DeviceBudget(HOST, 400))


def test_the_first_device_of_the_pass_reads_the_host_s_memory() -> None:
    gpus = [CARD, replace(CARD, id="gpu:1", free_nbytes=100, speed=5e11)]
    placement = plan_placement(model(), gpus, NO_RESERVE, host=ROOM)
    assert placement.devices == ("gpu:1", "gpu:0")
    assert (placement.layers, placement.host) == ((0, 0, 1, 1), {EMBEDDING, 0})
    split = PlacementOptions(gpu_layers=3, tensor_split=(1, 2), reserve_nbytes=0)
    placement = plan_placement(model(), gpus[::-1], split, host=ROOM)
    assert placement.devices == ("gpu:1", "gpu:0")
    assert (placement.layers, placement.host) == ((0, 0, 0, 1), {EMBEDDING, 0, 1})


def test_caches_in_the_host_s_memory_leave_room_for_layers() -> None:
    of = ModelNbytes((LayerNbytes(50, 50),) * 4, output=LayerNbytes(50))
    for kv_offload, layers in ((True, 3), (False, 5)):
        options = PlacementOptions(kv_offload=kv_offload, reserve_nbytes=0)
        placement = plan_placement(of, [CARD], options, host=ROOM)
        assert placement.gpu_layers == layers
        assert placement.host_caches != kv_offload
    [use] = device_uses(of, placement, [CARD])
    assert (use.cache, use.host_cache) == ((0,) * 4, (50,) * 4)
    assert str(placement).endswith("; caches in host memory")
    with pytest.raises(OutOfMemory):
        plan_placement(of, [CARD], options, host=DeviceBudget(HOST, 199))


def test_a_large_table_is_looked_up_in_the_host_s_memory() -> None:
    card, host = DeviceBudget("gpu:0", 8 * GB, bus=2e10), DeviceBudget(HOST, 8 * GB)
    for embedding, far in ((LARGE_TABLE_NBYTES, True), (LARGE_TABLE_NBYTES - 1, False)):
        of = model(embedding=embedding)
        placement = plan_placement(of, [card], host=host)
        assert placement.host == ({EMBEDDING} if far else set())
        assert placement.gpu_layers == 5
    of = model(embedding=GB, output=GB)
    for without in (replace(card, bus=None), replace(card, pool=HOST)):
        assert not plan_placement(of, [without], host=host).host
    # Another implementation, which cannot read it there, may be the faster one.
    keeps = replace(card, keeps_table=True)
    assert not plan_placement(of, [keeps], host=host).host
    short = replace(keeps, free_nbytes=(512 << 20) + GB + 5000)
    assert plan_placement(of, [short], host=host).host == {EMBEDDING}
    # Nor where it is the head, too, or the host has no room.
    assert not plan_placement(replace(of, tied=LayerNbytes(GB)), [card], host=host).host
    assert not plan_placement(of, [card], host=DeviceBudget(HOST, GB)).host


def test_a_software_adapter_has_what_no_gpu_takes_as_it_is_in_the_file() -> None:
    layer = LayerNbytes(100, 10, None, 700, 20)
    of = ModelNbytes((layer,) * 4, LayerNbytes(50), LayerNbytes(50))
    card, soft = DeviceBudget("gpu:0", 300), DeviceBudget("soft:0", 400, 20e9, HOST)
    placement = plan_placement(of, [card], NO_RESERVE, host=soft)
    assert placement.devices == ("soft:0", "gpu:0")
    assert (placement.layers, placement.embedding) == ((0, 0, 1, 1), 0)
    # It is the CPU: nothing of it is on a GPU.
    assert (placement.gpu_layers, placement.host_device) == (3, "soft:0")
    assert sizes(placement, of) == {"soft:0": 270, "gpu:0": 270}
    with pytest.raises(OutOfMemory, match=r"weights \(500 B on soft:0\)"):
        plan_placement(of, [card], NO_RESERVE, host=replace(soft, free_nbytes=269))
    # NumPy needs three times of that, and is the host if it is listed.
    with pytest.raises(OutOfMemory):
        plan_placement(of, [card, DeviceBudget(HOST, 400)], NO_RESERVE, host=soft)
    alone = plan_placement(
        of, [card], replace(NO_RESERVE, gpu_layers=0), host=replace(soft, free_nbytes=600)
    )
    assert (alone.devices, alone.gpu_layers) == (("soft:0",), 0)
    # GPUs with unified memory share its memory.
    unified = DeviceBudget("gpu:0", None, 80e9, HOST)
    with pytest.raises(OutOfMemory):
        plan_placement(of, [unified], NO_RESERVE, host=replace(soft, free_nbytes=539))
    assert (
        plan_placement(of, [unified], NO_RESERVE, host=replace(soft, free_nbytes=540)).gpu_layers
        == 5
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kv_offload": False}, "kv_offload: gpu:0 cannot read the host's memory; use True"),
        ({"op_offload": True}, "op_offload: gpu:0 cannot read the host's memory; use False"),
    ],
)
def test_devices_that_cannot_read_the_host_s_memory(options, message) -> None:
    gpu = replace(CARD, free_nbytes=1000, bus=None)
    with pytest.raises(OptionError, match=message):
        plan_placement(model(), [gpu], PlacementOptions(**options), host=ROOM)
    of_others = PlacementOptions(kv_offload=False, capped=True, reserve_nbytes=0)
    assert not plan_placement(model(), [gpu], of_others, host=ROOM).host_caches


def test_names_of_what_is_in_the_host_s_memory() -> None:
    placement = Placement(("a", "b"), (0, 0, 1), 0, 1, frozenset({EMBEDDING, 1}))
    there = placement.host_memory(0)
    assert there == HostMemory(frozenset({EMBEDDING, 1}))
    assert placement.host_memory(1) == HostMemory()
    for name in ("blk.1.ffn_up.weight", "token_embd.weight", "position_embd.weight"):
        assert there.has_weight(name)
    # Towers have layers of their own numbers.
    for name in (
        "blk.0.ffn_up.weight",
        "blk.11.ffn_up.weight",
        "v.blk.1.up.weight",
        "output.weight",
    ):
        assert not there.has_weight(name)
    assert [there.has_state(f"cache.{i}.key") for i in range(3)] == [False, True, False]
    tied = replace(placement, embedding=1).host_memory(1, tied=True)
    assert not tied.has_weight("token_embd.weight")
    assert tied.has_weight("position_embd.weight")
    caches = replace(placement, host=frozenset(), host_caches=True).host_memory(1)
    assert [caches.has_state(n) for n in ("cache.2.key", "tokens")] == [True, False]
    assert not caches.has_weight("blk.2.ffn_up.weight")


def test_layers_in_host_memory_that_cannot_be() -> None:
    with pytest.raises(DeviceError, match="layer 2 in host memory, needs 0 to 1"):
        Placement(("a",), (0, 0), 0, 0, frozenset({2}))
    with pytest.raises(DeviceError, match="layer 0 is on cpu, needs a GPU"):
        Placement((HOST, "a"), (0, 1), 0, 1, frozenset({0}))


def test_no_layers_on_gpus() -> None:
    gpus = [DeviceBudget("gpu:0", 1000)]
    options = PlacementOptions(gpu_layers=0, reserve_nbytes=0)
    assert plan_placement(model(), gpus, options, host=DeviceBudget(HOST, 500)).devices == (HOST,)
    with pytest.raises(OutOfMemory, match="cpu 400 B"):
        plan_placement(model(), gpus, options, host=DeviceBudget(HOST, 400))


# Bad input.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor_split": (0.0, 0.0)}, "sum"),
        ({"tensor_split": (1.0, -1.0)}, "-1.0"),
        ({"tensor_split": (1.0, math.nan)}, "nan"),
        ({"tensor_split": (1.0, math.inf)}, "inf"),
        ({"tensor_split": (1e308, 1e308)}, "finite"),
        ({"gpu_layers": -1}, "0 or more"),
        ({"gpu_layers": "most"}, "'most'"),
        ({"split_mode": "row"}, "never split"),
        ({"reserve_nbytes": -1}, "0 or more"),
    ],
)
def test_options_out_of_range(options, message) -> None:
    with pytest.raises(OptionError, match=message):
        PlacementOptions(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gpu_layers": 6}, "gpu_layers: 6, the model has 5"),
        ({"tensor_split": (1.0,)}, "1 shares for 2 devices"),
        ({"main_gpu": 2}, "main_gpu: 2, there are 0 gpu:0, 1 gpu:1"),
    ],
)
def test_options_that_do_not_fit_the_model_or_devices(options, message) -> None:
    gpus = [DeviceBudget("gpu:0"), DeviceBudget("gpu:1")]
    with pytest.raises(OptionError, match=message):
        plan_placement(model(), gpus, PlacementOptions(**options))


def test_devices_that_are_missing_or_twice_there() -> None:
    with pytest.raises(DeviceError, match="none"):
        plan_placement(model(), [])
    with pytest.raises(DeviceError, match="gpu:0 is there twice"):
        plan_placement(model(), [DeviceBudget("gpu:0"), DeviceBudget("gpu:0")])


@pytest.mark.parametrize(
    ("devices", "layers", "embedding", "output"),
    [
        (("a", "a"), (0, 1), 0, 1),
        (("a", "b"), (1, 0), 0, 1),
        (("a", "b"), (0, 1), 0, 0),
        (("a", "b"), (0, 2), 0, 1),
        (("a", "b"), (0, 1), -1, 1),
        ((), (), 0, 0),
    ],
)
def test_placements_that_are_none(devices, layers, embedding, output) -> None:
    with pytest.raises(DeviceError, match="placement"):
        Placement(devices, layers, embedding, output)
