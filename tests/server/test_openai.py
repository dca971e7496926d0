"""OpenAI's chats and completions, as its clients send them."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

import wgpu_backend as wb
from tests.server.scripted import scripted
from tests.server.serving import client_of, events_of
from wgpu_backend.engine.loading import bundled
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create
from wgpu_backend.server.core.defaults import ModelDefaults
from wgpu_backend.server.core.engine_request import _make_prompt
from wgpu_backend.server.core.request import CompletionRequest

USER = {"role": "user", "content": "Hi"}
ASKED = {"model": "actor", "temperature": 0}
NONE = {"properties": {}, "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": NONE}}
OTHER = {"type": "function", "function": {"name": "other"}}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    """Of a server that has ``marked`` as well, whose tags are control tokens."""
    root = tmp_path_factory.mktemp("store")
    path = scripted(root / "marked.gguf", ("<tool_call>", "</tool_call>", "<think>"))
    create(Store(root), ModelName.parse("marked"), Modelfile(str(path), {}, system=""), root)
    with client_of(root) as client:
        yield client


def posted(client, path="/v1/chat/completions", **body):
    found = client.post(path, json={**ASKED, **body})
    assert found.status_code == 200, found.text
    return found.json()


def prompt(client, *messages, **more):
    """What the model's template made of a conversation."""
    found = posted(client, messages=[*messages], verbose=True, max_tokens=1, **more)
    return found["__verbose"]["prompt"].partition("<|")[0]


def called(arguments):
    function = {"name": "weather", "arguments": arguments}
    calls = [{"id": "c", "type": "function", "function": function}]
    return {"role": "assistant", "tool_calls": calls}


def test_roles_have_the_names_that_templates_know(client):
    said = {"role": "developer", "content": "Be kind"}, USER
    assert prompt(client, *said) == "system: Be kinduser: Hi"
    result = {"role": "function", "name": "weather", "content": "3"}
    found = prompt(client, USER, called("{}"), result)
    assert found == "user: Hiassistant: [weather]tool: 3"
    count = {"model": "actor", "messages": [*said]}
    tokens = "/v1/chat/completions/input_tokens"
    counted = client.post(tokens, json=count).json()["input_tokens"]
    assert counted == posted(client, messages=[*said])["usage"]["prompt_tokens"]
    assert client.post(tokens, json={**count, "messages": []}).status_code == 400
    wrong = {**count, "messages": [{"role": "narrator", "content": "a"}]}
    for path in ("/v1/chat/completions", tokens):
        found = client.post(path, json=wrong)
        assert (found.status_code, "'narrator', needs system" in found.text) == (400, True)


def test_a_model_that_there_is_not_has_a_code(client):
    body = {"model": "no", "messages": [USER]}
    for path, more in (("/v1/chat/completions", {}), ("/v1/completions", {"prompt": "a"})):
        error = client.post(path, json={"model": "no", **(more or body)}).json()["error"]
        assert error["code"] == "model_not_found"
    assert client.get("/v1/models/no").json()["error"]["code"] == "model_not_found"
    found = client.get("/v1/chat/completions")
    assert (found.status_code, found.json()["error"]["type"]) == (405, "invalid_request_error")


def test_an_answer_has_an_id_in_its_head(client):
    for found in (client.get("/v1/models"), client.post("/v1/chat/completions", json={})):
        assert found.headers["x-request-id"].startswith("req_")


