"""Faults of a server under load, run by hand: ``python -m tests.server.stress kills --count 100``.

A server of its own serves the story model. ``kills`` ends its worker at random moments while four
clients stream; ``losses`` has the worker lose its device; ``swaps`` changes between two models;
``slow`` has a client that hardly reads, ``gone`` clients that vanish; ``ends`` ends the server
while it answers; ``pictures`` ends the process that makes pictures; ``pulls``, ``creates`` and
``full`` are of `stress_store.py`. Each prints what was seen. `test_stress.py` runs a few of each.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.builders import tiny_model
from tests.server.running import ServerProcess, alive
from tests.server.stress_input import inputs
from tests.server.stress_store import creates, full, pulls
from wgpu_backend.engine.loading import bundled
from wgpu_backend.files.store.modelfile import Modelfile
from wgpu_backend.files.store.names import ModelName
from wgpu_backend.files.store.store import Store
from wgpu_backend.files.store.stored import create

CLIENTS = 4
BACK_SECONDS = 60.0  # a server that takes longer hangs
LISTED_SECONDS = 0.3  # until `/api/ps` surely lists a lost model no more
LOSING = Path(__file__).parent / "worker" / "losing.py"
CONTEXT = 16384
TINY = {"model": "tiny", "prompt": "the and"}
STORY = {"model": "story", "prompt": "Once upon a time", "raw": True}
Line = dict[str, Any]


def asked(tokens: int = 60, seed: int = 1, **more: object) -> Line:
    options = {"num_predict": tokens, "seed": seed, "num_ctx": 256}
    return {**STORY, "options": options, **more}


@dataclass
class Seen:
    """How requests ended, and how long it took until the server answered again.

    That is told in parts: until the model is loaded, until the first text of any client, and until
    that of one who asks at the moment of the fault, behind those who wait already.
    """

    ended: Counter[str] = field(default_factory=Counter[str])
    seconds: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    unclear: list[str] = field(default_factory=list[str])

    def rows(self) -> Iterator[str]:
        yield from (f"{name:<40}{count:>6}" for name, count in self.ended.most_common())
        for what, seconds in self.seconds.items():
            yield (
                f"{what} after: median {statistics.median(seconds):.2f} s, "
                f"worst {max(seconds):.2f} s, of {len(seconds)}"
            )
        yield from self.unclear[:5]

    def back(self, server: ServerProcess, clients: Clients) -> None:
        """Wait until the server answers again, and note how long that takes."""
        begin, own = time.monotonic(), list[float]()
        asking = threading.Thread(target=lambda: own.append(first_text(server, asked(4))))
        asking.start()
        time.sleep(LISTED_SECONDS)
        _until(lambda: bool(json.loads(server.ask("GET", "/api/ps")[1])["models"]))
        self._note("loaded", time.monotonic() - begin)
        asking.join()
        first = [at for asked_at, at in [*clients.firsts] if at > begin and asked_at > begin]
        self._note("first text of any client", min([*(at - begin for at in first), *own]))
        self._note("text of one more client", own[0])

    def _note(self, what: str, seconds: float) -> None:
        self.seconds.setdefault(what, []).append(seconds)


def outcome(
    server: ServerProcess, body: Line, seen: Seen, first: Callable[[], None] = lambda: None
) -> str:
    """Ask for a stream, and say how it ended."""
    status, last = 0, Line()
    try:
        for i, (status, last) in enumerate(server.stream(body)):
            if i == 0 and status == 200 and "error" not in last:
                first()
    except TimeoutError:
        return "hang"
    except (OSError, ValueError) as error:
        seen.unclear.append(repr(error))
        return f"connection: {type(error).__name__}"
    if last.get("done"):
        return "answered"
    told = str(last.get("error", ""))
    if "send the request again" in told:
        return f"failed, said why ({'stream' if status == 200 else status})"
    seen.unclear.append(f"{status} {last}")
    return "unclear"


class Clients:
    """Threads that stream one answer after another until told to stop."""

    def __init__(self, server: ServerProcess, seen: Seen) -> None:
        self._server = server
        self._seen = seen
        self._stop = threading.Event()
        self.firsts: list[tuple[float, float]] = []  # when each was asked, and had its first text
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(CLIENTS)]

    def _ask(self, number: int) -> None:
        turn = 0
        while not self._stop.is_set():
            turn += 1
            begin, body = time.monotonic(), asked(60, seed=1000 * number + turn)

            def first(begin: float = begin) -> None:
                self.firsts.append((begin, time.monotonic()))

            self._seen.ended[outcome(self._server, body, self._seen, first)] += 1

    def __enter__(self) -> Clients:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()


def first_text(server: ServerProcess, body: Line) -> float:
    """Seconds until an answer's first text; for ever where there is none."""
    begin = time.monotonic()
    while time.monotonic() - begin < BACK_SECONDS:
        for status, line in server.stream(body):
            if status == 200 and "error" not in line:
                return time.monotonic() - begin
        time.sleep(0.02)
    return float("inf")


