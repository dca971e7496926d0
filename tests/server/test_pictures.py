"""Pictures in requests: every API's form of them, capabilities, and what is refused."""

import base64
import io

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")
from PIL import Image, ImageDraw

import wgpu_backend as wb
from tests.files.huggingface.folders import VOCABULARY
from tests.models.recorded import Recorded
from tests.models.test_shared_space import write_folder
from tests.server.serving import client_of, lines
from wgpu_backend.cli.commands.serve.loads import make_bundled_entry
from wgpu_backend.engine.loading import bundled
from wgpu_backend.files.huggingface.create import create as convert
from wgpu_backend.files.store.modelfile import Modelfile, parse_modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create, open_stored
from wgpu_backend.server.core.defaults import ModelDefaults
from wgpu_backend.server.worker.messages import LoadSpec
from wgpu_backend.server.worker.remote import open_worker

ASK = "Which colour?"
COLD = {"temperature": 0}


def picture(colour):
    image = Image.new("RGB", (96, 96), "white")
    ImageDraw.Draw(image).rectangle((24, 24, 72, 72), fill=colour)
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


RED, BLUE = picture("#d82323"), picture("#2850d7")
URL = f"data:image/png;base64,{RED}"


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    fixed = {"eyes": make_bundled_entry("eyes")}
    with client_of(tmp_path_factory.mktemp("store"), fixed=fixed) as client:
        yield client


def post(client, path, **body):
    found = client.post(path, json={"model": "eyes", "stream": False, **body})
    assert found.status_code == 200, found.text
    return found.json()


def user(*content):
    return [{"role": "user", "content": [*content]}]


def test_ollama_s_chat_reads_images(client):
    message = {"role": "user", "content": ASK, "images": [RED]}
    found = post(client, "/api/chat", messages=[message], options=COLD)
    assert found["message"]["content"] == "Red."
    # 36 rows of the picture, and the text.
    assert found["prompt_eval_count"] > 36


def test_ollama_s_generate_reads_images(client):
    assert post(client, "/api/generate", prompt=ASK, images=[BLUE], options=COLD)["response"] == (
        "Blue."
    )


def test_openai_s_chat_reads_data_urls(client):
    parts = {"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": ASK}
    found = post(client, "/v1/chat/completions", messages=user(*parts), temperature=0)
    assert found["choices"][0]["message"]["content"] == "Red."
    assert found["usage"]["prompt_tokens"] > 36


def test_responses_reads_images(client):
    parts = (
        {"type": "input_image", "image_url": URL},
        {"type": "input_text", "text": "What is this?"},
    )
    found = post(client, "/v1/responses", input=user(*parts), temperature=0)
    assert found["output"][0]["content"][0]["text"] == "A red square on a white background."


def test_anthropic_s_messages_read_image_blocks(client):
    source = {"type": "base64", "media_type": "image/png", "data": BLUE}
    parts = {"type": "image", "source": source}, {"type": "text", "text": ASK}
    more = {"max_tokens": 16, "temperature": 0}
    found = post(client, "/v1/messages", messages=user(*parts), **more)
    assert found["content"] == [{"type": "text", "text": "Blue."}]
    count = client.post(
        "/v1/messages/count_tokens", json={"model": "eyes", "messages": user(*parts)}
    )
    usage = found["usage"]
    read = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert count.json()["input_tokens"] == read > 36


@pytest.mark.parametrize("colour", ["Red.", "Blue."])
@pytest.mark.parametrize("late", [False, True])
def test_a_picture_before_its_question_or_after_it(client, colour, late):
    data = {"Red.": RED, "Blue.": BLUE}[colour]
    url = f"data:image/png;base64,{data}"

    def ordered(*parts):
        return user(*(parts[::-1] if late else parts))

    shown, text = {"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": ASK}
    found = post(client, "/v1/chat/completions", messages=ordered(shown, text), temperature=0)
    assert found["choices"][0]["message"]["content"] == colour
    shown = {"type": "input_image", "image_url": url}
    given = ordered(shown, {"type": "input_text", "text": ASK})
    found = post(client, "/v1/responses", input=given, temperature=0)
    assert found["output"][0]["content"][0]["text"] == colour
    shown = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}
    more = {"max_tokens": 16, "temperature": 0}
    found = post(client, "/v1/messages", messages=ordered(shown, text), **more)
    assert found["content"] == [{"type": "text", "text": colour}]
    # In Ollama's chats pictures are always before the text.
    both = f"{ASK}<__media__>" if late else f"<__media__>{ASK}"
    prompt = f"<|user|>{both}<|end|><|assistant|>"
    more = {"prompt": prompt, "images": [data], "options": COLD}
    assert post(client, "/api/generate", raw=True, **more)["response"] == colour