def test_histories_are_taken_as_models_wrote_them(client):
    said = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No"}]}
    assert "assistant: No" in prompt(client, USER, said, USER)
    empty = {"role": "user", "content": [{"type": "text", "text": None}]}
    assert prompt(client, empty) == "user: "
    # As vLLM takes them: parts of other APIs, without a type, or plain texts.
    parts = [{"type": "input_text", "text": "a"}, {"text": "b"}, "c"]
    assert prompt(client, {"role": "user", "content": parts}) == "user: a\nb\nc"
    inner = [{"type": "text", "text": "aside"}]
    for thought in (
        {"type": "thinking", "thinking": inner},
        {"type": "thinking", "thinking": "aside"},
    ):
        parts = [thought, {"type": "output_text", "text": "so"}]
        found = prompt(client, USER, {"role": "assistant", "content": parts}, USER)
        assert "assistant: so(aside)" in found
    result = {"role": "tool", "tool_call_id": "c", "content": "3"}
    for arguments in ("{", "[1]", "Oslo", "", '{"city": "Oslo"}'):
        assert "[weather]" in prompt(client, USER, called(arguments), result)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tools": [{"type": "function", "function": "x"}]}, "tools[0].function: needs an object"),
        (
            {"tools": [{"type": "function", "function": {"name": ""}}]},
            "tools[0].function: needs an object",
        ),
        ({"tools": [{"type": 5, "name": "x"}]}, "tools[0].type: '5', needs a string"),
        (
            {"tools": [{"function": {"name": "x", "parameters": 5}}]},
            "tools[0]: parameters need a JSON schema",
        ),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": "x"}},
            "needs auto, none, required or a function",
        ),
        ({"tools": [WEATHER], "tool_choice": {"type": "allowed_tools"}}, "allowed_tools needs"),
        (
            {
                "tools": [WEATHER],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": ["x"]},
            },
            "is not among the tools",
        ),
        ({"messages": [{"role": "assistant", "tool_calls": 5}]}, "tool_calls: '5', needs a list"),
        ({"messages": [{"role": "assistant", "tool_calls": True}]}, "tool_calls: 'True'"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"function": "x"}]}]}, "a tool call"),
        ({"logit_bias": {"99999": 1}}, "logit_bias: 99999 is not a token, the vocabulary has"),
        ({"logit_bias": {"-1": 1}}, "logit_bias: -1 is not a token"),
        ({"audio": {"voice": "alloy"}}, "audio is refused: no sound"),
        ({"functions": [{"name": "x"}]}, "functions is refused: needs tools and tool_choice"),
        ({"messages": []}, "messages: needs at least one"),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_what_is_wrong_is_told(client, more, message, choice):
    needed = {"messages": [USER], "tools": [WEATHER], "tool_choice": choice}
    body = {**ASKED, **needed, **more}
    found = client.post("/v1/chat/completions", json=body)
    assert found.status_code == 400, found.text
    assert message in found.json()["error"]["message"]


def test_official_fields_without_a_value_are_taken(client):
    empty = ("audio", "functions", "function_call", "prediction", "web_search_options")
    given = {**dict.fromkeys(empty), "verbosity": "low", "moderation": {"model": "m"}}
    given |= {"prompt_cache_retention": "24h", "prompt_cache_options": {}, "functions": []}
    found = posted(client, messages=[USER], **given)
    assert found["choices"][0]["message"]["content"] == "Hello there now."


@pytest.mark.parametrize("model", ["actor", "marked"])
def test_what_a_stop_text_ends_is_counted(client, model):
    asked = {"model": model, "messages": [USER], "stop": [" there"]}
    whole = posted(client, model=model, messages=[USER])["usage"]
    found = posted(client, **asked)
    usage, text = found["usage"], found["choices"][0]["message"]["content"]
    assert (text, usage["prompt_tokens"]) == ("Hello", whole["prompt_tokens"])
    cached = usage["prompt_tokens_details"]["cached_tokens"]
    assert found["timings"]["prompt_n"] == usage["prompt_tokens"] - cached > 0
    assert found["timings"]["prompt_ms"] > 0


@pytest.mark.parametrize("model", ["actor", "marked"])
@pytest.mark.parametrize("cut", [{"max_tokens": 2}, {"stop": ["</tool"]}, {"max_tokens": 1}])
def test_no_markup_of_a_call_that_is_cut_is_shown(client, model, cut):
    found = posted(client, model=model, messages=[USER], tools=[WEATHER], **cut)["choices"][0]
    assert not found["message"]["content"]
    called = "max_tokens" not in cut or cut["max_tokens"] == 2
    assert bool(found["message"].get("tool_calls")) == called


def completed(client, **body):
    found = posted(client, "/v1/completions", max_tokens=8, **body)
    assert [choice["index"] for choice in found["choices"]] == [*range(len(found["choices"]))]
    return [choice["text"] for choice in found["choices"]], found["usage"]


PLAIN = "Hello there now."


def test_control_tokens_in_prompts_are_what_they_spell(client):
    texts, usage = completed(client, prompt="<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>")
    assert (texts, usage["prompt_tokens"]) == (["in between"], 5)


def test_several_prompts_are_answered_in_their_order(client):
    given = ["a<|plain|>", "bc<|after|>"]
    texts, usage = completed(client, prompt=given)
    assert texts == [PLAIN, "It is cold."]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (5, 6)
    ids = client.post("/tokenize", json={"model": "actor", "content": given[1]}).json()["tokens"]
    assert completed(client, prompt=[ids, ids[-1:]])[0] == [texts[1]] * 2
    assert completed(client, prompt=ids)[0] == [texts[1]]
    assert completed(client, prompt=given, n=2)[0] == [PLAIN, PLAIN, texts[1], texts[1]]
    assert completed(client, prompt=given[:1], n=2)[1]["prompt_tokens"] == 2


