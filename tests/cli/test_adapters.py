"""LoRA adapters and control vectors on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import wgpu_backend as wb
from tests.builders import tiny_model
from tests.cli.conftest import Cli
from tests.models.adapters import a_control_vector, a_lora

FAILED, USAGE = 1, 2
CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    folder = tmp_path_factory.mktemp("changed")
    base = tiny_model(folder / "base.gguf")
    lora = a_lora(folder / "lora.gguf", base)
    return base, lora, a_control_vector(folder / "control.gguf", base)


def test_options_change_the_model(cli: Cli, files: tuple[Path, Path, Path], tmp_path: Path) -> None:
    base, lora, control = files
    words = ["logits", str(base), "--tokens", "1,2,3", "-o", str(tmp_path / "out.npy"), *CPU]
    words += ["--kv", "f32", "--lora", str(lora), "--lora-scaled", f"{lora}:-0.5"]
    words += ["--control-vector", str(control), "--control-vector-scaled", f"{control}:2"]
    done = cli(*words, "--control-vector-layer-range", "1", "1")
    assert done.code == 0, done.err
    with wb.load(base, device="cpu", kv_dtype="f32", adapters=[(lora, 0.5)]) as model:
        model.set_control_vectors([(control, 3.0)])
        assert np.allclose(np.load(tmp_path / "out.npy"), model.logits([1, 2, 3]), atol=1e-4)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--lora-scaled", "x.gguf"), USAGE, "--lora-scaled: 'x.gguf', needs a file and a scale"),
        (("--lora-scaled", "x.gguf:nan"), USAGE, "'x.gguf:nan', needs a file and a scale"),
        (("--control-vector-scaled", ":2"), USAGE, "--control-vector-scaled: ':2', needs a file"),
        (("--lora", "gone.gguf"), USAGE, "gone.gguf: no such file"),
        (("--lora", "BASE"), FAILED, "BASE: key 'general.type' is '', needs 'adapter'"),
        (
            ("--control-vector", "CONTROL", "--control-vector-layer-range", "2", "1"),
            USAGE,
            "control vectors: layers 2 to 1, the model has 2",
        ),
    ],
)
def test_what_does_not_fit_is_one_line(
    cli: Cli, files: tuple[Path, Path, Path], words: tuple[str, ...], code: int, said: str
) -> None:
    base, _, control = map(str, files)
    words = tuple(word.replace("BASE", base).replace("CONTROL", control) for word in words)
    done = cli("run", base, "hi", *CPU, *words)
    [line] = done.err.splitlines()
    assert (done.code, done.out) == (code, "")
    assert said.replace("BASE", base) in line
