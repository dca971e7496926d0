"""Stages of a model in other processes: the values of one device, and what happens to lost ones."""

import os
import signal
import socket
import threading
import time
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

import wgpu_backend
from benchmarks.cluster.links import Link
from tests.builders import Dims, tiny_model
from tests.ml.test_placed_executor import pinned_outputs
from tests.ml.test_recorded import outputs_of
from tests.models.adapters import a_lora
from tests.patience import PATIENCE
from tests.placing import placement
from wgpu_backend import __version__
from wgpu_backend.device.adapters import Devices
from wgpu_backend.dtypes import F16, F32, Q8_0
from wgpu_backend.errors import BackendError, ContextError, DeviceLost, ModelError, WorkerLost
from wgpu_backend.files.gguf.reader import open_gguf
from wgpu_backend.graph.capabilities import Capabilities, GroupSizes, MatrixUnit, Tile
from wgpu_backend.ml.backend import BackendParams
from wgpu_backend.ml.context import Context
from wgpu_backend.ml.numpy_executor import NumpyExecutor
from wgpu_backend.ml.placed_executor import PlacedExecutor
from wgpu_backend.ml.placement import Placement
from wgpu_backend.ops.attention.paged_options import Scores, Temperature
from wgpu_backend.ops.sampling.host import SamplingOptions
from wgpu_backend.server.cluster.files import digest_file
from wgpu_backend.server.cluster.graphs import (
    GraphDecoder,
    GraphEncoder,
    capabilities_from_plain,
    capabilities_to_plain,
)
from wgpu_backend.server.cluster.link import Listener, connect, make_ticket
from wgpu_backend.server.cluster.opener import list_parts
from wgpu_backend.server.cluster.stages import (
    CHUNK,
    Patience,
    StageExecutor,
    StageLink,
    open_stage,
)
from wgpu_backend.server.worker.frames import LENGTHS, encode_message
from wgpu_backend.server.worker.messages import StageSpec

TOKEN = "a token of this test alone"
GREEDY = SamplingOptions(temperature=0.0)
SEEDED = SamplingOptions(temperature=0.8, seed=5, repeat_penalty=1.3)
PROMPTS = ([1, 2, 3, 4], [9, 8, 7], list(range(20, 60)))


@pytest.fixture(scope="module")
def node():
    made = Listener(TOKEN)
    yield made
    made.close()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    dims = Dims(layers=3)
    return tiny_model(tmp_path_factory.mktemp("stages") / "tiny.gguf", dims=dims, tied=True)


def stage_spec(node, files=(), **changed):
    """A stage on the NumPy device of a node."""
    own = tuple((str(p), str(p), digest_file(str(p))) for p in files)
    given = {
        "id": "cpu@second", "device": "cpu", "address": node.address,
        "ticket": make_ticket(TOKEN), "version": __version__, "files": own,
    }  # fmt: skip
    return StageSpec(**{**given, **changed})


@pytest.fixture(scope="module")
def stage(node):
    made = open_stage(stage_spec(node), BackendParams())
    yield made
    made.close()


# Graphs.


def test_graphs_give_the_values_of_one_process(stage):
    executor = PlacedExecutor([NumpyExecutor(), stage], placement(4, 2))
    executor.unclosed.silence()
    for seed in range(8):
        wanted = outputs_of(NumpyExecutor(), seed)
        for got, want in zip(pinned_outputs(executor, seed)[0], wanted, strict=True):
            np.testing.assert_array_equal(got, want)


