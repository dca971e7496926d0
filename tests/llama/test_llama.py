"""The class `Llama`: llama-cpp-python's behaviour with the texts of this package's engine."""

import gc
import inspect
import os
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.errors import HFValidationError

from tests.builders import tiny_model
from wgpu_backend import load
from wgpu_backend.engine.loading import bundled
from wgpu_backend.errors import (
    BackendError,
    ContextFull,
    ModelError,
    OptionError,
    TemplateError,
)
from wgpu_backend.llama import (
    Llama,
    LlamaDiskCache,
    LlamaGrammar,
    LlamaRAMCache,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    SamplerChain,
    StateError,
    StoppingCriteriaList,
)
from wgpu_backend.llama.chat_formats import FORMATS, Format
from wgpu_backend.ops.sampling.host.steps import Choice
from wgpu_backend.text.chat_template import ChatTemplate

PROMPT = "the rain and the man"


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("llama") / "tiny.gguf")


@pytest.fixture(scope="module")
def shared(path):
    with Llama(str(path), n_ctx=128, device="cpu", logits_all=True, embedding=True) as llama:
        yield llama


@pytest.fixture
def llama(shared):
    shared.reset()
    shared.set_cache(None)
    shared.set_seed(5)
    return shared


def text(made):
    return made["choices"][0]["text"]


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"temperature": 1.5, "seed": 3}, {"temperature": 1.5, "seed": 3}),
        (
            {"temperature": 1.1, "seed": 9, "top_k": 0, "typical_p": 0.8},
            {"temperature": 1.1, "seed": 9, "top_k": 0, "typical_p": 0.8},
        ),
    ],
)
def test_texts_are_those_of_the_engine(path, llama, given, options):
    options = {"top_k": 40, "top_p": 0.95, "min_p": 0.05, **options}
    made = text(llama(PROMPT, max_tokens=24, **given))
    with load(path, device="cpu") as engine:
        assert made == engine.generate(PROMPT, raw=True, num_predict=24, options=options)


@pytest.fixture(scope="module")
def story():
    with Llama(str(bundled()), n_ctx=64, seed=1, device="cpu") as story:
        yield story


@pytest.mark.parametrize(
    ("prompt", "options", "want"),
    [
        (
            "Once upon a time there was a fox. The fox",
            {"repeat_penalty": 50.0, "top_k": 0},
            " named Budow. One day, a parcel came",
        ),
        (
            "Once upon a time there was a fox.",
            {"frequency_penalty": 2.0},
            " One day, a bottle came floating by.",
        ),
        (
            "Once upon a time there was a fox.",
            {"presence_penalty": 2.0},
            " One day, a bottle came floating by.",
        ),
    ],
    ids=["repeat", "frequency", "presence"],
)
def test_penalties_count_the_answer_alone(story, prompt, options, want):
    # Recorded with llama-cpp-python 0.3.36.
    assert text(story(prompt, max_tokens=12, temperature=0.0, **options)) == want


def test_penalties_ignore_the_context_and_sent_tokens(llama):
    tokens = llama.tokenize(PROMPT.encode())
    plain = [token for token, _ in zip(llama.generate(tokens, temp=0.0), range(1), strict=False)]
    llama.eval(plain)
    best = llama.sample(temp=0.0)
    assert llama.sample(temp=0.0, repeat_penalty=90.0) == best
    llama.reset()
    made = llama.generate(tokens, temp=0.0, repeat_penalty=90.0)
    next(made)
    after = made.send([best])
    llama.reset()
    llama.eval([*tokens, plain[0], best])
    logits = llama.scores[-1].copy()
    logits[plain[0]] *= 90 if logits[plain[0]] < 0 else 1 / 90
    assert after == int(logits.argmax())


def test_a_negative_penalty_last_n_turns_penalties_off():
    chain = SamplerChain().add_penalties(-1, 2.0)
    chain.accept_all([0])
    assert chain.apply(Choice(np.array([1, 2], "f4"))).logits.tolist() == [1.0, 2.0]


