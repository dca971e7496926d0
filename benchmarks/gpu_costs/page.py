"""Write a page with the static figures of an 8B model and llama.cpp's.

::

    python -m benchmarks.gpu_costs.page [--llama-bench PATH]

PATH is llama-bench with its Vulkan backend; without it llama.cpp's columns stay empty. It takes
some minutes and needs what `python -m benchmarks.gpu_costs` does.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from math import prod
from pathlib import Path
from typing import Any

from benchmarks.gpu_costs import peer, tools, units
from benchmarks.gpu_costs.__main__ import FAMILIES, GRAPHS, arguments, collected
from benchmarks.gpu_costs.models import FORMATS

PAGE = Path(__file__).parents[1] / "results" / "gpu-costs.md"
FEW = ("decode1", "decode2", "decode4", "decode8")
MANY = ("prefill16", "prefill64", "prefill512")
COLUMNS = {name: int("".join(filter(str.isdigit, name))) for name in GRAPHS}
# What was aimed at: instructions a weight of one column, multiply-adds an instruction of 512.
MOST = {"q4_0": 2.6, "q4_k_m": 3.2, "q6_k": 4.2, "q8_0": 2.0, "f16": 2.6}
LEAST = 1.3
HALF_DIGIT = 0.005  # of what is shown
DOT_OF_BYTES = ("navi31",)  # families that have it

Row = dict[str, Any]
Peers = Mapping[tuple[str, str, bool], Mapping[int, float]]

HEAD = """\
# Static costs of an 8B model

What AMD's compiler makes of the kernels that a GPU gets, and of llama.cpp's Vulkan kernels. Nothing
was run: no GPU was at hand. Judged on {date}. Written by
`python -m benchmarks.gpu_costs.page --llama-bench PATH`.

Figures are of every product of a layer but the head, smallest to largest. Ours are whole kernels:
instructions that a lane executes from the first to the last, waits counted. llama.cpp's are of the
loop that multiplies most, without the code before and after it, and count multiply-adds by scales
as products. Its products of blocks take activations in eight bits where packed bytes have a dot
product (navi31); ours by default take sixteen bits for few columns, and f16 for many. Of Q4_K_M its
figures are of Q4_K, ours of Q4_K and Q6_K.
"""


def figure(row: Row) -> float:
    """Return the instructions for each weight and column."""
    return row["instructions_per_weight"] / COLUMNS[row["graph"]]


def products(rows: Iterable[Row], format: str, graph: str) -> list[Row]:
    """List the products of the layers: for a prompt those of all tokens, not of the last alone."""
    own = [row for row in rows if (row["format"], row["graph"]) == (format, graph)]
    return [
        _with_merge(row, own)
        for row in own
        if row["op"].startswith("linear") and row["instructions_per_weight"] and row["count"] > 1
    ]


def _with_merge(row: Row, rows: Iterable[Row]) -> Row:
    """Add the instructions that sum up the parts of a split product."""
    if row["op"] != "linear_splits":
        return row
    m, k = map(int, _weight(row).partition("[")[2].rstrip("]").split("×"))
    sums = f"x:f32[{row['groups'][2]}×{COLUMNS[row['graph']]}×{m}]"
    merges = [r for r in rows if r["op"] == "linear_merge" and r["operands"].startswith(sums)]
    # Products of one size share a merge, or one adds something and the other does not.
    more = max(r["instructions"] * r["threads"] * prod(r["groups"]) for r in merges) / (m * k)
    return {**row, "instructions_per_weight": row["instructions_per_weight"] + more}


def cell(values: Sequence[float], other: float | None) -> str:
    """Format our smallest and largest figure, then llama.cpp's."""
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    own = low if low == high else f"{low} to {high}"
    return own if other is None else f"{own} ({other:.2f})"


