"""Predict tokens per second of named cards from static costs; no card was measured.

::

    python -m benchmarks.gpu_costs.predict      models of three sizes in five formats, some minutes

A dispatch takes the longest of four, and the gap after it:

    bytes          operands and result, each once, at 85 % of the card's bandwidth
    instructions   of all lanes, at 80 % of what its lanes issue
    accesses       lines of 128 bytes and passes over banks of workgroup memory, a core's cycle each
    one wave       what a lane executes, an instruction every fourth cycle: few groups fill no card

The figures are those of AMD's compiler for navi31, and of Intel's for Battlemage where the card
is Intel's; other vendors' compilers need more or fewer instructions. Caches beyond the lines of one
load, clocks under load and drivers are left out. Written are the data of ``wgpu-backend bench
--compare-prediction`` and the table in docs.
"""

from __future__ import annotations

import json
import math
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_costs import tools
from benchmarks.gpu_costs.__main__ import arguments, collected
from benchmarks.gpu_costs.models import FORMATS, SIZES

ROOT = Path(__file__).parents[2]
DATA = ROOT / "wgpu_backend" / "cli" / "predictions.json"
PAGE = ROOT / "docs" / "predicted-speed.md"
MODELS = ("8b", "1b", "0.5b")
FAMILY, INTEL_FAMILY = "navi31", "bmg"
POSITIONS = 256  # that a decode step looks at
OF_BANDWIDTH, OF_ISSUE = 0.85, 0.80
GAP = 3.0  # microseconds, of every card: an estimate, see `GAPS`
CYCLES_ALONE = 4  # between instructions of a wave that is alone on its core
ITERATIONS_UNKNOWN = 10
LANES = 32

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Card:
    """The figures of a card.

    Parameters
    ----------
    name : str
        Also how its adapter's name is known.
    bandwidth : float
        GB/s.
    cores, lanes : int
        Cores (SMs, CUs, Xe cores), and lanes that issue an f32 operation a cycle, of each.
    clock : float
        GHz.
    gap : float
        Microseconds between dispatches that wait for each other, an estimate.
    source : str
        Where the figures are from.
    family : str
        Whose static costs stand for the card's.
    """

    name: str
    bandwidth: float
    cores: int
    lanes: int
    clock: float
    gap: float
    source: str
    family: str = FAMILY

    @property
    def peak(self) -> float:
        """Compute TFLOPS in f32; an fma counts as two."""
        return 2 * self.cores * self.lanes * self.clock / 1e3


