"""`show --plan`, and the options that place layers on devices."""

import json

import pytest

from wgpu_backend.cli import options
from wgpu_backend.cli.chat_model import ChatModel, RunOptions
from wgpu_backend.cli.commands.ps import format_processor
from wgpu_backend.cli.failures import USAGE
from wgpu_backend.cli.names import BUNDLED
from wgpu_backend.cli.plan import list_facts, list_rows
from wgpu_backend.device import adapters
from wgpu_backend.engine.loading import bundled
from wgpu_backend.engine.placing import plan_model
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.graph.capabilities import HOST_FEATURE, DeviceInfo
from wgpu_backend.ml.calibration import host_speed
from wgpu_backend.ml.placement import PlacementOptions


def test_a_plan_is_a_table(cli) -> None:
    out = cli("show", "story", "--plan", "--device", "cpu", "--num-ctx", "64").out
    heading, _, row, *facts = out.splitlines()
    assert heading.split()[:4] == ["device", "name", "layers", "weights"]
    assert row.startswith("cpu")
    assert "embedding, 0-5 (6)," in row
    assert "7 of 7" not in out
    assert "GPU layers  0 of 7, with the output head as one" in out
    assert "64 positions, f16 keys and values" in out
    assert any("not measured" in fact for fact in facts)


def test_a_plan_as_json_has_the_figures_of_backend_memory(cli) -> None:
    found = json.loads(cli("show", "story", "--plan", "--device", "cpu", "--json").out)
    assert found["placement"] == {
        "devices": ["cpu"], "layers": [0] * 6, "embedding": 0, "output": 0, "host": [],
        "host_caches": False, "host_device": "cpu",
    }  # fmt: skip
    assert len(found["memory"]["cpu"]["weights"]) == 7
    assert found["memory"]["gpus"] == []
    assert found["reserve"] == 512 << 20


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--device", "cpu,numpy"), "are one device"),
        (("--device", "cpu,nothing"), "no such device"),
        (("-ts", "0,0"), "sum"),
        (("-ts", "1,nan"), "nan"),
        (("-ts", "1,2", "--device", "cpu"), "2 shares for 1 devices"),
        (("-ts", "nan"), "--tensor-split: nan, needs finite numbers from 0, such as 3,1"),
        (("-ts", "True"), "--tensor-split: 'True' (str), needs numbers from 0, such as 3,1"),
        (("-ngl", "1.5"), "--gpu-layers: '1.5' (str), needs a number, 'all' or 'auto'"),
        (("--device", ","), "device ',': no such device"),
        (("--device", "True"), "device 'True': no such device"),
        (("-ngl", "some"), "--gpu-layers: 'some'"),
        (("-sm", "row"), "never split"),
        (("-mg", "4", "--device", "cpu"), "main_gpu: 4, there are none; needs the position"),
    ],
)
def test_mistakes_are_one_line(cli, words, message) -> None:
    done = cli("show", "story", "--plan", *words)
    assert done.code == USAGE
    assert message in done.err
    assert done.err.count("\n") == 1


@pytest.mark.gpu
def test_a_plan_says_what_a_device_reads_from_the_host(cli, full) -> None:
    if not full.device.reads_host_memory:
        pytest.skip(f"{full.info.id} cannot read the host's memory")
    words = ("show", "story", "--plan", "--device", full.info.id, "-ngl", "3", "--num-ctx", "64")
    out = cli(*words, "--op-offload").out
    assert "host memory" in out
    assert "GPU layers            3 of 7" in out
    assert "with --no-op-offload" in out
    found = json.loads(cli(*words, "--op-offload", "-nkvo", "--json").out)["placement"]
    assert (found["host"], found["host_caches"]) == ([-1, 0, 1, 2, 3], True)
    assert "with --op-offload" in cli(*words, "--no-op-offload").out