def test_a_stage_alone_has_states_weights_and_results_that_stay(stage):
    rng = np.random.default_rng(3)
    values = rng.standard_normal((4, 32), "f4")
    with Context(stage) as ctx:
        state = ctx.state((4, 32), F32, "cache.1.key")
        ctx.assign(state, values.tobytes())
        np.testing.assert_array_equal(state.numpy(), values)
        assert stage.cache_nbytes() == {"cache.1.key": values.nbytes}
        # More than one message may hold.
        rows = CHUNK // 128 + 3
        raw = rng.integers(0, 255, rows * 128, np.uint8).tobytes()
        large = ctx.state((rows, 32), F32, "large")
        ctx.assign(large, raw)
        assert large.numpy().tobytes() == raw
        block = np.float16(0.5).tobytes() + bytes(range(32))
        weight = ctx.weight(Q8_0, block, 1, 32)
        np.testing.assert_array_equal(weight.numpy(), np.arange(32, dtype="f4")[None] / 2)
        kept = state + 1.0
        ctx.compute(kept)
        np.testing.assert_array_equal((kept * 2.0).numpy(), (values + 1) * 2)
        half = ctx.from_numpy(values[0], F16)
        np.testing.assert_array_equal((half + half).numpy(), values[0].astype("f2") * 2)
        stage.copy([(state, other := ctx.state((4, 32), F32, "other"))])
        np.testing.assert_array_equal(other.numpy(), values)
    assert stage.cache_nbytes() == {}


def test_a_graph_that_others_may_interrupt_runs_whole(stage):
    """As a tower's does on the last device of a placed model."""
    with Context(stage) as context:
        x = context.input("x", (3, 4))
        parts = context.record_pausable(x.add(x).mul(x))
        [(_, cost)] = parts.costs
        assert cost > 0
        values = np.arange(12, dtype="f4").reshape(3, 4)
        for _ in range(2):
            run = parts.begin({"x": values})
            with pytest.raises(ContextError, match="0 of 1 dispatches"):
                run.result()
            run.advance(1).wait()
            assert run.done == len(parts.costs)
            np.testing.assert_array_equal(run.result().wait()[0], 2 * values**2)
            run.close()
        with pytest.raises(ContextError, match="the run was closed"):
            run.advance(1)
        parts.close()


def test_several_runs_are_under_way_and_answered_in_order(stage):
    with Context(stage) as ctx:
        recorded = ctx.record(ctx.input("given", (3,)) + 1.0)
        results = []
        for number in range(6):
            recorded.arrays["given"][...] = number
            results.append(recorded.replay())
        found = [result.wait()[0] for result in results]
    np.testing.assert_array_equal(np.stack(found)[:, 0], range(1, 7))
    assert [name for name, _, _ in recorded.timed()]
    recorded.close()


def test_a_run_with_other_inputs_and_an_unknown_argument_are_named(stage):
    with Context(stage) as ctx:
        recorded = ctx.record(ctx.input("given", (3,)) + 1.0)
        with pytest.raises(ContextError, match=r"inputs are \['given'\], got \['other'\]"):
            recorded.run({"other": np.zeros(3, "f4")})
        with pytest.raises(ContextError, match="was released"):
            stage.number(ctx.input("given", (3,)).storage)
        node = ctx.input("given", (3,)) + 1.0
        node.call.kwargs["strange"] = object()
        with pytest.raises(ContextError, match="add: an argument of type object cannot be sent"):
            stage.record([node])


def test_graphs_and_capabilities_survive_as_plain_data():
    scores = Scores(16, 0.25, 2, temperature=Temperature(0.1, 8192))
    encoder = GraphEncoder([], [], lambda _: 0)
    decoder = GraphDecoder(encoder.plain, b"", {})
    for value in (scores, (1, [2.5, "x", None]), F16, 1 + 2j, True):
        assert decoder._decode(encoder._encode("op", value)) == value
    known = Capabilities(
        software=True, tuned={"linear": Tile(1, 2, 3)}, rounded=frozenset({"q4_0"}),
        group_sizes=GroupSizes(32, 16, 8, 4), matrix=MatrixUnit(16, 16, 16, 32, "naga"),
        expert_tiles=((32, 8), (8, 2)),
    )  # fmt: skip
    assert capabilities_from_plain(capabilities_to_plain(known)) == known
    with pytest.raises(BackendError, match="a graph is damaged"):
        GraphDecoder({"storages": [], "nodes": [[0]]}, b"", {})


# Models.


