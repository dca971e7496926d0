"""Answers that keep to grammars, alone and in batches, on every way that tokens are chosen."""

import json
import random
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import wgpu_backend
from tests.patience import PATIENCE, until
from tests.text.grammar.walks import fits, random_schema
from wgpu_backend import Engine, Grammar, Request
from wgpu_backend.engine.batching import completion, step
from wgpu_backend.engine.batching.completion import Completion
from wgpu_backend.engine.batching.constrained import Constrained, Masking
from wgpu_backend.errors import GrammarError, OptionError
from wgpu_backend.text.grammar import mask_words

HOT = {"temperature": 2.0, "seed": 7, "top_k": 200, "top_p": 1.0}
PENALISED = {**HOT, "repeat_penalty": 1.3, "frequency_penalty": 0.2}
ON_HOST = {**HOT, "top_k": 0}
WAYS = {"hot": HOT, "penalised": PENALISED, "host": ON_HOST, "greedy": {"temperature": 0}}
MOVE = Grammar.regex("[a-h][1-8]( [a-h][1-8]){3}")
NAMED = Grammar.json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 5}, "long_name": {"const": "is so"}},
        "required": ["name", "long_name"],
        "additionalProperties": False,
    }
)


@pytest.mark.parametrize("way", WAYS)
def test_an_answer_keeps_to_its_grammar_and_ends_with_it(engine, way):
    made = engine.complete("the", options=WAYS[way], grammar=MOVE, ignore_eos=True).result(PATIENCE)
    assert re.fullmatch(MOVE.text, made.text)
    assert (made.finish.reason, made.finish.stop) == ("stop", None)
    assert made.usage.completion_tokens == len(made.choices[0].tokens)


class _Matcher:
    """A matcher whose last mask took so many seconds; `made_by` has the threads of its masks."""

    def __init__(self, seconds, error=None):
        self.seconds, self.error, self.made_by = seconds, error, list[str]()

    def mask(self):
        self.made_by.append(threading.current_thread().name)
        if self.error:
            raise self.error
        return self.seconds


class _Owner:
    def __init__(self, threads):
        self.threads = threads


@pytest.mark.parametrize(
    ("seconds", "thread"), [(0.0, "MainThread"), (1e-4, "MainThread"), (0.02, "masks_0")]
)
def test_a_mask_is_made_by_a_thread_only_where_the_one_before_took_long(seconds, thread):
    """To wake a thread takes longer than most masks."""
    with ThreadPoolExecutor(1, "masks") as threads:
        matcher = _Matcher(seconds)
        masking = Masking(matcher, _Owner(threads))
        assert masking.wait() == masking.wait() == seconds
        wrong = Masking(_Matcher(seconds, GrammarError("too complex")), _Owner(threads))
        assert str(wrong.wait()) == "too complex"
    assert matcher.made_by == [thread]


@pytest.mark.slow
def test_every_answer_to_a_random_schema_parses_and_fits_it(engine):
    rng = random.Random(11)
    schemas = [random_schema(rng) for _ in range(12)]
    made = [
        engine.complete(
            "on", options={**HOT, "seed": i}, grammar=Grammar.json_schema(schema), max_tokens=120
        )
        for i in range(2)
        for schema in schemas
    ]
    found = [each.result(PATIENCE) for each in made]
    ended = [
        (s, r.text) for s, r in zip(schemas * 2, found, strict=True) if r.finish.reason == "stop"
    ]
    assert len(ended) >= 20
    assert [pair for pair in ended if not fits(pair[0], json.loads(pair[1]))] == []


@pytest.mark.slow
@pytest.mark.gpu
def test_the_text_is_the_same_whoever_is_beside(path, full):
    requests = [
        Request([5, 6, n], {**HOT, "seed": n}, max_tokens=40, grammar=(NAMED, MOVE, None)[n % 3])
        for n in range(7)
    ]
    with (
        wgpu_backend.load(path, device=full.info, num_parallel=4) as model,
        Engine(model, deterministic=True, batch_tokens=32) as engine,
    ):
        alone = [engine.submit(each).result(PATIENCE).choices[0].tokens for each in requests]
        made = [engine.submit(each) for each in requests]
        assert [each.result(PATIENCE).choices[0].tokens for each in made] == alone