def test_what_a_card_reads_from_the_host_has_a_row_of_its_own(monkeypatch) -> None:
    # Dawn cannot.
    monkeypatch.delenv("WGPU_BACKEND_IMPLEMENTATION", raising=False)
    card = DeviceInfo("vulkan:0", "Card", kind="discrete", features=(HOST_FEATURE,))
    chosen = PlacementOptions(gpu_layers=3, kv_offload=False)
    with open_gguf(bundled()) as file:
        host, own, cpu = list_rows(plan_model(file, [card], chosen, num_ctx=64))
    assert host[:3] == ("", "host memory for vulkan:0", "embedding, 0-3 (4)")
    assert own[:3] == ("vulkan:0", "Card", "4-5 (2), output")
    assert (own[4], own[7]) == ("0 B", "unknown")
    assert (cpu[0], cpu[2]) == ("cpu", "none")
    chosen = PlacementOptions(kv_offload=False)
    with open_gguf(bundled()) as file:
        host, own, _ = list_rows(plan_model(file, [card], chosen, num_ctx=64))
    assert (host[2], host[3]) == ("caches", "0 B")
    assert own[2] == "embedding, 0-5 (6), output"


def test_the_device_that_computes_for_the_cpu_is_named_with_its_speed(monkeypatch) -> None:
    card = DeviceInfo("vulkan:0", "Card", kind="discrete")
    soft = DeviceInfo("vulkan:1", "Soft", kind="software", free_memory=1 << 33)
    speeds = {"cpu": 3e9, "vulkan:1": 2.5e9}
    monkeypatch.setattr(adapters, "Devices", lambda: [card, soft, adapters.numpy_device()])
    monkeypatch.setattr(host_speed, "recall_speed", lambda info: speeds.get(info.id))
    chosen = PlacementOptions(gpu_layers=3)
    with open_gguf(bundled()) as file:
        plan = plan_model(file, [card], chosen, num_ctx=64)
        speeds["vulkan:1"] = None
        without = plan_model(file, [card], chosen, num_ctx=64)
    rows, facts = list_rows(plan), dict(list_facts(plan, 1, "f16"))
    assert [row[:3] for row in rows] == [
        ("vulkan:1", "Soft", "embedding, 0-3 (4)"),
        ("vulkan:0", "Card", "4-5 (2), output"),
    ]
    assert facts["GPU layers"].startswith("3 of 7")
    assert facts["one token"].endswith(
        "layers on the CPU run on vulkan:1, 2.5 GB/s as tune measured"
    )
    memory = plan.memory()
    assert memory.cpu.device_id == "cpu"
    assert sum(memory.cpu.weights[:4]) > sum(memory.cpu.weights[4:6]) == 0
    assert [gpu.device_id for gpu in memory.gpus] == ["vulkan:0"]
    assert list_rows(without)[0][0] == "cpu"


def test_options_of_devices_need_a_plan(cli) -> None:
    for words in (("-ngl", "3"), ("--mmproj", str(BUNDLED["eyes"]))):
        done = cli("show", "story", *words)
        assert done.code == USAGE
        assert "--plan" in done.err


def read_plan(cli, *words):
    return json.loads(cli("show", *words, "--plan", "--device", "cpu", "--json").out)


def test_a_plan_counts_the_tower_that_is_named(cli, tmp_path) -> None:
    eyes = BUNDLED["eyes"]
    alone = tmp_path / "text.gguf"
    alone.write_bytes(eyes.read_bytes())
    tower = eyes.with_name("eyes-mmproj.gguf")
    without, named = (
        sum(read_plan(cli, str(alone), *words)["memory"]["cpu"]["weights"])
        for words in ((), ("--mmproj", str(tower)))
    )
    assert without < named == sum(read_plan(cli, "eyes")["memory"]["cpu"]["weights"])