def texts(path, **where):
    """Tokens of prompts one by one, then of all at once."""
    with wgpu_backend.load(path, num_ctx=128, num_parallel=4, exact=True, **where) as model:
        alone = [
            list(model.tokens(prompt, options, num_predict=12))
            for prompt in PROMPTS
            for options in (GREEDY, SEEDED)
        ]
        with wgpu_backend.Engine(model) as engine:
            requests = [
                engine.submit(wgpu_backend.Request(prompt, GREEDY, max_tokens=12))
                for prompt in PROMPTS
            ]
            together = [request.result(PATIENCE).choices[0].tokens for request in requests]
        memory = model.backend.backend_memory()
    return alone, [list(each) for each in together], sum(memory.cpu.weights)


@pytest.mark.slow
def test_a_model_over_three_processes_writes_the_text_of_one(path, node):
    *wanted, alone = texts(path, device="cpu")
    specs = [stage_spec(node, [path], id=name) for name in ("cpu@second", "cpu@third")]
    placed = Placement(("cpu", "cpu@second", "cpu@third"), (0, 1, 2), 0, 2)
    openers = {each.id: partial(open_stage, each) for each in specs}
    *found, spread = texts(path, placement=placed, openers=openers)
    assert found == wanted
    # The table is on the first node, and as the head on the last.
    assert spread > alone


@pytest.mark.slow
def test_a_stage_reads_its_own_copy_of_the_file(path, node, tmp_path):
    """The first node's file has zeros where the weights of the stage are."""
    wanted, _, _ = texts(path, device="cpu")
    first = tmp_path / "first.gguf"
    data = bytearray(path.read_bytes())
    with open_gguf(path) as file:
        found = [info for name, info in file.tensors.items() if name.startswith("blk.2.")]
        for info in found:
            data[info.offset : info.offset + info.nbytes] = bytes(info.nbytes)
    first.write_bytes(data)
    spec = stage_spec(node, files=[path])
    [(_, there, digest)] = spec.files
    spec = replace(spec, files=((str(first), there, digest),))
    placed = Placement(("cpu", "cpu@second"), (0, 0, 1), 0, 1)
    assert texts(first, device="cpu")[0] != wanted
    got = texts(first, placement=placed, openers={"cpu@second": partial(open_stage, spec)})
    assert got[0] == wanted


@pytest.mark.slow
def test_a_stage_reads_adapters_and_parts_of_split_models_from_its_own_files(
    node, tmp_path, monkeypatch
):
    tiny_model(tmp_path / "m.gguf", dims=Dims(layers=3), tensors_per_part=8)
    parts = sorted(tmp_path.glob("m-*"))
    lora = a_lora(tmp_path / "lora.gguf", parts[0], rank=3, unchanged=())
    assert list_parts(str(parts[0])) == [str(each) for each in parts[1:]]
    sent, make = [], StageExecutor.make

    def noting(self, number, message, data=b""):
        if message["do"] == "weight" and not message["places"]:
            sent.append(message["label"])
        return make(self, number, message, data)

    monkeypatch.setattr(StageExecutor, "make", noting)
    given = {"num_ctx": 128, "exact": True, "adapters": [(lora, 0.5)]}
    spec = stage_spec(node, [*parts, lora])
    placed = Placement(("cpu", spec.id), (0, 0, 1), 0, 1)
    with wgpu_backend.load(parts[0], device="cpu", **given) as model:
        wanted = list(model.tokens(PROMPTS[0], GREEDY, num_predict=12))
    openers = {spec.id: partial(open_stage, spec)}
    with wgpu_backend.load(parts[0], placement=placed, openers=openers, **given) as model:
        assert list(model.tokens(PROMPTS[0], GREEDY, num_predict=12)) == wanted
    assert sent == []


# What is refused before anything is loaded.


def test_another_file_under_the_same_name_is_refused(path, node, tmp_path):
    other = tmp_path / path.name
    other.write_bytes(path.read_bytes()[:-1] + b"!")
    spec = stage_spec(node, [path])
    [(here, _, digest)] = spec.files
    with pytest.raises(ModelError, match=f"SHA-256 {digest_file(str(other))}, the first node's"):
        open_stage(replace(spec, files=((here, str(other), digest),)), BackendParams())


