"""Generation with steps under way gives what one step after another gives, however it ends."""

import itertools
import math

import numpy as np
import pytest

from tests.builders import tiny_model
from tests.engine.streams import Letters, token_stream, tokens_of
from wgpu_backend.dtypes import F32
from wgpu_backend.engine.batching import loop, pace
from wgpu_backend.engine.runner import BatchedSubmit, Head, Runner, Work
from wgpu_backend.engine.sessions import Session
from wgpu_backend.engine.step_sampler import MOST_AHEAD
from wgpu_backend.errors import BackendError, CacheFull, ContextFull, OptionError, OutOfMemory
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.ml.backend import Backend
from wgpu_backend.ml.numpy_executor import NumpyExecutor, NumpyRecorded
from wgpu_backend.ml.wgpu.executor import WgpuRecorded
from wgpu_backend.nn.model import model_class
from wgpu_backend.ops.sampling.host import Sampler, SamplingOptions

PROMPT = [1, 7, 3, 99, 200]
DEPTHS = (2, 4, MOST_AHEAD)
OPTIONS = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.5, "top_p": 1.0},
    "256 candidates": {"temperature": 2.0, "top_k": 200},
    "greedy with penalties": {
        "temperature": 0.0, "repeat_penalty": 1.5, "presence_penalty": 1.0, "repeat_last_n": 30,
    },
    "penalties": {"temperature": 1.5, "repeat_penalty": 1.3, "frequency_penalty": 0.5},
    "penalties of two tokens": {
        "temperature": 1.0, "repeat_penalty": 3.0, "presence_penalty": 3.0, "repeat_last_n": 2,
    },
    "on the host": {"temperature": 1.5, "top_k": 0},
}  # fmt: skip


class Talk:
    """A model with a session and a cache that can be looked at."""

    def __init__(self, backend, positions=128):
        self.model = model_class(backend.config)(backend)
        self.cache = self.model.make_cache(backend.executor, 4, positions, F32)
        self.runner = Runner(self.model, self.cache)
        self.session = Session(self.cache)
        self.vocabulary = backend.require("token_embd.weight").shape[0]

    def forget(self):
        self.session.tokens.clear()
        self.cache.remove(0)

    def stream(self, depth, options, prompt=PROMPT, *, room=128, limit=-1, **how):
        return token_stream(
            self.runner,
            self.session,
            prompt,
            options,
            room=room,
            vocabulary=self.vocabulary,
            depth=depth,
            max_tokens=limit,
            **how,
        )

    def tokens(self, *args, **how):
        """The tokens of a stream, as they come."""
        return tokens_of(self.stream(*args, **how))

    def made(self, depth, options, prompt=PROMPT, **how):
        """Tokens, the reason for the end, and what is left in the session and the cache."""
        stream = self.stream(depth, options, prompt, **how)
        tokens = list(tokens_of(stream))
        assert stream.stats.tokens == len(tokens)
        self.context_full = stream.stats.context_full
        return tokens, stream.stats.done_reason, self.left()

    def left(self):
        return [*self.session.tokens], self.cache.length(0)

    def close(self):
        self.runner.close()
        self.cache.close()


@pytest.fixture(scope="module", params=["numpy", pytest.param("full", marks=pytest.mark.gpu)])
def talk(request, tmp_path_factory):
    executor = NumpyExecutor()
    if request.param != "numpy":
        executor = request.getfixturevalue("executors")(request.param)
    path = tiny_model(tmp_path_factory.mktemp("generation") / "tiny.gguf", dtype="q8_0")
    with open_gguf(path) as file:
        backend = Backend(file, executor)
        backend.load()
        talk = Talk(backend)
        yield talk
        talk.close()


@pytest.fixture(autouse=True)
def empty(request):
    if "talk" in request.fixturenames:
        request.getfixturevalue("talk").forget()


@pytest.fixture(autouse=True, params=[0, math.inf], ids=["one by one", "in pairs"])
def brief(request, monkeypatch):
    """Whether all steps count as brief; they go together from the second token on then."""
    monkeypatch.setattr(pace, "BRIEF_SECONDS", request.param)
    monkeypatch.setattr(pace, "TIMED", 1 if request.param else 8)
    return bool(request.param)


def seeded(name, seed):
    return SamplingOptions(**OPTIONS[name], seed=seed)


