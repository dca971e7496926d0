"""Misuse of a model by a caller is an error with a remedy, never a crash."""

import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import wgpu_backend
from tests.builders import tiny_model
from tests.patience import PATIENCE
from wgpu_backend.cli.parameters import MAX_CONTEXT as ASKED_FOR
from wgpu_backend.engine.language_model import MAX_CONTEXT
from wgpu_backend.errors import (
    BackendError,
    ContextFull,
    ModelError,
    OptionError,
    OutOfMemory,
    TemplateError,
)
from wgpu_backend.ops.op import fusions
from wgpu_backend.ops.sampling.host import SamplingOptions

GREEDY = SamplingOptions(temperature=0)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("misuse") / "model.gguf")


@pytest.fixture(scope="module")
def model(path):
    with wgpu_backend.load(path, device="cpu") as model:
        yield model


@pytest.mark.parametrize("positions", [0, -1, MAX_CONTEXT + 1, 10**12])
def test_a_context_out_of_range_is_refused(path, positions):
    with pytest.raises(ContextFull, match=f"num_ctx: {positions}, needs 1 to {MAX_CONTEXT}"):
        wgpu_backend.load(path, device="cpu", num_ctx=positions)


def test_the_command_asks_for_no_more_than_the_library_gives():
    assert ASKED_FOR == MAX_CONTEXT


def test_a_cache_that_the_host_cannot_hold_is_out_of_memory(path, monkeypatch):
    def full(*_, **__):
        raise MemoryError("Unable to allocate 119. GiB")

    numpy = SimpleNamespace(**{**vars(np), "zeros": full})
    monkeypatch.setattr("wgpu_backend.ml.numpy_executor.np", numpy)
    with pytest.raises(OutOfMemory, match=r"num_ctx: 128 .* Unable to allocate .* smaller num_ctx"):
        wgpu_backend.load(path, device="cpu")


def test_a_rule_that_there_is_not_is_refused_with_those_there_are():
    with pytest.raises(OptionError, match=r"no rule is called 'teapot', there are .*, rope_put, "):
        fusions(["rope_put", "teapot"], exact=True)


@pytest.mark.parametrize(
    "messages", [{}, [{}], [{"role": "user"}], [{"role": "user", "content": None}], [None]]
)
def test_messages_that_are_none_are_named(model, messages):
    with pytest.raises(TemplateError, match=r"chat: message 0 is .*, needs role and content"):
        model.chat(messages)


def test_a_text_alone_is_one_text_and_not_its_letters(model):
    assert model.embed("in the").shape == (1, 64)
    whole = model.generate("in", num_predict=8, options=GREEDY)
    stop = whole[0] + "no such text"
    assert model.generate("in", num_predict=8, options=GREEDY, stop=stop) == whole
    assert model.generate("in", num_predict=8, options=GREEDY, stop=[""]) == whole


def test_tokens_may_be_numpys_and_have_to_be_whole(model):
    np.testing.assert_array_equal(model.logits(np.array([1, 2])), model.logits([1, 2]))
    with pytest.raises(ModelError, match="tokens: needs whole numbers: 'float'"):
        model.logits([1.5])
    with pytest.raises(OptionError, match=r"num_predict: 1\.5, needs a whole number"):
        model.generate("in", num_predict=1.5)


def test_a_closed_model_says_that_it_is(path):
    model = wgpu_backend.load(path, device="cpu")
    begun = model.generate("in the", stream=True)
    next(begun)
    model.close()
    model.close()
    for use in (
        lambda: next(begun),
        lambda: model.generate("in"),
        lambda: model.chat([{"role": "user", "content": "in"}]),
        lambda: model.embed(["in"]),
        lambda: model.logits([1]),
        lambda: next(model.tokens([1])),
    ):
        with pytest.raises(BackendError, match=r"model\.gguf: the model was closed; load it again"):
            use()


@pytest.mark.gpu
@pytest.mark.parametrize("steps", [1, 3, 6])
def test_closing_while_another_thread_generates_waits_for_its_step(path, full, steps):
    model = wgpu_backend.load(path, device=full.info.id)
    told, made = [], threading.Semaphore(0)

    def talk():
        try:
            # Again and again: the context may be full before the other thread gets to close.
            while True:
                for _ in model.tokens([1, 2, 3]):
                    made.release()
        except BackendError as error:
            told.append(str(error))

    thread = threading.Thread(target=talk, daemon=True)
    thread.start()
    for _ in range(steps):
        made.acquire(timeout=PATIENCE)
    model.close()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert [error.rpartition(": ")[2] for error in told] == ["the model was closed; load it again"]


@pytest.mark.gpu
def test_threads_that_share_a_model_take_turns(path, full):
    told: list[str] = []

    def use(number):
        try:
            if number % 2:
                told.append(f"{model.logits([1, 2, 3]).shape}")
            else:
                list(model.tokens([1, 2, 3], num_predict=20))
                told.append("all")
        except BackendError as error:
            told.append(str(error))

    with wgpu_backend.load(path, device=full.info.id) as model:
        threads = [threading.Thread(target=use, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        wanted = model.logits([1, 2, 3])
        assert all(t in ("all", "(3, 270)") or "took the session over" in t for t in told)
        assert len(told) == 6
        np.testing.assert_array_equal(model.logits([1, 2, 3]), wanted)


def test_an_answer_that_nobody_reads_to_its_end_is_forgotten(model):
    whole = model.generate("in the", num_predict=4, options=GREEDY)
    begun = model.generate("in the", stream=True)
    next(begun)
    del begun
    gc.collect()
    assert model.generate("in the", num_predict=4, options=GREEDY) == whole
    with pytest.raises(ModelError, match="tokens: -1 is not a token"):
        model.logits([-1])
