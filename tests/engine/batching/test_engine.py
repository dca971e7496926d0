"""Requests that share an engine: each gets what it would get alone, and what it asked for."""

import asyncio
import gc
import threading

import numpy as np
import pytest

import wgpu_backend
from tests.builders import tiny_model
from tests.models.outlines import outlines, written
from tests.patience import PATIENCE, until
from wgpu_backend import Engine, Grammar, Request
from wgpu_backend.engine.batching.completion import Completion
from wgpu_backend.engine.batching.generation import Mailbox
from wgpu_backend.errors import (
    BackendError,
    ContextFull,
    GrammarError,
    ModelError,
    OptionError,
    QueueFull,
)

PROMPTS = ("in the", "on and on", "the", "a", "and then the", "an inn")
HOT = {"temperature": 1.5, "seed": 7}
PENALISED = {"temperature": 1.2, "seed": 3, "repeat_penalty": 1.3, "top_k": 100}
ON_HOST = {"temperature": 1.1, "seed": 5, "typical_p": 0.9}


def texts(generations):
    return [generation.result(PATIENCE).text for generation in generations]


@pytest.mark.parametrize("options", [HOT, PENALISED, ON_HOST, {"temperature": 0}])
def test_requests_side_by_side_get_what_the_model_gives_each(model, engine, options):
    alone = [model.generate(p, raw=True, options=options, num_predict=20) for p in PROMPTS]
    made = [engine.complete(p, options=options, max_tokens=20) for p in PROMPTS]
    assert texts(made) == alone


def test_requests_of_all_kinds_share_a_batch(model, engine):
    kinds = [HOT, PENALISED, ON_HOST, {"temperature": 0}, {**HOT, "top_k": 0}]
    alone = [model.generate("the", raw=True, options=o, num_predict=20) for o in kinds]
    made = [engine.complete("the", options=o, max_tokens=20, logprobs=1) for o in kinds]
    assert texts(made) == alone


@pytest.mark.slow
def test_the_device_makes_the_same_of_a_batch(path, full):
    # A rasteriser has a kernel for all numbers of columns, a GPU promises only as much as this.
    steady = full.info.kind != "software"
    with (
        wgpu_backend.load(path, device=full.info, num_parallel=4) as model,
        Engine(model, deterministic=steady) as one,
    ):
        kinds = [HOT, PENALISED, ON_HOST, {"temperature": 0}]
        if steady:
            alone = [texts([one.complete("on and", options=o, max_tokens=12)])[0] for o in kinds]
        else:
            alone = [model.generate("on and", raw=True, options=o, num_predict=12) for o in kinds]
        made = [one.complete("on and", options=o, max_tokens=12) for o in kinds]
        assert texts(made) == alone


def test_a_long_prompt_is_read_in_parts_beside_others(model):
    long = list(range(100))
    alone = model.tokens(long, HOT, 10)
    with Engine(model, batch_tokens=8) as engine:
        first = engine.submit(Request(long, HOT, max_tokens=10))
        second = engine.complete("in the", options=HOT, max_tokens=5)
        assert first.result(PATIENCE).choices[0].tokens == tuple(alone)
        # Its prompt took 13 steps and more; the short one was through before.
        assert second.result(PATIENCE).usage.prompt_seconds < first.result().usage.prompt_seconds


def test_a_prompt_that_was_there_is_not_computed_again(engine):
    prompt = list(range(100))
    first = engine.submit(Request(prompt, HOT, max_tokens=5)).result(PATIENCE)
    again = engine.submit(Request(prompt, HOT, max_tokens=5)).result(PATIENCE)
    assert (first.usage.cached_tokens, again.usage.cached_tokens) == (0, 99)
    assert again.text == first.text
    status = engine.status()
    assert (status.prompt_tokens, status.cached_tokens) == (200, 99)
    engine.clear_cache()
    assert engine.status().kept_tokens == 0
    assert engine.submit(Request(prompt, max_tokens=1)).result(PATIENCE).usage.cached_tokens == 0