@pytest.mark.parametrize("sampling", OPTIONS)
def test_steps_under_way_change_no_token(talk, sampling):
    for seed in (1, 2, 3):
        expected = talk.made(1, seeded(sampling, seed), limit=30)
        for depth in DEPTHS:
            talk.forget()
            assert expected == talk.made(depth, seeded(sampling, seed), limit=30)
        talk.forget()


@pytest.mark.parametrize("name", OPTIONS)
def test_tokens_are_those_that_the_host_takes_from_logits(talk, name):
    sampler, history = Sampler(seeded(name, 5), talk.vocabulary), [*PROMPT]
    head = Head("logits", lambda _, hidden: [talk.model.logits(hidden)])
    rows = talk.runner.prefill(0, PROMPT, head, {})[0]
    for _ in range(25):
        history.append(sampler.sample(rows[0], history))
        rows = talk.runner.run([Work(0, history[-1:], (0,))], head, {}).wait()[0]
    talk.forget()

    tokens, _, _ = talk.made(4, seeded(name, 5), limit=25)

    assert history[len(PROMPT) :] == tokens


@pytest.mark.parametrize("depth", [1, *DEPTHS])
def test_an_end_token_leaves_no_trace_of_what_followed_it(talk, depth):
    tokens, _, _ = talk.made(1, seeded("sampled", 8), limit=20)
    end = next(t for i, t in enumerate(tokens) if i > 5 and t not in tokens[:i])
    before = tokens[: tokens.index(end)]
    talk.forget()

    made = talk.made(depth, seeded("sampled", 8), ends=[end])

    everything = PROMPT + before
    assert made == (before, "stop", (everything, len(everything)))


def test_steps_that_nobody_reads_keep_no_place_for_their_results(talk):
    if isinstance(talk.model.backend.executor, NumpyExecutor):
        pytest.skip("results of NumPy are there at once")
    counters = talk.model.backend.executor.device.counters
    made = []
    for seed in range(7):
        talk.forget()
        stream = talk.tokens(4, seeded("greedy", seed))
        next(stream)
        stream.close()
        made.append(counters.buffers)
    # Only the second may need another, for what is recorded ahead.
    assert made[2:] == made[1:2] * 5


@pytest.mark.parametrize("depth", [1, *DEPTHS])
@pytest.mark.parametrize("limit", [0, 1, 2, 5])
def test_a_limit_computes_no_step_too_many(talk, depth, limit):
    steps = talk.runner.clock.steps

    tokens, reason, left = talk.made(depth, seeded("greedy", 1), limit=limit)

    assert (len(tokens), reason, talk.context_full) == (limit, "length", False)
    assert talk.runner.clock.steps - steps == max(limit, 1)
    everything = PROMPT + tokens[:-1]
    assert left == (everything, len(everything))


@pytest.mark.parametrize("depth", [1, *DEPTHS])
@pytest.mark.parametrize("room", [len(PROMPT), len(PROMPT) + 1, 20, 32, 33])
def test_a_full_context_ends_the_text(talk, depth, room):
    tokens, reason, left = talk.made(depth, seeded("greedy", 1), room=room)

    # The last token is given though nothing could follow it.
    assert (len(tokens), reason, talk.context_full) == (room - len(PROMPT) + 1, "length", True)
    assert left == (PROMPT + tokens[:-1], room)


@pytest.mark.parametrize("depth", DEPTHS)
@pytest.mark.parametrize("read", [1, 2, 7])
def test_a_stream_broken_off_can_be_continued(talk, depth, read):
    expected, _, _ = talk.made(1, seeded("greedy", 1), limit=16)
    talk.forget()
    run = talk.tokens(depth, seeded("greedy", 1))
    tokens = list(itertools.islice(run, read))
    run.close()

    everything = PROMPT + tokens[:-1]
    assert talk.left() == (everything, len(everything))
    stream = talk.stream(depth, seeded("greedy", 1), PROMPT + tokens, limit=16 - read)
    tokens += tokens_of(stream)
    assert expected == tokens
    assert (stream.stats.reused_tokens, stream.stats.prompt_tokens) == (len(everything), 1)


