"""llama-server's own routes, with a model that requests need not name."""

import json
import math

import pytest

pytest.importorskip("starlette", reason="the extra [serve] is not installed")

import wgpu_backend as wb
from tests.builders import read_tokenizer
from tests.models.adapters import a_lora
from tests.models.outlines import a_reranker
from tests.server.serving import client_of, named_events
from wgpu_backend.engine.loading import bundled
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create
from wgpu_backend.server.api.llama_server.infill import Gap
from wgpu_backend.text.tokenizer import Tokenizer

ASKED = {"prompt": "Once", "n_predict": 6, "temperature": 0}


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    with client_of(tmp_path_factory.mktemp("store"), default_model="tale") as client:
        yield client


@pytest.fixture(scope="module")
def tokenizer():
    return read_tokenizer(bundled())


def asked(client, path="/completion", **more):
    response = client.post(path, json={**ASKED, **more} if path == "/completion" else more)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(client, **more):
    response = client.post("/completion", json={**ASKED, **more, "stream": True})
    assert response.status_code == 200, response.text
    return [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line]


def test_a_completion_whole_and_streamed(client, tokenizer):
    whole = asked(client, return_tokens=True)
    with wb.load(device="cpu") as model:
        text = model.generate("Once", raw=True, options={"temperature": 0}, num_predict=6)
    assert whole["content"] == tokenizer.decode(whole["tokens"]) == text
    assert (whole["stop"], whole["stop_type"], whole["truncated"]) == (True, "limit", False)
    assert whole["timings"]["predicted_n"] == whole["tokens_predicted"] == 6
    assert whole["tokens_evaluated"] == len(tokenizer.encode("Once"))
    assert whole["generation_settings"]["temperature"] == 0
    *pieces, last = streamed(client)
    assert "".join(piece["content"] for piece in pieces) == text
    assert [t for piece in pieces for t in piece["tokens"]] == whole["tokens"]
    assert (last["stop"], last["tokens_predicted"]) == (True, 6)
    assert asked(client)["tokens"] == []


def test_prompts_of_all_kinds(client, tokenizer):
    text = asked(client)["content"]
    ids = tokenizer.encode("Once")
    assert asked(client, prompt=ids)["content"] == text
    assert asked(client, prompt={"prompt_string": "Once"})["content"] == text
    assert asked(client, prompt=[*ids[:-1], "Once"])["tokens_evaluated"] == len(ids)
    several = asked(client, prompt=["Once", ids, {"prompt_string": "Once"}])
    assert [each["content"] for each in several] == [text] * 3
    assert [each["index"] for each in asked(client, n_cmpl=2)] == [0, 1]


def test_how_a_completion_ends(client):
    word = asked(client)["content"].split()[2]
    cut = asked(client, stop=[word])
    assert (cut["stop_type"], cut["stopping_word"], word in cut["content"]) == ("word", word, False)
    body = {"model": "actor", "prompt": "<|plain|>", "temperature": 0}
    end = client.post("/completion", json=body).json()
    assert (end["content"], end["stop_type"]) == ("Hello there now.", "eos")
    on = client.post("/completion", json={**body, "ignore_eos": True, "n_predict": 5}).json()
    assert (on["stop_type"], on["tokens_predicted"]) == ("limit", 5)


def test_probabilities_biases_and_fields(client):
    found = asked(client, n_probs=2)["completion_probabilities"]
    assert len(found) == 6
    assert found[0]["top_logprobs"][0]["id"] == found[0]["id"]
    first = found[0]["id"]
    for bias in ([[first, False]], {str(first): -100}):
        other = asked(client, n_probs=1, logit_bias=bias)["completion_probabilities"]
        assert other[0]["id"] != first
    paths = ["content", "generation_settings/seed", "nothing"]
    assert list(asked(client, response_fields=paths)) == paths[:2]


def test_probabilities_behind_all_options(client):
    def found(**more):
        made = asked(client, n_probs=20, post_sampling_probs=True, seed=3, **more)
        return made["completion_probabilities"]

    for each in found(temperature=0.7, top_k=5, min_p=0):
        chances = {top["id"]: top["prob"] for top in each["top_probs"]}
        assert len(chances) <= 5
        assert sum(chances.values()) == pytest.approx(1)
        assert chances[each["id"]] == each["prob"] > 0
        assert [*chances.values()] == sorted(chances.values(), reverse=True)
    assert [each["prob"] for each in found(temperature=0)] == [1] * 6
    raw = asked(client, n_probs=20, n_predict=1)["completion_probabilities"][0]["top_logprobs"]
    [hot] = found(temperature=2.0, top_k=3, min_p=0, top_p=1, n_predict=1)
    weights = [math.exp(top["logprob"] / 2) for top in raw[:3]]
    expected = [weight / sum(weights) for weight in weights]
    assert [top["prob"] for top in hot["top_probs"]] == pytest.approx(expected, rel=1e-4)
    banned = raw[0]["id"]
    [other] = found(temperature=1.0, top_k=0, logit_bias=[[banned, False]], n_predict=1)
    assert banned not in [top["id"] for top in other["top_probs"]]