def test_choices_share_their_prompt_and_have_seeds_of_their_own(model, engine):
    prompt = list(range(70))
    made = engine.submit(Request(prompt, HOT, max_tokens=8, n=3)).result(PATIENCE)
    for choice, seed in zip(made.choices, (7, 8, 9), strict=True):
        alone = model.tokens(prompt, {**HOT, "seed": seed}, 8)
        assert choice.tokens == tuple(alone)
    assert [c.finish.usage.cached_tokens for c in made.choices] == [0, 64, 64]
    assert (made.usage.prompt_tokens, made.usage.completion_tokens) == (70, 24)


def test_more_choices_than_slots_follow_one_another(model):
    with Engine(model, num_parallel=2) as engine:
        made = engine.complete("the", options=HOT, max_tokens=4, n=5).result(PATIENCE)
    assert len({choice.text for choice in made.choices}) > 1
    assert all(choice.finish.reason == "length" for choice in made.choices)


def test_a_stop_text_ends_an_answer_over_the_borders_of_tokens(model, engine):
    whole = model.generate("in the", raw=True, options=HOT, num_predict=30)
    stop = whole[9:13]
    made = engine.complete("in the", options=HOT, max_tokens=30, stop=[stop, "\0"])
    events = list(made)
    assert "".join(event.text for event in events) == whole[: whole.index(stop)]
    assert (events[-1].finish.reason, events[-1].finish.stop) == ("stop", stop)
    assert [event.finish for event in events[:-1]] == [None] * (len(events) - 1)
    assert made.result().choices[0].finish.usage.completion_tokens < 30


def test_an_end_token_ends_an_answer_unless_it_is_to_be_ignored(model, engine):
    eos = model.tokenizer.eos_id
    certain = {"logit_bias": {eos: 100}, "options": HOT, "logprobs": 0}
    made = engine.complete("the", **certain).result(PATIENCE)
    assert (made.text, made.choices[0].tokens, made.choices[0].logprobs) == ("", (), ())
    assert (made.finish.reason, made.finish.stop) == ("stop", None)
    on = engine.complete("the", ignore_eos=True, max_tokens=3, **certain).result(PATIENCE)
    assert on.choices[0].tokens == (eos,) * 3
    assert on.finish.reason == "length"


def test_no_token_ends_an_answer_that_is_too_short(model, engine):
    eos = model.tokenizer.eos_id
    certain = {"logit_bias": {eos: 100}, "options": HOT}
    made = engine.complete("the", min_tokens=3, **certain).result(PATIENCE)
    assert (len(made.choices[0].tokens), made.finish.reason) == (3, "stop")
    assert eos not in made.choices[0].tokens
    free = engine.complete("the", options=HOT, max_tokens=20).result(PATIENCE).choices[0].tokens
    ended = engine.complete("the", options=HOT, max_tokens=20, stop_tokens=free[5:6])
    found = ended.result(PATIENCE)
    assert found.choices[0].tokens == free[: free.index(free[5])]
    assert (found.finish.reason, found.finish.stop) == ("stop", None)
    how = {"stop_tokens": free[5:6], "min_tokens": 12, "ignore_eos": True, "max_tokens": 30}
    longer = engine.complete("the", options=HOT, **how).result(PATIENCE).choices[0].tokens
    assert len(longer) >= 12
    assert free[5] not in longer


@pytest.mark.parametrize("given", [5, "a", [1.5], ["a"], list(range(1025))])
def test_stop_tokens_that_are_none(given):
    with pytest.raises(OptionError, match="stop_tokens: "):
        Request([1], stop_tokens=given)


def test_no_tokens_at_all_may_be_asked_for(engine):
    made = engine.complete("the", max_tokens=0).result(PATIENCE)
    assert (made.choices[0].tokens, made.finish.reason) == ((), "length")
    assert made.usage.prompt_tokens > 0


