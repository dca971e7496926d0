"""Videos in requests: lists of pictures and animations in every form, and what is refused."""

import base64
import io
import json

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")
from PIL import Image

import wgpu_backend as wb
from tests.engine.test_pictures import write_seer
from tests.server.serving import client_of
from tests.server.test_pictures import post, user
from tests.server.test_remote_pictures import files_of, site  # noqa: F401  a fixture
from wgpu_backend.cli.commands.serve.loads import make_bundled_entry
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create
from wgpu_backend.server.worker.messages import LoadSpec
from wgpu_backend.server.worker.remote import open_worker

COLOURS = [(250, 10, 10), (10, 250, 10), (10, 10, 250)]
FRAMES = [np.full((28, 28, 3), colour, np.uint8) for colour in COLOURS]


def encode(frames, kind="PNG", **more):
    file = io.BytesIO()
    shown = [Image.fromarray(frame) for frame in frames]
    if len(shown) > 1:
        more |= {"save_all": True, "append_images": shown[1:]}
    shown[0].save(file, kind, **more)
    return base64.b64encode(file.getvalue()).decode()


PIECES = [encode([frame]) for frame in FRAMES]
URLS = [f"data:image/png;base64,{piece}" for piece in PIECES]
LIST = f"data:video/jpeg;base64,{','.join(PIECES)}"
# Three frames of half a second each.
ANIMATION = encode(FRAMES, duration=500)


def store_seer(folder):
    store = Store(folder / "store")
    modelfile = Modelfile(str(write_seer(folder)), {})
    create(store, ModelName.parse("seer"), modelfile, folder)
    return folder / "store"


def ask_all(client, forms, path="/v1/chat/completions"):
    """The text and number of prompt tokens of each form of a video."""
    text = {"type": "input_text" if "responses" in path else "text", "text": "the in"}
    found = []
    for form in forms:
        messages = user(form, text)
        body = {"input": messages} if "responses" in path else {"messages": messages}
        most = "max_output_tokens" if "responses" in path else "max_tokens"
        made = post(client, path, model="seer", temperature=0, **{most: 6}, **body)
        if "responses" in path:
            content = made["output"][0]["content"][0]["text"]
            found.append((content, made["usage"]["input_tokens"]))
        else:
            content = made["choices"][0]["message"]["content"]
            found.append((content, made["usage"]["prompt_tokens"]))
    return found


CHAT_FORMS = [
    {"type": "video_url", "video_url": {"url": LIST}},
    {"type": "video_url", "video_url": {"url": LIST, "fps": 2}},
    {"type": "video_url", "video_url": {"url": f"data:image/png;base64,{ANIMATION}"}},
    {"type": "input_video", "input_video": {"data": ANIMATION}, "fps": 2},
    {"type": "video", "video": URLS, "fps": 2},
    {"type": "video", "video": PIECES},
]
RESPONSES_FORMS = [
    {"type": "input_video", "input_video": LIST},
    {"type": "video_url", "video_url": {"url": f"data:image/png;base64,{ANIMATION}"}},
]


def answer(folder):
    """What the model itself says."""
    with wb.load(folder / "model.gguf", device="cpu", num_ctx=256) as model:
        parts = [{"type": "video", "video": FRAMES}, {"type": "text", "text": "the in"}]
        options = {"temperature": 0, "seed": 0}
        text = model.chat([{"role": "user", "content": parts}], options=options, num_predict=6)
        return text, model.stats.prompt_tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("videos")


@pytest.fixture(scope="module")
def client(folder):
    fixed = {"eyes": make_bundled_entry("eyes")}
    with client_of(store_seer(folder), fixed=fixed) as client:
        yield client


def test_every_form_of_a_video_is_the_same_prompt(client, folder):
    wanted = answer(folder)
    assert ask_all(client, CHAT_FORMS) == [wanted] * len(CHAT_FORMS)
    found = ask_all(client, RESPONSES_FORMS, "/v1/responses")
    assert found == [wanted] * len(RESPONSES_FORMS)
    # At twice the rate an animation has twice the frames: one more pair, and one repeated frame.
    [(_, more)] = ask_all(client, [{**CHAT_FORMS[3], "fps": 4}])
    rows = 1
    assert more - wanted[1] == rows


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"type": "video_url"}, "needs text, image_url, video_url or input_audio"),
        ({"type": "video", "video": []}, "video: 0 frames, needs 1 to 768"),
        ({"type": "video", "video": PIECES[:1] * 769}, "video: 769 frames, needs 1 to 768"),
        ({"type": "video", "video": [PIECES[0], 5]}, "video: '5', needs a string in base64"),
        ({"type": "video", "video": [PIECES[0][:80]]}, "picture of 60 bytes"),
        ({"type": "video", "video": URLS, "fps": 0}, "fps: 0, needs a number above 0"),
        ({"type": "video", "video": URLS, "fps": "2"}, "fps: '2', needs a number above 0"),
        ({"type": "video_url", "video_url": {"url": "/etc/hostname"}}, "is not base64"),
        ({"type": "video_url", "video_url": {}}, "'None', needs a string in base64"),
        ({"type": "video_url", "video_url": {"url": LIST[:-6]}}, "is not base64"),
        (
            {"type": "video_url", "video_url": {"url": "http://localhost/a.mp4"}},
            "is not fetched by this server",
        ),
        ({"type": "video", "video": ["file:///etc/a.png"]}, "is not fetched by this server"),
        (
            {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAAGGZ0eXBtcDQy"}},
            "make a folder of frames",
        ),
        ({"type": "input_video", "input_video": {"data": ANIMATION[:200]}}, "damaged animation"),
        (
            {"type": "video", "video": [PIECES[0], encode([FRAMES[0][:14]])]},
            "frame 1 has 28 x 14 pixels, frame 0 has 28 x 28",
        ),
    ],
)
def test_a_bad_video_is_a_400_that_says_why(client, part, why):
    body = {"model": "seer", "messages": user(part, {"type": "text", "text": "the"})}
    found = client.post("/v1/chat/completions", json=body)
    assert found.status_code == 400, found.text
    message = found.json()["error"]["message"]
    assert why in message
    assert "\n" not in message