@pytest.mark.parametrize("depth", [1, *DEPTHS])
def test_an_exception_in_mid_stream_leaves_the_session_right(talk, depth, monkeypatch):
    expected, _, _ = talk.made(1, seeded("greedy", 1), limit=12)
    talk.forget()
    run = talk.tokens(depth, seeded("greedy", 1))
    tokens = [next(run) for _ in range(4)]

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(loop.TokenLoop, "step", fail)
        with pytest.raises(KeyboardInterrupt):
            next(run)

    everything = PROMPT + tokens[:-1]
    assert talk.left() == (everything, len(everything))
    again = talk.tokens(depth, seeded("greedy", 1), PROMPT + tokens, limit=8)
    assert expected == tokens + list(again)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1, *DEPTHS])
def test_a_failing_step_shows_after_the_tokens_before_it(talk, depth, monkeypatch):
    expected, _, _ = talk.made(1, seeded("sampled", 6), limit=9)
    talk.forget()
    extend, room = talk.cache.extend, len(PROMPT) + 6

    def full(sequence, tokens):
        if talk.cache.length(sequence) + tokens > room:
            raise CacheFull("cache: no block is free")
        return extend(sequence, tokens)

    monkeypatch.setattr(talk.cache, "extend", full)
    tokens = []
    with pytest.raises(CacheFull, match="no block"):
        read_into(tokens, talk.tokens(depth, seeded("sampled", 6)))

    assert expected[:7] == tokens
    assert talk.left() == (PROMPT + tokens[:-1], room)


def read_into(tokens, run):
    """Read a stream into a list, which has what was read when it fails."""
    for token in run:
        tokens.append(token)


@pytest.mark.parametrize("depth", [1, *DEPTHS])
def test_logits_that_are_not_numbers_are_told_in_their_turn(talk, depth, monkeypatch):
    submit, place = BatchedSubmit.submit, 0

    class Broken:
        def wait(self):
            return [np.full(256, -1, np.int32)]

    def breaking(batch):
        nonlocal place
        results = submit(batch)
        place += len(results)
        if place - len(results) < 4 <= place:
            results[4 - place - 1] = Broken()
        return results

    monkeypatch.setattr(BatchedSubmit, "submit", breaking)
    tokens = []
    with pytest.raises(BackendError, match="not finite"):
        read_into(tokens, talk.tokens(depth, seeded("greedy", 1)))

    assert len(tokens) == 3
    assert talk.left() == (PROMPT + tokens[:-1], len(PROMPT) + 2)


def batches_of(monkeypatch):
    """How many steps each submit had, as they are submitted."""
    counts, submit = [], BatchedSubmit.submit

    def counting(batch):
        results = submit(batch)
        counts.append(len(results))
        return results

    monkeypatch.setattr(BatchedSubmit, "submit", counting)
    return counts


@pytest.mark.parametrize(("depth", "pairs"), [(1, False), (2, True), (4, True)])
def test_an_end_is_seen_a_few_steps_late(talk, depth, pairs, brief, monkeypatch):
    counts, ahead_of_it = batches_of(monkeypatch), []
    for number, _ in enumerate(talk.tokens(depth, seeded("sampled", 2), limit=40)):
        ahead_of_it.append(talk.cache.length(0) - len(PROMPT) - number)
    together = 2 if brief and pairs else 1
    assert max(ahead_of_it) == (max(depth, 2 * together) - 1 if depth > 1 else 0)
    assert ahead_of_it[-1] == 0
    assert sum(counts) == 40  # the prompt's among them
    assert set(counts[1:-2]) <= {1, together}
    assert counts.count(2) >= (15 if together == 2 else 0)


def test_steps_go_together_where_they_are_brief(talk, brief, monkeypatch):
    counts, now = batches_of(monkeypatch), 100.0
    monkeypatch.setattr(pace, "TIMED", 4)
    monkeypatch.setattr(pace, "BRIEF_SECONDS", 0.01)
    monkeypatch.setattr(pace.time, "perf_counter", lambda: now)
    run = talk.tokens(2, seeded("greedy", 1), limit=64)
    seen = []
    for seconds in (0.02, 0.009, 0.009, 0.011):
        for _ in range(16):
            next(run)
            now += seconds
        seen.append(set(counts[-3:]))
        counts.clear()
    assert seen == [{1}, {2}, {2}, {1}]


