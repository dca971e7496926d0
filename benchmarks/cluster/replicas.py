"""Two replicas against one, each with a core of its own (Linux): tokens per second of a core.

    python -m benchmarks.cluster.replicas [--requests 16] [--tokens 48] [--rounds 5]

What a load takes is the processor time of the busiest process: that of a replica, or of the server,
which routes the requests. So other programs on the machine matter less than with a clock. Rounds of
one replica and of two take turns.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median

from wgpu_backend.cli.names import BUNDLED
from wgpu_backend.engine.batching.request import Request
from wgpu_backend.server.cluster.link import Listener, RemoteChannel
from wgpu_backend.server.cluster.replicas import ClusterModel
from wgpu_backend.server.worker.messages import LoadSpec
from wgpu_backend.server.worker.remote import WorkerModel, open_worker

SLOTS = 4


def used(pid: int) -> float:
    """Return the processor seconds of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_cluster(size: int, stack: ExitStack) -> tuple[ClusterModel, list[int]]:
    """Open replicas on nodes of this machine, each bound to a core; with their process ids."""
    token, pids = secrets.token_urlsafe(32), []
    spec = LoadSpec(str(BUNDLED["story"]), "cpu", num_ctx=512, num_parallel=SLOTS)

    def open_replica(number: int) -> WorkerModel:
        node = Listener(token)
        stack.callback(node.close)
        start = partial(RemoteChannel, address=node.address, token=token)
        made = open_worker("story", spec, 256, lambda _: None, start=start)
        [worker] = node._workers
        cores = sorted(os.sched_getaffinity(0))
        for thread in Path(f"/proc/{worker.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {cores[number % len(cores)]})
        pids.append(worker.pid)
        return made

    made = ClusterModel("story", open_replica, size)
    stack.callback(made.close)
    return made, pids


def load(model: ClusterModel, pids: Sequence[int], requests: int, tokens: int) -> tuple[float, ...]:
    """Return the processor seconds of each replica and of this process for a load, and the time."""
    assert model.engine is not None
    # No prefix is in a cache, so the router goes by the load alone.
    texts = [f"{secrets.token_hex(4)} was a dragon" for _ in range(requests)]
    prompts = [model.prompter.raw(text) for text in texts]
    before, begin = [*map(used, pids), time.process_time()], time.perf_counter()
    made = [
        model.engine.submit(
            Request.of(p, ignore_eos=True, options={"temperature": 0}, max_tokens=tokens)
        )
        for p in prompts
    ]
    for each in made:
        each.result()
    after = [*map(used, pids), time.process_time()]
    spent = [b - a for a, b in zip(before, after, strict=True)]
    return max(spent), spent[-1], time.perf_counter() - begin


def main() -> int:
    """Measure in turns, and print medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with ExitStack() as stack:
        clusters = [open_cluster(size, stack) for size in (1, 2)]
        run = partial(load, requests=options.requests, tokens=options.tokens)
        for each in clusters:
            run(*each)
        found = [[run(*each) for each in clusters] for _ in range(options.rounds)]
    total = options.requests * options.tokens
    for column, name in enumerate(("one replica", "two replicas")):
        busiest, server, wall = (median(r[column][at] for r in found) for at in range(3))
        print(
            f"{name}: {total / busiest:.0f} tokens per processor second of the busiest process; "
            f"the server took {server:.2f} s of {busiest:.2f}; {total / wall:.0f} tokens/s by clock"
        )
    print(f"two against one: {median(a[0] / b[0] for a, b in found):.2f} times")
    return 0


if __name__ == "__main__":
    sys.exit(main())
