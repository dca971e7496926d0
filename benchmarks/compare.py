"""Compare tokens per second with llama.cpp on the same files and the same device.

::

    python benchmarks/compare.py --peer build/bin/llama-bench model-q4_0.gguf model-f16.gguf
    python benchmarks/compare.py --peer build/bin/llama-bench -p 64 -n 8 --rounds 3 \
        --json out.json --plot out.svg model.gguf

The peer is llama-bench, built with its Vulkan backend; its CPU backend runs as well, for the
machine's speed without a GPU API. The sides take turns, a process each, and a ratio is taken within
a round, so that other load affects both. Each process warms up before it measures. Any GGUF file
will do.

Both sides go through the same Vulkan loader; ``--driver FILE`` names the driver's manifest for
both. ``--peer-device`` is the index of the device in llama.cpp, which needs it for a software
rasteriser. A side that fails or takes longer than ``--timeout`` is left out for that
model from then on, and the reason is printed below the table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.plot import Spread, picture, ratios
from wgpu_backend.ml.opening import choose_device

OURS, VULKAN, CPU = "wgpu-backend", "llama.cpp Vulkan", "llama.cpp CPU"
Rates = Mapping[str, float]
"""Tokens a second by test: ``pp64`` reads a prompt of 64 tokens, ``tg8`` makes 8 one by one."""


class SideError(Exception):
    """One side failed to give figures; the message is one line."""


@dataclass(frozen=True, slots=True)
class Side:
    """One of the compared programs.

    Parameters
    ----------
    name : str
    words : callable
        Command line for a model file.
    rates : callable
        Figures from what the command writes.
    environment : mapping of str to str
        What is added to ours.
    """

    name: str
    words: Callable[[Path], list[str]]
    rates: Callable[[str], Rates]
    environment: Mapping[str, str]

    def measure(self, model: Path, timeout: float) -> Rates:
        """Run the command once.

        Raises
        ------
        SideError
            It failed, or had to be killed.
        """
        try:
            done = subprocess.run(
                self.words(model),
                env={**os.environ, **self.environment},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise SideError(f"took more than {timeout:g} s and was killed") from None
        except OSError as error:
            raise SideError(str(error)) from None
        if done.returncode:
            last = done.stderr.strip().rpartition("\n")[2]
            raise SideError(f"exit code {done.returncode}: {last}")
        try:
            return self.rates(done.stdout)
        except (ValueError, KeyError, TypeError) as error:
            raise SideError(f"its JSON was not understood: {error!r}") from None


def sides(options: argparse.Namespace) -> list[Side]:
    """List the programs, ours first."""
    sizes = ["-p", str(options.prompt), "-n", str(options.generate)]
    sizes += ["-r", str(options.repetitions)]
    ours = [sys.executable, "-m", "wgpu_backend", "bench", *sizes, "--json"]
    device = ["--device", options.device] if options.device else []
    peer = [str(options.peer), *sizes, "-o", "json"]
    seen = {"GGML_VK_VISIBLE_DEVICES": options.peer_device}
    found = [
        Side(OURS, lambda path: [*ours, str(path), *device], our_rates, {}),
        Side(VULKAN, lambda path: [*peer, "-ngl", "99", "-m", str(path)], peer_rates, seen),
        Side(CPU, lambda path: [*peer, "-dev", "none", "-m", str(path)], peer_rates, {}),
    ]
    return found[: 3 if options.cpu else 2]


def our_rates(text: str) -> Rates:
    """Parse the figures of ``wgpu-backend bench --json``."""
    return {row["test"]: float(row["tokens_per_second"]) for row in json.loads(text)}


def peer_rates(text: str) -> Rates:
    """Parse the figures of ``llama-bench -o json``.

    Of several runs the median: it warms up with one, during which a GPU's clock is still low.
    """
    rows = json.loads(text)
    names = [f"pp{r['n_prompt']}" if r["n_prompt"] else f"tg{r['n_gen']}" for r in rows]
    return {n: median(r["samples_ts"]) for n, r in zip(names, rows, strict=True)}


@dataclass(slots=True)
class Comparison:
    """One test of one model: the rates of each side, round by round.

    Parameters
    ----------
    model, test : str
    rounds : list of mappings
        Tokens a second by the name of the side; a side that failed is not in it.
    """

    model: str
    test: str
    rounds: list[dict[str, float]]

    def rate(self, side: str) -> float | None:
        """Return the median of a side's tokens per second."""
        reached = [each[side] for each in self.rounds if side in each]
        return median(reached) if reached else None

    def ratio(self, side: str) -> tuple[float, float, float] | None:
        """Return our rate relative to the side's within each round: least, median, most."""
        found = [each[OURS] / each[side] for each in self.rounds if {OURS, side} <= each.keys()]
        return (min(found), median(found), max(found)) if found else None


