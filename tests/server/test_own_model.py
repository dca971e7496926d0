"""An operator's options for the server's own model: names, templates, defaults, features."""

import json
from datetime import datetime

import numpy as np
import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

import wgpu_backend as wb
from tests.server.serving import client_of
from wgpu_backend.cli.commands.serve.options import (
    AddressOptions,
    ApiOptions,
    DefaultModelOptions,
    EngineOptions,
)
from wgpu_backend.cli.failures import UsageError
from wgpu_backend.server.core.access import _is_allowed
from wgpu_backend.server.core.defaults import ModelDefaults, find_closing_tag
from wgpu_backend.text.chat_template import ChatTemplate
from wgpu_backend.text.chat_template.builtin_templates import NAMED

SAID = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Bye"},
]
R1 = "{% for m in messages %}{{ m.content }}{% endfor %}<｜Assistant｜><think>\n{# </think> #}"
KNOWS = (
    "{% for m in messages %}{{ m.content }}{% endfor %}|"
    "{% if enable_thinking is defined %}{{ enable_thinking }}{% endif %}{# <think> #}"
)


def rendered(client, **more):
    response = client.post("/apply-template", json={"messages": SAID, **more})
    assert response.status_code == 200, response.text
    return response.json()["prompt"]


@pytest.mark.parametrize("name", NAMED)
def test_named_templates_have_every_turn_in_order(name):
    template = ChatTemplate(NAMED[name], bos_token="<s>", eos_token="</s>")
    text = template.render(SAID)
    places = [text.index(each["content"]) for each in SAID]
    assert places == sorted(places)
    assert text.startswith(template.render(SAID, add_generation_prompt=False))
    assert "TEXT" not in text
    assert "SYSTEM<" not in text


def test_named_templates_are_those_that_models_were_trained_on():
    def text(name):
        return ChatTemplate(NAMED[name], bos_token="<s>", eos_token="</s>").render(SAID)

    assert text("chatml").endswith("<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n")
    assert text("gemma").startswith("<s><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n")
    assert text("llama2") == (
        "<s>[INST] <<SYS>>\nBe kind.\n<</SYS>>\n\nHi [/INST] Yes? </s><s>[INST] Bye [/INST]"
    )
    assert text("mistral-v3-tekken") == "<s>[INST]Be kind.\n\nHi[/INST]Yes?</s>[INST]Bye[/INST]"


def test_a_template_in_the_place_of_the_models_own(tmp_path):
    defaults = DefaultModelOptions("tale", chat_template="command-r").defaults({})
    with client_of(tmp_path, default_model="tale", defaults=defaults) as client:
        turns = [f"<|{who}_TOKEN|>" for who in ("SYSTEM", "USER", "CHATBOT", "USER", "CHATBOT")]
        text = rendered(client)
        assert [part for part in turns if part in text] == turns
        assert client.get("/props").json()["chat_template"] == NAMED["command-r"]
        assert "CHATBOT" not in rendered(client, model="actor")
        body = {"messages": SAID, "max_tokens": 1, "verbose": True}
        found = client.post("/chat/completions", json=body).json()
        assert found["__verbose"]["prompt"].endswith(text)


@pytest.mark.parametrize(
    ("reasons", "end"), [("", "|"), ("auto", "|True"), ("on", "|True"), ("off", "|False")]
)
def test_whether_a_model_reasons_where_nobody_says(tmp_path, reasons, end):
    with client_of(
        tmp_path, default_model="tale", defaults=ModelDefaults(KNOWS, reasons)
    ) as client:
        assert rendered(client).endswith(end)
        other = rendered(client, chat_template_kwargs={"enable_thinking": "maybe"})
        assert other.endswith("|maybe")


@pytest.mark.parametrize("reasons", ["on", "off", "auto"])
@pytest.mark.parametrize(("effort", "end"), [("none", "|False"), ("low", "|True")])
def test_what_a_request_says_of_reasoning_counts_more(tmp_path, reasons, effort, end):
    with client_of(
        tmp_path, default_model="tale", defaults=ModelDefaults(KNOWS, reasons)
    ) as client:
        body = {"messages": SAID, "max_tokens": 1, "verbose": True, "reasoning_effort": effort}
        found = client.post("/v1/chat/completions", json=body).json()
        assert found["__verbose"]["prompt"].endswith(end)


