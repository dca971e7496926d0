"""`wgpu-backend imagine`: which file it writes, what is in it, and its messages."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.cli.conftest import Cli
from wgpu_backend.cli.commands.imagine import render_half_blocks
from wgpu_backend.cli.completion import complete_pipeline
from wgpu_backend.images.bundled import bundled_pictures
from wgpu_backend.images.pictures import read_metadata

SHORT = ("--steps", "2", "--guidance", "1", "--seed", "3", "--device", "cpu")


def opened(path: Path) -> Image.Image:
    with Image.open(path) as image:
        return image.copy()


def test_a_picture_of_the_bundled_model(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "circle.png"
    done = cli("imagine", "a red circle", "-o", str(out), "--negative", "blue", *SHORT)
    assert (done.code, done.out) == (0, ""), done.err
    assert f"{out}: 64 × 64, seed 3, 2 steps, " in done.err
    assert opened(out).size == (64, 64)
    assert read_metadata(out) == {
        "prompt": "a red circle", "negative_prompt": "blue", "guidance": "1.0", "steps": "2",
        "model": "pictures", "seed": "3",
    }  # fmt: skip


def test_several_pictures_have_numbers_and_a_folder_is_a_model(cli: Cli, tmp_path: Path) -> None:
    words = (str(bundled_pictures()), "a wavy circle", "-o", str(tmp_path / "x.png"), "-n", "2")
    done = cli("imagine", *words, *SHORT)
    assert done.code == 0, done.err
    first, second = (tmp_path / f"x-{i}.png" for i in (1, 2))
    assert (read_metadata(first)["seed"], read_metadata(second)["seed"]) == ("3", "4")
    assert (np.asarray(opened(first)) != np.asarray(opened(second))).any()


def test_an_implementation_is_chosen_as_by_its_variable(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WGPU_BACKEND_IMPLEMENTATION", "auto")
    words = ("-o", str(tmp_path / "x.png"), "--implementation", "dawn")
    done = cli("imagine", "a red circle", *words, *SHORT)
    assert done.code == 0, done.err
    assert os.environ["WGPU_BACKEND_IMPLEMENTATION"] == "dawn"


def test_what_a_mask_leaves_stays(cli: Cli, tmp_path: Path) -> None:
    Image.new("RGB", (64, 64), (0, 255, 0)).save(tmp_path / "green.png")
    Image.new("L", (64, 64)).save(tmp_path / "mask.png")
    files = ("--image", str(tmp_path / "green.png"), "--mask", str(tmp_path / "mask.png"))
    done = cli("imagine", "a red circle", *files, "-o", str(tmp_path / "out.png"), *SHORT)
    assert done.code == 0, done.err
    assert (np.asarray(opened(tmp_path / "out.png")) == (0, 255, 0)).all()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("pictures",), "pictures: a model; give a prompt after it"),
        (
            ("no-folder", "a red circle"),
            "no-folder: is not a folder, needs one with model_index.json",
        ),
        (("a red circle", "-o", "x.jpg"), "x.jpg: images are written as PNG"),
        (("a red circle", "--width", "128"), "128 x 64 pixels, this model generates 64 x 64"),
        (("a red circle", "--mask", "x.png"), "--mask: requires --image"),
        (("a red circle", "--image", "no.png"), "no.png: No such file or directory"),
    ],
)
def test_what_cannot_be_made_is_one_line(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = cli("imagine", *words, *SHORT)
    assert done.code != 0
    assert told in done.err
    assert len(done.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_words_that_the_model_does_not_know_are_told(
    cli: Cli, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = str(tmp_path / "x.png")
    done = cli("imagine", "a red zebra", "-o", out, *SHORT)
    assert done.code == 0
    assert "words that the model does not know: zebra" in caplog.text


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="Windows has no pseudo-terminals")
def test_a_preview_is_drawn_over_itself_in_a_terminal(tmp_path: Path) -> None:
    above, below = pty.openpty()
    words = ["imagine", "a red circle", "-o", str(tmp_path / "x.png"), "--preview", *SHORT]
    command = [sys.executable, "-m", "wgpu_backend", *words]
    with subprocess.Popen(command, stderr=below) as running:
        os.close(below)
        said = b""
        while True:
            try:
                part = os.read(above, 65536)
            except OSError:  # Linux says so where the other end is closed
                break
            if not part:
                break
            said += part
    os.close(above)
    text = said.decode()
    assert running.returncode == 0, text
    assert "step 1 of 2" in text
    assert "step 2 of 2" in text
    assert text.count("▀") > 200
    assert text.count("A\x1b[38;2;") == 1  # the second is drawn over the first


def test_half_blocks_show_two_pixels_a_character() -> None:
    pixels = np.array([[[255, 0, 0]], [[0, 0, 255]]], np.uint8)
    red_over_blue = "\x1b[38;2;255;0;0m\x1b[48;2;0;0;255m▀\x1b[0m"
    assert render_half_blocks(Image.fromarray(pixels), 64, 64) == [red_over_blue]
    wide = render_half_blocks(Image.new("RGB", (200, 100)), 40, 40)
    assert (len(wide), {line.count("▀") for line in wide}) == (10, {40})


def test_tab_offers_the_bundled_model_and_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pipes" / "sd").mkdir(parents=True)
    (tmp_path / "pipes" / "sd" / "model_index.json").touch()
    (tmp_path / "file.gguf").touch()
    assert complete_pipeline("pi") == ["pictures", "pipes/"]
    assert complete_pipeline("pipes/") == ["pipes/sd"]