def test_a_bias_rules_tokens_out_and_makes_others_certain(engine):
    free = engine.complete("the", options={"temperature": 0}, max_tokens=1).result(PATIENCE)
    token = free.choices[0].tokens[0]
    out = engine.complete(
        "the", options={"temperature": 0}, max_tokens=1, logit_bias={token: float("-inf")}
    )
    assert out.result(PATIENCE).choices[0].tokens != (token,)
    certain = engine.complete("the", options=HOT, max_tokens=3, logit_bias={65: 100}).result(
        PATIENCE
    )
    assert certain.choices[0].tokens == (65,) * 3


@pytest.mark.parametrize("batch_tokens", [256, 8])
def test_prompts_have_log_probabilities_of_the_models_logits(model, rng, batch_tokens):
    prompts = [rng.integers(4, 90, n).tolist() for n in (1, 2, 40, 41)]
    prompts.append(prompts[-1])  # nothing of it is reused
    judged = {"max_tokens": 2, "logprobs": 2, "prompt_logprobs": True, "ignore_eos": True}
    with Engine(model, batch_tokens=batch_tokens) as engine:
        made = [engine.submit(Request(tokens, HOT, **judged)) for tokens in prompts]
        beside = engine.submit(Request(prompts[2], HOT, max_tokens=5))
        found = [generation.result(PATIENCE).choices[0] for generation in made]
        assert beside.result(PATIENCE).choices[0].tokens == tuple(model.tokens(prompts[2], HOT, 5))
    for tokens, choice in zip(prompts, found, strict=True):
        rows = model.logits([*tokens, *choice.tokens])[:-1].astype("f8")
        expected = rows - np.log(np.exp(rows).sum(-1, keepdims=True))
        told = [*choice.prompt_logprobs, *choice.logprobs]
        assert [each.token for each in told] == [*tokens[1:], *choice.tokens]
        assert [each.logprob for each in told] == pytest.approx(
            [row[each.token] for row, each in zip(expected, told, strict=True)], abs=1e-3
        )
        assert [each.top[0].token for each in told] == [*expected.argmax(-1)]


def test_a_prompt_is_judged_once_for_all_choices_and_with_its_end(model):
    eos = model.tokenizer.eos_id
    how = {"options": HOT, "logprobs": 0, "prompt_logprobs": True, "n": 2}
    with Engine(model, prefix_cache=False) as engine:
        made = engine.submit(Request([5] * 20, max_tokens=3, logit_bias={eos: 100}, **how))
        first, second = made.result(PATIENCE).choices
        assert (len(first.prompt_logprobs), len(second.prompt_logprobs)) == (19, 0)
        assert [each.token for each in first.logprobs] == [eos]
        assert first.tokens == ()
        read = engine.submit(Request([5] * 20, max_tokens=0, **how)).result(PATIENCE)
        assert (read.choices[0].logprobs, read.finish.reason) == ((), "length")
        assert read.choices[0].prompt_logprobs == first.prompt_logprobs
    with pytest.raises(OptionError, match="prompt_logprobs: needs logprobs"):
        Request([5], prompt_logprobs=True)


def test_prompts_are_judged_once_where_a_request_gave_its_room(path, rng):
    prompts = [rng.integers(4, 90, 60).tolist() for _ in range(3)]
    how = {"max_tokens": 40, "logprobs": 0, "prompt_logprobs": True, "ignore_eos": True}
    with (
        wgpu_backend.load(path, device="cpu", num_ctx=128, num_parallel=2) as model,
        Engine(model, num_parallel=3, batch_tokens=16) as engine,
    ):
        many = [engine.submit(Request(tokens, HOT, **how)) for tokens in prompts]
        found = [each.result(PATIENCE).choices[0] for each in many]
    for tokens, choice in zip(prompts, found, strict=True):
        assert [each.token for each in choice.prompt_logprobs] == tokens[1:]
        assert [each.token for each in choice.logprobs] == [*choice.tokens]


