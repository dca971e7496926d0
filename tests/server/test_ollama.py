"""Ollama's routes as its clients know them, with the scripted model and the story's."""

import asyncio
import math
import time
from types import SimpleNamespace

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")
from tests.server.running import free_port
from tests.server.scripted import CONTEXT, WIDTH
from tests.server.serving import client_of, lines, opened
from wgpu_backend.cli.commands.serve.loads import make_bundled_entry
from wgpu_backend.files.store import pull
from wgpu_backend.server.api.ollama import routes as ollama
from wgpu_backend.server.api.ollama.routes import make_chat_request, make_generate_request
from wgpu_backend.server.core.body import Fields
from wgpu_backend.server.core.completion import CompletionOutput
from wgpu_backend.server.core.defaults import ModelDefaults
from wgpu_backend.server.core.engine_request import _cut_middle
from wgpu_backend.text.output_parsers import ToolCall

USER = {"role": "user", "content": "x"}
OWN = {"role": "user", "content": "own"}
SYSTEM, OTHER = {"role": "system", "content": "Be."}, {"role": "system", "content": "Not."}
LONG = "a " * 999
FIXED = {"num_predict": 6, "seed": 1, "temperature": 0}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store")) as client:
        yield client


def posted(client, path, **body):
    found = client.post(path, json={"model": "actor", "stream": False, **body})
    assert found.status_code == 200, found.text
    return found.json()


def with_own(system="Be."):
    """A loaded model with messages of its own, as far as requests are read by it."""
    stored = SimpleNamespace(system=system, messages=(OWN,))
    prompter = SimpleNamespace(template=SimpleNamespace(source=""))
    return SimpleNamespace(
        stored=stored, model=SimpleNamespace(prompter=prompter), defaults=ModelDefaults()
    )


@pytest.fixture
def changing(tmp_path):
    """A server whose models a test may change, with one of its own."""
    with client_of(tmp_path, fixed={"story": make_bundled_entry()}) as client:
        yield client


def test_the_last_line_of_a_stream_has_no_text(client):
    body = {"model": "tale", "prompt": "Once", "raw": True, "options": FIXED}
    told = lines(client.post("/api/generate", json=body))
    assert [line["done"] for line in told] == [*[False] * (len(told) - 1), True]
    assert told[-1]["response"] == ""
    assert all(line["response"] for line in told[:-1])
    said = {"model": "actor", "messages": [USER], "think": False}
    told = lines(client.post("/api/chat", json=said))
    assert "".join(line["message"]["content"] for line in told[:-1]) == "Hello there now."
    assert told[-1]["message"] == {"role": "assistant", "content": ""}


def test_calls_are_counted_over_an_answer(client):
    class Twice:
        async def __aiter__(self):
            for name in "ab":
                yield CompletionOutput(0, [ToolCall(name, {})])

    async def told():
        found = ollama._make_lines(Fields({}), ollama._CHAT_ROUTE, Twice(), ollama._Start(0, 0))
        return [line["message"]["tool_calls"][0] async for line in found]

    first, second = asyncio.run(told())
    assert [each["function"]["index"] for each in (first, second)] == [0, 1]
    assert first["id"] != second["id"]
    called = posted(client, "/api/chat", messages=[USER], tools=[TOOL], think=False)
    [call] = called["message"]["tool_calls"]
    assert call["id"].startswith("call_")
    assert len(call["id"]) == 13


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ([USER], [SYSTEM, OWN, USER]),
        ([OTHER, USER], [OTHER, OWN, USER]),
        ([USER, OTHER], [SYSTEM, OWN, USER, OTHER]),
        ([{"role": "USER", "content": None}], [SYSTEM, OWN, {"role": "user", "content": ""}]),
    ],
)
def test_a_conversation_begins_with_the_models_own_messages(given, messages):
    assert make_chat_request(Fields({"messages": given}), with_own()).messages == messages


@pytest.mark.parametrize(
    ("given", "messages"),
    [
        ({}, [SYSTEM, OWN, USER]),
        ({"system": "Not."}, [OTHER, OWN, USER]),
        ({"context": [5]}, [SYSTEM, USER]),
        ({"raw": True}, None),
    ],
)
def test_a_prompt_begins_with_the_models_own_messages(given, messages):
    assert make_generate_request(Fields({"prompt": "x", **given}), with_own()).messages == messages


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("chat", {"messages": [{"content": "x"}]}, "messages[0].role"),
        ("chat", {"messages": [USER], "think": "bogus"}, 'invalid think value: "bogus" (must be'),
        ("generate", {"prompt": "x", "raw": True, "system": "y"}, "raw mode does not support"),
        ("generate", {"prompt": "x", "raw": True, "context": [5]}, "raw mode does not support"),
        ("generate", {"prompt": "x", "options": {"num_ctx": 64.5}}, "needs a whole number"),
    ],
)
def test_what_ollama_refuses(client, path, body, message):
    found = client.post(f"/api/{path}", json={"model": "actor", **body})
    assert found.status_code == 400
    assert message in found.json()["error"]