def test_reasoning_that_a_template_always_begins_is_ended_where_there_is_to_be_none(tmp_path):
    assert find_closing_tag("a<think>\n", R1) == "</think>"
    assert find_closing_tag("a<think>\nhm", R1) == find_closing_tag("a<think>\n", "no tags") == ""
    with client_of(tmp_path, default_model="tale", defaults=ModelDefaults(R1, "off")) as client:
        assert rendered(client).endswith("<think>\n</think>")
        body = {"messages": SAID, "max_tokens": 2, "verbose": True}
        found = client.post("/chat/completions", json=body).json()
        assert found["__verbose"]["prompt"].endswith("</think>")
        message = found["choices"][0]["message"]
        assert message["content"]
        assert "reasoning_content" not in message
    with client_of(tmp_path, default_model="tale", defaults=ModelDefaults(R1)) as client:
        assert rendered(client).endswith("<think>\n")


def test_the_date_of_today_where_a_template_asks_for_one(tmp_path):
    source = (
        "{% if date_string is not defined %}{% set date_string = 'long ago' %}{% endif %}"
        "{{ date_string }} {{ datetime }}{% for m in messages %}{% endfor %}"
    )
    with client_of(tmp_path, default_model="tale", defaults=ModelDefaults(source)) as client:
        days = {datetime.now().strftime("%d %b %Y %b %d %Y")}
        text = rendered(client)
        days.add(datetime.now().strftime("%d %b %Y %b %d %Y"))
        assert text in days
        body = {"messages": SAID, "max_tokens": 1, "verbose": True}
        found = client.post("/chat/completions", json=body).json()["__verbose"]["prompt"]
        assert any(day in found for day in days)
        other = rendered(client, chat_template_kwargs={"date_string": "then", "datetime": "now"})
        assert other == "then now"


def test_functions_as_text_where_a_template_reads_them_so(tmp_path):
    source = "functools[ {{ functions }}{% for m in messages %}{% endfor %}"
    tool = {"type": "function", "function": {"name": "weather"}}
    with client_of(tmp_path, default_model="tale", defaults=ModelDefaults(source)) as client:
        assert rendered(client) == "functools[ []"
        assert json.loads(rendered(client, tools=[tool]).removeprefix("functools[ ")) == [tool]


def test_reasoning_may_stay_in_the_text(tmp_path):
    def message(client, **more):
        body = {"messages": [SAID[1]], "reasoning_effort": "low", "temperature": 0, **more}
        return client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]

    with client_of(tmp_path, default_model="actor") as client:
        apart = message(client)
        assert (apart["content"], apart["reasoning_content"].strip()) == ("Yes", "hm")
        raw = message(client, reasoning_format="none")
        assert raw == {"role": "assistant", "content": "<think>\nhm\n</think>\n\nYes"}
    defaults = DefaultModelOptions("actor", reasoning_format="none").defaults({})
    with client_of(tmp_path, default_model="actor", defaults=defaults) as client:
        assert message(client) == raw
        assert message(client, reasoning_format="auto") == apart


def test_prompts_stand_beside_answers_where_the_operator_wants_that(tmp_path):
    body = {"messages": SAID, "max_tokens": 1}
    shows = ApiOptions(verbose=True).settings("")["shows"]
    with client_of(tmp_path, default_model="tale", shows=shows) as client:
        assert "Bye" in client.post("/chat/completions", json=body).json()["__verbose"]["prompt"]
        silent = client.post("/chat/completions", json={**body, "verbose": False}).json()
        assert "__verbose" not in silent
    assert "verbose" not in ApiOptions().settings("")["shows"]