def test_log_probabilities_are_a_softmax_of_the_models_logits(model, engine):
    prompt = model.prompter.raw("in the")
    made = engine.complete("in the", options=PENALISED, max_tokens=4, logprobs=3).result(PATIENCE)
    [choice] = made.choices
    logits = model.logits([*prompt, *choice.tokens])[len(prompt) - 1 : -1].astype("f8")
    expected = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    assert [each.token for each in choice.logprobs] == list(choice.tokens)
    for row, each in zip(expected, choice.logprobs, strict=True):
        assert each.logprob == pytest.approx(row[each.token], abs=1e-3)
        assert [top.token for top in each.top] == list(np.argsort(-row)[:3])
        assert [top.logprob for top in each.top] == pytest.approx(np.sort(row)[:-4:-1], abs=1e-3)
        assert each.piece == model.tokenizer.token_bytes(each.token)
    assert (
        engine.complete("a", max_tokens=1, logprobs=0).result(PATIENCE).choices[0].logprobs[0].top
        == ()
    )


def test_the_context_ends_an_answer(model, engine):
    prompt = [5] * (model.num_ctx - 3)
    made = engine.submit(Request(prompt, HOT)).result(PATIENCE)
    assert (made.finish.reason, made.finish.context_full) == ("length", True)
    assert made.usage.completion_tokens == 4
    assert made.choices[0].tokens == tuple(model.tokens(prompt, HOT))


@pytest.mark.slow
@pytest.mark.parametrize("keep", [0, 10, -1, 500])
def test_an_answer_goes_on_where_older_tokens_may_go(model, engine, keep):
    free = model.cache.free_positions
    request = Request([5] * 100, HOT, max_tokens=150, when_full="shift", keep=keep)
    made = engine.submit(request).result(PATIENCE)
    assert (made.finish.reason, made.usage.completion_tokens) == ("length", 150)
    again = engine.submit(request).result(PATIENCE)
    assert again.choices[0].tokens[:28] == made.choices[0].tokens[:28]
    # What was shifted is kept for nobody.
    engine.clear_cache()
    assert model.cache.free_positions == free


def test_an_answer_that_shifts_for_ever_has_a_bound(path):
    with (
        wgpu_backend.load(path, device="cpu", num_ctx=8) as model,
        Engine(model) as engine,
    ):
        made = engine.submit(Request([5], HOT, when_full="shift", ignore_eos=True)).result(PATIENCE)
    assert made.usage.completion_tokens == 80


@pytest.mark.slow
def test_requests_that_want_more_room_than_there_is_take_turns(path):
    with wgpu_backend.load(path, device="cpu", num_ctx=128) as model:
        alone = [list(model.tokens([n] * 40, {**HOT, "seed": n}, 60)) for n in range(4)]
        with Engine(model, num_parallel=4) as engine:
            made = [
                engine.submit(Request([n] * 40, {**HOT, "seed": n}, max_tokens=60))
                for n in range(4)
            ]
            assert [list(each.result(PATIENCE).choices[0].tokens) for each in made] == alone


def test_a_request_is_told_that_sessions_have_the_room(path):
    with wgpu_backend.load(path, device="cpu", num_ctx=64) as model, Engine(model) as engine:
        stream = model.generate("the" * 12, raw=True, stream=True, options=HOT, num_predict=50)
        for _ in range(3):
            next(stream)
        with pytest.raises(BackendError, match="blocks of 32"):
            engine.submit(Request([3] * 60)).result(PATIENCE)
        stream.close()
        assert (
            engine.submit(Request([3] * 60, max_tokens=2)).result(PATIENCE).usage.prompt_tokens
            == 60
        )