class Hub:
    """Replaces huggingface_hub's functions."""

    def __init__(self, monkeypatch, names, path):
        self.names, self.path, self.brought = names, path, []
        monkeypatch.setattr(huggingface_hub, "list_repo_files", self.listing)
        monkeypatch.setattr(huggingface_hub, "hf_hub_download", self.bring)

    def listing(self, repo_id):
        if repo_id != "me/tiny":
            raise HFValidationError(f"Repo id {repo_id!r} is none\nmore")
        return self.names

    def bring(self, *, repo_id, filename, local_dir, cache_dir):
        assert (repo_id, local_dir) == ("me/tiny", None)
        self.brought.append((filename, cache_dir))
        return str(self.path if filename.endswith("gguf") else "none")


def test_from_pretrained_downloads_files(path, monkeypatch):
    hub = Hub(monkeypatch, ["README.md", "a/tiny-Q4_0.gguf", "tiny-Q8_0.gguf", "x.json"], path)
    given = {"additional_files": ["*.json"], "cache_dir": "here", "device": "cpu", "n_ctx": 32}
    with Llama.from_pretrained("me/tiny", "*Q4_0.gguf", **given) as llama:
        assert llama.n_ctx() == 32
        assert llama.model_path == str(path)
    assert hub.brought == [("a/tiny-Q4_0.gguf", Path("here")), ("x.json", Path("here"))]


@pytest.mark.parametrize(
    "pattern", ["*Q8_0-00001-of-*.gguf", "b/*", "b/t-Q8_0-00001-of-00002.gguf"]
)
def test_from_pretrained_downloads_all_parts(path, monkeypatch, pattern):
    parts = [f"b/t-Q8_0-0000{n}-of-00002.gguf" for n in (2, 1)]
    hub = Hub(monkeypatch, ["a-Q8_0.gguf", *parts], path)
    Llama.from_pretrained("me/tiny", pattern, device="cpu", n_ctx=8).close()
    assert [name for name, _ in hub.brought] == parts[::-1]


@pytest.mark.parametrize(
    ("repo", "pattern", "kind", "message"),
    [
        ("me/tiny", "*Q2*", OptionError, r"'\*Q2\*' fits 0 of 3 files, needs one; there are a.gg"),
        ("me/tiny", "?.gguf", OptionError, r"fits 2 of 3 files, needs one; they are a.gguf, b.*f$"),
        ("me/tiny", "c*", ModelError, r"has no c-00002-of-00002.gguf$"),
        ("me", "*", ModelError, r"^me: Repo id 'me' is none$"),
    ],
)  # fmt: skip
def test_from_pretrained_reports_missing_files(path, monkeypatch, repo, pattern, kind, message):
    Hub(monkeypatch, ["a.gguf", "b.gguf", "c-00001-of-00002.gguf"], path)
    with pytest.raises(kind, match=message):
        Llama.from_pretrained(repo, pattern, device="cpu")


def test_a_stream_is_the_answer_in_parts(llama):
    whole = llama(PROMPT, max_tokens=20, seed=4, temperature=1.5)
    parts = list(llama(PROMPT, max_tokens=20, seed=4, temperature=1.5, stream=True))
    assert "".join(map(text, parts)) == text(whole)
    assert [part["choices"][0]["finish_reason"] for part in parts[:-1]] == [None] * (len(parts) - 1)
    assert parts[-1]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert len({part["id"] for part in parts}) == 1
    usage = whole["usage"]
    assert usage["prompt_tokens"] == len(llama.tokenize(PROMPT.encode()))
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_a_stop_text_ends_an_answer_and_is_left_out(llama):
    whole = text(llama(PROMPT, max_tokens=20, seed=4, temperature=1.5))
    stop = whole[5:8]
    made = llama(PROMPT, max_tokens=20, seed=4, temperature=1.5, stop=stop)
    assert text(made) == whole[: whole.index(stop)]
    assert made["choices"][0]["finish_reason"] == "stop"


