"""What Tab offers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from wgpu_backend.cli import main
from wgpu_backend.device.adapters import Devices


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.gguf", "b.txt", "models/c.gguf", "models/deep/d.gguf", ".hidden/e.gguf"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / ".store/manifests/registry.ollama.ai/library/tale").mkdir(parents=True)
    (tmp_path / ".store/manifests/registry.ollama.ai/library/tale/latest").touch()
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / ".store"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


Offers = Callable[..., list[str]]


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Offers:
    """What bash is given when Tab is pressed at the end of the last word."""

    def press(*words: str) -> list[str]:
        monkeypatch.setenv("_WGPU_BACKEND_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", " ".join(["wgpu-backend", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        with pytest.raises(SystemExit) as left:
            main(())
        out, err = capsys.readouterr()
        assert (left.value.code, err) == (0, "")
        return out.split()

    return press


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    "command", [("run",), ("show",), ("tokenize",), ("bench",), ("bench", "-m"), ("graph",)]
)
def test_models_are_offered(offered: Offers, command: tuple[str, ...]) -> None:
    assert offered(*command, "") == ["story", "eyes", "a.gguf", "models/c.gguf", "tale"]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("s", ["story"]),
        ("ta", ["tale"]),
        ("mod", ["models/c.gguf"]),
        ("models/", ["models/c.gguf", "models/deep/d.gguf"]),
        ("nowhere/", []),
        ("b", []),
    ],
)
def test_what_was_typed_goes_on(offered: Offers, typed: str, words: list[str]) -> None:
    assert offered("run", typed) == words


def test_devices_are_offered_by_id_and_kind(offered: Offers) -> None:
    found = offered("run", "--device", "")
    wanted = [word for info in Devices() for word in (info.id, info.kind)]
    assert set(found) == set(wanted)
    assert len(found) == len(set(found))
    assert "cpu" in offered("tune", "-d", "c")


def test_values_of_an_option_are_offered(offered: Offers) -> None:
    assert offered("run", "--kv", "") == ["f16", "f32", "q8_0", "q4_0"]
