"""What `serve` has workers load, and where."""

from pathlib import Path

import pytest

from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.options import Changes, Settings
from wgpu_backend.cli.serve import loads
from wgpu_backend.cli.serve.models import pipelines
from wgpu_backend.cli.serve.sockets import bound
from wgpu_backend.device_info import DeviceInfo
from wgpu_backend.model_store.stored import Stored

STORED = Stored(None, Path("model.gguf"), adapters=(Path("own.gguf"),))


def spec(num_ctx=None, parallel=None, **given):
    return loads.spec(STORED, num_ctx, "vulkan:1", Settings(**given), parallel)


def test_a_worker_loads_what_the_command_and_the_model_say():
    changes = Changes(adapters=[(Path("a.gguf"), 0.5)], control_layers=(1, 2))
    made = spec(kv="q8_0", exact=True, changes=changes)
    assert (made.path, made.device, made.kv_dtype, made.exact) == (
        "model.gguf", "vulkan:1", "q8_0", True
    )  # fmt: skip
    assert made.adapters == (("own.gguf", 1.0), ("a.gguf", 0.5))
    assert made.control_layers == (1, 2)


def test_the_context_is_the_requests_or_the_commands_or_the_variables(monkeypatch):
    monkeypatch.setenv("OLLAMA_CONTEXT_LENGTH", "64")
    assert spec(num_ctx=16).num_ctx == 16
    assert loads.spec(STORED, None, "cpu", Settings(num_ctx=32), None).num_ctx == 32
    assert spec().num_ctx == 64
    monkeypatch.setenv("OLLAMA_NUM_PARALLEL", "7")
    assert (spec().num_parallel, spec(parallel=2).num_parallel) == (7, 2)


@pytest.mark.parametrize(
    ("kinds", "named", "ids"),
    [
        (["discrete", "software", "cpu"], None, ["0", "1"]),
        (["discrete", "software", "cpu"], "software", ["1"]),
        (["cpu"], None, ["0"]),
    ],
)
def test_models_go_to_the_next_gpu_and_never_to_numpy_in_its_place(monkeypatch, kinds, named, ids):
    found = [DeviceInfo(str(i), kind, kind=kind) for i, kind in enumerate(kinds)]
    best = found[kinds.index(named or kinds[0])]
    monkeypatch.setattr(loads, "find_device", lambda _: best)
    monkeypatch.setattr("wgpu_backend.device.adapters.Devices", lambda: found)
    assert [each.id for each in loads.devices_of(Settings(device=named))] == ids


def test_folders_of_pipelines_are_served_by_their_names(tmp_path):
    for name in ("sd", "pictures"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_index.json").write_text('{"_class_name": "SomePipeline"}')
    found = pipelines([tmp_path / "sd"])
    assert (found.pop("pictures").name, found) == ("pictures", {"sd": tmp_path / "sd"})
    for wrong, told in (
        ([tmp_path / "pictures"], "has the name 'pictures' as another"),
        ([tmp_path / "sd", tmp_path / "sd"], "has the name 'sd' as another"),
    ):
        with pytest.raises(UsageError, match=told):
            pipelines(wrong)
    with pytest.raises(UsageError, match="no-folder', needs a folder with model_index"):
        pipelines([tmp_path / "no-folder"])


def test_a_host_is_bound_at_all_its_addresses_or_refused():
    [one] = bound("127.0.0.1", 0)
    with one:
        port = one.getsockname()[1]
        with pytest.raises(UsageError, match=f"'127.0.0.1', port {port}: .*in use"):
            bound("127.0.0.1", port)
    with pytest.raises(UsageError, match=r"serve: 'no such host', port 1: "):
        bound("no such host", 1)
    found = bound("localhost", 0)
    assert "127.0.0.1" in {each.getsockname()[0] for each in found}
    for each in found:
        each.close()