def test_models_without_videos_refuse_them(client):
    part = {"type": "video", "video": URLS}
    for model, why in (
        ("eyes", "takes no videos, needs a model such as Qwen2-VL; send frames as pictures"),
        ("tale", '"tale:latest" does not support video: it reads text alone'),
    ):
        body = {"model": model, "messages": user(part, {"type": "text", "text": "the"})}
        found = client.post("/v1/chat/completions", json=body)
        assert (found.status_code, why in found.text.replace("\\", "")) == (400, True), found.text


def test_frames_at_urls_are_fetched_where_the_operator_allows_it(folder, site):  # noqa: F811
    remote, _ = files_of(site)
    url = "http://pictures.example/red.png"
    with client_of(folder / "store", remote=remote) as client:
        frames = [url, "http://pictures.example/to/self"]
        [(_, two), (_, one)] = ask_all(
            client,
            [
                {"type": "video", "video": frames},
                {"type": "video_url", "video_url": {"url": url}},
            ],
        )
        assert two == one
        assert site.asked.count("/red.png") == 3
        for bad in ("http://metadata.example/latest", "http://localhost/secret"):
            body = {"model": "seer", "messages": user({"type": "video", "video": [url, bad]})}
            found = client.post("/v1/chat/completions", json=body)
            assert (found.status_code, bad in found.text) == (400, True), found.text


@pytest.mark.slow
def test_a_worker_reads_videos(folder, client):
    def opens(stored, num_ctx):
        spec = LoadSpec(str(stored.path), "cpu", num_ctx=256, mmproj=str(stored.projector))
        return open_worker("seer", spec, 8, lambda error: None)

    with client_of(folder / "store", opens=opens, wraps=lambda model: model) as other:
        wanted = ask_all(client, CHAT_FORMS[:1]) * len(CHAT_FORMS)
        own = sum(path.stat().st_size for path in folder.glob("*.gguf"))
        assert ask_all(other, CHAT_FORMS) == wanted
        # Both files have f32.
        [shown] = other.get("/api/ps").json()["models"]
        assert shown["size"] > 0.9 * own
        cut = user({"type": "video", "video": [PIECES[0][:80]]})
        refused = other.post("/v1/chat/completions", json={"model": "seer", "messages": cut})
    assert (refused.status_code, "picture of 60 bytes" in refused.text) == (400, True)


def test_what_a_worker_says_of_a_video_is_whole():
    """Positions of Qwen2.5-VL's rows have steps, and templates write markers of their own."""
    from wgpu_backend.engine.media import Part, Placed, Run, TowerRules
    from wgpu_backend.nn.tower import Rows, make_media
    from wgpu_backend.server.worker.media_messages import (
        PreparedMedia,
        ask_prepared,
        list_placed,
        parse_part,
    )

    rows = Rows(6, (3, 1, 2), 0.75)
    media = make_media({"x": np.ones(6, np.float32)}, ["a", rows, "b"], ("<v>", "v"))
    rules = TowerRules("v", ("<", ">"), True)
    kept, sent = PreparedMedia(), []

    def ask(what, **fields):
        message = json.loads(json.dumps(fields))
        sent.append(parse_part(message))
        return json.loads(json.dumps(kept.add(media, rules))), b""

    given = Part("video", [b"one", b"two"], 1.5)
    found, found_rules = ask_prepared(ask, given)
    assert sent == [given]
    assert found_rules == rules
    assert (found.layout, found.markers, found.digest) == (
        ["a", rows, "b"],
        ("<v>", "v"),
        media.digest,
    )
    [plain] = json.loads(json.dumps(list_placed([Placed(found, rules, [Run(4, 0, rows)])])))
    assert kept.place(plain).runs == [Run(4, 0, rows)]
