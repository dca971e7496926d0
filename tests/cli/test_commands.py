"""What the commands write to stdout, and what beside it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.builders import CHAT_TEMPLATE, tiny_model
from tests.cli.conftest import Cli
from tests.files.huggingface.folders import write_folder
from tests.files.quantize.test_files import finish
from wgpu_backend import __version__
from wgpu_backend.cli import drivers, loading, names
from wgpu_backend.cli.commands import bench, profile
from wgpu_backend.device.adapters import Devices
from wgpu_backend.engine.loading import BUNDLED, bundled

CPU = ("--device", "cpu")
GREEDY = ("--temperature", "0", "--num-predict", "8", *CPU)
COMMANDS = (
    "run", "devices", "show", "tokenize", "logits", "embed", "rerank", "bench", "profile", "graph",
    "quantize", "perplexity", "imagine", "transcribe",
)  # fmt: skip


def test_help_lists_every_command(cli: Cli) -> None:
    done = cli("--help")
    assert done.code == 0
    listed = re.findall(r"^\W*(\w+)", done.out, re.MULTILINE)
    assert set(COMMANDS) - set(listed) == set()


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(cli: Cli, command: str) -> None:
    done = cli(command, "--help")
    assert done.code == 0
    assert "--debug" in done.out


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys; from wgpu_backend.cli import main; main(['--help']); "
        "heavy = {'numpy', 'wgpu', 'tokenizers', 'jinja2', 'prompt_toolkit'}; "
        "print(sorted(heavy & {*sys.modules}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version(cli: Cli) -> None:
    assert cli("--version").out == f"wgpu-backend {__version__}\n"


def test_devices_are_a_table(cli: Cli) -> None:
    lines = cli("devices").out.splitlines()
    assert lines[0].split() == ["id", "name", "kind", "API", "driver", "memory"]
    assert max(map(len, lines)) <= 100
    assert re.match(r"cpu +NumPy +cpu +NumPy", lines[-1])


def test_devices_as_json_have_limits_and_features(cli: Cli) -> None:
    found = json.loads(cli("devices", "--json").out)
    assert [device["id"] for device in found] == [info.id for info in Devices()]
    assert {"name", "kind", "api", "driver", "limits", "features"} <= found[0].keys()


def test_show_tells_what_a_model_is(cli: Cli, tiny: Path) -> None:
    out = cli("show", str(tiny)).out
    facts = dict(re.split(r" {2,}", line.strip(), maxsplit=1) for line in out.splitlines())
    assert facts["architecture"] == "llama"
    assert facts["context length"] == "128"
    assert facts["quantisation"] == "F32, 32.00 bits per weight"
    assert facts["tokenizer"] == "gpt2 (gpt-2), 270 tokens"
    assert facts["tensors"] == "21 (21 F32)"
    assert facts["chat template"].startswith(f"{len(CHAT_TEMPLATE)} characters")


@pytest.mark.parametrize(
    ("number", "level"),
    [(15, "Q4_K_M"), (14, "Q4_K_S"), (7, "Q8_0"), (0, "F32"), (1024, "F16"), (9999, "F16")],
)
def test_quantisation_is_what_the_file_says(
    cli: Cli, tmp_path: Path, number: int, level: str
) -> None:
    """llama.cpp's numbers of mixes; the type of most bytes for a guess or an unknown one."""
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("general.file_type", number)
    writer.add_tensor("a.weight", np.zeros((4, 32), np.float16))
    finish(writer)
    details = json.loads(cli("show", str(path), "--json").out)["details"]
    assert details["quantization_level"] == level
    facts = cli("show", str(path)).out
    assert re.search(rf"quantisation +{level}, 16\.00 bits per weight", facts)


def test_show_tells_what_a_folder_is(cli: Cli, tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "a", shards=2)
    nbytes = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    found = json.loads(cli("show", str(folder), "--json").out)
    assert (found["size"], found["details"]["format"]) == (nbytes, "safetensors")
    out = cli("show", str(folder)).out
    assert re.search(r"folder +[\d.]+ KiB, 2 safetensors files", out)
    assert "GGUF" not in out


def test_show_lists_tensors(cli: Cli, tiny: Path) -> None:
    lines = cli("show", str(tiny), "--tensors").out.splitlines()
    assert len(lines) == 2 + 21
    assert re.match(r"token_embd\.weight +F32 +270 × 64 +67\.5 KiB", lines[2])


def test_show_writes_the_template_as_it_is(cli: Cli, tiny: Path) -> None:
    assert cli("show", str(tiny), "--template").out == CHAT_TEMPLATE + "\n"


