"""Bad pictures and sounds in requests: one line and a 400 for each, and nothing is left over."""

import base64
import io
import json
import os
import struct
import sys
import time
import wave
import zlib
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")
from PIL import Image

from tests.builders import tiny_model
from tests.models.test_audio_towers import KEYS, WIDTH, weights
from tests.models.towers import write_mmproj
from tests.patience import PATIENCE
from tests.server.running import ServerProcess
from tests.server.serving import client_of
from tests.server.test_pictures import ASK, BLUE, COLD, RED, post, user
from wgpu_backend.cli.commands.serve.loads import make_bundled_entry
from wgpu_backend.engine.loading import bundled
from wgpu_backend.files.store.manifest import Manifest
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create

COLS = 64  # of `tiny_model`


def encoded(data):
    return base64.b64encode(data).decode()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png(width, height, data=b""):
    """A PNG whose header claims a size."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def saved(form, image=None, **more):
    file = io.BytesIO()
    (image or Image.new("RGB", (96, 96), "#d82323")).save(file, form, **more)
    return file.getvalue()


def scans(count):
    """A progressive JPEG, whose last scan is repeated."""
    data = saved("JPEG", Image.new("RGB", (800, 800)), progressive=True)
    return data[:-2] + data[data.rindex(b"\xff\xda") : -2] * count + data[-2:]


def wav(seconds=1.0, rate=16_000):
    file = io.BytesIO()
    samples = np.random.default_rng(1).integers(-3000, 3000, round(seconds * rate))
    with wave.open(file, "wb") as made:
        made.setnchannels(1)
        made.setsampwidth(2)
        made.setframerate(rate)
        made.writeframes(samples.astype("<i2").tobytes())
    return file.getvalue()


def damaged(data):
    return data[:80] + bytes(len(data) - 160) + data[-80:]


def add_listener(root):
    """Store a tiny model with Qwen2-Audio's tower: two FROM lines, as their names do not match."""
    tiny_model(root / "listener.gguf")
    w = weights(**{"mm.a.fc.weight": (COLS, WIDTH), "mm.a.fc.bias": (COLS,)})
    keys = {**KEYS, "audio.projection_dim": COLS, "projector_type": "qwen2a"}
    tower = write_mmproj(root / "tower.gguf", keys, w)
    wanted = Modelfile(str(root / "listener.gguf"), {"num_predict": 4}, projector=str(tower))
    create(Store(root), ModelName.parse("listener"), wanted, root)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    root = tmp_path_factory.mktemp("store")
    add_listener(root)
    with client_of(root, fixed={"eyes": make_bundled_entry("eyes")}) as client:
        yield client