def table(
    rows: Sequence[Row],
    peers: Peers,
    graphs: Sequence[str],
    formats: Sequence[str] = FORMATS,
    *,
    turned: bool,
) -> Iterator[str]:
    """Format one line per format; `turned` has multiply-adds per instruction."""
    family = rows[0]["family"]
    yield f"| | {' | '.join(str(COLUMNS[graph]) for graph in graphs)} |"
    yield "|---|" + "---|" * len(graphs)
    for format in formats:
        cells: list[str] = []
        for graph in graphs:
            own = [figure(row) for row in products(rows, format, graph)]
            other = peers.get((family, format, False), {}).get(COLUMNS[graph])
            if turned:
                own, other = [1 / each for each in own], other and 1 / other
            cells.append(cell(own, other))
        yield f"| {format.upper()} | {' | '.join(cells)} |"


def dispatches(rows: Sequence[Row]) -> Iterator[str]:
    """Format the number of dispatches of a graph, by format."""
    yield f"| | {' | '.join(GRAPHS)} |"
    yield "|---|" + "---:|" * len(GRAPHS)
    for format in FORMATS:
        counts = [
            sum(r["count"] for r in rows if (r["format"], r["graph"]) == (format, graph))
            for graph in GRAPHS
        ]
        yield f"| {format.upper()} | {' | '.join(map(str, counts))} |"


def falls_short(rows: Sequence[Row]) -> Iterator[str]:
    """List figures that miss their aim, and everything that spills."""
    for row in rows:
        if row["spills"] or row["scratch"]:
            yield f"{row['format']} {row['graph']} {row['op']} spills {row['spills']} registers"
    for format in FORMATS:
        for row in products(rows, format, "decode1"):
            most = MOST[_aim(row)]
            if figure(row) > most + HALF_DIGIT:
                yield f"one column of {_weight(row)}: {figure(row):.2f}, aim {most}"
        for row in products(rows, format, "prefill512"):
            if 1 / figure(row) < LEAST - HALF_DIGIT:
                yield f"512 columns of {_weight(row)}: {1 / figure(row):.2f}, aim {LEAST}"


def _weight(row: Row) -> str:
    """Return type and shape of a product's weight."""
    return row["operands"].split()[0].removeprefix("weights:")


def _aim(row: Row) -> str:
    """Return the format whose aim applies to a product."""
    dtype = _weight(row).partition("[")[0]
    return "q4_k_m" if dtype == "q4_k" else dtype


def section(rows: Sequence[Row], coarse: Sequence[Row], peers: Peers) -> Iterator[str]:
    """Format everything about a family of GPUs."""
    family = rows[0]["family"]
    yield f"\n## {family}\n"
    yield "Instructions for each weight and column, by columns; in brackets llama.cpp:\n"
    yield from table(rows, peers, FEW, turned=False)
    yield "\nMultiply-adds for each instruction, by tokens of a prompt:\n"
    yield from table(rows, peers, MANY, turned=True)
    if coarse:
        yield "\nThe same of 512 tokens with activations in eight bits (`--coarse`), and llama.cpp"
        yield "with matrix instructions (ours are below):\n"
        yield "| | eight bits | llama.cpp, matrix instructions |\n|---|---|---|"
        for format in FORMATS:
            own = [1 / figure(row) for row in products(coarse, format, "prefill512")]
            other = peers.get((family, format, True), {}).get(512)
            ratio = f"{1 / other:.2f}" if other else "–"
            yield f"| {format.upper()} | {cell(own, None) if own else '–'} | {ratio} |"
    short = list(dict.fromkeys(falls_short(rows)))
    spilled = sum(row["spills"] for row in rows)
    scratch = sum(row["scratch"] for row in rows)
    yield f"\n{spilled} registers spilled, {scratch} bytes of scratch, in {len(rows)} kernels."
    yield "Short of what was aimed at:\n" if short else "Nothing is short of what was aimed at."
    yield from (f"- {line}" for line in short)
    yield "\nDispatches:\n"
    yield from dispatches(rows)


