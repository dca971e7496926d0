"""Report the static costs of kernels by GPU compilers, without a GPU.

::

    python -m benchmarks.gpu_costs                                  all that the baseline has
    python -m benchmarks.gpu_costs --op linear --formats q4_k_m     products with weights
    python -m benchmarks.gpu_costs --graph decode1 --lint           memory accesses
    python -m benchmarks.gpu_costs --model others                   experts, states, convolutions
    python -m benchmarks.gpu_costs --family bmg                     Intel's compiler
    python -m benchmarks.gpu_costs --check                          fails where one became worse

``python -m benchmarks.gpu_costs.page`` writes a page of them and llama.cpp's figures.
``python -m benchmarks.gpu_costs.units`` has kernels with matrix units, and ``….denoising`` a step
of an image model with and without them.

The graphs of decode steps and prompts are recorded for a model without weights, and Mesa's RADV
(for Intel's GPUs its ANV) compiles each kernel for a card that does not exist: the same figures
every time. It needs a C compiler and Mesa 25 or newer, the system's or one unpacked in the folder
that the environment variable MESA names; without them it prints that and exits with 0.

Not included: caches, clocks, gaps between dispatches, and other vendors' compilers. Measurements
on a card are more reliable.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from benchmarks.gpu_costs import compare, tools
from benchmarks.gpu_costs.models import FORMATS, SIZES

OTHERS = "others"  # see `benchmarks.gpu_costs.others`, which needs the package
MODELS = ("8b", OTHERS)
GRAPH_HELP = "decodeN, prefillN, prefillNatM (N tokens that end at M); of others, by their names"
MODEL_HELP = f"{', '.join(SIZES)}; or {OTHERS}: ops of other architectures, one by one"

FAMILIES = ("navi31", "vega10")
GRAPHS = ("decode1", "decode2", "decode4", "decode8", "prefill16", "prefill64", "prefill512")
FAMILY_HELP = f"of AMD's as Mesa names them; of Intel's {' and '.join(tools.INTEL)}"
WORST = 20  # accesses that the lint shows
HEADS = (
    "n", "op", "kernel", "grid", "wg", "wave", "VGPR", "spill", "scratch", "LDS", "waves",
    "latency", "1/thru", "code", "ins/lane", "ins/weight", "operands",
)  # fmt: skip

Row = dict[str, Any]


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the options of the command."""
    text = __doc__ or ""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("gpu_costs", description=text, formatter_class=formatter)
    parser.add_argument("--model", type=_words, default=MODELS, help=MODEL_HELP)
    parser.add_argument("--formats", type=_words, default=FORMATS, help=",".join(FORMATS))
    parser.add_argument("--family", type=_words, default=FAMILIES, help=FAMILY_HELP)
    parser.add_argument("--op", default="", help="how its name begins; linear: all with weights")
    parser.add_argument("--graph", type=_words, default=GRAPHS, help=GRAPH_HELP)
    parser.add_argument("--positions", type=int, default=4096, help="that a decode step looks at")
    parser.add_argument("--kv", default="f16", help="type of the cache")
    parser.add_argument("--exact", action="store_true", help="activations stay in f32")
    parser.add_argument("--coarse", action="store_true", help="to eight bits where that is taken")
    parser.add_argument("--rounded", action="store_true", help="to eight bits wherever possible")
    parser.add_argument("--lint", action="store_true", help="lines and bank cycles of accesses")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true", help="compare with the baseline")
    parser.add_argument("--write-baseline", action="store_true")
    options = parser.parse_args(words)
    if unknown := set(options.model) - {*SIZES, OTHERS}:
        parser.error(f"--model: {', '.join(sorted(unknown))} is none of {MODEL_HELP}")
    of_models = options.graph is not GRAPHS or options.formats is not FORMATS
    if options.model is MODELS and of_models:
        options.model = MODELS[:1]  # others have neither
    chosen = (options.model, options.formats, options.family, options.op, options.graph)
    if options.write_baseline and chosen != (MODELS, FORMATS, FAMILIES, "", GRAPHS):
        parser.error("--write-baseline: the baseline has all, leave the options that choose out")
    return options


def _words(text: str) -> tuple[str, ...]:
    return tuple(filter(None, text.split(",")))


def collected(options: argparse.Namespace, family: str) -> tuple[str, list[Row]]:
    """Return driver and figures of one family.

    Raises
    ------
    tools.Missing
        A tool is not there.
    """
    driver, rows = "", list[Row]()
    for model in options.model:
        driver, found = _of_model(options, family, model)
        rows += found
    return driver, rows