def test_a_stream_of_several_prompts_counts_at_its_end(client):
    body = {**ASKED, "prompt": ["a<|plain|>", "bc<|after|>"], "n": 2, "stream": True}
    body["stream_options"] = {"include_usage": True}
    *pieces, last = events_of(client.post("/v1/completions", json=body))
    texts = dict.fromkeys(range(4), "")
    for piece in pieces:
        assert piece["usage"] is None
        texts[piece["choices"][0]["index"]] += piece["choices"][0]["text"]
    assert list(texts.values()) == [PLAIN] * 2 + ["It is cold."] * 2
    assert last["usage"]["total_tokens"] == 5 + 12
    assert last["usage"]["prompt_tokens_details"]["cached_tokens"] <= 3
    del body["stream_options"]
    pieces = events_of(client.post("/v1/completions", json=body))
    assert all("usage" not in piece for piece in pieces)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/chat/completions"])
@pytest.mark.parametrize("more", [{}, {"n": 2}, {"tools": [WEATHER]}, {"logprobs": True}], ids=str)
def test_only_the_last_piece_of_a_chat_has_counts(client, path, more):
    """As llama-server, Ollama and vLLM send them: clients take a piece that has counts for it."""
    body = {**ASKED, "messages": [USER], "stream": True, **more}
    body["stream_options"] = {"include_usage": True}
    *pieces, last = events_of(client.post(path, json=body))
    assert [piece for piece in pieces if "usage" in piece] == []
    assert last["usage"]["completion_tokens"] >= 3 * more.get("n", 1)
    del body["stream_options"]
    assert all("usage" not in piece for piece in events_of(client.post(path, json=body)))


@pytest.mark.parametrize("prompt", ["", None, [], [""]])
def test_nothing_begins_a_new_text(client, prompt):
    assert completed(client, model="tale", prompt=prompt)[1]["prompt_tokens"] == 1
    assert completed(client, prompt=prompt)[1]["prompt_tokens"] == 1


@pytest.mark.parametrize(
    ("best_of", "n", "stream", "status"),
    [(1, 2, False, 400), (3, 2, True, 400), (3, 2, False, 200), (2, 2, True, 200)],
)
def test_the_best_of_several_answers_are_given(client, best_of, n, stream, status):
    body = {**ASKED, "prompt": "<|plain|>", "n": n, "best_of": best_of, "stream": stream}
    found = client.post("/v1/completions", json=body)
    assert (found.status_code, "best_of" in found.text) == (status, status == 400)
    if status == 200 and not stream:
        assert len(found.json()["choices"]) == n


@pytest.mark.slow
def test_the_best_answers_are_the_likeliest(client):
    body = {"model": "tale", "prompt": "Once", "max_tokens": 4, "seed": 7, "temperature": 1.5}
    several = client.post("/v1/completions", json={**body, "n": 5, "logprobs": 0}).json()
    found = several["choices"]
    means = [(sum(each["logprobs"]["token_logprobs"]), each["text"]) for each in found]
    wanted = [text for _, text in sorted(means, reverse=True)[:2]]
    best = client.post("/v1/completions", json={**body, "n": 2, "best_of": 5}).json()["choices"]
    assert [each["text"] for each in best] == wanted
    assert [each["logprobs"] for each in best] == [None, None]