def test_a_stored_model_is_planned_with_its_own_context_and_tower(cli, tmp_path) -> None:
    eyes = BUNDLED["eyes"]
    modelfile = tmp_path / "Modelfile"
    tower = eyes.with_name("eyes-mmproj.gguf")
    modelfile.write_text(f"FROM {eyes}\nFROM {tower}\nPARAMETER num_ctx 77\n", "utf-8")
    assert cli("create", "seeing", "-f", str(modelfile)).code == 0
    found, wanted = read_plan(cli, "seeing"), read_plan(cli, "eyes", "--num-ctx", "77")
    assert found["num_ctx"] == 77
    assert found == wanted
    assert read_plan(cli, "seeing", "--num-ctx", "1")["num_ctx"] == 1
    out = cli("show", "seeing", "--plan", "--device", "cpu", "--num-ctx", "1").out
    assert "1 position, f16" in out


def test_names_of_devices_are_llama_server_s(cli) -> None:
    for names in ("none", "cpu,", " cpu "):
        out = cli("show", "story", "--plan", "--device", names, "-ts", "1,0", "-ngl", "99").out
        assert out.splitlines()[2].startswith("cpu ")


def test_names_of_llama_server_place_layers(cli) -> None:
    for words in (("-ngl", "0"), ("--gpu-layers", "0"), ("--n-gpu-layers", "0")):
        out = cli("run", "story", "Once", "--device", "cpu", "--num-predict", "1", *words)
        assert out.code == 0


def test_list_devices_lists_and_exits(cli) -> None:
    done = cli("serve", "--list-devices")
    assert done.code == 0
    assert "NumPy" in done.out


def test_numbers_of_layers_are_llama_cpp_s(monkeypatch) -> None:
    def layers(text):
        return options.make_placement((), text, None, None, None).gpu_layers

    assert [layers(text) for text in ("-1", "-2", "99", "all", "auto", "-3")] == [
        "auto", "all", 99, "all", "auto", "all"
    ]  # fmt: skip
    assert options.make_placement((), None, None, None, None) is None
    assert options.make_placement(("a", "b"), None, None, None, None) is not None


def test_variables_of_ollama_spread_models_and_reserve_memory(monkeypatch) -> None:
    monkeypatch.setenv("OLLAMA_SCHED_SPREAD", "1")
    monkeypatch.setenv("OLLAMA_GPU_OVERHEAD", "1000")
    found = options.make_placement((), None, None, None, None)
    assert (found.spread, found.reserve_nbytes) == (True, (512 << 20) + 1000)
    monkeypatch.delenv("OLLAMA_SCHED_SPREAD")
    # Alone, it reserves memory, too.
    alone = options.make_placement((), None, None, None, None)
    assert (alone.spread, alone.reserve_nbytes) == (False, (512 << 20) + 1000)
    monkeypatch.setenv("OLLAMA_GPU_OVERHEAD", "much")
    with pytest.raises(options.UsageError, match="OLLAMA_GPU_OVERHEAD: 'much'"):
        options.make_placement((), None, None, None, None)
    monkeypatch.setenv("OLLAMA_GPU_OVERHEAD", "0")
    for no in ("0", "f", "False", ""):
        monkeypatch.setenv("OLLAMA_SCHED_SPREAD", no)
        assert options.make_placement((), None, None, None, None) is None


@pytest.mark.parametrize(
    ("size", "on_gpu", "text"),
    [
        (100, 100, "100% GPU"),
        (100, 0, "100% CPU"),
        (0, 0, "100% CPU"),
        (100, 52, "48%/52% CPU/GPU"),
        (10_000, 1, "99%/1% CPU/GPU"),
        (10_000, 9_999, "1%/99% CPU/GPU"),
    ],
)
def test_where_a_model_is(size, on_gpu, text) -> None:
    assert format_processor(size, on_gpu) == text


@pytest.mark.gpu
def test_a_placed_model_keeps_its_devices_with_another_context(adapter) -> None:
    settings = options.ModelSettings(
        devices=("cpu", adapter), placement=PlacementOptions(tensor_split=(1, 1)), num_ctx=64
    )
    with ChatModel("story", RunOptions("", {}), settings) as opened:
        before = opened.model.placement
        assert len(before.devices) == 2
        again = opened.reopen(96)
        assert (again.num_ctx, again.placement) == (96, before)
