"""Routes for speech, of a tiny random Whisper."""

import asyncio
import base64
import json
import os
import wave

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

from tests.engine.speech import tiny as whisper
from tests.server.serving import client_of
from wgpu_backend import create as create_file
from wgpu_backend.engine import speech
from wgpu_backend.engine.speech import Options
from wgpu_backend.files.media.sounds import load_sound
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create
from wgpu_backend.server.core.image_queue import SpeechQueue
from wgpu_backend.server.worker.speech_messages import SpeechRequest

HEAR, TRANSLATE = "/v1/audio/transcriptions", "/v1/audio/translations"
# One temperature: random text passes no threshold, and would be made six times.
ASKED = {"model": "whisper", "language": "en", "temperature": "0.1"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> bytes:
    return whisper.write_sound(tmp_path_factory.mktemp("sound") / "a.wav").read_bytes()


@pytest.fixture(scope="module")
def made(tmp_path_factory, sound):
    """A server with the model, what the model says here, and the server's queue."""
    root = tmp_path_factory.mktemp("store")
    path = root / "whisper.gguf"
    create_file(path, whisper.make_folder(root / "folder"))
    queues, start = [], SpeechQueue.__init__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SpeechQueue, "__init__", lambda q, *a: queues.append(q) or start(q, *a))
        opened = client_of(root)
    with opened as client:
        create(Store(root), ModelName.parse("whisper"), Modelfile(str(path), {}, system=""), root)
        with speech.load(path, device="cpu") as model:
            said = model.transcribe(sound, Options(language="en", temperatures=(0.1,)))
            yield client, said, queues[0]


def post(client, data, sound, path=HEAR):
    return client.post(path, data=data, files={"file": ("a.wav", sound)})


def test_formats(made, sound):
    client, here, _ = made
    answer = post(client, ASKED, sound)
    assert answer.status_code == 200, answer.text
    assert answer.json() == {"text": here.text, "usage": {"type": "duration", "seconds": 1}}
    answer = post(client, {**ASKED, "response_format": "vtt"}, sound)
    assert answer.text == speech.write(here, "vtt")
    assert answer.headers["content-type"].startswith("text/plain")
    answer = post(client, {**ASKED, "response_format": "verbose_json"}, sound).json()
    assert answer.pop("usage") == {"type": "duration", "seconds": 1}
    assert answer == json.loads(speech.write(here, "verbose_json"))


def test_json_with_base64_and_the_language_is_detected(made, sound):
    client, _, _ = made
    url = "data:audio/wav;base64," + base64.b64encode(sound).decode()
    body = {"model": "whisper", "file": url, "response_format": "verbose_json"}
    body |= {"seed": 3, "temperature": 0.5}
    found = client.post(HEAR, json=body).json()
    assert (found["language"], found["task"]) == ("english", "transcribe")
    found = client.post(TRANSLATE, json=body).json()
    assert found["task"] == "translate"


def test_a_stream_has_an_event_for_each_segment(made, sound):
    client, here, _ = made
    answer = post(client, {**ASKED, "stream": "true"}, sound)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = [json.loads(e.removeprefix("data: ")) for e in answer.text.split("\n\n") if e]
    *deltas, done = events
    assert [e["delta"] for e in deltas] == [segment.text for segment in here.segments]
    assert (done["type"], done["text"]) == ("transcript.text.done", here.text)


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"model": "none"}, 404, "model 'none' not found"),
        ({"model": "tale"}, 400, "model 'tale' takes no sound; use a Whisper model"),
        ({"language": "xx"}, 400, "language: 'xx' is unknown"),
        ({"language": "fr"}, 400, "language: 'fr' is unknown to the model, needs one of en, de"),
        ({"response_format": "doc"}, 400, "response_format: 'doc', needs one of text, json"),
        ({"temperature": "3"}, 400, "temperature: 3, needs 0 to 1"),
        ({"timestamp_granularities[]": "word"}, 400, "'word', only segment is supported"),
        ({"include[]": "logprobs"}, 400, "include is refused"),
    ],
)
def test_wrong_fields(made, sound, fields, status, message):
    answer = post(made[0], {**ASKED, **fields}, sound)
    assert (answer.status_code, message in answer.text) == (status, True), answer.text
    assert answer.json()["error"]["type"] in ("invalid_request_error", "not_found_error")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"no sound", "not a sound, needs WAV"),
        (b"", "file is required"),
        (b"RIFF\x00\x00\x00\x00WAVEfmt ", "truncated or damaged WAV"),
        (b"OggS" + bytes(60), "OGG"),
    ],
)
def test_wrong_sounds(made, data, message):
    answer = post(made[0], ASKED, data)
    assert (answer.status_code, message in answer.text) == (400, True), answer.text


def test_no_file_or_no_base64(made):
    for more, message in (({}, "file is required"), ({"file": "?"}, "is not base64")):
        answer = made[0].post(HEAR, json={"model": "whisper", **more})
        assert (answer.status_code, message in answer.text) == (400, True), answer.text


@pytest.mark.slow
def test_a_process_that_dies_is_started_again(made, sound):
    client, here, queue = made
    assert post(client, ASKED, sound).status_code == 200
    before = queue.pid
    os.kill(before, 9)
    for _ in range(3):
        answer = post(client, ASKED, sound)
        if answer.status_code == 200:
            break
    assert answer.json()["text"] == here.text
    assert queue.pid != before


@pytest.mark.slow
def test_who_leaves_ends_the_work(tmp_path, sound):
    folder = whisper.make_folder(tmp_path / "folder")
    long = np.tile(load_sound(sound), 300)
    path = tmp_path / "long.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes((long * 32767).astype("<i2").tobytes())

    async def leave():
        queue = SpeechQueue("cpu")
        try:
            order = SpeechRequest(
                "w", str(folder), path.read_bytes(), {"language": "en", "temperatures": [0]}, 1
            )
            async with queue.wait(order) as (progress, _):
                await progress.get()
            short = SpeechRequest("w", str(folder), sound, {"language": "en"}, 1)
            async with queue.wait(short) as (_, made):
                return await asyncio.wrap_future(made)
        finally:
            await queue.close()

    assert asyncio.run(leave()).duration == 1


def test_other_routes_know_the_model(made):
    client, _, _ = made
    shown = client.post("/api/show", json={"model": "whisper"})
    assert shown.status_code == 200, shown.text
    assert shown.json()["capabilities"] == ["transcription"]
    for path in ("/api/chat", "/v1/chat/completions"):
        body = {"model": "whisper", "messages": [{"role": "user", "content": "Hi"}]}
        answer = client.post(path, json=body)
        assert (answer.status_code, "takes sounds" in answer.text) == (400, True), answer.text