def test_a_submit_that_fails_shows_after_the_tokens_before_it(talk, brief, monkeypatch):
    expected, _, _ = talk.made(1, seeded("sampled", 6), limit=9)
    talk.forget()
    submit, calls = recorded_class(talk).replays, 0

    def failing(recorded, count):
        nonlocal calls
        calls += 1
        if calls == 5:
            raise OutOfMemory("no room", "")
        return submit(recorded, count)

    monkeypatch.setattr(recorded_class(talk), "replays", failing)
    tokens = []
    with pytest.raises(OutOfMemory, match="no room"):
        read_into(tokens, talk.tokens(4, seeded("sampled", 6)))

    assert calls == 5
    assert expected[: len(tokens)] == tokens
    assert len(tokens) >= 4
    assert talk.left() == (PROMPT + tokens[:-1], len(PROMPT) + len(tokens) - 1)
    monkeypatch.undo()
    again = talk.tokens(4, seeded("greedy", 6), PROMPT + tokens, limit=3)
    assert len(list(again)) == 3


def recorded_class(talk):
    """Class of the graphs that the model's executor records."""
    numpy = isinstance(talk.model.backend.executor, NumpyExecutor)
    return NumpyRecorded if numpy else WgpuRecorded


@pytest.mark.parametrize("depth", [1, *DEPTHS])
@pytest.mark.parametrize("first", [0, 1, 4])
def test_a_stop_text_ends_the_stream_and_settles_the_cache(talk, depth, first):
    tokens, _, _ = talk.made(1, seeded("sampled", 8), limit=20)
    text = "".join(map(Letters().push, tokens))
    stop = text[first : first + 3]
    found = text.index(stop)
    talk.forget()
    stream = talk.stream(depth, seeded("sampled", 8), stop=[stop])

    parts = [event.text for event in stream.run()]

    assert "".join(parts) == text[:found]
    assert stream.stats.done_reason == "stop"
    everything = PROMPT + tokens[: found + 2]
    assert talk.left() == (everything, len(everything))


def test_a_stream_that_was_overtaken_says_so_and_spoils_nothing(talk):
    expected, _, _ = talk.made(1, seeded("greedy", 1), limit=10)
    talk.forget()
    old = talk.tokens(4, seeded("sampled", 1))
    next(old)
    new = talk.tokens(4, seeded("greedy", 1), limit=10)
    tokens = [next(new)]

    with pytest.raises(
        BackendError,
        match=r"another call of generate\(\) .* token 1 of .*session\(\)",
    ):
        next(old)

    assert expected == tokens + list(new)


@pytest.mark.parametrize("name", ["greedy", "sampled", "penalties of two tokens"])
def test_sequences_that_take_turns_have_places_of_their_own(talk, name):
    prompts = PROMPT, [200, 5, 40]
    expected = [talk.made(1, seeded(name, 3), prompt, limit=12)[0] for prompt in prompts]
    talk.forget()
    streams = []
    for sequence, prompt in enumerate(prompts):
        session = Session(talk.cache, sequence)
        how = {"room": 64, "vocabulary": talk.vocabulary, "depth": 4, "max_tokens": 12}
        stream = token_stream(talk.runner, session, prompt, seeded(name, 3), **how)
        streams.append(tokens_of(stream))
    assert [list(tokens) for tokens in zip(*zip(*streams, strict=True), strict=True)] == expected
    talk.cache.remove(1)


def test_prompts_of_several_chunks_are_submitted_ahead(talk):
    runner = Runner(talk.model, talk.cache, chunk=8)
    prompt = [*range(40)]
    expected, _, _ = talk.made(1, seeded("greedy", 1), prompt, limit=6)
    talk.forget()
    how = {"room": 128, "vocabulary": talk.vocabulary, "depth": 4, "max_tokens": 6}
    stream = token_stream(runner, talk.session, prompt, seeded("greedy", 1), **how)
    assert expected == list(tokens_of(stream))
    assert stream.stats.prompt_tokens == 40
    runner.close()


def test_depths_and_prompts_that_do_not_fit_are_refused(talk):
    for depth in (0, MOST_AHEAD + 1):
        with pytest.raises(OptionError, match=f"depth: {depth} steps"):
            talk.stream(depth, SamplingOptions())
    with pytest.raises(ContextFull, match="0 tokens"):
        next(talk.tokens(1, SamplingOptions(), []))
    with pytest.raises(ContextFull, match="has 5 tokens, the context holds 4"):
        next(talk.tokens(1, SamplingOptions(), room=4))
