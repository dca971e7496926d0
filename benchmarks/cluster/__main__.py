"""Simulate clusters of 1 to 1,000 nodes, and write a page and a chart.

::

    python -m benchmarks.cluster                     tables and the chart, some minutes
    python -m benchmarks.cluster --quick             small clusters alone
    python -m benchmarks.cluster --profile FILE      with the passes of `cluster.profile`
    python -m benchmarks.cluster --calibrate         processes here against the simulation, for
                                                     the page; devices of set times, printed

Passes take what Llama 3.1 8B in Q4_0 on an RTX 4090 is predicted to take by `gpu_costs.predict`; no
such card was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

from benchmarks.cluster import calibrate, groups, stages
from benchmarks.cluster.profile import Profile
from benchmarks.cluster.simulate import Counts, Setup, percentile, simulate
from benchmarks.plot import Series, lines, picture
from wgpu_backend.engine.runner import LONG_CHUNK

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "benchmarks" / "results" / "cluster.md"
CHART = ROOT / "benchmarks" / "results" / "cluster.svg"
PREDICTIONS = ROOT / "wgpu_backend" / "cli" / "predictions.json"
MODEL, FORMAT, CARD = "8b", "q4_0", "RTX 4090"
MANY = 512  # rows of a prompt's predicted pass
# Between two machines of one rack. The framed connection itself takes 14 µs on one machine.
HOP = 0.0002
DOLLARS_AN_HOUR = 0.5  # of a node with such a card: an assumption
SHORT = {"seconds": 40.0, "warm": 25.0, "alone": LONG_CHUNK}
# Fifteen seconds differ by 6 % from one draw of answers to the next, as much as depths do.
LONG = {**SHORT, "seconds": 100.0}
USERS = (1, 10, 100, 1_000, 10_000, 100_000)
NODES = (1, 10, 100, 1_000)
MEASURED = "Simulated against measured"  # the section of --calibrate
A_NODE = 30  # users of each node, in tables with a fixed load
Table = list[list[str]]


def predict() -> Profile:
    """Return the times of passes of the model on the card, from predicted tokens per second.

    A pass reads all weights once, whatever its rows; each row more adds the same.
    """
    found = json.loads(PREDICTIONS.read_text("utf-8"))["predictions"]
    rate = {row[3]: row[4] for row in found if row[:3] == [MODEL, FORMAT, CARD]}
    one, many = 1 / rate["tg"], MANY / rate["pp512"]
    passes = {1: one, MANY: many}
    source = (
        f"Llama 3.1 8B in Q4_0 on {CARD}, predicted, not measured: "
        f"`wgpu_backend/cli/predictions.json`: {rate['tg']:g} and {rate['pp512']:g} tokens/s"
    )
    return Profile(passes, passes, HOP, source)


def row(name: Sequence[str], setup: Setup, counts: Counts) -> list[str]:
    """Format the results of a setup."""
    if not counts.first:
        return [*name, *("–" for _ in HEADS)]
    dollars = DOLLARS_AN_HOUR * setup.nodes / 3600 / counts.throughput * 1e6
    return [
        *name,
        f"{counts.throughput:,.0f}",
        f"{percentile(counts.first, 0.95):.2f}",
        f"{percentile(counts.whole, 0.95):.1f}",
        f"{counts.cached_share:.0%}",
        f"{dollars:.2f}",
    ]


HEADS = ["tokens/s", "p95 first, s", "p95 whole, s", "cached", "$ / million"]


def by_users(profile: Profile, nodes: Sequence[int]) -> tuple[Table, list[Series], list[Series]]:
    """Simulate every number of users up to a hundred for each node."""
    table: Table = [["nodes", "users", *HEADS]]
    rates: list[Series] = []
    waits: list[Series] = []
    for count in nodes:
        points: list[tuple[int, Counts]] = []
        for users in (u for u in USERS if u <= 100 * count):
            setup = Setup(count, users, **SHORT)
            counts = simulate(setup, profile)
            if counts.first:
                points.append((users, counts))
            table.append(row([f"{count:,}", f"{users:,}"], setup, counts))
            print(*table[-1], file=sys.stderr, flush=True)
        name = f"{count:,} nodes" if count > 1 else "1 node"
        rates.append(Series(name, [(u, c.throughput) for u, c in points if c.tokens]))
        waits.append(Series(name, [(u, percentile(c.first, 0.95)) for u, c in points]))
    return table, rates, waits


def by_depth(profile: Profile, nodes: int) -> Table:
    """Simulate replicas against pipelines with the same nodes and users."""
    table: Table = [["replicas x depth", "users", *HEADS]]
    for users in (nodes, A_NODE * nodes, 2 * A_NODE * nodes):
        for depth in (1, 2, 4, 8):
            setup = Setup(nodes, users, depth, **LONG)
            name = [f"{nodes // depth} x {depth}", f"{users:,}"]
            table.append(row(name, setup, simulate(setup, profile)))
    return table


def by_routing(profile: Profile, nodes: int) -> Table:
    """Simulate prefix-aware against random routing."""
    table: Table = [["routing", "users", *HEADS]]
    for users in (10 * nodes, A_NODE * nodes, 2 * A_NODE * nodes):
        for routing in ("prefix", "random"):
            setup = Setup(nodes, users, routing=routing, alone=LONG_CHUNK)
            table.append(row([routing, f"{users:,}"], setup, simulate(setup, profile)))
    return table


def by_failures(profile: Profile, nodes: int) -> Table:
    """Simulate nodes that fail, once in an hour to once in a minute each."""
    table: Table = [["mean time to failure, s", "answered", "run again", "failed", *HEADS]]
    base = Setup(nodes, A_NODE * nodes, alone=LONG_CHUNK)
    for mtbf in (0.0, 3600.0, 600.0, 60.0):
        setup = replace(base, mtbf=mtbf)
        counts = simulate(setup, profile)
        name = [f"{mtbf:,.0f}" if mtbf else "never"]
        name += [f"{each:,}" for each in (counts.answered, counts.retried, counts.failed)]
        table.append(row(name, setup, counts))
    return table


def format_table(table: Table) -> Iterator[str]:
    """Format a table in Markdown, with its first row as the heading."""
    for number, cells in enumerate(table):
        yield f"| {' | '.join(cells)} |"
        if not number:
            yield "|" + "---:|" * len(cells)


def split_sections(text: str) -> tuple[str, dict[str, str]]:
    """Split a page into what comes before its sections, and each section by its title."""
    head, *rest = text.split("\n## ")
    pairs = (each.partition("\n") for each in rest)
    return head.strip(), {title: body.strip() for title, _, body in pairs}


def join_sections(head: str, sections: Mapping[str, str]) -> str:
    """Join what `split_sections` returns."""
    return "\n\n".join([head, *(f"## {t}\n\n{body}" for t, body in sections.items())]) + "\n"


def keep_measured(sections: Mapping[str, str]) -> dict[str, str]:
    """Return the section that `--calibrate` writes, if there is one."""
    return {MEASURED: sections[MEASURED]} if MEASURED in sections else {}


def write_measured(seconds: float) -> None:
    """Compare processes of this machine with the simulation, and write that section of the page."""
    lines = [
        "Two processes of the bundled model on NumPy, by their processor time: two replicas, and a",
        "pipeline of two. Written by `python -m benchmarks.cluster --calibrate`, with",
        f"{seconds:g} s a row.",
        "",
    ]
    for line in chain(calibrate.calibrate(seconds), stages.run(seconds)):
        print(line, flush=True)
        lines.append(line)
    head, sections = split_sections(PAGE.read_text("utf-8"))
    PAGE.write_text(join_sections(head, sections | {MEASURED: "\n".join(lines)}), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--seconds", type=float, default=calibrate.LOAD.seconds, help="of a load")
    parser.add_argument("--profile", type=Path, metavar="FILE", help="of `cluster.profile`")
    asked = parser.parse_args()
    if asked.calibrate:
        write_measured(asked.seconds)
        for line in groups.run():
            print(line, flush=True)
        return
    profile = Profile.read(asked.profile) if asked.profile else predict()
    nodes = 4 if asked.quick else 16
    table, rates, waits = by_users(profile, NODES[: 2 if asked.quick else None])
    head = [
        "# Simulated clusters",
        "",
        "Written by `python -m benchmarks.cluster`; [explained in docs](../../docs/scaling.md).",
        "",
        f"{profile.source}.",
        "",
        "![Throughput and wait by users](cluster.svg)",
    ]
    made = {
        "Nodes and users": table,
        f"Replicas against pipelines, {nodes} nodes": by_depth(profile, nodes),
        f"Routing, {nodes} nodes": by_routing(profile, nodes),
        f"Failing nodes, {nodes} nodes, {A_NODE} users each": by_failures(profile, nodes),
    }
    text = {title: "\n".join(format_table(each)) for title, each in made.items()}
    if asked.quick or asked.profile:
        print(join_sections("\n".join(head), text))
        return
    _, before = split_sections(PAGE.read_text("utf-8"))
    PAGE.write_text(join_sections("\n".join(head), text | keep_measured(before)), "utf-8")
    panels = [
        lines("Throughput", "users", "tokens a second", rates),
        lines("Wait for the first token, p95", "users", "seconds", waits),
    ]
    CHART.write_text(picture(panels), "utf-8")


if __name__ == "__main__":
    main()
