"""Pipelines: shares of layers, and replicas whose layers are on two nodes of this machine."""

import os
import signal
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.cluster.links import Link
from tests.patience import PATIENCE, until
from wgpu_backend import __version__
from wgpu_backend.cli.names import BUNDLED
from wgpu_backend.device.adapters import numpy_device
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.errors import (
    DeviceLost,
    ModelError,
    OptionError,
    OutOfMemory,
    WorkerLost,
)
from wgpu_backend.ml.placement import LayerNbytes, ModelNbytes
from wgpu_backend.server.cluster.files import find_copy
from wgpu_backend.server.cluster.link import Listener
from wgpu_backend.server.cluster.opener import ClusterOpener, NodeFacts
from wgpu_backend.server.cluster.pipelines import StageBudget, share_layers
from wgpu_backend.server.worker.messages import LoadSpec

TOKEN = "a token of this test alone"
GIB = 1 << 30


def model_of(*layers, embedding=0, output=0):
    return ModelNbytes(
        tuple(LayerNbytes(each) for each in layers), LayerNbytes(embedding), LayerNbytes(output)
    )


def counts(placement):
    return [placement.layers.count(at) for at in range(len(placement.devices))]


def budgets(*free, **more):
    return [StageBudget(f"gpu@{at}", each, **more) for at, each in enumerate(free)]


def test_layers_are_shared_by_free_memory():
    model = model_of(*[GIB] * 12)
    assert counts(share_layers(model, budgets(16 * GIB, 8 * GIB), 0)) == [8, 4]
    # The head counts as three layers.
    heavy = model_of(*[GIB] * 12, output=3 * GIB)
    assert counts(share_layers(heavy, budgets(10 * GIB, 10 * GIB), 0)) in ([7, 5], [8, 4])
    assert counts(share_layers(model, budgets(None, None, None))) == [4, 4, 4]


def test_a_model_that_does_not_fit_names_the_stage_and_both_sizes():
    with pytest.raises(OutOfMemory, match=r"gpu@. needs 6.0 GiB for 6 of 12 layers, 5.0 GiB of"):
        share_layers(model_of(*[GIB] * 12), budgets(5 * GIB, 5 * GIB), 0)
    with pytest.raises(OptionError, match="stages: 3, the model has 2 layers"):
        share_layers(model_of(1, 1), budgets(None, None, None))


def test_numpy_nodes_need_the_bytes_of_f32():
    layers = tuple(LayerNbytes(GIB, host_weights=7 * GIB) for _ in range(8))
    model = ModelNbytes(layers)
    share_layers(model, budgets(4 * GIB, 4 * GIB), 0)
    with pytest.raises(OutOfMemory):
        share_layers(model, budgets(4 * GIB, 4 * GIB, is_host=True), 0)


@given(
    st.lists(st.integers(1, 1000), min_size=3, max_size=40),
    st.lists(st.integers(100, 5000), min_size=1, max_size=3),
)
def test_every_layer_is_placed_once_and_no_budget_is_exceeded(layers, free):
    model = model_of(*layers, embedding=50, output=70)
    try:
        found = share_layers(model, budgets(*free), 0)
    except OutOfMemory:
        # No way of cutting the layers fits: checked for two stages, where all ways are few.
        if len(free) == 2:
            for cut in range(1, len(layers)):
                used = 50 + sum(layers[:cut]), 70 + sum(layers[cut:])
                assert used[0] > free[0] or used[1] > free[1]
        return
    assert len(found.layers) == len(layers)
    assert all(b - a in (0, 1) for a, b in pairwise(found.layers))
    for at, room in enumerate(free):
        used = sum(n for n, place in zip(layers, found.layers, strict=True) if place == at)
        used += (50 if at == 0 else 0) + (70 if at == len(free) - 1 else 0)
        assert used <= room


# Nodes of this machine.


class LocalNode:
    """A node with a listener of its own, reached through a link."""

    def __init__(self, **facts):
        self.listener = Listener(TOKEN)
        self.link = Link(self.listener.address)
        self.facts, self.copies = facts, True

    def describe(self, device=None):
        given = {"name": "node", "version": __version__, "device": numpy_device()}
        return NodeFacts(**{**given, "address": self.link.address, **self.facts})

    def find(self, path, digest):
        return find_copy(path, digest, []) if self.copies else None

    def kill(self, program):
        """Kill its processes, as if the machine had ended."""
        with self.listener._lock:
            workers = list(self.listener._workers)
        for each in workers:
            os.kill(each.pid, signal.SIGKILL)

    def close(self):
        self.link.close()
        self.listener.close()


@pytest.fixture
def nodes():
    made = [LocalNode(), LocalNode()]
    yield made
    for each in made:
        each.close()


