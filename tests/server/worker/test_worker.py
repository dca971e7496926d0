"""A worker answers as a model in this process does; a crash of the worker is an error."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest

import wgpu_backend as wb
from tests.builders import tiny_model
from tests.models.adapters import a_lora
from tests.patience import PATIENCE, until
from tests.server.running import alive
from tests.server.worker import losing
from wgpu_backend.engine.loading import bundled
from wgpu_backend.ml.placement import PlacementOptions
from wgpu_backend.server.worker import client, health, process
from wgpu_backend.server.worker.estimate import estimate_nbytes
from wgpu_backend.server.worker.messages import LoadSpec
from wgpu_backend.server.worker.remote import Workers, open_worker

SEEDED = {"seed": 3, "temperature": 0.7}
signals = pytest.mark.skipif(os.name == "nt", reason="needs signals")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("worker") / "model.gguf")


def opened(path, lost=None, device="cpu", hang_seconds=300, **more):
    spec = LoadSpec(str(path), device, num_ctx=64, num_parallel=2, **more)
    told = (lost if lost is not None else []).append
    return open_worker("tiny", spec, 2, told, hang_seconds=hang_seconds)


@pytest.fixture(scope="module")
def worker(path):
    worker = opened(path)
    yield worker
    worker.close()
    worker.close()
    assert gone(worker.pid)


@pytest.fixture(scope="module")
def model(path):
    with wb.load(path, device="cpu", num_ctx=64, num_parallel=2) as model:
        yield model


def gone(pid, *, orphan=False):
    """Whether a process ends in time, and leaves no zombie; those of orphans are init's."""

    def ended():
        try:
            os.kill(pid, 0)
        except OSError:
            return True
        return orphan and not alive(pid)

    return until(ended)


def asked(tokens, **more):
    return wb.Request(tokens, options=SEEDED, **more)


def endless(worker):
    """An answer that goes on, begun."""
    request = asked([1, 2, 3], max_tokens=100_000, when_full="shift", ignore_eos=True)
    generation = worker.engine.submit(request)
    next(iter(generation))
    return generation


def test_a_worker_knows_what_the_model_knows(worker, model):
    assert worker.num_ctx == model.num_ctx
    assert worker.vocabulary == model.vocabulary
    assert worker.config.architecture == model.config.architecture
    assert (worker.device.id, worker.device.kind) == (model.device.id, "cpu")
    assert worker.prompter.raw("the and") == model.prompter.raw("the and")
    # Its engine has slots for tokens, beside what the model has.
    assert 0 <= worker.nbytes - model.backend.backend_memory().size <= 4096


def test_the_same_tokens_as_in_this_process(worker, model):
    request = asked([1, 2, 3], max_tokens=8, logprobs=2, n=2, logit_bias={5: -2.0})
    with wb.Engine(model) as engine:
        here = engine.submit(request).result()
    there = worker.engine.submit(request).result()
    for ours, theirs in zip(here.choices, there.choices, strict=True):
        assert (ours.text, ours.tokens) == (theirs.text, theirs.tokens)
        assert ours.logprobs == theirs.logprobs
    assert there.finish.reason == "length"
    assert there.usage.completion_tokens == 16


def test_answers_keep_to_grammars_there_too(worker):
    pytest.importorskip("llguidance", reason="grammars need llguidance")
    asked_for = asked([1, 2, 3], max_tokens=30, grammar=wb.Grammar.regex("(the|and) on"))
    assert worker.engine.submit(asked_for).result(PATIENCE).text in ("the on", "and on")
    with pytest.raises(wb.GrammarError):
        worker.engine.submit(asked([1], grammar=wb.Grammar.regex("("))).result(PATIENCE)


def test_the_same_vectors_as_in_this_process(worker, model):
    texts = ["the and", "on in"]
    assert np.array_equal(worker.embed(texts), model.embed(texts))
    assert worker.embed([]).shape == (0, 0)
    assert np.array_equal(worker.states([1, 2, 3]), model.states([1, 2, 3]))
    with pytest.raises(wb.ModelError, match="it is not a reranker"):
        worker.rerank("the", texts)


