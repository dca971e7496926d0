"""Replicas on nodes of this machine: connections, routing, and what happens to lost ones."""

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace

import pytest

from tests.patience import PATIENCE, until
from wgpu_backend.cli.names import BUNDLED
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.errors import BackendError, WorkerLost
from wgpu_backend.server.cluster.link import (
    GREETING,
    Listener,
    RemoteChannel,
    choose_port,
    connect,
)
from wgpu_backend.server.cluster.replicas import (
    BLOCK,
    MOST_RUNS,
    ClusterModel,
    Prefixes,
    Relay,
    hash_blocks,
)
from wgpu_backend.server.worker.messages import LoadSpec
from wgpu_backend.server.worker.remote import open_worker

TOKEN = "a token of this test alone"


@pytest.fixture
def listener():
    made = Listener(TOKEN)
    yield made
    made.close()


def test_a_token_has_to_be_long_enough():
    with pytest.raises(BackendError, match="5 characters, needs at least 16"):
        Listener("short")


def test_a_wrong_token_starts_no_worker(listener, monkeypatch):
    started = []
    monkeypatch.setattr("wgpu_backend.server.cluster.link.start_process", started.append)
    with pytest.raises(WorkerLost, match="needs a running node and its token"):
        connect(listener.address, "another token, also long")
    assert not started


@contextmanager
def answering(data):
    """Something that sends these bytes to whoever connects."""
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:

        def answer():
            sock, _ = server.accept()
            with sock:
                sock.sendall(data)
                # A client that leaves with unread bytes resets the connection.
                with suppress(ConnectionError):
                    while sock.recv(1024):
                        pass

        done = pool.submit(answer)
        yield server.getsockname()
        done.result()


def test_a_node_without_the_token_is_refused():
    """It could otherwise read the prompts that a server sends."""
    with (
        answering(GREETING + bytes(32 + 32 + 4)) as address,
        pytest.raises(WorkerLost, match="does not have the cluster's token"),
    ):
        connect(address, TOKEN)


def test_something_that_is_no_node_is_named():
    with (
        answering(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address,
        pytest.raises(WorkerLost, match=r"HTTP/1\.1 400"),
    ):
        connect(address, TOKEN)


def test_nothing_listens(listener):
    listener.close()
    with pytest.raises(WorkerLost, match=str(listener.address[1])):
        connect(listener.address, TOKEN)


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(socket, "send_fds"), reason="no file descriptors in messages")
def test_a_process_waits_for_the_next_connection_with_its_imports_done(monkeypatch):
    monkeypatch.setattr("wgpu_backend.server.cluster.link.AFTER_SECONDS", 0.0)
    node = Listener(TOKEN, spare=True)
    try:
        first = node._waiting._process.pid
        sock, pid = connect(node.address, TOKEN)
        sock.close()
        assert pid == first
        # Another one has taken its place; if that has died, a new process is started.
        assert until(lambda: node._waiting is not None)
        dead = node._waiting._process
        assert dead.pid != first
        dead.kill()
        dead.wait()
        sock, pid = connect(node.address, TOKEN)
        sock.close()
        assert pid not in (first, dead.pid)
    finally:
        node.close()


def test_nodes_that_start_again_are_found_at_the_same_port():
    assert choose_port(TOKEN) == choose_port(TOKEN)
    ports = {choose_port(f"a token of this test {number}") for number in range(50)}
    assert len(ports) > 40
    assert all(20000 <= port < 30000 for port in ports)


def test_prefixes_are_compared_by_whole_blocks_and_all_before_them():
    known = Prefixes()
    known.add(hash_blocks([*range(3 * BLOCK + 5)]))
    assert known.measure(hash_blocks([*range(2 * BLOCK + 1)])) == 2
    assert known.measure(hash_blocks([*range(3 * BLOCK), *range(9, 9 + BLOCK)])) == 3
    # The same block after another beginning is not the same prefix.
    assert known.measure(hash_blocks([*range(1, BLOCK + 1), *range(BLOCK, 2 * BLOCK)])) == 0
    assert known.measure(hash_blocks([1, 2, 3])) == 0


def test_a_request_that_ends_every_worker_is_given_up():
    runs = []
    relay = Relay(Request.of([1], max_tokens=1), SimpleNamespace(run=runs.append))
    for _ in range(MOST_RUNS - 1):
        assert not relay.ended
        relay.fail(WorkerLost("its worker process is gone"))
    assert runs == [relay] * (MOST_RUNS - 1)
    relay.fail(WorkerLost("its worker process is gone"))
    assert relay.ended
    assert len(runs) == MOST_RUNS - 1