def test_tokenize_shows_ids_tokens_and_text(cli: Cli, tiny: Path) -> None:
    lines = cli("tokenize", str(tiny), "in theé").out.splitlines()
    assert lines[0].split() == ["id", "token", "text"]
    rows = [line.split(maxsplit=2) for line in lines[2:]]
    assert [row[2] for row in rows] == ["'in'", "' the'", r"b'\xc3'", r"b'\xa9'"]


def test_tokenize_as_ids_is_what_the_tokenizer_says(cli: Cli, tiny: Path) -> None:
    ids = json.loads(cli("tokenize", str(tiny), "<|end|>", "--ids").out)
    assert len(ids) > 1
    assert json.loads(cli("tokenize", str(tiny), "<|end|>", "--ids", "--special").out) == [267]


@pytest.mark.parametrize("given", [("--tokens", "1, 2,3"), ("--prompt", "in")])
def test_logits_are_saved_as_float32(
    cli: Cli, tiny: Path, tmp_path: Path, given: tuple[str, str]
) -> None:
    out = tmp_path / "scores"  # no suffix is added to what the user wrote
    done = cli("logits", str(tiny), *given, "-o", str(out), "--kv", "f32", *CPU)
    assert (done.code, done.out) == (0, "")
    logits = np.load(out)
    assert logits.dtype == np.float32
    assert logits.shape == (3 if given[0] == "--tokens" else 1, 270)
    assert np.ptp(logits) > 0


def test_embeddings_are_a_json_list_a_line(cli: Cli, tiny: Path) -> None:
    lines = cli("embed", str(tiny), "in the", "on", *CPU).out.splitlines()
    rows = np.array([json.loads(line) for line in lines])
    assert rows.shape == (2, 64)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)


def test_embeddings_are_pooled_as_asked_for(cli: Cli, tiny: Path) -> None:
    last, mean = (
        np.array(json.loads(cli("embed", str(tiny), "in the", "--pooling", how, *CPU).out))
        for how in ("last", "mean")
    )
    assert last.shape == mean.shape == (64,)
    assert not np.allclose(last, mean)