def test_what_a_cache_has_is_saved_dropped_and_brought_back(worker, tmp_path):
    prompt, file = [*range(5, 53)], str(tmp_path / "slot.bin")

    def answered():
        return worker.engine.submit(asked(prompt, max_tokens=4)).result()

    first = answered()
    held = [*prompt, *first.choices[0].tokens]
    count = worker.engine.save_slot(held, file)
    assert count >= len(prompt)
    assert worker.engine.drop_prefix(held) == count
    assert worker.engine.drop_prefix(held) == 0
    assert answered().usage.cached_tokens == 0
    worker.engine.drop_prefix(held)
    assert worker.engine.restore_slot(file) == held[:count]
    again = answered()
    assert again.usage.cached_tokens == len(prompt) - 1
    assert again.choices[0].tokens == first.choices[0].tokens
    worker.engine.drop_prefix(held)
    for wrong, why in ((held, "were evicted"), ([1], "1 tokens, needs more than 32")):
        with pytest.raises(wb.StoreError, match=why):
            worker.engine.save_slot(wrong, file)
    with pytest.raises(wb.StoreError, match="no file 'none"):
        worker.engine.restore_slot(str(tmp_path / "none.bin"))


def test_a_status_and_a_cancelled_answer(worker):
    before = worker.engine.status()
    generation = endless(worker)
    assert sum(slot is not None for slot in worker.engine.status().slots) == 1
    generation.cancel()
    assert generation.result(PATIENCE).finish.reason == "cancelled"
    assert worker.engine.status().cancelled == before.cancelled + 1


@pytest.mark.slow
def test_scales_of_adapters_wait_for_running_requests(path, tmp_path):
    lora = str(a_lora(tmp_path / "lora.gguf", path))

    def vector():
        return worker.embed("the")[0]

    with closing(opened(path, adapters=((lora, 1.0),))) as worker:
        first = vector()
        generation = endless(worker)
        worker.set_lora_scales([0.0])
        assert (vector() == first).all()
        generation.cancel()
        assert until(lambda: (vector() != first).any())
        # The scales are now the model's own, so a request of them leaves a prefix in the cache.
        tokens = [*range(1, 60)]
        for _ in range(2):
            request = asked(tokens, max_tokens=2, lora=[(0, 0.0)])
            found = worker.engine.submit(request).result(PATIENCE)
        assert found.usage.cached_tokens


def test_an_answer_that_is_dropped_ends(worker):
    before = worker.engine.status().cancelled
    endless(worker)
    while worker.engine.status().cancelled == before:
        time.sleep(0.01)


def test_what_cannot_be_answered_is_told_before_it_is_sent(worker):
    with pytest.raises(wb.ContextFull, match="65 tokens, the context holds 64"):
        worker.engine.submit(asked([1] * 65))
    with pytest.raises(wb.ModelError):
        worker.engine.submit(asked([10**6]))


def test_a_full_queue_is_told_and_has_room_again(worker):
    taken = [endless(worker), endless(worker)]
    waiting = [worker.engine.submit(asked([1])) for _ in range(2)]
    with pytest.raises(wb.QueueFull, match="2 of 2 places"):
        worker.engine.submit(asked([1]))
    for each in taken + waiting:
        each.cancel()
    for each in taken + waiting:
        each.result(PATIENCE)
    worker.engine.submit(asked([1], max_tokens=1, n=4)).result(PATIENCE)


def test_many_answers_in_an_event_loop(worker):
    async def main():
        requests = [asked([1, i + 1], max_tokens=4) for i in range(4)]
        return await asyncio.gather(*(worker.engine.submit(each) for each in requests))

    assert [len(each.choices[0].tokens) for each in asyncio.run(main())] == [4] * 4


def test_the_estimate_is_of_the_right_size(worker, path):
    spec = LoadSpec(str(path), "cpu", num_ctx=64, num_parallel=2)
    assert worker.nbytes <= estimate_nbytes(spec) <= worker.nbytes + (256 << 20)


@signals
@pytest.mark.parametrize(
    ("sent", "counts"), [pytest.param("SIGKILL", 0, marks=pytest.mark.slow), ("SIGABRT", 1)]
)
def test_a_worker_that_dies_fails_what_was_under_way(path, sent, counts):
    lost = []
    worker = opened(path, lost)
    generation = endless(worker)
    os.kill(worker.pid, getattr(signal, sent))
    for act in (
        lambda: generation.result(PATIENCE),
        lambda: worker.engine.submit(asked([1])),
        worker.engine.status,
        lambda: worker.embed("the"),
    ):
        with pytest.raises(wb.WorkerLost, match=f"tiny: its worker process ended by {sent}"):
            act()
    assert gone(worker.pid)
    assert worker.lost is not None
    assert len(lost) == counts
    worker.close()