# A long text, then certain text, then a short text and certain text again.
LONG = Grammar.regex("[a-h ]{9} once there was a fox[1-8]{2} and a lantern[a-h]{6}")
ASKED = [
    {"grammar": LONG},
    {"grammar": LONG, "logprobs": 2},
    {"grammar": MOVE, "stop": " "},
    {"grammar": LONG, "max_tokens": 9},
    {"grammar": NAMED, "n": 2},
    {"grammar": None, "max_tokens": 25},
]


def answers(model, calm, monkeypatch, *, together):
    """Make the answers of `ASKED`, each alone or all at once."""
    monkeypatch.setattr(completion, "CALM", calm)
    with Engine(model, prefix_cache=False) as engine:
        found, made = [], []
        for number, asked in enumerate(ASKED):
            options = [HOT, PENALISED, ON_HOST, {"temperature": 0}][number % 4]
            asked = {"ignore_eos": True, "max_tokens": 60, **asked}
            made.append(engine.complete("the", options={**options, "seed": number}, **asked))
            if not together:
                found.append(made[-1].result(PATIENCE))
        found = found or [each.result(PATIENCE) for each in made]
        chosen = [[choice.tokens for choice in each.choices] for each in found]
        chances = [each.choices[0].logprobs for each in found]
        return chosen, chances


@pytest.fixture
def deep(model, monkeypatch):
    """A model with two steps in flight, as devices have them."""
    monkeypatch.setattr(model, "depth", 2)
    return model


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.slow
def test_a_pass_ahead_of_a_mask_leaves_answers_as_they_are(deep, monkeypatch, together):
    never, _ = answers(deep, 1 << 30, monkeypatch, together=together)
    undecided, decide = [], step.Late.decide

    def counting(late, constrained):
        known = [id(each) in late.masks for each in late.rows if each.is_undecided]
        undecided.append(not all(known))
        decide(late, constrained)

    monkeypatch.setattr(step.Late, "decide", counting)
    for calm in (0, 2):
        chosen, chances = answers(deep, calm, monkeypatch, together=together)
        assert chosen == never
        assert [len(each) for each in chances] == [0, len(chosen[1][0]), 0, 0, 0, 0]
        assert any(undecided)


def count_choices(patch):
    """Return a list that gets an item for each choice that is submitted apart from its pass."""
    found, choose = [], Constrained.choose

    def counting(constrained, masks, inputs, plan):
        found.append(plan)
        return choose(constrained, masks, inputs, plan)

    patch.setattr(Constrained, "choose", counting)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("together", [False, True])
def test_a_wrong_guess_of_a_mask_leaves_answers_as_they_are(deep, monkeypatch, rng, together):
    words = mask_words(deep.vocabulary)
    guesses = {
        "none": lambda _: None,
        "random": lambda _: rng.integers(0, 1 << 32, words, np.uint32),
        "newest": Completion.newest_mask.fget,
    }
    made, apart = {}, {}
    for name, guess in guesses.items():
        with monkeypatch.context() as patch:
            patch.setattr(Completion, "newest_mask", property(guess))
            if name != "newest":
                # Nor is a mask made before the pass.
                patch.setattr(Masking, "is_brief", False)
            count = count_choices(patch)
            made[name], _ = answers(deep, 2, patch, together=together)
            apart[name] = len(count)
    assert made["newest"] == made["none"]
    assert made["random"] == made["none"]
    if not together:  # chance decides which answers share a pass
        assert apart["newest"] < apart["none"] == apart["random"]


def test_a_long_text_is_chosen_within_its_passes(deep, monkeypatch):
    """Its masks are equal, so only the first token, whose mask is not known, is chosen apart."""
    apart = count_choices(monkeypatch)
    with Engine(deep, prefix_cache=False) as engine:
        text = Grammar.regex("[a-h ]{2000}")
        asked = {"options": HOT, "max_tokens": 40, "ignore_eos": True}
        made = [engine.complete("the", grammar=text, **asked) for _ in range(3)]
        assert [each.result(PATIENCE).usage.completion_tokens for each in made] == [40] * 3
    assert 1 <= len(apart) <= 3


