"""`list`, `pull`, `cp`, `rm`, `create -f`, and models by their names."""

import json
import os
import re
from pathlib import Path

import gguf
import numpy as np
import pytest

from tests.cli.conftest import Cli
from tests.files.huggingface.folders import write_folder
from tests.files.store.registry import Registry
from wgpu_backend.engine.loading import bundled

FAILED, USAGE = 1, 2


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "models"))
    modelfile = tmp_path / "Modelfile"
    modelfile.write_text(
        f"FROM {bundled()}\nPARAMETER num_predict 3\nPARAMETER seed 1\nSYSTEM Tell.\n"
    )
    return modelfile


def test_a_model_is_made_listed_shown_run_copied_and_removed(cli: Cli, library: Path) -> None:
    assert "no models" in cli("list").err
    done = cli("create", "tale", "-f", str(library))
    assert (done.code, done.err.splitlines()[-1]) == (0, "wgpu-backend: success")
    assert "tale:latest" in cli("list").out
    [listed] = json.loads(cli("ls", "--json").out)
    assert listed["name"] == "tale:latest"
    assert listed["details"]["family"] == "llama"
    assert "PARAMETER num_predict 3" in cli("show", "tale", "--modelfile").out
    assert "llama" in cli("show", "tale").out
    assert cli("show", "tale", "--system").out == "Tell.\n"
    assert cli("show", "tale", "--parameters").out.split() == ["num_predict", "3", "seed", "1"]
    assert cli("show", "tale", "--license").out
    everything = cli("show", "tale", "-v").out
    assert "tokenizer.ggml.tokens" in everything
    assert "token_embd.weight" in everything
    wrong = cli("show", "tale", "--system", "--license")
    assert (wrong.code, "--system and --license" in wrong.err) == (USAGE, True)
    short = cli("run", "tale", "Once", "--device", "cpu", "--json")
    assert json.loads(short.out)["eval_count"] == 3
    longer = cli("run", "tale", "Once", "--device", "cpu", "--json", "--num-predict", "5")
    assert json.loads(longer.out)["eval_count"] == 5
    assert cli("cp", "tale", "me/other:1").code == 0
    assert cli("rm", "tale").code == 0
    assert "me/other:1" in cli("list").out
    assert cli("rm", "tale").err == "wgpu-backend: model 'tale:latest' not found\n"


def test_a_damaged_manifest_is_told(cli: Cli, library: Path) -> None:
    cli("create", "broken", "-f", str(library))
    path = library.parent / "models/manifests/registry.ollama.ai/library/broken/latest"
    path.write_text("{")
    for asked in (("show", "broken"), ("show", "broken", "--modelfile"), ("run", "broken", "Hi")):
        told = cli(*asked)
        assert (told.code, f"{path}: not a manifest: " in told.err) == (FAILED, True), told.err


def test_a_model_is_made_from_the_bundled_one(cli: Cli, library: Path) -> None:
    library.write_text("FROM story\nPARAMETER num_predict 2\n")
    done = cli("create", "short", "-f", str(library))
    assert done.code == 0, done.err
    told = json.loads(cli("run", "short", "Once", "--device", "cpu", "--json").out)
    assert told["eval_count"] == 2


