"""Measure the speed of reading tool calls, in megabytes per second of processor time.

    python -m benchmarks.tool_calls --json results.json

A text of 1 MB is written in the form of each family and read at once, in pieces of 64 characters
and in pieces of a token's length. The forms take turns, and a figure is the best of some rounds.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from tests.text.output_parsers.test_tags_and_types import TOOLS, WRITERS
from wgpu_backend.text.output_parsers import parser_for, whole

SIZE = 1_000_000
PIECES = {"whole": SIZE * 2, "64": 64, "4": 4}


def megabytes_per_second(name: str, characters: int) -> float:
    """Measure the speed of one reading of a text in pieces of so many characters."""
    template, write = WRITERS[name]
    call = write("w", x="some words", y="more of them" * 14)
    count = -(-SIZE // (len(call) + 1))
    text = "\n".join([call] * count)
    pieces = [text[at : at + characters] for at in range(0, len(text), characters)]
    parser = parser_for(template, tools=TOOLS)
    begin = time.process_time()
    parts = [part for piece in pieces for part in parser.push(piece)] + parser.finish()
    seconds = time.process_time() - begin
    found = len(whole(parts).tool_calls)
    if found != count:
        raise SystemExit(f"{name}: {found} calls were read, {count} were written")
    return len(text.encode()) / seconds / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    found = {name: dict.fromkeys(PIECES, 0.0) for name in WRITERS}
    for _ in range(given.rounds):
        for name, speeds in found.items():
            for way, characters in PIECES.items():
                speeds[way] = max(speeds[way], megabytes_per_second(name, characters))
    for name, speeds in found.items():
        print(f"{name:12}", *(f"{way} {speed:5.1f}" for way, speed in speeds.items()))
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
