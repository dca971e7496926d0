"""Measure serving: the server over its engine, many requests over one, load that comes at once.

::

    python -m benchmarks.serve
    python -m benchmarks.serve --only engine,overhead --repeats 5
    python -m benchmarks.serve --model model.gguf --device vulkan:0 --json a.json --markdown a.md
    python -m benchmarks.serve --only peer --model model.gguf --peer path/to/llama-server

Figures are ratios of one run, the two sides in turns; medians. The server is the command
``wgpu-backend serve`` in a process of its own, clients speak HTTP over sockets. Parts:

    engine    tokens/s of eight sequences over one; a repeated prefix over its first prefill; when a
              short prompt's first token comes while a long one is read, in steps
    drafts    tokens guessed right, and seconds with a draft over those without
    overhead  what a step of eight streams takes by HTTP over that of the engine alone: the median
              of 32 pairs a repeat, what it is between, 19 times of 20, and the processor's time
    clients   1,000 at once with a queue of 512: answers, 503s, and what neither was
    requests  thousands in turn: memory and files of the server before and after
    peer      eight clients of this server and of llama-server, on one file and device
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

from benchmarks.serving import bare, by_http, peers, steps
from benchmarks.serving.measuring import Figures, Given

PARTS: dict[str, Callable[[Given], Figures]] = {
    "engine": bare.engine,
    "drafts": bare.drafts,
    "overhead": steps.overhead,
    "clients": by_http.clients,
    "requests": by_http.requests,
    "peer": peers.peer,
}


def main() -> None:
    """Measure, print and optionally store."""
    given, args = asked()
    chosen = args.only.split(",") if args.only else [p for p in PARTS if p != "peer" or args.peer]
    found: dict[str, Figures] = {}
    for name in chosen:
        found[name] = PARTS[name](given)
        for what, value in found[name].items():
            print(f"{name}: {what}: {value}", flush=True)
        if args.json:
            args.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if args.markdown:
        args.markdown.write_text(table(found), encoding="utf-8")


def asked() -> tuple[Given, argparse.Namespace]:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description="What serving costs, as ratios.")
    parser.add_argument("--only", default="", help=f"parts, of {','.join(PARTS)}")
    parser.add_argument("--model", default="", help="a GGUF file; the story model by default")
    parser.add_argument("--device", default="")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=48, help="of each answer")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--peer", default="", help="llama-server to compare with")
    parser.add_argument("--json", type=Path, default=None)
    parser.add_argument("--markdown", type=Path, default=None)
    args = parser.parse_args()
    sizes = (args.repeats, args.tokens, args.clients, args.requests)
    return Given(args.model, args.device, *sizes, args.peer), args


def table(found: dict[str, Figures]) -> str:
    """Format the figures as a page."""
    lines = ["# Serving", "", "By `python -m benchmarks.serve`; ratios of one run.", ""]
    lines += ["| part | figure | value |", "|---|---|---|"]
    for name, figures in found.items():
        lines += [f"| {name} | {what} | {value} |" for what, value in figures.items()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