def test_a_grammar_keeps_pace_with_requests_without(deep):
    """Its passes are ahead as theirs are, so both are in each pass."""
    text = Grammar.regex("[a-h ]{200}")
    with Engine(deep, prefix_cache=False) as engine:
        engine.complete("the", grammar=text, max_tokens=1).result(PATIENCE)  # compiles it
        before = engine.status().steps
        asked = {"options": HOT, "max_tokens": 40, "ignore_eos": True}
        made = [engine.complete("the", grammar=each, **asked) for each in (text, None, text)]
        assert [each.result(PATIENCE).usage.completion_tokens for each in made] == [40] * 3
        assert engine.status().steps - before <= 52


def test_certain_text_after_a_long_text_costs_one_pass_more(deep):
    text = Grammar.regex("[a-h]{20} once there was a fox and a lantern")
    with Engine(deep, prefix_cache=False) as engine:
        before = engine.status().steps
        made = engine.complete("the", options=HOT, grammar=text).result(PATIENCE)
        letters = len(made.choices[0].tokens)
        assert re.fullmatch(text.text, made.text)
        assert engine.status().steps - before <= min(letters, 20) + 3


def test_a_request_is_cancelled_while_its_pass_waits_for_a_mask(deep, monkeypatch):
    text = Grammar.regex("[a-h ]{2000}")
    with Engine(deep, prefix_cache=False) as engine:
        made = [engine.complete("the", options=HOT, grammar=text) for _ in range(2)]
        for count, _ in enumerate(made[0]):
            if count == 8:
                made[0].cancel()
                made[1].cancel()
        assert [each.result(PATIENCE).finish.reason for each in made] == ["cancelled"] * 2
        again = engine.complete("the", options=HOT, grammar=MOVE, ignore_eos=True)
        assert re.fullmatch(MOVE.text, again.result(PATIENCE).text)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.gpu
@pytest.mark.slow
def test_the_device_chooses_what_numpy_does(path, full, way):
    # In f32: keys that round to another f16 move logits enough for another draw.
    how = {"num_parallel": 4, "kv_dtype": "f32", "exact": True}
    found = []
    for device in ("cpu", full.info):
        with wgpu_backend.load(path, device=device, **how) as model, Engine(model) as engine:
            asked = {"options": WAYS[way], "max_tokens": 30}
            made = [engine.complete("on", grammar=each, **asked) for each in (NAMED, MOVE, None)]
            found.append([each.result(PATIENCE).text for each in made])
    assert found[0] == found[1]


def test_what_is_sure_to_come_costs_no_steps(engine):
    fixed = Grammar.regex("once there was a fox and a lantern")
    before = engine.status().steps
    made = engine.complete("the", grammar=fixed).result(PATIENCE)
    assert made.text == fixed.text
    assert engine.status().steps - before <= 3
    counted = engine.complete("the", grammar=fixed, logprobs=0).result(PATIENCE)
    assert counted.text == fixed.text
    assert len(counted.choices[0].logprobs) == len(counted.choices[0].tokens)


def test_choices_stops_and_limits_go_on_as_before(engine):
    made = engine.complete("the", options=HOT, grammar=MOVE, n=3).result(PATIENCE)
    assert len({choice.text for choice in made.choices}) > 1
    assert all(re.fullmatch(MOVE.text, choice.text) for choice in made.choices)
    stopped = engine.complete("the", options=HOT, grammar=MOVE, stop=" ").result(PATIENCE)
    assert (len(stopped.text), stopped.finish.stop) == (2, " ")
    short = engine.complete("the", options=HOT, grammar=MOVE, max_tokens=2).result(PATIENCE)
    assert short.finish.reason == "length"
    fixed = engine.complete("the", grammar=Grammar.regex("on and on"), max_tokens=2).result(
        PATIENCE
    )
    assert len(fixed.choices[0].tokens) == 2