@pytest.mark.slow
def test_another_version_is_refused(node):
    with pytest.raises(ModelError, match=f"version 0.0.1, this stage's node has {__version__}"):
        open_stage(stage_spec(node, version="0.0.1"), BackendParams())


@pytest.mark.slow
def test_a_device_that_is_not_there_is_named(node):
    with pytest.raises(BackendError, match="vulkan:77"):
        open_stage(stage_spec(node, device="vulkan:77"), BackendParams())


def test_a_ticket_of_another_cluster_starts_nothing(node, monkeypatch):
    started = []
    monkeypatch.setattr("wgpu_backend.server.cluster.link.start_process", started.append)
    with pytest.raises(WorkerLost, match="needs a running node and its token"):
        connect(node.address, make_ticket("another token, also long"), ticket=True)
    assert not started


# Faults.


@pytest.fixture
def ends():
    """A link to a stage that this test plays, and the stage's socket."""
    near, far = socket.socketpair()
    link = StageLink(near, "cpu@second", 1, Patience(0.05, 0.3, 0.6))
    yield link, far
    link.close()
    far.close()


def test_a_stage_without_a_sign_of_life_is_lost(ends):
    link, _ = ends
    begun = time.monotonic()
    with pytest.raises(DeviceLost, match=r"cpu@second is lost: it has not answered for 0\.3 s"):
        link.ask({"do": "ping"})
    assert time.monotonic() - begun < PATIENCE
    # All that comes after fails with the same error.
    with pytest.raises(DeviceLost, match=r"not answered for 0\.3 s"):
        link.post({"do": "ping"})


def test_a_stage_that_lives_and_answers_late_is_lost(ends):
    link, far = ends
    link.set_patience(Patience(0.05, PATIENCE, 0.6))
    over = threading.Event()

    def live():
        while not over.wait(0.02):
            far.sendall(encode_message({"type": "beat"}))

    beats = threading.Thread(target=live)
    beats.start()
    try:
        with pytest.raises(DeviceLost, match=r"one answer has taken more than 0\.6 s"):
            link.ask({"do": "ping"})
    finally:
        over.set()
        beats.join()


def test_a_stage_whose_run_is_not_waited_for_is_looked_after(ends):
    link, far = ends
    call = link.begin({"do": "run"})
    far.sendall(encode_message({"type": "answer"}))
    link.check()
    assert call.answer is not None
    link.begin({"do": "run"})
    far.close()
    with pytest.raises(DeviceLost, match="cpu@second is lost"):
        link.check()


@pytest.fixture(params=["as here", "as macOS", "as Windows"])
def system(request, monkeypatch):
    """What `select` has: only Linux tells an end from data, and Windows does not poll."""
    if request.param != "as here":
        monkeypatch.delattr("select.POLLRDHUP", raising=False)
    if request.param == "as Windows":
        monkeypatch.delattr("select.poll", raising=False)


def timed_wait(link, seconds):
    begun = time.monotonic()
    link.wait_for_end(seconds)
    return time.monotonic() - begun


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("data", [False, True])
def test_an_end_is_noticed_at_once_and_data_are_left_for_others(ends, data):
    link, far = ends
    call = link.begin({"do": "run"})
    if data:
        far.sendall(encode_message({"type": "answer"}))
    # Whoever waits for it does not get less of it.
    assert timed_wait(link, 0.3) >= 0.3
    if data:
        assert link.wait(call)[0] == {"type": "answer"}
    threading.Timer(0.1, far.shutdown, [socket.SHUT_WR]).start()
    assert timed_wait(link, PATIENCE) < PATIENCE / 2


@pytest.mark.usefixtures("system")
def test_a_wait_for_an_end_ends_when_the_link_is_closed(ends):
    link, _ = ends
    threading.Timer(0.1, link.close).start()
    assert timed_wait(link, PATIENCE) < PATIENCE / 2
    # One that was closed before is not waited for.
    assert timed_wait(link, PATIENCE) < PATIENCE / 2