def test_a_model_is_pulled_and_pushed(cli: Cli, library: Path) -> None:
    with Registry(bundled().read_bytes(), b'{"num_predict": 2}') as registry:
        assert cli("pull", registry.name).code == FAILED
        done = cli("pull", registry.name, "--insecure")
        assert done.code == 0, done.err
        name = registry.name.removeprefix("http://")
        assert done.err.endswith("writing manifest\nwgpu-backend: success\n")
        registry.blobs.clear()
        assert cli("push", registry.name).code == FAILED
        pushed = cli("push", registry.name, "--insecure")
        assert pushed.err.endswith("pushing manifest\nwgpu-backend: success\n"), pushed.err
        assert bundled().read_bytes() in registry.blobs.values()
    answer = cli("run", name, "Once", "--device", "cpu", "--json")
    assert json.loads(answer.out)["eval_count"] == 2


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("create", "a"), USAGE, "needs OUT and DIR, or a name and --file"),
        (("create", "a", "-f", "no-such"), USAGE, "--file: no-such: no such file"),
        (("cp", "a", "b"), FAILED, "'a:latest' not found"),
        (("cp", "../a", "b"), FAILED, "model name '../a'"),
        (("rm", "a:../../b"), FAILED, "model name"),
        (("show", "a", "--modelfile"), USAGE, "the store has no such model"),
        (("run", "nothere:1b"), USAGE, "nothere:1b: no such file"),
    ],
)
def test_what_is_not_there(
    cli: Cli, library: Path, words: tuple[str, ...], code: int, message: str
) -> None:
    done = cli(*words)
    assert (done.code, message in done.err) == (code, True), done.err


def test_a_read_only_store_is_not_changed(
    cli: Cli, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WGPU_BACKEND_READ_ONLY", "1")
    assert "the store is read-only" in cli("create", "a", "-f", str(library)).err
    assert not (library.parent / "models").exists()


def test_a_modelfile_may_name_a_hugging_face_folder(
    cli: Cli, library: Path, tmp_path: Path
) -> None:
    write_folder(tmp_path / "folder")
    (tmp_path / "Modelfile").write_text("FROM ./folder\nSYSTEM Be brief.\nPARAMETER top_k 7\n")
    made = cli("create", "tiny", "-f", str(library))
    assert (made.code, made.out) == (0, "")
    shown = cli("show", "tiny")
    assert "architecture" in shown.out
    assert re.search(r"parameters\ntop_k +7\n\nsystem\nBe brief\.\n", shown.out)
    assert not [*Path(os.environ["OLLAMA_MODELS"]).glob(".create-*")]


def test_a_model_of_the_store_is_named_in_errors_and_not_its_blob(
    cli: Cli, library: Path, tmp_path: Path
) -> None:
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "nobodys")
    writer.add_tensor("a", np.zeros((2, 2), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    (tmp_path / "Modelfile").write_text("FROM odd.gguf\n")
    assert cli("create", "odd", "-f", str(library)).code == 0
    done = cli("run", "odd", "hi", "--device", "cpu")
    assert done.err.startswith(
        "wgpu-backend: odd: architecture 'nobodys' is unknown; docs/models.md"
    )


def test_rerank_of_a_model_that_is_no_reranker_says_so(cli: Cli) -> None:
    done = cli("rerank", "story", "why", "because", "--device", "cpu")
    assert done.code == 1
    assert "it is not a reranker" in done.err


def test_quantize_names_the_order_of_its_arguments_and_create_for_folders(
    cli: Cli, tmp_path: Path
) -> None:
    done = cli("quantize", "story", "q8_0", "out.gguf")
    assert (done.code, "the order is MODEL OUT.gguf TYPE" in done.err) == (USAGE, True)
    write_folder(tmp_path / "folder")
    done = cli("quantize", str(tmp_path / "folder"), str(tmp_path / "o.gguf"), "q8_0")
    assert (done.code, "wgpu-backend create" in done.err) == (USAGE, True)


def test_show_lists_the_tower_of_a_model(cli: Cli, library: Path) -> None:
    model = bundled("eyes")
    library.write_text(f"FROM {model}\nFROM {model.with_name('eyes-mmproj.gguf')}\n")
    cli("create", "seer", "-f", str(library))
    shown = cli("show", "seer").out.split("\nprojector\n")[1]
    assert next(line.split() for line in shown.splitlines()) == ["architecture", "clip"]
    assert ["vision", "dimensions", "96"] in [line.split() for line in shown.splitlines()]
    assert cli("show", "seer", "--modelfile").out.count("FROM ") == 2