def test_samplers_that_are_left_out_do_not_apply(client):
    def settings(**more):
        return asked(client, n_predict=1, **more)["generation_settings"]

    penalised = {"repeat_penalty": 1.3, "presence_penalty": 0.5, "temperature": 0.5}
    found = settings(samplers=["dry", "top_k", "xtc"], top_k=7, min_keep=1, **penalised)
    neutral = {"top_p": 1, "min_p": 0, "typical_p": 1, "temperature": 1, "repeat_penalty": 1}
    assert {name: found[name] for name in neutral} == neutral
    assert (found["top_k"], found["presence_penalty"]) == (7, 0)
    assert found["samplers"] == ["dry", "top_k", "xtc"]
    assert settings(samplers="et", **penalised)["repeat_penalty"] == 1.3
    assert settings(samplers="et", **penalised)["top_k"] == 0
    usual = settings()
    assert usual["samplers"][:3] == ["penalties", "dry", "top_n_sigma"]
    assert usual["dry_sequence_breakers"] == ["\n", ":", '"', "*"]


# What llama-server of October 2026 gives of the story model: how many tokens are left, and the
# likeliest with its probability, where the token of id 260 has 0.713 and that of 400 has 0.119.
CAT = "Once upon a time there was a little cat. The cat sat on the mat. The cat sat"
LEFT = [
    ({"top_n_sigma": 1.0}, 2, 260, 0.8568),
    ({"dynatemp_range": 0.5}, 400, 260, 0.9061),
    ({"dynatemp_range": 0.9, "dynatemp_exponent": 2, "temperature": 1.2, "top_k": 30}, 30, 260,
     0.9684),
    ({"dynatemp_range": 0.7, "temperature": 0, "top_k": 10}, 10, 260, 0.9982),
    ({"xtc_probability": 1.0, "xtc_threshold": 0.05}, 400, 400, 0.4161),
    ({"xtc_probability": 1.0, "xtc_threshold": 0.02, "top_k": 5}, 1, 224, 1.0),
    ({"xtc_probability": 1.0, "xtc_threshold": 0.02, "top_k": 6, "min_keep": 5}, 6, 260, 0.781),
    ({"mirostat": 1, "mirostat_tau": 2.0}, 3, 260, 0.8301),
    ({"mirostat": 1, "mirostat_tau": 1.0, "temperature": 1.5}, 1, 260, 1.0),
    ({"mirostat": 2, "mirostat_tau": 2.0}, 2, 260, 0.8568),
    ({"mirostat": 2, "mirostat_tau": 1.2, "repeat_penalty": 1.8}, 1, 260, 1.0),
    ({"samplers": ["top_p", "temperature"], "top_p": 0.7, "temperature": 2.0}, 1, 260, 1.0),
    ({"samplers": "tk", "top_k": 9, "temperature": 0.7}, 9, 260, 0.9035),
    ({"samplers": ["top_k", "penalties"], "top_k": 8, "repeat_penalty": 1.9,
      "presence_penalty": 0.5}, 8, 400, 0.5454),
    ({"top_p": 0.1, "min_keep": 4}, 4, 260, 0.8081),
]  # fmt: skip


@pytest.mark.parametrize(("more", "count", "first", "chance"), LEFT)
def test_samplers_leave_what_llama_server_leaves(client, more, count, first, chance):
    plain = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "n_predict": 1, "seed": 3}
    given = {"prompt": CAT, "n_probs": 400, "post_sampling_probs": True, **plain, **more}
    [found] = asked(client, **given)["completion_probabilities"]
    tops = found["top_probs"]
    assert (len(tops), tops[0]["id"]) == (count, first)
    assert tops[0]["prob"] == pytest.approx(chance, abs=0.01)
    assert found["id"] in [each["id"] for each in tops]


TOM = "Tom was happy and Tom was happy and Tom was"
# Of the same: by how much " happy" is lower than without DRY.
LOWERED = [
    ({"dry_multiplier": 0.8}, 4.288),
    ({"dry_multiplier": 0.5, "dry_base": 1.2, "dry_allowed_length": 1}, 1.037),
    ({"dry_multiplier": 2.0, "dry_sequence_breakers": ["Tom"]}, 0),
    ({"dry_multiplier": 2.0, "dry_sequence_breakers": [" happy and"]}, 2.0),
    ({"dry_multiplier": 0.8, "dry_sequence_breakers": ["y and"]}, 0.8),
    ({"dry_multiplier": 1.0, "dry_penalty_last_n": 6}, 1.0),
    ({"dry_multiplier": 0.3, "dry_base": 0.5}, 1.608),  # a base below 1 is taken for the default
    ({"dry_multiplier": 0.8, "dry_allowed_length": 7}, 0),
]