@pytest.mark.slow
def test_sampling_of_the_operators_stands_between_request_and_model(tmp_path):
    defaults = ModelDefaults(sampling={"temperature": 0, "seed": 7, "num_predict": 3})
    with client_of(tmp_path, default_model="tale", defaults=defaults) as client:
        made = client.post("/completion", json={"prompt": "a"}).json()
        settings = made["generation_settings"]
        assert (settings["temperature"], settings["seed"], settings["n_predict"]) == (0, 7, 3)
        asked = {"prompt": "a", "temperature": 0.5, "n_predict": 1}
        settings = client.post("/completion", json=asked).json()["generation_settings"]
        assert (settings["temperature"], settings["n_predict"]) == (0.5, 1)
        body = {"messages": SAID, "max_tokens": 12}
        chats = [client.post("/v1/chat/completions", json=body).json() for _ in range(2)]
        assert chats[0]["choices"] == chats[1]["choices"]
        assert client.get("/props").json()["default_generation_settings"]["params"]["seed"] == 7
        other = client.post("/completion", json={"model": "actor", "prompt": "<|plain|>"}).json()
        assert other["generation_settings"]["temperature"] == 0.8


def test_further_names_of_the_own_model(tmp_path):
    named = {"default_model": "tale", "aliases": ("mine", "code"), "tags": ("small",)}
    with client_of(tmp_path, any_name=True, **named) as client:
        [model] = client.get("/models").json()["data"]
        assert (model["id"], model["aliases"], model["tags"]) == (
            "code",
            ["code", "mine"],
            ["small"],
        )
        made = client.post("/v1/completions", json={"prompt": "a", "max_tokens": 1}).json()
        assert made["model"] == client.get("/props").json()["model_alias"] == "code"
    with client_of(tmp_path, **named) as client:
        found = {each["id"]: each for each in client.get("/v1/models").json()["data"]}
        assert found["tale:latest"]["aliases"] == ["code", "mine"]
        assert "aliases" not in found["actor:latest"]
        asks = {"model": "mine", "prompt": "a", "max_tokens": 1}
        assert client.post("/v1/completions", json=asks).status_code == 200


@pytest.mark.parametrize("any_name", [False, True])
def test_other_models_answer_when_the_own_one_was_removed(tmp_path, any_name):
    own = {
        "default_model": "tale",
        "aliases": ("mine",),
        "defaults": ModelDefaults(sampling={"seed": 7}),
    }
    with client_of(tmp_path, any_name=any_name, **own) as client:
        assert client.request("DELETE", "/api/delete", json={"model": "tale"}).status_code == 200
        made = client.post("/completion", json={"model": "actor", "prompt": "<|plain|>"})
        assert (made.status_code, made.json()["content"]) == (200, "Hello there now.")
        assert client.get("/props?model=actor").json()["model_alias"] == "actor:latest"
        listed = [each["id"] for each in client.get("/v1/models").json()["data"]]
        assert ("actor:latest" in listed) != any_name
        assert "mine" not in listed
        for model in ({}, {"model": "mine"}):
            assert client.post("/completion", json={"prompt": "a", **model}).status_code == 404


def test_what_is_not_shown(tmp_path):
    with client_of(tmp_path, shows=frozenset()) as client:
        for path, name in (("/slots", "slots"), ("/metrics", "metrics"), ("/page/page.js", "page")):
            found = client.get(path)
            assert (found.status_code, f"--no-{name}" in found.text) == (501, True)
        assert client.get("/", headers={"Accept": "text/html"}).text == "Ollama is running"


def test_a_model_that_is_loaded_at_once_stays(tmp_path):
    with client_of(tmp_path, default_model="tale", preload=True, keep_seconds=0.0) as client:
        [running] = client.get("/api/ps").json()["models"]
        assert running["name"] == "tale:latest"
        assert len(client.get("/slots").json()) == 2