@pytest.mark.parametrize("nested", [True, False])
def test_only_allowed_tools_are_told_of(client, nested):
    def allowed(mode):
        inner = {"mode": mode, "tools": [WEATHER]}
        return {"type": "allowed_tools", **({"allowed_tools": inner} if nested else inner)}

    more = {"tools": [OTHER, WEATHER], "reasoning_effort": "none"}
    told = prompt(client, USER, **more, tool_choice=allowed("auto"))
    assert ("weather" in told, "other" in told) == (True, False)
    made = posted(client, messages=[USER], **more, tool_choice=allowed("required"), max_tokens=120)
    [call] = made["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert isinstance(json.loads(call["function"]["arguments"]), dict)


def echoed(client, prompt, **more):
    body = {"prompt": prompt, "model": "tale", "echo": True, "logprobs": 2, "max_tokens": 1}
    return posted(client, "/v1/completions", **{**body, **more})["choices"]


@pytest.mark.parametrize("as_tokens", [False, True])
@pytest.mark.parametrize("made", [0, 1])
def test_an_echo_tells_how_likely_the_prompt_is(client, as_tokens, made):
    """As lm-evaluation-harness reads it: tokens behind a context, but for the last, made one."""
    texts = ["A fox ran to the old tree.", "The end is né", "A"]
    with wb.load(bundled(), device="cpu", num_ctx=256) as model:
        tokens = [model.tokenizer.encode(text) for text in texts]
        found = echoed(client, tokens if as_tokens else texts, max_tokens=made)
        for text, ids, choice in zip(texts, tokens, found, strict=True):
            told = choice["logprobs"]
            assert {len(values) for values in told.values()} == {len(ids) + made}
            assert choice["text"][: len(text)] == text
            assert (told["token_logprobs"][0], told["top_logprobs"][0]) == (None, None)
            rows = model.logits(ids).astype("f8")[:-1]
            rows -= np.log(np.exp(rows).sum(-1, keepdims=True))
            expected = [row[token] for row, token in zip(rows, ids[1:], strict=True)]
            assert told["token_logprobs"][1 : len(ids)] == pytest.approx(expected, abs=1e-3)
            for row, token, top in zip(rows, ids[1:], told["top_logprobs"][1:], strict=False):
                greedy = token == row.argmax()
                assert (max(top.values()) == pytest.approx(row[token], abs=1e-3)) == greedy
            ends = [*told["text_offset"][1:], len(choice["text"])]
            for begin, end, token in zip(told["text_offset"], ends, told["tokens"], strict=True):
                assert choice["text"][begin:end] in ("", "é", token, token.strip())


def test_an_echo_has_the_end_token_too(client):
    """Else the last token of a continuation would be taken for the one that was made."""
    with wb.load(bundled(), device="cpu", num_ctx=256) as model:
        tokens, end = model.tokenizer.encode("A fox"), model.tokenizer.eos_id
    [choice] = echoed(client, tokens, logit_bias={str(end): 100}, max_tokens=5)
    assert (choice["text"], choice["finish_reason"]) == ("A fox", "stop")
    assert len(choice["logprobs"]["token_logprobs"]) == len(tokens) + 1


def test_an_echo_is_streamed_and_given_without_log_probabilities(client):
    body = {"model": "tale", "prompt": "A fox", "echo": True, "max_tokens": 3, "n": 2}
    whole = posted(client, "/v1/completions", **body, logprobs=1)["choices"]
    plain = posted(client, "/v1/completions", **body)["choices"]
    assert [each["text"] for each in plain] == [each["text"] for each in whole]
    assert plain[0]["logprobs"] is None
    for index in (0, 1):
        found = client.post(
            "/v1/completions", json={**ASKED, **body, "logprobs": 1, "stream": True}
        )
        sent = [json.loads(line[6:]) for line in found.text.splitlines() if line[6:7] == "{"]
        pieces = [c for each in sent for c in each["choices"] if c["index"] == index]
        assert "".join(each["text"] for each in pieces) == whole[index]["text"]
        told = [each["logprobs"] for each in pieces if each["logprobs"]]
        for name, values in whole[index]["logprobs"].items():
            assert [value for each in told for value in each[name]] == values


def test_an_answers_tokens_tell_where_they_stand(client):
    body = {"model": "tale", "prompt": "A fox", "logprobs": 0, "max_tokens": 4}
    [choice] = posted(client, "/v1/completions", **body)["choices"]
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    starts = [
        choice["text"].index(token, at)
        for token, at in zip(told["tokens"], told["text_offset"], strict=True)
    ]
    assert told["text_offset"] == starts
    tops = zip(told["tokens"], told["token_logprobs"], strict=True)
    assert told["top_logprobs"] == [{token: logprob} for token, logprob in tops]


BARE = (
    "{% for m in messages if m.role != 'system' %}{{ m.role }}: {{ m.content }}{{ '\\n' }}"
    "{% endfor %}"
)
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + BARE


@pytest.mark.parametrize("template", [BARE, STRICT])
@pytest.mark.parametrize(
    ("said", "text"),
    [
        ([("system", "Be."), ("user", "Hi")], "user: Be.\nHi\n"),
        ([("system", "A"), ("system", "B"), ("user", "")], "user: A\nB\n"),
        ([("system", "A"), ("assistant", "B"), ("user", "C")], "user: A\nassistant: B\nuser: C\n"),
        ([("user", "C"), ("system", "A")], "user: C\nuser: A\n"),
    ],
)
def test_what_a_template_has_no_place_for_is_said_by_the_user(client, template, said, text):
    with wb.load(bundled(), device="cpu", num_ctx=256) as model:
        model.prompter.use_template(template)
        loaded = SimpleNamespace(model=model, stored=None, defaults=ModelDefaults())
        turns = [{"role": role, "content": content} for role, content in said]
        prompt = _make_prompt(loaded, CompletionRequest(turns), None, None)
        found = model.tokenizer.decode(prompt.tokens)
    assert found.strip() == text.strip()


def test_parts_of_a_message_are_lines(client):
    parts = [{"type": "text", "text": text} for text in ("one", "two")]
    assert prompt(client, {"role": "user", "content": parts}) == "user: one\ntwo"
    assert prompt(client, {"role": "system", "content": "Be."}, USER) == "system: Be.user: Hi"