def test_an_answer_to_a_prompt_can_be_gone_on_from(client):
    first = posted(client, "/api/generate", prompt="x", think=False)
    count = first["prompt_eval_count"]
    assert len(first["context"]) >= count + first["eval_count"] - 1
    second = posted(
        client, "/api/generate", prompt="y", think=False, context=first["context"], keep_alive="5m"
    )
    assert second["context"][: len(first["context"])] == first["context"]
    assert second["response"] == "Hello there now."
    raw = posted(client, "/api/generate", prompt="x", raw=True, options=FIXED)
    assert "context" not in raw
    assert "context" not in posted(client, "/api/chat", messages=[USER])


def test_models_that_can_reason_do_where_a_request_does_not_say(client):
    message = posted(client, "/api/chat", messages=[USER])["message"]
    assert (message["thinking"].strip(), message["content"]) == ("hm", "Yes")
    assert "thinking" not in posted(client, "/api/chat", messages=[USER], think=False)["message"]
    assert posted(client, "/api/generate", prompt="x")["thinking"].strip() == "hm"
    assert "thinking" not in posted(client, "/api/generate", model="tale", prompt="x")


def test_probabilities_are_given_where_they_are_asked_for(client):
    asked = {"messages": [USER], "think": False, "top_logprobs": 2}
    assert "logprobs" not in posted(client, "/api/chat", **asked)
    assert "logprobs" in posted(client, "/api/chat", **asked, logprobs=True)


def test_a_request_is_told_how_long_it_waited_for_its_model_itself(tmp_path):
    def slowly(stored, num_ctx):
        time.sleep(0.3)
        return opened(stored, num_ctx)

    body = {"prompt": "x", "raw": True, "options": {**FIXED, "num_ctx": 64.0}}
    with client_of(tmp_path, opens=slowly) as client:
        first, second = (posted(client, "/api/generate", **body) for _ in range(2))

    waits = [each["load_duration"] for each in (first, second)]
    assert waits[0] >= 3e8 > waits[1]


def test_names_are_found_in_any_letters_case(changing):
    for path, more in (
        ("generate", {"prompt": "x", "raw": True, "options": FIXED}),
        ("chat", {"messages": []}),
        ("embed", {"input": "x"}),
        ("show", {}),
        ("create", {"from": "ACTOR"}),
        ("copy", {"source": "TALE:Latest", "destination": "Actor"}),
    ):
        found = changing.post(
            f"/api/{path}", json={"model": "Tale", **more} if path != "copy" else more
        )
        assert found.status_code == 200, (path, found.text)
    assert changing.post("/api/show", json={"model": "Story"}).status_code == 200
    names = {each["name"] for each in changing.get("/api/tags").json()["models"]}
    assert names == {"actor:latest", "tale:latest", "story:latest", "pictures"}
    assert changing.request("DELETE", "/api/delete", json={"model": "TALE"}).status_code == 200
    assert changing.post("/api/show", json={"model": "tale"}).status_code == 404


def test_the_servers_own_model_is_copied_and_never_hidden(changing):
    own = {"source": "story", "destination": "mine"}
    assert changing.post("/api/copy", json=own).status_code == 200
    assert changing.post("/api/show", json={"model": "mine"}).json()["details"]["family"] == "llama"
    for path, body in (
        ("copy", {"source": "tale", "destination": "Story"}),
        ("create", {"model": "story:latest", "from": "tale"}),
    ):
        found = changing.post(f"/api/{path}", json=body)
        assert found.status_code == 400
        assert "is the server's own; choose another name" in found.json()["error"]


def test_errors_of_long_work_have_a_status(changing, monkeypatch):
    monkeypatch.setattr(pull, "TRIES", 1)
    missing = changing.post("/api/create", json={"model": "new", "from": "no"})
    assert (missing.status_code, missing.json()) == (404, {"error": "model 'no:latest' not found"})
    registry = {"model": f"http://127.0.0.1:{free_port()}/a/b", "insecure": True, "stream": False}
    unreachable = changing.post("/api/pull", json=registry)
    assert unreachable.status_code == 502
    assert list(unreachable.json()) == ["error"]
    told = lines(changing.post("/api/pull", json={**registry, "stream": True}))
    assert list(told[-1]) == ["error"]


def test_what_is_missing_is_told_by_its_name(client):
    assert client.post("/api/show", json={}).json() == {"error": "model is required"}
    assert client.post("/api/show", content=b"").json() == {"error": "missing request body"}


def test_a_context_is_no_longer_than_what_a_model_was_trained_with(changing):
    for asked, had in ((100_000, CONTEXT), (64, 64), (None, 256)):
        options = FIXED if asked is None else {**FIXED, "num_ctx": asked}
        posted(changing, "/api/generate", prompt="x", raw=True, options=options)
        [running] = changing.get("/api/ps").json()["models"]
        assert running["context_length"] == had
    changing.post("/api/embed", json={"model": "tale", "input": "x", "options": {"num_ctx": 32}})
    running = {each["name"]: each for each in changing.get("/api/ps").json()["models"]}
    assert running["tale:latest"]["context_length"] == 32