def test_sessions_take_the_room_of_kept_prefixes(path):
    with wgpu_backend.load(path, device="cpu", num_ctx=64) as model, Engine(model) as engine:
        engine.submit(Request([3] * 60, max_tokens=2)).result(PATIENCE)
        assert engine.status().kept_sequences == 1
        assert len(list(model.tokens([5] * 50, HOT, 10))) == 10
        assert len(list(model.tokens([4] * 50, HOT, 10))) == 10
        assert engine.status().kept_sequences == 0


@pytest.mark.slow
@pytest.mark.parametrize("slots", [2, 3])
def test_a_context_that_shifts_takes_the_room_of_kept_prefixes(path, slots):
    how = {"when_full": "shift", "keep": 8, "ignore_eos": True, "max_tokens": 60, "n": 2}
    long, seeded = [5 + n % 40 for n in range(100)], {"seed": 1, "temperature": 1.0}
    with (
        wgpu_backend.load(path, device="cpu", num_ctx=128, num_parallel=slots) as model,
        Engine(model, num_parallel=3) as engine,
    ):
        wanted = texts([engine.complete(long, options=seeded, **how)])
        engine.clear_cache()
        engine.complete([100] * 94, max_tokens=2, ignore_eos=True).result(PATIENCE)
        beside = engine.complete([77] * 30, max_tokens=60, ignore_eos=True)
        assert texts([engine.complete(long, options=seeded, **how)]) == wanted
        assert len(beside.result(PATIENCE).choices[0].tokens) == 60


@pytest.mark.slow
def test_a_shift_without_any_room_waits_for_the_others(path):
    long = [5 + n % 40 for n in range(100)]
    how = {"when_full": "shift", "keep": 8, "ignore_eos": True, "max_tokens": 60, "n": 3}
    with (
        wgpu_backend.load(path, device="cpu", num_ctx=128) as model,
        Engine(model, num_parallel=3) as engine,
    ):
        made = engine.complete(long, options={"seed": 1, "temperature": 1.0}, **how)
        assert [len(each.tokens) for each in made.result(PATIENCE).choices] == [60] * 3


def noting_who_pauses(engine):
    """List that takes who gives room: the place of the request, and the positions it had."""
    paused, pause = [], engine._core._pause

    def noting(completion):
        paused.append((completion.ticket.id - 1, completion.sent))
        pause(completion)

    engine._core._pause = noting
    return paused


def alone_and_short_of_room(path, requests, room=2):
    """What each request is answered alone, and beside others where one has to give its room."""
    how = {"num_ctx": 64, "num_parallel": room, "kv_dtype": "f32"}
    with wgpu_backend.load(path, device="cpu", **how) as model:
        with Engine(model, num_parallel=1, prefix_cache=False) as engine:
            alone = [engine.submit(each).result(PATIENCE).choices for each in requests]
        with Engine(model, num_parallel=3) as engine:
            paused = noting_who_pauses(engine)
            made = [engine.submit(each) for each in requests]
            return alone, [each.result(PATIENCE).choices for each in made], paused


def chances(choices):
    """Of all tokens, which tell of a cache that is not the same before they change a token."""
    return [each.logprob for choice in choices for each in choice.logprobs]


def assert_alike(made, alone):
    assert [[c.tokens for c in each] for each in made] == [[c.tokens for c in a] for a in alone]
    for each, wanted in zip(made, alone, strict=True):
        np.testing.assert_allclose(chances(each), chances(wanted), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"temperature": 0}, {"temperature": 1.0, "seed": 2}])
@pytest.mark.parametrize("name", ["tiny", "gemma3"])
def test_what_a_shift_moved_is_as_it_was_once_its_room_was_given(tmp_path, path, name, options):
    path = path if name == "tiny" else written(tmp_path / "model.gguf", outlines()[name])
    how = {"when_full": "shift", "keep": 4, "ignore_eos": True, "logprobs": 0}
    long = Request([7 + n % 40 for n in range(60)], options, max_tokens=45, **how)
    short = [Request([n] * 8, {"temperature": 0}, max_tokens=30, **how) for n in (5, 6)]
    alone, made, paused = alone_and_short_of_room(path, [*short, long])
    assert paused == [(2, 54)]  # of more than 80 tokens
    assert_alike(made, alone)