def test_logprobs_describe_the_chosen_tokens(llama):
    made = llama(PROMPT, max_tokens=6, temperature=0.0, logprobs=2, echo=True)
    logprobs = made["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == text(made).replace("\ufffd", "")
    assert logprobs["token_logprobs"][0] is None
    chosen = logprobs["token_logprobs"][-6:]
    assert chosen == [max(top.values()) for top in logprobs["top_logprobs"][-6:]]
    starts = [
        text(made)[at:].startswith(t)
        for at, t in zip(logprobs["text_offset"][:-6], logprobs["tokens"], strict=False)
    ]
    assert all(starts)


def test_each_call_derives_a_new_seed(llama):
    llama.set_seed(5)
    first = [text(llama(PROMPT, temperature=2.0)) for _ in range(2)]
    llama.set_seed(5)
    assert [text(llama(PROMPT, temperature=2.0)) for _ in range(2)] == first
    assert first[0] != first[1]


def test_biases_and_processors_change_tokens(llama):
    wanted = llama.tokenize(b"a", add_bos=False)[0]
    assert text(llama(PROMPT, max_tokens=3, logit_bias={wanted: 1e4})) == "aaa"
    seen = []

    def note(ids, scores):
        seen.append(len(ids))
        return scores

    llama(PROMPT, max_tokens=3, logits_processor=LogitsProcessorList([note]))
    assert seen == [20, 21, 22] or np.diff(seen).tolist() == [1, 1]
    llama(PROMPT, max_tokens=3, logits_processor=[note, note], logit_bias={wanted: 1e4})
    assert seen[3:] == [seen[0]] * 2 + [seen[1]] * 2 + [seen[2]] * 2
    end = llama.token_eos()
    least = MinTokensLogitsProcessor(4, end)
    made = llama(PROMPT, max_tokens=9, logit_bias={end: 1e4}, logits_processor=least)
    assert made["usage"]["completion_tokens"] in (0, 4)


def test_a_criterion_ends_an_answer(llama):
    start = len(llama.tokenize(PROMPT.encode()))
    enough = StoppingCriteriaList([lambda ids, _: len(ids) >= start + 3])
    made = llama(PROMPT, max_tokens=20, temperature=0.0, stopping_criteria=enough)
    assert made["usage"]["completion_tokens"] == 3
    plain = [lambda ids, _: len(ids) >= start + 2]
    made = llama(PROMPT, max_tokens=20, temperature=0.0, stopping_criteria=plain)
    assert made["usage"]["completion_tokens"] == 2


def test_chats_match_the_engine(path, llama):
    messages = [{"role": "user", "content": "the man"}]
    made = llama.create_chat_completion(messages, max_tokens=12, temperature=0.0)
    with load(path, device="cpu") as engine:
        expected = engine.chat(messages, num_predict=12, options={"temperature": 0.0})
    answer = made["choices"][0]["message"]
    assert (answer["role"], answer["content"]) == (
        "assistant",
        getattr(expected, "content", expected),
    )
    parts = list(
        llama.create_chat_completion(messages, max_tokens=12, temperature=0.0, stream=True)
    )
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert deltas[0] == {"role": "assistant"}
    assert "".join(delta.get("content", "") for delta in deltas) == answer["content"]
    assert made["object"] == "chat.completion"
    assert parts[0]["object"] == "chat.completion.chunk"


def test_a_named_format_replaces_the_files_template(llama, monkeypatch):
    monkeypatch.setattr(llama, "chat_format", "chatml")
    messages = [{"role": "user", "content": "the man"}]
    made = llama.create_chat_completion(messages, max_tokens=2)
    wanted = "<|im_start|>user\nthe man<|im_end|>\n<|im_start|>assistant\n"
    assert made["usage"]["prompt_tokens"] == len(llama.tokenize(wanted.encode(), False, True))
    monkeypatch.setattr(llama, "chat_format", "mine")
    with pytest.raises(OptionError, match="'mine', needs one of chatml"):
        llama.create_chat_completion(messages)
    monkeypatch.setattr(llama, "chat_format", None)
    with pytest.raises(TemplateError):
        llama.create_chat_completion([{"content": "no role"}])


SAID = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"))]
ENDS = {
    "vicuna": "questions. USER: a ASSISTANT: b</s>USER: a ASSISTANT:",
    "alpaca": "### Response:\nb</s>\n\n### Instruction:\na\n\n### Response:\n",
    "zephyr": "<|user|>\na</s>\n<|assistant|>\nb</s>\n<|user|>\na</s>\n<|assistant|>\n",
    "phind": "programming assistant.\n\n### User Message\na\n\n### Assistant\nb\n\n"
    "### User Message\na\n\n### Assistant\n",
    "qwen": "system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
    "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n",
}


@pytest.mark.parametrize("name", FORMATS)
def test_formats_render_and_have_a_stop_text(name):
    found = FORMATS[name]
    template = ChatTemplate(found.template, bos_token="<s>", eos_token="</s>")
    text = template.render([*SAID, SAID[0]])
    assert found.stop
    assert text.endswith(ENDS.get(name, ""))
    system = {"role": "system", "content": "Be brief."}
    assert ("Be brief." in template.render([system, *SAID, SAID[0]])) == (
        name != "mistral-instruct"
    )


def test_a_chat_ends_with_the_stop_text_of_its_format(path, monkeypatch):
    given = []

    def note(self, prompt, **options):
        given.append(options["stop"])
        choice = {"text": "", "logprobs": None, "finish_reason": "stop"}
        return {"id": "", "created": 0, "model": "", "usage": {}, "choices": [choice]}

    monkeypatch.setattr(Llama, "create_completion", note)
    old = {"f16_kv": True, "mul_mat_q": True, "low_vram": False}
    with Llama(path, device="cpu", n_ctx=64, **old) as llama:
        assert (llama.chat_format, llama.n_batch) == ("chat_template.default", 64)
        llama.create_chat_completion(SAID[:1], stop="x")
        llama.chat_format = "llama-3"
        llama.create_chat_completion(SAID[:1], stop=["x", "y"])
        llama.create_chat_completion(SAID[:1])
    assert given == [["x", "<|end|>"], ["x", "y", "<|eot_id|>"], ["<|eot_id|>"]]


def test_functions_reach_the_template_as_tools(llama, monkeypatch):
    source = "{{ tools[0].function.name }} {{ functions[0].name }} {{ tool_choice }}"
    monkeypatch.setitem(FORMATS, "chatml", Format(source, ()))
    monkeypatch.setattr(llama, "chat_format", "chatml")
    asked = {"messages": SAID[:1], "functions": [{"name": "look"}], "max_tokens": 1}
    made = llama.create_chat_completion(**asked, function_call="auto", tool_choice="none")
    wanted = llama.tokenize(b"look look none", False)
    assert made["usage"]["prompt_tokens"] == len(wanted)
    with pytest.raises(OptionError, match="function_call: function calls"):
        llama.create_chat_completion(**asked, function_call={"name": "look"})


def test_an_incomplete_last_character_is_left_out(llama):
    [half] = [t for t in range(llama.n_vocab()) if llama.model.token_to_piece(t) == b"\xe2"]
    for stream in (False, True):
        made = llama(PROMPT, max_tokens=1, logit_bias={half: 1e4}, stream=stream)
        assert "".join(map(text, made if stream else [made])) == ""


@pytest.mark.parametrize("seed", [None, 0])
def test_an_open_seed_is_drawn(path, seed):
    with Llama(path, device="cpu", seed=seed) as llama:
        one, other = (text(llama(PROMPT, temperature=2.0, top_k=0, top_p=1.0)) for _ in range(2))
    assert one != other


def test_metadata_has_no_arrays(llama):
    assert llama.metadata["general.architecture"] == "llama"
    assert "tokenizer.ggml.tokens" not in llama.metadata
    llama(PROMPT, max_tokens=2)
    assert llama._input_ids.tolist() == llama.eval_tokens
    assert llama._scores.shape == (llama.n_tokens, llama.n_vocab())


def test_a_restored_state_continues(llama):
    llama.eval(llama.tokenize(PROMPT.encode()))
    state = llama.save_state()
    first = text(llama(PROMPT, max_tokens=8, temperature=0.0))
    llama("another text", max_tokens=3)
    llama.load_state(state)
    assert llama.n_tokens == state.n_tokens
    with pytest.raises(BackendError, match="no token was computed"):
        llama.sample()
    assert text(llama(PROMPT, max_tokens=8, temperature=0.0)) == first
    state.llama_state = state.llama_state[:-1]
    with pytest.raises(StateError):
        llama.load_state(state)


def test_a_cache_restores_states(llama):
    cache = LlamaRAMCache()
    llama.set_cache(cache)
    first = text(llama(PROMPT, max_tokens=4, temperature=0.0))
    llama("Something else", max_tokens=2)
    assert cache.cache_size > 0
    llama.model.tokenize(b"")
    before = llama.ctx.perf.n_p_eval
    assert text(llama(PROMPT, max_tokens=4, temperature=0.0)) == first
    assert llama.ctx.perf.n_p_eval == before  # one token alone was read


def test_a_disk_cache_outlives_its_process(llama, path, tmp_path):
    llama.set_cache(LlamaDiskCache(tmp_path / "states"))
    first = text(llama(PROMPT, max_tokens=4, temperature=0.0))
    [file] = (tmp_path / "states").iterdir()
    (tmp_path / "states" / "damaged.npz").write_bytes(b"PK")
    cache = LlamaDiskCache(str(tmp_path / "states"))
    tokens = llama.tokenize(PROMPT.encode())
    assert tokens in cache
    assert [llama.token_eos()] not in cache
    assert cache[tokens].input_ids.tolist() == llama.input_ids.tolist()
    with Llama(path, device="cpu", n_ctx=128) as other:
        other.set_cache(cache)
        assert text(other(PROMPT, max_tokens=4, temperature=0.0)) == first
        assert other.ctx.perf.n_p_eval <= 1
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(KeyError):
        LlamaDiskCache(tmp_path / "states")[tokens]


def test_a_disk_cache_keeps_the_most_recently_used(llama, tmp_path):
    llama.eval(llama.tokenize(PROMPT.encode()))
    state = llama.save_state()
    cache = LlamaDiskCache(tmp_path)
    cache[[1, 2]] = state
    one = cache.cache_size
    cache.capacity_bytes = int(2.5 * one)
    cache[[5, 6]] = state
    os.utime(cache._find([1, 2]), (1, 1))
    os.utime(cache._find([5, 6]), (2, 2))
    assert cache[[1, 2]].seed == state.seed
    cache[[8]] = state
    assert [[1, 2] in cache, [5, 6] in cache, [8] in cache] == [True, False, True]
    state.llama_state = b"of another model"
    llama.set_cache(cache)
    cache[llama.tokenize(PROMPT.encode())] = state
    llama.reset()
    assert text(llama(PROMPT, max_tokens=2))


def test_eval_and_sample_match_generate(llama):
    tokens = llama.tokenize(PROMPT.encode())
    made = [token for token, _ in zip(llama.generate(tokens, temp=0.0), range(5), strict=False)]
    llama.reset()
    llama.eval(tokens)
    again = []
    for _ in range(5):
        again.append(llama.sample(temp=0.0))
        llama.eval(again[-1:])
    assert made == again
    assert llama.eval_tokens == [*tokens, *again]
    assert len(llama.eval_logits) == llama.n_tokens
    assert llama.detokenize(again, prev_tokens=tokens) == llama.detokenize(again)


def test_embeddings_need_embedding_true_and_have_openais_shape(path, llama):
    one = llama.create_embedding(["the man", "a rain"])
    assert [each["index"] for each in one["data"]] == [0, 1]
    rows = one["data"][0]["embedding"]  # the file says no pooling: one a token
    with load(path, device="cpu") as engine:
        states = engine.states(engine.tokenizer.encode("the man"))
    np.testing.assert_allclose(rows, states, atol=2e-3)
    assert text(llama(PROMPT, max_tokens=2)) is not None
    with Llama(path, device="cpu", pooling_type=1, embedding=True) as pooled:
        vector = pooled.embed("the man", normalize=True)
        assert np.linalg.norm(vector) == pytest.approx(1.0)
        mean = np.mean(rows, axis=0)
        np.testing.assert_allclose(vector, mean / np.linalg.norm(mean), atol=2e-3)
    with Llama(path, device="cpu") as other, pytest.raises(RuntimeError, match="embedding=True"):
        other.embed("x")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"grammar": "root ::= x"}, "gbnf grammar: "),
        ({"grammar": 5}, "needs a LlamaGrammar"),
        ({"tfs_z": 0.5}, "tail-free"),
        ({"suffix": "x"}, "no fill-in-the-middle tokens"),
        ({"logit_bias": {10**6: 1.0}}, "vocabulary has"),
    ],
)
def test_unsupported_options_are_refused(llama, options, message):
    with pytest.raises(OptionError, match=message):
        llama(PROMPT, **options)


