"""What `serve` has workers load, and where."""

import logging
import sys
from pathlib import Path

import httpx2
import pytest

from tests.builders import tiny_model
from tests.models.outlines import outlines, written
from wgpu_backend.cli.commands.ps import ps
from wgpu_backend.cli.commands.serve import loads, server
from wgpu_backend.cli.commands.serve.options import (
    AddressOptions,
    ApiOptions,
    DefaultModelOptions,
    EngineOptions,
)
from wgpu_backend.cli.commands.serve.server import (
    ServeOptions,
    _make_settings,
    _parse_keep_alive,
    open_all_sockets,
    open_sockets,
)
from wgpu_backend.cli.console import _Notes
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.cli.options import AdapterSettings, ModelSettings
from wgpu_backend.cli.server_client import parse_address
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.files.store.stored import Stored
from wgpu_backend.graph.capabilities import DeviceInfo

LINUX = sys.platform == "linux"  # where all of 127 is this machine
STORED = Stored(None, Path("model.gguf"), adapters=(Path("own.gguf"),))


CPU = DeviceInfo("cpu", "cpu", kind="cpu")


def spec(num_ctx=None, parallel=None, **given):
    return loads.make_load_spec(STORED, num_ctx, "vulkan:1", ModelSettings(**given), parallel)


def test_a_worker_loads_what_the_command_and_the_model_say():
    adapters = AdapterSettings(loras=[(Path("a.gguf"), 0.5)], control_layers=(1, 2))
    made = spec(kv="q8_0", exact=True, adapters=adapters)
    assert (made.path, made.device, made.kv_dtype, made.exact) == (
        "model.gguf", "vulkan:1", "q8_0", True
    )  # fmt: skip
    assert made.adapters == (("own.gguf", 1.0), ("a.gguf", 0.5))
    assert made.control_layers == (1, 2)


@pytest.mark.parametrize("words", [(), ("--no-warmup",)])
def test_workers_run_towers_as_they_load_unless_told_otherwise(cli, monkeypatch, words):
    given = []
    monkeypatch.setattr(server, "run_server", lambda _, settings: given.append(settings))
    assert cli("serve", *words).code == 0
    made = loads.make_load_spec(STORED, None, "cpu", given[0], None)
    assert made.arguments["warmup"] == (not words)


def test_the_context_is_the_requests_or_the_commands_or_the_variables(monkeypatch):
    monkeypatch.setenv("OLLAMA_CONTEXT_LENGTH", "64")
    assert spec(num_ctx=16).num_ctx == 16
    assert loads.make_load_spec(STORED, None, "cpu", ModelSettings(num_ctx=32), None).num_ctx == 32
    assert spec().num_ctx == 64
    monkeypatch.setenv("OLLAMA_NUM_PARALLEL", "7")
    assert (spec().num_parallel, spec(parallel=2).num_parallel) == (7, 2)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("OLLAMA_NUM_PARALLEL", "-1"),
        ("OLLAMA_NUM_PARALLEL", "1000"),
        ("OLLAMA_CONTEXT_LENGTH", "abc"),
        ("OLLAMA_CONTEXT_LENGTH", "9" * 5000),
    ],
)
def test_what_loads_would_fail_with_is_refused_at_the_start(monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=f"{variable}: '{value[:60]}.*, needs a whole number"):
        loads.make_load_settings(ModelSettings(), [], None, {})


def test_how_long_models_stay_is_a_duration():
    assert _parse_keep_alive("-1") == -1
    with pytest.raises(UsageError, match="OLLAMA_KEEP_ALIVE: 'abc', needs a duration"):
        _parse_keep_alive("abc")


def test_an_empty_variable_is_none(monkeypatch):
    for name in ("OLLAMA_KEEP_ALIVE", "OLLAMA_NUM_PARALLEL", "OLLAMA_CONTEXT_LENGTH"):
        monkeypatch.setenv(name, "")
    engine = EngineOptions()
    wanted = ServeOptions(AddressOptions(), DefaultModelOptions(), engine, ApiOptions(), {})
    made = _make_settings(wanted, ModelSettings(), [DeviceInfo("cpu", "cpu", kind="cpu")], {})
    assert (made.keep_seconds, spec().num_parallel, spec().num_ctx) == (300, 4, None)


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
    assert [each.id for each in loads.list_devices(ModelSettings(device=named))] == ids