def _of_model(options: argparse.Namespace, family: str, model: str) -> tuple[str, list[Row]]:
    wanted = {
        "family": family,
        "model": model,
        "formats": options.formats,
        "graphs": options.graph,
        "op": options.op,
        "positions": options.positions,
        "kv": options.kv,
        "exact": options.exact,
        "coarse": options.coarse,
        "rounded": options.rounded,
        "lint": options.lint,
    }
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        out = work / "rows.json"
        words = ["benchmarks.gpu_costs.collect", json.dumps(wanted), str(out)]
        message = tools.run(words, work, family)
        if message:
            print(message, file=sys.stderr)
        found = json.loads(out.read_text("utf-8"))
        return found["driver"], found["rows"]


def table(rows: Sequence[Row]) -> str:
    """Format figures in columns, with a heading for each graph."""
    lines: list[str] = []
    cells = [_cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(HEADS, *cells, strict=True)]
    of_graph = groupby(
        zip(rows, cells, strict=True),
        lambda each: tuple(each[0][name] for name in ("family", "model", "format", "graph")),
    )
    for names, some in of_graph:
        some = list(some)
        total = sum(row["count"] for row, _ in some)
        lines += ["", f"{' '.join(names)}: {total} dispatches", _line(HEADS, widths)]
        lines += [_line(each, widths) for _, each in some]
    return "\n".join(lines)


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    left = (1, 2, len(cells) - 1)
    return "  ".join(
        cell.ljust(width) if i in left else cell.rjust(width)
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ).rstrip()


def _cells(row: Row) -> list[str]:
    names = (
        "threads", "wave", "vgprs", "spills", "scratch", "lds", "waves", "latency",
        "inverse_throughput", "code",
    )  # fmt: skip
    grid = "×".join(map(str, row["groups"]))
    figures = ["–" if row[name] is None else str(row[name]) for name in names]
    executed = [_number(row[name]) for name in ("instructions", "instructions_per_weight")]
    kernel = row["kernel"].partition("(")[0]
    return [str(row["count"]), row["op"], kernel, grid, *figures, *executed, row["operands"]]


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.2f}"


def lint_lines(rows: Sequence[Row]) -> Iterator[str]:
    """List the accesses with the most overhead, each kernel's once."""
    found: dict[str, float] = {}
    for row in rows:
        groups = math.prod(row["groups"]) * row["count"]
        for each in row["lint"]:
            if each["took"] and each["took"] > each["least"]:
                line = _lint_line(row, each)
                waste = each["times"] * (each["took"] - each["least"]) * groups
                found[line] = found.get(line, 0.0) + waste
    worst = sorted(found, key=lambda line: -found[line])[:WORST]
    yield f"\naccesses of 32 lanes, the worst {len(worst)} of {len(found)} that are not ideal:"
    yield from worst


def _lint_line(row: Row, each: Row) -> str:
    what = "cycles of banks" if each["memory"] == "workgroup" else "lines of 128 B"
    return (
        f"  {row['format']} {row['graph']} {row['op']}: {each['op']} of {each['nbytes']} B a lane, "
        f"{each['memory']}: {each['took']:.1f} {what}, needs {each['least']:.1f}; "
        f"{each['times']} times a group"
    )


def main() -> int:
    options = arguments()
    try:
        found = [collected(options, family) for family in options.family]
    except tools.Missing as missing:
        print(f"skipped: {missing}")
        return 0
    driver, rows = found[0][0], [row for _, some in found for row in some]
    if not rows:
        print(f"no op begins with {options.op!r}")
        return 1
    print(table(rows))
    if options.lint:
        print("\n".join(lint_lines(rows)))
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n", "utf-8")
    if options.write_baseline:
        compare.write(compare.BASELINE, driver, rows)
    return checked(rows, driver) if options.check else 0


def checked(rows: Sequence[Row], driver: str) -> int:
    """Report figures that became worse; return 1 if any did."""
    baseline = compare.read(compare.BASELINE)
    known = baseline.kernels
    if baseline.mesa != compare.version(driver):
        message = f"the baseline is of Mesa {baseline.mesa}, this is {driver}"
        print(f"\n{message}: only spills and scratch are looked at")
        known = {}
    lines = compare.worse(rows, known)
    new = compare.unknown(rows, known) if known else 0
    if new:
        print(f"\n{new} kernels are not in the baseline; --write-baseline puts them there")
    if new and new == len(compare.figures(rows)):
        lines.append("nothing was compared: the baseline has none of these kernels")
    print("\n".join(["", "worse than the baseline:", *lines] if lines else ["\nnothing is worse"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