def opener(nodes, **options):
    listed = SimpleNamespace(token=TOKEN, list=lambda: nodes)
    spec = LoadSpec(str(BUNDLED["story"]), "cpu", num_ctx=512, num_parallel=2)
    return ClusterOpener(listed, lambda *_: spec, __version__, 8, **options)


STORY = SimpleNamespace(entry=SimpleNamespace(name="story"))


def asked(model, text, **fields):
    tokens = model.prompter.raw(text)
    return Request.of(tokens, ignore_eos=True, options={"temperature": 0}, **fields)


def answer(model, text, **fields):
    return model.engine.submit(asked(model, text, **fields)).result(PATIENCE).text


@pytest.mark.slow
def test_a_pipeline_answers_as_one_node_and_is_back_after_its_stage_was_killed(nodes):
    alone = opener(nodes[:1])(STORY, None)
    try:
        want = answer(alone, "The dragon", max_tokens=12)
    finally:
        alone.close()
    model = opener(nodes, stages=2)(STORY, None)
    try:
        assert model.placement.startswith("cpu: embedding, layers 0-2; cpu@127.0.0.1:")
        assert len(model.replicas) == 1
        assert model.gpu_layers == 0
        assert answer(model, "The dragon", max_tokens=12) == want
        long = [model.engine.submit(asked(model, f"{i} fox", max_tokens=400)) for i in range(2)]
        for each in long:
            next(iter(each))
            each._mailbox.take()
        # The slots are taken, so that these wait without a token.
        waiting = [model.engine.submit(asked(model, "The dragon", max_tokens=12)) for _ in range(2)]
        nodes[1].kill("stage")
        assert [each.result(PATIENCE).text for each in waiting] == [want] * 2
        for each in long:
            with pytest.raises((DeviceLost, WorkerLost), match=r"stage cpu@127.0.0.1:\d+ is lost"):
                each.result(PATIENCE)
        # Of a cut connection the stage's process is new, too, and the first node's is the same.
        first = model.replicas[0].model
        for cut in (False, True):
            if cut:
                nodes[1].link.cut()
            assert answer(model, "The dragon", max_tokens=12) == want
            assert model.replicas[0].model is first
        # With the first node the whole pipeline is opened again.
        nodes[0].kill("process")
        assert until(lambda: model.replicas[0].model is not first)
        assert answer(model, "The dragon", max_tokens=12) == want
    finally:
        model.close()


def test_a_node_of_another_version_or_without_the_file_is_named(nodes):
    nodes[1].facts["version"] = "0.0.1"
    with pytest.raises(ModelError, match=r"node node has version 0\.0\.1"):
        opener(nodes, stages=2)(STORY, None)
    nodes[1].facts.clear()
    nodes[1].copies = False
    with pytest.raises(ModelError, match="node node lacks the file with SHA-256"):
        opener(nodes, stages=2)(STORY, None)
    with pytest.raises(WorkerLost, match="2 nodes are alive, needs 3 of them"):
        opener(nodes, stages=3)(STORY, None)


def test_a_pipeline_reserves_its_nodes_and_gives_them_back(nodes, monkeypatch):
    """The name is the same whenever it is opened again."""
    asked, released, opened = [], [], []

    def start(self, name, spec, there, facts):
        opened.append([stage.address for stage in there.pipeline.stages])
        raise WorkerLost("not opened")

    def reserve(name, count, nbytes):
        asked.append((name, count, nbytes))
        return nodes[::-1]

    monkeypatch.setattr(ClusterOpener, "_start", start)
    made = opener(nodes, stages=2, reserve=reserve, release=released.append)
    with pytest.raises(WorkerLost, match="not opened"):
        made(STORY, None)
    # Its second stage is on the node that comes second there.
    assert opened == [[nodes[0].link.address]]
    [(name, count, nbytes)] = asked
    assert (name, count) == ("story 0", 2)
    assert 2 * nbytes > 0.9 * BUNDLED["story"].stat().st_size
    assert released == ["story 0"]


def test_as_many_nodes_share_a_model_as_its_memory_needs(nodes, monkeypatch):
    opened = []

    def start(self, name, spec, there, facts):
        opened.append(there)
        raise WorkerLost("not opened")

    monkeypatch.setattr(ClusterOpener, "_start", start)
    for free, stages in ((8 * GIB, 1), ((512 << 20) + (9 << 20), 2), (None, 1)):
        device = replace(numpy_device(), free_memory=free)
        for each in nodes:
            each.facts["device"] = device
        opened.clear()
        with pytest.raises(WorkerLost):
            opener(nodes)(STORY, None)
        found = opened[0].pipeline
        assert (1 if found is None else len(found.placement.devices)) == stages
