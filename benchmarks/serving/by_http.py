"""Measurements of the server from outside."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.serving.bare import EIGHT, TALE
from benchmarks.serving.measuring import Figures, Given

QUEUE = 512
CONTEXT = 512
SLOTS = EIGHT
NAME = "measured"
WAIT_SECONDS = 300.0
PAGE_NBYTES = 4096


@dataclass(frozen=True, slots=True)
class Server:
    """A server that listens.

    Parameters
    ----------
    process : Popen
    port : int
    """

    process: subprocess.Popen[bytes]
    port: int

    def tree(self) -> list[int]:
        """List the server's processes: itself and those it started."""
        found = [self.process.pid]
        for pid in found:
            for children in Path(f"/proc/{pid}/task").glob("*/children"):
                found += [int(each) for each in children.read_text().split()]
        return found

    @property
    def nbytes(self) -> int:
        """Return the resident memory of all its processes."""
        pages = [Path(f"/proc/{p}/statm").read_text().split()[1] for p in self.tree()]
        return PAGE_NBYTES * sum(map(int, pages))

    @property
    def seconds(self) -> tuple[float, float]:
        """Return the processor time of its first process, and of all its processes."""
        texts = [Path(f"/proc/{p}/stat").read_text() for p in self.tree()]
        fields = [text.rpartition(")")[2].split() for text in texts]
        ticks = [(int(f[11]) + int(f[12])) / os.sysconf("SC_CLK_TCK") for f in fields]
        return ticks[0], sum(ticks)

    @property
    def files(self) -> int:
        """Count the open files and sockets of all its processes."""
        return sum(1 for pid in self.tree() for _ in Path(f"/proc/{pid}/fd").iterdir())


def free_port() -> int:
    """Find a free port."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def started(
    command: Sequence[str], port: int, env: Mapping[str, str], health: str
) -> Iterator[Server]:
    """Start a server's process, and wait until it answers; show its log if it does not."""
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env={**os.environ, **env}, stdout=log, stderr=log)
        try:
            end = time.monotonic() + WAIT_SECONDS
            while asyncio.run(status_of(port, health)) != 200:
                if process.poll() is not None or time.monotonic() > end:
                    log.seek(0)
                    raise SystemExit(f"{command[0]}: no answer\n{log.read().decode()[-2000:]}")
                time.sleep(0.1)
            yield Server(process, port)
        finally:
            process.terminate()
            process.wait(60)


@contextmanager
def serving(given: Given) -> Iterator[Server]:
    """Start a server of this package, with the model loaded."""
    with tempfile.TemporaryDirectory() as store:
        port = free_port()
        env = {
            "OLLAMA_HOST": f"127.0.0.1:{port}",
            "OLLAMA_MODELS": store,
            "OLLAMA_NUM_PARALLEL": str(SLOTS),
            "OLLAMA_MAX_QUEUE": str(QUEUE),
            "OLLAMA_CONTEXT_LENGTH": str(CONTEXT),
            "OLLAMA_KEEP_ALIVE": "-1",
        }
        own = [sys.executable, "-m", "wgpu_backend"]
        if given.model:
            recipe = Path(store, "Modelfile")
            recipe.write_text(f"FROM {Path(given.model).absolute()}\n", encoding="utf-8")
            subprocess.run(
                [*own, "create", NAME, "-f", str(recipe)], env={**os.environ, **env}, check=True
            )
        device = ["--device", given.device] if given.device else []
        with started([*own, "serve", *device], port, env, "/health") as server:
            asyncio.run(generate(server.port, given, 0, 1))  # loads the model
            yield server


def request_of(port: int, path: str, body: object) -> bytes:
    """Make a request whose connection closes after the answer: a POST if it has a body."""
    data = b"" if body is None else json.dumps(body).encode()
    head = [
        f"{'POST' if data else 'GET'} {path} HTTP/1.1",
        f"Host: localhost:{port}",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Connection: close\r\n\r\n",
    ]
    return "\r\n".join(head).encode() + data


async def ask(port: int, path: str, body: object = None) -> tuple[int, bytes]:
    """Send a request over its own connection; return status and body, 0 if it broke."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request_of(port, path, body))
            await writer.drain()
            answer = await reader.read()
        finally:
            writer.close()
    except OSError:
        return 0, b""
    first, _, rest = answer.partition(b"\r\n")
    return (int(first.split()[1]), rest) if first.startswith(b"HTTP/") else (0, rest)


async def status_of(port: int, path: str) -> int:
    """Return the status of a GET."""
    return (await ask(port, path))[0]


async def generate(port: int, given: Given, salt: int, tokens: int) -> int:
    """Stream an answer; return 200 only if its last line arrived."""
    body = {
        "model": NAME if given.model else "story",
        "prompt": f"{TALE}{salt}",
        "raw": True,
        "options": {"num_predict": tokens, "seed": salt, "temperature": 0.8},
    }
    status, text = await ask(port, "/api/generate", body)
    whole = status != 200 or b'"done":true' in text.replace(b" ", b"")
    return status if whole else -1


async def together(port: int, given: Given, count: int, tokens: int) -> Counter[int]:
    """Run so many answers at once; return their statuses, -1 for one that broke off."""
    made = [generate(port, given, salt, tokens) for salt in range(count)]
    return Counter(await asyncio.gather(*made))


def clients(given: Given) -> Figures:
    """Run many clients: as many answers as there is room for, and 503 for the others."""
    with serving(given) as server:
        begin = time.perf_counter()
        found = asyncio.run(asyncio.wait_for(together(server.port, given, given.clients, 8), 900))
        taken = time.perf_counter() - begin
        after = asyncio.run(together(server.port, given, EIGHT, 8))
        assert after == {200: EIGHT}, after
    others = given.clients - found[200] - found[503]
    return {
        "clients at once": given.clients,
        "answered": found[200],
        "503": found[503],
        "neither": others,
        "seconds": round(taken, 1),
    }


def requests(given: Given) -> Figures:
    """Run thousands of requests, eight at a time; compare resources before and after."""
    with serving(given) as server:

        async def several(first: int, count: int) -> Counter[int]:
            left = iter(range(first, first + count))

            async def one() -> list[int]:
                return [await generate(server.port, given, salt % 97, 4) for salt in left]

            found: Counter[int] = Counter()
            for each in await asyncio.gather(*(one() for _ in range(EIGHT))):
                found.update(each)
            return found

        warm = max(given.requests // 10, 1)
        asyncio.run(several(0, warm))
        before = server.nbytes, server.files
        found = asyncio.run(several(warm, given.requests - warm))
        time.sleep(1)
        after = server.nbytes, server.files
    return {
        "requests": given.requests,
        "answered": found[200] + warm,
        "memory after over before": round(after[0] / before[0], 3),
        "MiB more": round((after[0] - before[0]) / (1 << 20), 1),
        "files more": after[1] - before[1],
    }