def test_folders_of_pipelines_are_served_by_their_names(tmp_path):
    for name in ("sd", "pictures"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_index.json").write_text('{"_class_name": "SomePipeline"}')
    found = loads.find_pipelines([tmp_path / "sd"])
    assert (found.pop("pictures").name, found) == ("pictures", {"sd": tmp_path / "sd"})
    for wrong, told in (
        ([tmp_path / "pictures"], "another folder has the name 'pictures'"),
        ([tmp_path / "sd", tmp_path / "sd"], "another folder has the name 'sd'"),
    ):
        with pytest.raises(UsageError, match=told):
            loads.find_pipelines(wrong)
    with pytest.raises(UsageError, match="no-folder', needs a folder with model_index"):
        loads.find_pipelines([tmp_path / "no-folder"])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (None, ("127.0.0.1", 11434)),
        (":5", ("127.0.0.1", 5)),
        ("::1", ("[::1]", 11434)),
        ("::", ("[::]", 11434)),
        ("[::1]", ("[::1]", 11434)),
        ("[::1]:80", ("[::1]", 80)),
        ('"0.0.0.0:5"', ("0.0.0.0", 5)),
        (" '::1' ", ("[::1]", 11434)),
        ("HTTP://Host:8080/", ("Host", 8080)),
        ("http://host", ("host", 80)),
        ("HTTPS://host", ("host", 443)),
    ],
)
def test_a_host_is_named_as_ollama_has_it(text, found):
    assert parse_address(text) == found


@pytest.mark.parametrize("text", ["host:x", "host:70000", f"host:{'9' * 5000}"])
def test_a_port_that_is_none_is_told(text):
    with pytest.raises(UsageError, match=r"OLLAMA_HOST: 'host:.*, needs host:port"):
        parse_address(text)


@pytest.mark.parametrize(
    ("host", "url", "proxied"),
    [
        ("", "http://127.0.0.1:11434/api/ps", False),
        ("::", "http://[::1]:11434/api/ps", False),
        ("localhost:1", "http://localhost:1/api/ps", False),
        ("https://far.example", "https://far.example:443/api/ps", True),
    ],
)
def test_a_proxy_is_asked_for_other_machines_alone(monkeypatch, host, url, proxied):
    asked = []

    def answers(method, url, *, headers, trust_env, **_):
        asked.append((url, trust_env, headers))
        return httpx2.Response(200, json={"models": []})

    monkeypatch.setenv("OLLAMA_HOST", host)
    monkeypatch.setenv("WGPU_BACKEND_API_KEY", "šifra,other")
    monkeypatch.setattr("httpx2.request", answers)
    ps(as_json=True)
    assert asked == [(url, proxied, {b"Authorization": "Bearer šifra".encode()})]


def test_a_host_is_bound_at_all_its_addresses_or_refused():
    [one] = open_sockets("127.0.0.1", 0)
    with one:
        port = one.getsockname()[1]
        with pytest.raises(UsageError, match=f"'127.0.0.1', port {port}: .*in use"):
            open_sockets("127.0.0.1", port)
    with pytest.raises(UsageError, match=r"serve: 'no such host', port 1: "):
        open_sockets("no such host", 1)
    found = open_sockets("localhost", 0)
    assert "127.0.0.1" in {each.getsockname()[0] for each in found}
    for each in found:
        each.close()


def test_all_sockets_have_the_one_port_that_the_system_chose():
    found, port = open_all_sockets(["localhost", "127.0.0.2"] if LINUX else ["localhost"], 0)
    assert port
    assert {each.getsockname()[1] for each in found} == {port}
    for each in found:
        each.close()


@pytest.mark.parametrize("key", ["", " ", ","])
def test_an_empty_key_is_none_to_serve_anybody_by(key):
    with pytest.raises(UsageError, match="--api-key: is empty, needs a key"):
        _ = AddressOptions(api_key=key).keys
    assert AddressOptions().keys == ()


@pytest.mark.parametrize("key", ["", " ", ","])
def test_an_empty_variable_is_no_key_either(monkeypatch, key):
    monkeypatch.setenv("WGPU_BACKEND_API_KEY", key)
    with pytest.raises(UsageError, match="WGPU_BACKEND_API_KEY: is empty, needs a key"):
        _ = AddressOptions().keys
    assert AddressOptions(api_key="given").keys == ("given",)


@pytest.mark.parametrize("closed", [True, False])
def test_what_is_logged_while_stderr_is_closed_fails_nothing(monkeypatch, tmp_path, closed):
    stream = (tmp_path / "err").open("w")
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream if closed else None)
    record = logging.LogRecord("x", logging.WARNING, "", 0, "a warning", (), None)
    _Notes().handle(record)


def test_a_default_context_is_no_longer_than_a_table_of_positions(tmp_path):
    path = written(tmp_path / "bert.gguf", outlines()["bert"])
    known = loads.make_load_settings(ModelSettings(num_ctx=4096), [CPU], None, {})["open_model"]
    stored = Stored(None, path)
    with open_gguf(path) as file:
        rows = file.tensors["position_embd.weight"].shape[0]
    assert known.spec(stored, None).num_ctx == rows < 4096
    assert known.spec(stored, 5000).num_ctx == 5000  # a request's own, which is to be refused
    turned = Stored(None, tiny_model(tmp_path / "turned.gguf"))
    assert known.spec(turned, None).num_ctx == 4096