@pytest.mark.parametrize(
    "options",
    [
        {"top_k": None, "num_ctx": None, "stop": None},
        {"num_predict": 2.0, "seed": 1.0},
        {"top_k": -1, "top_p": 2, "min_p": -1, "temperature": -1, "typical_p": 1.5},
        {"rope_frequency_base": 1e4, "num_gqa": 1, "embedding_only": False},
    ],
)
def test_options_that_clients_of_ollama_send(client, options):
    more = {"num_predict": 2} | options
    assert posted(client, "/api/generate", prompt="x", think=False, options=more)["eval_count"] == 2


def test_parameters_that_only_other_engines_know_are_left_out(changing, caplog):
    odd = {"rope_frequency_base": 1e4, "heat": 1, "num_predict": 1, "top_k": -1, "num_ctx": 64.0}
    asked = {"model": "odd", "from": "actor", "parameters": odd, "stream": False}
    assert changing.post("/api/create", json=asked).status_code == 200
    for _ in range(2):
        assert posted(changing, "/api/generate", model="odd", prompt="x")["eval_count"] == 1
    told = [each.message for each in caplog.records if "ignores parameters" in each.message]
    assert told == ["odd:latest: ignores parameters heat, rope_frequency_base"]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("num_ctx", "big", "parameters.num_ctx: 'big', needs a whole number"),
        ("top_p", True, "parameters.top_p: 'True', needs a number"),
        ("stop", [1], "parameters.stop: '[1]', needs a string or a list"),
    ],
)
def test_parameters_of_the_wrong_kind_are_refused(changing, name, value, message):
    asked = {"model": "odd", "from": "actor", "parameters": {name: value}}
    found = changing.post("/api/create", json=asked)
    assert (found.status_code, found.json()) == (400, {"error": message})


def test_what_models_can_do_is_told(changing):
    listed = {each["name"]: each for each in changing.get("/api/tags").json()["models"]}
    able = ["completion", "tools", "thinking", "insert"]
    assert listed["actor:latest"]["capabilities"] == able
    assert listed["tale:latest"]["capabilities"] == ["completion"]
    assert listed["story:latest"]["details"] == listed["tale:latest"]["details"]
    assert listed["story:latest"]["details"]["quantization_level"]
    shown = changing.post("/api/show", json={"model": "actor"}).json()
    assert shown["capabilities"] == able
    assert "tokenizer.chat_template" not in shown["model_info"]
    tensors = {each["name"]: each["shape"] for each in shown["tensors"]}
    assert tensors["token_embd.weight"][0] == WIDTH
    weights = sum(math.prod(shape) for shape in tensors.values())
    assert shown["model_info"]["general.parameter_count"] == weights


@pytest.mark.parametrize("dimensions", [0, -1, 10**6])
def test_vectors_stay_whole_where_they_have_not_so_many_dimensions(client, dimensions):
    asked = {"model": "tale", "input": ["x"], "dimensions": dimensions}
    [cut] = client.post("/api/embed", json=asked).json()["embeddings"]
    [whole] = client.post("/api/embed", json={**asked, "dimensions": None}).json()["embeddings"]
    assert cut == whole
    assert client.post("/api/embed", json={**asked, "input": ""}).json()["embeddings"] == []


@pytest.mark.parametrize("said", [{"prompt": LONG, "raw": True}, {"prompt": LONG}])
def test_a_prompt_that_is_too_long_loses_its_middle(client, said):
    asked = {"model": "tale", "options": {**FIXED, "num_keep": 3}, "stream": False}
    made = posted(client, "/api/generate", **{**asked, **said})
    assert made["prompt_eval_count"] == 192
    refused = client.post("/api/generate", json={**asked, **said, "truncate": False})
    assert refused.status_code == 400
    assert "256" in refused.json()["error"]


def test_a_message_that_is_too_long_loses_its_middle(client):
    long = [USER, {"role": "assistant", "content": "y"}, {"role": "user", "content": LONG}]
    made = posted(client, "/api/chat", messages=long, think=False)
    assert made["prompt_eval_count"] == 192
    assert made["message"]["content"] == "Hello there now."


def test_what_is_cut_keeps_its_beginning_and_end():
    found = [_cut_middle([*range(100)], keep, 40) for keep in (0, 4, -1)]
    assert found == [[*range(70, 100)], [*range(4), *range(74, 100)], [*range(15), *range(85, 100)]]
    assert _cut_middle([1, 2, 3], 4, 40) == [1, 2, 3]


def test_each_model_that_is_listed_is_shown(client):
    """Editors ask for each, and show none where one is missing."""
    listed = client.get("/api/tags").json()["models"]
    assert "pictures" in [each["name"] for each in listed]
    for each in listed:
        shown = client.post("/api/show", json={"model": each["model"]}).json()
        assert shown["capabilities"] == each["capabilities"]
        assert shown["details"] == each["details"]
        assert shown["model_info"]["general.architecture"]
    tagged = client.post("/api/show", json={"model": "pictures:latest"})
    assert tagged.json()["capabilities"] == ["image"]