@pytest.mark.parametrize(
    ("error", "status"),
    [(wb.ContextFull("num_ctx: 512, the model knows 1 to 64"), 400), (OSError(5, "cut off"), 500)],
)
def test_why_a_model_was_not_loaded_at_once_is_told(tmp_path, caplog, error, status):
    def fails(*_):
        raise error

    with client_of(tmp_path, default_model="tale", preload=True, opens=fails) as client:
        assert f"tale: not loaded: {error}" in caplog.text
        assert client.get("/health").status_code == 200
        assert client.post("/completion", json={"prompt": "a"}).status_code == status


def test_any_of_several_keys_will_do(tmp_path):
    (tmp_path / "keys").write_text("second\n\n third \n")
    keys = AddressOptions(api_key="first", api_key_file=tmp_path / "keys").keys
    assert keys == ("first", "second", "third")
    with client_of(tmp_path, api_keys=keys) as client:
        found = [
            client.get("/api/tags", headers={"X-Api-Key": key}).status_code
            for key in (*keys, "fourth", "")
        ]
        assert found == [200, 200, 200, 401, 401]


@pytest.mark.parametrize(
    ("allowed", "known", "unknown"),
    [
        ("chrome-extension://*", "chrome-extension://abc", "moz-extension://abc"),
        ("http://*.example.com", "http://a.example.com:80", "http://example.com"),
        ("http://*.example.com", "http://a.b.example.com", "https://a.example.com"),
        ("http://a*a.b", "http://a-a.b", "http://a.b"),
        ("*.example.com", "https://a.example.com", "null"),
        ("http://192.168.1.*", "http://192.168.1.7:3000", "http://192.168.1.evil.example"),
        ("HTTP://A.b:*", "http://a.b:5", "http://a.b.c:5"),
    ],
)
def test_a_star_in_an_origin(monkeypatch, allowed, known, unknown):
    monkeypatch.setenv("OLLAMA_ORIGINS", f'"{allowed}"')
    origins = AddressOptions().settings(allow_anyone=False)["origins"]
    assert (_is_allowed(known, origins), _is_allowed(unknown, origins)) == (True, False)


@pytest.mark.parametrize("wrong", ["http://*.a.*", "a.b", "http://a.b/", "http://a/*", "null"])
def test_origins_that_cannot_work_are_refused(monkeypatch, wrong):
    monkeypatch.setenv("OLLAMA_ORIGINS", wrong)
    with pytest.raises(UsageError, match=r"OLLAMA_ORIGINS: .*, needs"):
        AddressOptions().settings(allow_anyone=False)


def test_origins_as_they_are_given(tmp_path):
    assert AddressOptions(cors_origins="localhost").origins == ()
    assert AddressOptions(cors_origins="https://a.b:1, *").origins == ("https://a.b:1", "*")
    with client_of(tmp_path, origins=("https://a.b",)) as client:
        found = client.options("/api/chat", headers={"Origin": "https://a.b"})
        assert found.headers["access-control-allow-credentials"] == "true"
        stranger = client.options("/api/chat", headers={"Origin": "https://c.d"})
        assert not [name for name in stranger.headers if name.startswith("access-control")]
        assert client.get("/api/tags", headers={"Origin": "https://c.d"}).status_code == 403


def test_programs_may_call_and_pages_may_not(tmp_path):
    origins = AddressOptions().settings(allow_anyone=False)["origins"]
    with client_of(tmp_path, origins=origins) as client:
        for origin in (
            "app://obsidian.md", "file://", "tauri://a.b", "vscode-webview://1a2b", "vscode-file://x",
            "http://localhost:5",
        ):  # fmt: skip
            assert client.get("/api/tags", headers={"Origin": origin}).status_code == 200
        for origin in ("http://a.b", "https://app", "null", "xapp://a", "http://localhost.a.b"):
            assert client.get("/api/tags", headers={"Origin": origin}).status_code == 403


