"""Simulate clusters of 1 to 1,000 nodes, and write a page and a chart.

::

    python -m benchmarks.cluster                     tables and the chart, some minutes
    python -m benchmarks.cluster --quick             small clusters alone
    python -m benchmarks.cluster --calibrate         two workers here against the simulation

Stage times are those of Llama 3.1 8B in Q4_0 on an RTX 4090 as `gpu_costs.predict` has them; no
such card was measured.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.cluster.calibrate import calibrate
from benchmarks.cluster.simulate import Costs, Counts, Setup, percentile, simulate
from benchmarks.plot import Series, lines, picture

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "benchmarks" / "results" / "cluster.md"
CHART = ROOT / "benchmarks" / "results" / "cluster.svg"
PREDICTIONS = ROOT / "wgpu_backend" / "cli" / "predictions.json"
MODEL, FORMAT, CARD = "8b", "q4_0", "RTX 4090"
# Between two machines of one rack. The framed connection itself takes 14 µs on one machine.
HOP = 0.0002
DOLLARS_AN_HOUR = 0.5  # of a node with such a card: an assumption
SHORT = {"seconds": 40.0, "warm": 25.0}
USERS = (1, 10, 100, 1_000, 10_000, 100_000)
NODES = (1, 10, 100, 1_000)
A_NODE = 30  # users of each node, in tables with a fixed load
Table = list[list[str]]


def predicted() -> Costs:
    """Return the stage times of the model on the card, from predicted tokens per second.

    A step reads all weights once, whatever the number of its sequences; what one more of them
    costs is a prompt's token.
    """
    found = json.loads(PREDICTIONS.read_text("utf-8"))["predictions"]
    rate = {row[3]: row[4] for row in found if row[:3] == [MODEL, FORMAT, CARD]}
    token = 1 / rate["pp512"]
    source = f"`wgpu_backend/cli/predictions.json`: {rate['tg']:g} and {rate['pp512']:g} tokens/s"
    return Costs(1 / rate["tg"] - token, token, token, HOP, source)


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


def by_users(costs: Costs, nodes: Sequence[int]) -> tuple[Table, list[Series], list[Series]]:
    """Simulate every number of users up to a hundred for each node."""
    table: Table = [["nodes", "users", *HEADS]]
    rates: list[Series] = []
    waits: list[Series] = []
    for count in nodes:
        points: list[tuple[int, Counts]] = []
        for users in (u for u in USERS if u <= 100 * count):
            setup = Setup(count, users, **SHORT)
            counts = simulate(setup, costs)
            if counts.first:
                points.append((users, counts))
            table.append(row([f"{count:,}", f"{users:,}"], setup, counts))
            print(*table[-1], file=sys.stderr, flush=True)
        name = f"{count:,} nodes" if count > 1 else "1 node"
        rates.append(Series(name, [(u, c.throughput) for u, c in points if c.tokens]))
        waits.append(Series(name, [(u, percentile(c.first, 0.95)) for u, c in points]))
    return table, rates, waits


def by_depth(costs: Costs, nodes: int) -> Table:
    """Simulate replicas against pipelines with the same nodes and users."""
    table: Table = [["replicas x depth", "users", *HEADS]]
    for users in (nodes, A_NODE * nodes, 2 * A_NODE * nodes):
        for depth in (1, 2, 4, 8):
            setup = Setup(nodes, users, depth)
            name = [f"{nodes // depth} x {depth}", f"{users:,}"]
            table.append(row(name, setup, simulate(setup, costs)))
    return table


def by_routing(costs: Costs, nodes: int) -> Table:
    """Simulate prefix-aware against random routing."""
    table: Table = [["routing", "users", *HEADS]]
    for users in (10 * nodes, A_NODE * nodes, 2 * A_NODE * nodes):
        for routing in ("prefix", "random"):
            setup = Setup(nodes, users, routing=routing)
            table.append(row([routing, f"{users:,}"], setup, simulate(setup, costs)))
    return table


def by_failures(costs: Costs, nodes: int) -> Table:
    """Simulate nodes that fail, once in an hour to once in a minute each."""
    table: Table = [["mean time to failure, s", "answered", "run again", "failed", *HEADS]]
    base = Setup(nodes, A_NODE * nodes)
    for mtbf in (0.0, 3600.0, 600.0, 60.0):
        setup = replace(base, mtbf=mtbf)
        counts = simulate(setup, costs)
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


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--calibrate", action="store_true")
    asked = parser.parse_args()
    if asked.calibrate:
        print("\n".join(calibrate()))
        return
    costs, nodes = predicted(), 4 if asked.quick else 16
    table, rates, waits = by_users(costs, NODES[: 2 if asked.quick else None])
    text = [
        "# Simulated clusters",
        "",
        "Written by `python -m benchmarks.cluster`; [explained in docs](../../docs/scaling.md).",
        "",
        f"Llama 3.1 8B in Q4_0 on {CARD}, predicted, not measured: {costs.source}.",
        "",
        "![Throughput and wait by users](cluster.svg)",
    ]
    for title, made in (
        ("Nodes and users", table),
        (f"Replicas against pipelines, {nodes} nodes", by_depth(costs, nodes)),
        (f"Routing, {nodes} nodes", by_routing(costs, nodes)),
        (f"Failing nodes, {nodes} nodes, {A_NODE} users each", by_failures(costs, nodes)),
    ):
        text += ["", f"## {title}", "", *format_table(made)]
    if asked.quick:
        print("\n".join(text))
        return
    PAGE.write_text("\n".join(text) + "\n", "utf-8")
    panels = [
        lines("Throughput", "users", "tokens a second", rates),
        lines("Wait for the first token, p95", "users", "seconds", waits),
    ]
    CHART.write_text(picture(panels), "utf-8")


if __name__ == "__main__":
    main()