@pytest.mark.parametrize(("more", "lowered"), LOWERED)
def test_dry_lowers_what_llama_server_lowers(client, tokenizer, more, lowered):
    plain = {"temperature": 1.0, "top_k": 40, "top_p": 1.0, "min_p": 0.0, "n_predict": 1, "seed": 3}
    given = {"prompt": TOM, "n_probs": 40, "post_sampling_probs": True, **plain}

    def gap(**options):
        [found] = asked(client, **given, **options)["completion_probabilities"]
        chances = {each["id"]: each["prob"] for each in found["top_probs"]}
        return math.log(chances[1008] / chances[happy])

    [happy] = tokenizer.encode(" happy", add_special=False)
    assert gap(**more) - gap() == pytest.approx(lowered, abs=2e-3)


def test_values_out_of_range_come_to_the_nearest(client):
    wide = {"top_k": -1, "temperature": -1, "top_p": 1.5, "min_p": -0.1}
    found = asked(client, n_predict=1, **wide)["generation_settings"]
    assert {name: found[name] for name in wide} == {**wide, **dict.fromkeys(wide, 0), "top_p": 1}
    off = {"top_n_sigma": -1, "adaptive_target": -1, "adaptive_decay": 0.9, "t_max_predict_ms": -1}
    others = {"stream_options": {}, "reasoning_format": "none", "t_max_prompt_ms": 5}
    assert asked(client, max_completion_tokens=9, **off, **others)["tokens_predicted"] == 6
    limit = {"prompt": "Once", "max_completion_tokens": 3, "logprobs": 40}
    found = client.post("/completion", json=limit).json()
    assert found["tokens_predicted"] == 3
    assert [len(e["top_logprobs"]) for e in found["completion_probabilities"]] == [40] * 3


def test_an_empty_prompt_is_the_token_that_begins_a_text(client, tokenizer):
    found = asked(client, prompt="")
    assert (found["tokens_evaluated"], found["tokens_predicted"]) == (1, 6)
    assert asked(client, prompt=[tokenizer.bos_id])["content"] == found["content"]
    [[vector]] = [each["embedding"] for each in asked(client, "/embedding", content="")]
    assert len(vector) > 1


def test_tokens_of_a_stop_text_are_not_given(client, tokenizer):
    whole = asked(client, n_predict=8, return_tokens=True)
    stop = tokenizer.decode(whole["tokens"][4:6])
    more = {"n_predict": 8, "stop": [stop], "n_probs": 1}
    cut = asked(client, return_tokens=True, **more)
    assert cut["stop_type"] == "word"
    assert 0 < len(cut["tokens"]) <= 4
    assert whole["tokens"][: len(cut["tokens"])] == cut["tokens"]
    assert [each["id"] for each in cut["completion_probabilities"]] == cut["tokens"]
    *pieces, last = streamed(client, **more)
    assert [token for piece in pieces for token in piece["tokens"]] == cut["tokens"]
    told = [each["id"] for piece in pieces for each in piece["completion_probabilities"]]
    assert told == cut["tokens"]
    assert "completion_probabilities" not in last


def test_several_prompts_are_streamed_side_by_side(client):
    wanted = asked(client, prompt=["Once", "A fox"], n_cmpl=2)
    found = streamed(client, prompt=["Once", "A fox"], n_cmpl=2)
    texts = [
        "".join(each["content"] for each in found if each["index"] == index) for index in range(4)
    ]
    assert texts == [each["content"] for each in wanted]
    assert sorted(each["index"] for each in found if each["stop"]) == [0, 1, 2, 3]


def test_times_stand_beside_each_piece_of_a_stream(client):
    *pieces, last = streamed(client, timings_per_token=True)
    assert [each["timings"]["predicted_n"] for each in pieces] == list(range(1, 7))
    times = [each["timings"]["predicted_ms"] for each in pieces]
    assert times[0] == 0 < times[-1] <= last["timings"]["predicted_ms"] * 1.5 + 50
    assert all(each["timings"]["prompt_n"] == last["timings"]["prompt_n"] for each in pieces)
    assert not any("prompt_progress" in each for each in pieces)
    assert not any("timings" in each for each in streamed(client)[:-1])
    said = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "stream": True}
    text = client.post("/chat/completions", json={**said, "timings_per_token": True}).text
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert "timings" not in events[0]
    assert [e["timings"]["predicted_n"] for e in events if "timings" in e][:3] == [1, 2, 3]


def test_responses_tell_of_their_pace(client):
    body = {"input": "a fox " * 20, "max_output_tokens": 4, "stream": True}
    body |= {"return_progress": True, "timings_per_token": True}
    found = named_events(client.post("/responses", json=body))
    told = [each for each in found if "prompt_progress" in each]
    assert {each["type"] for each in told} == {"response.in_progress"}
    assert told[-1]["prompt_progress"]["processed"] == told[-1]["prompt_progress"]["total"]
    deltas = [each for each in found if each["type"] == "response.output_text.delta"]
    assert all("timings" in each for each in deltas)
    assert found[-1]["timings"]["predicted_n"] == 4