@pytest.mark.slow
def test_vectors_of_each_token_where_nothing_pools(tmp_path):
    with client_of(tmp_path, default_model="tale", pooling="none") as client:
        ids = client.post("/tokenize", json={"content": "a fox", "add_special": True}).json()
        [found] = client.post("/embedding", json={"content": "a fox"}).json()
        assert len(found["embedding"]) == len(ids["tokens"])
        squares = [sum(x * x for x in vector) for vector in found["embedding"]]
        assert all(abs(each - 1) > 1e-3 for each in squares)
        wrong = client.post("/v1/embeddings", json={"input": "a fox"})
        assert (wrong.status_code, "--pooling none" in wrong.text) == (400, True)
    with client_of(tmp_path, default_model="tale", pooling="last") as client:
        [[last]] = [
            each["embedding"]
            for each in client.post("/embedding", json={"content": "a fox"}).json()
        ]
        direct = found["embedding"][-1]
        length = sum(x * x for x in direct) ** 0.5
        assert last == pytest.approx([x / length for x in direct], abs=1e-5)
    states = np.array(found["embedding"])
    weights = np.arange(1, len(states) + 1)[:, None]
    wanted = {
        "max": states.max(0),
        "mean_sqrt_len": states.sum(0) / len(states) ** 0.5,
        "weightedmean": (weights * states).sum(0) / weights.sum(),
        "mean+cls": np.concatenate([states.mean(0), states[0]]),
    }
    for how, vector in wanted.items():
        pooling = DefaultModelOptions(own_model="tale", pooling=how).settings({})["pooling"]
        with client_of(tmp_path, default_model="tale", pooling=pooling) as client:
            [made] = client.post("/v1/embeddings", json={"input": "a fox"}).json()["data"]
        assert made["embedding"] == pytest.approx(vector / np.linalg.norm(vector), abs=1e-5)


@pytest.mark.parametrize("how", ["most", "", "cls+most", "none+cls", "MEAN"])
def test_a_pooling_that_nobody_knows_is_told_at_once(how):
    with pytest.raises(UsageError, match=r"--pooling: .* is unknown, needs one of mean, cls"):
        DefaultModelOptions(own_model="tale", pooling=how).settings({})
    assert DefaultModelOptions(own_model="tale", pooling="none").settings({})["pooling"] == "none"


def test_vectors_count_in_the_figures(tmp_path):
    def figure(client, name):
        text = client.get("/metrics").text
        return next(
            float(x.split()[1]) for x in text.splitlines() if x.startswith(f"llamacpp:{name} ")
        )

    with client_of(tmp_path, default_model="tale") as client:
        usage = client.post("/v1/embeddings", json={"input": ["a fox", "b"]}).json()["usage"]
        assert figure(client, "prompt_tokens_total") == usage["prompt_tokens"] > 0
        assert figure(client, "n_decode_total") == 2
        assert figure(client, "prompt_seconds_total") > 0
        assert figure(client, "tokens_predicted_total") == 0


def test_what_engines_are_told():
    assert EngineOptions().engine() == {}
    told = EngineOptions(batch_size=64, cache_ram=2, deterministic=True).engine()
    assert told == {"batch_tokens": 64, "host_cache": 2 << 20, "deterministic": True}
    with wb.load(device="cpu", num_ctx=64) as model:
        wb.Engine(model, **{**told, "deterministic": False}).close()


def test_a_prefix_stands_in_front_of_all_paths(tmp_path):
    prefix = AddressOptions(api_prefix="/llm/x/").prefix
    assert (prefix, "page" in ApiOptions().settings(prefix)["shows"]) == ("/llm/x", False)
    with client_of(tmp_path, prefix="/llm/x", api_keys=("key",)) as client:
        assert client.get("/llm/x").text == "Ollama is running"
        assert client.get("/llm/x/health").json() == {"status": "ok"}
        assert client.get("/llm/x/v1/models").status_code == 401
        found = client.get("/llm/x/v1/models", headers={"X-Api-Key": "key"})
        assert found.status_code == 200
        for path in ("/health", "/llm/xhealth", "/llm"):
            wrong = client.get(path)
            assert (wrong.status_code, "needs the prefix /llm/x" in wrong.text) == (404, True)
        stranger = client.get("/health", headers={"Origin": "https://c.d"})
        assert stranger.status_code == 403
        assert "access-control-allow-origin" not in stranger.headers
