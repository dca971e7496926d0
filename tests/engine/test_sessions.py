"""Threads, sessions and streams that share a model: each gets what it would get alone."""

import gc
import itertools
import threading
import time
from _thread import interrupt_main
from functools import partial

import pytest

import wgpu_backend
from tests.builders import tiny_model
from tests.patience import PATIENCE, until
from wgpu_backend.engine.fifo_lock import FifoLock
from wgpu_backend.engine.sessions import MOST_SESSIONS
from wgpu_backend.errors import BackendError, CacheFull

PROMPTS = ("in the", "on and on", "the", "a")
GREEDY = {"temperature": 0}
HOW = {"num_predict": 12, "options": {"temperature": 1.5, "seed": 7}}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("sessions") / "model.gguf")


@pytest.fixture(params=["cpu", pytest.param("wgpu", marks=pytest.mark.gpu)])
def model(request, path):
    device = "cpu" if request.param == "cpu" else request.getfixturevalue("full").info
    with wgpu_backend.load(path, device=device) as model:
        yield model


@pytest.fixture
def small(path):
    """A model whose cache has four blocks."""
    with wgpu_backend.load(path, device="cpu", num_ctx=128) as model:
        yield model


def in_threads(*acts):
    """Results of functions that run side by side, or their errors."""
    results = [None] * len(acts)

    def run(number):
        try:
            results[number] = acts[number]()
        except BackendError as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=(n,), daemon=True) for n in range(len(acts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert not any(thread.is_alive() for thread in threads)
    return results


def test_threads_that_generate_at_once_get_what_they_get_alone(model):
    alone = [model.generate(prompt, **HOW) for prompt in PROMPTS]
    acts = [lambda p=prompt: model.generate(p, **HOW) for prompt in PROMPTS]
    assert in_threads(*acts, *acts) == alone * 2


def test_streams_of_sessions_in_threads_give_what_they_give_alone(model):
    alone = [model.generate(prompt, **HOW) for prompt in PROMPTS]

    def talk(prompt):
        with model.session() as session:
            return "".join(session.generate(prompt, stream=True, **HOW))

    assert in_threads(*(lambda p=prompt: talk(p) for prompt in PROMPTS)) == alone


def test_streams_of_sessions_take_turns_step_by_step(model):
    alone, made = [], []
    for prompt in PROMPTS:
        alone.append(model.generate(prompt, **HOW))
        made.append(model.stats.tokens)
    sessions = [model.session() for _ in PROMPTS]
    streams = [s.generate(p, stream=True, **HOW) for s, p in zip(sessions, PROMPTS, strict=True)]
    turns = list(itertools.zip_longest(*streams, fillvalue=""))
    assert ["".join(parts) for parts in zip(*turns, strict=True)] == alone
    assert [s.stats.tokens for s in sessions] == made


def test_a_session_reuses_what_it_computed_while_others_talk(model):
    first, other = model.session(), model.session()
    first.generate("in the", num_predict=1)
    other.generate("on and on", num_predict=4)
    model.generate("a", num_predict=4)
    first.generate("in the", num_predict=1)
    assert (first.stats.prompt_tokens, first.stats.reused_tokens > 0) == (1, True)


@pytest.mark.parametrize(
    ("use", "who"),
    [
        (lambda model: model.generate("a", num_predict=1), "another call of generate()"),
        (lambda model: next(model.generate("a", stream=True)), "another call of generate()"),
        (lambda model: list(model.tokens([1], num_predict=1)), "another call of tokens()"),
        (lambda model: model.logits([1]), "logits()"),
        (lambda model: model.embed("a"), "embed()"),
    ],
)
def test_a_stream_is_told_who_took_its_session_and_what_to_do(small, use, who):
    begun = small.generate("in the", stream=True, options=GREEDY)
    next(begun)
    use(small)
    with pytest.raises(BackendError) as caught:
        next(begun)
    assert f"generate: {who} took the session over after token " in str(caught)
    assert "model.session()" in str(caught)


def test_what_a_session_does_leaves_a_stream_of_the_model_alone(small):
    whole = small.generate("in the", **HOW)
    begun = small.generate("in the", stream=True, **HOW)
    first = next(begun)
    with small.session() as session:
        session.generate("a", num_predict=5)
    assert first + "".join(begun) == whole


def test_a_closed_session_says_so_and_gives_its_places_back(small):
    free = small.cache.free_positions
    session = small.session()
    begun = session.generate("in the", stream=True, options=GREEDY)
    next(begun)
    prepared = session.generate("in the", stream=True, options=GREEDY)
    assert small.cache.free_positions < free
    session.close()
    session.close()
    assert small.cache.free_positions == free
    for use in (
        lambda: next(begun),
        lambda: next(prepared),
        lambda: session.generate("in"),
        lambda: next(session.tokens([1])),
    ):
        with pytest.raises(BackendError, match=r"session was closed; .* model\.session\(\)"):
            use()


def test_a_session_that_is_dropped_gives_its_places_back(small):
    free = small.cache.free_positions
    session = small.session()
    session.generate("in the", num_predict=2)
    del session
    gc.collect()
    small.session().close()
    assert small.cache.free_positions == free


def test_a_closed_model_closes_its_sessions(path):
    with wgpu_backend.load(path, device="cpu") as model:
        session = model.session()
        begun = session.generate("in the", stream=True, options=GREEDY)
        next(begun)
    for use in (lambda: next(begun), lambda: session.generate("in"), model.session):
        with pytest.raises(BackendError, match="the model was closed; load it again"):
            use()
    session.close()


def test_there_are_only_so_many_sessions(small):
    sessions = [small.session() for _ in range(MOST_SESSIONS - 1)]
    with pytest.raises(BackendError, match="31 sessions are open, a model has places for 31"):
        small.session()
    sessions[0].close()
    small.session()


def test_an_idle_session_gives_its_room_to_one_that_needs_it(small):
    whole = small.generate("the " * 20, **HOW)
    sessions = [small.session() for _ in range(6)]
    for session in sessions:
        assert session.generate("the " * 20, **HOW) == whole


def test_streams_that_hold_the_whole_cache_are_named(small):
    one, other = small.session(), small.session()
    begun = one.tokens([5] * 90, GREEDY, num_predict=20)
    next(begun)
    with pytest.raises(CacheFull, match=r"streams of other sessions hold 9\d of the .* 128 pos"):
        other.generate("the " * 40, num_predict=4)
    assert len(list(begun)) == 19
    other.generate("the " * 40, num_predict=4)


def test_a_call_that_is_not_a_stream_holds_the_model_while_others_wait(small, monkeypatch):
    order, all_wait = [], threading.Event()
    following, line = small.runner.batched_submit, small._session.calls._line

    def slow(*arguments):
        all_wait.wait(PATIENCE)
        order.append(threading.current_thread().name)
        return following(*arguments)

    monkeypatch.setattr(small.runner, "batched_submit", slow)
    threads = []

    def talk():
        small.generate("in the", num_predict=5)

    for name in "abc":
        threads.append(threading.Thread(target=talk, name=name, daemon=True))
        threads[-1].start()
        assert until(lambda: len(line) == len(threads))
    all_wait.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert [name for name, _ in itertools.groupby(order)] == ["a", "b", "c"]


def test_closing_tells_those_who_wait(path):
    model = wgpu_backend.load(path, device="cpu")
    begun = threading.Event()

    def endless():
        while True:
            begun.set()
            model.generate("in the")

    def closing():
        begun.wait(PATIENCE)
        model.close()

    *told, _ = in_threads(endless, endless, endless, closing)
    assert all("the model was closed; load it again" in str(error) for error in told)


def test_turns_come_in_the_order_in_which_they_were_asked_for():
    turns, order, threads = FifoLock(), [], []

    def first():
        for number in range(8):
            thread = threading.Thread(target=turns.take, args=(partial(order.append, number),))
            threads.append(thread)
            thread.start()
            while len(turns._line) < number + 2:
                time.sleep(0.001)

    turns.take(first)
    turns.take(lambda: order.append("again"))
    for thread in threads:
        thread.join(PATIENCE)
    assert order == [*range(8), "again"]


def test_who_is_interrupted_while_waiting_is_passed_over():
    turns, go, order = FifoLock(), threading.Event(), []
    holder = threading.Thread(target=turns.take, args=(lambda: go.wait(PATIENCE),))
    holder.start()
    while len(turns._line) < 1:
        time.sleep(0.001)
    behind = threading.Thread(target=lambda: late(turns, order))

    def disturb():
        assert until(lambda: len(turns._line) == 2)
        behind.start()
        assert until(lambda: len(turns._line) == 3)
        interrupt_main()

    threading.Thread(target=disturb).start()
    with pytest.raises(KeyboardInterrupt):
        turns.take(lambda: order.append("interrupted"))
    go.set()
    holder.join(PATIENCE)
    while not order:
        time.sleep(0.001)
    behind.join(PATIENCE)
    assert (order, len(turns._line)) == (["behind"], 0)


def late(turns, order):
    turns.take(lambda: order.append("behind"))


def test_ctrl_c_ends_a_call_that_waits_and_the_model_goes_on(small):
    wanted = small.generate("in the", **HOW)
    go = threading.Event()
    holder = threading.Thread(target=small._session.calls.take, args=(lambda: go.wait(PATIENCE),))
    holder.start()
    line = small._session.calls._line
    assert until(lambda: len(line) == 1)

    def disturb():
        assert until(lambda: len(line) == 2)
        interrupt_main()

    threading.Thread(target=disturb).start()
    with pytest.raises(KeyboardInterrupt):
        small.generate("in the")
    go.set()
    holder.join(PATIENCE)
    assert small.generate("in the", **HOW) == wanted


def test_a_thread_that_has_its_turn_does_not_wait_for_itself():
    turns = FifoLock()
    assert turns.take(lambda: turns.take(lambda: 3)) == 3
    with pytest.raises(KeyError):
        turns.take(lambda: {}[1])
    assert turns.offer(lambda: None)