def attention(rows: Iterable[Row]) -> Iterator[str]:
    """Format the attention of one token."""
    yield "\n## Attention of one token, 4,096 positions, cache in f16\n"
    yield (
        "A loop for 16 KB of keys and values a wave of 64 has 470 instructions on navi31, 522 on "
        "vega10;\nllama.cpp's scalar kernel 468 (counted by hand, see [LOG](../log/decode.md)). "
        "Whole kernels:\n"
    )
    yield "| | kernel | instructions | VGPRs | waves |\n|---|---|---:|---:|---:|"
    for row in rows:
        if row["graph"] == "decode1" and row["format"] == "q4_0" and "attention" in row["op"]:
            instructions = f"{row['instructions']:.0f}" if row["instructions"] else "–"
            yield (
                f"| {row['family']} | {row['op']} | {instructions} | {row['vgprs']} | "
                f"{row['waves']} |"
            )


def experts(rows: Iterable[Row]) -> Iterator[str]:
    """Format tiles of experts, as full as they can be."""
    yield "\n## Experts of Qwen3-30B-A3B, 512 tokens\n"
    yield "Multiply-adds for each instruction, of full tiles of 64 rows by 32 pairs:\n"
    yield "| | weight | multiply-adds | VGPRs | spilled |\n|---|---|---:|---:|---:|"
    for row in rows:
        if row["graph"] == "experts512" and row["op"] == "linear_by_expert":
            weight = _weight(row)
            tile = 64 * 32 * int(weight.partition("×")[2].rstrip("]"))
            ratio = tile / (row["instructions"] * row["threads"])
            yield f"| {row['family']} | {weight} | {ratio:.2f} | {row['vgprs']} | {row['spills']} |"


def with_units(rows: Sequence[units.Figures], family: str) -> Iterator[str]:
    """Format kernels with matrix units."""
    yield f"\n## Matrix units, {family}\n"
    yield "Of the loop that multiplies most, the largest tiles, units of 16x16x16:\n"
    yield "| kernel | cost | VGPRs | spilled | waves |\n|---|---|---:|---:|---:|"
    for row in rows:
        yield f"| {row.name} | {row.cost} | {row.vgprs} | {row.spills} | {row.waves} |"


def unit_lines(family: str) -> list[str]:
    """Compile kernels with matrix units and format them; nothing where naga is not built."""
    with tempfile.TemporaryDirectory() as name:
        try:
            return list(with_units(units.collected(family, Path(name)), family))
        except tools.Missing as missing:
            print(f"without matrix units: {missing}")
            return []


def peers_of(bench: Path | None) -> Peers:
    """Return llama.cpp's figures; none without its program."""
    if bench is None:
        return {}
    found: dict[tuple[str, str, bool], Mapping[int, float]] = {}
    columns = sorted(set(COLUMNS.values()))
    for family in FAMILIES:
        for format in FORMATS:
            found[family, format, False] = peer.figures(bench, family, format, columns)
            if family in DOT_OF_BYTES:
                more = peer.figures(bench, family, format, [512], matrices=True)
                found[family, format, True] = more
    return found


def page(
    families: Sequence[Sequence[Row]],
    coarse: Sequence[Row],
    peers: Peers,
    more: Iterable[str] = (),
) -> str:
    """Format the page as Markdown, with more lines at its end."""
    lines = [HEAD.format(date=date.today().isoformat()).rstrip()]
    for rows in families:
        lines += section(rows, coarse if rows[0]["family"] in DOT_OF_BYTES else (), peers)
    lines += attention(row for rows in families for row in rows)
    lines += experts(row for rows in families for row in rows)
    lines += more
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--llama-bench", type=Path, metavar="PATH")
    bench = parser.parse_args().llama_bench
    try:
        families = [collected(arguments([]), family)[1] for family in FAMILIES]
        options = arguments(["--coarse", "--graph", "prefill512", "--op", "linear"])
        coarse = collected(options, DOT_OF_BYTES[0])[1]
        text = page(families, coarse, peers_of(bench), unit_lines(DOT_OF_BYTES[0]))
    except tools.Missing as missing:
        print(f"skipped: {missing}")
        return 0
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
