"""Tokens that are guessed: the same answers, in fewer passes."""

import pytest

import wgpu_backend
from tests.builders import Dims, tiny_model
from tests.models.outlines import outlines, written
from tests.models.recurrent_cases import recurrent
from tests.patience import PATIENCE
from wgpu_backend import Engine, Request
from wgpu_backend.engine.batching.drafts import Index
from wgpu_backend.errors import OptionError
from wgpu_backend.text.grammar import Grammar

WAYS = {
    "greedy": {"temperature": 0.0},
    "seeded": {"temperature": 1.0, "seed": 7},
    "penalised": {"temperature": 0.7, "seed": 3, "repeat_penalty": 1.3, "repeat_last_n": 9},
    "on the host": {"temperature": 1.0, "seed": 5, "typical_p": 0.9},
}


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A model of the same tokens that thinks otherwise."""
    path = tmp_path_factory.mktemp("draft") / "stranger.gguf"
    tiny_model(path, seed=9, dims=Dims(layers=1))
    with wgpu_backend.load(path, device="cpu", num_parallel=4) as model:
        yield model


@pytest.fixture(scope="module")
def twin(path):
    with wgpu_backend.load(path, device="cpu", num_parallel=4) as model:
        yield model


@pytest.fixture(params=["ngram", "stranger", "twin", "itself"])
def draft(request, model):
    if request.param in ("ngram", "itself"):
        return "ngram" if request.param == "ngram" else model
    return request.getfixturevalue(request.param)


def requests_of(**fields):
    fields = {"max_tokens": 24, "ignore_eos": True, **fields}
    prompts = [[n, 40, 41, 42, 43, n, 40, 41] for n in range(len(WAYS))]
    return [Request.of(p, options=o, **fields) for p, o in zip(prompts, WAYS.values(), strict=True)]


def answered(model, requests, **arguments):
    """Choices of requests that are made together, without their times, and what the engine did."""
    with Engine(model, prefix_cache=False, **arguments) as engine:
        made = [engine.submit(each) for each in requests]
        found = [each.result(PATIENCE) for each in made]
        status = engine.status()
    return [(c.text, c.tokens, c.finish.reason) for r in found for c in r.choices], found, status


@pytest.mark.parametrize("most", [1, 3, 7])
def test_answers_are_those_without(model, draft, most):
    many = requests_of()
    want, _, _ = answered(model, many)
    got, _, status = answered(model, many, draft=draft, draft_tokens=most)
    assert got == want
    assert status.guessed_tokens >= status.right_guesses > 0 or draft != model


def test_a_draft_that_thinks_alike_is_right_every_time(model, twin):
    greedy, seeded, penalised, _ = requests_of()
    _, _, plain = answered(model, [greedy, seeded, penalised])
    _, _, status = answered(model, [greedy, seeded, penalised], draft=twin)
    assert status.right_guesses == status.guessed_tokens > 0
    assert status.steps < plain.steps / 2


@pytest.mark.slow
def test_grammars_go_on_beside_guesses(model, stranger):
    rule = Grammar.regex("(the|an|on)( (the|in|on|a)){3,6}")
    many = [*requests_of(), *requests_of(grammar=rule)]
    want, _, _ = answered(model, many, num_parallel=8)
    got, _, status = answered(model, many, num_parallel=8, draft=stranger)
    assert got == want
    assert status.guessed_tokens > 0


def test_what_was_there_before_is_guessed(model):
    loop = Request.of([5, 6, 7] * 6, options=WAYS["greedy"], max_tokens=60, ignore_eos=True)
    want, _, plain = answered(model, [loop])
    got, _, status = answered(model, [loop], draft="ngram")
    assert got == want
    assert status.right_guesses > 0
    assert status.steps <= plain.steps - status.right_guesses + 1


def test_an_index_finds_the_longest_end():
    tokens = [1, 2, 3, 4, 9, 2, 3, 4, 8, 1, 2, 3, 4]
    index = Index(tokens)
    assert index.following(2) == [9, 2]  # behind 1 2 3 4, though 2 3 4 stood again later
    tokens += [9]
    assert index.following(3) == [2, 3, 4]
    tokens += [77, 78]
    assert index.following(3) == []


@pytest.mark.slow
def test_log_probabilities_stop_texts_and_choices_are_those_without(model, draft):
    stop = answered(model, requests_of(stop=[]))[0][1][0][9:11]
    many = requests_of(logprobs=2, n=2, stop=[stop])
    want, plain, _ = answered(model, many)
    got, found, _ = answered(model, many, draft=draft)
    assert got == want
    assert "stop" in {reason for _, _, reason in got}
    for mine, theirs in zip(found, plain, strict=True):
        for a, b in zip(mine.choices, theirs.choices, strict=True):
            assert [x.token for x in a.logprobs] == [x.token for x in b.logprobs]
            assert [x.logprob for x in a.logprobs] == pytest.approx(
                [x.logprob for x in b.logprobs], abs=1e-4
            )


@pytest.mark.slow
@pytest.mark.parametrize("when_full", ["stop", "shift"])
def test_a_context_that_fills_up(path, when_full):
    with wgpu_backend.load(path, device="cpu", num_ctx=32, num_parallel=2) as model:
        many = requests_of(max_tokens=60, when_full=when_full)[:3]
        want, _, _ = answered(model, many)
        for draft in ("ngram", model):
            assert answered(model, many, draft=draft)[0] == want


@pytest.mark.slow
def test_windows_are_cut_back(tmp_path, stranger):
    path = written(tmp_path / "model.gguf", outlines()["gemma3"])
    with wgpu_backend.load(path, device="cpu", num_ctx=128, num_parallel=4) as model:
        many = requests_of(max_tokens=60)
        want, _, _ = answered(model, many)
        got, _, status = answered(model, many, draft=stranger, draft_tokens=7)
        assert got == want
        assert status.guessed_tokens > status.right_guesses


@pytest.mark.slow
def test_room_that_is_short(path, stranger):
    with wgpu_backend.load(path, device="cpu", num_ctx=128) as model:
        many = [Request.of([n] * 40, options={"seed": n}, max_tokens=40) for n in range(3)]
        want, _, _ = answered(model, many, num_parallel=4)
        for draft in ("ngram", stranger):
            assert answered(model, many, num_parallel=4, draft=draft)[0] == want


def test_prefixes_are_of_tokens_that_were_right(model, stranger):
    [first, *_] = requests_of(max_tokens=50)
    with Engine(model, draft=stranger) as engine:
        made = engine.submit(first).result(PATIENCE).choices[0].tokens
        follow = Request.of([*first.tokens, *made, 9], options=WAYS["greedy"], max_tokens=8)
        again = engine.submit(follow).result(PATIENCE)
    assert again.usage.cached_tokens >= 32
    assert again.choices[0].tokens == answered(model, [follow])[1][0].choices[0].tokens


def test_cancelling_and_a_draft_that_was_closed(path, model, caplog):
    with wgpu_backend.load(path, device="cpu") as draft, Engine(model, draft=draft) as engine:
        endless = engine.submit(Request.of([5, 6, 7], ignore_eos=True, when_full="shift"))
        next(iter(endless))
        endless.cancel()
        assert endless.result(PATIENCE).finish.reason == "cancelled"
        guessed = engine.status().guessed_tokens
        draft.close()
        [asked, *_] = requests_of(max_tokens=5)
        for _ in range(2):
            made = engine.submit(asked).result(PATIENCE)
            assert len(made.choices[0].tokens) == 5
        assert engine.status().guessed_tokens == guessed
    assert "the model was closed; load it again; answers go on without guesses" in caplog.text


def test_what_cannot_be_a_draft_is_refused(tmp_path, model):
    with pytest.raises(OptionError, match=r"draft: 'small' \(str\), needs 'ngram', a model"):
        Engine(model, draft="small")
    for most in (0, 8):
        with pytest.raises(OptionError, match=rf"draft_tokens: {most}, needs 1 to 7"):
            Engine(model, draft="ngram", draft_tokens=most)
    path = recurrent()["mamba"].write(tmp_path / "mamba.gguf")
    with wgpu_backend.load(path, device="cpu") as mamba:
        for target, draft in ((mamba, "ngram"), (model, mamba)):
            with pytest.raises(OptionError, match=r"mamba.gguf has recurrent layers"):
                Engine(target, draft=draft)
    with (
        wgpu_backend.load(device="cpu") as story,
        pytest.raises(OptionError, match=r"draft: .* tokens that end with"),
    ):
        Engine(model, draft=story)


@pytest.mark.slow
@pytest.mark.gpu
def test_deterministic_answers_hang_on_no_draft(path, full):
    with wgpu_backend.load(path, device=full.info, num_parallel=4) as model:
        many = requests_of()[:3]
        how = {"deterministic": True, "batch_tokens": 32}
        alone = [answered(model, [each], **how, draft="ngram")[0][0] for each in many]
        assert answered(model, many, **how, draft="ngram")[0] == alone
        assert answered(model, many, **how, draft=model)[0] == alone