def test_who_gave_room_goes_on_once_another_ends_at_a_full_context(path):
    """It is let go on while a step is planned, and is not part of that before it is restored."""
    how = {"ignore_eos": True, "logprobs": 0}
    full = Request([5] * 28, {"temperature": 0}, max_tokens=60, **how)
    short = Request([6] * 8, {"temperature": 0}, max_tokens=30, when_full="shift", **how)
    alone, made, paused = alone_and_short_of_room(path, [full, short], room=1)
    assert made[0][0].finish.context_full
    assert [place for place, _ in paused] == [1]
    assert_alike(made, alone)


@pytest.mark.slow
def test_a_text_that_an_encoder_read_is_there_once_room_was_given(tmp_path):
    path = written(tmp_path / "model.gguf", outlines()["t5"])
    how = {"max_tokens": 40, "ignore_eos": True, "logprobs": 0}
    many = [Request([5 + n] * 8, {"temperature": 0}, **how) for n in range(3)]
    alone, made, paused = alone_and_short_of_room(path, many)
    assert paused == [(2, 32)]
    assert_alike(made, alone)


@pytest.mark.parametrize("length", [26, 27, 28])
def test_whoever_ends_at_a_full_context_gives_its_room_at_once(path, length):
    """The second takes another block in the step in which the first ends, or in one near it."""
    lengths, made = (60, length, 8), []
    with (
        wgpu_backend.load(path, device="cpu", num_ctx=64, num_parallel=2) as model,
        Engine(model, num_parallel=3, prefix_cache=False) as engine,
    ):
        paused = noting_who_pauses(engine)
        many = [Request([5] * n, HOT, max_tokens=12, ignore_eos=True) for n in lengths]
        # In the engine's thread, so that all three begin with one step.
        engine._core.inbox.put(lambda: made.extend(map(engine.submit, many)))
        engine.status()
        while not made:
            engine.status()
        found = [each.result(PATIENCE).finish.context_full for each in made]
    assert (found, paused) == ([True, False, False], [])


def test_a_failure_of_the_seat_fails_its_request_too(model, monkeypatch):
    def broken(*_args):
        raise KeyboardInterrupt  # no Exception, like a panic of a library

    monkeypatch.setattr(Completion, "seat", broken)
    with Engine(model) as engine:
        made = engine.complete("the")
        with pytest.raises(BackendError, match="the engine failed: KeyboardInterrupt"):
            made.result(PATIENCE)
        with pytest.raises(BackendError):
            engine.complete("the")


def test_a_cancelled_request_ends_and_leaves_its_slot_to_others(model, engine):
    free = model.cache.free_positions
    running = [engine.complete("the", ignore_eos=True) for _ in range(4)]
    waiting = [engine.complete("the", ignore_eos=True) for _ in range(2)]
    next(iter(running[0]))
    for each in [*running, *waiting]:
        each.cancel()
        each.cancel()
    for each in [*running, *waiting]:
        assert each.result(PATIENCE).finish.reason == "cancelled"
    made = engine.complete("a", max_tokens=2, ignore_eos=True).result(PATIENCE)
    assert made.finish.reason == "length"
    status = engine.status()
    assert status.slots == (None,) * 4
    assert (status.queued, status.cancelled) == (0, 6)
    engine.clear_cache()
    assert model.cache.free_positions == free


def test_a_dropped_answer_is_cancelled(engine):
    for event in engine.complete("the", ignore_eos=True):
        assert event.finish is None
        break
    gc.collect()
    engine.complete("a", max_tokens=1).result(PATIENCE)
    assert engine.status().cancelled == 1
    with engine.complete("the", ignore_eos=True) as made:
        next(iter(made))
    assert made.result(PATIENCE).finish.reason == "cancelled"