def kills(folder: Path, count: int, rng: random.Random) -> Iterator[str]:
    """End the worker at random moments: while it loads, reads, answers."""
    seen = Seen()
    with ServerProcess(folder) as server:
        server.ask("POST", "/api/generate", asked(1, stream=False))
        with Clients(server, seen) as clients:
            for _ in range(count):
                time.sleep(rng.uniform(0, 4.0))
                workers = server.workers
                if not workers:  # it was between two of them, which is a moment, too
                    continue
                # The oldest has the model; now and then the one that waits for another goes, too.
                for each in workers if rng.random() < 0.2 else workers[:1]:
                    os.kill(each, signal.SIGKILL)
                if rng.random() < 0.7:
                    seen.back(server, clients)
        assert server.process.poll() is None, server.log.read_text()
        yield from seen.rows()
        yield f"server goes on, {len(server.workers)} processes, {server.files} files"
    yield f"server ended with {server.process.returncode}"


def losses(folder: Path, count: int, rng: random.Random) -> Iterator[str]:
    """Lose the device; three times within a minute leave the server without one."""
    seen = Seen()
    with ServerProcess(folder, "--import", str(LOSING)) as server:
        server.ask("POST", "/api/generate", asked(1, stream=False))
        with Clients(server, seen) as clients:
            for turn in range(count):
                time.sleep(rng.uniform(0.5, 1.5) if turn % 2 else 61)
                os.kill(server.workers[0], signal.SIGUSR1)
                seen.back(server, clients)
        yield from seen.rows()
        for _ in range(3):
            os.kill(server.workers[0], signal.SIGABRT)
            if not server_is_back(server):
                break
        yield f"after three at once: {server.ask('POST', '/api/generate', asked(4))}"
        assert server.process.poll() is None
    yield from server.log.read_text().splitlines()[-3:]


def pictures(folder: Path, count: int, rng: random.Random) -> Iterator[str]:
    """End the process that makes pictures: while it makes one, and now and then before it has."""
    ended, seconds = Counter[str](), list[float]()
    body = {"model": "pictures", "prompt": "a red circle", "options": {"seed": 1}}
    with ServerProcess(folder) as server:

        def ask(steps: int, sent: int = 0) -> str:
            found: list[tuple[int, Line]] = []
            for each in server.stream({**body, "steps": steps}):
                found.append(each)
                if sent and len(found) == 1:
                    time.sleep(rng.uniform(0, 0.5))
                    os.kill(server.workers[0], sent)
            status, last = found[-1]
            if last.get("done"):
                return "answered"
            told = str(last.get("error", "unclear"))
            return f"{status} {last.get('status')} {told}"

        ended[ask(1)] += 1
        for turn in range(count):
            ended[ask(10_000, (signal.SIGKILL, signal.SIGABRT)[turn % 30 == 0])] += 1
            begin = time.monotonic()
            ended[ask(1)] += 1
            seconds.append(time.monotonic() - begin)
            os.kill(server.workers[0], signal.SIGKILL)
            ended[ask(1)] += 1
        assert server.process.poll() is None, server.log.read_text()
        yield from (f"{name:<90}{number:>6}" for name, number in ended.most_common())
        yield (
            f"next picture after: median {statistics.median(seconds):.2f} s, "
            f"worst {max(seconds):.2f} s, of {len(seconds)}"
        )
        yield f"server goes on, {len(server.workers)} processes, {server.files} files"


def server_is_back(server: ServerProcess) -> bool:
    """Whether a worker is there again in time."""
    before, end = server.workers, time.monotonic() + BACK_SECONDS
    while time.monotonic() < end:
        status, _ = server.ask("POST", "/api/generate", asked(1, stream=False))
        if status != 500:
            return status == 200 and server.workers != before
        time.sleep(0.1)
    return False


