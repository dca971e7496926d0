"""Routes that make pictures, of the bundled model and two steps."""

import asyncio
import base64
import io
import json
import os
import signal
import struct
import zlib

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

from PIL import Image

from tests.server.serving import client_of, lines
from wgpu_backend.errors import BackendError, QueueFull, WorkerLost
from wgpu_backend.images.bundled import bundled_pictures
from wgpu_backend.server.api.images import _read_ollama_options
from wgpu_backend.server.api.openai.routes import _make_error_event
from wgpu_backend.server.core import image_queue
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.image_queue import ImageQueue
from wgpu_backend.server.core.request import RequestError, get_http_status

MAKE, EDIT, OLLAMA = "/v1/images/generations", "/v1/images/edits", "/api/generate"
SHORT = {"prompt": "a red circle", "steps": 2, "guidance_scale": 1.0, "seed": 5}
ASKED = {"model": "pictures", "prompt": "a red circle", "steps": 2, "options": {"seed": 5}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store")) as client:
        yield client


def picture(text):
    return Image.open(io.BytesIO(base64.b64decode(text, validate=True)))


def given(size=(64, 64), colour=(0, 0, 255)):
    out = io.BytesIO()
    Image.new("RGB", size, colour).save(out, "PNG")
    return base64.b64encode(out.getvalue()).decode()


@pytest.mark.slow
def test_pictures_of_a_text_have_one_seed_after_the_other(client):
    found = client.post(MAKE, json={**SHORT, "n": 2, "size": "64x64"}).json()
    first, second = (picture(each["b64_json"]) for each in found["data"])
    assert (first.size, first.text["seed"], second.text["seed"]) == ((64, 64), "5", "6")
    assert first.text["prompt"] == "a red circle"
    [again] = client.post(MAKE, json={**SHORT, "seed": 6}).json()["data"]
    assert again == found["data"][1] != found["data"][0]


def test_an_edit_keeps_what_the_mask_does_not_paint(client):
    mask = Image.new("L", (64, 64))
    mask.paste(255, (32, 0, 64, 64))
    out = io.BytesIO()
    mask.save(out, "PNG")
    body = {**SHORT, "image": f"data:image/png;base64,{given((128, 128))}"}
    body["mask"] = base64.b64encode(out.getvalue()).decode()
    [found] = client.post(EDIT, json=body).json()["data"]
    made = picture(found["b64_json"])
    assert set(made.crop((0, 0, 32, 64)).get_flattened_data()) == {(0, 0, 255)}
    assert set(made.crop((32, 0, 64, 64)).get_flattened_data()) != {(0, 0, 255)}


@pytest.mark.parametrize("field", ["image", "mask"])
@pytest.mark.parametrize("size", [60_000, 20_000, 8_193])
def test_a_header_that_claims_a_huge_picture_is_told(client, field, size):
    head = struct.pack(">IIBBBBB", size, size, 8, 6, 0, 0, 0)
    claimed = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + head
    claimed += struct.pack(">I", zlib.crc32(b"IHDR" + head)) + struct.pack(">I", 0) + b"IDAT"
    body = {**SHORT, "image": given(), field: base64.b64encode(claimed).decode()}
    told = client.post(EDIT, json=body)
    assert told.status_code == 400
    assert "image too large" in told.text or f"{size} x {size} pixels" in told.text


def test_files_come_as_forms_and_openai_s_masks_are_clear(client):
    mask = Image.new("RGBA", (64, 64), (0, 0, 0, 255))
    mask.paste((0, 0, 0, 0), (32, 0, 64, 64))
    out = io.BytesIO()
    mask.save(out, "PNG")
    files = {"image[]": ("a.png", base64.b64decode(given())), "mask": ("m.png", out.getvalue())}
    texts = {name: str(value) for name, value in SHORT.items()} | {"n": "1"}
    [found] = client.post(EDIT, data=texts, files=files).json()["data"]
    made = picture(found["b64_json"])
    assert set(made.crop((0, 0, 32, 64)).get_flattened_data()) == {(0, 0, 255)}
    assert set(made.crop((32, 0, 64, 64)).get_flattened_data()) != {(0, 0, 255)}


@pytest.mark.parametrize(
    ("texts", "told"),
    [
        ({"n": "many"}, "n: 'many', needs a whole number"),
        ({"image": "?"}, "image: given twice, needs one"),
    ],
)
def test_forms_that_are_wrong(client, texts, told):
    files = {"image": ("a.png", base64.b64decode(given()))}
    found = client.post(EDIT, data={"prompt": "a red circle", **texts}, files=files)
    assert (found.status_code, told in found.text) == (400, True), found.text


def test_forms_that_are_damaged_or_not_taken(client):
    headers = {"content-type": "multipart/form-data; boundary=x"}
    damaged = client.post(EDIT, content=b"--x\r\nno header", headers=headers)
    assert damaged.status_code == 400, damaged.text
    bare = client.post(EDIT, content=b"", headers={"content-type": "multipart/form-data"})
    assert bare.status_code == 400, bare.text
    refused = client.post(MAKE, content=b"--x--", headers=headers)
    assert (refused.status_code, "not JSON" in refused.text) == (400, True)


@pytest.mark.parametrize(
    ("path", "body", "status", "told"),
    [
        (MAKE, {**SHORT, "size": "100x100"}, 400, "100 x 100 pixels, needs multiples of 64"),
        (MAKE, {**SHORT, "size": "128x64"}, 400, "128 x 64 pixels, this model generates 64 x 64"),
        (MAKE, {**SHORT, "size": "5000x64"}, 400, "needs WIDTHxHEIGHT of 1 to 4096"),
        (MAKE, {**SHORT, "size": "large"}, 400, "'large', needs WIDTHxHEIGHT"),
        (MAKE, {**SHORT, "response_format": "url"}, 400, "needs one of b64_json"),
        (MAKE, {**SHORT, "model": "tale"}, 404, "model 'tale' not found, or not an image model"),
        (EDIT, {**SHORT, "image": "?"}, 400, "image: is not base64"),
        (EDIT, {**SHORT, "image": given()[:60]}, 400, "damaged image"),
        (EDIT, {**SHORT, "image": "aGVsbG8="}, 400, "not an image, needs PNG"),
        (OLLAMA, {**ASKED, "width": 4097}, 400, "width: 4097, needs 1 to 4096"),
        (OLLAMA, {**ASKED, "images": [given()] * 2}, 400, "2 pictures, needs at most 1"),
        (OLLAMA, {**ASKED, "model": "tale"}, 400, "only models of pictures have it"),
    ],
)
def test_what_cannot_be_made_is_told(client, path, body, status, told):
    found = client.post(path, json=body)
    assert (found.status_code, told in found.text) == (status, True), found.text


def test_ollama_s_lines_say_how_far_the_picture_is(client):
    found = lines(client.post(OLLAMA, json=ASKED))
    assert [(each["completed"], each["total"], each["done"]) for each in found] == [
        (1, 2, False), (2, 2, False), (2, 2, True),
    ]  # fmt: skip
    assert picture(found[-1]["image"]).size == (64, 64)
    whole = client.post(OLLAMA, json={**ASKED, "model": "pictures:latest", "stream": False})
    assert whole.json()["image"] != ""
    assert picture(whole.json()["image"]).tobytes() == picture(found[-1]["image"]).tobytes()


@pytest.mark.slow
def test_who_leaves_ends_the_work_and_the_next_is_served(monkeypatch):
    made = ImageQueue({"pictures": bundled_pictures()}, "cpu")
    monkeypatch.setattr(image_queue, "_MAX_WAITING", 1)
    options = {"num_inference_steps": 50, "guidance_scale": 1.0}

    async def cancel():
        async with made.submit("pictures", "a red circle", options) as (told, future):
            assert await told.get() == (1, 50)
            with pytest.raises(QueueFull):
                async with made.submit("pictures", "", options):
                    pass
        with pytest.raises(RequestError, match="the client has gone"):
            await asyncio.wrap_future(future)
        short = {**options, "num_inference_steps": 1}
        async with made.submit("pictures", "a red circle", short) as (_, future):
            assert (await asyncio.wrap_future(future)).steps == 1
        await made.close()
        await made.close()

    asyncio.run(cancel())


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs signals")
def test_one_killed_process_is_one_failed_request():
    made = ImageQueue({"pictures": bundled_pictures()}, "cpu")
    options = {"num_inference_steps": 10_000, "guidance_scale": 1.0}

    async def killed():
        assert made.pid is None  # it starts with the first request
        async with (
            made.submit("pictures", "a red circle", options) as (told, future),
            made.submit("pictures", "", {"num_inference_steps": 1}) as (_, behind),
        ):
            assert await told.get() == (1, 10_000)
            first = made.pid
            os.kill(first, signal.SIGKILL)
            with pytest.raises(WorkerLost, match="pictures: its worker process ended") as found:
                await asyncio.wrap_future(future)
            assert get_http_status(found.value) == 500
            while await told.get() is not None:  # who listens to the steps hears of the end
                pass
            assert (await asyncio.wrap_future(behind)).steps == 1
        assert made.pid not in (None, first)
        await made.close()
        assert made.pid is None

    asyncio.run(killed())


@pytest.mark.slow
def test_who_waits_at_the_end_is_told():
    made = ImageQueue({"pictures": bundled_pictures()}, "cpu")
    options = {"num_inference_steps": 10_000, "guidance_scale": 1.0}

    async def ended():
        async with (
            made.submit("pictures", "a red circle", options) as (told, future),
            made.submit("pictures", "a red circle", options) as (_, behind),
        ):
            assert await told.get() == (1, 10_000)
            await made.close()
            for each in (future, behind):
                with pytest.raises(BackendError):
                    await asyncio.wrap_future(each)

    asyncio.run(ended())


def test_pipelines_are_among_the_models(client):
    [found] = [
        each for each in client.get("/api/tags").json()["models"] if "image" in each["capabilities"]
    ]
    assert (found["name"], found["capabilities"]) == ("pictures", ["image"])
    assert found["size"] > 1000


def test_ollama_s_fields_are_the_pipeline_s_options():
    body = {"width": 8, "height": 16, "steps": 3, "options": {"seed": 5}}
    wanted = {"width": 8, "height": 16, "num_inference_steps": 3, "seed": 5}
    assert _read_ollama_options(Fields(body)) == wanted


def test_ollama_s_one_image_is_the_pipeline_s():
    found = _read_ollama_options(Fields({"images": [given()]}))
    assert found.keys() == {"image"}


def test_a_stream_that_fails_ends_with_openai_s_error():
    event = _make_error_event(503, "the worker is gone")
    assert event.startswith(b"data: ")
    assert json.loads(event[6:]) == {"error": {"message": "the worker is gone", "code": 503}}