@pytest.mark.slow
def test_a_full_context_shifts_below_a_grammar(path):
    digits = Grammar.regex("([0-9]{4} ){30}end")
    with wgpu_backend.load(path, device="cpu", num_ctx=64) as model, Engine(model) as engine:
        made = engine.complete("the", options=HOT, grammar=digits, when_full="shift").result(
            PATIENCE
        )
        assert re.fullmatch(digits.text, made.text)
        cut = engine.complete("the", options=HOT, grammar=digits).result(PATIENCE)
        assert cut.finish.context_full
        assert re.fullmatch(r"([0-9]{4} )*[0-9]{0,4}", cut.text)


def test_a_grammar_that_cannot_be_used_fails_its_request_alone(engine):
    wrong = engine.complete("the", grammar=Grammar.regex("((("), n=2)
    sound = engine.complete("the", options=HOT, grammar=MOVE)
    with pytest.raises(GrammarError, match="unclosed group"):
        wrong.result(PATIENCE)
    assert re.fullmatch(MOVE.text, sound.result(PATIENCE).text)
    assert engine.status().failed == 2
    with pytest.raises(OptionError, match="grammar: 'json'"):
        engine.complete("the", grammar="json")


def test_a_request_is_cancelled_while_its_grammar_is_compiled(model, monkeypatch):
    compiling, go_on = threading.Event(), threading.Event()
    matcher = model.grammars.matcher

    def slow(grammar):
        compiling.set()
        go_on.wait(PATIENCE)
        return matcher(grammar)

    monkeypatch.setattr(model.grammars, "matcher", slow)
    with Engine(model) as engine:
        made = engine.complete("the", grammar=MOVE)
        assert compiling.wait(PATIENCE)
        other = engine.complete("the", max_tokens=2, ignore_eos=True).result(PATIENCE)
        assert other.finish.reason == "length"
        made.cancel()
        assert made.result(PATIENCE).finish.reason == "cancelled"
        go_on.set()


def test_an_engine_that_is_closed_fails_what_still_compiles(model, monkeypatch):
    go_on = threading.Event()
    monkeypatch.setattr(model.grammars, "matcher", lambda _: go_on.wait(PATIENCE))
    engine = Engine(model)
    made = engine.complete("the", grammar=MOVE)
    engine.close()
    go_on.set()
    with pytest.raises(wgpu_backend.BackendError, match="closed"):
        made.result(PATIENCE)


def test_an_engine_that_is_closed_fails_what_waits_for_a_compiler(model, monkeypatch):
    go_on, inside, hold = threading.Event(), threading.Event(), threading.Event()
    monkeypatch.setattr(model.grammars, "matcher", lambda _: go_on.wait(PATIENCE))
    engine = Engine(model)
    made = [engine.complete("the", grammar=MOVE) for _ in range(8)]
    queue, waiting = engine._core._queue, model._sessions.turns._line
    assert until(lambda: len(queue) == len(made))
    turn = threading.Thread(target=model.alone, args=(lambda: (inside.set(), hold.wait(PATIENCE)),))
    turn.start()
    inside.wait(PATIENCE)
    # The engine's thread now waits for the lock, with the ninth request or already before it.
    made.append(engine.complete("the"))
    assert until(lambda: len(waiting) == 2)
    closing = threading.Thread(target=engine.close)
    closing.start()
    assert until(lambda: queue[7].ticket.matcher.cancelled())
    hold.set()
    for thread in (turn, closing):
        thread.join(PATIENCE)
    for each in made:
        with pytest.raises(wgpu_backend.BackendError, match="closed"):
            each.result(PATIENCE)
    go_on.set()


def test_a_mask_that_fails_fails_its_request_alone(engine, monkeypatch):
    from wgpu_backend.text.grammar import Matcher

    sound = engine.complete("the", options=HOT, max_tokens=30)

    def broken(self):
        raise GrammarError("grammar: too complex at this place")

    monkeypatch.setattr(Matcher, "mask", broken)
    for options in (HOT, ON_HOST):
        with pytest.raises(GrammarError, match="too complex"):
            engine.complete("the", options=options, grammar=MOVE).result(PATIENCE)
    assert sound.result(PATIENCE).finish.reason in ("length", "stop")