def test_tokens_as_llama_cpp_pythons_server_gives_them(client, tokenizer):
    text = "A fox and <|user|>"
    ids = asked(client, "/extras/tokenize", input=text)["tokens"]
    assert ids == tokenizer.encode(text, parse_special=True)
    assert asked(client, "/extras/tokenize/count", input=text) == {"count": len(ids)}
    assert asked(client, "/extras/detokenize", tokens=ids) == {"text": tokenizer.decode(ids)}
    assert asked(client, "/extras/tokenize/count", input="")["count"] == len(tokenizer.encode(""))
    wrong = client.post("/extras/tokenize", json={})
    assert (wrong.status_code, wrong.json()["error"]["message"]) == (400, "input is required")


def test_figures_have_llama_servers_names(client):
    made = asked(client, n_predict=4)
    text = client.get("/metrics").text
    rows = dict(line.split() for line in text.splitlines() if line.startswith("llamacpp:"))
    assert float(rows["llamacpp:n_tokens_max"]) >= made["tokens_evaluated"] + 4
    assert 0 < float(rows["llamacpp:n_busy_slots_per_decode"]) <= 4
    assert float(rows["llamacpp:spec_decode_num_drafts_total"]) == 0
    assert all(f"# HELP {name} " in text for name in rows)


def test_tokens_there_and_back(client, tokenizer):
    text = "A fox 🦊 and <|user|>"
    ids = asked(client, "/tokenize", content=text)["tokens"]
    assert ids == tokenizer.encode(text, add_special=False, parse_special=True)
    assert asked(client, "/detokenize", tokens=ids) == {"content": text, "prompt": text}
    whole = asked(client, "/tokenize", content="a", add_special=True, parse_special=False)["tokens"]
    assert whole == tokenizer.encode("a")
    mixed = asked(client, "/tokenize", content=[5, text, 7], add_special=True)["tokens"]
    assert mixed == [5, *ids, 7]
    pieces = asked(client, "/tokenize", content=text, with_pieces=True)["tokens"]
    assert [piece["id"] for piece in pieces] == ids
    known = [
        bytes(p["piece"]) if isinstance(p["piece"], list) else p["piece"].encode() for p in pieces
    ]
    assert "🦊".encode() in b"".join(known)


def test_a_remote_tokenizer_as_vllm_has_it(client, tokenizer):
    """What lm-evaluation-harness asks with tokenizer_backend=remote."""
    info = client.get("/tokenizer_info").json()
    spelled = tokenizer.token_text(tokenizer.eos_id)
    assert info["eos_token"] == spelled
    assert "<|user|>" in info["chat_template"]
    found = asked(client, "/tokenize", prompt=spelled, add_special_tokens=False)
    assert (found["tokens"], found["count"]) == ([tokenizer.eos_id], 1)
    assert found["max_model_len"] > 0
    ids = asked(client, "/tokenize", prompt="a fox")["tokens"]
    assert ids == tokenizer.encode("a fox", add_special=True)
    assert asked(client, "/detokenize", tokens=ids)["prompt"].endswith("a fox")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"with_pieces": True},
        {"chat_template_kwargs": {"enable_thinking": True}},
        {"tools": True},
    ],
    ids=str,
)
def test_tokens_of_a_conversation(client, more):
    """As vLLM and llama-server have them; agents count a prompt before they send it."""
    said = [{"role": "system", "content": "Be kind"}, {"role": "user", "content": "Hi <|after|>"}]
    parameters = {"type": "object", "properties": {"city": {"type": "string"}}}
    tool = {"type": "function", "function": {"name": "weather", "parameters": parameters}}
    body = {"model": "actor", "messages": said, **more}
    body |= {"tools": [tool]} if "tools" in more else {}
    found = asked(client, "/tokenize", **body)
    body.pop("with_pieces", None)
    used = asked(client, "/v1/chat/completions", **body, max_tokens=1)["usage"]
    assert found["count"] == len(found["tokens"]) == used["prompt_tokens"]
    assert found["max_model_len"] > 0
    text = asked(client, "/apply-template", **body)["prompt"]
    pieces = [each["piece"] if isinstance(each, dict) else each for each in found["tokens"]]
    if "with_pieces" in more:
        assert "".join(pieces) == text
    else:
        assert asked(client, "/detokenize", model="actor", tokens=pieces)["content"] == text


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"content": "a"}, "content or prompt is there as well, needs one of them"),
        ({"prompt": "a"}, "content or prompt is there as well, needs one of them"),
        ({"add_generation_prompt": False}, "add_generation_prompt: false, needs true"),
        ({"messages": []}, "messages: needs at least one"),
    ],
)
def test_tokens_of_a_conversation_are_of_one_whole_prompt(client, more, message):
    said = [{"role": "user", "content": "Hi"}]
    found = client.post("/tokenize", json={"model": "actor", "messages": said, **more})
    assert found.status_code == 400
    assert message in found.text