def test_a_full_queue_is_said_at_once_and_empties_again(model):
    with Engine(model, num_parallel=1, max_queue=2) as engine:
        made = [engine.complete("the", ignore_eos=True) for _ in range(3)]
        with pytest.raises(QueueFull, match="2 of 2 places in the queue are taken, 1 more"):
            engine.complete("the")
        made.pop().cancel()
        made.pop(0).cancel()
        made[0].cancel()
        made[0].result(PATIENCE)
        assert engine.complete("the", max_tokens=1).result(PATIENCE)


@pytest.mark.parametrize("ends", ["answered", "failed"])
def test_the_place_of_a_request_is_free_when_its_caller_hears_of_the_end(model, ends):
    class Impatient(Mailbox):
        """A mailbox that submits the next request as soon as the last one has ended."""

        def put(self, event):
            super().put(event)
            if event.finish is not None:
                following.append(engine.complete("the", max_tokens=1))

        def fail(self, error):
            super().fail(error)
            following.append(engine.complete("the", max_tokens=1))

    following = []
    with Engine(model, num_parallel=1, max_queue=0) as engine:
        grammar = Grammar.gbnf("root ::= (") if ends == "failed" else None
        first = Request.of([1], max_tokens=2, ignore_eos=not grammar, grammar=grammar)
        made = engine.submit(first, Impatient(1))
        if grammar:
            with pytest.raises(GrammarError):
                made.result(PATIENCE)
        else:
            assert made.result(PATIENCE)
        assert until(lambda: following)
        assert following[0].result(PATIENCE).choices[0].tokens


@pytest.mark.parametrize(
    ("request_", "error", "message"),
    [
        (Request([]), ContextFull, "the prompt has 0 tokens"),
        (Request([1] * 129), ContextFull, "the prompt has 129 tokens, the context holds 128"),
        (Request([1, 999]), ModelError, "999 is not a token"),
        (Request([1], logit_bias={999: 1}), OptionError, "logit_bias: 999 is not a token, the voc"),
    ],
)
def test_a_request_that_does_not_fit_is_refused_at_once(engine, request_, error, message):
    with pytest.raises(error, match=message):
        engine.submit(request_)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_parallel": 33}, "num_parallel: 33, needs 1 to 32"),
        ({"batch_tokens": 3}, "batch_tokens: 3, needs 4 to 256"),
        ({"max_queue": -1}, "max_queue: -1"),
    ],
)
def test_an_engine_of_wrong_sizes_is_refused(model, arguments, message):
    with pytest.raises(OptionError, match=message):
        Engine(model, **arguments)


def test_async_requests_run_side_by_side_while_the_loop_goes_on(model, engine):
    alone = [model.generate(p, raw=True, options=HOT, num_predict=12) for p in PROMPTS]

    async def one(prompt):
        made = engine.complete(prompt, options=HOT, max_tokens=12)
        return "".join([event.text async for event in made])

    async def all_of_them():
        together = asyncio.gather(*map(one, PROMPTS))
        awaited = (await engine.complete(PROMPTS[0], options=HOT, max_tokens=12)).text
        return [*await together, awaited]

    assert asyncio.run(all_of_them()) == [*alone, alone[0]]


def test_a_task_that_is_cancelled_cancels_its_request(engine):
    async def leave():
        async def listen():
            async with engine.complete("the", ignore_eos=True) as made:
                async for _ in made:
                    started.set()

        started = asyncio.Event()
        task = asyncio.create_task(listen())
        await started.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(leave())
    engine.complete("a", max_tokens=1).result(PATIENCE)
    assert engine.status().cancelled == 1


