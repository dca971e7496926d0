"""Stress tests, run by hand: interrupts, lost devices and exits at random moments; many loads.

``python -m tests.stress interrupts --count 1000`` runs its tries in processes of their own, which a
watchdog ends, and prints a table of how they came out. Other commands: ``losses``, ``exits``,
``cycles``. `tests/test_stress.py` runs a few of each.

A child says what it is about to do and how that ended, a JSON line each, so a process that dies or
hangs does so at a known place; its parent starts another for the tries that are left.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from tests.builders import tiny_model
from wgpu_backend import LanguageModel, load
from wgpu_backend.engine.loading import bundled
from wgpu_backend.errors import BackendError, DeviceError, DeviceLost
from wgpu_backend.ml.wgpu.executor import WgpuExecutor
from wgpu_backend.ops.sampling.host import SamplingOptions

SILENCE = 240.0  # seconds without a word after which a process hangs
SLOW = 1.0  # an interrupt that takes longer is counted as late
EXIT_CODE = 3  # what processes that end with a thread at work ask for
BATCH = {"interrupts": 100, "losses": 25, "exits": 1, "cycles": 1000}
PROMPT = "the and on in the and " * 4
GREEDY = SamplingOptions(temperature=0)

Act = Callable[[LanguageModel], object]

ACTS: dict[str, Act] = {
    "prompt": lambda m: m.generate(PROMPT * 2, raw=True, num_predict=1, options=GREEDY),
    "decode": lambda m: m.generate("the", raw=True, num_predict=24, options=GREEDY),
    "logits": lambda m: m.logits(m.tokenizer.encode(PROMPT)).shape,
    "embed": lambda m: m.embed([PROMPT, "the and"]).shape,
}

MOMENTS = ("load", *(("prompt", "decode", "logits", "embed") * 2))


@dataclass
class Outcomes:
    """How tries ended, by name, and what was measured."""

    ended: Counter[str] = field(default_factory=Counter[str])
    seconds: list[float] = field(default_factory=list[float])
    mib: list[float] = field(default_factory=list[float])
    details: list[str] = field(default_factory=list[str])

    def take(self, said: dict[str, object]) -> None:
        self.ended[str(said["ended"])] += 1
        if "seconds" in said:
            self.seconds.append(float(str(said["seconds"])))
        if "mib" in said:
            self.mib.append(float(str(said["mib"])))
        if "detail" in said:
            self.details.append(f"{said['what']}: {said['detail']}")

    def table(self) -> str:
        rows = [f"{name:<28}{count:>7}" for name, count in self.ended.most_common()]
        if self.seconds:
            longest = sorted(self.seconds)
            at = [longest[int(len(longest) * share)] for share in (0.5, 0.99)]
            rows.append(f"seconds: median {at[0]:.3f}, 99% {at[1]:.3f}, most {longest[-1]:.3f}")
        if self.mib:
            some = self.mib[:: max(1, len(self.mib) // 10)]
            rows.append("MiB: " + " ".join(f"{m:.0f}" for m in [*some, self.mib[-1]]))
        return "\n".join([*rows, *self.details[:10]])


def tried(command: str, count: int, model: Path, seed: int) -> Outcomes:
    """Run so many tries, in as many processes as it takes."""
    outcomes = Outcomes()
    while (left := count - outcomes.ended.total()) > 0:
        seed += 1
        words = [command, "--count", str(min(left, BATCH[command.split("-")[0]]))]
        words += ["--model", str(model), "--seed", str(seed), "--child"]
        _watched(words, outcomes)
    return outcomes


def _watched(words: list[str], outcomes: Outcomes) -> None:
    """Take what a child says until it ends, or end it when it has been silent for long."""
    before = outcomes.ended.total()
    with tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", "-m", "tests.stress", *words],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert child.stdout is not None
        lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=_lines, args=(child.stdout, lines), daemon=True)
        reader.start()
        about = "start"
        while True:
            try:
                line = lines.get(timeout=SILENCE)
            except queue.Empty:
                child.send_signal(signal.SIGABRT)  # faulthandler tells where it hangs
                child.wait()
                _report(outcomes, about, "hang", log)
                return
            if not line:
                break
            said = json.loads(line)
            about = said["what"]
            if "ended" in said:
                outcomes.take(said)
        code = child.wait()
        reader.join()
        child.stdout.close()
        _judge(words[0], code, about, outcomes, log, outcomes.ended.total() - before)


def _judge(command: str, code: int, about: str, outcomes: Outcomes, log: TextIO, said: int) -> None:
    """Count how a process ended, where that was not as its tries should."""
    if command == "exits":
        if code == EXIT_CODE:
            outcomes.take({"what": about, "ended": "exit code as asked"})
        else:
            _report(outcomes, about, f"ended with {code}", log)
    elif code < 0:
        _report(outcomes, about, f"signal {-code}", log)
    elif code or not said:
        _report(outcomes, about, f"exit code {code}", log)


def _report(outcomes: Outcomes, about: str, ended: str, log: TextIO) -> None:
    log.seek(0)
    outcomes.take({"what": about, "ended": ended, "detail": log.read()[-3000:]})


def _lines(source: TextIO, lines: queue.Queue[str]) -> None:
    for line in source:
        lines.put(line)
    lines.put("")


# What children do.


def say(what: str, **more: object) -> None:
    """Tell the parent."""
    os.write(1, (json.dumps({"what": what, **more}) + "\n").encode())


def rss_mib() -> float:
    """Memory of this process; 0 where the system does not tell."""
    with suppress(OSError):
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE") / 2**20
    return 0.0


class Sender:
    """Calls something from another thread after a while, unless that is called off."""

    def __init__(self, act: Callable[[], None], after: float) -> None:
        self._act, self._after = act, after
        self._off = threading.Event()
        self.sent = 0.0
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        if not self._off.wait(self._after):
            self.sent = time.perf_counter()
            self._act()

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._off.set()
        self._thread.join()


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def interrupted(act: Callable[[], object], after: float) -> tuple[str, float]:
    """Do something that is interrupted after a while; how it ended, and seconds until then."""
    sender = Sender(_interrupt, after)
    try:
        with sender:
            act()
            ended = time.perf_counter()
        outcome = "swallowed" if sender.sent and sender.sent < ended else "missed"
    except KeyboardInterrupt:
        ended = time.perf_counter()
        outcome = "interrupted"
    except BaseException as error:
        ended = time.perf_counter()
        outcome = f"{type(error).__name__}: {error}"
    return outcome, ended - sender.sent if sender.sent else 0.0


def _timed(act: Callable[[], object]) -> float:
    begin = time.perf_counter()
    act()
    return time.perf_counter() - begin


def interrupts(path: Path, count: int, rng: random.Random) -> None:
    """Interrupt a model at what it does, and see that it goes on."""
    # A shell starts what it runs in the background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    acts: dict[str, Act] = {"load": lambda _: load(path).close(), **ACTS}
    lost: list[str] = []  # where Python could only print an exception: in finalisers
    sys.unraisablehook = lambda found: lost.append(f"{found.exc_value!r} in {found.object!r}")
    with load(path) as model:
        right = {name: act(model) for name, act in ACTS.items()}
        lasts = {name: _timed(lambda act=act: act(model)) for name, act in acts.items()}
        done = 0
        while done < count:
            name = MOMENTS[done % len(MOMENTS)]
            after = rng.uniform(0, lasts[name])
            say(name)
            outcome, late = interrupted(lambda name=name: acts[name](model), after)
            # What a finaliser raises, Python can only print: the next Ctrl-C counts.
            if outcome == "missed" or (outcome == "swallowed" and lost):
                lost.clear()
                continue
            done += 1
            try:
                wrong = [n for n in {name, "decode"} & ACTS.keys() if ACTS[n](model) != right[n]]
            except BaseException as error:
                wrong = [f"{type(error).__name__}: {error}"]
            if outcome != "interrupted" or wrong:
                text = f"{outcome}, then {wrong}, {lost}"
                say(name, ended=f"{name} wrong", detail=text, seconds=late, mib=rss_mib())
                if wrong:
                    return
            else:
                say(name, ended=f"{name} interrupted", seconds=late, mib=rss_mib())
                if late > SLOW:
                    say(name, late=late)


def losses(path: Path, count: int, rng: random.Random) -> None:
    """Lose a device at random moments from another thread."""
    with load(path) as model:
        lasts = {name: _timed(lambda act=act: act(model)) for name, act in ACTS.items()}
    names = list(ACTS)
    for turn in range(count):
        with load(path) as model:
            executor = model.backend.executor
            assert isinstance(executor, WgpuExecutor)
            act = ACTS[name := names[turn % len(names)]]
            say(name)
            after = rng.uniform(0, 1.5 * lasts[name])
            with Sender(executor.device.lose_for_test, after):
                ended = _until_lost(lambda act=act, model=model: act(model))
        say(name, ended=ended, mib=rss_mib())


def _until_lost(act: Callable[[], object]) -> str:
    begin = time.perf_counter()
    while time.perf_counter() - begin < SILENCE / 2:
        try:
            act()
        except DeviceLost:
            return "DeviceLost"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "not reported"


def exits(path: Path, _count: int, rng: random.Random) -> None:
    """End the process while daemon threads generate."""
    model = load(path)
    going = threading.Event()
    name = rng.choice(list(ACTS))

    def go_on() -> None:
        with suppress(BackendError):
            while True:
                ACTS[name](model)
                going.set()

    # A second thread that opens devices: what goes on beside a generation at the end.
    def opening() -> None:
        with suppress(DeviceError, BackendError):
            while True:
                load(path).close()

    say(name)
    threading.Thread(target=go_on, daemon=True).start()
    if rng.random() < 0.3:
        threading.Thread(target=opening, daemon=True).start()
    going.wait(SILENCE)
    time.sleep(rng.uniform(0, 0.1))
    sys.exit(EXIT_CODE)


def cycles(path: Path, count: int, _rng: random.Random, *, drop: bool = False) -> None:
    """Load and close, or drop, a model again and again."""
    for _ in range(count):
        model = load(path)
        ACTS["decode"](model)
        if not drop:
            model.close()
        del model
        say("cycle", ended="dropped" if drop else "closed", mib=rss_mib())


def drops(path: Path, count: int, rng: random.Random) -> None:
    """`cycles` that never close."""
    cycles(path, count, rng, drop=True)


CHILDREN = {
    "interrupts": interrupts,
    "losses": losses,
    "exits": exits,
    "cycles": cycles,
    "cycles-drop": drops,
}


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.stress", description=__doc__)
    parser.add_argument("command", choices=CHILDREN)
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", type=Path, help="a GGUF file; default a tiny random one")
    parser.add_argument("--story", action="store_true", help="the bundled model")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(words)


def main() -> Iterator[str]:
    asked = arguments()
    if asked.child:
        CHILDREN[asked.command](asked.model, asked.count, random.Random(asked.seed))
        return
    with tempfile.TemporaryDirectory() as folder:
        model = asked.model or (bundled() if asked.story else tiny_model(Path(folder) / "m.gguf"))
        begin = time.perf_counter()
        yield tried(asked.command, asked.count, model, asked.seed).table()
        yield f"{asked.count} tries in {time.perf_counter() - begin:.0f} s"


if __name__ == "__main__":
    for text in main():
        sys.stdout.write(text + "\n")