def test_templates_and_vectors(client):
    said = [{"role": "user", "content": "Hi"}]
    prompt = asked(client, "/apply-template", messages=said)["prompt"]
    assert "<|user|>Hi<|end|>" in prompt
    short = asked(client, "/apply-template", messages=said, add_generation_prompt=False)["prompt"]
    assert prompt.startswith(short)
    assert prompt != short
    begun = [*said, {"role": "assistant", "content": "Once upon"}]
    whole = {"messages": begun, "temperature": 0.5, "stream": True, "max_tokens": 1}
    found = asked(client, "/apply-template", **whole, continue_final_message=True)["prompt"]
    assert found == prompt + "Once upon"
    made = asked(client, "/chat/completions", **{**whole, "stream": False}, verbose=True)
    assert made["__verbose"]["prompt"] == found
    found = asked(client, "/apply-template", messages=begun, add_generation_prompt=False)["prompt"]
    assert found.endswith("Once upon<|end|>")
    body = {"model": "tale", "input": ["a fox", "a bear"]}
    data = client.post("/v1/embeddings", json=body).json()["data"]
    for path in ("/embedding", "/embeddings"):
        found = asked(client, path, content=["a fox", "a bear"])
        assert [each["embedding"][0] for each in found] == [each["embedding"] for each in data]


def test_what_the_server_is(client):
    props = client.get("/props").json()
    assert (props["total_slots"], props["model_path"][:7]) == (2, "sha256-")
    assert "<|user|>" in props["chat_template"]
    assert (props["bos_token"], props["eos_token"]) == ("<|begin|>", "<|end|>")
    assert client.get("/v1/health").json() == client.get("/health").json() == {"status": "ok"}
    assert client.get("/lora-adapters").json() == []
    assert (asked(client, n_predict=1)["id_slot"], asked(client, id_slot=3)["id_slot"]) == (-1, 3)
    assert client.get("/props?model=actor").json()["model_alias"] == "actor:latest"
    slots = client.get("/slots").json()
    assert [slot["is_processing"] for slot in slots] == [False] * len(slots)
    assert {slot["model"] for slot in slots} == {"actor:latest", "tale:latest"}
    assert client.get("/models").json() == client.get("/v1/models").json()
    assert "\nllamacpp:tokens_predicted_total " in client.get("/metrics").text


def test_infill(client, tmp_path):
    body = {
        "model": "actor",
        "input_prefix": "a",
        "input_suffix": "b",
        "input_extra": [{"text": "c"}],
    }
    found = client.post("/infill", json={**body, "n_predict": 2, "temperature": 0}).json()
    wanted = "\n\n--- snippet ---\n\nc<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    assert found["prompt"].endswith(wanted)
    assert found["content"] == "in between"
    found = client.post("/infill", json={**body, "prompt": "de", "n_predict": 2}).json()
    assert found["prompt"].endswith("<|fim_prefix|>ade<|fim_suffix|>b<|fim_middle|>")
    long = {"input_prefix": "a " * 5000, "input_suffix": "b " * 5000, "n_predict": 2}
    assert client.post("/infill", json={**body, **long}).json()["content"] == "in between"


class Fim(Tokenizer):
    """Tokens for infilling in a vocabulary that has none."""

    add_bos = False

    @property
    def special_ids(self):
        return {"fim_pre": 5, "fim_suf": 6, "fim_mid": 7, "fim_rep": 8, "fim_sep": 9}