def test_many_threads_share_an_engine_with_the_models_own_calls(model, engine):
    alone = {p: model.generate(p, raw=True, options=HOT, num_predict=10) for p in PROMPTS}
    results = []

    def ask(prompt):
        made = engine.complete(prompt, options=HOT, max_tokens=10).result(PATIENCE).text
        beside = model.generate(prompt, raw=True, options=HOT, num_predict=10)
        results.append((prompt, made, beside))

    threads = [threading.Thread(target=ask, args=(p,)) for p in PROMPTS * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(results) == sorted((p, alone[p], alone[p]) for p in PROMPTS * 2)


def test_a_result_may_be_waited_for_in_vain(engine):
    made = engine.complete("the", ignore_eos=True)
    with pytest.raises(TimeoutError, match=f"request {made.id}: not done after 0"):
        made.result(0)
    made.cancel()


def test_what_is_under_way_fails_when_the_engine_closes(model):
    engine = Engine(model)
    made = [engine.complete("the", ignore_eos=True, when_full="shift") for _ in range(6)]
    next(iter(made[0]))
    engine.close()
    engine.close()
    for each in made:
        with pytest.raises(BackendError, match="the engine was closed"):
            each.result(PATIENCE)
    with pytest.raises(BackendError, match="the engine was closed; make another one"):
        engine.complete("the")
    with pytest.raises(BackendError, match="the engine was closed"):
        engine.status()
    with Engine(model) as another:
        assert another.complete("the", max_tokens=1).result(PATIENCE)


def test_what_is_under_way_fails_when_the_model_closes(path):
    model = wgpu_backend.load(path, device="cpu")
    engine = Engine(model)
    made = engine.complete("the", ignore_eos=True, when_full="shift")
    next(iter(made))
    model.close()
    with pytest.raises(BackendError, match="the model was closed"):
        made.result(PATIENCE)
    with pytest.raises(BackendError, match="the model was closed"):
        engine.complete("the")
    engine.close()


def test_a_dropped_engine_ends_and_says_that_it_was_not_closed(model):
    engine = Engine(model)
    thread = engine._thread
    with pytest.warns(ResourceWarning, match="unclosed engine of"):  # noqa: PT031
        del engine
        gc.collect()
    thread.join(PATIENCE)
    assert not thread.is_alive()


def test_a_step_that_fails_takes_its_requests_along_and_no_more(model, engine, monkeypatch):
    def broken(*_):
        raise BackendError("the device has a bad day")

    with monkeypatch.context() as patch:
        patch.setattr("wgpu_backend.engine.batching.loop.submit", broken)
        with pytest.raises(BackendError, match="a bad day"):
            engine.complete("the", max_tokens=2, n=2).result(PATIENCE)
    assert engine.complete("the", max_tokens=2, n=2).result(PATIENCE)
    assert engine.status().failed == 2


def test_an_error_nobody_expected_ends_the_engine_and_is_told(model, monkeypatch):
    with Engine(model) as engine, monkeypatch.context() as patch:
        patch.setattr("wgpu_backend.engine.batching.loop.submit", lambda *_: 1 / 0)
        with pytest.raises(BackendError, match="ZeroDivisionError: division by zero"):
            engine.complete("the").result(PATIENCE)
        with pytest.raises(BackendError):
            engine.complete("the").result(PATIENCE)


def test_adapters_wait_for_requests_and_kept_prefixes_go_with_them(model, engine):
    running = engine.complete("the", ignore_eos=True, when_full="shift")
    next(iter(running))
    with pytest.raises(BackendError, match="1 requests of an engine are running"):
        model.set_adapters(())
    running.cancel()


def test_damaged_logits_fail_the_request_alone(tmp_path):
    path = tiny_model(
        tmp_path / "nan.gguf", vectors={"output_norm.weight": np.full(64, 3e38, "f4")}
    )
    with wgpu_backend.load(path, device="cpu") as model, Engine(model) as engine:
        with np.errstate(all="ignore"), pytest.raises(BackendError, match="not finite"):
            engine.complete("the", options={"temperature": 0}).result(PATIENCE)
        assert engine.status().failed == 1