BAD = {
    "truncated": (base64.b64decode(RED)[:200], "picture of 200 bytes: damaged image"),
    "bomb": (png(100_000, 100_000), "image too large, needs at most 67108864 pixels"),
    "zero-size": (png(0, 5), "picture of "),
    "no-data": (png(96, 96), "damaged image"),
    "corrupt": (damaged(saved("PNG", Image.effect_noise((96, 96), 90))), "damaged image"),
    "text": (b"<svg/>", "not an image, needs PNG, JPEG"),
    "thin": (saved("PNG", Image.new("L", (65_000, 1))), "a ratio of sides of at most 29127"),
    "scans": (scans(3000), "3010 scans of 800 x 800 pixels, at most"),
    "program": (b"%!PS-Adobe-3.0 EPSF-3.0\n", "not an image"),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("path", ["/api/chat", "/v1/chat/completions", "/completion"])
def test_a_bad_picture_is_one_line(client, path, kind):
    data, why = BAD[kind]
    url = f"data:image/png;base64,{encoded(data)}"
    bodies = {
        "/api/chat": {"messages": [{"role": "user", "content": "a", "images": [encoded(data)]}]},
        "/v1/chat/completions": {
            "messages": user({"type": "image_url", "image_url": {"url": url}})
        },
        "/completion": {
            "prompt": {"prompt_string": "<__media__>", "multimodal_data": [encoded(data)]}
        },
    }
    found = client.post(path, json={"model": "eyes", **bodies[path]})
    error = found.json()["error"]
    text = error if isinstance(error, str) else error["message"]
    assert (found.status_code, why in text, "\n" in text) == (400, True, False), found.text


@pytest.mark.parametrize("form", ["GIF", "WEBP", "PNG"])
def test_of_an_animation_the_first_frame_is_read(client, form):
    frames = [Image.open(io.BytesIO(base64.b64decode(each))) for each in (RED, BLUE, BLUE)]
    data = saved(form, frames[0], save_all=True, append_images=frames[1:], duration=50)
    message = {"role": "user", "content": ASK, "images": [encoded(data)]}
    found = post(client, "/api/chat", messages=[message], options=COLD)
    assert found["message"]["content"] == "Red."


def test_a_hundred_pictures_are_refused_before_all_are_read(client, monkeypatch):
    """Twelve of 36 rows are more than the context's 256 positions."""
    from wgpu_backend.engine.towers import Towers

    read, prepare = [], Towers.prepare
    monkeypatch.setattr(Towers, "prepare", lambda s, part: read.append(1) or prepare(s, part))
    message = {"role": "user", "content": ASK, "images": [RED] * 100}
    found = client.post("/api/chat", json={"model": "eyes", "messages": [message]})
    why = "8 of 100 pictures and sounds take 288 tokens, the context holds 256"
    assert (found.status_code, why in found.json()["error"]) == (400, True), found.text
    assert len(read) == 8


def test_pictures_of_old_messages_are_left_out_with_them(client):
    old = {"role": "user", "content": ASK, "images": [BLUE]}
    said = {"role": "assistant", "content": "Blue."}
    new = {"role": "user", "content": ASK, "images": [RED]}
    found = post(client, "/api/chat", messages=[*[old, said] * 20, new], options=COLD)
    assert 36 < found["prompt_eval_count"] < 256
    body = {"model": "eyes", "messages": [*[old, said] * 20, new], "truncate": False}
    refused = client.post("/api/chat", json=body)
    assert (refused.status_code, "pictures and sounds take" in refused.text) == (400, True)


@pytest.mark.parametrize("model", ["tale", "listener"])
def test_a_model_without_vision_names_itself_and_what_it_lacks(client, model):
    message = {"role": "user", "content": ASK, "images": [RED]}
    found = client.post("/api/chat", json={"model": model, "messages": [message]})
    what = "it reads text alone" if model == "tale" else "it has no tower for them"
    why = f'"{model}:latest" does not support images: {what}'
    assert (found.status_code, found.json()) == (400, {"error": why})


def test_a_tower_of_another_model_is_one_line(client, tmp_path_factory):
    """As a registry may have it; `create` refuses such a pair."""
    store = Store(tmp_path_factory.getbasetemp() / "other")
    tower, name = bundled("eyes").with_name("eyes-mmproj.gguf"), ModelName.parse("mixed")
    plain = create(store, name, Modelfile(str(bundled())), store.root)
    layers = (*plain.manifest.layers, store.add_file("projector", tower))
    store.put(name, Manifest(plain.manifest.config, layers))
    message = {"role": "user", "content": ASK, "images": [RED]}
    with client_of(store.root) as other:
        found = other.post("/api/chat", json={"model": "mixed", "messages": [message]})
        text = found.json()["error"]
        assert (found.status_code, "\n" in text) == (400, False), found.text
        assert "its rows have 96 columns, mixed needs 192: the tower belongs to another" in text
        assert other.get("/api/ps").json()["models"] == []


@pytest.mark.parametrize("seconds", [31, 3600])
def test_a_long_sound_is_refused_before_it_is_resampled(client, monkeypatch, seconds):
    """An hour took minutes."""
    monkeypatch.setattr("wgpu_backend.files.media.sounds.resample", lambda *_: pytest.fail("it is"))
    body = {"model": "listener", "messages": user(sound_of(wav(seconds, 1000)))}
    found = client.post("/v1/chat/completions", json=body)
    why = f"{seconds}.0 seconds, needs at most 30; split it"
    assert (found.status_code, why in found.json()["error"]["message"]) == (400, True), found.text


def sound_of(data):
    return {"type": "input_audio", "input_audio": {"data": encoded(data), "format": "wav"}}


def test_sounds_are_heard_in_every_form(client):
    """43 rows for 1.7 seconds, and twice as many for two sounds; the second time from the cache."""
    data, text = wav(1.705), {"type": "text", "text": "what"}
    more = {"temperature": 0, "max_tokens": 4}
    body = {"model": "listener", **more}
    plain = post(client, "/v1/chat/completions", messages=user(text), **body)["usage"]
    found = post(client, "/v1/chat/completions", messages=user(sound_of(data), text), **body)
    around = found["usage"]["prompt_tokens"] - plain["prompt_tokens"] - 43
    assert around >= 0
    twice = user(sound_of(data), sound_of(wav(1.7, 22_050)), text)
    both = post(client, "/v1/chat/completions", messages=twice, **body)["usage"]
    assert 43 <= both["prompt_tokens"] - found["usage"]["prompt_tokens"] <= 43 + around
    parts = ({"type": "input_text", "text": "what"}, sound_of(data))
    answered = post(client, "/v1/responses", input=user(*parts), model="listener", temperature=0)
    assert answered["usage"]["input_tokens"] == found["usage"]["prompt_tokens"]
    prompt = {"prompt_string": "a <__media__>", "multimodal_data": [encoded(data)]}
    raw = post(client, "/completion", prompt=prompt, model="listener", n_predict=2)
    assert raw["tokens_evaluated"] >= 43
    shown = client.post("/api/show", json={"model": "listener"}).json()
    assert shown["capabilities"] == ["completion", "audio"]
    props = client.get("/props", params={"model": "listener"}).json()
    assert props["modalities"] == {"vision": False, "audio": True}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (wav()[:30], "truncated or damaged WAV"),
        (wav(0.001), "0.00 seconds, the model takes"),
        (wav(31), "31.0 seconds, needs at most 30; split it"),
        (b"RIFF\x04\0\0\0WAVE", "truncated or damaged WAV"),
        (base64.b64decode(RED), "not a sound, needs WAV"),
        (b"\0\0\0\x18ftypM4A ", "MP4/M4A is not supported, needs WAV"),
        (wav(1, 1_000_000), "1000000"),
    ],
    ids=["truncated", "short", "long", "empty", "picture", "other", "rate"],
)
def test_a_bad_sound_is_one_line(client, data, why):
    body = {"model": "listener", "messages": user(sound_of(data))}
    found = client.post("/v1/chat/completions", json=body)
    text = found.json()["error"]["message"]
    assert (found.status_code, why in text, "\n" in text) == (400, True, False), found.text