def test_a_stage_that_takes_no_data_is_lost(ends):
    link, _ = ends
    with pytest.raises(DeviceLost, match=r"it has taken no data for 0\.3 s"):
        link.post({"do": "data"}, bytes(CHUNK))


@pytest.mark.parametrize(
    ("sent", "named"),
    [
        (
            LENGTHS.pack(2, 101) + b"{}" + bytes(101),
            "2 bytes of JSON and 101 of data, needs at most 1048576 and 100",
        ),
        (LENGTHS.pack(1 << 30, 0), "it sends 1073741824 bytes of JSON and 0 of data"),
        (LENGTHS.pack(3, 0) + b"[1]", "it sends no message"),
        (LENGTHS.pack(2, 0) + b"{}", "it sends no message"),
    ],
)
def test_a_frame_that_no_answer_needs_is_refused(ends, sent, named):
    link, far = ends
    far.sendall(sent)
    with pytest.raises(DeviceLost, match=named):
        link.ask({"do": "run"}, most=100)


@pytest.mark.slow
def test_a_stage_refuses_more_than_its_graphs_need(node):
    made = open_stage(stage_spec(node), BackendParams())
    try:
        made.link.ask({"do": "ping"}, bytes(CHUNK))
        made.link._socket.sendall(LENGTHS.pack(2, CHUNK + 1) + b"{}")
        with pytest.raises(DeviceLost, match="cpu@second is lost"):
            made.link.ask({"do": "ping"})
    finally:
        made.close()


def two_processes(path, node, address=None, **patience):
    """A model with its last layers on a stage."""
    given = {"address": address} if address else {}
    spec = stage_spec(node, [path], **given)
    lost, again = patience.pop("lost", lambda _: None), patience.pop("reopen", 0.0)
    wait = Patience(**patience)
    return wgpu_backend.load(
        path, num_ctx=128, num_parallel=4, exact=True,
        placement=Placement(("cpu", "cpu@second"), (0, 0, 1), 0, 1),
        openers={
            "cpu@second": partial(
                open_stage, spec, patience=wait, lost=lost, reopen_seconds=again
            )
        },
    )  # fmt: skip


def stage_of(model):
    return model.backend.executor.children[1]


def test_a_killed_stage_ends_its_requests_with_an_error_that_names_it(path, node):
    with two_processes(path, node) as model:
        engine = wgpu_backend.Engine(model)
        running = engine.submit(wgpu_backend.Request([1, 2, 3], GREEDY, max_tokens=100))
        next(iter(running))
        os.kill(stage_of(model).link.pid, signal.SIGKILL)
        with pytest.raises(DeviceLost, match="stage cpu@second is lost"):
            running.result(PATIENCE)
        assert isinstance(engine.ended(), DeviceLost)
        engine.close()


@pytest.mark.slow
def test_a_killed_stage_alone_is_opened_again_and_the_text_is_the_same(path, node):
    """With the first half's weights and all graphs; what ran fails, what waited does not."""
    seen = threading.Event()
    with two_processes(path, node, lost=lambda _: seen.set(), reopen=PATIENCE) as model:
        stage, first = stage_of(model), model.backend.executor.children[0]
        with wgpu_backend.Engine(model, num_parallel=1) as engine:

            def ask(prompt, tokens=12):
                return engine.submit(wgpu_backend.Request(prompt, GREEDY, max_tokens=tokens))

            wanted = [ask(prompt).result(PATIENCE).choices[0].tokens for prompt in PROMPTS]
            pid, running = stage.link.pid, ask([1, 2, 3], 100)
            next(iter(running))
            waiting = ask(PROMPTS[0])
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(WorkerLost, match=r"stage cpu@second is lost.*opened again"):
                running.result(PATIENCE)
            assert waiting.result(PATIENCE).choices[0].tokens == wanted[0]
            assert stage.link.pid != pid
            assert model.backend.executor.children[0] is first
            # While nothing runs, too.
            seen.clear()
            os.kill(stage.link.pid, signal.SIGKILL)
            assert seen.wait(PATIENCE)
            engine.wake()
            found = [ask(prompt).result(PATIENCE).choices[0].tokens for prompt in PROMPTS]
            assert found == wanted