def test_quantize_writes_a_file_and_says_what_it_is(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    done = cli("quantize", str(tiny), str(tmp_path / "q8.gguf"), "q8_0")
    assert re.search(r"type +Q8_0, 8\.\d\d bits per weight\n", done.out)
    assert "16 Q8_0, 5 F32" in done.out
    assert "Q8_0" in cli("show", str(tmp_path / "q8.gguf")).out
    said = json.loads(cli("quantize", str(tiny), str(tmp_path / "a.gguf"), "F16", "--json").out)
    assert said["tensors"]["output.weight"] == "f16"
    again = cli("quantize", str(tmp_path / "q8.gguf"), str(tmp_path / "b.gguf"), "Q4_0")
    assert (again.code, again.out) == (1, "")
    assert "is q8_0 already" in again.err


def test_perplexity_of_a_text(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the other hand in the end and then " * 20, encoding="utf-8")
    words = ("perplexity", str(tiny), str(text), "--num-ctx", "32", "--chunks", "2", *CPU)
    assert re.fullmatch(r"PPL = \d+\.\d{4} \+/- \d+\.\d{5}\n", cli(*words).out)
    said = json.loads(cli(*words, "--json").out)
    assert (said["chunks"], said["tokens"], said["n_ctx"]) == (2, 30, 32)
    assert "two chunks of 512 need 1024" in cli("perplexity", str(tiny), str(text), *CPU).err


def test_what_is_no_reranker_says_so(cli: Cli, tiny: Path) -> None:
    done = cli("rerank", str(tiny), "in the", "on", *CPU)
    assert (done.code != 0, done.out) == (True, "")


def test_an_answer_is_all_there_is_on_stdout(cli: Cli) -> None:
    done = cli("run", "story", "Tell me a story.", *GREEDY)
    assert done.code == 0
    assert len(done.out.split()) > 3
    assert done.err == ""


def test_a_lone_word_that_is_no_model_is_a_prompt(cli: Cli) -> None:
    prompt = "Tell me a story about a fox."
    assert cli("run", prompt, *GREEDY).out == cli("run", "story", prompt, *GREEDY).out


def test_piped_text_is_the_prompt(cli: Cli) -> None:
    prompt = "Tell me a story about a fox."
    assert cli("run", *GREEDY, stdin=f"{prompt}\n").out == cli("run", prompt, *GREEDY).out


def test_the_same_seed_gives_the_same_answer(cli: Cli) -> None:
    words = ("run", "story", "Tell me a story.", "--seed", "7", "--top-k", "20", *CPU)
    first = cli(*words, "--num-predict", "12").out
    assert cli(*words, "--num-predict", "12").out == first


def test_raw_continues_the_text_without_the_template(cli: Cli) -> None:
    prompt = "Once upon a time"
    assert cli("run", prompt, "--raw", *GREEDY).out != cli("run", prompt, *GREEDY).out


def test_a_system_message_changes_what_the_model_sees(cli: Cli, tiny: Path) -> None:
    def count(*more: str) -> int:
        err = cli("run", str(tiny), "in", *GREEDY, "--verbose", *more).err
        return int(re.findall(r"prompt eval count: +(\d+)", err)[0])

    assert count("--system", "and") > count()


def test_verbose_tells_what_it_took_under_ollamas_names(cli: Cli) -> None:
    err = cli("run", "story", "Tell me a story.", "--verbose", *GREEDY).err
    labels = [line.partition(":")[0] for line in err.splitlines() if line]
    assert labels == [
        "total duration", "load duration", "prompt eval count", "prompt eval duration",
        "prompt eval rate", "eval count", "eval duration", "eval rate", "done reason",
    ]  # fmt: skip
    assert re.search(r"eval rate: +\d+\.\d\d tokens/s", err)


def test_the_environment_names_the_device(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WGPU_BACKEND_DEVICE", "teapot")
    said = cli("run", "story", "hi").err
    assert said.startswith("wgpu-backend: WGPU_BACKEND_DEVICE: device 'teapot': no such device")
    assert cli("run", "story", "hi", *GREEDY).code == 0


def test_without_an_adapter_one_line_says_what_to_install(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = Devices().find("cpu")
    monkeypatch.setattr(loading, "choose_device", lambda which: ("cpu", best))
    monkeypatch.setattr(drivers, "_distributions", lambda: ("debian",))
    monkeypatch.setattr(drivers, "_NVIDIA", Path("/none"))
    monkeypatch.setattr("platform.system", lambda: "Linux")
    done = cli("run", "story", "hi", "--num-predict", "2")
    assert done.code == 0
    [line] = done.err.splitlines()
    assert "using the CPU with NumPy" in line
    assert "apt install mesa-vulkan-drivers" in line


@pytest.mark.parametrize(
    ("distribution", "said"), [(("debian",), "apt install libvulkan1 libx11-6"), ((), "libX11")]
)
def test_beside_a_driver_of_nvidia_another_one_is_no_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distribution: tuple[str, ...], said: str
) -> None:
    (tmp_path / "version").touch()
    monkeypatch.setattr(drivers, "_NVIDIA", tmp_path / "version")
    monkeypatch.setattr(drivers, "_distributions", lambda: distribution)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    hint = drivers.suggest_driver()
    assert said in hint
    assert "mesa" not in hint.lower()


def test_bundled_models_are_those_of_load() -> None:
    assert tuple(names.BUNDLED) == BUNDLED
    assert all(path.samefile(bundled(name)) for name, path in names.BUNDLED.items())


@pytest.mark.slow
@pytest.mark.gpu
def test_bench_as_json_has_every_figure(cli: Cli, tiny: Path, adapter: str) -> None:
    done = cli("bench", str(tiny), "-p", "8", "-n", "4", "-r", "2", "--json", "--device", adapter)
    prompt, generated = json.loads(done.out)
    assert (prompt["test"], generated["test"]) == ("pp8", "tg4")
    assert prompt["model"] == str(tiny)
    assert prompt["device"] == adapter
    assert prompt["bandwidth_fraction"] is None
    for name in ("tokens_per_second", "dispatches_per_token", "host_us_per_token"):
        assert generated[name] > 0
    assert generated["dispatches_per_token"] > prompt["dispatches_per_token"]
    assert generated["bandwidth_fraction"] > 0
    assert generated["stddev"] >= 0


def test_bench_is_a_table_and_a_test_of_no_tokens_is_left_out(cli: Cli, tiny: Path) -> None:
    lines = cli("bench", str(tiny), "-p", "0", "-n", "2", "-r", "1", *CPU).out.splitlines()
    # A long path takes lines of its own; the figures do not move.
    assert sum("tg2" in line for line in lines) == 1
    assert not any("pp" in line for line in lines[1:])


@pytest.mark.gpu
def test_on_a_narrow_terminal_rows_of_a_table_stand_one_below_the_other(
    cli: Cli, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("bench", str(tiny), "-p", "2", "-n", "2", "-r", "1", *CPU)
    monkeypatch.setattr("tests.cli.conftest.COLUMNS", "40")
    lines = cli(*words).out.splitlines()
    assert max(map(len, lines)) <= 40
    assert "…" not in "".join(lines)
    names = [line.partition(" ")[0] for line in lines]
    assert names.count("model") == names.count("dispatches/t") == 2
    for figure in (r"test +pp2", r"test +tg2", r"t/s +\d+\.\d\d ± \d\.\d\d", r"host µs/t +\d+"):
        assert any(re.fullmatch(figure, line) for line in lines), figure


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_no_line_of_a_table_is_wider_than_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    ops = ("paged_attention_q8", "linear")
    shaders = ("rasteriser/attention(A=1u)", "rasteriser/matmul_q8")
    step = profile.TimedPass("a step", ops, shaders, (4e-3, 3e-3))
    profile.print_pass(step, full=False)
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= int(columns)
    row = r"paged_attention_q8 +rasteriser/attention +1 +4 ms +57.1%"
    assert any(re.match(row, line) for line in lines)


@pytest.mark.slow
def test_profile_times_every_dispatch_and_writes_a_trace(
    cli: Cli, tiny: Path, tmp_path: Path, adapter: str
) -> None:
    trace = tmp_path / "trace.json"
    words = ("profile", str(tiny), "-p", "8", "--trace", str(trace), "--device", adapter)
    out = cli(*words).out
    assert "prompt of 8 tokens" in out
    assert "decode step at 8" in out
    events = json.loads(trace.read_text())["traceEvents"]
    passes = [e for e in events if e.get("cat") == "pass"]
    dispatches = [e for e in events if e.get("cat") == "dispatch"]
    assert len(passes) == 2
    assert re.search(r"^linear\w* +[a-z][\w/]+ +\d+ ", out, re.MULTILINE)  # no constants by default
    totals = [int(n) for n in re.findall(r"^all +(\d+)", out, re.MULTILINE)]
    assert sum(totals) == len(dispatches)
    assert sum(e["dur"] for e in dispatches) == pytest.approx(sum(e["dur"] for e in passes))
    assert all("shader" in e["args"] for e in dispatches)


def test_profile_works_without_a_device(cli: Cli, tiny: Path) -> None:
    out = cli("profile", str(tiny), "-p", "8", *CPU).out
    assert re.search(r"^linear +numpy", out, re.MULTILINE)


def test_profile_tells_constants_only_where_asked(capsys: pytest.CaptureFixture[str]) -> None:
    shaders = ("rows(WG=8u, x=f32)", "rows(WG=64u, x=f32)", "argmax(WG=8u)", "numpy")
    step = profile.TimedPass("a step", ("a", "a", "b", "c"), shaders, (4.0, 3.0, 2.0, 1.0))
    profile.print_pass(step, full=False)
    assert re.findall(r"^(\w) +(\S+) +(\d)", capsys.readouterr().out, re.MULTILINE) == [
        ("a", "rows", "2"), ("b", "argmax", "1"), ("c", "numpy", "1"),
    ]  # fmt: skip
    profile.print_pass(step, full=True)
    shown = capsys.readouterr().out
    assert re.findall(r"WG=\d+u", shown) == ["WG=8u", "WG=64u", "WG=8u"]


def test_bench_measures_lists_of_lengths_and_models_as_llama_bench_has_them(
    cli: Cli, tiny: Path
) -> None:
    lists = ("-p", "2,3", "-n", "0,2", "-p", "4", "-r", "1", "--json")
    results = json.loads(cli("bench", "-m", f"{tiny},{tiny}", *lists, *CPU).out)
    assert [r["test"] for r in results] == ["pp2", "pp3", "pp4", "tg2"] * 2
    assert {r["model"] for r in results} == {str(tiny)}


def test_a_comma_in_a_files_name_does_not_part_it(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "a,b.gguf"
    path.touch()
    assert bench.split_model_names(["c"], [str(path), "d,e"]) == ["c", str(path), "d", "e"]


def test_show_as_json_is_what_ollama_shows(cli: Cli, tiny: Path) -> None:
    found = json.loads(cli("show", str(tiny), "--json").out)
    details = {"format": "gguf", "family": "llama", "parameter_size": "96.3 K"}
    assert found["details"] == {**details, "quantization_level": "F32"}
    assert found["model_info"]["llama.context_length"] == 128
    assert found["model_info"]["tokenizer.ggml.tokens"] is None  # too long to write
    assert found["template"] == CHAT_TEMPLATE
    assert found["size"] == tiny.stat().st_size
    assert "tensors" not in found
    tensors = json.loads(cli("show", str(tiny), "--json", "--tensors").out)["tensors"]
    assert len(tensors) == 21
    assert {"name": "token_embd.weight", "type": "F32", "shape": [270, 64]} in tensors


def test_a_long_text_of_a_key_is_counted(cli: Cli, tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "odd.gguf", extra={"tokenizer.odd": "x" * 70_000})
    shown = json.loads(cli("show", str(model), "--json").out)
    assert shown["model_info"]["tokenizer.odd"] is None
    assert "70,000 characters" in cli("show", str(model), "-v").out


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_numbers_that_json_does_not_know(
    cli: Cli, tmp_path: Path, value: float
) -> None:
    model = tiny_model(tmp_path / "odd.gguf", extra={"general.odd": value})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    found = json.loads(cli("show", str(model), "--json").out, parse_constant=refuse)
    assert found["model_info"]["general.odd"] == str(value)