@pytest.fixture
def cluster():
    """Two nodes with a replica of the story model each."""
    nodes = [Listener(TOKEN) for _ in range(2)]
    spec = LoadSpec(str(BUNDLED["story"]), "cpu", num_ctx=512, num_parallel=2)

    def open_replica(number):
        if number < 0:
            raise WorkerLost("no node")
        start = partial(RemoteChannel, address=nodes[number].address, token=TOKEN)
        return open_worker("story", spec, 8, lambda _: None, start=start)

    model = ClusterModel("story", open_replica, 2, pauses=(0.05,))
    yield model
    model.close()
    for node in nodes:
        node.close()


def ended(generation):
    """Say how many tokens an answer had, or that its replica was lost."""
    try:
        return f"{generation.result(PATIENCE).usage.completion_tokens} tokens"
    except WorkerLost as error:
        return "is gone" if "is gone" in str(error) else str(error)


def asked(model, text, **fields):
    tokens = model.prompter.raw(text)
    return Request.of(tokens, ignore_eos=True, options={"temperature": 0}, **fields)


@pytest.mark.slow
def test_replicas_answer_alike_and_prompts_go_where_their_prefix_is(cluster):
    engine = cluster.engine
    text = "Once upon a time there was a fox named Pip, who lived in a wood. " * 8
    first = engine.submit(asked(cluster, text, max_tokens=8)).result()
    homes = [
        r for r in cluster.replicas if r.prefixes.measure(hash_blocks(cluster.prompter.raw(text)))
    ]
    assert len(homes) == 1
    again = engine.submit(asked(cluster, text + "One day", max_tokens=2)).result()
    assert again.usage.cached_tokens > 0
    [other] = [r.model for r in cluster.replicas if r not in homes]
    there = other.engine.submit(asked(cluster, text, max_tokens=8)).result()
    assert there.text == first.text
    assert engine.num_parallel == 4
    assert len(engine.status().slots) == 4


@pytest.mark.slow
def test_of_a_killed_replica_requests_without_a_token_run_again_and_others_fail(cluster):
    engine = cluster.engine
    want = engine.submit(asked(cluster, "The dragon", max_tokens=12)).result().text
    long = [engine.submit(asked(cluster, f"{i} fox", max_tokens=400)) for i in range(4)]
    for each in long:
        next(iter(each))
        # As a server does with what it sends: the answer has begun all the same.
        each._mailbox.take()
    # All slots are taken, so that these wait on both replicas without a token.
    waiting = [engine.submit(asked(cluster, "The dragon", max_tokens=12)) for _ in range(4)]
    os.kill(cluster.replicas[0].model.pid, signal.SIGKILL)
    assert [each.result(PATIENCE).text for each in waiting] == [want] * 4
    outcomes = [ended(each) for each in long]
    assert outcomes.count("is gone") == 2
    assert until(lambda: all(replica.is_up for replica in cluster.replicas))
    assert engine.submit(asked(cluster, "The dragon", max_tokens=12)).result().text == want


@pytest.mark.slow
def test_without_a_replica_requests_wait_for_one_and_fail_when_none_comes(cluster, monkeypatch):
    reopen = cluster._open
    monkeypatch.setattr(cluster, "_open", lambda number: reopen(-5))
    for replica in cluster.replicas:
        os.kill(replica.model.pid, signal.SIGKILL)
    assert until(lambda: not any(replica.is_up for replica in cluster.replicas))
    waiting = cluster.engine.submit(asked(cluster, "fox", max_tokens=1))
    with pytest.raises(WorkerLost, match="no replica is left"):
        cluster.embed("fox")
    monkeypatch.setattr(cluster, "_open", reopen)
    assert waiting.result(PATIENCE).usage.completion_tokens == 1
    monkeypatch.setattr("wgpu_backend.server.cluster.replicas.WAIT_SECONDS", 0.0)
    monkeypatch.setattr(cluster, "_open", lambda number: reopen(-5))
    for replica in cluster.replicas:
        assert until(lambda each=replica: each.is_up)
        os.kill(replica.model.pid, signal.SIGKILL)
    assert until(lambda: not any(replica.is_up for replica in cluster.replicas))
    with pytest.raises(WorkerLost, match="no replica is left"):
        cluster.engine.submit(asked(cluster, "fox", max_tokens=1)).result(PATIENCE)