def test_states_that_the_host_wrote_are_there_again_and_caches_are_empty(node):
    made = open_stage(stage_spec(node), BackendParams(), reopen_seconds=PATIENCE)
    try:
        with Context(made) as ctx:
            scales, key = ctx.state((4,), F32, "scales"), ctx.state((4,), F32, "cache.1.key")
            for state in (scales, key):
                ctx.assign(state, np.arange(4, dtype="f4").tobytes())
            weight = ctx.weight(F32, np.full(4, 7, "f4").tobytes(), 1, 4)
            recorded = ctx.record(weight + ctx.input("x", (4,)) + np.float32(1).item())
            assert made.lost is None
            os.kill(made.link.pid, signal.SIGKILL)
            with pytest.raises(DeviceLost):
                made.link.ask({"do": "ping"})
            assert made.lost is not None
            made.reopen()
            assert made.lost is None
            np.testing.assert_array_equal(scales.numpy(), range(4))
            np.testing.assert_array_equal(key.numpy(), np.zeros(4))
            found = recorded.run({"x": np.ones(4, "f4")}).wait()[0]
            np.testing.assert_array_equal(found.reshape(-1), np.full(4, 9))
            # What a graph left as a state cannot be made again.
            kept = scales + 1.0
            ctx.compute(kept)
            os.kill(made.link.pid, signal.SIGKILL)
            with pytest.raises(DeviceLost):
                made.link.ask({"do": "ping"})
            with pytest.raises(DeviceLost, match="is lost"):
                made.reopen()
    finally:
        made.close()


@pytest.mark.slow
def test_a_stage_whose_node_is_gone_is_given_up_after_a_while(path):
    listener = Listener(TOKEN)
    made = open_stage(stage_spec(listener), BackendParams(), reopen_seconds=0.3)
    try:
        listener.close()
        with pytest.raises(DeviceLost):
            made.link.ask({"do": "ping"})
        with pytest.raises(DeviceLost, match="it was not opened again: cluster: node"):
            made.reopen()
    finally:
        made.close()


@pytest.mark.slow
def test_a_killed_stage_is_noticed_while_nothing_runs(path, node):
    seen, noticed = [], threading.Event()

    def lost(error):
        seen.append(error)
        noticed.set()

    with two_processes(path, node, beat=0.05, lost=lost) as model:
        os.kill(stage_of(model).link.pid, signal.SIGKILL)
        assert noticed.wait(PATIENCE)
        assert isinstance(seen[0], DeviceLost)
    assert len(seen) == 1


@pytest.mark.slow
def test_a_slow_link_and_one_that_is_down_for_a_while_change_no_text(path, node):
    wanted = texts(path, device="cpu")[0]
    between = Link(node.address, delay=0.005)
    try:
        with two_processes(path, node, address=between.address, beat=0.1) as model:
            first = [list(model.tokens(PROMPTS[0], GREEDY, num_predict=12))]
            timer = threading.Timer(0.5, between.go_on)
            between.stop()
            timer.start()
            first.append(list(model.tokens(PROMPTS[1], GREEDY, num_predict=12)))
            timer.join()
    finally:
        between.close()
    assert first == [wanted[0], wanted[2]]


@pytest.mark.slow
def test_a_link_that_is_down_for_too_long_is_an_error(path, node):
    between = Link(node.address)
    try:
        with two_processes(path, node, address=between.address, beat=0.05, silent=2.0) as model:
            between.stop()
            with pytest.raises(DeviceLost, match="it has not answered for 2 s"):
                list(model.tokens(PROMPTS[1], GREEDY, num_predict=12))
    finally:
        between.close()


@pytest.mark.slow
@pytest.mark.gpu
def test_an_adapter_is_a_stage_too(path, node):
    name = Devices()[0].id
    wanted = texts(path, device=name)[0]
    spec = stage_spec(node, [path], device=name, id=f"{name}@second")
    placed = Placement((name, spec.id), (0, 0, 1), 0, 1)
    assert texts(path, placement=placed, openers={spec.id: partial(open_stage, spec)})[0] == wanted