def test_a_stream_about_a_picture(client):
    message = {"role": "user", "content": ASK, "images": [RED]}
    body = {"model": "eyes", "messages": [message], "options": COLD}
    pieces = lines(client.post("/api/chat", json=body))
    assert "".join(piece["message"]["content"] for piece in pieces) == "Red."


def test_a_picture_of_an_earlier_turn_is_still_seen(client):
    first = {"role": "user", "content": ASK, "images": [RED]}
    said = {"role": "assistant", "content": "Red."}
    more = {"role": "user", "content": "And the background?"}
    found = post(client, "/api/chat", messages=[first, said, more], options=COLD)
    assert found["message"]["content"] == "White."


def test_capabilities_list_vision_where_there_is_a_tower(client):
    shown = client.post("/api/show", json={"model": "eyes"}).json()
    assert shown["capabilities"] == ["completion", "vision"]
    listed = {
        each["name"]: each["capabilities"] for each in client.get("/api/tags").json()["models"]
    }
    assert "vision" in listed["eyes:latest"]
    assert "vision" not in listed["tale:latest"]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ("?", "images[0]: is not base64"),
        ("", "images[0]: has no bytes"),
        (5, "images[0]: '5', needs a string in base64"),
        (RED[:200], "picture of 150 bytes"),
        (base64.b64encode(b"no picture").decode(), "picture of 10 bytes"),
        ("https://example.com/a.png", "is not fetched by this server"),
    ],
)
def test_a_bad_picture_is_a_400_that_says_why(client, data, why):
    message = {"role": "user", "content": ASK, "images": [data]}
    found = client.post("/api/chat", json={"model": "eyes", "messages": [message]})
    assert (found.status_code, why in found.json()["error"]) == (400, True), found.text


@pytest.mark.parametrize(
    ("path", "body", "why"),
    [
        (
            "/v1/chat/completions",
            {"messages": user({"type": "image_url", "image_url": {"url": "http://localhost/a"}})},
            "is not fetched by this server",
        ),
        (
            "/v1/chat/completions",
            {"messages": user({"type": "input_audio", "input_audio": {"data": "eA=="}})},
            "does not support audio: it has no tower for them",
        ),
        ("/v1/chat/completions", {"messages": user({"type": "video"})}, "needs text, image_url"),
        (
            "/v1/messages",
            {
                "messages": user({"type": "image", "source": {"type": "url", "url": "http://a"}}),
                "max_tokens": 1,
            },
            "needs base64",
        ),
        (
            "/v1/responses",
            {"input": [{"role": "system", "content": [{"type": "input_image", "image_url": URL}]}]},
            "needs text alone",
        ),
    ],
)
def test_what_cannot_be_read_is_refused(client, path, body, why):
    found = client.post(path, json={"model": "eyes", **body})
    assert (found.status_code, why in found.text) == (400, True), found.text


def test_llama_server_s_prompts_have_pictures_at_markers(client):
    text = f"<|user|><__media__>{ASK}<|end|><|assistant|>"
    asks = [{"prompt_string": text, "multimodal_data": [each]} for each in (RED, BLUE)]
    body = {"temperature": 0, "n_predict": 4}
    found = post(client, "/completion", prompt=asks[0], **body)
    assert (found["content"], found["stop_type"]) == ("Red.", "eos")
    # 36 rows of the picture, the text, and its begin token.
    assert found["tokens_evaluated"] > 36
    several = post(client, "/completion", prompt=[*asks, "One day"], **body)
    assert [each["content"] for each in several[:2]] == ["Red.", "Blue."]
    pieces = client.post("/completion", json={"model": "eyes", "stream": True, "prompt": asks[1]})
    assert '"content": "Blue"' in pieces.text
    completed = post(client, "/v1/completions", prompt=[asks[1]], temperature=0, max_tokens=4)
    assert completed["choices"][0]["text"] == "Blue."