@pytest.mark.slow
@signals
def test_no_worker_outlives_a_server_that_is_killed(path):
    code = f"""
from tests.server.worker.test_worker import *
worker = opened({str(path)!r})
endless(worker)
print(worker.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        pid = int(server.stdout.readline())
        server.kill()
    assert gone(pid, orphan=sys.platform == "linux")


@pytest.mark.parametrize(
    ("name", "error", "told"),
    [("no.gguf", wb.GGUFError, "no such file"), ("empty.gguf", wb.GGUFError, "empty.gguf")],
)
def test_what_cannot_be_loaded_is_told(tmp_path, name, error, told):
    (tmp_path / "empty.gguf").write_bytes(b"")
    with pytest.raises(error, match=told):
        opened(tmp_path / name)


def test_what_only_the_worker_can_tell_is_told(path):
    with pytest.raises(wb.DeviceError, match="toaster"):
        opened(path, device="toaster")


@pytest.mark.slow
@signals
@pytest.mark.gpu
def test_a_lost_device_fails_what_was_under_way(path, full):
    lost = []
    worker = opened(path, lost, full.info.id, imports=(losing.__file__,))
    generation = endless(worker)
    os.kill(worker.pid, signal.SIGUSR1)
    with pytest.raises(wb.DeviceLost, match=r"tiny: the device was lost .* send the request again"):
        generation.result(PATIENCE)
    assert gone(worker.pid)
    assert len(lost) == 1
    worker.close()


class Stored:
    entry = type("Entry", (), {"name": "tiny"})


@pytest.mark.slow
@signals
@pytest.mark.gpu
def test_a_model_on_two_devices_is_placed_on_one_after_the_other_was_lost(path, full, monkeypatch):
    monkeypatch.setattr(health, "MOST_LOSSES", 1)
    first = full.info.id
    both = (first, f"{first}#1")
    spec = LoadSpec(
        str(path),
        first,
        num_ctx=64,
        num_parallel=2,
        imports=(losing.__file__,),
        devices=both,
        placement=PlacementOptions("all", (1.0, 2.0), capped=True),
    )
    workers = Workers(health.Health(both), lambda *_: spec, 2, spare_seconds=None)
    with closing(workers), closing(workers(Stored(), None)) as worker:
        assert f"{first}#1: " in worker.placement
        generations = [endless(worker), endless(worker)]
        os.kill(worker.pid, signal.SIGUSR2)
        for generation in generations:
            with pytest.raises(
                wb.DeviceLost, match=rf"tiny: the device was lost \(device {first}#1:"
            ):
                generation.result(PATIENCE)
        assert workers.health.left == [first]
        with closing(workers(Stored(), None)) as again:
            assert again.placement.startswith(f"{first}: embedding, layers 0-")
            assert again.engine.submit(asked([1, 2, 3])).result(PATIENCE).choices[0].tokens


def test_a_device_that_is_gone_counts_as_lost(path):
    for spec in (
        LoadSpec(str(path), "vulkan:77"),
        LoadSpec(str(path), "cpu", devices=("cpu", "vulkan:77#1"), placement=PlacementOptions()),
    ):
        with pytest.raises(
            wb.DeviceLost, match=r"device vulkan:77(#1)?: it is gone, there are .*cpu"
        ):
            process._load(spec, lambda _: None, lambda _: None)


def test_a_worker_is_looked_into_as_a_model_is(worker, model):
    for what, given in (
        ("attention", {"tokens": [1, 2, 3], "layer": 0}),
        ("graphs", {"prompt": 4}),
        ("memory", {}),
    ):
        found, wanted = worker.inspect(what, given), model.inspect(what, given)
        assert set(found) == set(wanted)
        assert what != "attention" or found["weights"] == wanted["weights"]
    with pytest.raises(wb.OptionError, match="layer: 9, the model has 0 to"):
        worker.inspect("attention", {"tokens": [1], "layer": 9})


@pytest.mark.slow
def test_a_draft_guesses_in_the_worker_where_it_suits_the_model(path, tmp_path, model):
    small = tiny_model(tmp_path / "small.gguf", seed=5)
    with closing(opened(path, engine={"draft": str(small), "draft_tokens": 2})) as worker:
        made = worker.engine.submit(asked([5, 6, 7], max_tokens=12, ignore_eos=True)).result(
            PATIENCE
        )
        assert worker.engine.status().guessed_tokens > 0
    with wb.Engine(model) as engine:
        want = engine.submit(asked([5, 6, 7], max_tokens=12, ignore_eos=True)).result(PATIENCE)
    assert made.choices[0].tokens == want.choices[0].tokens


@pytest.mark.slow
def test_a_model_that_a_draft_does_not_suit_goes_without(path, caplog):
    with closing(opened(path, engine={"draft": str(bundled())})) as worker:
        worker.engine.submit(asked([5, 6], max_tokens=3)).result(PATIENCE)
        assert worker.engine.status().guessed_tokens == 0
    assert "is served without a draft: draft:" in caplog.text


@pytest.mark.slow
@signals
def test_a_worker_that_hangs_is_ended_and_told(path):
    lost = []
    worker = opened(path, lost, hang_seconds=3)
    generation = endless(worker)
    time.sleep(4)  # one that works is left alone
    assert worker.lost is None
    os.kill(worker.pid, signal.SIGSTOP)
    with pytest.raises(wb.WorkerLost, match=r"has not answered for 3 s .* send the request"):
        generation.result(PATIENCE)
    assert gone(worker.pid)
    assert len(lost) == 1
    worker.close()


class Still:
    """A process that says what a test has it say."""

    pid = 1

    def __init__(self, told, ended):
        self.told, self.ended, self.killed = told, ended, False

    def post(self, message): ...

    def kill(self):
        self.killed = True


@pytest.mark.slow
def test_a_worker_that_hangs_while_it_loads_is_ended_and_told(monkeypatch):
    monkeypatch.setattr(client, "LOADING_SECONDS", 1)
    lost, begin = [], time.monotonic()
    slow = client.Client("tiny", LoadSpec("path", "cpu"), lost.append, 0.2, Still)
    while time.monotonic() - begin < 2:  # one that tells how far it is is left alone
        slow._channel.told({"type": "loading", "share": 0.5}, b"")
        time.sleep(0.05)
    assert slow.error is None
    told = r"reported nothing for 1 s while it loaded the model and was ended; .* send the request"
    with pytest.raises(wb.WorkerLost, match=told):
        slow.loaded.result(PATIENCE)
    assert slow._channel.killed
    assert len(lost) == 1


def test_loading_tells_how_far_it_is(path, monkeypatch):
    heard = []
    told = client.Client._receive
    monkeypatch.setattr(
        client.Client,
        "_receive",
        lambda self, *one: (heard.append(one[0]["type"]), told(self, *one)),
    )
    opened(path).close()
    assert heard[0] == "loading"


def test_what_is_wrong_in_an_imported_file_comes_with_its_line(tmp_path):
    path = tiny_model(tmp_path / "model.gguf", "wrong")
    file = tmp_path / "wrong.py"
    file.write_text(
        "import wgpu_backend as wb\n"
        "from wgpu_backend.models.llama import Llama\n"
        "@wb.architecture('wrong')\n"
        "class Wrong(Llama):\n"
        "    def hidden(self, batch):\n"
        "        return batch.no_such_thing\n"
    )
    with (
        closing(opened(path, imports=(str(file),))) as worker,
        pytest.raises(wb.BackendError, match=rf"{file.name}:6: AttributeError"),
    ):
        worker.engine.submit(asked([1, 2, 3], max_tokens=2)).result(PATIENCE)


@pytest.mark.slow
def test_a_worker_needs_no_more_of_an_environment_than_its_paths(path, monkeypatch):
    """On Windows the environment's own program cannot be given a socket."""
    monkeypatch.setattr(sys, "executable", sys._base_executable)
    with closing(opened(path)) as worker:
        assert len(worker.engine.submit(asked([1, 2], max_tokens=2)).result(PATIENCE).text) > 0


@pytest.mark.slow
@pytest.mark.gpu
def test_a_worker_reports_what_is_on_the_gpu(path, model, full):
    adapter = full.info.id
    spec = {"placement": PlacementOptions(gpu_layers=2)}
    with closing(opened(path, device=adapter, **spec)) as worker:
        assert worker.gpu_layers == 2
        assert adapter in worker.placement
        assert 0 < worker.vram_nbytes < worker.nbytes
        tokens = model.tokenizer.encode("a")
        greedy = wb.Request(tokens, options={"temperature": 0}, max_tokens=4)
        there = worker.engine.submit(greedy).result(PATIENCE)
    with wb.Engine(model) as engine:
        assert there.text == engine.submit(greedy).result(PATIENCE).text


def test_a_worker_of_the_cpu_has_nothing_on_a_gpu(worker):
    assert (worker.gpu_layers, worker.vram_nbytes) == (0, 0)


@pytest.mark.slow
def test_a_worker_of_a_replaced_package_names_both_versions(path, monkeypatch):
    monkeypatch.setattr(client, "__version__", "0.0.1")
    with pytest.raises(wb.ModelError, match=r"version 0\.0\.1.* restart the server"):
        opened(path)