def test_files_stand_around_a_gap_as_models_are_trained():
    tokenizer = read_tokenizer(bundled(), Fim)

    def text(ids):
        return "".join(f"<{i}>" if i in range(5, 10) else tokenizer.decode([i]) for i in ids)

    gap = Gap("a", "b", "c", [("x.py", "d"), ("y.py", "e")])
    found = gap.tokens(tokenizer, 256, 10)
    files = "<8>myproject\n<9>x.py\nd<9>y.py\ne<9>filename\n"
    assert text(found) == files + "<5>ac<6>b<7>"
    words = [" ".join(f"{name}{i}" for i in range(900)) for name in "ab"]
    found = Gap(*words, "c", [("x.py", words[0])]).tokens(tokenizer, 256, 56)
    before, behind, middle = (found.index(token) for token in (5, 6, 7))
    assert (behind - before - 2, middle - behind - 1) == (150, 50 - 4)
    assert text(found[before:behind]).endswith("99c")
    assert text(found[behind + 1 : middle]).startswith("b0")
    assert len(found) <= 200


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/completion", {}, "prompt is required"),
        ("/completion", {"prompt": []}, "prompt"),
        ("/completion", {"prompt": [1, -1]}, "tokens: '-1', needs a number below 2048"),
        ("/completion", {"prompt": [True]}, "tokens: 'True'"),
        ("/completion", {"prompt": "a", "mirostat": 3}, "mirostat: 3, needs 0 to 2"),
        ("/completion", {"prompt": "a", "dry_sequence_breakers": [5]}, "dry_sequence_breakers: 5"),
        ("/completion", {"prompt": "a", "dry_penalty_last_n": -2}, "dry_penalty_last_n: -2, needs"),
        ("/completion", {"prompt": "a", "logit_bias": [5]}, "logit_bias: needs pairs"),
        ("/completion", {"prompt": "a", "logit_bias": [[1, "x"]]}, "logit_bias: 'x'"),
        ("/completion", {"prompt": "a", "adaptive_target": 0}, "adaptive_target: 0 is not"),
        ("/completion", {"prompt": "a", "samplers": ["top_x"]}, "samplers: 'top_x', needs one of"),
        ("/completion", {"prompt": "a", "samplers": ["top_k", []]}, "samplers: [], needs names"),
        ("/completion", {"prompt": "a", "samplers": ["top_k", "top_k"]}, "top_k is named twice"),
        ("/tokenize", {"content": [1, "Hi", 2048]}, "tokens: '2048'"),
        ("/infill", {"input_prefix": "a"}, "its vocabulary has no fim_pre"),
        ("/infill", {"model": "actor", "input_extra": [{}]}, "input_extra[0].text is required"),
        ("/detokenize", {"tokens": ["a"]}, "tokens: 'a'"),
        ("/detokenize", {"tokens": [1] * (2 << 20)}, "tokens: 2097152, needs at most 1048576"),
        ("/apply-template", {"messages": [{"role": 1}]}, "role"),
        ("/embedding", {}, "content is required"),
        ("/reranking", {"query": "a", "documents": ["b"]}, "does not support rerank"),
    ],
)
def test_what_is_wrong_is_told(client, path, body, message):
    found = client.post(path, json=body)
    error = found.json()["error"]
    assert (found.status_code, error["code"], error["type"]) == (400, 400, "invalid_request_error")
    assert message in error["message"]


def test_a_prompt_that_does_not_fit_is_told_in_numbers(client):
    said = [{"role": "user", "content": "a fox " * 400}]
    for stream in (False, True):
        body = {"messages": said, "stream": stream}
        found = client.post("/chat/completions", json=body)
        error = found.json()["error"]
        assert (found.status_code, error["type"]) == (400, "exceed_context_size_error")
        assert error["n_prompt_tokens"] > error["n_ctx"] == 256
        # What LiteLLM and LangChain look for, whose errors may have no code of the body.
        assert "exceeds the available context size" in error["message"]
        told = client.post("/v1/chat/completions", json={"model": "tale", **body}).json()["error"]
        assert told["code"] == "context_length_exceeded"
        assert told["message"].startswith("Input tokens exceed the configured limit of 256 tokens")
    found = client.post("/completion", json={"prompt": "a " * 999})
    error = found.json()["error"]
    assert (found.status_code, error["type"]) == (400, "exceed_context_size_error")
    assert "the context holds" in error["message"]
    assert "serve --num-ctx or OLLAMA_CONTEXT_LENGTH" in error["message"]
    assert "submit" not in error["message"]


def test_a_prompt_too_long_to_be_tokenized_is_told_in_numbers_too(client):
    text = "a" * (1 << 21)
    error = client.post("/completion", json={"prompt": text}).json()["error"]
    assert error["type"] == "exceed_context_size_error"
    assert error["n_prompt_tokens"] > error["n_ctx"] == 256
    body = {"model": "tale", "prompt": text}
    error = client.post("/v1/completions", json=body).json()["error"]
    assert error["code"] == "context_length_exceeded"


def test_chats_take_the_fields_of_completions(client):
    said = {"messages": [{"role": "user", "content": "Hi"}], "temperature": 0}
    grammar = {"grammar": 'root ::= "a"{5}', "n_predict": 5, "verbose": True}
    found = asked(client, "/chat/completions", **said, **grammar)
    assert found["choices"][0]["message"]["content"] == "a" * 5
    assert "Hi" in found["__verbose"]["prompt"]
    assert found["timings"]["predicted_n"] == found["usage"]["completion_tokens"]
    const = asked(client, "/chat/completions", **said, json_schema={"const": 42})
    assert const["choices"][0]["message"]["content"] == "42"
    count = asked(client, "/chat/completions/input_tokens", messages=said["messages"])
    assert count["input_tokens"] == found["usage"]["prompt_tokens"]
    both = {**said, "json_schema": {}, "response_format": {"type": "json_object"}}
    assert client.post("/chat/completions", json=both).status_code == 400


def test_an_answer_that_is_begun_goes_on(client):
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Once upon"}]
    body = {"messages": said, "max_tokens": 4, "temperature": 0, "verbose": True}
    found = asked(client, "/chat/completions", **body, continue_final_message=True)
    assert found["__verbose"]["prompt"].endswith("Once upon")
    prompt = found["__verbose"]["prompt"]
    same = asked(client, prompt=prompt.removeprefix("<|begin|>"), n_predict=4)
    assert found["choices"][0]["message"]["content"] == same["content"]
    both = {**body, "continue_final_message": True, "add_generation_prompt": True}
    assert client.post("/chat/completions", json=both).status_code == 400
    twice = client.post("/chat/completions", json={**body, "messages": [*said, said[-1]]})
    assert (twice.status_code, "last two are from the assistant" in twice.text) == (400, True)