@pytest.mark.parametrize(
    ("prompt", "why"),
    [
        ({"prompt_string": "a", "multimodal_data": [RED]}, "has 1 items, prompt_string 0 markers"),
        (
            {"prompt_string": "<__media__><__media__>", "multimodal_data": [RED]},
            "has 1 items, prompt_string 2 markers",
        ),
        ({"prompt_string": "<__media__>", "multimodal_data": RED}, "needs a list"),
        ({"prompt_string": [1], "multimodal_data": [RED]}, "prompt_string: '[1]', needs a string"),
        (
            {"prompt_string": "<__media__>", "multimodal_data": [RED[:200]]},
            "picture of 150 bytes: damaged image",
        ),
        ({"prompt_string": "<__media__>", "multimodal_data": [5]}, "multimodal_data[0]: '5'"),
        (
            {"prompt_string": "<__media__>", "multimodal_data": ["http://a/b.png"]},
            "is not fetched by this server",
        ),
    ],
)
def test_wrong_multimodal_data_is_a_400(client, prompt, why):
    found = client.post("/completion", json={"model": "eyes", "prompt": prompt})
    assert (found.status_code, why in found.text) == (400, True), found.text


def test_multimodal_data_for_a_model_of_texts_is_a_400(client):
    prompt = {"prompt_string": "<__media__>", "multimodal_data": [RED]}
    found = client.post("/completion", json={"model": "tale", "prompt": prompt})
    why = '"tale:latest" does not support images: it reads text alone'
    assert (found.status_code, why in found.json()["error"]["message"]) == (400, True), found.text


def test_lists_of_models_name_what_they_read(client):
    props = client.get("/props", params={"model": "eyes"}).json()
    assert props["modalities"] == {"vision": True, "audio": False}
    assert props["media_marker"] == "<__media__>"
    listed = client.get("/v1/models").json()["data"]
    assert {each["id"]: each["capabilities"] for each in listed} == {
        "eyes:latest": ["completion", "vision"],
        "tale:latest": ["completion"],
        "actor:latest": ["completion", "tools", "thinking", "insert"],
        "pictures": ["image"],
    }
    for path in ("/models", "/v1/models"):
        # llama-server's own list, whose word for models that read more than text is another.
        own = {each["name"]: each["capabilities"] for each in client.get(path).json()["models"]}
        assert own["eyes:latest"] == ["completion", "vision", "multimodal"]
        assert "multimodal" not in own["tale:latest"]
    one = client.get("/v1/models/eyes").json()
    # Under the name that was asked for.
    assert (one["id"], one["capabilities"]) == ("eyes", ["completion", "vision"])


# The bundled template, which also writes results of tools, as texts alone.
WITH_RESULTS = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'tool' %}"
    "{{ '<|user|>' + m.content + '<|end|>' }}"
    "{% elif m.role == 'user' %}{{ '<|user|>' }}{% if m.content is string %}{{ m.content }}"
    "{% else %}{% for part in m.content %}{% if part.type == 'image' %}{{ '<image>' }}"
    "{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{{ '<|end|>' }}"
    "{% endif %}{% endfor %}{{ '<|assistant|>' }}"
)


@pytest.fixture(scope="module")
def tooled(tmp_path_factory):
    more = {"default_model": "eyes", "defaults": ModelDefaults(WITH_RESULTS)}
    fixed = {"eyes": make_bundled_entry("eyes")}
    with client_of(tmp_path_factory.mktemp("tooled"), fixed=fixed, **more) as client:
        yield client