def swaps(folder: Path, count: int, _rng: random.Random) -> Iterator[str]:
    """Change between two models, of which one is loaded at a time."""
    create(Store(folder / "models"), ModelName.parse("tale"), Modelfile(str(bundled()), {}), folder)

    def row() -> str:
        return (
            f"{server.mib:7.1f} MiB, {server.files} files, {server.threads} threads, "
            f"{len(server.workers)} processes"
        )

    with ServerProcess(folder, OLLAMA_MAX_LOADED_MODELS="1") as server:
        begin = time.monotonic()
        for turn in range(count + 4):
            if turn in (4, 4 + count // 2):  # after what is made once
                yield f"after {turn:>3} swaps: {row()}"
            body = asked(4, stream=False, model=("story", "tale")[turn % 2])
            status, told = server.ask("POST", "/api/generate", body)
            assert status == 200, told
            running = json.loads(server.ask("GET", "/api/ps")[1])["models"]
            assert [each["name"].split(":")[0] for each in running] == [body["model"]]
        yield f"after {count + 4:>3} swaps: {row()}"
        yield f"{(time.monotonic() - begin) / (count + 4):.2f} s each"


def begun(server: ServerProcess) -> http.client.HTTPConnection:
    """An answer as long as the context, of which one line was read."""
    connection = server.connection()
    body = {**TINY, "n_predict": -1, "ignore_eos": True, "stream": True}
    connection.request("POST", "/completion", json.dumps(body))
    response = connection.getresponse()
    assert response.status == 200, response.read()
    response.readline()
    return connection


def with_tiny(folder: Path) -> ServerProcess:
    """A server that has loaded a model of random weights, which is fast."""
    path = tiny_model(folder / "tiny.gguf")
    create(Store(folder / "models"), ModelName.parse("tiny"), Modelfile(str(path), {}), folder)
    server = ServerProcess(folder, "--num-ctx", str(CONTEXT))
    server.ask("POST", "/completion", {**TINY, "n_predict": 8})
    return server


def slow(folder: Path, count: int, _rng: random.Random) -> Iterator[str]:
    """Have two clients that do not read, and see how long others take meanwhile."""
    with with_tiny(folder) as server:

        def others() -> float:
            begin = time.monotonic()
            for seed in range(count):
                body = {**TINY, "n_predict": 60, "ignore_eos": True, "seed": seed}
                server.ask("POST", "/completion", body)
            return (time.monotonic() - begin) / count

        alone, before = others(), server.mib
        lazy = [begun(server) for _ in range(2)]
        beside = others()
        made = [
            each.get("n_decoded", "all") for each in json.loads(server.ask("GET", "/slots")[1])[:2]
        ]
        yield f"an answer takes {alone:.2f} s alone, {beside:.2f} s beside two that nobody reads"
        yield f"these have {made} tokens, the server {server.mib - before:+.1f} MiB"
        for each in lazy:
            each.close()
        yield f"free again after {_until(lambda: not server.figure('requests_processing')):.2f} s"


def gone(folder: Path, count: int, rng: random.Random) -> Iterator[str]:
    """Go away in the middle of answers."""
    seconds: list[float] = []
    with with_tiny(folder) as server:
        for _ in range(count):
            connection = begun(server)
            time.sleep(rng.uniform(0, 0.5))
            assert server.figure("requests_processing") == 1
            connection.close()
            seconds.append(_until(lambda: not server.figure("requests_processing")))
        cancelled = server.figure("requests_cancelled_total")
    yield f"{count} went, {cancelled:.0f} answers were cancelled"
    yield f"free after: median {statistics.median(seconds):.3f} s, worst {max(seconds):.3f} s"


def _until(there: Callable[[], bool]) -> float:
    begin = time.monotonic()
    while not there() and time.monotonic() - begin < BACK_SECONDS:
        time.sleep(0.005)
    return time.monotonic() - begin


def ends(folder: Path, count: int, _rng: random.Random) -> Iterator[str]:
    """End the server while it answers: politely, and not."""
    for sent in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL) * max(1, count // 3):
        yield _ended(ServerProcess(folder), sent)


def _ended(server: ServerProcess, sent: signal.Signals) -> str:
    server.ask("POST", "/api/generate", asked(1, stream=False))
    found: list[str] = []
    client = threading.Thread(target=lambda: found.append(outcome(server, asked(200), Seen())))
    client.start()
    _until(lambda: server.figure("requests_processing") > 0)
    workers = server.workers
    seconds = server.stop(sent)
    left = _until(lambda: not any(map(alive, workers)))
    client.join()
    stream = "cut" if sent is signal.SIGKILL else found[0]
    return (
        f"{sent.name}: ended with {server.process.returncode} after {seconds:.1f} s, the stream "
        f"was {stream}, its workers were gone {left:.2f} s later"
    )


COMMANDS = {
    "kills": kills,
    "losses": losses,
    "pictures": pictures,
    "swaps": swaps,
    "slow": slow,
    "gone": gone,
    "ends": ends,
    "pulls": pulls,
    "creates": creates,
    "full": full,
    "input": inputs,
}


def run(command: str, count: int, folder: Path, seed: int = 0) -> list[str]:
    """What was seen, in lines."""
    return list(_seen(command, count, folder, seed))


def _seen(command: str, count: int, folder: Path, seed: int) -> Iterator[str]:
    (folder / "models").mkdir(exist_ok=True)
    return COMMANDS[command](folder, count, random.Random(seed))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.server.stress", description=__doc__)
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        begin = time.monotonic()
        for line in _seen(wanted.command, wanted.count, Path(folder), wanted.seed):
            sys.stdout.write(line + "\n")
            sys.stdout.flush()
        sys.stdout.write(f"{time.monotonic() - begin:.0f} s\n")


if __name__ == "__main__":
    main()
