"""`wgpu-backend transcribe`: lines, subtitles, JSON, and what it refuses."""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.engine.speech import tiny as whisper

CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("transcribe")
    whisper.make_folder(folder / "whisper")
    whisper.write_sound(folder / "talk.wav")
    return folder


def test_formats(cli: Cli, folder: Path, tmp_path: Path) -> None:
    words = ("transcribe", str(folder / "whisper"), str(folder / "talk.wav"), *CPU)
    done = cli(*words, "--format", "verbose_json", "--language", "English")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert (found["language"], found["duration"], found["task"]) == ("english", 1.0, "transcribe")
    out = tmp_path / "talk.vtt"
    done = cli(*words, "--format", "vtt", "--language", "en", "-o", str(out))
    assert (done.code, done.out) == (0, ""), done.err
    text = out.read_text(encoding="utf-8")
    assert text.startswith("WEBVTT\n")
    assert text.count(" --> ") == len(found["segments"])
    done = cli(*words, "--timestamps", "--language", "en")
    lines = done.out.splitlines()
    assert len(lines) == len(found["segments"])
    assert all(re.match(r"\[00:00:\d\d\.\d{3} --> 00:00:\d\d\.\d{3}\] ", line) for line in lines)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("talk.wav", "--language", "xx"), "language: 'xx' is unknown"),
        (("talk.wav", "--language", "French"), "language: 'French' is unknown to the model"),
        (("none.wav",), "none.wav: No such file"),
        (("whisper/config.json",), "whisper/config.json: not a sound"),
        (
            ("talk.wav", "--format", "srt", "--timestamps"),
            "--timestamps: only for --format text, got --format srt",
        ),
        (("talk.wav", "-o", "no/such/talk.txt"), "no such folder"),
    ],
)
def test_refusals_are_one_line(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(folder)
    done = cli("transcribe", "whisper", *words, *CPU)
    assert done.code == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_a_language_model_is_refused(cli: Cli, folder: Path, tiny: Path) -> None:
    done = cli("transcribe", str(tiny), str(folder / "talk.wav"), *CPU)
    assert (done.code, done.out) == (1, "")
    assert "takes no sound; use a Whisper model" in done.err
    done = cli("run", str(folder / "whisper"), "Hello there.", *CPU)
    assert done.code == 1
    assert "'whisper' takes sounds" in done.err