def test_arguments_that_change_answers_are_refused(path):
    for wrong in ({"rope_freq_base": 1e6}, {"draft_model": 1}, {"n_thread": 3}, {"type_k": 8}):
        with pytest.raises(OptionError):
            Llama(path, device="cpu", **wrong)


def test_texts_match_a_grammar(llama, tmp_path):
    (tmp_path / "a.gbnf").write_text('root ::= "fox" | "owl"')
    given = (
        LlamaGrammar.from_string('root ::= "fox" | "owl"'),
        LlamaGrammar.from_file(str(tmp_path / "a.gbnf")),
    )
    for grammar in given:
        made = llama(PROMPT, grammar=grammar, seed=1, temperature=1.5, repeat_penalty=1.2)
        assert made["choices"][0]["text"] in ("fox", "owl")
        assert made["choices"][0]["finish_reason"] == "stop"
    schema = LlamaGrammar.from_json_schema('{"enum": [1, 22, "three"]}')
    assert text(llama(PROMPT, grammar=schema, temperature=0.0)) in ("1", "22", '"three"')
    with pytest.raises(OptionError, match=r"no\.gbnf"):
        LlamaGrammar.from_file(str(tmp_path / "no.gbnf"))


def test_answers_match_the_response_format(llama):
    messages = [{"role": "user", "content": "x"}]
    asked = {"messages": messages, "seed": 2, "max_tokens": 100}
    form = {"type": "json_object", "schema": {"enum": ["yes", "no"]}}
    made = llama.create_chat_completion(**asked, response_format=form)
    assert made["choices"][0]["message"]["content"] in ('"yes"', '"no"')
    made = llama.create_chat_completion(
        **{**asked, "max_tokens": 4}, response_format={"type": "json_object"}
    )
    assert made["choices"][0]["message"]["content"].startswith("{")
    with pytest.raises(OptionError, match="needs text, json_object"):
        llama.create_chat_completion(**asked, response_format={"type": "yaml"})
    with pytest.raises(OptionError, match="tool_choice: function calls"):
        llama.create_chat_completion(**asked, tool_choice="required")


def test_prompts_that_do_not_fit_are_refused(llama):
    with pytest.raises(ContextFull, match=r"\(128\) exceed context window of 128"):
        llama([1] * 128)
    made = llama([1] * 126, max_tokens=None, temperature=0.0)
    assert made["usage"]["completion_tokens"] <= 2
    llama.reset()
    with pytest.raises(ContextFull, match="the context holds 128"):
        llama.eval([1] * 129)


def test_an_unused_llama_closes_itself(path):
    llama = Llama(path, device="cpu", n_gpu_layers=-1, n_threads=4, use_mmap=False, verbose=False)
    model = llama.model
    del llama
    gc.collect()
    with pytest.raises(BackendError, match="was closed"):
        model.require_open()


def test_closing_twice_is_harmless(path):
    llama = Llama(path, device="cpu")
    llama.close()
    llama.close()
    with pytest.raises(BackendError, match="was closed"):
        llama("x")
    assert "prompt" in inspect.signature(Llama.__call__).parameters
