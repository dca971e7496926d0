"""Pictures on the command line."""

import json

import numpy as np
import pytest
from PIL import Image

import wgpu_backend as wb
from tests.builders import tiny_model
from tests.data.tower_weights import picture
from tests.engine.speech import tiny as whisper
from tests.engine.test_pictures import BLUE, RED, write_seer, write_tower
from tests.models.test_audio_towers import KEYS, WIDTH, weights
from tests.models.test_shared_space import recorded, write_folder
from tests.models.towers import write_mmproj
from wgpu_backend.cli.chat import Chat, take_paths
from wgpu_backend.cli.failures import USAGE
from wgpu_backend.testing import nmse

CPU = ("--device", "cpu")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("pictures")
    tiny_model(made / "model.gguf")
    write_tower(made / "tower.gguf")
    (made / "alone").mkdir()
    tiny_model(made / "alone" / "text.gguf")
    for name, pixels in {"red": RED, "blue": BLUE}.items():
        Image.fromarray(pixels).save(made / f"{name}.png")
    return made


def test_logits_with_pictures(cli, folder, tmp_path):
    model, tower = str(folder / "model.gguf"), str(folder / "tower.gguf")
    out = str(tmp_path / "o.npy")
    images = [str(folder / "red.png"), str(folder / "blue.png")]
    text = "a <__media__> b <__media__>"
    done = cli("logits", model, "--mmproj", tower, "--image", images[0], "--image", images[1],
               "--prompt", text, "-o", out, "--kv", "f32", "--exact", *CPU)  # fmt: skip
    assert (done.code, done.out) == (0, ""), done.err
    with wb.load(model, mmproj=tower, device="cpu", kv_dtype="f32", exact=True) as opened:
        assert np.array_equal(np.load(out), opened.logits(text, images=[RED, BLUE]))


def test_run_with_a_picture(cli, folder):
    model, tower = str(folder / "model.gguf"), str(folder / "tower.gguf")
    words = ("--temperature", "0", "--num-predict", "5", "--kv", "f32", "--exact", *CPU)
    found = [
        cli("run", model, "the in", "--mmproj", tower, "--image", str(folder / "red.png"), *words),
        # A file that is dropped on a terminal.
        cli("run", model, f"the in {folder / 'red.png'}", "--mmproj", tower, *words),
    ]
    with wb.load(model, mmproj=tower, device="cpu", kv_dtype="f32", exact=True) as opened:
        wanted = opened.generate("the in", images=[RED], options={"temperature": 0}, num_predict=5)
    for done in found:
        assert done.code == 0, done.err
        assert done.out.split() == wanted.split()


@pytest.fixture(scope="module")
def listener(tmp_path_factory):
    """A model with Qwen2-Audio's tower, and a sound."""
    made = tmp_path_factory.mktemp("sounds")
    tiny_model(made / "model.gguf")
    more = {"mm.a.fc.weight": (64, WIDTH), "mm.a.fc.bias": (64,)}
    keys = {**KEYS, "audio.projection_dim": 64, "projector_type": "qwen2a"}
    write_mmproj(made / "tower.gguf", keys, weights(**more))
    whisper.write_sound(made / "a.wav")
    return made


def test_run_and_logits_with_a_sound(cli, listener, tmp_path):
    model, tower, sound = (str(listener / n) for n in ("model.gguf", "tower.gguf", "a.wav"))
    words = ("--temperature", "0", "--num-predict", "5", "--kv", "f32", "--exact", *CPU)
    found = [
        cli("run", model, "the in", "--mmproj", tower, "--audio", sound, *words),
        # A file that is dropped on a terminal.
        cli("run", model, f"the in '{sound}'", "--mmproj", tower, *words),
    ]
    out, text = str(tmp_path / "o.npy"), "a <__media__> b"
    more = ("--audio", sound, "--prompt", text, "-o", out, "--kv", "f32", "--exact", *CPU)
    done = cli("logits", model, "--mmproj", tower, *more)
    assert (done.code, done.out) == (0, ""), done.err
    with wb.load(model, mmproj=tower, device="cpu", kv_dtype="f32", exact=True) as opened:
        wanted = opened.generate("the in", audio=[sound], options={"temperature": 0}, num_predict=5)
        assert np.array_equal(np.load(out), opened.logits(text, audio=[sound]))
    for done in found:
        assert done.code == 0, done.err
        assert done.out.split() == wanted.split()


def test_a_chat_has_the_sound_in_its_message(tmp_path):
    chat = Chat.__new__(Chat)
    (tmp_path / "a.wav").write_bytes(b"sound")
    chat.images, chat.videos, chat.sounds, chat.fps = [], [], [str(tmp_path / "a.wav")], None
    parts = [{"type": "audio", "audio": b"sound"}, {"type": "text", "text": "what"}]
    assert chat._make_message("what") == {"role": "user", "content": parts}
    assert chat._make_message("and now") == {"role": "user", "content": "and now"}