# Boost clocks, as vendors' peaks have them; a card under load may be below or above.
CARDS = (
    Card(
        "H200", 4800, 132, 128, 1.98, GAP,
        "NVIDIA's, as in hmc-tech.com (1980 MHz, 66.9 TFLOPS) and glennklockwood.com/garden/"
        "processors/h100, whose die it is: 132 SMs; 4.8 TB/s",
    ),
    Card(
        "RTX 4090", 1008, 128, 128, 2.52, GAP,
        "NVIDIA's, as in thefpsreview.com and Tom's Hardware: 16384 cores, 82.6 TFLOPS",
    ),
    Card(
        "RX 7900 XTX", 960, 96, 64, 2.5, GAP,
        "AMD's, as in gamingpcbuilder.com and pcspecchart.com: 6144 shaders, 2.3 GHz in games; "
        "half of AMD's 61.4 TFLOPS, since dual issue is not counted",
    ),
    Card(
        "Arc B580", 456, 20, 128, 2.67, GAP,
        "Intel's, as in fpsbench.com and chipsandcheese.com (intels-battlemage-architecture): "
        "2560 lanes, 13.67 TFLOPS",
        INTEL_FAMILY,
    ),
    Card(
        "M3 Max", 400, 40, 128, 1.4, GAP,
        "40 cores and 400 GB/s as in notebookcheck.net; Apple names no clock, hmc-tech.com has "
        "1398 MHz and 14.3 TFLOPS, radargit.com 1600 MHz and 16.4",
    ),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Test:
    """A test of `wgpu-backend bench`: `passes` of a graph produce so many tokens."""

    name: str
    graph: str
    tokens: int
    passes: int


# A prompt goes in chunks of 256 tokens.
TESTS = (
    Test("tg", "decode1", 1, 1),
    Test("pp128", "prefill128", 128, 1),
    Test("pp512", "prefill256", 512, 2),
)


@dataclass(frozen=True, slots=True)
class Prediction:
    """The tokens per second, and the largest share of the time: a roof, or the gaps."""

    model: str
    format: str
    card: str
    test: str
    tokens_per_second: float
    bound: str


def dispatch_times(row: Row, card: Card) -> dict[str, float]:
    """Compute the microseconds of one dispatch by each roof."""
    groups, threads = math.prod(row["groups"]), row["threads"]
    # Loops that depend on data have no count: there each instruction is taken to run a few times.
    alone = (row["instructions"] or row["static_instructions"] * ITERATIONS_UNKNOWN) * CYCLES_ALONE
    issued = groups * threads * alone / CYCLES_ALONE
    a_group = -(-threads // LANES) * sum(e["times"] * (e["took"] or 0.0) for e in row["lint"])
    cycles = {
        "instructions": issued / (card.cores * card.lanes * OF_ISSUE),
        "accesses": a_group * groups / card.cores,
        "one wave": alone,
    }
    times = {name: count / (card.clock * 1e3) for name, count in cycles.items()}
    return {"bytes": row["nbytes"] / (card.bandwidth * OF_BANDWIDTH * 1e3), **times}


def pass_time(rows: Iterable[Row], card: Card) -> tuple[float, str]:
    """Compute the microseconds of a graph, and the largest share of them."""
    shares: Counter[str] = Counter()
    for row in rows:
        times = dispatch_times(row, card)
        longest = max(times, key=lambda name: times[name])
        shares[longest] += times[longest] * row["count"]
        shares["gaps"] += card.gap * row["count"]
    return shares.total(), shares.most_common(1)[0][0]


def predictions(rows: Sequence[Row]) -> Iterator[Prediction]:
    """Predict every model, format, card and test that has rows."""
    graphs: dict[tuple[str, str, str], list[Row]] = {}
    for row in rows:
        graphs.setdefault((row["model"], row["format"], row["graph"]), []).append(row)
    for (model, format, graph), some in graphs.items():
        for test in (test for test in TESTS if test.graph == graph):
            for card in CARDS:
                own = [row for row in some if row["family"] == card.family]
                time, bound = pass_time(own, card)
                rate = test.tokens / (test.passes * time) * 1e6
                yield Prediction(model, format, card.name, test.name, _rounded(rate), bound)


def _rounded(rate: float) -> float:
    """Round to two digits: the rest is not significant."""
    return float(f"{rate:.2g}")


def data(found: Sequence[Prediction]) -> dict[str, Any]:
    """Convert the predictions to the data of ``wgpu-backend bench --compare-prediction``."""
    sizes = {name: SIZES[name] for name in MODELS}
    return {
        "positions": POSITIONS,
        "cards": [card.name for card in CARDS],
        "models": {
            name: {
                "block_count": size.layers,
                "embedding_length": size.hidden,
                "feed_forward_length": size.inner,
            }
            for name, size in sizes.items()
        },
        "columns": ["model", "format", "card", "test", "tokens_per_second", "bound"],
        "predictions": [list(asdict(each).values()) for each in found],
    }


def text_of(found: dict[str, Any]) -> str:
    """Format the data as a file, one line per prediction."""
    rows = [json.dumps(row) for row in found["predictions"]]
    rest = json.dumps({**found, "predictions": []}, indent=1).removesuffix("[]\n}")
    return rest + "[\n" + ",\n".join(rows) + "\n]}\n"


def page(found: Iterable[Prediction]) -> str:
    """Format the page with the tables."""
    found = list(found)
    lines = [HEAD]
    for test, title in (("tg", "One token after the other"), ("pp512", "A prompt of 512 tokens")):
        lines += [f"## {title}", ""]
        lines += _table([each for each in found if each.test == test])
    lines += ["## The cards", "", "| card | GB/s | cores × lanes | GHz | TFLOPS | source |"]
    lines += ["|---|---|---|---|---|---|"]
    lines += [*map(_card, CARDS), "", GAPS]
    return "\n".join(lines) + "\n"


def _card(c: Card) -> str:
    cells = (
        c.name,
        f"{c.bandwidth:g}",
        f"{c.cores} × {c.lanes}",
        f"{c.clock:g}",
        f"{c.peak:.1f}",
        c.source,
    )
    return f"| {' | '.join(cells)} |"


def _table(found: Sequence[Prediction]) -> list[str]:
    names = [card.name for card in CARDS]
    cells = {
        (each.model, each.format, each.card): f"{each.tokens_per_second:,.0f} {LETTERS[each.bound]}"
        for each in found
    }
    lines = [f"| model | {' | '.join(names)} |", "|---|" + "---:|" * len(names)]
    for model, format in dict.fromkeys((each.model, each.format) for each in found):
        row = [cells[model, format, name] for name in names]
        lines.append(f"| {model.upper()} {format.upper()} | {' | '.join(row)} |")
    return [*lines, ""]


LETTERS = {"bytes": "b", "instructions": "i", "accesses": "a", "one wave": "w", "gaps": "g"}
HEAD = f"""\
# Predicted speed

Tokens a second as they follow from static costs. **None of these cards was measured**; an
[H100 was](../benchmarks/results/h100.md), which has 70 % of an H200's bandwidth. Written by
`python -m benchmarks.gpu_costs.predict`; `wgpu-backend bench --compare-prediction MODEL` shows a
measurement beside its prediction, on a card and with a model that are named here.

Of each dispatch the longest of these counts, and after it a gap:

- **b**ytes: operands and result, each once, at {OF_BANDWIDTH:.0%} of the bandwidth;
- **i**nstructions: of all lanes, at {OF_ISSUE:.0%} of what the card issues;
- **a**ccesses: lines of 128 bytes and passes over banks of workgroup memory, one a core and cycle;
- one **w**ave that runs alone: an instruction every {CYCLES_ALONE} cycles.

The letter after a figure names the largest share of the time; **g** are the gaps.

Instructions and accesses are what AMD's compiler makes of the kernels for navi31, and Intel's for
Battlemage, the B580's; for NVIDIA's and Apple's cards AMD's figures stand in. What
is not in it: those vendors' compilers, clocks under load, caches beyond the lines of one load, the
host. Expect a factor of two either way. Decode steps look at {POSITIONS} positions; the models have
the sizes of Llama 3.1 8B, Llama 3.2 1B and Qwen2 0.5B, with output matrices of their own.

Weights in blocks meet activations as they do by default: those of one token in sixteen bits, those
of prompts in f16. With `--coarse` prompts take about half of the instructions.
"""
GAPS = f"""\
Figures and addresses are those of pages in a public crawl. The gap between dispatches that wait for
each other is taken to be {GAP:g} µs on every card, an estimate: nobody published it for wgpu on
these cards. What is published is the cost of a dispatch on the host, 24 to 36 µs on Vulkan and
32 to 71 µs on Metal (arXiv 2604.02344); a program that is recorded once pays little of it, and
while the device works."""


def main() -> int:
    graphs = ",".join(test.graph for test in TESTS)
    words = ["--graph", graphs, "--positions", str(POSITIONS), "--lint"]
    rows: list[Row] = []
    try:
        for model in MODELS:
            options = arguments([*words, "--model", model, "--formats", ",".join(FORMATS)])
            for family in (FAMILY, INTEL_FAMILY):
                rows += collected(options, family)[1]
            print(f"{model}: {len(rows)} kernels so far", file=sys.stderr)
    except tools.Missing as missing:
        print(f"skipped: {missing}")
        return 0
    found = list(predictions(rows))
    DATA.write_text(text_of(data(found)), "utf-8")
    PAGE.write_text(page(found), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