def test_results_of_tools_have_pictures(tooled):
    """One picture of the user's in the template's own way, and one that a tool returned."""
    image = {"type": "image_url", "image_url": {"url": URL}}
    function = {"name": "look", "arguments": "{}"}
    call = {"id": "c1", "type": "function", "function": function}
    blue = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BLUE}"}}
    said = [
        {"role": "user", "content": [image, {"type": "text", "text": "Look."}]},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": [blue, {"type": "text", "text": ASK}],
        },
    ]
    found = post(tooled, "/v1/chat/completions", messages=said, temperature=0, max_tokens=4)
    assert found["usage"]["prompt_tokens"] > 72
    # Without the user's, the answer is about the tool's.
    alone = [{"role": "user", "content": "Look."}, *said[1:]]
    found = post(tooled, "/v1/chat/completions", messages=alone, temperature=0, max_tokens=4)
    assert found["choices"][0]["message"]["content"] == "Blue."


def test_anthropic_s_and_responses_results_have_pictures(tooled):
    source = {"type": "base64", "media_type": "image/png", "data": BLUE}
    blocks = [{"type": "image", "source": source}, {"type": "text", "text": ASK}]
    used = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": blocks}
    said = [*user({"type": "text", "text": "Look."}), {"role": "assistant", "content": [used]}]
    more = {"max_tokens": 4, "temperature": 0}
    found = post(tooled, "/v1/messages", messages=[*said, *user(result)], **more)
    assert found["content"] == [{"type": "text", "text": "Blue."}]
    output = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{BLUE}"},
        {"type": "input_text", "text": ASK},
    ]
    items = [
        *user({"type": "input_text", "text": "Look."}),
        {"type": "function_call", "call_id": "t1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "t1", "output": output},
    ]
    found = post(tooled, "/v1/responses", input=items, temperature=0, max_output_tokens=4)
    assert found["output"][0]["content"][0]["text"] == "Blue."


def test_a_result_that_is_an_error_keeps_its_picture(tooled):
    source = {"type": "base64", "media_type": "image/png", "data": RED}
    blocks = [{"type": "text", "text": "late"}, {"type": "image", "source": source}]
    used = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": blocks, "is_error": True}
    said = [
        *user({"type": "text", "text": "Look."}),
        {"role": "assistant", "content": [used]},
        *user(result),
    ]
    body = {"model": "eyes", "messages": said}
    counted = tooled.post("/v1/messages/count_tokens", json=body)
    assert counted.status_code == 200, counted.text
    assert counted.json()["input_tokens"] > 36


def test_a_created_model_keeps_its_tower(tmp_path):
    store, name = Store(tmp_path), ModelName.parse("seer")
    create(store, name, Modelfile(str(bundled("eyes")), {}), tmp_path)
    stored = open_stored(store, name)
    tower = bundled("eyes").with_name("eyes-mmproj.gguf")
    assert stored.projector is not None
    assert stored.projector.read_bytes() == tower.read_bytes()


@pytest.mark.slow
def test_a_worker_reads_pictures(tmp_path):
    """The blobs of a store have no names, so the worker is given the tower's."""
    store, name = Store(tmp_path / "models"), ModelName.parse("seer")
    create(store, name, Modelfile(str(bundled("eyes")), {}), tmp_path)

    def opens(stored, num_ctx):
        spec = LoadSpec(str(stored.path), "cpu", num_ctx=256, mmproj=str(stored.projector))
        return open_worker("seer", spec, 8, lambda error: None)

    with client_of(tmp_path / "models", opens=opens, wraps=lambda model: model) as client:
        for colour, image in (("Red.", RED), ("Blue.", BLUE)):
            message = {"role": "user", "content": ASK, "images": [image]}
            found = post(client, "/api/chat", model="seer", messages=[message], options=COLD)
            assert found["message"]["content"] == colour
        cut = {"role": "user", "content": ASK, "images": [RED[:200]]}
        refused = client.post("/api/chat", json={"model": "seer", "messages": [cut]})
    assert (refused.status_code, "picture of 150 bytes" in refused.text) == (400, True)


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """A server of a model whose pictures and texts share a space, in a worker."""
    root = tmp_path_factory.mktemp("clip")
    (root / "folder").mkdir()
    report = wb.create(root / "clip.gguf", write_folder(root / "folder", "clip"))
    store, name = Store(root / "models"), ModelName.parse("clip")
    create(store, name, Modelfile(str(report.path), {}), root)

    def opens(stored, num_ctx):
        spec = LoadSpec(str(stored.path), "cpu", num_ctx=64, mmproj=str(stored.projector))
        return open_worker("clip", spec, 8, lambda error: None)

    with client_of(root / "models", opens=opens, wraps=lambda model: model) as client:
        yield client


def embed(client, given, **more):
    return client.post("/v1/embeddings", json={"model": "clip", "input": given, **more})


def test_embeddings_of_pictures_and_texts_in_order(clip):
    part = {"type": "image_url", "image_url": {"url": URL}}
    given = [part, "dog", {"image": BLUE}, {"text": "cat"}, {"content": [part]}]
    found = embed(clip, given)
    assert found.status_code == 200, found.text
    vectors = np.array([each["embedding"] for each in found.json()["data"]])
    assert np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)
    alone = [embed(clip, each).json()["data"][0]["embedding"] for each in given]
    assert np.allclose(vectors, alone, atol=1e-6)
    assert np.array_equal(vectors[0], vectors[4])
    assert not np.allclose(vectors[0], vectors[2], atol=1e-3)
    # Three tokens for each text, one for each picture.
    assert found.json()["usage"]["prompt_tokens"] == 3 + 2 * 3
    media = {"prompt_string": "<__media__>", "multimodal_data": [RED]}
    other = clip.post("/embedding", json={"model": "clip", "content": media})
    assert np.allclose(other.json()[0]["embedding"][0], vectors[0], atol=1e-6)
    shown = clip.post("/api/show", json={"model": "clip"}).json()
    assert shown["capabilities"] == ["embedding", "vision"]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"image": "?"}, "input: image: is not base64"),
        ({"image": base64.b64encode(b"no picture").decode()}, "picture of 10 bytes"),
        ({"image": "https://localhost/a.png"}, "is not fetched by this server"),
        ({"content": [{"image": RED}, {"text": "a"}]}, "send each as an item of its own"),
        ({"content": [{"type": "video"}]}, "needs prompt_string, or content with parts"),
        ({"prompt_string": "a", "multimodal_data": [RED]}, "needs one picture, and <__media__>"),
    ],
)
def test_pictures_that_cannot_be_embedded_are_refused(clip, given, why):
    found = embed(clip, ["dog", given])
    assert (found.status_code, why in found.text) == (400, True), found.text