def colour(number):
    """A picture of its own for each number."""
    image = Image.new("RGB", (96, 96), (number % 256, number // 256 * 40, 90))
    return encoded(saved("PNG", image))


def ask(server, image, **more):
    message = {"role": "user", "content": ASK, "images": [image]}
    options = {**COLD, "num_predict": 2, "num_ctx": 256}
    body = {"model": "eyes", "messages": [message], "stream": False, "options": options, **more}
    status, answer = server.ask("POST", "/api/chat", body)
    return status, json.loads(answer)


def held(server):
    """MiB and open files of the server and its workers together, and how many workers it has."""
    folders = [Path("/proc") / str(pid) for pid in (server.process.pid, *server.workers)]
    pages = sum(int((each / "statm").read_text().split()[1]) for each in folders)
    files = sum(len([*(each / "fd").iterdir()]) for each in folders)
    mib = pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    return {"mib": mib, "files": files, "workers": len(folders) - 1}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pictures_leave_no_memory_files_or_processes(tmp_path):
    """Good and bad ones in turn, and clients that vanish while the tower runs."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    with ServerProcess(tmp_path, "--device", "cpu", TMPDIR=str(temporary)) as server:
        bad = [encoded(data) for data, _ in BAD.values()]

        def send(count, start):
            for number in range(start, start + count):
                assert ask(server, colour(number))[0] == 200
                if number % 4 == 0:
                    assert ask(server, bad[number // 4 % len(bad)])[0] == 400
                if number % 10 == 0:
                    connection = server.connection()
                    message = {"role": "user", "content": ASK, "images": [colour(5000 + number)]}
                    body = {"model": "eyes", "messages": [message]}
                    connection.request("POST", "/api/chat", json.dumps(body))
                    connection.close()

        send(20, 0)
        # The server starts a spare one once a model is loaded, and keeps it.
        end = time.monotonic() + PATIENCE
        while held(server)["workers"] < 2 and time.monotonic() < end:
            time.sleep(0.2)
        # It has imported its modules by the end of these.
        send(30, 20)
        before = held(server)
        send(60, 100)
        end = time.monotonic() + PATIENCE
        while True:
            after = held(server)
            same = [after[name] <= before[name] for name in ("files", "workers")]
            if all(same) or time.monotonic() > end:
                break
            time.sleep(0.2)
        assert all(same), (before, after)
        # Rows that are kept, at most 64 MiB, take 14 kB for each picture.
        assert after["mib"] < before["mib"] + 16, (before, after)
        assert [*temporary.iterdir()] == []