def test_one_model_answers_under_any_name(tmp_path):
    asks = {"model": "gpt-9", "prompt": "a", "max_tokens": 2}
    with client_of(tmp_path, default_model="tale", any_name=True) as client:
        found = client.post("/v1/completions", json=asks).json()
        assert (found["model"], found["usage"]["completion_tokens"]) == ("gpt-9", 2)
        assert client.get("/v1/models/gpt-9").status_code == 404
    with client_of(tmp_path, default_model="tale") as client:
        assert client.post("/v1/completions", json=asks).status_code == 404


def test_inputs_of_vectors_may_be_mixed(client, tokenizer):
    one = asked(client, "/v1/embeddings", input="a fox")["data"][0]["embedding"]
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "fox"}]
    same = [{"prompt_string": "a fox"}, {"content": parts}, "a fox"]
    for each in asked(client, "/v1/embeddings", input=same)["data"]:
        assert each["embedding"] == one
    [[vector]] = [each["embedding"] for each in asked(client, "/embedding", content=same[1])]
    assert vector == one
    picture = {"content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}
    assert client.post("/v1/embeddings", json={"input": picture}).status_code == 400


@pytest.mark.parametrize(
    ("path", "field", "why"),
    [
        ("/completion", "prompt", "does not support images: it reads text alone"),
        ("/embedding", "content", "multimodal_data needs one picture"),
        ("/v1/embeddings", "input", "multimodal_data needs one picture"),
    ],
)
def test_pictures_in_prompts_are_refused(client, path, field, why):
    given = {"prompt_string": "a <__media__>", "multimodal_data": ["iVBORw0KGgo="]}
    found = client.post(path, json={field: [given, "a fox"]})
    assert found.status_code == 400
    assert why in found.json()["error"]["message"]


def test_ignored_ends_are_told_as_biases(client):
    found = asked(client, ignore_eos=True)["generation_settings"]["logit_bias"]
    assert found
    assert all(each["bias"] is None for each in found)
    assert asked(client)["generation_settings"]["logit_bias"] == []


def test_a_stream_tells_how_far_the_prompt_was_read(client):
    prompt = "a fox and a bear " * 12
    told = streamed(client, prompt=prompt, return_progress=True, n_predict=2)
    found = [each["prompt_progress"] for each in told if "prompt_progress" in each]
    assert found[0]["processed"] == found[0]["cache"]
    assert found[-1]["processed"] == found[-1]["total"] == told[-1]["tokens_evaluated"]
    assert len(found) > 1
    times = [each["timings"]["prompt_ms"] for each in told if "prompt_progress" in each]
    assert times[0] == 0
    assert times == sorted(times)
    said = [{"role": "user", "content": "another text " * 12}]
    body = {"messages": said, "stream": True, "return_progress": True, "max_tokens": 2}
    text = client.post("/chat/completions", json=body).text
    assert text.count('"prompt_progress"') > 1
    assert (
        "prompt_progress"
        not in client.post("/chat/completions", json={**body, "return_progress": False}).text
    )


def test_a_reranker_answers_as_tei_does_too(tmp_path):
    path = a_reranker(tmp_path / "judge.gguf")
    create(Store(tmp_path), ModelName.parse("judge"), Modelfile(str(path)), tmp_path)
    with client_of(tmp_path, default_model="judge", opens=small) as client:
        found = asked(client, "/rerank", query="a", documents=["b", "c", "a b"])
        assert found["usage"]["total_tokens"] == found["usage"]["prompt_tokens"] > 3
        scores = {each["index"]: each["relevance_score"] for each in found["results"]}
        told = asked(client, "/rerank", query="a", texts=["b", "c", "a b"], return_text=True)
        assert {each["index"]: each["score"] for each in told} == scores
        assert all(each["text"] == ["b", "c", "a b"][each["index"]] for each in told)
        assert client.post("/rerank", json={"query": "a", "texts": []}).status_code == 400


def small(stored, _):
    return wb.load(stored.path, device="cpu", num_ctx=64, num_parallel=1)


def test_a_time_limit_ends_an_answer_that_has_a_line_break(client, tokenizer):
    line = {str(tokenizer.encode("\n", add_special=False)[-1]): 100}
    how = {"n_predict": 6, "t_max_predict_ms": 1e-6, "ignore_eos": True}
    found = asked(client, logit_bias=line, **how)
    assert (found["tokens_predicted"] < 6, found["stop_type"]) == (True, "limit")
    assert asked(client, grammar='root ::= "a"{20}', **how)["tokens_predicted"] > 1


ADAPTED = ("/completion", "/v1/completions", "/v1/chat/completions")


@pytest.fixture(scope="module")
def adapted(tmp_path_factory):
    """A client of a server with a model that has two adapters."""
    folder = tmp_path_factory.mktemp("adapted")
    files = [
        str(a_lora(folder / f"{n}.gguf", bundled(), only=("blk.0.attn_q",), seed=n)) for n in (1, 2)
    ]

    def opens(stored, _):
        given = [(path, 1.0) for path in stored.adapters]
        return wb.load(stored.path, device="cpu", num_ctx=64, num_parallel=2, adapters=given)

    root = folder / "store"
    root.mkdir()
    made = Modelfile(str(bundled()), {}, adapters=files, system="")
    create(Store(root), ModelName.parse("adapted"), made, folder)
    with client_of(root, opens=opens, default_model="tale") as client:
        yield client


def likely(client, path, model="adapted", **more):
    """The log probability of the most likely token."""
    ask = {"prompt": "Once"}
    if path == ADAPTED[2]:
        ask = {"messages": [{"role": "user", "content": "Hi"}]}
    limit = {"n_predict" if path == "/completion" else "max_tokens": 1}
    top = {"logprobs": True, "top_logprobs": 3} if path == ADAPTED[2] else {"logprobs": 3}
    body = {"model": model, "temperature": 0, **ask, **limit, **top, **more}
    found = client.post(path, json=body)
    assert found.status_code == 200, found.text
    if path == "/completion":
        return found.json()["completion_probabilities"][0]["logprob"]
    [choice] = found.json()["choices"]
    if path == ADAPTED[1]:
        return choice["logprobs"]["token_logprobs"][0]
    return choice["logprobs"]["content"][0]["logprob"]


def test_adapters_are_scaled_by_a_request(adapted):
    told = adapted.get("/lora-adapters?model=adapted").json()
    assert [(each["id"], each["scale"]) for each in told] == [(0, 1.0), (1, 1.0)]
    assert adapted.get("/lora-adapters").json() == []
    for path in ADAPTED:
        none = likely(adapted, path, "tale")
        half = likely(adapted, path, lora=[{"id": 1, "scale": 0.5}])
        assert likely(adapted, path, lora=[{"id": 0}]) == pytest.approx(none, abs=1e-4)
        assert abs(half - none) > 1e-3
    both = [{"id": 0, "scale": 1}, {"id": 1, "scale": 1.0}]
    assert likely(adapted, path, lora=both) == pytest.approx(likely(adapted, path), abs=1e-4)
    for wrong, said in [
        ([{"id": 2, "scale": 1}], "lora: id 2, the model has 2 adapters"),
        ([{"scale": 1}], "lora[0].id is required"),
        ([{"id": 0, "scale": "1"}], "lora[0].scale"),
        ([5], "lora[0]: needs an object"),
    ]:
        body = {"model": "adapted", "prompt": "Once", "lora": wrong}
        answer = adapted.post("/completion", json=body)
        assert answer.status_code == 400
        assert said in answer.json()["error"]["message"]


SCALING = "/lora-adapters?model=adapted"


def test_scales_of_adapters_are_set(adapted):
    before, vectors = likely(adapted, ADAPTED[0]), vectors_of(adapted, "adapted")
    for given, scales in [
        ([{"id": 1, "scale": 0.5}], [0.0, 0.5]),
        ([], [0.0, 0.0]),
        ([{"id": 0, "scale": 1}, {"id": 1, "scale": 1}], [1.0, 1.0]),
    ]:
        alone = likely(adapted, ADAPTED[0], lora=given)
        assert adapted.post(SCALING, json=given).json() == {"success": True}
        assert [each["scale"] for each in adapted.get(SCALING).json()] == scales
        for path in ADAPTED:
            asked_for = likely(adapted, path, lora=given)
            assert likely(adapted, path) == pytest.approx(asked_for, abs=1e-4)
        assert likely(adapted, ADAPTED[0]) == pytest.approx(alone, abs=1e-4)
        same = vectors_of(adapted, "adapted") == pytest.approx(vectors, abs=1e-6)
        assert same == (scales == [1.0, 1.0])
    assert likely(adapted, ADAPTED[0]) == pytest.approx(before, abs=1e-4)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"id": 0, "scale": 1}, "body: needs a list of JSON objects"),
        ([5], "body[0]: needs an object"),
        ([{"scale": 1}], "[0].id is required"),
        ([{"id": 0, "scale": "1"}], "[0].scale"),
        ([{"id": 2, "scale": 1}], "lora: id 2, the model has 2 adapters"),
        ([{"id": 0, "scale": 1e9}], "lora: scale 1000000000.0 of id 0, needs -1000 to 1000"),
    ],
)
def test_scales_that_cannot_be_set(adapted, given, said):
    answer = adapted.post(SCALING, json=given)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


def vectors_of(client, model):
    return client.post("/api/embed", json={"model": model, "input": "a fox"}).json()["embeddings"][
        0
    ]