def compared(
    models: Sequence[Path], among: Sequence[Side], rounds: int, timeout: float
) -> tuple[list[Comparison], list[str]]:
    """Let the sides take turns over the models; return comparisons and errors."""
    found: dict[tuple[str, str], Comparison] = {}
    failures: list[str] = []
    for model in models:
        left = list(among)
        for number in range(rounds):
            for side in tuple(left):
                print(f"{model.name}: round {number + 1} of {rounds}, {side.name}", file=sys.stderr)
                try:
                    rates = side.measure(model, timeout)
                except SideError as error:
                    failures.append(f"{side.name}, {model.name}: {error}")
                    left.remove(side)
                    continue
                for test, rate in rates.items():
                    fresh = Comparison(model.stem, test, [{} for _ in range(rounds)])
                    each = found.setdefault((model.stem, test), fresh)
                    each.rounds[number][side.name] = rate
    return list(found.values()), failures


def table(comparisons: Sequence[Comparison], others: Sequence[str]) -> str:
    """Format rates and ratios with their spread, in columns."""
    heads = ["model", "test", OURS]
    for other in others:
        heads += [other, "ours ÷ it (least – most)"]
    rows = [heads]
    for each in comparisons:
        row = [each.model, each.test, _rate(each.rate(OURS))]
        for other in others:
            row += [_rate(each.rate(other)), _ratio(each.ratio(other))]
        rows.append(row)
    widths = [max(len(row[i]) for row in rows) for i in range(len(heads))]
    return "\n".join(
        "  ".join(
            cell.ljust(w) if i < 2 else cell.rjust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _rate(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}" if value < 100 else f"{value:.0f}"


def _ratio(spread: tuple[float, float, float] | None) -> str:
    if spread is None:
        return "–"
    least, middle, most = spread
    return f"{middle:.3g} ({least:.3g} – {most:.3g})"


def plot(comparisons: Sequence[Comparison], others: Sequence[str], title: str) -> str:
    """Plot the ratios."""
    spreads = [
        Spread(f"{each.model} {each.test}", other, *spread)
        for each in comparisons
        for other in others
        if (spread := each.ratio(other))
    ]
    panel, height = ratios(title, "our tokens a second ÷ theirs", spreads)
    return picture([panel], 660, height)


def report(comparisons: Sequence[Comparison], others: Sequence[str]) -> list[dict[str, object]]:
    """Convert each comparison for ``--json``."""
    return [
        {
            **asdict(each),
            "tokens_per_second": {side: each.rate(side) for side in (OURS, *others)},
            "ratios": {side: each.ratio(side) for side in others},
        }
        for each in comparisons
    ]


def drivers(options: argparse.Namespace) -> dict[str, str]:
    """Return device and driver of both sides, as each reports them."""
    info = choose_device(options.device or None)[1]
    theirs = peer_device(options.peer, options.peer_device)
    if info.name not in theirs:
        theirs += " (not the name that ours has: is it the same device?)"
    return {OURS: f"{info.name}, {info.driver}", VULKAN: theirs}


def peer_device(peer: Path, index: str) -> str:
    """Return llama-bench's name of the device with an index."""
    try:
        listed = subprocess.run(
            [str(peer), "--list-devices"],
            env={**os.environ, "GGML_VK_VISIBLE_DEVICES": index},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"unknown, {error}"
    lines = [line.strip() for line in listed.stdout.splitlines()]
    return next((line for line in lines if line.startswith("Vulkan")), "no Vulkan device")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL.gguf")
    parser.add_argument("--peer", required=True, type=Path, help="llama-bench with Vulkan")
    parser.add_argument("-p", "--prompt", type=int, default=512, help="0 leaves it out")
    parser.add_argument("-n", "--generate", type=int, default=128, help="0 leaves it out")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repetitions", type=int, default=1, help="runs of a process; 20 on a GPU")
    parser.add_argument("--device", default="", help="ours, as `wgpu-backend devices` lists them")
    parser.add_argument("--peer-device", default="0", help="index that llama.cpp gives the device")
    parser.add_argument("--driver", type=Path, help="manifest of the Vulkan driver, for both")
    parser.add_argument("--no-cpu", dest="cpu", action="store_false")
    parser.add_argument("--timeout", type=float, default=900, help="seconds of one process")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg")
    options = parser.parse_args()
    for path in (options.peer, *options.models):
        if not path.is_file():
            parser.error(f"{path}: no such file")
    if options.driver:
        os.environ["VK_DRIVER_FILES"] = str(options.driver.resolve())
    options.peer = options.peer.resolve()
    return options


def main() -> None:
    options = arguments()
    devices = drivers(options)
    for side, device in devices.items():
        print(f"{side}: {device}")
    among = sides(options)
    others = [side.name for side in among[1:]]
    comparisons, failures = compared(options.models, among, options.rounds, options.timeout)
    print(f"\nTokens a second, median of {options.rounds} rounds\n")
    print(table(comparisons, others))
    for failure in failures:
        print(f"\n{failure}")
    if options.json:
        result = {
            "devices": devices,
            "prompt": options.prompt,
            "generate": options.generate,
            "results": report(comparisons, others),
            "failures": failures,
        }
        options.json.write_text(json.dumps(result, indent=1) + "\n", "utf-8")
    if options.plot and comparisons:
        options.plot.write_text(plot(comparisons, others, devices[OURS]), "utf-8")
    if failures:
        sys.exit(1)


if __name__ == "__main__":
    main()