def test_a_model_of_texts_refuses_to_embed_a_picture(client):
    found = client.post("/v1/embeddings", json={"model": "tale", "input": [{"image": RED}]})
    why = "embeds texts only, pictures were given"
    assert (found.status_code, why in found.text) == (400, True), found.text


LLAMA = Recorded("mllama", "<|image|>")


@pytest.mark.slow
def test_a_model_that_attends_to_pictures(tmp_path):
    """Llama 3.2 Vision answers as transformers do, in a worker as in the process itself."""
    name = ModelName.parse("mllama")
    store = Store(tmp_path / "store")
    made = convert(tmp_path / "made.gguf", LLAMA.write(tmp_path / "hf"))
    create(store, name, parse_modelfile(f"FROM {made.path}\nFROM {made.tower}"), tmp_path)
    file = io.BytesIO()
    Image.fromarray(LLAMA.shown("a")).save(file, "PNG")
    body = {
        "model": "mllama",
        "prompt": "in the <__media__> in a",
        "raw": True,
        "stream": False,
        "images": [base64.b64encode(file.getvalue()).decode()],
        "options": {**COLD, "num_predict": 8},
    }

    def opens(stored, num_ctx):
        spec = LoadSpec(str(stored.path), "cpu", num_ctx=64, mmproj=str(stored.projector))
        return open_worker("mllama", spec, 8, lambda error: None)

    with client_of(tmp_path / "store", opens=opens, wraps=lambda model: model) as client:
        shown = client.post("/api/show", json={"model": "mllama"}).json()
        assert "vision" in shown["capabilities"]
        found = client.post("/api/generate", json=body).json()
    # The picture takes one place in the prompt.
    assert found["prompt_eval_count"] == 8
    words = [VOCABULARY[token] for token in LLAMA.tokens("one")]
    assert found["response"] == "".join(words).replace("Ġ", " ")
