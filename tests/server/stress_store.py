"""Faults of the store under a running server, as commands of `tests.server.stress`.

``pulls`` and ``creates`` kill the server at random moments while a model comes in, ``full`` has its
disk run full meanwhile (on a small file system of its own, which only root may mount).
"""

from __future__ import annotations

import hashlib
import http.client
import json
import random
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.files.store.registry import Registry
from tests.server.running import ServerProcess
from wgpu_backend.engine.loading import bundled

PADDING = 32 << 20  # behind the story model, so that bringing it takes a while
DISK = 80 << 20
Line = dict[str, Any]


def model() -> bytes:
    return bundled().read_bytes() + random.Random(5).randbytes(PADDING)


def lines_of(server: ServerProcess, path: str, body: Line) -> Iterator[Line]:
    """What is told while a model is pulled or made; no more where the server is gone."""
    with closing(server.connection()) as connection, suppress(OSError, http.client.HTTPException):
        connection.request("POST", path, json.dumps(body))
        for line in connection.getresponse():
            yield json.loads(line)


def whole(root: Path) -> int:
    """How many models are listed; each is there to its last byte."""
    manifests = [each for each in root.glob("manifests/*/*/*/*") if each.name[0] != "."]
    for path in manifests:
        manifest = json.loads(path.read_bytes())
        for layer in (manifest["config"], *manifest["layers"]):
            blob = root / "blobs" / layer["digest"].replace(":", "-")
            found = hashlib.sha256(blob.read_bytes()).hexdigest()
            assert layer["digest"] == f"sha256:{found}", path
    return len(manifests)


def halves(root: Path) -> list[str]:
    """Blobs that have their name and other bytes than it says."""
    return [
        path.name
        for path in root.glob("blobs/sha256-*")
        if "partial" not in path.name
        and path.name != f"sha256-{hashlib.sha256(path.read_bytes()).hexdigest()}"
    ]


def left_over(root: Path) -> list[str]:
    """Parts and drafts that are still there."""
    return [each.name for each in root.glob("blobs/*") if len(each.name) != len("sha256-") + 64]


def killed(server: ServerProcess, seconds: float) -> threading.Timer:
    timer = threading.Timer(seconds, server.process.send_signal, (signal.SIGKILL,))
    timer.start()
    return timer


def pulls(folder: Path, count: int, rng: random.Random) -> Iterator[str]:
    """Kill the server while it pulls, and have the next one go on."""
    store, stopped, cut = folder / "models", 0, 0
    with Registry(model(), b'{"seed": 5}') as registry:
        body = {"model": registry.name, "insecure": True}
        for _ in range(count):
            server = ServerProcess(folder)
            timer = killed(server, rng.uniform(0, 0.25))
            done = [
                line for line in lines_of(server, "/api/pull", body) if "success" in line.values()
            ]
            server.process.wait()
            timer.join()
            cut += bool(left_over(store))
            assert not halves(store)
            assert whole(store) <= 1
            if done:
                stopped += 1
                with ServerProcess(folder) as again:
                    again.ask("DELETE", "/api/delete", {"model": registry.name})
        before = registry.served
        with ServerProcess(folder) as server:
            *_, last = lines_of(server, "/api/pull", body)
            status, told = server.ask("POST", "/api/generate", _asked(registry.name))
        yield f"{count} kills: {cut} left parts, {stopped} came too late; no half file had a name"
        more = (registry.served - before) / 2**20
        yield f"then: {last}, with {more:.1f} MiB more; answers: {status}"
        yield f"left over: {left_over(store)}, {whole(store)} model whole"
        assert status == 200, told


def creates(folder: Path, count: int, rng: random.Random) -> Iterator[str]:
    """Kill the server while a model is sent to it and made."""
    store = folder / "models"
    content = model()
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    body = {"model": "made", "files": {"m.gguf": digest}, "system": "Tell."}
    done = 0
    for _ in range(count):
        server = ServerProcess(folder)
        timer = killed(server, rng.uniform(0, 0.15))
        with suppress(OSError, http.client.HTTPException):
            _sent(server, digest, content)
        done += any("success" in line.values() for line in lines_of(server, "/api/create", body))
        server.process.wait()
        timer.join()
        assert not halves(store)
        whole(store)
    with ServerProcess(folder) as server:
        sent = _sent(server, digest, content)
        *_, last = lines_of(server, "/api/create", body)
        status, _ = server.ask("POST", "/api/generate", _asked("made"))
    yield f"{count} kills: {done} came too late; no half file had a name"
    yield f"then: blob {sent}, {last}; answers: {status}"
    drafts = [name for name in left_over(store) if name.startswith(".new-")]
    yield f"{len(drafts)} drafts are left, which go in an hour; {whole(store)} model whole"


def full(folder: Path, _count: int, _rng: random.Random) -> Iterator[str]:
    """Fill the disk while a model comes in, and make room again."""
    store = folder / "models"
    with small_disk(store), Registry(model(), b'{"seed": 5}') as registry:
        body = {"model": registry.name, "insecure": True}
        with ServerProcess(folder) as server:

            def told(what: str) -> str:
                found = _while_full(server, store, registry, what)
                there = f"{whole(store)} models, halves {halves(store)}, {left_over(store)}"
                return f"{what} on a full disk: {found}; {there}"

            yield told("pull")
            yield told("blob")
            begin = registry.served
            *_, last = lines_of(server, "/api/pull", body)
            yield f"pull with room again: {last}, {(registry.served - begin) / 2**20:.1f} MiB more"
            yield told("create")
            status, answer = server.ask("POST", "/api/generate", _asked(registry.name))
            yield f"answers: {status}; left over: {left_over(store)}, {whole(store)} model whole"
            assert status == 200, answer


def _while_full(server: ServerProcess, store: Path, registry: Registry, what: str) -> object:
    filler = store / "filler"
    content = random.Random(6).randbytes(PADDING)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    try:
        match what:
            case "pull":
                told, body = list[Line](), {"model": registry.name, "insecure": True}
                for line in lines_of(server, "/api/pull", body):
                    if not told:
                        _fill(filler, 4 << 20)
                    told.append(line)
                return told[-1]
            case "blob":
                _fill(filler, 4 << 20)
                return _sent(server, digest, content)
            case _:
                _fill(filler, 0)
                body = {"model": "made", "from": registry.name, "system": "x" * 100_000}
                return list(lines_of(server, "/api/create", body))[-1]
    finally:
        filler.unlink(missing_ok=True)


def _fill(path: Path, left: int) -> None:
    """Take all of a disk but so many bytes."""
    with suppress(OSError), path.open("wb") as file:
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(max(0, size - left))


@contextmanager
def small_disk(path: Path) -> Iterator[None]:
    path.mkdir(exist_ok=True)
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(path)]
    subprocess.run(mount, check=True)
    try:
        yield
    finally:
        time.sleep(0.1)
        subprocess.run(["umount", "-l", str(path)], check=True)


def _sent(server: ServerProcess, digest: str, content: bytes) -> int:
    with closing(server.connection()) as connection:
        connection.request("POST", f"/api/blobs/{digest}", content)
        return connection.getresponse().status


def _asked(name: str) -> Line:
    options = {"num_predict": 2, "num_ctx": 64}
    return {
        "model": name.removeprefix("http://"),
        "prompt": "a",
        "stream": False,
        "options": options,
    }