@pytest.mark.parametrize("bad", ["none.wav", "model.gguf", "cut.wav", "zero.wav"])
def test_a_bad_sound_is_one_line(cli, listener, bad):
    data = (listener / "a.wav").read_bytes()
    (listener / "cut.wav").write_bytes(data[:1000])
    (listener / "zero.wav").write_bytes(data[:24] + bytes(4) + data[28:])
    model, tower = str(listener / "model.gguf"), str(listener / "tower.gguf")
    done = cli("run", model, "a", "--mmproj", tower, "--audio", str(listener / bad), *CPU)
    assert (done.code, done.err.count("\n")) == (USAGE, 1)
    said = {
        "none.wav": "no such file",
        "model.gguf": "not a sound",
        "cut.wav": "truncated WAV",
        "zero.wav": "0 samples per second",
    }
    assert said[bad] in done.err


def test_run_with_a_video(cli, tmp_path):
    model = str(write_seer(tmp_path))
    shown = [Image.fromarray(pixels[:28, :28]) for pixels in (RED, BLUE, RED)]
    (tmp_path / "frames").mkdir()
    for number, each in enumerate(shown):
        each.save(tmp_path / "frames" / f"{number}.png")
    shown[0].save(
        tmp_path / "a.webp", lossless=True, save_all=True, append_images=shown[1:], duration=250
    )
    words = ("--temperature", "0", "--num-predict", "5", "--kv", "f32", *CPU)
    found = [
        cli("run", model, "the in", "--video", str(tmp_path / name), "--fps", "4", *words)
        for name in ("frames", "a.webp")
    ]
    with wb.load(model, device="cpu", kv_dtype="f32") as opened:
        frames = [pixels[:28, :28] for pixels in (RED, BLUE, RED)]
        parts = [{"type": "video", "video": frames, "fps": 4}, {"type": "text", "text": "the in"}]
        message = {"role": "user", "content": parts}
        wanted = opened.chat([message], options={"temperature": 0}, num_predict=5)
    for done in found:
        assert (done.code, done.out.split()) == (0, wanted.split()), done.err
    red = str(tmp_path / "frames" / "0.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.mp4").write_bytes(b"\0\0\0\x18ftypmp42" * 9)
    for more, said in (
        (("--video", str(tmp_path / "no")), "no such file or folder"),
        (("--video", str(tmp_path / "empty")), "has no pictures, needs .png"),
        (("--video", str(tmp_path / "a.mp4")), "make a folder of frames"),
        (("--fps", "2"), "--fps: requires --video"),
        (("--video", red, "--raw"), "--video: needs a chat template"),
    ):
        done = cli("run", model, "the in", *more, *words)
        assert done.code, more
        assert said in " ".join(done.err.split()), more


def test_errors_name_what_is_missing(cli, folder):
    model, tower = str(folder / "model.gguf"), str(folder / "tower.gguf")
    alone = str(folder / "alone" / "text.gguf")
    red = str(folder / "red.png")
    for words, said in (
        (("run", alone, "a", "--image", red), "text.gguf: it has no tower for pictures"),
        (("run", model, "a", "--image", "no.png", "--mmproj", tower), "'no.png': no such file"),
        (("run", model, "a", "--image", model, "--mmproj", tower), "not an image"),
        (("run", model, "a", "--image", red, "--mmproj", alone), "needs 'clip'"),
    ):
        done = cli(*words, *CPU)
        assert done.code != 0
        assert done.err.count("\n") == 1
        assert said in done.err
    done = cli("logits", model, "--tokens", "1,2", "--image", red, "-o", "o.npy", *CPU)
    assert done.code == USAGE
    assert "--image needs --prompt" in done.err


def test_paths_in_a_prompt(tmp_path):
    plain, spaced = tmp_path / "a.PNG", tmp_path / "b c.jpeg"
    for path in (plain, spaced):
        path.touch()
    escaped = str(spaced).replace(" ", "\\ ")
    assert take_paths(f"what is {plain}?") == (f"what is {plain}?", [])
    assert take_paths(f"what is this {plain}") == ("what is this", [str(plain)])
    assert take_paths(f"'{spaced}' or {escaped} here") == ("or  here", [str(spaced)] * 2)
    assert take_paths("no.png of mine") == ("no.png of mine", [])
    assert take_paths("  as it is ") == ("  as it is ", [])
    assert take_paths(f"{plain}", "audio") == (f"{plain}", [])
    (tmp_path / "d.Mp3").touch()
    assert take_paths(f"hear {tmp_path / 'd.Mp3'}", "audio") == ("hear", [str(tmp_path / "d.Mp3")])


def test_embed_prints_vectors_of_pictures(cli, tmp_path):
    folder = str(write_folder(tmp_path, "clip"))
    Image.fromarray(picture(41, 70)).save(tmp_path / "a.png")
    words = ("--image", str(tmp_path / "a.png"), "--device", "cpu", "--exact", "--kv", "f32")
    done = cli("embed", folder, "dog", *words)
    assert done.code == 0, done.err
    found = np.array([json.loads(line) for line in done.out.splitlines()])
    assert nmse(found, recorded()[1]["clip"][[1, 3]]) < 1e-3
    done = cli("embed", folder, "--device", "cpu")
    assert (done.code, done.out) == (USAGE, "")
    assert "needs a TEXT, or --image" in done.err
